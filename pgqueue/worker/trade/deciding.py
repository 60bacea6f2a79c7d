"""Failed attempts on which a retry function of the database decides, apart from all other ends.

Such a function may never return, and everything in the same statement waits for it. So `exchange` leaves these attempts
undecided, and this module reports them again, task by task, over a separate connection.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import psycopg

from pgqueue.db import sessions
from pgqueue.errors import InvalidArgument, PgQueueError
from pgqueue.logs import one_line
from pgqueue.worker.hold.held import Decision, Held
from pgqueue.worker.hold.outbox import Outbox
from pgqueue.worker.link.connection import is_cut_off, is_refusal, is_too_much
from pgqueue.worker.link.links import ASK_WITHIN, Links
from pgqueue.worker.trade.exchange import Exchange
from pgqueue.worker.trade.trade import Trade

log = logging.getLogger("pgqueue.worker")

# The most attempts that one statement decides, because their rows are locked meanwhile.
_BATCH = 20

# A function that was ended is not asked again for this time, in seconds.
_PAUSE = 60.0


class Deciding:
    """Reports undecided ends with `decide_forever`."""

    def __init__(self, links: Links, exchange: Exchange, outbox: Outbox, trade: Trade) -> None:
        self._link = links.deciding
        self._keeping = links.keeping
        self._exchange = exchange
        self._outbox = outbox
        self._trade = trade
        # By task: until when its function is not asked.
        self._paused: dict[str, float] = {}

    async def decide_forever(self) -> None:
        """Report undecided ends."""
        while True:
            await self._outbox.undecided_came.wait()
            self._outbox.undecided_came.clear()
            while batch := self._outbox.take_undecided(_BATCH):
                try:
                    await self._decide(batch[0].row.task, batch)
                except BaseException:
                    for held in batch:
                        self._outbox.put_undecided(held)
                    raise

    async def _decide(self, task: str, batch: list[Held]) -> None:
        began = time.monotonic()
        if began < self._paused.get(task, 0.0):
            self._by_default(batch, f"it was not asked: it did not return less than {_PAUSE:g} s ago")
            return
        try:
            reply = await self._exchange.perform(self._link, 0, batch, ask=True)
        except (PgQueueError, psycopg.Error, TimeoutError) as error:
            if not (isinstance(error, InvalidArgument | psycopg.Error | TimeoutError) or is_refusal(error)):
                raise
            if is_too_much(error) or is_cut_off(error):
                self._pause(task)
                await self._end_session()
            self._by_default(batch, one_line(error))
            return
        if time.monotonic() - began >= ASK_WITHIN:
            self._pause(task)
        self._trade.act_on(reply)
        await self._trade.tell_unsure()

    def _pause(self, task: str) -> None:
        self._paused[task] = time.monotonic() + _PAUSE
        log.error("the retry function of task %s does not return: the default policy decides for %g s", task, _PAUSE)

    async def _end_session(self) -> None:
        """End the session in which a function may continue: it keeps the rows of its jobs locked."""
        if self._link.session is not None:
            await self._keeping.perform(sessions.end_session(*self._link.session))

    def _by_default(self, batch: list[Held], why: str) -> None:
        """Report these again, so that the default policy decides on their retries."""
        for held in batch:
            failed = held.attempt.ending
            error = {**(failed.error or {}), "policy_error": f"its retry function: {why}"}
            self._outbox.correct(held, replace(failed, error=error, decision=Decision(policy="exponential")))
            self._outbox.put(held)
