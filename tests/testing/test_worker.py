"""pgqueue.testing.RunningWorker: a real worker that runs on the event loop of a test."""

from __future__ import annotations

import asyncio
import signal

import pytest

from pgqueue import App
from pgqueue.errors import SchemaError
from pgqueue.testing import RunningWorker
from tests.calls import state
from tests.databases import Database
from tests.facts import wait_until_async

app = App()


@app.task
async def fine() -> None: ...


@app.task(max_attempts=1)
def fails() -> None:
    raise LookupError("no such order")


@app.task
async def hangs() -> None:
    await asyncio.sleep(60)


async def test_the_worker_runs_committed_jobs(database: Database) -> None:
    conn = database.connect()
    async with RunningWorker(app, database.dsn) as worker:
        assert await worker.until(fine.enqueue(conn), timeout=240) == "succeeded"


async def test_what_a_handler_raises_reaches_the_test_that_waits_for_its_job(database: Database) -> None:
    conn = database.connect()
    async with RunningWorker(app, database.dsn) as worker:
        with pytest.raises(LookupError, match="no such order"):
            await worker.until(fails.enqueue(conn), timeout=240)


async def test_what_a_handler_raises_is_raised_at_the_end_of_the_block(database: Database) -> None:
    conn = database.connect()

    async def block() -> None:
        async with RunningWorker(app, database.dsn) as worker:
            job_id = fails.enqueue(conn)
            await wait_until_async(lambda: job_id in worker.errors)

    with pytest.raises(LookupError, match="no such order"):
        await block()
    # The worker replaced it for the length of the block.
    assert app.error_formatter is None


async def test_a_job_that_is_awaited_as_dead_raises_nothing(database: Database) -> None:
    conn = database.connect()
    async with RunningWorker(app, database.dsn) as worker:
        assert await worker.until(fails.enqueue(conn), "dead", timeout=240) == "dead"


async def test_another_end_than_the_one_waited_for_is_an_error(database: Database) -> None:
    conn = database.connect()
    async with RunningWorker(app, database.dsn) as worker:
        with pytest.raises(AssertionError, match="is succeeded, not dead"):
            await worker.until(fine.enqueue(conn), "dead", timeout=240)


async def test_a_job_that_does_not_end_is_named(database: Database) -> None:
    conn = database.connect()
    async with RunningWorker(app, database.dsn, shutdown_timeout=0.1) as worker:
        job_id = hangs.enqueue(conn)
        await wait_until_async(lambda: state(conn, job_id) == "executing")
        with pytest.raises(TimeoutError, match=r"job \d+ is executing after 0.2 s, not succeeded"):
            await worker.until(job_id, timeout=0.2)


async def test_the_worker_leaves_the_signals_alone(database: Database) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    async with RunningWorker(app, database.dsn):
        assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before


async def test_a_worker_that_cannot_start_says_why(empty_database: Database) -> None:
    with pytest.raises(SchemaError):
        async with RunningWorker(app, empty_database.dsn):
            pass
