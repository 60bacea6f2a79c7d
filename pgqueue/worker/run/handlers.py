"""Call the functions of tasks, and determine how each attempt ended."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, TypeVar, cast

from pgqueue import _forks
from pgqueue.app import App
from pgqueue.db.json import Unreadable, read_json, readable, to_result
from pgqueue.errors import InvalidArgument
from pgqueue.job import Job, set_current
from pgqueue.logs import subject
from pgqueue.middleware import Around
from pgqueue.signals import Cancel, Discard, Interrupted, Retry, Signal, Snooze, Suspended, Throttled
from pgqueue.tasks import Task
from pgqueue.worker.hold.held import (
    SETTLED,
    SUCCEEDED,
    SUSPENDED,
    Cause,
    Decision,
    Decoded,
    End,
    Ending,
    Held,
    Stop,
    stored_ending,
)
from pgqueue.worker.hold.jobs import Jobs
from pgqueue.worker.run.failure import clean, clean_trace, decision, describe
from pgqueue.worker.run.isolation import Isolation
from pgqueue.worker.run.running_jobs import RunningJobs
from pgqueue.worker.run.threads import NoThread, Outcome, Threads, contained
from pgqueue.worker.tell.tell import Tell

T = TypeVar("T")

log = logging.getLogger("pgqueue.worker")

# A result of more parts is encoded in a thread.
_LONG = 10_000


class Handlers:
    """Calls handlers: async ones on the event loop, sync ones in at most `threads` threads.

    `run` returns how an attempt ended. A plain handler, which needs nothing of the event loop, may be run with
    `run_plain` by a thread that takes the next job by itself.

    For tests, `here` calls plain code in the calling thread, and keeps the last described exception in `raised`.
    """

    def __init__(self, app: App, threads: int, jobs: Jobs, tell: Tell | None = None, *, here: bool = False) -> None:
        self.in_tasks: dict[asyncio.Task[Any], Held] = {}
        self.in_threads: dict[int, Held] = {}
        # Set by the worker: the running-jobs table, and the middleware.
        self.running_jobs: RunningJobs | None = None
        self.around: Around | None = None
        # Functions to call instead of a task's own, by the task's name.
        self.functions: dict[str, Callable[..., Any]] = {}
        self.raised: BaseException | None = None
        self.threads = Threads(threads)
        self._app = app
        self._most = threads
        self._jobs = jobs
        self._tell = tell
        self._here = here
        self._closed = False
        self._encoding = asyncio.Lock()
        self._forks = _forks.depth

    def start(self) -> None:
        """From now on each job starts in the present context."""
        self._isolation = Isolation(asyncio.get_running_loop())
        self._forks = _forks.depth

    @cached_property
    def _isolation(self) -> Isolation:
        return Isolation(asyncio.get_running_loop())

    def leave_loop(self) -> None:
        """Release the threads, which belong to the loop that ran: the next attempt may have another loop."""
        self.threads.close()
        self.threads = Threads(self._most)

    def close(self) -> None:
        """Start nothing more. Threads that still run a handler continue until the process ends."""
        self._closed = True
        self.threads.close()

    def run_plain(self, held: Held, task: Task[Any, Any]) -> Ending | Outcome:
        """Run a plain handler in the calling thread. Returns how its attempt ended, when it returned.

        Otherwise returns the handler's result or exception, from which `run` on the event loop determines how it ended.
        """
        ident = threading.get_ident()
        self.in_threads[ident] = held
        positions = [] if self.running_jobs is None else self.running_jobs.record([held.pair])
        context = self._isolation.context()
        stored: bytes | None = None
        try:
            result = context.run(self._call_plain, held, task)
            if result is not None:
                if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
                    held.attempt.context = context
                    return result, None
                if held.stores_result:
                    stored = to_result(task.dump_result(result))
        except BaseException as error:
            held.attempt.context = context
            return None, error
        finally:
            _restore_thread()
            del self.in_threads[ident]
            if self.running_jobs is not None:
                self.running_jobs.clear(positions)
        return _returned_ending(held, stored)

    async def run(self, held: Held, task: Task[Any, Any], ran: Outcome | None = None) -> Ending:
        """Run a handler to its end, or with `ran` only determine how it ended; returns that.

        The handler runs in a separate context and task. This code runs outside of both, where no handler reaches.
        """
        positions = (
            [] if self.running_jobs is None else self.running_jobs.record([each.pair for each in (held, *held.members)])
        )
        try:
            if ran is None and (task.is_async or self.around is not None):
                ran = await self._in_task(held, self._call_on_loop(held, task))
            if ran is not None and ran[0] is None and ran[1] is None:
                # It returned nothing, as most do.
                return _returned_ending(held)
            return await self._attempt(held, task, ran)
        finally:
            # It refers to this job.
            held.attempt.context = None
            if self.running_jobs is not None:
                self.running_jobs.clear(positions)

    def job_of(self, held: Held) -> Job:
        """Return the job as handlers and middleware see it."""
        return self._jobs.of(held)

    def enter(self, held: Held) -> None:
        """Report the start. Called in the job's context, which then names the job."""
        subject.set(held)
        set_current(partial(self.job_of, held))
        if self._tell is not None:
            self._tell.started(held)

    def arguments_of(self, held: Held, task: Task[Any, Any]) -> dict[str, Any]:
        """Return the arguments of the function, with the job for one that asks for it."""
        given = _arguments(held, task)
        return given if task.job_parameter is None else {**given, task.job_parameter: self.job_of(held)}

    async def in_thread(self, held: Held, call: Callable[[], object]) -> Outcome:
        """Make a call in a thread that is named after this job."""
        return await self.threads.run(partial(contained, partial(self._named, held, call)))

    def describe(self, error: BaseException) -> dict[str, object]:
        """Return the stored form of an error: by the App's formatter, or class, message and traceback."""
        if self._here:
            self.raised = error
        formatter = self._app.error_formatter
        if formatter is None:
            return describe(error)
        try:
            formatted = formatter(error)
            keep = {"class": clean, "message": clean, "traceback": clean_trace}
            return {name: cut(str(formatted[name])) for name, cut in keep.items() if name in formatted}
        except Exception:
            log.exception("the error formatter failed; the error is stored as by default")
            return describe(error)

    def _call_plain(self, held: Held, task: Task[Any, Any]) -> object:
        _check_lease(held)
        self.enter(held)
        return self._call_function(held, task)

    def _call_in_thread(self, held: Held, task: Task[Any, Any]) -> object:
        _check_lease(held)
        return self._call_function(held, task)

    def _call_function(self, held: Held, task: Task[Any, Any]) -> object:
        try:
            return self._function(task)(**self.arguments_of(held, task))
        finally:
            if _forks.depth != self._forks:
                _forks.end_child(sys.exc_info()[1])

    def _function(self, task: Task[Any, Any]) -> Callable[..., Any]:
        return self.functions.get(task.name, task.function)

    async def _attempt(self, held: Held, task: Task[Any, Any], ran: Outcome | None) -> Ending:
        stored: bytes | None = None
        try:
            result, error = ran or await self._call_in_a_thread(held, task)
            if error is not None:
                await _raised(error)
            if result is not None and inspect.isawaitable(result):
                # A plain function around an async one: if it were not awaited, it would succeed without having run.
                result, error = await self._in_task(held, self._await(held, result))
                if error is not None:
                    await _raised(error)
            if result is not None:
                if inspect.isgenerator(result) or inspect.isasyncgen(result):
                    raise TypeError("it returned a generator, of which nothing has run")
                if held.stores_result:
                    stored = await self._encoded(held, task.dump_result(result))
        except (asyncio.CancelledError, Interrupted) as error:
            if self._closed:
                # The worker ends, not the job.
                raise
            stop = held.attempt.stop
            if stop is None or held.attempt.is_completed or held.attempt.is_suspended:
                # The handler's own: it awaited something that was cancelled.
                return await self._failed(held, task, error)
            return await self._interrupted(held, stop, task)
        except NoThread:
            # The handler has not run, so no attempt failed.
            raise
        except Signal as signal:
            return self._signalled(held, signal)
        except BaseException as error:
            # Also SystemExit and KeyboardInterrupt: a handler that exits has failed, and the worker continues.
            return await self._failed(held, task, error)
        return _returned_ending(held, stored)

    async def _call_in_a_thread(self, held: Held, task: Task[Any, Any]) -> Outcome:
        context = held.attempt.context = self._isolation.context()
        # On the loop: hooks for events are called there.
        context.run(self.enter, held)
        call = partial(context.run, self._call_in_thread, held, task)
        return await self.threads.outlast(partial(contained, partial(self._named, held, call)))

    async def _encoded(self, held: Held, result: object) -> bytes:
        if isinstance(result, str | list | tuple | dict) and len(result) > _LONG:
            # Objects that Python writes, such as Decimals, take a second for some megabytes. One at a time, for each is
            # there twice until the loop continues.
            with suppress(NoThread):
                async with self._encoding:
                    return cast(bytes, await _returned(await self._plainly(held, partial(to_result, result))))
        return to_result(result)

    async def _failed(self, held: Held, task: Task[Any, Any], error: BaseException) -> Ending:
        if held.attempt.is_suspended:
            return self._raised_after_suspension(held, error)
        described = _inside(held, partial(self.describe, error))
        if held.attempt.is_completed:
            log.warning(
                "%s was completed by its own transaction, and its handler failed after that: %s: %s",
                held,
                described.get("class"),
                described.get("message"),
            )
            return Ending(End.SETTLED, described)
        return await self._judged(held, task, error, described)

    def _raised_after_suspension(self, held: Held, error: BaseException) -> Ending:
        # A task group hands on what each of its branches raised.
        others = error.split(Suspended)[1] if isinstance(error, BaseExceptionGroup) else error
        if others is not None and not isinstance(others, Suspended):
            log.warning("%s was given back until later, and its handler raised %r besides", held, others)
        return SUSPENDED

    async def _judged(
        self, held: Held, task: Task[Any, Any], error: BaseException, described: dict[str, object]
    ) -> Ending:
        """Ask the task's rule what to do after this error."""
        rule = task.options.retry
        if isinstance(error, task.options.discard_on):
            return Ending(End.FAILED, described, decision=Decision(retry=False))
        if rule is None:
            return Ending(End.FAILED, described)
        ask = partial(_inside, held, partial(rule, error, held.row.attempt - 1))
        try:
            decided = decision(ask() if task.is_async else await _returned(await self._plainly(held, ask)))
            return Ending(End.FAILED, described, decision=decided)
        except BaseException as broken:
            if self._closed:
                raise
            why = describe(broken)
            broken_rule = f"the task's rule for retries: {why['class']}: {why['message']}"
            log.error("%s: %s; its retry policy decides", held, broken_rule)
            return Ending(End.FAILED, {**described, "policy_error": broken_rule})

    def _signalled(self, held: Held, signal: Signal) -> Ending:
        if held.attempt.is_suspended:
            return self._raised_after_suspension(held, signal)
        if held.attempt.is_completed:
            log.warning("%s was completed by its own transaction, and its handler raised %r after that", held, signal)
            return SETTLED
        decided = Decision()
        match signal:
            case Snooze():
                return Ending(End.SNOOZED, signalled=True, snooze=signal.delay)
            case Throttled():
                throttle = (signal.of, clean(str(signal)))
                return Ending(End.SNOOZED, signalled=True, snooze=signal.after, throttle=throttle)
            case Retry():
                decided = Decision(retry_in=signal.after)
            case Discard():
                decided = Decision(retry=False)
            case Cancel():
                decided = Decision(cancel=True)
        described: dict[str, object] = {"class": type(signal).__name__, "message": clean(str(signal))}
        return Ending(End.FAILED, described, decision=decided, signalled=True)

    async def _interrupted(self, held: Held, stop: Stop, task: Task[Any, Any]) -> Ending:
        if stop.end is not End.FAILED:
            return Ending(stop.end)
        if stop.cause is Cause.TIMEOUT:
            return await self._judged(held, task, TimeoutError(stop.reason), stop.error)
        return Ending(End.FAILED, stop.error)

    async def _in_task(self, held: Held, coroutine: Coroutine[Any, Any, None]) -> Outcome:
        """Run one of the two below in its own task."""
        runner, held.attempt.context, cancelled = await self._isolation.run(coroutine, held.attempt.context)
        self.in_tasks.pop(runner, None)
        # A handler that cancels its own task, and then returns, has returned.
        outcome = held.attempt.outcome or (None, cancelled or asyncio.CancelledError())
        held.attempt.asyncio_task = held.attempt.outcome = None
        return outcome

    async def _call_on_loop(self, held: Held, task: Task[Any, Any]) -> None:
        self._started_task(held)
        try:
            self.enter(held)
            if self.around is None:
                held.attempt.outcome = await self._function(task)(**self.arguments_of(held, task)), None
                return
            call: Callable[[], Any] = partial(self._call_in_thread, held, task)
            if task.is_async:
                call = partial(_unless_stopped, held, partial(self._function(task), **self.arguments_of(held, task)))
            job, attempt, in_thread = self.job_of(held), held.attempt, partial(self.in_thread, held)
            attempt.outcome = await self.around.run(job, call, task.is_async, in_thread, attempt.run_in), None
        except BaseException as error:
            # All of them: SystemExit would end the event loop.
            held.attempt.outcome = None, error
        finally:
            if _forks.depth != self._forks:
                _forks.end_child(None if held.attempt.outcome is None else held.attempt.outcome[1])

    async def _await(self, held: Held, result: Awaitable[object]) -> None:
        self._started_task(held)
        try:
            held.attempt.outcome = await result, None
        except BaseException as error:
            held.attempt.outcome = None, error

    def _started_task(self, held: Held) -> None:
        me = asyncio.current_task(self._isolation.loop)
        assert me is not None
        self.in_tasks[me] = held
        held.attempt.asyncio_task = me
        if held.attempt.stop is not None:
            # Asked while a plain function ran in its thread, where there was nothing to cancel.
            me.cancel()

    async def _plainly(self, held: Held, call: Callable[[], object]) -> Outcome:
        return contained(call) if self._here else await self.in_thread(held, call)

    def _named(self, held: Held, call: Callable[[], object]) -> object:
        ident = threading.get_ident()
        self.in_threads[ident] = held
        try:
            return call()
        finally:
            _restore_thread()
            del self.in_threads[ident]


