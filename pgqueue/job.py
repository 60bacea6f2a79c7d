"""A job as its handler sees it, and what a producer is told of one."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Generator, MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pgqueue.errors import InvalidArgument
from pgqueue.signals import Interrupted
from pgqueue.transaction import JobTransaction, Stage

_log = logging.getLogger("pgqueue.job")


class Flag:
    """Raised once, from any thread, with a reason. Ask it, or wait for it, in a thread or on the event loop.

    if job.stopping: ...                    # ask
    if job.cancelled.wait(5): ...           # in a thread: sleep for at most 5 s
    await asyncio.wait_for(job.stopping, 5) # on the loop
    """

    __slots__ = ("_raised", "_waiters", "reason")

    def __init__(self) -> None:
        self.reason = ""
        self._raised = False
        self._waiters: list[Callable[[], object]] = []

    def __bool__(self) -> bool:
        return self._raised

    def __repr__(self) -> str:
        return f"<Flag: {self.reason}>" if self._raised else "<Flag: not raised>"

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until the flag is raised, at most `timeout` seconds; tells whether it is."""
        if not self._raised:
            event = threading.Event()
            with self._waking(event.set):
                event.wait(timeout)
        return self._raised

    def __await__(self) -> Generator[Any, None, bool]:
        return self._raised_async().__await__()

    def raise_it(self, reason: str = "") -> None:
        """Raise the flag; a second time changes nothing. For the worker."""
        if not self._raised:
            self.reason = reason
            self._raised = True
            for wake in list(self._waiters):
                wake()

    async def _raised_async(self) -> bool:
        if not self._raised:
            loop = asyncio.get_running_loop()
            event = asyncio.Event()

            def wake() -> None:
                # A loop that is closed meanwhile waits for nothing any more.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(event.set)

            with self._waking(wake):
                await event.wait()
        return True

    def _waking(self, wake: Callable[[], object]) -> _Waking:
        return _Waking(self, wake)


class _Waking:
    """While it lasts, raising the flag calls `wake`."""

    def __init__(self, flag: Flag, wake: Callable[[], object]) -> None:
        self._flag = flag
        self._wake = wake

    def __enter__(self) -> None:
        self._flag._waiters.append(self._wake)
        if self._flag:
            # Raised just before: whoever raised it may not have seen us.
            self._wake()

    def __exit__(self, *_: object) -> None:
        self._flag._waiters.remove(self._wake)


@dataclass(frozen=True, slots=True, eq=False)
class Surroundings:
    """What a worker lends to the jobs that it runs."""

    dsn: str = ""
    prepare: bool = True
    stopping: Flag = field(default_factory=Flag)
    on_progress: Callable[[Job], None] = lambda job: None
    on_extend: Callable[[], None] = lambda: None


# Of a job that somebody made for a test.
_NOWHERE = Surroundings()


