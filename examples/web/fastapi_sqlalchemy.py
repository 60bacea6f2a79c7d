"""FastAPI with SQLAlchemy's async sessions: an order and its job, committed together."""

from typing import Annotated

from fastapi import Depends, FastAPI, Header
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from examples.web.queue import DSN, queue, send_receipt
from pgqueue import worker_lifespan

engine = create_async_engine(DSN.replace("postgresql:", "postgresql+psycopg:"))
sessions = async_sessionmaker(engine)
worker = worker_lifespan(queue, DSN, concurrency=5)
api = FastAPI(lifespan=worker)


async def session():
    """One transaction for a request, committed before the answer is sent: a commit that fails is a 500."""
    async with sessions.begin() as current:
        yield current


Session = Annotated[AsyncSession, Depends(session, scope="function")]


@api.post("/orders")
async def place_order(email: str, db: Session, idempotency_key: Annotated[str | None, Header()] = None):
    await db.execute(text("insert into orders (email) values (:email)"), {"email": email})
    call = send_receipt.using(dedupe=idempotency_key, dedupe_for="1 day" if idempotency_key else None)
    return {"job": await call.enqueue(db, email)}


@api.get("/ready")
async def ready():
    return worker.health()