def _returned_ending(held: Held, result: bytes | None = None) -> Ending:
    """Return how an attempt ended whose handler has returned."""
    # Most have not even asked for their job.
    if held.attempt.job is not None and (stored := stored_ending(held.attempt)) is not None:
        return stored
    return SUCCEEDED if result is None else Ending(End.SUCCEEDED, result=result)


def _check_lease(held: Held) -> None:
    """Raise Interrupted when the attempt was asked to stop, or its lease ended, while it waited to begin.

    For a thread, when the system gives this process fewer than it has slots; or for its turn.
    """
    attempt = held.attempt
    if attempt.stop is not None or attempt.deadline < time.monotonic():
        attempt.ask_to_stop(Stop(End.RELEASED, "its lease ended before it started"))
        raise Interrupted("its lease ended before it started")


async def _unless_stopped(held: Held, handler: Callable[[], Awaitable[object]]) -> object:
    """Call an async handler inside of middleware, which may have kept it in a thread, where nothing is cancelled."""
    if held.attempt.stop is not None:
        raise Interrupted(held.attempt.stop.reason)
    return await handler()


def _inside(held: Held, call: Callable[[], T]) -> T:
    """Make a call in a copy of the job's context: what the handler has set there describes its error."""
    context = held.attempt.context
    return call() if context is None else context.copy().run(call)


