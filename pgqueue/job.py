"""A job as its handler sees it."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, MutableMapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from pgqueue._steps import Plan, Steps, perform, perform_async
from pgqueue._transaction import Doors, JobTransaction, Stage
from pgqueue.db import consume, drivers
from pgqueue.db.call import Call
from pgqueue.db.pools import Pools
from pgqueue.errors import InvalidArgument
from pgqueue.signals import Interrupted

_log = logging.getLogger("pgqueue.job")


class Flag:
    """Raised once, from any thread, with a reason. Test it, or wait for it, in a thread or on the event loop.

    if job.stopping: ...                    # test
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
        """Block this thread until the flag is raised, at most `timeout` seconds. Returns whether it is."""
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
                # The loop may be closed by now; then nothing waits on it.
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
            # The flag was raised just before: raise_it may not have seen this waiter.
            self._wake()

    def __exit__(self, *_: object) -> None:
        self._flag._waiters.remove(self._wake)


class Statements(Protocol):
    """Runs the statements of handlers, on the event loop and in threads, and hears which steps are stored."""

    async def ask(self, call: Call[Any]) -> Any: ...
    def ask_from_thread(self, call: Call[Any]) -> Any: ...
    def stored(self, step: str) -> None: ...


class KeepsProgress(Protocol):
    """Stores the progress of a job soon."""

    def report(self, job: Job) -> None: ...


class KeepsLeases(Protocol):
    """Extends the leases of a worker's jobs soon."""

    def extend_soon(self) -> None: ...


class KeepsLines(Protocol):
    """Stores the lines that a job logs."""

    def keep(self, job: Job, level: int, line: str) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Surroundings:
    """The services of a worker for the jobs that it runs; what a test leaves out does nothing.

    `pools`: where `job.transaction()` takes its connection. `doors`: how it gets to the database instead, where a test
    runs the job in a separate transaction.
    """

    pools: Pools | None = None
    stopping: Flag = field(default_factory=Flag)
    statements: Statements | None = None
    progress: KeepsProgress | None = None
    leases: KeepsLeases | None = None
    lines: KeepsLines | None = None
    doors: Doors | None = None


# For a job made by a test.
_NOWHERE = Surroundings()


