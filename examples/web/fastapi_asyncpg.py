"""FastAPI with a pool of asyncpg; the worker is a separate process."""

from contextlib import asynccontextmanager

import asyncpg
from fastapi import FastAPI, Request

from examples.web.queue import DSN, send_receipt


@asynccontextmanager
async def lifespan(api: FastAPI):
    async with asyncpg.create_pool(DSN, min_size=1) as api.state.pool:
        yield


api = FastAPI(lifespan=lifespan)


@api.post("/orders")
async def place_order(email: str, request: Request):
    async with request.app.state.pool.acquire() as db, db.transaction():
        await db.execute("insert into orders (email) values ($1)", email)
        return {"job": await send_receipt.enqueue(db, email)}