async def _raised(error: BaseException) -> None:
    # A coroutine, out of which StopIteration comes as RuntimeError.
    raise error


async def _returned(outcome: Outcome) -> object:
    result, error = outcome
    if error is not None:
        raise error
    return result


def _arguments(held: Held, task: Task[Any, Any]) -> dict[str, Any]:
    """Return the arguments of the handler, except for the job itself. Raises InvalidArgument.

    With a codec or types, the attempt of `held` has what it decodes from here on.
    """
    # Kept as `decoded`, where the job and the hooks find it.
    args = read_json(held.row.args) if held.payloads is None else held.args
    _require_readable(held, args)
    held.attempt.decoded = Decoded(args, held.payloads)
    payload: dict[str, Any] = args if held.payloads is None else held.payloads
    if task.typed is not None or task.hooks.codec is not None:
        payload = _decoded(held, task, args)
    if task.payloads_parameter is not None:
        # A job without a key, or one that an operator has run alone, is its own batch.
        return {task.payloads_parameter: {held.row.key or "": [payload]} if held.payloads is None else payload}
    if held.payloads is not None:
        raise InvalidArgument(
            f"task {task.name} accumulates, as pgqueue.tasks says, and its function here takes single jobs",
            hint="declare it with accumulate=True, or set accumulate = false in pgqueue.tasks",
        )
    return payload


