"""Starlette with psycopg, and a worker in the same process."""

import psycopg
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from examples.web.queue import DSN, queue, send_receipt
from pgqueue import worker_lifespan


async def place_order(request: Request) -> JSONResponse:
    email = request.query_params["email"]
    async with await psycopg.AsyncConnection.connect(DSN) as db:
        await db.execute("insert into orders (email) values (%s)", [email])
        return JSONResponse({"job": await send_receipt.enqueue(db, email)})


api = Starlette(routes=[Route("/orders", place_order, methods=["POST"])], lifespan=worker_lifespan(queue, DSN))