@dataclass(slots=True, eq=False)
class State:
    """What changes of a job while its handler runs, and what its worker lends it. For the worker.

    `ends_at` is the monotonic time at which its timeout ends.
    """

    around: Surroundings = _NOWHERE
    cancelled: Flag = field(default_factory=Flag)
    ends_at: float | None = None
    stage: Stage = Stage.OPEN
    stores_result: bool = False
    progress: tuple[float, float | None, str | None] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One reserved job. A handler gets it when it has a parameter annotated `Job`, or from `current_job()`.

    `attempt` counts from 1; `reservation` is the fence under which this try runs; times are aware datetimes by the
    database's clock. `stopping` is a `Flag` that is raised when the worker shuts down; `cancelled` one that is raised
    when this try is to end, and whose `reason` says why: somebody asked for it, the lease is lost, its timeout
    passed. An async handler is then cancelled as well; a sync one has to look, and when it returns all the same it has
    succeeded, as far as it still held the job.

    All methods may be called from a handler in a thread as from one on the event loop, and none blocks.
    """

    id: int
    task: str
    args: dict[str, Any]
    headers: dict[str, Any] | None
    queue: str
    key: str | None
    priority: int
    attempt: int
    max_attempts: int
    reservation: int
    run_at: datetime
    created_at: datetime
    lease_expires_at: datetime
    timeout: timedelta | None = None
    _state: State = field(default_factory=State, repr=False)

    @property
    def stopping(self) -> Flag:
        """Raised when the worker shuts down: come to an end soon."""
        return self._state.around.stopping

    @property
    def cancelled(self) -> Flag:
        """Raised when this try is to end; its `reason` says why."""
        return self._state.cancelled

    @property
    def stage(self) -> Stage:
        """How far its own transaction has come."""
        return self._state.stage

    @property
    def stores_result(self) -> bool:
        """Whether what its handler returns is stored."""
        return self._state.stores_result

    @property
    def latest_progress(self) -> tuple[float, float | None, str | None] | None:
        """What `progress` was last told: done, total, note."""
        return self._state.progress

    @property
    def deadline(self) -> datetime | None:
        """When its timeout ends, by this machine's clock; None without one."""
        left = self.time_left()
        return None if left is None else datetime.now(UTC) + timedelta(seconds=left)

    def time_left(self) -> float | None:
        """Seconds until its timeout ends, below zero when it has; None without one."""
        return None if self._state.ends_at is None else self._state.ends_at - time.monotonic()

    def check(self) -> None:
        """Raise `Interrupted` if this try is to end. What a sync handler calls between its steps."""
        if self.cancelled:
            raise Interrupted(self.cancelled.reason)

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Say how far it has come. Call it as often as you like: about once a second the newest is stored.

        Raises InvalidArgument for numbers that are not finite.
        """
        for number in (done, total):
            if number is not None and not math.isfinite(number):
                raise InvalidArgument(f"progress must be told in finite numbers, not {number}", hint="leave total out")
        # Whatever kind of number and of text: this must not stand in the way of what others tell.
        if note is not None:
            note = note.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
        self._state.progress = (float(done), None if total is None else float(total), note)
        self._state.around.on_progress(self)

    def extend(self) -> None:
        """Have the worker extend its lease now, without waiting for it. The worker does so every third of a lease."""
        self._state.around.on_extend()

    def store_result(self, store: bool = True) -> None:
        """Have what the handler returns stored, or not, whatever its task says. It must be JSON then."""
        self._state.stores_result = store

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines name the job; records carry job_id, task, queue, attempt."""
        return _JobLog(_log, {"job_id": self.id, "task": self.task, "queue": self.queue, "attempt": self.attempt})

    def transaction(self, connection: Any = None) -> JobTransaction:
        """Open a transaction whose writes and the job's completion are committed together, or not at all.

        `with` in a thread, `async with` on the loop. Without a `connection` it opens one of its own, to the worker's
        database, for as long as the block lasts; else give one of psycopg or SQLAlchemy (a Connection or Session, or
        an async one) on which no transaction is open. The job is locked under its reservation meanwhile, so the lease
        holds. Raises LeaseLost, and rolls back, when the reservation is over. What is set as `result` of the
        transaction is stored with the job. Nothing is left to do for the handler after the block.

            with job.transaction() as connection:
                connection.execute("update accounts set ...")
        """
        around = self._state.around
        return JobTransaction(self.id, self.reservation, around.dsn, around.prepare, connection, self._at)

    def _at(self, stage: Stage) -> None:
        self._state.stage = stage


_current: ContextVar[Callable[[], Job] | None] = ContextVar("pgqueue_job", default=None)


def current_job() -> Job:
    """Return the job whose handler calls this, also from what it calls. Raises RuntimeError outside of any."""
    find = _current.get()
    if find is None:
        raise RuntimeError("no job runs here: current_job() is for what a worker's handler calls")
    return find()


def set_current(find: Callable[[], Job] | None) -> None:
    """Say which job runs in this context from now on. For the worker."""
    _current.set(find)


class _JobLog(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        known = dict(self.extra or {})
        kwargs["extra"] = {**known, **(kwargs.get("extra") or {})}
        return f"job {known['job_id']} (task {known['task']}, attempt {known['attempt']}): {msg}", kwargs