@dataclass(slots=True, eq=False)
class Execution:
    """The changing part of a job while its handler runs, and its worker's services. For the worker.

    `ends_at` is the monotonic time at which its timeout ends.
    """

    around: Surroundings = _NOWHERE
    cancelled: Flag = field(default_factory=Flag)
    ends_at: float | None = None
    stage: Stage = Stage.OPEN
    stores_result: bool = False
    progress: tuple[float, float | None, str | None] | None = None
    encode: Callable[[dict[str, Any]], dict[str, Any]] = dict
    decode: Callable[[dict[str, Any]], dict[str, Any]] = dict
    steps: Steps | None = None
    # It is called in this thread, whatever loop runs here: by a test.
    is_sync: bool = False
    # For an accumulating task: the first jobs of the other keys of this call, with their reservations.
    others: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One reserved job. A handler gets it when it has a parameter annotated `Job`, or from `current_job()`.

    `attempt` counts from 1; `reservation` is the fence of this attempt; times are aware datetimes by the database's
    clock. The `Flag` `stopping` is raised when the worker shuts down. The `Flag` `cancelled` is raised when this
    attempt must end: a user cancelled the job, the lease is lost, or the timeout passed; its `reason` names the cause.
    An async handler is then cancelled as well. A sync one ends at its next step, or must check the flag; if it returns
    all the same, the job has succeeded, as long as its lease held, and no supervisor has replaced its process after a
    timeout.

    All methods may be called in a thread and on the event loop. None blocks, except `spent`, `step`, `sleep`, `wait`
    and `wait_event`, which block a thread, and are awaited on the loop.
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
    _state: Execution = field(default_factory=Execution, repr=False)

    @property
    def stopping(self) -> Flag:
        """Raised when the worker shuts down: end soon."""
        return self._state.around.stopping

    @property
    def cancelled(self) -> Flag:
        """Raised when this attempt must end; its `reason` names the cause."""
        return self._state.cancelled

    @property
    def stage(self) -> Stage:
        """The stage of `transaction()`."""
        return self._state.stage

    @property
    def is_suspended(self) -> bool:
        """Whether `sleep`, `wait` or `wait_event` has given this attempt back until later."""
        return self._state.steps is not None and self._state.steps.is_suspended

    @property
    def stores_result(self) -> bool:
        """Whether the return value of the handler is stored."""
        return self._state.stores_result

    @property
    def latest_progress(self) -> tuple[float, float | None, str | None] | None:
        """The arguments of the last `progress` call: done, total, note."""
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
        """Raise `Interrupted` if this attempt must end. Call it between the steps of a sync handler."""
        if self.cancelled:
            raise Interrupted(self.cancelled.reason)

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Report how far the handler has come. Call it as often as you like: the newest is stored about once a second.

        Raises InvalidArgument for numbers that are not finite.
        """
        for number in (done, total):
            if number is not None and not math.isfinite(number):
                raise InvalidArgument(f"progress must be a finite number, not {number}", hint="leave total out")
        # Any number and any text are accepted: a bad one must not make its whole batch fail.
        if note is not None:
            note = note[:1000].encode("utf-8", "replace").decode().replace("\0", "\ufffd")
        self._state.progress = (float(done), None if total is None else float(total), note)
        if (progress := self._state.around.progress) is not None:
            progress.report(self)

    def extend(self) -> None:
        """Ask the worker to extend the lease now, without waiting. It does so every third of a lease anyway."""
        if (leases := self._state.around.leases) is not None:
            leases.extend_soon()

    def store_result(self, store: bool = True) -> None:
        """Store the return value of the handler, or not, whatever the task declares. It must be JSON."""
        self._state.stores_result = store

    @property
    def log(self) -> JobLogger:
        """A logger whose lines name the job; records carry job_id, task, queue, attempt. A call is a line of INFO.

        The database keeps the lines of a job, from INFO on, for `retention_logs`: at most a thousand of an attempt.

            job.log("charged %d cents", cents)
        """
        return JobLogger(self, {"job_id": self.id, "task": self.task, "queue": self.queue, "attempt": self.attempt})

    def keep_line(self, level: int, line: str) -> None:
        """Have the database keep a line as one of `log`. For handlers of logging."""
        if (lines := self._state.around.lines) is not None:
            lines.keep(self, level, line)

    def transaction(self, connection: Any = None) -> JobTransaction:
        """Open a transaction whose writes and the job's completion are committed together, or not at all.

        `with` in a thread, `async with` on the loop. Without a `connection` it takes one to the worker's database from
        a pool, for the length of the block; what the block SETs for the session stays on that connection, so use SET
        LOCAL. Or give what `enqueue` takes, without an open transaction: async where it is awaited. A pool or an engine
        lends a connection. The job's row stays locked in the block, so the lease holds. Raises LeaseLost, and rolls
        back, when the reservation is over. Set `result` of the transaction to store a result. After the block the job
        has ended.

            with job.transaction() as connection:
                connection.execute("update accounts set ...")
        """
        around = self._state.around
        pairs = [(self.id, self.reservation), *self._state.others]
        return JobTransaction(pairs, around.pools, connection, self._at, around.doors)

    def spent(self, units: int) -> Any:
        """Say how many units this attempt has taken, in place of the job's cost. On the loop, await it.

        The difference counts under each of its limits with a rate. Call it when it is known, before the job ends; a
        later call replaces an earlier one. Returns whether the reservation still holds; True in a test without a row.

            answer = llm.complete(prompt)
            job.spent(answer.usage.total_tokens)
        """
        call = consume.spent(self.id, self.reservation, units)
        statements = self._state.around.statements
        if not self._state.is_sync:
            with suppress(RuntimeError):
                asyncio.get_running_loop()
                return _held() if statements is None else statements.ask(call)
        return True if statements is None else statements.ask_from_thread(call)

    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function once in the life of the job, even over several attempts, and return its result.

        The result is stored before this returns; the next attempt gets it without a call. It must be JSON, and is
        returned as read from JSON. A function that raises fails the job, and is called again by the next attempt. Names
        distinguish the steps of a job: put the id of an item into the name of its step. On the loop, await it; the
        function may then be async.

            payment = job.step("charge", api.charge, order, idempotency_key=f"{job.id}:charge")

        Raises DuplicateStep, LeaseLost, InvalidArgument for a result that JSON cannot hold; and, as `sleep`, `wait` and
        `wait_event` do, Interrupted when this attempt must end.
        """
        return self._perform(self._steps().step(name, function, args, kwargs))

    def sleep(self, name: str, delay: timedelta | float | str) -> Any:
        """Sleep as a step, without a worker: the job is given back, and comes back as the same attempt.

        The handler then runs from its beginning; its steps return at once. The deadline is stored. On the loop, await
        it.

            job.sleep("cool down", "1 day")
        """
        return self._perform(self._steps().sleep(name, delay))

    def wait(self, jobs: Iterable[int]) -> Any:
        """Wait until jobs have ended, without a worker, and return {id: (state, result)}. On the loop, await it.

        Enqueue them in a step, which returns their ids.

            ids = job.step("start", start_parts)
            parts = job.wait(ids)
        """
        return self._perform(self._steps().wait(list(jobs)))

    def wait_event(self, event: str, timeout: timedelta | float | str | None = None, *, step: str | None = None) -> Any:
        """Wait for an event, without a worker, and return its payload. On the loop, await it.

        Raises EventTimeout. `step` is the name under which the answer is stored; default: the event's.

            payment = job.wait_event(f"paid:{order}", timeout="7 days")
        """
        return self._perform(self._steps().wait_event(event, timeout, step))

    def complete_step(self, connection: Any, name: str, result: Any = None) -> Any:
        """Complete a step in the connection's current transaction: its writes and the step are committed together.

        Any connection that `enqueue` takes; on an async one, await it. Returns False when the lease is lost: roll back.
        In the function of a `step` of this name it takes the place of the step's own record: give the same result.
        """
        return drivers.run(connection, self._steps().completion(name, result))

    def _steps(self) -> Steps:
        state = self._state
        if state.steps is None:
            pair, statements = (self.id, self.reservation), state.around.statements
            state.steps = Steps(pair, self._leaving, state.encode, state.decode, state.others, statements)
        return state.steps

    def _perform(self, plan: Plan) -> Any:
        statements = self._state.around.statements
        if statements is None:
            raise RuntimeError("steps need a job with a row: run it by a worker, or by pgqueue.testing.drain")
        # Here an attempt ends that nothing else can interrupt: one in a thread, or one that caught its cancellation.
        self.check()
        if not self._state.is_sync:
            with suppress(RuntimeError):
                asyncio.get_running_loop()
                return perform_async(plan, statements.ask)
        return perform(plan, statements.ask_from_thread)

    def _leaving(self, leaves: bool) -> None:
        self._state.stage = Stage.COMPLETING if leaves else Stage.OPEN

    def _at(self, stage: Stage) -> None:
        self._state.stage = stage


