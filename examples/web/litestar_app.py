"""Litestar with psycopg, and a worker in the same process."""

import psycopg
from litestar import Litestar, post

from examples.web.queue import DSN, queue, send_receipt
from pgqueue import worker_lifespan


@post("/orders")
async def place_order(email: str) -> dict[str, int]:
    async with await psycopg.AsyncConnection.connect(DSN) as db:
        await db.execute("insert into orders (email) values (%s)", [email])
        return {"job": await send_receipt.enqueue(db, email)}


api = Litestar([place_order], lifespan=[worker_lifespan(queue, DSN)])
