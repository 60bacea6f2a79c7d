"""A held job, which this worker has reserved and not yet finished, what becomes of it, and all that a worker holds."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from pgqueue._transaction import Stage
from pgqueue.db.consume import JobRow
from pgqueue.db.json import read_json
from pgqueue.job import Job

T = TypeVar("T")


class End(Enum):
    """How an attempt ended."""

    # Not yet.
    OPEN = "open"
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
class Decision:
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


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended, and what is to be stored of that."""

    end: End
    error: dict[str, object] | None = None
    result: bytes | None = None
    decision: Decision = Decision()
    # Whether the handler decided so, by a signal.
    signalled: bool = False
    # Where it is snoozed, for how long; where it is throttled for that time, what of it (None: the default), and why.
    snooze: timedelta | str = ""
    throttle: tuple[str | None, str] | None = None
    # Where it is released, the seconds until another claim.
    delay: float = 0.0

    @property
    def size(self) -> int:
        """About how many bytes it has: its result, or its error, which is short."""
        if self.result is not None:
            return len(self.result)
        return 0 if self.error is None else sum(len(str(value)) for value in self.error.values())


OPEN = Ending(End.OPEN)
SUCCEEDED = Ending(End.SUCCEEDED)
RELEASED = Ending(End.RELEASED)
SETTLED = Ending(End.SETTLED)
SUSPENDED = Ending(End.SUSPENDED)
UNREADABLE = Ending(
    End.FAILED,
    {"class": "Unreadable", "message": "its args, headers or names have bytes that cannot be read as UTF-8"},
    decision=Decision(retry=False),
)


@dataclass(frozen=True, slots=True)
class Decoded:
    """The args and payloads of a job, as its handler gets them: read by the codec of its task."""

    args: Any
    payloads: dict[str, list[Any]] | None


class Attempt:
    """What becomes of a held job. Each attribute has one writer, who is named above it.

    `deadline` is the monotonic time until which the lease certainly holds, counted from before the request that last
    extended it. `started` is the monotonic time at which the handler began, `seconds` how long it ran. `stop` is None
    while the handler may continue.

    Most attributes are the same for most jobs, and are class attributes until they change: an attempt costs little to
    create.
    """

    # Leases.
    deadline: float
    # Runner.
    started: float | None = None
    timer: asyncio.TimerHandle | None = None
    # Jobs: the job as its handler sees it, once that has asked for it.
    job: Job | None = None
    # ask_to_stop.
    stop: Stop | None = None
    # Handlers, while a handler runs and until it is known how it ended.
    asyncio_task: asyncio.Task[Any] | None = None
    context: contextvars.Context | None = None
    outcome: tuple[object, BaseException | None] | None = None
    decoded: Decoded | None = None
    # Outbox; and whether another session had locked the row when the end was to be stored.
    ending: Ending = OPEN
    seconds: float | None = None
    is_locked: bool = False
    # Trade: how often the server did not take the end, while it answered other calls.
    refused: int = 0
    # Exchange, Reporter: the end was sent, and no reply came.
    is_unsure: bool = False

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline

    def ask_to_stop(self, stop: Stop) -> bool:
        """Note that the handler is to stop. False: it was asked before, or the attempt has ended."""
        if self.stop is not None or self.ending is not OPEN:
            return False
        self.stop = stop
        return True

    def run_in(self, asyncio_task: asyncio.Task[Any] | None) -> None:
        """Note the asyncio task to cancel when the handler is to stop; None while a thread runs it."""
        self.asyncio_task = asyncio_task

    @property
    def may_be_stored(self) -> bool:
        """Whether the end, if its reservation is over, was stored by a statement whose reply was lost.

        While its lease held, by this worker's clock, no other worker can have ended it.
        """
        return self.is_unsure and time.monotonic() < self.deadline

    @property
    def is_completed(self) -> bool:
        """Whether the handler has completed the job in its own transaction."""
        return self.job is not None and self.job.stage is Stage.COMPLETED

    @property
    def is_suspended(self) -> bool:
        """Whether the handler has given the job back until later, however it ends then."""
        return self.job is not None and self.job.is_suspended


