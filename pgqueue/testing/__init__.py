"""Helpers for tests of applications that use the queue, on the real SQL.

    from pgqueue.testing import assert_enqueued, drain

    def test_an_order_sends_a_receipt(connection):
        place_order(connection, "a@b.c")
        assert_enqueued(connection, send_receipt, args={"to": "a@b.c"})
        assert drain(connection, app).succeeded == 1      # in this transaction, in this thread

With pytest there are fixtures that bring a database: see docs/how-to/testing.md.
"""

from pgqueue.testing.clock import Clock, clock_sql
from pgqueue.testing.drain import Drained, declare, declare_async, drain, drain_async
from pgqueue.testing.enqueued import EnqueuedJob, approx, assert_enqueued, enqueued, refute_enqueued
from pgqueue.testing.inline import inline
from pgqueue.testing.perform import Performed, perform, perform_async
from pgqueue.testing.worker import RunningWorker

__all__ = [
    "Clock",
    "Drained",
    "EnqueuedJob",
    "Performed",
    "RunningWorker",
    "approx",
    "assert_enqueued",
    "clock_sql",
    "declare",
    "declare_async",
    "drain",
    "drain_async",
    "enqueued",
    "inline",
    "perform",
    "perform_async",
    "refute_enqueued",
]
