"""Failed attempts on which a retry function of the database decides, apart from all other ends.

Such a function may not return, and what is in the same statement waits for it. So `exchange` leaves these attempts
undecided, and they are reported again from here, task by task, over a connection of their own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import psycopg

from pgqueue.db import sessions
from pgqueue.errors import InvalidArgument
from pgqueue.logs import one_line
from pgqueue.worker.hold.held import Held, Verdict
from pgqueue.worker.link.connection import Link, is_cut_off, is_too_much
from pgqueue.worker.link.links import ASK_WITHIN
from pgqueue.worker.trade.exchange import Exchange, Reply

log = logging.getLogger("pgqueue.worker")

# Attempts that one statement decides at most: its rows are locked meanwhile.
_BATCH = 20

# A function that was ended is not asked again for this time, in seconds.
_PAUSE = 60.0


class Deciding:
    """Takes undecided ends by `add`, and reports them with `decide_forever`.

    `settle` acts on the server's reply. `ended` takes back an end on whose retry the default policy is to decide.
    """

    def __init__(
        self,
        link: Link,
        keeping: Link,
        exchange: Exchange,
        *,
        settle: Callable[[Reply], None],
        ended: Callable[[Held], None],
    ) -> None:
        self._link = link
        self._keeping = keeping
        self._exchange = exchange
        self._settle = settle
        self._ended = ended
        self._waiting: list[Held] = []
        self._came = asyncio.Event()
        # By task: until when its function is not asked.
        self._paused: dict[str, float] = {}

    def add(self, held: Held) -> None:
        """The server is to ask the retry function of this one's task."""
        if time.monotonic() < self._paused.get(held.row.task, 0.0):
            self._by_default(held, f"it was not asked: it did not return less than {_PAUSE:g} s ago")
            return
        self._waiting.append(held)
        self._came.set()

    async def decide_forever(self) -> None:
        """Report undecided ends."""
        while True:
            await self._came.wait()
            self._came.clear()
            while self._waiting:
                task = self._waiting[0].row.task
                batch = [held for held in self._waiting if held.row.task == task][:_BATCH]
                self._waiting = [held for held in self._waiting if held not in batch]
                try:
                    await self._decide(task, batch)
                except BaseException:
                    self._waiting += batch
                    self._came.set()
                    raise

    async def _decide(self, task: str, batch: list[Held]) -> None:
        began = time.monotonic()
        try:
            reply = await self._exchange.perform(self._link, 0, batch, ask=True)
        except (InvalidArgument, psycopg.Error, TimeoutError) as error:
            if is_too_much(error) or is_cut_off(error):
                self._pause(task)
                await self._end_session()
            for held in batch:
                self._by_default(held, one_line(error))
            return
        if time.monotonic() - began >= ASK_WITHIN:
            self._pause(task)
        self._settle(reply)

    def _pause(self, task: str) -> None:
        self._paused[task] = time.monotonic() + _PAUSE
        log.error("the retry function of task %s does not return: the default policy decides for %g s", task, _PAUSE)

    async def _end_session(self) -> None:
        """End the session in which a function may go on: it keeps the rows of its jobs locked."""
        if self._link.session is not None:
            await self._keeping.perform(sessions.end_session(*self._link.session))

    def _by_default(self, held: Held, why: str) -> None:
        held.verdict = Verdict(policy="exponential")
        held.error = {**(held.error or {}), "policy_error": f"its retry function: {why}"}
        self._ended(held)
