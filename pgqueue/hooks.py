"""Hooks of an App: start and stop of its worker, errors outside handlers, dead jobs, events.

If a hook raises, the error is logged, and nothing else is affected. Plain functions run in a thread, async ones on the
event loop. Hooks for events are called directly and must return at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from pgqueue.db.call import Call
from pgqueue.errors import ConfigError
from pgqueue.job import Job
from pgqueue.middleware import Codec, EnqueueMiddleware, Middleware, checked, is_async

log = logging.getLogger("pgqueue.worker")

F = TypeVar("F", bound=Callable[..., Any])

ErrorFormatter: TypeAlias = Callable[[BaseException], Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened in a worker.

    kind      "reserved" (the number in `jobs`, no job named), "started", "succeeded" (also in the handler's own
              transaction), "failed" (it will be retried), "dead", "cancelled" (by its handler, or on request while it
              ran), "released" (given back), "snoozed", "lost" (its lease; the worker that holds the job now reports the
              rest). A job that ends without a worker makes no event: by an operator, by expiry, after too many crashes
    worker    name of the worker
    error     for "failed", "dead" and "cancelled"; for "lost", the cause as its message
    seconds   how long the handler ran, after it has ended
    """

    kind: str
    worker: str
    jobs: int = 1
    job_id: int | None = None
    task: str | None = None
    queue: str | None = None
    attempt: int | None = None
    error: dict[str, Any] | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Dead:
    """A job that is dead because its last attempt failed.

    `payloads` are the dead payloads. For a key of an accumulating task that is the one with the lowest score, because
    the others continue; all of them if the task or the handler discarded the job. For any other job it is its args.
    """

    job: Job
    error: dict[str, Any]
    payloads: list[dict[str, Any]]


@dataclass(slots=True, kw_only=True)
class Hooks:
    """The declarations of an App besides tasks: middleware, hooks, a codec, an error formatter.

    codec              writes and reads the arguments of this App's tasks in another form; see `pgqueue.Codec`
    error_formatter    converts a handler's exception to the stored error: a mapping with class, message and,
                       optionally, traceback, all texts; if it raises, the error is stored as by default
    """

    codec: Codec | None = None
    error_formatter: ErrorFormatter | None = None
    # Runs the statements that enqueue this App's tasks, instead of the database: see pgqueue.testing.inline.
    deliver: Callable[[Any, Call[Any]], Any] | None = field(default=None, repr=False)
    _middleware: list[Middleware] = field(default_factory=list, repr=False)
    _enqueue_middleware: list[EnqueueMiddleware] = field(default_factory=list, repr=False)
    _on: dict[str, list[Callable[..., Any]]] = field(default_factory=dict, repr=False)

    def middleware(self, function: F, /) -> F:
        """Call a function around the execution of each job, the first declared outermost.

        It gets the job and `call_next`, and returns the job's result. An async function awaits `call_next()`. A plain
        one runs in the handler's thread, inside all async ones, and calls it. An exception counts as the handler's. It
        wraps the tasks of every App that the worker runs.

            @app.middleware
            async def timed(job, call_next):
                started = time.monotonic()
                try:
                    return await call_next()
                finally:
                    log.info("%s took %.3f s", job.task, time.monotonic() - started)
        """
        self._middleware.append(checked(function, "a middleware"))
        return function

    def enqueue_middleware(self, function: F, /) -> F:
        """Call a function around each enqueue of this App's tasks, the first declared outermost.

        It gets an `Enqueuing`, whose args, headers and options it may change, and `call_next`, and returns the result
        of `call_next`: an awaitable on an async connection. Only for async connections may it be async itself. It wraps
        enqueues by the methods of a task, and by `pgqueue.enqueue`, `enqueue_many` and `enqueue_outcome` of a task; not
        of a name, not `enqueue_batch`, SQL or schedules.

            @app.enqueue_middleware
            def tenant(jobs, call_next):
                jobs.headers["tenant"] = current_tenant()
                return call_next(jobs)
        """
        self._enqueue_middleware.append(checked(function, "a middleware"))
        return function

    def on_start(self, function: F, /) -> F:
        """Call a function when a worker starts: the code is loaded, and no job is reserved yet."""
        return self._add("start", function)

    def on_stop(self, function: F, /) -> F:
        """Call a function when a worker has stopped and its jobs have ended. It has five seconds."""
        return self._add("stop", function)

    def on_error(self, function: F, /) -> F:
        """Call a function with each error outside handlers, and where it was: `f(error, where)`."""
        return self._add("error", function)

    def on_dead(self, function: F, /) -> F:
        """Call a function with each job that is dead after an attempt on this worker: `f(dead)`, see `Dead`.

        Not for jobs that an operator killed, or that are dead because their workers crashed. The database has all of
        them: select ... from pgqueue.all_jobs where state = 'dead'.
        """
        return self._add("dead", function)

    def on_event(self, function: F, /) -> F:
        """Call a plain function with each `Event`, on the event loop: it must return at once."""
        if is_async(checked(function, "a hook")):
            raise ConfigError("a hook for events is a plain function", hint="have it put the event into a queue")
        return self._add("event", function)

    def has(self, kind: str) -> bool:
        """Return whether there is a hook of this kind."""
        return bool(self._on.get(kind))

    def hooks_for(self, kind: str) -> tuple[Callable[..., Any], ...]:
        """Return the hooks of this kind."""
        return tuple(self._on.get(kind, ()))

    def around_execution(self) -> list[Middleware]:
        """Return the middleware around execution, outermost first."""
        return list(self._middleware)

    def around_enqueue(self) -> list[EnqueueMiddleware]:
        """Return the middleware around enqueue, outermost first."""
        return self._enqueue_middleware

    async def call(self, kind: str, *args: object) -> None:
        """Call the hooks of a kind, one after the other. For the worker."""
        for function in self._on.get(kind, ()):
            try:
                if is_async(function):
                    await function(*args)
                else:
                    await asyncio.to_thread(function, *args)
            except (Exception, asyncio.CancelledError) as error:
                me = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and (me is None or me.cancelling()):
                    raise
                # A hook that awaits something that was cancelled has raised as any other.
                log.exception("the hook %s for %s raised", _name(function), kind)
                if kind != "error":
                    await self.call("error", error, f"hook {_name(function)} for {kind}")

    def tell(self, event: Event) -> None:
        """Call the hooks for events. For the worker."""
        for function in self._on.get("event", ()):
            try:
                function(event)
            except Exception:
                log.exception("the hook %s for events raised", _name(function))

    def include_hooks(self, other: Hooks) -> None:
        """Add the execution middleware and the hooks of another App, inside our own."""
        _merge(self._middleware, other._middleware)
        for kind, functions in other._on.items():
            _merge(self._on.setdefault(kind, []), functions)
        if self.error_formatter is None:
            self.error_formatter = other.error_formatter

    def _add(self, kind: str, function: F) -> F:
        self._on.setdefault(kind, []).append(checked(function, "a hook"))
        return function


def _merge(mine: list[Any], others: Iterable[Any]) -> None:
    mine += [each for each in others if each not in mine]


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__
