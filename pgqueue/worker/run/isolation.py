"""A context and an asyncio task for each job: what a handler leaves on them ends with its job."""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# The name of the task of a job.
NAME = "pgqueue-job"


class Isolation:
    """Makes the contexts and tasks of jobs, from the context in which this object is made.

    It keeps the settings of the event loop as well, which all jobs share.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # To ask for the running one costs a system call in Python 3.11.
        self.loop = loop
        self._on_exception: Any = None
        self._task_factory: Any = None
        # Tasks of jobs that have not ended.
        self._running = 0
        self._call_soon = loop.call_soon
        # While a task is made, its context, and then its first step.
        self._starting: contextvars.Context | None = None
        self._first_step: Callable[[], object] = _nothing
        self._base, self._numbers = _without_numbers(contextvars.copy_context())

    def context(self) -> contextvars.Context:
        """Return a new context for one job."""
        context = self._base.copy()
        if self._numbers is not None:
            context.run(decimal.setcontext, self._numbers.copy())
        return context

    async def run(
        self, coroutine: Coroutine[Any, Any, None], context: contextvars.Context | None
    ) -> tuple[asyncio.Task[None], contextvars.Context, asyncio.CancelledError | None]:
        """Run a coroutine in its own task, and undo what it leaves on the loop; returns the task when it has ended.

        It runs in this context, or in a new one, which is returned as well. With the task end timers that cancel it,
        timeouts that were not closed, and its done callbacks. A cancellation, of the task or of what waits for it here,
        is returned.
        """
        if not self._running:
            # While no handler runs that could have changed them.
            self._on_exception, self._task_factory = self.loop.get_exception_handler(), self.loop.get_task_factory()
        self._running += 1
        cancelled: asyncio.CancelledError | None = None
        if context is None:
            context = self.context()
        try:
            task = self._start(coroutine, context)
            if not task.done():
                try:
                    await task
                except asyncio.CancelledError as error:
                    cancelled = error
        finally:
            self._running -= 1
        self._restore_loop()
        return task, context, cancelled

    def _start(self, coroutine: Coroutine[Any, Any, None], context: contextvars.Context) -> asyncio.Task[None]:
        """Run a coroutine in its own task, at once until it first waits: so a quick one costs no turn of the loop."""
        loop = self.loop
        if sys.version_info >= (3, 12):
            return asyncio.Task(coroutine, loop=loop, name=NAME, context=context, eager_start=True)
        task, first_step = self._make_task(coroutine, context)
        caller = asyncio.current_task(loop)
        assert caller is not None
        asyncio._leave_task(loop, caller)
        try:
            context.run(first_step)
        finally:
            asyncio._enter_task(loop, caller)
        return task

    def _restore_loop(self) -> None:
        """Undo what a handler has set on the loop."""
        if self.loop.get_exception_handler() is not self._on_exception:
            self.loop.set_exception_handler(self._on_exception)
        if self.loop.get_task_factory() is not self._task_factory:
            self.loop.set_task_factory(self._task_factory)

    def _make_task(
        self, coroutine: Coroutine[Any, Any, T], context: contextvars.Context
    ) -> tuple[asyncio.Task[T], Callable[[], object]]:
        """Return a task, and its first step: the caller makes it, in `context` and while no task is current.

        A new task asks the loop for its first step, by the method `call_soon`. An attribute of the loop goes before its
        method, also of a loop that is written in C.
        """
        attributes = vars(self.loop)
        self._call_soon = self.loop.call_soon
        kept = attributes.get("call_soon")
        self._starting = context
        attributes["call_soon"] = self._keep_first_step
        try:
            task = asyncio.Task(coroutine, loop=self.loop, name=NAME, context=context)
        finally:
            del attributes["call_soon"]
            if kept is not None:
                attributes["call_soon"] = kept
            self._starting = None
        # Not kept: it refers to this job.
        first_step, self._first_step = self._first_step, _nothing
        return task, first_step

    def _keep_first_step(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle | None:
        if context is self._starting:
            self._first_step = callback
            return None
        # A garbage collection runs finalizers just here, and one of them calls this.
        return self._call_soon(callback, *args, context=context)


def _nothing() -> None:
    pass


def _without_numbers(context: contextvars.Context) -> tuple[contextvars.Context, decimal.Context | None]:
    """Return a context without decimal's, and that one where it is not decimal's default.

    Code changes it in place, which copies of the context would share. Without one, decimal makes it from its default.
    """
    base = contextvars.Context()
    numbers = None
    for variable, value in context.items():
        if isinstance(value, decimal.Context):
            numbers = value.copy()
            numbers.clear_flags()
        else:
            base.run(variable.set, value)
    return base, None if repr(numbers) == repr(decimal.DefaultContext) else numbers
