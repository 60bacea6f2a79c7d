"""The one place that counts and logs the outcomes of jobs, and calls the hooks."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pgqueue.worker.hold.held import Cause, Held
from pgqueue.worker.tell.counts import Counts
from pgqueue.worker.tell.events import Events
from pgqueue.worker.tell.job_log import JobLog, started

log = logging.getLogger("pgqueue.worker")


class Tell:
    """Reports the outcomes of jobs to the counts, the log and the hooks. `completed` and `failures` are sums."""

    def __init__(self, counts: Counts, events: Events, job_log: JobLog) -> None:
        self.completed = 0
        self.failures = 0
        self.counts = counts
        self.events = events
        self._job_log = job_log

    def reserved(self, jobs: int) -> None:
        """This number of jobs was reserved."""
        if self.events.is_on:
            self.events.reserved(jobs)

    def started(self, held: Held) -> None:
        """The handler of this job starts: called by its thread, or on the loop, in its context."""
        self.counts.started(held)
        started(held)
        if self.events.is_on:
            self.events.report("started", held)

    def succeeded(self, batch: Sequence[Held]) -> None:
        """These jobs succeeded, and that is stored."""
        self.completed += len(batch)
        self.counts.succeeded(batch)
        self._job_log.succeeded(batch)
        if self.events.is_on:
            for held in batch:
                self.events.report("succeeded", held)

    def failed(self, held: Held, state: str, policy_error: str | None) -> None:
        """This attempt failed; the job is now failed (it runs again), dead or cancelled."""
        self.failures += 1
        if policy_error is not None:
            log.error("%s: %s; its retry policy decides", held, policy_error)
        self.counts.failed(held, state, held.error)
        self.events.report(state, held, held.error)
        if state == "dead":
            self.events.dead(held)
        self._job_log.failed(held, state)

    def snoozed(self, held: Held) -> None:
        """This job runs again later, and the attempt does not count."""
        self.counts.ended(held, "snoozed")
        self.events.report("snoozed", held)
        self._job_log.snoozed(held, held.snooze)

    def suspended(self, held: Held) -> None:
        """Its handler has given this job back until later; the attempt does not count."""
        self.counts.ended(held, "snoozed")
        self.events.report("snoozed", held)
        self._job_log.suspended(held)

    def released(self, held: Held) -> None:
        """This job was given back; when that was to cancel it, it is cancelled."""
        if held.stop is None or held.stop.cause is not Cause.CANCEL:
            self.events.report("released", held)
            return
        self.counts.ended(held, "cancelled")
        self.events.report("cancelled", held, held.stop.error)
        self._job_log.cancelled(held)

    def lease_lost(self, held: Held, why: str) -> None:
        """The lease of this job is over, and its handler still runs."""
        log.warning("%s is lost: %s", held, why)
        self._lost(held, why)

    def end_lost(self, held: Held, when: str) -> None:
        """The lease of this job was over when its end was to be stored. Told once: its lease may have shown it."""
        why = f"its reservation was over when {when}"
        log.info("%s: %s; its end was not stored", held, why)
        if held.stop is None or held.stop.cause is not Cause.LOST:
            self._lost(held, why)

    async def close(self) -> None:
        """Write the pending lines of the log."""
        await self._job_log.close()

    def _lost(self, held: Held, why: str) -> None:
        self.counts.failed(held, "lost", {"message": why})
        self.events.report("lost", held, {"message": why})
