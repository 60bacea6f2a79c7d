"""Counts of started and ended jobs by queue and task: for `beat`, which passes them on to pgqueue.samples, and for
/metrics.

Counting costs little compared to the end of a job: for a large batch the outcomes are counted exactly, and the times of
some jobs represent all of them.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pgqueue.db.consume import JobRow
from pgqueue.worker.hold.held import Held

# Upper bounds of the buckets of times, in seconds; the twelfth has none. See the comment on pgqueue.samples.ended.
BOUNDS = (0.001, 0.004, 0.016, 0.064, 0.25, 1.0, 4.0, 16.0, 60.0, 300.0, 3600.0)

OUTCOMES = ("succeeded", "failed", "dead", "cancelled", "snoozed", "lost")

# What an entry may count: handlers that started, and how attempts ended.
_COUNTED = ("started", *OUTCOMES)

# Pairs of queue and task that are counted separately; the others count as the task "other".
MOST = 500

# Jobs of a batch whose times are counted, at most.
_LOOKED_AT = 32

# Failed attempts that go along with a heartbeat, the last ones; and characters of their errors.
TROUBLES = 20
_LINE = 200

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
            found = self._tallies.setdefault((queue, task, database), _Tally())
        return found

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
class Trouble:
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


class Counts:
    """Counts the starts and ends of one worker's jobs. `lease` is how long its reservations hold, in seconds.

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
        self._troubles: deque[Trouble] = deque(maxlen=TROUBLES)

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
            self._add_times(held, step)

    def ended(self, held: Held, outcome: str) -> None:
        """This attempt ended: succeeded, failed, dead, cancelled, snoozed or lost."""
        self._new.tally(held.row.queue, held.row.task).counts[outcome] += 1
        self._add_times(held, 1)

    def failed(self, held: Held, state: str, error: Mapping[str, object] | None) -> None:
        """This attempt failed, or is lost, with an error in the form of fail()."""
        self.ended(held, state)
        kind, message = (error or {}).get("class"), str((error or {}).get("message") or "")
        line = " ".join(message.partition("\n")[0].split())[:_LINE]
        named = None if kind is None else str(kind)[:_LINE]
        self._troubles.append(Trouble(time.monotonic(), held.row, state, named, line))

    def take_troubles(self) -> list[Trouble]:
        """Return the last troubles since the last call."""
        found = list(self._troubles)
        self._troubles.clear()
        return found

    def put_back_troubles(self, troubles: Sequence[Trouble]) -> None:
        """These could not be reported: they go along with the next ones."""
        self._troubles = deque([*troubles, *self._troubles], TROUBLES)

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

    def _add_times(self, held: Held, weight: int) -> None:
        row = held.row
        tally = self._new.tally(row.queue, row.task)
        if held.seconds is not None:
            tally.run.add(held.seconds, weight)
        # By the database's clock alone. A job that comes back has not waited since its first time.
        if row.reservation >> 20 == 1:
            waited = row.lease_expires_at - self._lease - max(row.run_at, row.created_at)
            tally.wait.add(max(waited, 0) / 1_000_000, weight)
