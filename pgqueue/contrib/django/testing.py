"""Run Django's tasks in a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connections

from pgqueue import testing
from pgqueue.contrib.django.handlers import make_app


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
