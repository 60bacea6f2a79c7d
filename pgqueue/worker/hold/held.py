"""A held job, which this worker has reserved and not yet finished; and all jobs that a worker holds."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Generic, TypeVar

from pgqueue.db.consume import JobRow
from pgqueue.db.json import read_json
from pgqueue.job import Job
from pgqueue.transaction import Stage

T = TypeVar("T")


class End(Enum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RELEASED = "released"
    SNOOZED = "snoozed"
    # By the handler, in its own transaction.
    SETTLED = "settled"
    # By the handler, which has given the job back until later.
    SUSPENDED = "suspended"


class Cause(Enum):
    """Why a handler was asked to stop. The values are the classes of errors, as jobs have them."""

    INTERRUPTED = "Interrupted"
    TIMEOUT = "Timeout"
    CANCEL = "Cancel"
    LOST = "Lost"


@dataclass(frozen=True, slots=True)
class Stop:
    """A request to a handler to stop, so that its attempt ends as `end`. `reason` is the cause in words."""

    end: End
    reason: str = ""
    cause: Cause = Cause.INTERRUPTED

    @property
    def error(self) -> dict[str, object]:
        """The error of an attempt that failed for this reason."""
        return {"class": self.cause.value, "message": self.reason}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The code's decision after a failed attempt, as the arguments of `fail`. By default the retry policy decides."""

    retry_in: timedelta | str | None = None
    retry: bool = True
    policy: str | None = None
    cancel: bool = False


class _once(Generic[T]):
    """cached_property without the lock that it takes before Python 3.12."""

    def __init__(self, read: Callable[[Any], T]) -> None:
        self._read = read
        self._name = read.__name__

    def __get__(self, held: Held, owner: type[Held]) -> T:
        value = self._read(held)
        # Not through __dict__, which Python makes only for an object that is asked for it.
        setattr(held, self._name, value)
        return value


class Held:
    """A job that this worker has reserved and not yet finished. `row` is the row that the claim returned.

    `deadline` is the monotonic time until which the lease certainly holds, counted from before the request that last
    extended it. `started` is the monotonic time at which the handler began, `seconds` how long it ran. `stop` is None
    while the handler may continue; `ask_to_stop` sets it.

    A batch of an accumulating task has one `Held` for each key. The first is the leader: it holds the payloads of all
    keys and runs the handler. The others are its `members` and share its end.

    Most attributes are the same for most jobs, and are class attributes until they change: a job costs little to
    create. So are `args` and `headers`, which are parsed when they are first read.
    """

    # Written with the claim; Leases alone writes the deadline after that.
    payloads: dict[str, list[Any]] | None = None
    members: Sequence[Held] = ()
    leader: Held | None = None
    # Written by Runner.
    started: float | None = None
    seconds: float | None = None
    timer: asyncio.TimerHandle | None = None
    delay: float = 0.0
    # Written by Jobs.
    job: Job | None = None
    # Written by ask_to_stop.
    stop: Stop | None = None
    # Written by Handlers, while a handler runs and until it is known how it ended.
    runner: asyncio.Task[Any] | None = None
    context: contextvars.Context | None = None
    outcome: tuple[object, BaseException | None] | None = None
    # How the attempt ended: written by Handlers, or Runner where none ran, and then by those who store it, where that
    # has another outcome.
    ended: End | None = None
    error: dict[str, object] | None = None
    result: bytes | None = None
    snooze: timedelta | str = ""
    # Where it is throttled for that time: what of it (None: the default), and why.
    throttle: tuple[str | None, str] | None = None
    verdict: Verdict = Verdict()
    signalled: bool = False
    # Written by Trade and Reporter: how often the server did not take the end, while it answered other calls; and
    # whether another session had locked the row then.
    refused: int = 0
    is_locked: bool = False

    def __init__(self, row: JobRow, deadline: float, taken: float | None = None) -> None:
        self.row = row
        self.pair: tuple[int, int] = (row.id, row.reservation)
        self.deadline = deadline
        self.taken = time.monotonic() if taken is None else taken

    @_once
    def args(self) -> Any:
        """The args of the job, or Unreadable."""
        return read_json(self.row.args)

    @_once
    def headers(self) -> Any:
        """The headers of the job, None without any, or Unreadable."""
        return read_json(self.row.headers)

    def ask_to_stop(self, stop: Stop) -> bool:
        """Note that the handler is to stop. False: it was asked before, or the attempt has ended."""
        if self.stop is not None or self.ended is not None:
            return False
        self.stop = stop
        return True

    @property
    def timeout(self) -> float | None:
        """How long the attempt may take, in seconds."""
        return None if self.row.timeout is None else self.row.timeout.total_seconds()

    @property
    def size(self) -> int:
        """About how many bytes its end has: its result, or its error, which is short."""
        if self.result is not None:
            return len(self.result)
        return 0 if self.error is None else sum(len(str(value)) for value in self.error.values())

    @property
    def is_started(self) -> bool:
        """Whether the handler has begun."""
        return (self.leader or self).started is not None

    @property
    def is_settling(self) -> bool:
        """Whether the handler completes the job itself: then its row may be gone, and that is no loss."""
        job = (self.leader or self).job
        return job is not None and job.stage is not Stage.OPEN

    @property
    def is_completed(self) -> bool:
        """Whether the handler has completed the job in its own transaction."""
        return self.job is not None and self.job.stage is Stage.COMPLETED

    @property
    def is_suspended(self) -> bool:
        """Whether the handler has given the job back until later, however it ends then."""
        return self.job is not None and self.job.is_suspended

    @property
    def stores_result(self) -> bool:
        """Whether the result is to be stored."""
        return self.row.store_result if self.job is None else self.job.stores_result

    def log_fields(self) -> dict[str, object]:
        """Return the fields that a JSON line of the log has for this job."""
        return self.row.log_fields()

    def __str__(self) -> str:
        row = self.row
        return f"job {row.id} (task {row.task}, queue {row.queue}, attempt {row.attempt})"