async def _held() -> bool:
    return True


_current: ContextVar[Callable[[], Job] | None] = ContextVar("pgqueue_job", default=None)


def current_job() -> Job:
    """Return the job whose handler calls this, directly or not. Raises RuntimeError outside of a handler."""
    find = _current.get()
    if find is None:
        raise RuntimeError("no job runs here: current_job() is for code that a worker's handler calls")
    return find()


def set_current(find: Callable[[], Job] | None) -> None:
    """Set the job of this context. For the worker."""
    _current.set(find)


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """The logger of a job: as a logger of logging, and to be called."""

    def __init__(self, job: Job, extra: dict[str, object]) -> None:
        super().__init__(_log, extra)
        self._job = job

    def __call__(self, message: object, *args: object, **kwargs: Any) -> None:
        """Log a line of level INFO."""
        self.log(logging.INFO, message, *args, **{**kwargs, "stacklevel": kwargs.get("stacklevel", 1)})

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        """Log a line; the database keeps it from INFO on."""
        super().log(level, msg, *args, **{**kwargs, "stacklevel": kwargs.get("stacklevel", 1) + 1})
        if level >= logging.INFO or self.isEnabledFor(level):
            try:
                line = str(msg) % args if args else str(msg)
            except Exception:
                # Whatever its arguments raise when they are written. logging itself reports that.
                line = msg if isinstance(msg, str) else type(msg).__name__
            if kwargs.get("exc_info"):
                line += f": {sys.exception()!r}" if sys.version_info >= (3, 11) else ""
            self._job.keep_line(level, line)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        known = dict(self.extra or {})
        kwargs["extra"] = {**known, **(kwargs.get("extra") or {})}
        return f"job {known['job_id']} (task {known['task']}, attempt {known['attempt']}): {msg}", kwargs
