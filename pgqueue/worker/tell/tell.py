"""The one place that counts and logs the outcomes of jobs, and calls the hooks for them.

Elsewhere: the hook for reserved jobs is called where they come in, and a notice about breakers is logged by
the connection that hears it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from pgqueue.worker.hold.held import Cause, Held
from pgqueue.worker.tell import job_log
from pgqueue.worker.tell.counts import TROUBLES, Entry, FailedAttempt, Times, Totals
from pgqueue.worker.tell.events import Events
from pgqueue.worker.tell.job_log import JobLog

log = logging.getLogger("pgqueue.worker")

# Jobs of a batch whose times are counted, at most.
_LOOKED_AT = 32

# Characters of an error that go along with a heartbeat.
_LINE = 200


class Tell:
    """Reports the outcomes of jobs to the counts, the log and the hooks. `completed` and `failures` are sums."""

    def __init__(self, counts: Counts, events: Events, job_log: JobLog) -> None:
        self.completed = 0
        self.failures = 0
        self.counts = counts
        self.events = events
        self._job_log = job_log

    def started(self, held: Held) -> None:
        """The handler of this job starts: called by its thread, or on the loop, in its context."""
        self.counts.started(held)
        if job_log.log.isEnabledFor(logging.DEBUG):
            self._job_log.started(held)
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
        self.counts.failed(held, state, held.attempt.ending.error)
        self.events.report(state, held, held.attempt.ending.error)
        if state == "dead":
            self.events.dead(held)
        self._job_log.failed(held, state)

    def snoozed(self, held: Held) -> None:
        """This job runs again later, and the attempt does not count."""
        self.counts.ended(held, "snoozed")
        self.events.report("snoozed", held)
        self._job_log.snoozed(held, held.attempt.ending.snooze)

    def suspended(self, held: Held) -> None:
        """Its handler has given this job back until later; the attempt does not count."""
        self.counts.ended(held, "snoozed")
        self.events.report("snoozed", held)
        self._job_log.suspended(held)

    def released(self, held: Held) -> None:
        """This job was given back; when that was to cancel it, it is cancelled."""
        if held.attempt.stop is None or held.attempt.stop.cause is not Cause.CANCEL:
            self.events.report("released", held)
            return
        self.counts.ended(held, "cancelled")
        self.events.report("cancelled", held, held.attempt.stop.error)
        self._job_log.cancelled(held)

    def lease_lost(self, held: Held, why: str) -> None:
        """The lease of this job is over, and its handler still runs."""
        log.warning("%s is lost: %s", held, why)
        self._lost(held, why)

    def end_lost(self, held: Held, when: str) -> None:
        """The lease of this job was over when its end was to be stored. Told once: its lease may have shown it."""
        why = f"its reservation was over when {when}"
        log.info("%s: %s; its end was not stored", held, why)
        if held.attempt.stop is None or held.attempt.stop.cause is not Cause.LOST:
            self._lost(held, why)

    async def close(self) -> None:
        """Write the pending lines of the log."""
        await self._job_log.close()

    def _lost(self, held: Held, why: str) -> None:
        self.counts.failed(held, "lost", {"message": why})
        self.events.report("lost", held, {"message": why})


class Counts:
    """Counts the starts and ends of one worker's jobs. `lease` is how long its reservations hold, in seconds.

    Counting costs little compared to the end of a job: for a large batch the outcomes are counted exactly, and the
    times of some jobs represent all of them.

    Each of `readers` has separate counts: "total" is never reset, the others are reset by `take`. The last troubles are
    for the heartbeats alone.
    """

    def __init__(self, lease: float) -> None:
        self.claims = Times()
        self._lease = round(lease * 1_000_000)
        self._new = Totals()
        # Threads start jobs as well.
        self._started: Counter[tuple[str, str]] = Counter()
        self._starting = threading.Lock()
        self._readers = {"total": Totals(), "beat": Totals()}
        self._troubles: deque[FailedAttempt] = deque(maxlen=TROUBLES)

    def follow(self, reader: str) -> None:
        """Count for one more reader from now on."""
        self._readers[reader] = Totals()

    def started(self, held: Held) -> None:
        """The handler of this job, or batch, starts. May be called by any thread."""
        row = held.row
        with self._starting:
            self._started[row.queue, row.task] += 1 + len(held.members)

    def succeeded(self, batch: Sequence[Held]) -> None:
        """These jobs succeeded."""
        if len(batch) <= _LOOKED_AT:
            for held in batch:
                self.ended(held, "succeeded")
            return
        for (queue, task), number in Counter([(held.row.queue, held.row.task) for held in batch]).items():
            self._new.tally(queue, task).counts["succeeded"] += number
        step = len(batch) // _LOOKED_AT + 1
        for held in batch[::step]:
            self._new.tally(held.row.queue, held.row.task).add(held.attempt.seconds, self._waited(held), step)

    def ended(self, held: Held, outcome: str) -> None:
        """This attempt ended: succeeded, failed, dead, cancelled, snoozed or lost."""
        self._new.ended(held.row.queue, held.row.task, outcome, held.attempt.seconds, self._waited(held))

    def failed(self, held: Held, state: str, error: Mapping[str, object] | None) -> None:
        """This attempt failed, or is lost, with an error in the form of fail()."""
        self.ended(held, state)
        kind, message = (error or {}).get("class"), str((error or {}).get("message") or "")
        line = " ".join(message.partition("\n")[0].split())[:_LINE]
        named = None if kind is None else str(kind)[:_LINE]
        self._troubles.append(FailedAttempt(time.monotonic(), held.row, state, named, line))

    def take_troubles(self) -> list[FailedAttempt]:
        """Return the last troubles since the last call."""
        found = list(self._troubles)
        self._troubles.clear()
        return found

    def entries(self) -> list[Entry]:
        """Return the counts since the start."""
        self._pass_on()
        return self._readers["total"].entries()

    def take(self, reader: str) -> list[Entry]:
        """Return the counts since the last call for this reader."""
        self._pass_on()
        return self._readers[reader].take()

    def put_back(self, reader: str, entries: Iterable[Entry]) -> None:
        """Add counts that could not be reported to the next report."""
        self._readers[reader].add(entries)

    def _pass_on(self) -> None:
        with self._starting:
            started, self._started = self._started, Counter()
        for (queue, task), number in started.items():
            self._new.tally(queue, task).counts["started"] += number
        new = self._new.take()
        if new:
            for reader in self._readers.values():
                reader.add(new)

    def _waited(self, held: Held) -> float | None:
        """Return how long a job has waited, by the database's clock alone."""
        row = held.row
        if row.reservation >> 20 != 1:
            # A job that comes back has not waited since its first time.
            return None
        return max(row.lease_expires_at - self._lease - max(row.run_at, row.created_at), 0) / 1_000_000
