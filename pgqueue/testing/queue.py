"""The helpers of `pgqueue.testing`, bound to one connection and one App."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import psycopg

from pgqueue.app import App
from pgqueue.enqueue import Named
from pgqueue.tasks import Task
from pgqueue.testing.clock import Clock
from pgqueue.testing.drain import Drained, declare, drain
from pgqueue.testing.enqueued import EnqueuedJob, assert_enqueued, enqueued, refute_enqueued
from pgqueue.testing.perform import Performed, perform


class Queue:
    """The value of the fixture `pgqueue_queue`: a connection in a transaction, an App, and helpers bound to both.

    It writes the App's declarations first, so that a task's queue and priority apply from the first enqueue.
    """

    def __init__(self, connection: psycopg.Connection[Any], app: App) -> None:
        self.connection = connection
        self.app = app
        declare(connection, app)

    def clock(self) -> Clock:
        """Return the queue's clock, moved in this transaction alone."""
        return Clock(self.connection)

    def drain(
        self,
        queue: str | Sequence[str] | None = None,
        *,
        limit: int = 1000,
        scheduled: bool = False,
        recursive: bool = True,
        raise_errors: bool = True,
        crash_after: Collection[str] = (),
    ) -> Drained:
        """Run due jobs; see `pgqueue.testing.drain`."""
        return drain(
            self.connection,
            self.app,
            queue,
            limit=limit,
            scheduled=scheduled,
            recursive=recursive,
            raise_errors=raise_errors,
            crash_after=crash_after,
        )

    def enqueued(self, task: str | Named | None = None, **wanted: Any) -> list[EnqueuedJob]:
        """Return the jobs that wait and fit; see `pgqueue.testing.enqueued`."""
        found: list[EnqueuedJob] = enqueued(self.connection, task, **wanted)
        return found

    def assert_enqueued(self, task: str | Named | None = None, *, count: int | None = None, **wanted: Any) -> Any:
        """Return the oldest job that waits and fits; see `pgqueue.testing.assert_enqueued`."""
        return assert_enqueued(self.connection, task, count=count, **wanted)

    def refute_enqueued(self, task: str | Named | None = None, **wanted: Any) -> None:
        """Raise AssertionError when a job waits that fits; see `pgqueue.testing.refute_enqueued`."""
        refute_enqueued(self.connection, task, **wanted)

    def perform(self, task: Task[Any, Any], /, *args: Any, **options: Any) -> Performed:
        """Run one handler with a job that has no row; see `pgqueue.testing.perform`."""
        return perform(task, *args, connection=self.connection, app=self.app, **options)
