"""Run handlers: take reserved jobs, call their functions, report how each ended."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import random
import threading
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import cached_property, partial
from typing import Any

from pgqueue.board import Board
from pgqueue.errors import InvalidArgument
from pgqueue.job import Flag, Job, State, Surroundings, set_current
from pgqueue.logs import subject
from pgqueue.middleware import Around
from pgqueue.queries import Row, Unreadable, read_json, read_time, to_result
from pgqueue.signals import Cancel, Discard, Interrupted, Retry, Signal, Snooze, as_interval
from pgqueue.tasks import App, Task
from pgqueue.threads import Outcome, Threads, contained
from pgqueue.transaction import Stage

log = logging.getLogger("pgqueue.worker")

# Seconds after which whoever runs quick handlers one after the other lets the rest of the event loop have a turn: to
# report what ended, and fetch more.
_TURN = 0.004

# Seconds for which a thread goes on with the next job by itself.
_TURN_OF_THREAD = 0.05

# How long a handler may go on after its timeout before it counts as overdue, in seconds: time to clean up.
_GRACE = 5.0

# Two threads may ask for the job of one handler at once.
_making_job = threading.Lock()


class End(Enum):
    """How a try ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RELEASED = "released"
    SNOOZED = "snoozed"
    # By the handler, in its own transaction.
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the code wants done after a failed try, as the arguments of `fail`. Nothing: the retry policy decides."""

    retry_in: timedelta | str | None = None
    retry: bool = True
    policy: str | None = None
    cancel: bool = False


class Held:
    """A job that this worker has reserved and not yet finished.

    `deadline` is the monotonic time until which the lease holds for certain, counted from before the request that
    last extended it; `started` that at which its handler began, `seconds` how long it ran. `interrupt` says why the
    handler is to stop; None while it may go on.

    Of a call of an accumulating task there is one for each key: the first has the payloads of all and runs them, the
    others are its `mates` and share its end.

    Most of it is the same for most jobs, and stands in the class until it changes: a job costs little to make. So are
    `args` and `headers`, which are read when they are asked for.
    """

    started: float | None = None
    job: Job | None = None
    runner: asyncio.Task[Any] | None = None
    timer: asyncio.TimerHandle | None = None
    interrupt: End | None = None
    kind: str = ""
    reason: str = ""
    ended: End | None = None
    error: dict[str, object] | None = None
    result: str | None = None
    delay: float = 0.0
    snooze: timedelta | str = ""
    verdict: Verdict = Verdict()
    signalled: bool = False
    seconds: float | None = None
    payloads: dict[str, list[Any]] | None = None
    mates: Sequence[Held] = ()
    head: Held | None = None
    # Its row was held by somebody else when its end was told.
    is_locked: bool = False

    def __init__(self, row: Row, deadline: float, taken: float | None = None) -> None:
        self.row = row
        self.pair: tuple[int, int] = (row[0], row[9])
        self.deadline = deadline
        self.taken = time.monotonic() if taken is None else taken

    @cached_property
    def args(self) -> Any:
        """What it was enqueued with, or Unreadable."""
        return read_json(self.row[2])

    @cached_property
    def headers(self) -> Any:
        """Its headers, None without any, or Unreadable."""
        return read_json(self.row[3])

    @property
    def timeout(self) -> float | None:
        """How long its try may take, in seconds."""
        return None if self.row[14] is None else self.row[14].total_seconds()

    @property
    def is_started(self) -> bool:
        """Whether its handler has begun."""
        return (self.head or self).started is not None

    @property
    def is_settling(self) -> bool:
        """Whether its handler completes it itself: then its row may be gone, and that is no loss."""
        return self.job is not None and self.job.stage is not Stage.OPEN

    def log_fields(self) -> dict[str, object]:
        """What a line of JSON about it says."""
        return {"job_id": self.row[0], "queue": self.row[4], "task": self.row[1], "attempt": self.row[7]}

    def __str__(self) -> str:
        return f"job {self.row[0]} (task {self.row[1]}, queue {self.row[4]}, attempt {self.row[7]})"


def gathered(rows: Iterable[Row], deadline: float) -> list[Held]:
    """Return the calls of accumulating tasks among reserved rows: for each its first `Held`, with the payloads.

    Within a key the rows come by score, and the first of them holds the lease.
    """
    calls: dict[int, Held] = {}
    for row in rows:
        call, key = row[13], row[5]
        if call is None:
            continue
        held = Held(row, deadline)
        head = calls.get(call)
        if head is None:
            held.payloads = {key: [held.args]}
            calls[call] = held
        elif head.payloads is not None and key in head.payloads:
            head.payloads[key].append(held.args)
        elif head.payloads is not None:
            head.payloads[key] = [held.args]
            head.mates = [*head.mates, held]
            held.head = head
    return list(calls.values())


async def _announce_nothing(held: Held) -> bool:
    return True


class Runner:
    """Runs at most `concurrency` handlers at a time: async ones as tasks, sync ones in threads.

    Jobs come by `take`, ends go to `on_end`. A few long-lived coroutines run them, one job after the other, so that
    a job costs no task of its own. `busy` are those whose handlers run.

    A job that was lost before is announced by `on_start`, and runs if that says that it is still held. One whose
    worker died is a suspect: no two suspects run at a time, so that of many jobs which were there when a process died
    only the one that killed it can do so again and again.
    """

    def __init__(
        self,
        app: App,
        concurrency: int,
        on_end: Callable[[Held], None],
        on_start: Callable[[Held], Awaitable[bool]] = _announce_nothing,
        around: Surroundings | None = None,
    ) -> None:
        self.busy: set[Held] = set()
        self._app = app
        self._concurrency = concurrency
        self._most = concurrency
        self.board: Board | None = None
        self.in_tasks: dict[asyncio.Task[Any], Held] = {}
        self.in_threads: dict[int, Held] = {}
        self._on_end = on_end
        self._on_start = on_start
        self._around = around or Surroundings()
        self._waiting: deque[Held] = deque()
        self._coroutines: set[asyncio.Task[None]] = set()
        # Coroutines that wait for a job.
        self._sleeping: deque[asyncio.Future[None]] = deque()
        self._suspect: Held | None = None
        self._threads: Threads | None = None
        self._closed = False
        self._pace = _Pace()
        # Set by the worker when its App asks for them.
        self.around: Around | None = None
        self.tell: Callable[[str, Held], None] | None = None

    @property
    def running(self) -> int:
        """Handlers that run."""
        return len(self.busy)

    @property
    def unstarted(self) -> int:
        """Jobs taken and not yet started."""
        return len(self._waiting)

    @property
    def concurrency(self) -> int:
        """How many handlers run at a time; to be set to at most what it was made with."""
        return self._concurrency

    @concurrency.setter
    def concurrency(self, number: int) -> None:
        # Those above it end after the job that they run, or the next one if they run none.
        self._concurrency = min(number, self._most)
        for _ in range(min(self.unstarted - len(self._sleeping), self._concurrency - len(self._coroutines))):
            self._start_coroutine()

    def is_busy(self, jobs: int) -> bool:
        """Tell whether more than `jobs` were run in the last 100 ms."""
        return self._pace.last() > jobs

    def room(self, coming: int = 0) -> int:
        """How many more jobs are useful now, when so many are coming already.

        Free slots, and a buffer of what was started in the last 100 ms.
        """
        buffer = self._pace.buffer()
        useful = self._concurrency + buffer
        room = useful - len(self.busy) - len(self._waiting) - coming
        # In batches: as long as there is something to start, wait until half of all is free.
        if (coming or self._waiting) and room < useful / 2:
            return 0
        if buffer > self._concurrency:
            # Under load by halves: while the server works on one, the other is run here.
            room = min(room, useful // 2)
        return max(room, 0)

    def take(self, several: Sequence[Held]) -> None:
        """Run jobs as soon as slots are free."""
        self._waiting.extend(several)
        for _ in several:
            if self._sleeping:
                sleeper = self._sleeping.popleft()
                if not sleeper.done():
                    sleeper.set_result(None)
            elif len(self._coroutines) < self._concurrency:
                self._start_coroutine()
            else:
                break

    def stop(self, held: Held, end: End, reason: str, kind: str = "Interrupted") -> None:
        """Ask a handler to stop; its job ends as `end`. An async one is cancelled, one in a thread has to look."""
        if held.interrupt is not None or held.ended is not None:
            return
        held.interrupt = end
        held.kind = kind
        held.reason = reason
        if held.head is not None:
            # The call goes on for none of its keys: those that are still held are given back.
            self.stop(held.head, End.RELEASED, reason)
        if held.job is not None:
            held.job.cancelled.raise_it(reason)
        if held.runner is not None:
            held.runner.cancel()

    def abandon(self, held: Held, end: End, reason: str, kind: str = "Interrupted") -> None:
        """Report the end of a job whose handler cannot be stopped; whatever that still does is not reported."""
        self.busy.discard(held)
        if held.ended is None:
            held.error = {"class": kind, "message": reason}
            self._end(held, end)

    def overdue(self, grace: float = _GRACE) -> list[Held]:
        """Return the jobs whose handlers go on although their timeout passed `grace` seconds ago."""
        now = time.monotonic()
        return [
            held
            for held in list(self.busy)
            if held.timeout is not None and held.started is not None and now > held.started + held.timeout + grace
        ]

    def held_back(self, age: float) -> list[Held]:
        """Return the jobs that were taken `age` seconds ago or earlier and are not started."""
        if not self.unstarted:
            return []
        limit = time.monotonic() - age
        return [held for held in list(self._waiting) if held.taken <= limit]

    def give_back_unstarted(self, age: float = 0.0) -> list[Held]:
        """Return the jobs that were not started within `age` seconds; they are not this runner's any more."""
        limit = time.monotonic() - age
        unstarted = []
        for head in self._drain():
            if head.taken <= limit:
                unstarted += [head, *head.mates]
            else:
                self._waiting.append(head)
        return unstarted

    def name_running(self, current: asyncio.Task[Any] | None) -> list[str]:
        """Name the task whose handler is this asyncio task; all async ones that run where it is none of ours."""
        on_loop = [held for held in list(self.busy) if held.runner is not None]
        return list({f"task {held.row[1]}" for held in on_loop if held.runner is current}) or list(
            {f"task {held.row[1]}" for held in on_loop}
        )

    def close(self) -> None:
        """End the coroutines. Threads that still run a handler go on until the process ends."""
        self._closed = True
        for coroutine in self._coroutines:
            coroutine.cancel()
        if self._threads is not None:
            self._threads.close()

    def _drain(self) -> list[Held]:
        waiting = []
        # One by one, for threads take from it as well.
        while (held := self._next()) is not None:
            waiting.append(held)
        return waiting

    def _next(self) -> Held | None:
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def _start_coroutine(self) -> None:
        coroutine = asyncio.create_task(self._run_jobs(), name="pgqueue-runner")
        self._coroutines.add(coroutine)
        coroutine.add_done_callback(self._coroutines.discard)

    async def _run_jobs(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        loop = asyncio.get_running_loop()
        turn_ends = time.monotonic() + _TURN
        while not self._closed:
            if len(self._coroutines) > self._concurrency:
                # Here and not in the callback: of many that end at once, enough must stay.
                self._coroutines.discard(me)
                return
            held = self._next()
            if held is None:
                subject.set(None)
                set_current(None)
                sleeper = loop.create_future()
                self._sleeping.append(sleeper)
                await sleeper
                turn_ends = time.monotonic() + _TURN
                continue
            row = held.row
            task = self._app.tasks.get(row[1])
            if held.interrupt is not None:
                self._end(held, held.interrupt)
            elif held.deadline < time.monotonic():
                # The process stood still, or no extension came through: somebody else may hold it by now.
                log.debug("%s was not started within its lease and is given back", held)
                self._end(held, End.RELEASED)
            elif task is None:
                held.delay = 10.0
                self._end(held, End.RELEASED)
            elif row[16] and self._suspect is not None:
                held.delay = random.uniform(1.0, 3.0)
                self._end(held, End.RELEASED)
            elif self._is_plain(held, task):
                base = contextvars.copy_context()
                odd = await self._thread_pool().run(partial(self._run_in_thread, held, task, base))
                if odd is not None:
                    held, task, ran = odd
                    try:
                        await self._run_job(held, task, me, ran)
                    finally:
                        self.busy.discard(held)
                        now = time.monotonic()
                        self._pace.ran(now - (held.started or now), now)
                turn_ends = time.monotonic() + _TURN
            else:
                self.busy.add(held)
                if row[16]:
                    self._suspect = held
                started = time.monotonic()
                try:
                    # Of all mates, for they share its end.
                    if not row[15] or await self._may_start(held):
                        if row[15]:
                            started = time.monotonic()
                        held.started = started
                        if row[14] is not None:
                            held.timer = loop.call_later(row[14].total_seconds(), self._timed_out, held)
                        await self._run_job(held, task, me)
                except Exception as error:
                    if self._closed:
                        raise
                    # Around the handler and not in it. A job that did not end here would be held for ever.
                    log.exception("%s could not be run and is given back", held)
                    held.error = self._describe(error)
                    held.delay = 10.0
                    self._end(held, End.RELEASED)
                finally:
                    if held.timer is not None:
                        held.timer.cancel()
                    if self._suspect is held:
                        self._suspect = None
                    self.busy.discard(held)
                    now = time.monotonic()
                    self._pace.ran(now - started, now)
                    # A handler may have swallowed the one that was meant for it; a TaskGroup of the next would take
                    # it for its own.
                    while me.cancelling():
                        me.uncancel()
                if now > turn_ends:
                    await asyncio.sleep(0)
                    turn_ends = time.monotonic() + _TURN

    async def _may_start(self, held: Held) -> bool:
        if not await self._on_start(held):
            self.stop(held, End.RELEASED, "its lease was lost before it started")
        if held.interrupt is not None:
            self._end(held, held.interrupt)
            return False
        return True

    def _timed_out(self, held: Held) -> None:
        if held.interrupt is None and held.ended is None:
            log.warning("%s has run for its timeout of %g s and is told to stop", held, held.timeout)
        self.stop(held, End.FAILED, f"it ran longer than its timeout of {held.timeout:g} s", "Timeout")

    def _is_plain(self, held: Held, task: Task[Any, Any]) -> bool:
        """Whether a sync handler needs nothing of the event loop until it ends."""
        row = held.row
        return not (
            task.is_async
            or task.typed is not None
            or task.hooks.codec is not None
            or task.payloads_parameter is not None
            or held.payloads is not None
            or held.interrupt is not None
            or row[14] is not None
            or row[15]
            or row[16]
            or self.around is not None
            or self.tell is not None
        )

    def _run_in_thread(
        self, held: Held, task: Task[Any, Any], base: contextvars.Context
    ) -> tuple[Held, Task[Any, Any], Outcome] | None:
        """Run a plain job, and then others that wait, one after the other, while they are plain and succeed.

        So a thread and the event loop exchange a word for many jobs and not for each. Returns one of which the loop
        has to see what becomes of it, with what its handler returned or raised.
        """
        assert self._threads is not None
        ident = threading.get_ident()
        turn_ends = time.monotonic() + _TURN_OF_THREAD
        while True:
            self.busy.add(held)
            held.started = started = time.monotonic()
            self.in_threads[ident] = held
            places = [] if self.board is None else self.board.note([held.pair])
            try:
                result = base.copy().run(self._call_plain, held, task)
                if result is not None:
                    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
                        return held, task, (result, None)
                    if held.row[17] if held.job is None else held.job.stores_result:
                        held.result = to_result(result)
            except BaseException as error:
                return held, task, (None, error)
            finally:
                del self.in_threads[ident]
                if self.board is not None:
                    self.board.clear(places)
            self.busy.discard(held)
            now = time.monotonic()
            self._threads.report(partial(self._ended_in_thread, held, now - started, now))
            if now > turn_ends or self._closed or len(self._coroutines) > self._concurrency:
                return None
            following = self._next()
            if following is None:
                return None
            known = self._app.tasks.get(following.row[1])
            if known is None or following.deadline < now or not self._is_plain(following, known):
                self._waiting.appendleft(following)
                return None
            held, task = following, known

    def _call_plain(self, held: Held, task: Task[Any, Any]) -> object:
        subject.set(held)
        set_current(partial(self.job_of, held))
        arguments = _readable(held)
        if task.job_parameter is not None:
            arguments = {**arguments, task.job_parameter: self.job_of(held)}
        return task.function(**arguments)

    def _ended_in_thread(self, held: Held, seconds: float, now: float) -> None:
        self._pace.ran(seconds, now)
        self._end(held, End.SETTLED if _is_completed(held) else End.SUCCEEDED)

    async def _run_job(
        self, held: Held, task: Task[Any, Any], me: asyncio.Task[Any], ran: Outcome | None = None
    ) -> None:
        self.in_tasks[me] = held
        # What is set stands until the next job, or until there is none.
        subject.set(held)
        places = [] if self.board is None else self.board.note([each.pair for each in (held, *held.mates)])
        try:
            await self._run_handler(held, task, me, ran)
        finally:
            if self.board is not None:
                self.board.clear(places)
            del self.in_tasks[me]

    async def _run_handler(self, held: Held, task: Task[Any, Any], me: asyncio.Task[Any], ran: Outcome | None) -> None:
        try:
            if self.tell is not None:
                self.tell("started", held)
            arguments = _readable(held)
            if task.typed is not None or task.hooks.codec is not None:
                arguments = _read(held, task)
            if task.payloads_parameter is not None:
                # One without a key, or one that an operator has come alone, is a call of its own.
                payloads = {held.row[5] or "": [arguments]} if held.payloads is None else arguments
                arguments = {task.payloads_parameter: payloads}
            elif held.payloads is not None:
                raise InvalidArgument(
                    f"task {task.name} accumulates, as pgqueue.tasks says, and its function here takes single jobs",
                    hint="declare it with accumulate=True, or set accumulate = false in pgqueue.tasks",
                )
            set_current(partial(self.job_of, held))
            if task.job_parameter is not None:
                arguments = {**arguments, task.job_parameter: self.job_of(held)}
            if ran is not None:
                result = await _returned(ran)
                if inspect.isawaitable(result):
                    result = await self._on_loop(held, result)
            elif self.around is not None:
                result = await self.around.run(
                    self.job_of(held),
                    partial(task.function, **arguments),
                    task.is_async,
                    self._in_thread,
                    partial(_runs, held),
                )
            elif task.is_async:
                held.runner = me
                try:
                    result = await task.function(**arguments)
                finally:
                    held.runner = None
            else:
                context = contextvars.copy_context()
                result = await self._in_thread(partial(context.run, task.function, **arguments))
                if inspect.isawaitable(result):
                    # A plain function around an async one: left alone, it would succeed without having run.
                    result = await self._on_loop(held, result)
            if result is not None and (inspect.isgenerator(result) or inspect.isasyncgen(result)):
                raise TypeError("it returned a generator, of which nothing has run")
            if held.row[17] if held.job is None else held.job.stores_result:
                held.result = None if result is None else to_result(result)
        except (asyncio.CancelledError, Interrupted) as error:
            if self._closed:
                # The runner itself is ended, not the job.
                raise
            if held.interrupt is None or _is_completed(held):
                # The handler's own: it awaited something that was cancelled.
                await self._failed(held, task, error)
            else:
                await self._interrupted(held, task)
        except Signal as signal:
            self._signalled(held, signal)
        except BaseException as error:
            # Also SystemExit and KeyboardInterrupt: a handler that exits has failed, the worker goes on.
            await self._failed(held, task, error)
        else:
            self._end(held, End.SETTLED if _is_completed(held) else End.SUCCEEDED)

    def job_of(self, held: Held) -> Job:
        """Return the job as handlers and middleware see it."""
        with _making_job:
            if held.job is None:
                ends_at = None if held.timeout is None or held.started is None else held.started + held.timeout
                row = held.row
                state = State(self._around, Flag(), ends_at, stores_result=row[17])
                times = map(read_time, row[10:13])
                held.job = Job(*(*row[:2], held.args, held.headers, *row[4:10], *times, row[14], state))
        if held.interrupt is not None:
            # Asked to stop before there was a job to say so.
            held.job.cancelled.raise_it(held.reason)
        return held.job

    async def _failed(self, held: Held, task: Task[Any, Any], error: BaseException) -> None:
        held.error = self._describe(error)
        if _is_completed(held):
            log.warning(
                "%s was completed by its own transaction, and its handler failed after that: %s: %s",
                held,
                held.error["class"],
                held.error["message"],
            )
            self._end(held, End.SETTLED)
            return
        await self._judge(held, task, error)
        self._end(held, End.FAILED)

    async def _judge(self, held: Held, task: Task[Any, Any], error: BaseException) -> None:
        """Ask the code what is to be done after this error."""
        rule = task.options.retry
        if isinstance(error, task.options.discard_on):
            held.verdict = Verdict(retry=False)
        elif rule is not None:
            ask = partial(rule, error, held.row[7] - 1)
            try:
                held.verdict = _verdict(ask() if task.is_async else await self._in_thread(ask))
            except BaseException as broken:
                if self._closed:
                    raise
                why = describe(broken)
                broken_rule = f"the task's rule for retries: {why['class']}: {why['message']}"
                held.error = {**(held.error or {}), "policy_error": broken_rule}
                log.error("%s: %s; its retry policy decides", held, broken_rule)

    def _describe(self, error: BaseException) -> dict[str, object]:
        formatter = self._app.error_formatter
        if formatter is None:
            return describe(error)
        try:
            formatted = formatter(error)
            return {
                name: _clean(str(formatted[name])) for name in ("class", "message", "traceback") if name in formatted
            }
        except Exception:
            log.exception("the error formatter failed; the error is kept as usual")
            return describe(error)

    def _signalled(self, held: Held, signal: Signal) -> None:
        if _is_completed(held):
            log.warning("%s was completed by its own transaction, and its handler raised %r after that", held, signal)
            self._end(held, End.SETTLED)
            return
        held.signalled = True
        if isinstance(signal, Snooze):
            held.snooze = signal.delay
            self._end(held, End.SNOOZED)
            return
        match signal:
            case Retry():
                held.verdict = Verdict(retry_in=signal.after)
            case Discard():
                held.verdict = Verdict(retry=False)
            case Cancel():
                held.verdict = Verdict(cancel=True)
        held.error = {"class": type(signal).__name__, "message": _clean(str(signal))}
        self._end(held, End.FAILED)

    async def _on_loop(self, held: Held, call: Awaitable[object]) -> object:
        held.runner = asyncio.current_task()
        try:
            return await call
        finally:
            held.runner = None

    async def _in_thread(self, call: Callable[[], object]) -> object:
        held = subject.get()
        call = partial(self._named, held, call) if isinstance(held, Held) else call
        return await _returned(await self._thread_pool().run(partial(contained, call)))

    def _thread_pool(self) -> Threads:
        if self._threads is None:
            self._threads = Threads(self._most, asyncio.get_running_loop())
        return self._threads

    def _named(self, held: Held, call: Callable[[], object]) -> object:
        ident = threading.get_ident()
        self.in_threads[ident] = held
        token = subject.set(held)
        try:
            return call()
        finally:
            subject.reset(token)
            del self.in_threads[ident]

    async def _interrupted(self, held: Held, task: Task[Any, Any]) -> None:
        assert held.interrupt is not None
        if held.interrupt is End.FAILED:
            held.error = {"class": held.kind, "message": held.reason}
            if held.kind == "Timeout":
                await self._judge(held, task, TimeoutError(held.reason))
        self._end(held, held.interrupt)

    def _end(self, held: Held, end: End) -> None:
        if held.ended is not None:
            # Abandoned.
            return
        held.ended = end
        if held.started is not None:
            held.seconds = time.monotonic() - held.started
        self._on_end(held)
        for mate in held.mates:
            mate.ended = end
            mate.error, mate.delay, mate.snooze = held.error, held.delay, held.snooze
            mate.verdict, mate.signalled, mate.seconds = held.verdict, held.signalled, held.seconds
            self._on_end(mate)


def _is_completed(held: Held) -> bool:
    return held.job is not None and held.job.stage is Stage.COMPLETED


class _Pace:
    """Counts the jobs of the last 100 ms, to size the buffer by. Most of the time it only adds one to a number."""

    _SPAN = 0.1
    _MOST = 1000

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._now = 0
        self._before = 0
        self._ran = 0
        self._mean = 0.0

    def ran(self, seconds: float, now: float) -> None:
        if now - self._since >= self._SPAN:
            self._roll(now)
        self._now += 1
        self._ran += 1
        # The first few count in full: else ten slow jobs would pass for quick ones.
        self._mean += (seconds - self._mean) / min(self._ran, 16)

    def buffer(self) -> int:
        """Jobs to hold beyond the free slots: none for handlers that take longer than 100 ms on average."""
        return 0 if self._mean > self._SPAN else min(self.last(), self._MOST)

    def last(self) -> int:
        """Jobs run in the last 100 ms, to within one such span."""
        self._roll(time.monotonic())
        return max(self._now, self._before)

    def _roll(self, now: float) -> None:
        passed = now - self._since
        if passed >= self._SPAN:
            self._before = self._now if passed < 2 * self._SPAN else 0
            self._now = 0
            self._since = now


def _verdict(answer: object) -> Verdict:
    match answer:
        case None | True:
            return Verdict()
        case False:
            return Verdict(retry=False)
        case str():
            return Verdict(policy=answer)
        case int() | float() | timedelta():
            return Verdict(retry_in=as_interval(answer))
    raise TypeError(f"it returned {answer!r}; expected seconds, a timedelta, the name of a policy, False or None")


def describe(error: BaseException) -> dict[str, object]:
    """Write an exception for the job's errors: class, message and traceback, as text that PostgreSQL can hold."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except Exception:
        message = "(its message cannot be shown)"
    where = error.__traceback__
    while where is not None and where.tb_frame.f_code.co_filename == __file__:
        where = where.tb_next
    trace = "".join(traceback.format_exception(kind, error, where, limit=-50))
    return {"class": name, "message": _clean(message), "traceback": _clean(trace)}


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


async def _returned(outcome: Outcome) -> object:
    # A coroutine, of which StopIteration comes out as RuntimeError.
    result, error = outcome
    if error is not None:
        raise error
    return result


def _readable(held: Held) -> dict[str, Any]:
    if held.payloads is None:
        values = [("args", held.args)]
    else:
        values = [("payload", payload) for payloads in held.payloads.values() for payload in payloads]
    if held.row[3] is not None:
        values.append(("headers", held.headers))
    for what, value in values:
        if isinstance(value, Unreadable):
            raise InvalidArgument(
                f"{what} cannot be read here: {value.reason}",
                hint="enqueue it with numbers that a float can hold, nested less than 1000 deep",
            )
    arguments: dict[str, Any] = held.args if held.payloads is None else held.payloads
    return arguments


def _read(held: Held, task: Task[Any, Any]) -> dict[str, Any]:
    """Decode and convert what a job or call holds. Its args and payloads are decoded from here on."""
    for each in (held, *held.mates):
        each.args = task.decode(each.args)
    if held.payloads is None:
        arguments: dict[str, Any] = held.args
        return arguments if task.typed is None else task.typed.load(arguments)
    held.payloads = {key: [task.decode(each) for each in payloads] for key, payloads in held.payloads.items()}
    if task.typed is None:
        return held.payloads
    return {key: [task.typed.load(each) for each in payloads] for key, payloads in held.payloads.items()}


def _runs(held: Held, runner: asyncio.Task[Any] | None) -> None:
    held.runner = runner
