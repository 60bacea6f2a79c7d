"""Middleware around enqueue and around execution, outermost first, and the payload codec.

Around execution there are async functions and plain ones, `m(job, call_next)`. Async ones run on the event loop. Plain
ones run inside of them, in the handler's own thread, where a thread's database connections are; around an async
handler they have their own thread, from which the handler is awaited on the loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from pgqueue.errors import ConfigError
from pgqueue.job import Job

T = TypeVar("T")

Middleware: TypeAlias = Callable[[Job, Callable[[], Any]], Any]


@dataclass(slots=True)
class Enqueuing:
    """Jobs of one task that are about to be enqueued, as a middleware around enqueue gets them.

    task      name of the task
    args      the arguments of each job, as they will be written as JSON; they may be changed
    options   options of `pgqueue.enqueue`, shared by all jobs; they may be changed
    """

    task: str
    args: list[dict[str, Any]]
    options: dict[str, Any]

    @property
    def headers(self) -> dict[str, Any]:
        """The headers of the jobs, to be added to."""
        headers: dict[str, Any] = self.options.setdefault("headers", {})
        return headers


EnqueueMiddleware: TypeAlias = Callable[[Enqueuing, Callable[[Enqueuing], Any]], Any]


class Codec(Protocol):
    """Writes the arguments of jobs in another form, and reads them again: encrypted, compressed, kept elsewhere.

    `encode` is called last before a job is enqueued through its task, `decode` first when it runs. `decode` also
    gets arguments that were enqueued without the codec, in SQL or by a schedule; an exception in it fails the job.
    """

    def encode(self, args: dict[str, Any], /) -> dict[str, Any]: ...

    def decode(self, args: dict[str, Any], /) -> dict[str, Any]: ...


def is_async(function: Any) -> bool:
    """Return whether a function is async, also behind partials and in an object's __call__."""
    return inspect.iscoroutinefunction(definition(function))


def definition(function: Any) -> Callable[..., Any]:
    """Return where a function's `async` and its annotations are written."""
    while isinstance(function, functools.partial):
        function = function.func
    found: Callable[..., Any] = function if inspect.isroutine(function) else function.__call__
    return found


def around_enqueue(
    middleware: Sequence[EnqueueMiddleware], jobs: Enqueuing, last: Callable[[Enqueuing], T | Awaitable[T]]
) -> T | Awaitable[T]:
    """Call `last` through all of `middleware`."""
    call: Callable[[Enqueuing], Any] = last
    for each in reversed(middleware):
        call = partial(_passing, each, call)
    result: T | Awaitable[T] = call(jobs)
    return result


def _passing(middleware: EnqueueMiddleware, call_next: Callable[[Enqueuing], Any], jobs: Enqueuing) -> Any:
    return middleware(jobs, call_next)


class Around:
    """The middleware around execution, ready to be called. For the runner."""

    def __init__(self, middleware: Iterable[Middleware]) -> None:
        self._on_loop: list[Middleware] = []
        self._in_thread: list[Middleware] = []
        for each in middleware:
            (self._on_loop if is_async(each) else self._in_thread).append(each)

    async def run(
        self,
        job: Job,
        handler: Callable[[], Any],
        handler_is_async: bool,
        in_thread: Callable[[Callable[[], object]], Awaitable[tuple[object, BaseException | None]]],
        running: Callable[[asyncio.Task[Any] | None], None],
    ) -> object:
        """Run a handler inside all middleware, in the calling asyncio task.

        `running` receives the task to cancel when the job is cancelled; None while a thread runs.
        """

        async def innermost() -> object:
            if handler_is_async and not self._in_thread:
                return await handler()
            call = partial(_awaiting, handler, asyncio.get_running_loop(), running) if handler_is_async else handler
            context = contextvars.copy_context()
            running(None)
            try:
                result, error = await in_thread(partial(context.run, chained(self._in_thread, job, call)))
            finally:
                running(asyncio.current_task())
            if error is not None:
                raise error
            # A plain function around an async one: if it were not awaited, it would succeed without having run.
            return await result if inspect.isawaitable(result) else result

        result: object = await chained(self._on_loop, job, innermost)()
        return result


async def _contained(call: Callable[[], Awaitable[object]]) -> tuple[object, BaseException | None]:
    # In its own task, SystemExit would end the event loop.
    try:
        return await call(), None
    except BaseException as error:
        return None, error


def chained(middleware: Sequence[Middleware], job: Job, call: Callable[[], Any]) -> Callable[[], Any]:
    """Return a call that goes through all of these."""
    for each in reversed(middleware):
        call = partial(each, job, call)
    return call


def _awaiting(
    handler: Callable[[], Awaitable[object]],
    loop: asyncio.AbstractEventLoop,
    running: Callable[[asyncio.Task[Any] | None], None],
) -> object:
    """Run an async handler on the loop, and block this thread until it ends."""

    async def call() -> object:
        running(asyncio.current_task())
        try:
            return await handler()
        finally:
            running(None)

    try:
        result, error = asyncio.run_coroutine_threadsafe(_contained(call), loop).result()
    except concurrent.futures.CancelledError as cancelled:
        raise asyncio.CancelledError from cancelled
    if error is not None:
        raise error
    return result


def checked(function: Any, what: str) -> Any:
    """Return `function`. Raises ConfigError when it cannot be called."""
    if not callable(function):
        raise ConfigError(f"{what} must be a function, not {function!r}", hint="write it as a decorator, without ()")
    return function
