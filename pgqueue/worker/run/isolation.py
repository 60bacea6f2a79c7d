"""A context and an asyncio task for each job: what a handler leaves on them ends with its job."""

from __future__ import annotations

import asyncio
import contextvars
import decimal
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

    def note_loop(self) -> None:
        """Note the settings of the loop. To be called while no handler runs that could have changed them."""
        self._on_exception, self._task_factory = self.loop.get_exception_handler(), self.loop.get_task_factory()

    def restore_loop(self) -> None:
        """Undo what a handler has set on the loop."""
        if self.loop.get_exception_handler() is not self._on_exception:
            self.loop.set_exception_handler(self._on_exception)
        if self.loop.get_task_factory() is not self._task_factory:
            self.loop.set_task_factory(self._task_factory)

    def make_task(
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


def restore_thread() -> None:
    """Undo what a sync handler has set on its thread: the tasks of an event loop would run on in the next job's."""
    try:  # noqa: SIM105 - suppress() costs more than the call.
        asyncio.set_event_loop(None)
    except RuntimeError:
        pass
