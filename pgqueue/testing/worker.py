"""A real worker beside a test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import psycopg

from pgqueue import worker
from pgqueue.app import App
from pgqueue.config import WorkerConfig
from pgqueue.db import operate
from pgqueue.db.call import perform_async
from pgqueue.job import current_job
from pgqueue.worker.run.failure import describe

_FINAL = ("succeeded", "dead", "cancelled")


class RunningWorker:
    """A worker on the test's event loop, for the length of an `async with` block: the real one, without signals.

    It polls every 10 ms, so nothing waits for a NOTIFY. `settings` are those of `WorkerConfig`. Exceptions of handlers
    come out of `until`, or at the end of the block if no `until` waited for that job; `raise_errors=False` keeps it in
    `errors`, by job. The block begins when the worker serves; with `wait_for_start=False` at once, for a test in which
    the database is away at first.

        async with RunningWorker(app, dsn) as worker:
            job_id = task.enqueue(connection, "a@b.c")
            await worker.until(job_id, "succeeded")
    """

    def __init__(
        self, app: App, dsn: str, *, raise_errors: bool = True, wait_for_start: bool = True, **settings: Any
    ) -> None:
        self.errors: dict[int, BaseException] = {}
        self._app = app
        self._dsn = dsn
        self._raise_errors = raise_errors
        self._wait_for_start = wait_for_start
        self._seen: set[int] = set()
        # Opened by the first `until`, because a test sees most facts on its own connection.
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._formatter = app.error_formatter
        # Not as long as by default: a test that fails leaves handlers behind.
        defaults = {"poll_interval": 0.01, "shutdown_timeout": 3.0}
        self.worker = worker.Worker(app, dsn, WorkerConfig(**{**defaults, **settings}))

    async def __aenter__(self) -> RunningWorker:
        self._app.error_formatter = self._note_error
        self._running = asyncio.create_task(self.worker.run(), name="pgqueue-test-worker")
        if not self._wait_for_start:
            return self
        starting = asyncio.create_task(self.worker.started.wait())
        await asyncio.wait([self._running, starting], return_when=asyncio.FIRST_COMPLETED)
        starting.cancel()
        if self._running.done():
            await self._close()
            # It could not start.
            self._running.result()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.worker.stop()
        try:
            async with asyncio.timeout(30):
                await self._running
        finally:
            await self._close()
        unseen = [raised for job_id, raised in self.errors.items() if job_id not in self._seen]
        if error is None and unseen and self._raise_errors:
            raise unseen[0]

    async def until(self, job_id: int, state: str = "succeeded", timeout: float = 5) -> str:  # noqa: ASYNC109
        """Wait until a job is in a state, and return that.

        If it ends in another one, or fails unexpectedly, raises the exception of its handler, else AssertionError.
        After `timeout` seconds, TimeoutError.
        """
        self._seen.add(job_id)
        if self._connection is None:
            self._connection = await psycopg.AsyncConnection.connect(self._dsn, autocommit=True)
        deadline = time.monotonic() + timeout
        while True:
            found = await perform_async(self._connection, operate.outcome(job_id))
            now = None if found is None else str(found[0])
            if now == state:
                return state
            is_over = now in _FINAL or (state == "succeeded" and now == "failed")
            if is_over and job_id in self.errors and self._raise_errors:
                raise self.errors[job_id]
            if now in _FINAL:
                raise AssertionError(f"job {job_id} is {now}, not {state}: {found and found[2]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"job {job_id} is {now or 'nowhere'} after {timeout:g} s, not {state}")
            await asyncio.sleep(0.01)

    async def _close(self) -> None:
        self._app.error_formatter = self._formatter
        if self._connection is not None:
            await self._connection.close()

    def _note_error(self, error: BaseException) -> Mapping[str, object]:
        # Called in the context of the attempt.
        self.errors[current_job().id] = error
        return describe(error) if self._formatter is None else self._formatter(error)
