"""Act on exchanges: which ends go along with a claim, what the reply means for jobs, and what follows a refusal."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from functools import partial

import psycopg

from pgqueue.db import consume
from pgqueue.errors import InvalidArgument, PgQueueError
from pgqueue.logs import how_many, one_line
from pgqueue.worker.hold.held import Decision, End, Ending, Held, Holding
from pgqueue.worker.hold.outbox import LARGE, Outbox
from pgqueue.worker.link.connection import Link, is_refusal
from pgqueue.worker.process.requests import Requests
from pgqueue.worker.run.failure import clean
from pgqueue.worker.run.runner import Runner
from pgqueue.worker.run.slots import Slots
from pgqueue.worker.tell.tell import Tell
from pgqueue.worker.trade.exchange import Exchange, Reply
from pgqueue.worker.trade.intake import Intake

log = logging.getLogger("pgqueue.worker")

# The end of a job whose row another session has locked, or that the server did not take, is reported again after this
# time, in seconds.
_LOCKED = 1.0

# Seconds by which a report of ends lets a poll of the same time begin first.
_AFTER_CLAIM = 0.0002

# While nothing but a stream of hand-offs comes, ends are reported once in this time, in seconds: two or three in one
# statement and one commit. No job waits for them: what has a key, or starts after others, is claimed.
_GATHER = 0.002

# After this many refusals by a server that answers other calls, an end is stored as a failure; and how long such an
# answer may take, in seconds.
_TRIES = 3
_ANSWERS_WITHIN = 5.0


class Trade:
    """Performs exchanges, acts on what became of ended jobs, and gives new ones to the intake.

    Others decide when: `Claimer`, if there are free slots; `Reporter`, in two loops, if ends wait; `Deciding`, if a
    retry function has to be asked. `keeping` is a connection that waits for neither.
    """

    def __init__(
        self,
        exchange: Exchange,
        outbox: Outbox,
        holding: Holding,
        intake: Intake,
        runner: Runner,
        slots: Slots,
        tell: Tell,
        keeping: Link,
        requests: Requests,
    ) -> None:
        self._exchange = exchange
        self._outbox = outbox
        self._holding = holding
        self._intake = intake
        self._runner = runner
        self._slots = slots
        self._tell = tell
        self._keeping = keeping
        self._requests = requests
        # The monotonic time of the next poll of a stream: it takes waiting ends along.
        self.claims_at = 0.0
        self._reported_at = 0.0
        # Ends of which it is not known whether they are stored, and when their reservations were found to be over.
        self._unsure: list[tuple[Held, str]] = []

    def capacity(self) -> int:
        """Return how many jobs to claim now."""
        if self._requests.quiet or self._outbox.is_behind:
            return 0
        self._slots.settle()
        return self._runner.capacity(self._exchange.coming)

    async def capacity_beside(self) -> int:
        """Return how many jobs to claim along with reported ends: some under load, while jobs keep coming."""
        capacity = self._capacity_beside()
        for _ in range(3):
            if capacity or not self._intake.jobs_wait or not self._runner.unstarted:
                break
            # Under load handlers end soon: they are reported in a batch, with a claim.
            await asyncio.sleep(0)
            capacity = self._capacity_beside()
        return capacity

    async def ends_gather(self) -> None:
        """Return when ends are to be reported: no claim is to begin within a moment, and some may have gathered."""
        now = time.monotonic()
        if (seconds := self.claims_at - now) > 0:
            # The claim first.
            await asyncio.sleep(seconds + _AFTER_CLAIM)
        elif (seconds := self._reported_at + _GATHER - now) > 0 and self._intake.load.hands_off_alone(now):
            await asyncio.sleep(seconds)
        self._reported_at = time.monotonic()

    async def claim(self, link: Link, max_jobs: int, *, patient: bool = True) -> int:
        """Claim jobs, and report ends along with it; returns how many single jobs or batches came."""
        began = time.monotonic()
        try:
            batch = [] if self._exchange.is_apart else self._outbox.take()
            return await self.exchange(link, max_jobs, batch, patient=patient)
        finally:
            self._tell.counts.claims.add(time.monotonic() - began)

    async def exchange(self, link: Link, max_jobs: int, batch: list[Held], *, patient: bool = True) -> int:
        """Report these ends and claim up to `max_jobs`, in one statement; returns how many came."""
        try:
            reply = await self._exchange.perform(link, max_jobs, batch, patient=patient)
        except InvalidArgument as refusal:
            if not batch:
                if self._exchange.can_be_careful(refusal):
                    return await self.exchange(link, max_jobs, batch, patient=patient)
                raise
            if max_jobs:
                # The claim may have been refused, which says nothing about the ends.
                self._exchange.go_apart(one_line(refusal))
                return await self.exchange(link, 0, batch)
            await self._report_apart(link, batch, refusal)
            return 0
        except BaseException as error:
            is_of_ends = not max_jobs and (isinstance(error, psycopg.Error) or is_refusal(error))
            if batch and (isinstance(error, TimeoutError) or is_of_ends):
                if max_jobs:
                    self._exchange.go_apart(one_line(error))
                await self._report_less(batch, error)
                return 0
            # A job whose end got lost here would be extended forever.
            self.report_again(batch)
            if batch and max_jobs and isinstance(error, psycopg.Error | PgQueueError):
                self._exchange.go_apart(one_line(error))
                return 0
            raise
        if batch:
            self.act_on(reply)
        claimed = 0 if reply.claimed is None else self._intake.took(reply, max_jobs)
        # After that: what was claimed must be known to this worker before it waits.
        await self.tell_unsure()
        return claimed

    def act_on(self, reply: Reply) -> None:
        """Act on the server's reply about ended jobs."""
        succeeded = reply.completed
        if reply.outcomes:
            succeeded = [held for held in reply.completed if self._is_stored(held, reply)]
        self._holding.remove(*succeeded)
        if succeeded:
            self._tell.succeeded(succeeded)
        for held in reply.failed:
            row = reply.outcomes[held.pair]
            if row.outcome == "locked":
                self.report_later(held)
            elif row.outcome == "undecided":
                self._outbox.put_undecided(held)
            elif row.outcome == "lost":
                self._lost(held, "its handler failed")
            else:
                self._holding.remove(held)
                self._tell.failed(held, row.outcome, row.note)
        # A worker that ends with its last job waits for this one, whichever loop has reported it.
        self._requests.freed.set()

    async def tell_unsure(self) -> None:
        """Tell how jobs ended that were reported twice, for the first reply was lost, and held no more then."""
        if not self._unsure:
            return
        asked, self._unsure = self._unsure, []
        states: dict[int, str] = {}
        try:
            states = await self._keeping.perform(consume.states([held.row.id for held, _ in asked]))
        finally:
            for held, when in asked:
                self._holding.remove(held)
                end, state = held.attempt.ending.end, states.get(held.row.id, "")
                if end is End.SUCCEEDED and state == "succeeded":
                    self._tell.succeeded([held])
                elif end is End.FAILED and state in ("failed", "dead", "cancelled"):
                    self._tell.failed(held, state, None)
                else:
                    self._tell.end_lost(held, when)
            self._requests.freed.set()

    def settle_own(self, held: Held) -> None:
        """The handler has ended this job in its own transaction."""
        self._holding.remove(held)
        if held.attempt.ending.end is End.SUSPENDED:
            self._tell.suspended(held)
        else:
            self._tell.succeeded([held])

    def report_again(self, batch: list[Held]) -> None:
        """Report these ends again. A job that was lost meanwhile has no other."""
        for held in batch:
            if held.pair in self._holding.held:
                self._outbox.put(held)
            else:
                self._tell.end_lost(held, "its handler ended")
                # A worker that ends with its last job waits for it.
                self._requests.freed.set()

    def report_later(self, held: Held) -> None:
        """Another session has locked this job's row: report its end again, in a second."""
        log.warning("%s is locked by another transaction; its end is stored after that transaction", held)
        self._outbox.put_locked(held, _LOCKED)

    def report_refused(self, held: Held, refusal: BaseException) -> None:
        """The server does not give this job back: report that again, in a second. No other end waits for it."""
        log.warning("%s could not be given back (%s)", held, one_line(refusal))
        self._outbox.put_locked(held, _LOCKED)

    def _is_stored(self, held: Held, reply: Reply) -> bool:
        row = reply.outcomes.get(held.pair)
        if row is None:
            return True
        if row.outcome == "locked":
            self.report_later(held)
        else:
            self._lost(held, "its handler ended")
        return False

    def _lost(self, held: Held, when: str) -> None:
        if held.attempt.may_be_stored:
            self._unsure.append((held, when))
        else:
            self._holding.remove(held)
            self._tell.end_lost(held, when)

    async def _report_less(self, batch: list[Held], error: BaseException) -> None:
        """Report the next ends in smaller batches, after the server did not take this one; one alone later, or not."""
        size = sum(held.attempt.ending.size for held in batch)
        log.warning("could not store %s of %d bytes (%s)", how_many(len(batch), "end"), size, one_line(error))
        if len(batch) > 1:
            self._outbox.were_too_many(batch)
            self.report_again(batch)
            return
        [held] = batch
        try:
            if size > LARGE and not is_refusal(error) and await self._server_answers(held):
                held.attempt.refused += 1
        except BaseException:
            self.report_again(batch)
            raise
        if held.attempt.refused >= _TRIES:
            why = f"a result of {size} bytes could not be stored: {one_line(error)}"
            log.error("%s: %s", held, why)
            refusal = InvalidArgument(why, hint="return less, or a reference to it")
            self._outbox.correct(held, simpler(held, refusal) or held.attempt.ending)
            self.report_again(batch)
        else:
            self._outbox.postpone(_LOCKED, partial(self.report_again, batch))

    async def _server_answers(self, held: Held) -> bool:
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN):
                await self._keeping.perform(consume.started([held.pair]))
            return True
        except (TimeoutError, psycopg.Error, PgQueueError):
            return False

    async def _report_apart(self, link: Link, batch: list[Held], refusal: PgQueueError) -> None:
        """Report ends one by one when one of them cannot be stored as it is; and that one in another way."""
        if len(batch) > 1:
            while batch:
                try:
                    await self.exchange(link, 0, [batch[0]])
                except BaseException:
                    self.report_again(batch[1:])
                    raise
                batch = batch[1:]
            return
        [held] = batch
        ending = simpler(held, refusal)
        if ending is None:
            self.report_again(batch)
            raise refusal
        self._outbox.correct(held, ending)
        await self.exchange(link, 0, batch)

    def _capacity_beside(self) -> int:
        if (
            self._requests.stopping.is_set()
            or not self._intake.jobs_wait
            or self._exchange.is_unsure
            or self._exchange.is_apart
            or not self._runner.is_busy
        ):
            return 0
        return self.capacity()


def simpler(held: Held, refusal: PgQueueError) -> Ending | None:
    """Return an end that the server can store instead of the one that it refused; None when nothing simpler is left."""
    ending = held.attempt.ending
    if ending.end is End.SUCCEEDED:
        return Ending(End.FAILED, {"class": "Result", "message": clean(one_line(refusal))})
    if ending.decision.retry_in is not None or ending.decision.policy is not None:
        # The decision of the rule or signal is not possible: the retry policy decides.
        log.error("%s: %s; its retry policy decides", held, one_line(refusal))
        error = {**(ending.error or {}), "policy_error": one_line(refusal)}
        return replace(ending, error=error, decision=Decision())
    # The error itself could not be stored; the failure must be.
    name = str((ending.error or {}).get("class", ""))
    plain: dict[str, object] = {
        "class": name.encode("ascii", "replace").decode(),
        "message": clean(one_line(refusal)).encode("ascii", "replace").decode(),
    }
    return None if ending.error == plain else replace(ending, error=plain)
