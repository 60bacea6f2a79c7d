"""Own the ends of jobs: report them to the database, in batches, until they are stored."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

import psycopg

from pgqueue.db import consume
from pgqueue.errors import InvalidArgument, LockTimeout, PgQueueError
from pgqueue.job import Job
from pgqueue.logs import one_line
from pgqueue.worker.hold.ends import LARGE, Ends
from pgqueue.worker.hold.held import End, Held, Verdict
from pgqueue.worker.link.connection import Link
from pgqueue.worker.link.links import Links
from pgqueue.worker.process.state import State
from pgqueue.worker.run.failure import clean
from pgqueue.worker.tell.events import Events
from pgqueue.worker.tell.job_log import JobLog
from pgqueue.worker.trade.deciding import Deciding
from pgqueue.worker.trade.exchange import Exchange, Reply
from pgqueue.worker.trade.leases import Leases

log = logging.getLogger("pgqueue.worker")

# The end of a job whose row another session has locked, or that the server did not take, is reported again after this
# time, in seconds.
_LOCKED = 1.0

# An end that the server did not take so often, while it answered others, is stored as a failure; and how long such an
# answer may take, in seconds.
_TRIES = 3
_ANSWERS_WITHIN = 5.0

# A task that this worker does not know is logged once in this time, in seconds.
_REMIND = 60.0


class Reporter:
    """Takes the ends of jobs by `ended`, and reports them with `report_forever`, or along with a claim.

    `capacity_beside` returns how many jobs to claim along with ends; `on_claimed` takes the reply of a claim and
    returns how many jobs came.
    """

    def __init__(
        self,
        worker: str,
        links: Links,
        exchange: Exchange,
        leases: Leases,
        events: Events,
        state: State,
        job_log: JobLog,
        *,
        knows: Callable[[str], bool],
        job_of: Callable[[Held], Job],
        capacity_beside: Callable[[], Awaitable[int]],
        on_claimed: Callable[[Reply, int], int],
    ) -> None:
        self.completed = 0
        self.failed = 0
        self._worker = worker
        self._links = links
        self._exchange = exchange
        self._leases = leases
        self._events = events
        self._state = state
        self._job_log = job_log
        self._knows = knows
        self._job_of = job_of
        self._capacity_beside = capacity_beside
        self._on_claimed = on_claimed
        # To be completed or failed; and to be released, snoozed, or reported again after a lock.
        self._ends = Ends()
        self._returns: deque[Held] = deque()
        self._end_came = asyncio.Event()
        self._large_came = asyncio.Event()
        self._deciding = Deciding(links.deciding, links.keeping, exchange, settle=self._settle, ended=self.ended)
        self._warned: dict[str, float] = {}

    @property
    def is_done(self) -> bool:
        """Whether every end is being reported or stored."""
        return not (self._ends.has_small or self._ends.has_large or self._returns)

    @property
    def is_behind(self) -> bool:
        """Whether too many ends wait: the worker should claim nothing."""
        return self._ends.are_behind

    @property
    def loops(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """What must run, by name: ends go by one of three ways, none of which waits for another."""
        return {
            "finishing": self.report_forever,
            "large results": self._report_large_forever,
            "retry functions": self._deciding.decide_forever,
        }

    def ended(self, held: Held) -> None:
        """Report the end of a job soon."""
        if held.ended is End.SETTLED:
            self._leases.remove(held)
            self.completed += 1
            self._job_log.succeeded([held])
            self._events.report("succeeded", held)
        elif held.ended is End.SUSPENDED:
            self._leases.remove(held)
            self._events.report("snoozed", held)
            self._job_log.suspended(held)
        elif held.is_locked or held.ended in (End.RELEASED, End.SNOOZED):
            self._returns.append(held)
        else:
            self._ends.add(held)
            if self._ends.has_large:
                self._large_came.set()
        self._end_came.set()
        self._state.freed.set()

    async def report_forever(self) -> None:
        """Report ends, and claim along with them while jobs wait."""
        while True:
            await self._end_came.wait()
            self._end_came.clear()
            while self._ends.has_small or self._returns:
                if self._returns:
                    await self._report_returns()
                capacity = await self._capacity_beside()
                if batch := self._ends.take():
                    await self._report(self._links.free(), capacity, batch)
                self._state.freed.set()

    async def _report_large_forever(self) -> None:
        while True:
            await self._large_came.wait()
            self._large_came.clear()
            while batch := self._ends.take(large=True):
                await self._report(self._links.second, 0, batch)
                self._state.freed.set()

    async def claim(self, link: Link, max_jobs: int, *, patient: bool = True) -> int:
        """Claim jobs, and report ends along with it; returns how many single jobs or batches came."""
        batch = [] if self._exchange.is_apart else self._ends.take()
        return await self._report(link, max_jobs, batch, patient=patient)

    async def close(self) -> None:
        """Write the pending lines of the job log."""
        await self._job_log.close()

    async def _report(self, link: Link, max_jobs: int, batch: list[Held], *, patient: bool = True) -> int:
        try:
            reply = await self._exchange.perform(link, max_jobs, batch, patient=patient)
        except InvalidArgument as refusal:
            if not batch:
                if self._exchange.can_be_careful(refusal):
                    return await self._report(link, max_jobs, batch, patient=patient)
                raise
            if max_jobs:
                # Perhaps it is the claim that was refused: that says nothing about the ends.
                self._exchange.go_apart(one_line(refusal))
                return await self._report(link, 0, batch)
            await self._report_apart(link, batch, refusal)
            return 0
        except BaseException as error:
            if batch and (isinstance(error, TimeoutError) or (isinstance(error, psycopg.Error) and not max_jobs)):
                if max_jobs:
                    self._exchange.go_apart(one_line(error))
                await self._report_less(batch, error)
                return 0
            # A job whose end got lost here would be extended for ever.
            self._put_back(batch)
            if batch and max_jobs and isinstance(error, psycopg.Error | PgQueueError):
                self._exchange.go_apart(one_line(error))
                return 0
            raise
        if batch:
            self._ends.stored()
            self._settle(reply)
        return 0 if reply.claimed is None else self._on_claimed(reply, max_jobs)

    def _put_back(self, batch: list[Held]) -> None:
        # A job that was lost meanwhile is forgotten.
        for held in batch:
            if held.pair in self._leases.held:
                self.ended(held)

    async def _report_less(self, batch: list[Held], error: BaseException) -> None:
        """Report the next ends in smaller batches, after the server did not take this one; one alone later, or not."""
        size = sum(held.size for held in batch)
        log.warning("%d ends, %d bytes, were not stored (%s)", len(batch), size, one_line(error))
        if len(batch) > 1:
            self._ends.were_too_many(batch)
            self._put_back(batch)
            return
        [held] = batch
        if size > LARGE and await self._server_answers(held):
            held.refused += 1
        if held.refused >= _TRIES:
            why = f"a result of {size} bytes could not be stored: {one_line(error)}"
            log.error("%s: %s", held, why)
            _simplify(held, InvalidArgument(why, hint="return less, or a reference to it"))
            self._put_back(batch)
        else:
            asyncio.get_running_loop().call_later(_LOCKED, self._put_back, batch)

    async def _server_answers(self, held: Held) -> bool:
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN):
                await self._links.keeping.perform(consume.started([held.pair]))
            return True
        except (TimeoutError, psycopg.Error, PgQueueError):
            return False

    async def _report_apart(self, link: Link, batch: list[Held], refusal: PgQueueError) -> None:
        """Report ends one by one when one of them cannot be stored as it is; and that one in another way."""
        if len(batch) > 1:
            while batch:
                try:
                    await self._report(link, 0, [batch[0]])
                except BaseException:
                    self._put_back(batch[1:])
                    raise
                batch = batch[1:]
            return
        [held] = batch
        if not _simplify(held, refusal):
            self._put_back(batch)
            raise refusal
        await self._report(link, 0, batch)

    def _settle(self, reply: Reply) -> None:
        """Act on the server's reply about ended jobs."""
        if not reply.failed and not reply.outcomes and not self._events.is_on:
            for held in reply.completed:
                self._leases.remove(held)
            self.completed += len(reply.completed)
            self._job_log.succeeded(reply.completed)
            return
        succeeded = []
        for held in reply.completed:
            row = reply.outcomes.get(held.pair)
            if row is None:
                self._leases.remove(held)
                self.completed += 1
                succeeded.append(held)
                self._events.report("succeeded", held)
            elif row.outcome == "locked":
                self._report_later(held)
            else:
                self._leases.remove(held)
                log.info("%s: its reservation was over when its handler ended; its end was not stored", held)
                self._events.lost(held, "its reservation was over when its handler ended")
        self._job_log.succeeded(succeeded)
        for held in reply.failed:
            row = reply.outcomes[held.pair]
            if row.outcome == "locked":
                self._report_later(held)
            elif row.outcome == "undecided":
                self._deciding.add(held)
            else:
                self._leases.remove(held)
                self._settle_failure(held, row.outcome, row.note)

    def _settle_failure(self, held: Held, state: str, policy_error: str | None) -> None:
        self.failed += 1
        if state == "lost":
            log.warning("%s failed, but its lease was lost: nothing was stored", held)
            self._events.lost(held, "its reservation was over when its handler failed")
            return
        if policy_error is not None:
            log.error("%s: %s; its retry policy decides", held, policy_error)
        self._events.report(state, held, held.error)
        if state == "dead":
            self._events.dead(held, self._job_of)
        self._job_log.failed(held, state)

    def _report_later(self, held: Held) -> None:
        log.warning("%s is locked by another transaction; its end is stored after that transaction", held)
        held.is_locked = True
        asyncio.get_running_loop().call_later(_LOCKED, self.ended, held)

    async def _report_returns(self) -> None:
        batch = list(self._returns)
        self._returns.clear()
        locked = Ends()
        try:
            for held in batch:
                held.is_locked = False
                if held.ended in (End.SUCCEEDED, End.FAILED):
                    locked.add(held)
            # Separately, so that the others do not wait with them.
            while several := locked.take() or locked.take(large=True):
                await self._report(self._links.second, 0, several)
            delays: dict[float, list[Held]] = {}
            for held in batch:
                if held.ended is End.SNOOZED:
                    await self._snooze(held)
                elif held.ended is End.RELEASED:
                    delays.setdefault(held.delay, []).append(held)
            for delay, several in delays.items():
                await self._release(several, delay)
        except BaseException:
            while several := locked.take() or locked.take(large=True):
                self._put_back(several)
            self._put_back([held for held in batch if held.ended in (End.RELEASED, End.SNOOZED)])
            raise

    async def _snooze(self, held: Held) -> None:
        try:
            snoozed = await self._links.second.perform(consume.snooze(*held.pair, held.snooze))
        except LockTimeout:
            self._report_later(held)
            return
        except PgQueueError as refusal:
            held.ended = End.FAILED
            held.error = {"class": "Snooze", "message": one_line(refusal)}
            held.signalled = False
            self.ended(held)
            return
        self._leases.remove(held)
        if snoozed:
            self._events.report("snoozed", held)
            self._job_log.snoozed(held, held.snooze)
        else:
            log.warning("%s was snoozed, but its lease was lost: nothing was stored", held)
            self._events.lost(held, "its reservation was over when it was snoozed")

    async def _release(self, batch: list[Held], delay: float) -> None:
        link = self._links.second
        lost = await link.perform(consume.release([held.pair for held in batch], delay))
        # A row that another session had locked stays reserved.
        reserved = await link.perform(consume.held_by(self._worker))
        gone, left = set(lost), set(reserved)
        for held in batch:
            if held.pair in left:
                self._report_later(held)
                continue
            self._leases.remove(held)
            if held.row.id in gone:
                self._events.lost(held, "its reservation was over when it was given back")
            elif held.kind == "Cancel":
                self._events.report("cancelled", held, {"class": held.kind, "message": held.reason})
                self._job_log.cancelled(held)
            else:
                self._events.report("released", held)
            if not self._knows(held.row.task):
                self._warn_unknown(held)

    def _warn_unknown(self, held: Held) -> None:
        now = time.monotonic()
        if now - self._warned.get(held.row.task, -_REMIND) >= _REMIND:
            self._warned[held.row.task] = now
            log.warning("%s: this worker has no such task; given back for %g s", held, held.delay)


def _simplify(held: Held, refusal: PgQueueError) -> bool:
    """Change an end that the server refused into one that it can store; False when nothing simpler is left."""
    if held.ended is End.SUCCEEDED:
        held.ended = End.FAILED
        held.result = None
        held.error = {"class": "Result", "message": clean(one_line(refusal))}
        return True
    if held.verdict.retry_in is not None or held.verdict.policy is not None:
        # The decision of the rule or signal is not possible: the retry policy decides.
        held.verdict = Verdict()
        held.error = {**(held.error or {}), "policy_error": one_line(refusal)}
        log.error("%s: %s; its retry policy decides", held, one_line(refusal))
        return True
    # The error itself could not be stored; the failure must be.
    name = str((held.error or {}).get("class", ""))
    plain: dict[str, object] = {
        "class": name.encode("ascii", "replace").decode(),
        "message": clean(one_line(refusal)).encode("ascii", "replace").decode(),
    }
    if held.error == plain:
        return False
    held.error = plain
    return True
