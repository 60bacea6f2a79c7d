"""What an App is told of: its worker's start and stop, errors outside handlers, dead jobs, events.

A hook that raises is logged and harms nothing. Plain functions run in a thread, async ones on the event loop; only
those for events are called right where it happens, and must return at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from pgqueue.errors import ConfigError
from pgqueue.job import Job
from pgqueue.middleware import Codec, EnqueueMiddleware, Middleware, checked, is_async

log = logging.getLogger("pgqueue.worker")

F = TypeVar("F", bound=Callable[..., Any])

ErrorFormatter: TypeAlias = Callable[[BaseException], Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened in a worker.

    kind      "reserved" (so many `jobs`, with none named), "started", "succeeded" (also by the handler, in its own
              transaction), "failed" (it will be retried), "dead", "cancelled" (by its handler, or because that was
              asked for while it ran), "released" (given back), "snoozed", "lost" (its lease: what became of it is told
              by who has it now). What ends without a worker is not told: by an operator, by expiry, as poison.
    worker    name of the worker
    error     of "failed", "dead" and "cancelled"; of "lost", why, as its message
    seconds   how long its handler ran, once it has ended
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
    """A job that is dead because its last try failed.

    `payloads` are the payloads that died. Of an accumulating call's key that is the one with the lowest score, for the
    others go on; all of them when the task or the handler discarded it. Of any other job they are its args alone.
    """

    job: Job
    error: dict[str, Any]
    payloads: list[dict[str, Any]]


@dataclass(slots=True, kw_only=True)
class Hooks:
    """What an App declares besides tasks: middleware, hooks, a codec, an error formatter.

    codec              writes and reads the arguments of this App's tasks in another form; see `pgqueue.Codec`
    error_formatter    makes of a handler's exception what the job's errors hold: a mapping with class, message and, if
                       you like, traceback, all texts; should it raise, the error is kept as usual
    """

    codec: Codec | None = None
    error_formatter: ErrorFormatter | None = None
    _middleware: list[Middleware] = field(default_factory=list, repr=False)
    _enqueue_middleware: list[EnqueueMiddleware] = field(default_factory=list, repr=False)
    _on: dict[str, list[Callable[..., Any]]] = field(default_factory=dict, repr=False)

    def middleware(self, function: F, /) -> F:
        """Have a function called around the execution of each job, the first declared outermost.

        It gets the job and `call_next`, and returns what is to be the job's result. An async one awaits `call_next()`;
        a plain one runs in the handler's thread, inside of all async ones, and calls it. What it raises is as if the
        handler had raised it. It stands around the tasks of every App that the worker runs.

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
        """Have a function called around each enqueue of this App's tasks, the first declared outermost.

        It gets an `Enqueuing`, whose args, headers and options it may change, and `call_next`, and returns what that
        returns: an awaitable on an async connection, the only kind for which it may be async itself. It is called when
        a task is enqueued by its methods or given to `pgqueue.enqueue`, `enqueue_many` and `enqueue_outcome`; not for a
        name alone, not for `enqueue_batch`, and not for what SQL and schedules enqueue.

            @app.enqueue_middleware
            def tenant(jobs, call_next):
                jobs.headers["tenant"] = current_tenant()
                return call_next(jobs)
        """
        self._enqueue_middleware.append(checked(function, "a middleware"))
        return function

    def on_start(self, function: F, /) -> F:
        """Have a function called when a worker starts: the code is loaded, and no job is reserved yet."""
        return self._add("start", function)

    def on_stop(self, function: F, /) -> F:
        """Have a function called when a worker has stopped and its jobs have ended. It has five seconds."""
        return self._add("stop", function)

    def on_error(self, function: F, /) -> F:
        """Have a function called with each error outside of handlers, and where it was: `f(error, where)`."""
        return self._add("error", function)

    def on_dead(self, function: F, /) -> F:
        """Have a function called with each job that this worker's tries leave dead: `f(dead)`, see `pgqueue.Dead`.

        Jobs that die without a try that ends are not told: killed by an operator, or as poison because their process
        died once too often. Ask the database for all of them: select ... from pgqueue.all_jobs where state = 'dead'.
        """
        return self._add("dead", function)

    def on_event(self, function: F, /) -> F:
        """Have a plain function called with each `pgqueue.Event`, on the event loop: it must return at once."""
        if is_async(checked(function, "a hook")):
            raise ConfigError("a hook for events is a plain function", hint="have it put the event into a queue")
        return self._add("event", function)

    def has(self, kind: str) -> bool:
        """Tell whether anybody asked for this kind of hook."""
        return bool(self._on.get(kind))

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
            except Exception as error:
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
        """Take in what another App declared around execution and for its worker, inside of our own."""
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
