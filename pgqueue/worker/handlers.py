"""Call the functions of tasks, and determine how each attempt ended."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from pgqueue.app import App
from pgqueue.db.json import read_time, to_result
from pgqueue.job import Flag, Job, State, Surroundings, set_current
from pgqueue.logs import subject
from pgqueue.middleware import Around
from pgqueue.signals import Cancel, Discard, Interrupted, Retry, Signal, Snooze, Suspended
from pgqueue.tasks import Task
from pgqueue.worker import job_log
from pgqueue.worker.failure import clean, describe, verdict
from pgqueue.worker.held import End, Held, Verdict, arguments
from pgqueue.worker.running_jobs import RunningJobs
from pgqueue.worker.threads import NoThread, Outcome, Threads, contained

log = logging.getLogger("pgqueue.worker")

# Two threads may ask for the job of one handler at once.
_making_job = threading.Lock()


class Handlers:
    """Calls handlers: async ones on the event loop, sync ones in at most `threads` threads.

    `run` calls `on_end` once for each attempt. A plain handler, which needs nothing of the event loop, may be run with
    `run_plain` by a thread that goes on to the next job by itself.
    """

    def __init__(self, app: App, threads: int, surroundings: Surroundings, on_end: Callable[[Held, End], None]) -> None:
        self.in_tasks: dict[asyncio.Task[Any], Held] = {}
        self.in_threads: dict[int, Held] = {}
        # Set by the worker: the running-jobs table, the middleware, and the event hooks.
        self.running_jobs: RunningJobs | None = None
        self.around: Around | None = None
        # Functions to call instead of a task's own, by the task's name.
        self.functions: dict[str, Callable[..., Any]] = {}
        self.on_event: Callable[[str, Held], None] | None = None
        self._app = app
        self._most = threads
        self._surroundings = surroundings
        self._on_end = on_end
        self._threads: Threads | None = None
        self._closed = False

    @property
    def threads(self) -> Threads:
        """The threads, made when they are first needed."""
        if self._threads is None:
            self._threads = Threads(self._most, asyncio.get_running_loop())
        return self._threads

    def close(self) -> None:
        """Start nothing more. Threads that still run a handler go on until the process ends."""
        self._closed = True
        if self._threads is not None:
            self._threads.close()

    def is_plain(self, held: Held, task: Task[Any, Any]) -> bool:
        """Return whether a sync handler needs nothing of the event loop until it ends."""
        row = held.row
        return not (
            task.is_async
            or task.typed is not None
            or task.hooks.codec is not None
            or task.payloads_parameter is not None
            or held.payloads is not None
            or held.interrupt is not None
            or row.timeout is not None
            or row.losses
            or row.crashes
            or self.around is not None
            or self.on_event is not None
        )

    def run_plain(self, held: Held, task: Task[Any, Any], base: contextvars.Context) -> Outcome | None:
        """Run a plain handler in the calling thread. Returns None when it succeeded.

        Otherwise returns the handler's result or exception, from which `run` on the event loop determines how it ended.
        """
        ident = threading.get_ident()
        self.in_threads[ident] = held
        positions = [] if self.running_jobs is None else self.running_jobs.record([held.pair])
        try:
            result = base.copy().run(self._call_plain, held, task)
            if result is not None:
                if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
                    return result, None
                if held.stores_result:
                    held.result = to_result(result)
        except BaseException as error:
            return None, error
        finally:
            del self.in_threads[ident]
            if self.running_jobs is not None:
                self.running_jobs.clear(positions)
        return None

    async def run(self, held: Held, task: Task[Any, Any], me: asyncio.Task[Any], ran: Outcome | None = None) -> None:
        """Run a handler to its end, or with `ran` only determine how it ended."""
        self.in_tasks[me] = held
        # The subject stands until the next job, or until there is none.
        subject.set(held)
        positions = (
            [] if self.running_jobs is None else self.running_jobs.record([each.pair for each in (held, *held.members)])
        )
        try:
            await self._attempt(held, task, me, ran)
        finally:
            if self.running_jobs is not None:
                self.running_jobs.clear(positions)
            del self.in_tasks[me]

    def job_of(self, held: Held) -> Job:
        """Return the job as handlers and middleware see it."""
        with _making_job:
            if held.job is None:
                held.job = self._make_job(held)
        if held.interrupt is not None:
            # Asked to stop before there was a job to raise its flag.
            held.job.cancelled.raise_it(held.reason)
        return held.job

    def describe(self, error: BaseException) -> dict[str, object]:
        """Return the stored form of an error: by the App's formatter, or class, message and traceback."""
        formatter = self._app.error_formatter
        if formatter is None:
            return describe(error)
        try:
            formatted = formatter(error)
            return {
                name: clean(str(formatted[name])) for name in ("class", "message", "traceback") if name in formatted
            }
        except Exception:
            log.exception("the error formatter failed; the error is stored as by default")
            return describe(error)

    def _make_job(self, held: Held) -> Job:
        row = held.row
        ends_at = None if held.timeout is None or held.started is None else held.started + held.timeout
        return Job(
            row.id,
            row.task,
            held.args,
            held.headers,
            row.queue,
            row.key,
            row.priority,
            row.attempt,
            row.max_attempts,
            row.reservation,
            read_time(row.run_at),
            read_time(row.created_at),
            read_time(row.lease_expires_at),
            row.timeout,
            self._make_state(held, ends_at),
        )

    def _make_state(self, held: Held, ends_at: float | None) -> State:
        state = State(self._surroundings, Flag(), ends_at, stores_result=held.row.store_result)
        task = self._app.tasks.get(held.row.task)
        if task is not None and task.hooks.codec is not None:
            state.encode = task.hooks.codec.encode
            state.decode = task.hooks.codec.decode
        return state

    def _call_plain(self, held: Held, task: Task[Any, Any]) -> object:
        subject.set(held)
        set_current(partial(self.job_of, held))
        job_log.started(held)
        return self._function(task)(**self._arguments(held, task))

    def _function(self, task: Task[Any, Any]) -> Callable[..., Any]:
        return self.functions.get(task.name, task.function)

    def _arguments(self, held: Held, task: Task[Any, Any]) -> dict[str, Any]:
        given = arguments(held, task)
        return given if task.job_parameter is None else {**given, task.job_parameter: self.job_of(held)}

    async def _attempt(self, held: Held, task: Task[Any, Any], me: asyncio.Task[Any], ran: Outcome | None) -> None:
        try:
            if ran is None:
                # One that ran in a thread has said so.
                job_log.started(held)
            if self.on_event is not None:
                self.on_event("started", held)
            set_current(partial(self.job_of, held))
            if ran is not None:
                result = await _returned(ran)
                if inspect.isawaitable(result):
                    result = await self._on_loop(held, result)
            else:
                given = self._arguments(held, task)
                if task.is_async and self.around is None:
                    held.runner = me
                    try:
                        result = await self._function(task)(**given)
                    finally:
                        held.runner = None
                else:
                    result = await self._call(held, task, given)
            if result is not None:
                if inspect.isgenerator(result) or inspect.isasyncgen(result):
                    raise TypeError("it returned a generator, of which nothing has run")
                if held.stores_result:
                    held.result = to_result(result)
        except (asyncio.CancelledError, Interrupted) as error:
            if self._closed:
                # The worker ends, not the job.
                raise
            if held.interrupt is None or held.is_completed:
                # The handler's own: it awaited something that was cancelled.
                await self._failed(held, task, error)
            else:
                await self._interrupted(held, task)
        except NoThread:
            # It has not run: no attempt of it failed.
            raise
        except Suspended:
            self._on_end(held, End.SUSPENDED)
        except Signal as signal:
            self._signalled(held, signal)
        except BaseException as error:
            # Also SystemExit and KeyboardInterrupt: a handler that exits has failed, the worker goes on.
            await self._failed(held, task, error)
        else:
            self._on_end(held, End.SETTLED if held.is_completed else End.SUCCEEDED)

    async def _call(self, held: Held, task: Task[Any, Any], given: dict[str, Any]) -> object:
        """Call a handler with its middleware around it, or a sync one in a thread."""
        if self.around is not None:
            return await self.around.run(
                self.job_of(held),
                partial(self._function(task), **given),
                task.is_async,
                self._in_thread,
                partial(_set_runner, held),
            )
        context = contextvars.copy_context()
        result = await self._in_thread(partial(context.run, self._function(task), **given))
        if inspect.isawaitable(result):
            # A plain function around an async one: left alone, it would succeed without having run.
            return await self._on_loop(held, result)
        return result

    async def _failed(self, held: Held, task: Task[Any, Any], error: BaseException) -> None:
        held.error = self.describe(error)
        if held.is_completed:
            log.warning(
                "%s was completed by its own transaction, and its handler failed after that: %s: %s",
                held,
                held.error["class"],
                held.error["message"],
            )
            self._on_end(held, End.SETTLED)
            return
        await self._judge(held, task, error)
        self._on_end(held, End.FAILED)

    async def _judge(self, held: Held, task: Task[Any, Any], error: BaseException) -> None:
        """Ask the task's rule what to do after this error."""
        rule = task.options.retry
        if isinstance(error, task.options.discard_on):
            held.verdict = Verdict(retry=False)
        elif rule is not None:
            ask = partial(rule, error, held.row.attempt - 1)
            try:
                held.verdict = verdict(ask() if task.is_async else await self._in_thread(ask))
            except BaseException as broken:
                if self._closed:
                    raise
                why = describe(broken)
                broken_rule = f"the task's rule for retries: {why['class']}: {why['message']}"
                held.error = {**(held.error or {}), "policy_error": broken_rule}
                log.error("%s: %s; its retry policy decides", held, broken_rule)

    def _signalled(self, held: Held, signal: Signal) -> None:
        if held.is_completed:
            log.warning("%s was completed by its own transaction, and its handler raised %r after that", held, signal)
            self._on_end(held, End.SETTLED)
            return
        held.signalled = True
        if isinstance(signal, Snooze):
            held.snooze = signal.delay
            self._on_end(held, End.SNOOZED)
            return
        match signal:
            case Retry():
                held.verdict = Verdict(retry_in=signal.after)
            case Discard():
                held.verdict = Verdict(retry=False)
            case Cancel():
                held.verdict = Verdict(cancel=True)
        held.error = {"class": type(signal).__name__, "message": clean(str(signal))}
        self._on_end(held, End.FAILED)

    async def _interrupted(self, held: Held, task: Task[Any, Any]) -> None:
        assert held.interrupt is not None
        if held.interrupt is End.FAILED:
            held.error = {"class": held.kind, "message": held.reason}
            if held.kind == "Timeout":
                await self._judge(held, task, TimeoutError(held.reason))
        self._on_end(held, held.interrupt)

    async def _on_loop(self, held: Held, call: Awaitable[object]) -> object:
        held.runner = asyncio.current_task()
        try:
            return await call
        finally:
            held.runner = None

    async def _in_thread(self, call: Callable[[], object]) -> object:
        held = subject.get()
        call = partial(self._named, held, call) if isinstance(held, Held) else call
        return await _returned(await self.threads.run(partial(contained, call)))

    def _named(self, held: Held, call: Callable[[], object]) -> object:
        ident = threading.get_ident()
        self.in_threads[ident] = held
        token = subject.set(held)
        try:
            return call()
        finally:
            subject.reset(token)
            del self.in_threads[ident]


def _set_runner(held: Held, runner: asyncio.Task[Any] | None) -> None:
    held.runner = runner


async def _returned(outcome: Outcome) -> object:
    # A coroutine, out of which StopIteration comes as RuntimeError.
    result, error = outcome
    if error is not None:
        raise error
    return result