class Holding:
    """The jobs of this worker by (id, reservation), from their claim until their end is stored.

    `extend_now` asks for their leases to be extended at once.
    """

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], Held] = {}
        self.extend_now = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_at = 0.0

    def add(self, *several: Held) -> None:
        """Keep the leases of these jobs from now on."""
        for held in several:
            self.held[held.pair] = held

    def remove(self, *several: Held) -> None:
        """Forget jobs that are finished or lost."""
        for held in several:
            self.held.pop(held.pair, None)

    def start(self) -> None:
        """Note the running loop, on which leases are extended."""
        self._loop = asyncio.get_running_loop()

    def extend_soon(self) -> None:
        """Extend all leases, from any thread; at most once a second, for a handler may ask in each step of a loop."""
        now = time.monotonic()
        if self._loop is not None and now - self._asked_at >= 1.0:
            self._asked_at = now
            self._loop.call_soon_threadsafe(self.extend_now.set)


def set_aside(rows: Sequence[JobRow], deadline: float) -> tuple[list[JobRow], list[Held], list[Held]]:
    """Return the rows to run, the jobs to fail at once because they cannot be read, and others to give back after that.

    The payloads beside one that cannot be read wait for another claim: they would take it to their own end.
    """
    unreadable = [row for row in rows if row.outcome == "unreadable"]
    spoilt = {(row.leader, row.key) for row in unreadable if row.leader is not None}
    failed = []
    for row in unreadable:
        held = Held(row, deadline)
        held.ended, held.verdict = End.FAILED, Verdict(retry=False)
        held.error = {
            "class": "Unreadable",
            "message": "its args, headers or names have bytes that cannot be read as UTF-8",
        }
        failed.append(held)
    first = {(row.leader, row.key): row for row in reversed(rows) if (row.leader, row.key) in spoilt}
    put_back = [Held(row, deadline) for row in first.values() if row.outcome != "unreadable"]
    for held in put_back:
        held.ended = End.RELEASED
    left = [row for row in rows if row.outcome != "unreadable" and (row.leader, row.key) not in spoilt]
    return left, failed, put_back


def batches(rows: Iterable[JobRow], deadline: float) -> list[Held]:
    """Return the leaders of the batches among reserved rows, each with the payloads of all its keys.

    Within a key the rows come by score, and the first of them holds the lease.
    """
    leaders: dict[int, Held] = {}
    for row in rows:
        if row.leader is None:
            continue
        key = row.key or ""
        held = Held(row, deadline)
        leader = leaders.get(row.leader)
        if leader is None:
            held.payloads = {key: [held.args]}
            leaders[row.leader] = held
        elif leader.payloads is not None and key in leader.payloads:
            leader.payloads[key].append(held.args)
        elif leader.payloads is not None:
            leader.payloads[key] = [held.args]
            leader.members = [*leader.members, held]
            held.leader = leader
    return list(leaders.values())