def _require_readable(held: Held, args: Any) -> None:
    if held.payloads is None and held.row.headers is None and not isinstance(args, Unreadable):
        return
    if held.payloads is None:
        values = [("args", args)]
    else:
        values = [("payload", payload) for payloads in held.payloads.values() for payload in payloads]
    if held.row.headers is not None:
        values.append(("headers", held.headers))
    for what, value in values:
        readable(value, what)


def _decoded(held: Held, task: Task[Any, Any], args: Any) -> dict[str, Any]:
    for each in held.members:
        each.attempt.decoded = Decoded(task.decode(each.args), None)
    payload: dict[str, Any] = task.decode(args)
    payloads: dict[str, list[Any]] | None = None
    if held.payloads is not None:
        payloads = {key: [task.decode(each) for each in several] for key, several in held.payloads.items()}
    held.attempt.decoded = Decoded(payload, payloads)
    if payloads is None:
        loaded: dict[str, Any] = payload if task.typed is None else task.typed.load(payload)
        return loaded
    if task.typed is None:
        return payloads
    return {key: [task.typed.load(each) for each in several] for key, several in payloads.items()}


def _restore_thread() -> None:
    """Undo what a sync handler has set on its thread: the tasks of an event loop would run on in the next job's."""
    try:  # noqa: SIM105 - suppress() costs more than the call.
        asyncio.set_event_loop(None)
    except RuntimeError:
        pass
