"""Run handlers as a worker does, but in the calling thread: the same arguments, middleware, signals and retry rules."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from pgqueue.app import App
from pgqueue.errors import ConfigError
from pgqueue.hooks import log as hooks_log
from pgqueue.job import Job, Surroundings
from pgqueue.middleware import Around, chained, is_async
from pgqueue.tasks import Task
from pgqueue.testing.access import stepped
from pgqueue.worker.hold.held import Held
from pgqueue.worker.hold.jobs import Jobs
from pgqueue.worker.hold.outbox import ended
from pgqueue.worker.run.handlers import Handlers
from pgqueue.worker.run.threads import Outcome, contained

T = TypeVar("T")


class Attempts:
    """Runs one attempt after another. After `attempt`, `error` is what the handler raised, or None.

    A sync handler runs in this thread, where no event loop runs meanwhile unless the caller runs one. An async handler
    runs on the caller's loop, or on one of its own: `attempt` is a coroutine that never suspends where there is none.
    """

    def __init__(self, app: App, surroundings: Surroundings, *, on_loop: bool, uses_asgiref: bool = False) -> None:
        self.value: object = None
        # Called with "started" before each handler.
        self.on_event: Callable[[str, Held], None] | None = None
        self._app = app
        self._handlers = Handlers(app, 1, Jobs(app, surroundings, here=True), here=True)
        self._middleware = app.around_execution()
        self._around = Around(self._middleware)
        self._on_loop_of_caller = on_loop
        self._uses_asgiref = uses_asgiref
        self._runner: asyncio.Runner | None = None

    @property
    def error(self) -> BaseException | None:
        """What the handler of the last attempt raised."""
        return self._handlers.raised

    def close(self) -> None:
        """Close the event loop that async handlers had, if there was one."""
        if self._runner is not None:
            self._runner.close()

    async def attempt(self, held: Held, task: Task[Any, Any]) -> None:
        """Run a handler to its end: the attempt of `held`, and those of its members, then have how it ended."""
        self._handlers.raised = self.value = None
        self._handlers.leave_loop()
        held.attempt.started = time.monotonic()
        async_middleware = any(map(is_async, self._middleware))
        with self._timeout(held, task):
            if self._on_loop_of_caller:
                await self._as_task(held, task)
            elif task.is_async or async_middleware:
                self.run_on_loop(partial(self._as_task, held, task))
            else:
                context = contextvars.copy_context()
                context.run(stepped, self._run(held, task))
        _raise_tests_own(self.error)

    def run_on_loop(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on its own event loop, in this thread."""
        _refuse_running_loop()
        if self._uses_asgiref:
            # Then Django's async ORM comes back to this thread, and so to this transaction.
            from asgiref.sync import async_to_sync  # noqa: PLC0415

            return async_to_sync(call)()
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(call())

    async def call_hooks(self, kind: str, argument: object) -> None:
        """Call the hooks of the App for a dead job: plain ones here, async ones on a loop."""
        for function in self._app.hooks_for(kind):
            try:
                if not is_async(function):
                    function(argument)
                elif self._on_loop_of_caller:
                    await function(argument)
                else:
                    self.run_on_loop(partial(function, argument))
            except Exception:
                hooks_log.exception("a hook for %s raised", kind)

    def job_of(self, held: Held) -> Job:
        """Return the job as the handler has it."""
        return self._handlers.job_of(held)

    async def _run(self, held: Held, task: Task[Any, Any]) -> None:
        ended(held, await self._handlers.run(held, task, await self._call(held, task)))

    async def _as_task(self, held: Held, task: Task[Any, Any]) -> None:
        # Its own task: a timeout cancels it, and not the test.
        await asyncio.create_task(self._run(held, task), name="pgqueue-attempt", context=contextvars.copy_context())
        test = asyncio.current_task()
        if test is not None and test.cancelling():
            raise asyncio.CancelledError

    async def _call(self, held: Held, task: Task[Any, Any]) -> Outcome:
        # The attempt has its context and its asyncio task already.
        try:
            self._handlers.enter(held)
            if self.on_event is not None:
                self.on_event("started", held)
            self.value = await self._value(held, task)
        except BaseException as error:
            return None, error
        return self.value, None

    async def _value(self, held: Held, task: Task[Any, Any]) -> object:
        handler = partial(task.function, **self._handlers.arguments_of(held, task))
        if any(map(is_async, self._middleware)) or (self._middleware and task.is_async):
            in_thread = self._handlers.in_thread if task.is_async else _here
            run_in = held.attempt.run_in
            run_in(asyncio.current_task())
            try:
                return await self._around.run(
                    self.job_of(held), handler, task.is_async, partial(in_thread, held), run_in
                )
            finally:
                run_in(None)
        call: Callable[[], Any] = chained(self._middleware, self.job_of(held), handler) if self._middleware else handler
        result = call()
        if not isinstance(result, Awaitable):
            return result
        waiting = partial(self._waited, held, result)
        return await waiting() if loop_runs() else self.run_on_loop(waiting)

    async def _waited(self, held: Held, call: Awaitable[object]) -> object:
        held.attempt.run_in(asyncio.current_task())
        try:
            return await call
        finally:
            held.attempt.run_in(None)

    @contextmanager
    def _timeout(self, held: Held, task: Task[Any, Any]) -> Iterator[None]:
        if held.timeout is None:
            yield
            return
        loop = asyncio.get_running_loop() if loop_runs() else None

        def pass_() -> None:
            self._timed_out(held)

        timer = threading.Timer(held.timeout, pass_ if loop is None else partial(loop.call_soon_threadsafe, pass_))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _timed_out(self, held: Held) -> None:
        if not held.attempt.ask_to_stop(held.overrun):
            return
        if held.attempt.job is not None:
            held.attempt.job.cancelled.raise_it(held.overrun.reason)
        runner = held.attempt.asyncio_task
        if runner is not None:
            runner.get_loop().call_soon_threadsafe(runner.cancel)


def _raise_tests_own(error: BaseException | None) -> None:
    # Ctrl-C, or an outcome of pytest such as skip: not the handler's failure.
    if error is not None and not isinstance(error, Exception | SystemExit | asyncio.CancelledError):
        raise error


async def _here(_held: Held, call: Callable[[], object]) -> Outcome:
    return contained(call)


def loop_runs() -> bool:
    """Return whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _refuse_running_loop() -> None:
    if loop_runs():
        raise ConfigError(
            "an async handler, or async middleware, cannot run here: this thread's event loop runs already",
            hint="await drain_async(...) or perform_async(...) instead",
        )


def uses_asgiref(connection: object) -> bool:
    """Return whether async code on this connection goes through asgiref, as Django's does."""
    return "asgiref" in sys.modules and any(kind.__module__.startswith("django.") for kind in type(connection).__mro__)
