"""A context and an asyncio task for each job: what a handler leaves on them ends with its job."""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_NAME = "pgqueue-job"

# Whether a task runs at once until it first waits: most handlers that are quick end before that.
STARTS_AT_ONCE = sys.version_info >= (3, 12)


class Isolation:
    """Makes the contexts and tasks of jobs, from the context in which this object is made.

    It keeps the settings of the event loop as well, which all jobs share.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # To ask for the running one costs a system call in Python 3.11.
        self.loop = loop
        self._on_exception: Any = None
        self._task_factory: Any = None
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

    def start(self, coroutine: Coroutine[Any, Any, T], context: contextvars.Context) -> asyncio.Task[T]:
        """Run a coroutine in its own task."""
        if sys.version_info >= (3, 12):
            return asyncio.Task(coroutine, loop=self.loop, name=_NAME, context=context, eager_start=True)
        return asyncio.Task(coroutine, loop=self.loop, name=_NAME, context=context)


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
