"""Typed use with asyncpg, which is no typed package to mypy, and which pyright reads. Checked by pyright, never run."""

from __future__ import annotations

import asyncpg

from tests.typing.usage import add


async def a_pool_and_what_it_lends(pool: asyncpg.Pool, connection: asyncpg.Connection) -> None:
    await add.enqueue(pool, 1)
    await add.enqueue(connection, 1)
    async with pool.acquire() as lent, lent.transaction():
        await add.enqueue(lent, 1)
        await add.enqueue_many(lent, [{"a": 1}])
