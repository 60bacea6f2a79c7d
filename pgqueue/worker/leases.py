"""Keep the leases of held jobs, and notice when one is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from pgqueue import queries
from pgqueue.link import Link, Outage
from pgqueue.runner import Held

# Leases in one statement: it must be short, for it holds locks on their rows.
_BATCH = 2000


class Leases:
    """The jobs that this worker holds, by (id, reservation).

    Every third of a lease all are extended. For a job that the database does not return, `on_lost` is called; for
    one that somebody asked to cancel, `on_cancel`. A lease that could not be extended counts as lost by this
    process's own monotonic clock, counted from before the request that last extended it, because from then on
    somebody else may hold the job.

    While every host of the DSN refuses connections no server can give a lease away, and one that comes back after
    more than 5 s prolongs lapsed leases by one length. So a refusal is worth one more lease, once.
    """

    def __init__(
        self,
        link: Link,
        outage: Outage,
        lease: float,
        on_lost: Callable[[Held, str], None],
        on_cancel: Callable[[Held], None],
    ) -> None:
        self.held: dict[tuple[int, int], Held] = {}
        self.extend_now = asyncio.Event()
        self._link = link
        self._outage = outage
        self._lease = lease
        self._on_lost = on_lost
        self._on_cancel = on_cancel

    def add(self, held: Held) -> None:
        """Keep this job's lease from now on."""
        self.held[held.pair] = held

    def remove(self, held: Held) -> None:
        """The job is finished, or lost: forget it."""
        self.held.pop(held.pair, None)

    async def extend_forever(self) -> None:
        """Extend all leases every third of a lease, and at once when `extend_now` is set."""
        while True:
            started = time.monotonic()
            await self._extend_all()
            pause = max(0.0, started + self._lease / 3 - time.monotonic())
            try:
                async with asyncio.timeout(pause):
                    await self.extend_now.wait()
            except TimeoutError:
                pass
            self.extend_now.clear()

    async def watch_forever(self) -> None:
        """Find leases that ran out by our own clock."""
        while True:
            await asyncio.sleep(min(0.5, self._lease / 20))
            self.check(time.monotonic())

    def check(self, now: float) -> None:
        """Report the leases that ran out before `now`."""
        for held in list(self.held.values()):
            if (
                held.interrupt is None
                # Ended, it waits to be stored: there is nothing to stop, and the fence decides.
                and held.ended is None
                and now > held.deadline
                and now > self._frozen_until(held)
                and not held.is_settling
            ):
                # Not removed: a thread goes on, and should the lease turn out to hold, it is extended again.
                self._on_lost(held, "its lease could not be extended in time")

    def _frozen_until(self, held: Held) -> float:
        refused_at = self._outage.refused_at
        if refused_at is None or refused_at < held.deadline - self._lease:
            return held.deadline
        return min(refused_at, held.deadline) + self._lease

    async def _extend_all(self) -> None:
        everything = list(self.held.values())
        for start in range(0, len(everything), _BATCH):
            batch = everything[start : start + _BATCH]
            rows = await self._link.perform(
                queries.extend([held.pair for held in batch], self._lease, [held.is_started for held in batch])
            )
            until = self._link.sent_at + self._lease
            kept = {row[0]: row[2] for row in rows}
            # A job that was lost and came back to this same worker is held twice; only the newest reservation holds.
            newest: dict[int, int] = {}
            for job_id, reservation in self.held:
                newest[job_id] = max(reservation, newest.get(job_id, 0))
            for held in batch:
                if held.pair not in self.held:
                    # Finished while the reply was on its way.
                    continue
                job_id, reservation = held.pair
                if job_id not in kept or reservation < newest[job_id]:
                    self.remove(held)
                    if not held.is_settling and held.ended is None:
                        self._on_lost(held, "the database took it back")
                else:
                    held.deadline = until
                    if kept[job_id]:
                        self._on_cancel(held)
