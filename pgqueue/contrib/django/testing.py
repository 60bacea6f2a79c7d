"""Find Django's tasks in a test, and run them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connections

from pgqueue import testing
from pgqueue.contrib.django.handlers import declared, make_app


def drain(queue: str | Sequence[str] | None = None, *, using: str = "default", **options: Any) -> testing.Drained:
    """Run due tasks of Django's in this thread and in the open transaction, such as that of a TestCase.

    Tasks are found as a worker finds them. `using` is the database of the queue; the rest is as for
    `pgqueue.testing.drain`, such as scheduled=True.

        class OrderTest(TestCase):
            def test_an_order_sends_a_receipt(self):
                place_order("a@b.c")
                self.assertEqual(drain().succeeded, 1)
    """
    return testing.drain(connections[using], make_app(), queue, **options)


def enqueued(task: Any = None, *, using: str = "default", **wanted: Any) -> list[testing.EnqueuedJob]:
    """Return the tasks that wait and fit, oldest first: see `pgqueue.testing.enqueued`.

    `task` is a task or its path. `args` fit by the names of its function, or, as a list, by their order, however the
    task was enqueued. `using` is the database of the queue.
    """
    found: list[testing.EnqueuedJob] = testing.enqueued(connections[using], _of(task), **wanted)
    return found


def assert_enqueued(
    task: Any = None, *, using: str = "default", count: int | None = None, **wanted: Any
) -> testing.EnqueuedJob | None:
    """Return the oldest task that waits and fits, as `enqueued` has it. AssertionError for none.

    With `count`, exactly that many must fit. The error lists the existing jobs, and why the nearest does not fit.

        assert_enqueued(send_receipt, args={"order_id": 1})
    """
    found: testing.EnqueuedJob | None = testing.assert_enqueued(connections[using], _of(task), count=count, **wanted)
    return found


def refute_enqueued(task: Any = None, *, using: str = "default", **wanted: Any) -> None:
    """Raise AssertionError when a task waits that fits, as `enqueued` has it."""
    testing.refute_enqueued(connections[using], _of(task), **wanted)


def _of(task: Any) -> Any:
    return declared.get(task, task) if isinstance(task, str) else task
