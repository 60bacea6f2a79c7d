"""Empty the outbox: report the ends of jobs to the database, in batches, until they are stored."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import psycopg

from pgqueue.app import App
from pgqueue.db import consume
from pgqueue.db.call import Call
from pgqueue.errors import LockTimeout, PgQueueError
from pgqueue.logs import one_line
from pgqueue.worker.hold.held import End, Ending, Held, Holding
from pgqueue.worker.hold.outbox import Ends, Outbox
from pgqueue.worker.link.connection import is_refusal
from pgqueue.worker.link.links import Links
from pgqueue.worker.presence.orders import Orders
from pgqueue.worker.process.requests import Requests
from pgqueue.worker.tell.tell import Tell
from pgqueue.worker.trade.trade import Trade

log = logging.getLogger("pgqueue.worker")

# A task that this worker does not know is logged once in this time, in seconds.
_REMIND = 60.0


class Reporter:
    """Reports ends in two loops: large ones go separately, so that the others do not wait for them."""

    def __init__(
        self,
        worker: str,
        app: App,
        links: Links,
        trade: Trade,
        outbox: Outbox,
        holding: Holding,
        tell: Tell,
        requests: Requests,
        orders: Orders,
    ) -> None:
        self._worker = worker
        self._app = app
        self._links = links
        self._trade = trade
        self._outbox = outbox
        self._holding = holding
        self._tell = tell
        self._requests = requests
        self._orders = orders
        self._warned: dict[str, float] = {}

    async def report_forever(self) -> None:
        """Report ends, and claim in the same statement while jobs wait."""
        if self._outbox.has_work:
            # It waits since before this loop was restarted.
            self._outbox.came.set()
        while True:
            await self._outbox.came.wait()
            self._outbox.came.clear()
            while self._outbox.has_work:
                for held in self._outbox.take_settled():
                    self._trade.settle_own(held)
                if returns := self._outbox.take_returns():
                    await self._report_returns(returns)
                capacity = await self._trade.capacity_beside()
                if not capacity:
                    await self._trade.ends_gather()
                if batch := self._outbox.take():
                    await self._trade.exchange(self._links.free(), capacity, batch)
                self._requests.freed.set()

    async def report_large_forever(self) -> None:
        """Report large ends."""
        if self._outbox.has_large:
            self._outbox.large_came.set()
        while True:
            await self._outbox.large_came.wait()
            self._outbox.large_came.clear()
            while batch := self._outbox.take(large=True):
                await self._trade.exchange(self._links.second, 0, batch)
                self._requests.freed.set()

    async def _report_returns(self, batch: list[Held]) -> None:
        locked = Ends()
        try:
            for held in batch:
                if held.attempt.ending.end in (End.SUCCEEDED, End.FAILED):
                    locked.add(held)
            # Separately, so that the others do not wait with them.
            while several := locked.take() or locked.take(large=True):
                await self._trade.exchange(self._links.second, 0, several)
            delays: dict[float, list[Held]] = {}
            for held in batch:
                ending = held.attempt.ending
                if ending.end is End.SNOOZED:
                    await self._snooze(held, ending)
                elif ending.end is End.RELEASED:
                    delays.setdefault(ending.delay, []).append(held)
            for delay, several in delays.items():
                await self._release(several, delay)
        except BaseException:
            while several := locked.take() or locked.take(large=True):
                self._trade.report_again(several)
            # But for those that went back, and those that are locked, which are reported again in a second.
            left = [held for held in batch if held.pair in self._holding.held and not held.attempt.is_locked]
            self._trade.report_again([held for held in left if held.attempt.ending.end in (End.RELEASED, End.SNOOZED)])
            raise

    async def _snooze(self, held: Held, ending: Ending) -> None:
        link = self._links.second
        try:
            if ending.throttle is None:
                asking: Call[Any] = consume.snooze(*held.pair, ending.snooze)
                state = "snoozed" if await link.perform(asking, gives_up=_unsure([held])) else None
            else:
                asking = consume.throttled(*held.pair, ending.snooze, *ending.throttle)
                state = await link.perform(asking, gives_up=_unsure([held]))
        except LockTimeout:
            self._trade.report_later(held)
            return
        except (psycopg.Error, PgQueueError) as refusal:
            if isinstance(refusal, psycopg.Error) or is_refusal(refusal):
                self._trade.report_refused(held, refusal)
                return
            name = "Snooze" if ending.throttle is None else "Throttled"
            self._outbox.correct(held, Ending(End.FAILED, {"class": name, "message": one_line(refusal)}))
            self._outbox.put(held)
            return
        self._holding.remove(held)
        if ending.throttle is not None:
            # Others of its kind may wait here to be started, and a worker that does not listen would hear of it late.
            self._orders.asked_now.set()
        if state is None and not held.attempt.may_be_stored:
            self._tell.end_lost(held, "it was snoozed")
        elif state in ("snoozed", "throttled", None):
            self._tell.snoozed(held)
        else:
            why = "it was only throttled for 24 hours: this attempt counts"
            self._outbox.correct(held, replace(ending, error={"class": "Throttled", "message": why}))
            self._tell.failed(held, state, None)

    async def _release(self, batch: list[Held], delay: float) -> None:
        link = self._links.second
        try:
            releasing = consume.release([held.pair for held in batch], delay)
            lost = await link.perform(releasing, gives_up=_unsure(batch))
        except (psycopg.Error, PgQueueError) as refusal:
            if not is_refusal(refusal):
                raise
            if len(batch) == 1:
                self._trade.report_refused(batch[0], refusal)
                return
            for held in batch:
                await self._release([held], delay)
            return
        # A row that another session had locked stays reserved.
        reserved = await link.perform(consume.held_by(self._worker))
        gone, left = set(lost), set(reserved)
        for held in batch:
            if held.pair in left:
                self._trade.report_later(held)
                continue
            self._holding.remove(held)
            if held.row.id in gone and not held.attempt.may_be_stored:
                self._tell.end_lost(held, "it was given back")
            else:
                self._tell.released(held)
            if held.row.task not in self._app.tasks:
                self._warn_unknown(held)

    def _warn_unknown(self, held: Held) -> None:
        now = time.monotonic()
        if now - self._warned.get(held.row.task, -_REMIND) >= _REMIND:
            self._warned[held.row.task] = now
            log.warning("%s: this worker has no such task; given back for %g s", held, held.attempt.ending.delay)


def _unsure(batch: Sequence[Held]) -> Callable[[BaseException], bool]:
    """Return what decides on an error of the statement that gives these back: it notes that they may have gone."""

    def gives_up(error: BaseException) -> bool:
        for held in batch:
            held.attempt.is_unsure = True
        return is_refusal(error)

    return gives_up