def stored_ending(attempt: Attempt) -> Ending | None:
    """Return how an attempt ended if its handler has stored that itself, whatever it does afterwards."""
    if attempt.is_suspended:
        return SUSPENDED
    return SETTLED if attempt.is_completed else None


class Held:
    """A job that this worker has reserved and not yet finished, as it was claimed: `row` is the row of the claim.

    It does not change. What becomes of it is its `attempt`.

    A batch of an accumulating task has one `Held` for each key. The first is the leader: it holds the payloads of all
    keys and runs the handler. The others are its `members` and share its end.

    `args` and `headers` are parsed when they are first read.
    """

    def __init__(
        self,
        row: JobRow,
        deadline: float,
        taken: float | None = None,
        *,
        payloads: dict[str, list[Any]] | None = None,
        members: Sequence[Held] = (),
        leader: Held | None = None,
    ) -> None:
        self.row: Final = row
        self.pair: Final[tuple[int, int]] = (row.id, row.reservation)
        self.taken: Final = time.monotonic() if taken is None else taken
        self.payloads: Final = payloads
        self.members: Final = members
        self.leader: Final = leader
        self.attempt: Final = Attempt(deadline)

    @_once
    def args(self) -> Any:
        """The args of the job, or Unreadable."""
        return read_json(self.row.args)

    @_once
    def headers(self) -> Any:
        """The headers of the job, None without any, or Unreadable."""
        return read_json(self.row.headers)

    @property
    def timeout(self) -> float | None:
        """How long the attempt may take, in seconds."""
        return None if self.row.timeout is None else self.row.timeout.total_seconds()

    @property
    def overrun(self) -> Stop:
        """The request to a handler that ran longer than its timeout."""
        return Stop(End.FAILED, f"it ran longer than its timeout of {self.timeout:g} s", Cause.TIMEOUT)

    @property
    def is_started(self) -> bool:
        """Whether the handler has begun."""
        return (self.leader or self).attempt.started is not None

    @property
    def is_settling(self) -> bool:
        """Whether the handler completes the job itself: then its row may be gone, and that is no loss."""
        job = (self.leader or self).attempt.job
        return job is not None and job.stage is not Stage.OPEN

    @property
    def stores_result(self) -> bool:
        """Whether the result is to be stored."""
        job = self.attempt.job
        return self.row.store_result if job is None else job.stores_result

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

    def take_in(self, rows: Sequence[JobRow], deadline: float, now: float) -> list[Held]:
        """Hold what a claim has returned; returns single jobs, and the leaders of batches."""
        taken = [Held(row, deadline, now) for row in rows if row.leader is None]
        self.add(*taken)
        if len(taken) < len(rows):
            for leader in batches(rows, deadline):
                taken.append(leader)
                self.add(leader, *leader.members)
        return taken

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
    first = {(row.leader, row.key): row for row in reversed(rows) if (row.leader, row.key) in spoilt}
    put_back = [Held(row, deadline) for row in first.values() if row.outcome != "unreadable"]
    left = [row for row in rows if row.outcome != "unreadable" and (row.leader, row.key) not in spoilt]
    return left, [Held(row, deadline) for row in unreadable], put_back


def batches(rows: Iterable[JobRow], deadline: float) -> list[Held]:
    """Return the leaders of the batches among reserved rows, each with the payloads of all its keys.

    Within a key the rows come by score, and the first of them holds the lease.
    """
    leaders: dict[int, Held] = {}
    # By leader, what comes after it is added here.
    payloads: dict[int, dict[str, list[Any]]] = {}
    members: dict[int, list[Held]] = {}
    for row in rows:
        if row.leader is None:
            continue
        key, batch = row.key or "", row.leader
        held: Held | None = None
        if batch not in leaders:
            payloads[batch], members[batch] = {}, []
            held = leaders[batch] = Held(row, deadline, payloads=payloads[batch], members=members[batch])
        elif key not in payloads[batch]:
            held = Held(row, deadline, leader=leaders[batch])
            members[batch].append(held)
        payloads[batch].setdefault(key, []).append(read_json(row.args) if held is None else held.args)
    return list(leaders.values())
