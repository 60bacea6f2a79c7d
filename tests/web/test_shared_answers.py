"""The answers that many viewers share: one that was read before a change is not used after it."""

from __future__ import annotations

import asyncio
from typing import Any

from pgqueue.db.call import Call
from pgqueue.web.database import PageDatabase


class Slow(PageDatabase):
    """Answers with the fact of when the reading began, once it may end."""

    fact = "before"

    def __init__(self) -> None:
        super().__init__("")
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def read(self, *calls: Call[Any]) -> list[Any]:
        found = self.fact
        self.begun.set()
        await self.may_end.wait()
        return [found]


async def test_what_was_read_before_a_change_is_not_told_after_it() -> None:
    database = Slow()

    async def ask() -> str:
        return await database.shared("fact", 60.0, lambda: Call(b"", (), str))

    first = asyncio.create_task(ask())
    await database.begun.wait()
    database.fact = "after"
    database.forget()
    second = asyncio.create_task(ask())
    await asyncio.sleep(0)
    database.may_end.set()
    assert (await first, await second, await ask()) == ("before", "after", "after")
