"""What is counted of jobs, by queue and task: for `beat`, which passes it on to pgqueue.samples, and for /metrics."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pgqueue.db.consume import JobRow

# Upper bounds of the buckets of times, in seconds; the twelfth has none. See the comment on pgqueue.samples.ended.
BOUNDS = (0.001, 0.004, 0.016, 0.064, 0.25, 1.0, 4.0, 16.0, 60.0, 300.0, 3600.0)

OUTCOMES = ("succeeded", "failed", "dead", "cancelled", "snoozed", "lost")

# What an entry may count: handlers that started, and how attempts ended.
_COUNTED = ("started", *OUTCOMES)

# Pairs of queue and task that are counted separately; the others count as the task "other", and beyond MOST_QUEUES of
# them as of the queue "other": a worker may meet a queue for each session, for weeks.
MOST = 500
MOST_QUEUES = 10_000

# Failed attempts that go along with a heartbeat, the last ones.
TROUBLES = 20

# An entry of a report, in the form of beat().
Entry = dict[str, Any]


@dataclass(slots=True)
class Times:
    """A histogram of seconds."""

    sum: float = 0.0
    max: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * 12)

    def add(self, seconds: float, weight: int = 1) -> None:
        """Add a time that represents `weight` jobs."""
        self.buckets[bisect_left(BOUNDS, seconds)] += weight
        self.sum += seconds * weight
        if seconds > self.max:
            self.max = seconds

    def merge(self, other: Entry) -> None:
        """Add another histogram, as `as_dict` returns it."""
        self.sum += other["sum"]
        self.max = max(self.max, other["max"])
        self.buckets = [one + more for one, more in zip(self.buckets, other["buckets"], strict=True)]

    def as_dict(self) -> Entry:
        """Return it in the form of beat()."""
        return {"sum": round(self.sum, 6), "max": round(self.max, 6), "buckets": list(self.buckets)}


@dataclass(slots=True)
class _Tally:
    counts: Counter[str] = field(default_factory=Counter)
    run: Times = field(default_factory=Times)
    wait: Times = field(default_factory=Times)

    def add(self, run: float | None, wait: float | None, weight: int) -> None:
        """Add the times of an attempt that represents `weight` others; None: it has no such time."""
        if run is not None:
            self.run.add(run, weight)
        if wait is not None:
            self.wait.add(wait, weight)


class Totals:
    """Entries that are summed by queue and task, and by database where they name one."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, str, str], _Tally] = {}

    def tally(self, queue: str, task: str, database: str = "") -> _Tally:
        """Return the tally of a queue and a task."""
        found = self._tallies.get((queue, task, database))
        if found is None:
            if len(self._tallies) >= MOST:
                task = "other"
            if len(self._tallies) >= MOST_QUEUES:
                queue = "other"
            found = self._tallies.setdefault((queue, task, database), _Tally())
        return found

    def ended(self, queue: str, task: str, outcome: str, run: float | None, wait: float | None) -> None:
        """Count an attempt, and its times in seconds."""
        tally = self.tally(queue, task)
        tally.counts[outcome] += 1
        tally.add(run, wait, 1)

    def add(self, entries: Iterable[Entry]) -> None:
        """Add entries, as `take` returns them."""
        for entry in entries:
            tally = self.tally(entry["queue"], entry["task"], entry.get("database", ""))
            tally.counts.update({name: entry[name] for name in _COUNTED if name in entry})
            for name, times in (("run", tally.run), ("wait", tally.wait)):
                if name in entry:
                    times.merge(entry[name])

    def entries(self) -> list[Entry]:
        """Return one entry for each queue and task."""
        found = []
        for (queue, task, database), tally in self._tallies.items():
            # Starts are always there: a sample without them is from workers that do not count them.
            entry: Entry = {"queue": queue, "task": task, "started": 0, **tally.counts}
            if database:
                entry["database"] = database
            for name, times in (("run", tally.run), ("wait", tally.wait)):
                if any(times.buckets):
                    entry[name] = times.as_dict()
            found.append(entry)
        return found

    def take(self) -> list[Entry]:
        """Return the entries, and start again from zero."""
        found = self.entries()
        self._tallies.clear()
        return found


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An attempt that failed or was lost, at a monotonic time. `state`: what the job now is, or lost."""

    at: float
    row: JobRow
    state: str
    kind: str | None
    line: str

    def as_dict(self) -> Entry:
        """Return it in the form of beat()."""
        row = self.row
        return {
            "ago": round(max(time.monotonic() - self.at, 0.0), 1), "job_id": row.id, "queue": row.queue,
            "task": row.task, "attempt": row.attempt, "state": self.state, "class": self.kind, "line": self.line,
        }  # fmt: skip
