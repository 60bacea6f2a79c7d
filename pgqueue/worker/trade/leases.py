"""Extend the leases of held jobs, and detect lost ones."""

from __future__ import annotations

import asyncio
import logging
import time

import psycopg

from pgqueue.db import consume
from pgqueue.errors import PgQueueError
from pgqueue.logs import one_line
from pgqueue.worker.hold.held import OPEN, Cause, End, Held, Holding, Stop
from pgqueue.worker.link.connection import Link, is_refusal
from pgqueue.worker.link.outage import Outage
from pgqueue.worker.run.runner import Runner
from pgqueue.worker.tell.tell import Tell

log = logging.getLogger("pgqueue.worker")

# Leases in one statement: it must be short, for it holds locks on their rows.
_BATCH = 2000


class Leases:
    """Extends the leases of the jobs that this worker holds.

    Every third of a lease all are extended. The handler of a job that the database does not return is asked to stop,
    and so is that of one that is to be cancelled. A lease holds until the time that the database grants. This process
    measures that by its own monotonic clock, counted from before the request, and treats a lease that ran out by it as
    lost, because from then on another worker may hold the job.

    While every host of the DSN refuses connections no server can give a lease away. One that comes back after more
    than 8 s grants a grace period of one lease to leases that the outage left with less than half of their length. So a
    refusal in the last half of a lease is worth one more, once.
    """

    def __init__(self, holding: Holding, link: Link, outage: Outage, lease: float, runner: Runner, tell: Tell) -> None:
        self._holding = holding
        self._link = link
        self._outage = outage
        self._lease = lease
        self._runner = runner
        self._tell = tell

    async def extend_forever(self) -> None:
        """Extend all leases every third of a lease, and at once when `extend_now` is set."""
        while True:
            started = time.monotonic()
            # Another session's lock keeps some from being extended: it may end soon.
            cadence = self._lease / (3 if await self._extend(list(self._holding.held.values())) else 30)
            pause = max(0.0, started + cadence - time.monotonic())
            try:
                async with asyncio.timeout(pause):
                    await self._holding.extend_now.wait()
            except TimeoutError:
                pass
            self._holding.extend_now.clear()

    async def watch_forever(self) -> None:
        """Find leases that ran out by our own clock."""
        while True:
            await asyncio.sleep(min(0.5, self._lease / 20))
            self.check(time.monotonic())

    def check(self, now: float) -> None:
        """Report the leases that ran out before `now`."""
        for held in list(self._holding.held.values()):
            if (
                held.attempt.stop is None
                # The attempt has ended and waits to be stored: there is nothing to stop, and the fence decides.
                and held.attempt.ending is OPEN
                and now > held.attempt.deadline
                and now > self._frozen_until(held)
                and not held.is_settling
            ):
                # Not removed: a thread continues, and if the lease turns out to hold, it is extended again.
                self._lost(held, "its lease could not be extended in time")

    def _frozen_until(self, held: Held) -> float:
        refused_at = self._outage.refused_at
        if refused_at is None or refused_at < held.attempt.deadline - self._lease / 2:
            return held.attempt.deadline
        return min(refused_at, held.attempt.deadline) + self._lease

    def _lost(self, held: Held, why: str) -> None:
        self._tell.lease_lost(held, why)
        # Another worker may run it now. The fence keeps further results of this handler out of the database.
        self._runner.stop(held, Stop(End.RELEASED, why, Cause.LOST))

    def _cancelled(self, held: Held) -> None:
        if held.attempt.stop is None:
            log.info("%s: cancellation was requested", held)
        # When it is given back, it ends as cancelled.
        self._runner.stop(held, Stop(End.RELEASED, "cancellation was requested", Cause.CANCEL))

    async def _extend(self, everything: list[Held]) -> bool:
        """Extend leases; returns whether each one that is still held was granted more time."""
        all_granted = True
        left = [everything[start : start + _BATCH] for start in range(0, len(everything), _BATCH)]
        while left:
            batch = left.pop(0)
            asking = consume.extend([held.pair for held in batch], self._lease, [held.is_started for held in batch])
            try:
                rows = await self._link.perform(asking, gives_up=is_refusal)
            except (psycopg.Error, PgQueueError) as refusal:
                if not is_refusal(refusal):
                    raise
                # It may be about one job, by a trigger of a user or a broken row: the leases of the others must not
                # lapse.
                if (half := len(batch) // 2) > 0:
                    left[:0] = batch[:half], batch[half:]
                else:
                    log.warning("the lease of %s could not be extended: %s", batch[0], one_line(refusal))
                continue
            asked_for = self._link.sent_at + self._lease
            kept = {row.job_id: row for row in rows}
            # The database's times, compared with each other: its clock is not ours. As timestamps: Python subtracts two
            # times of one zone by their wall clocks.
            latest = max((row.lease_expires_at for row in rows if row.lease_expires_at is not None), default=None)
            # A job that was lost and came back to this same worker is held twice; only the newest reservation holds.
            newest: dict[int, int] = {}
            for job_id, reservation in self._holding.held:
                newest[job_id] = max(reservation, newest.get(job_id, 0))
            for held in batch:
                if held.pair not in self._holding.held:
                    # Finished while the reply was on its way.
                    continue
                job_id, reservation = held.pair
                if job_id not in kept or reservation < newest[job_id]:
                    self._holding.remove(held)
                    if not held.is_settling and held.attempt.ending is OPEN:
                        self._lost(held, "the database took it back")
                    continue
                granted = kept[job_id].lease_expires_at
                if granted is None or latest is None:
                    all_granted = False
                else:
                    held.attempt.deadline = asked_for - (latest.timestamp() - granted.timestamp())
                if kept[job_id].cancel_requested:
                    self._cancelled(held)
        return all_granted
