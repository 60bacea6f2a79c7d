"""What the code says of a task, and what an operator says against it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pgqueue import App, InvalidArgument
from pgqueue.config import WorkerConfig
from pgqueue.worker import Worker
from tests.calls import enqueue, job, value
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import done, working


def app_with(**options: Any) -> App:
    app = App()

    @app.task(name="t", **options)
    async def fails() -> None:
        raise LookupError

    return app


async def test_declared_options_are_written_at_start_and_only_when_they_change(
    database: Database, conn: psycopg.Connection
) -> None:
    def row_version() -> str:
        return str(value(conn, "select xmin || ' ' || ctid from pgqueue.tasks where name = 't'"))

    async def start(app: App) -> None:
        async with working(app, database.dsn):
            await wait_until_async(lambda: value(conn, "select count(*) from pgqueue.beats") > 0)

    await start(app_with(queue="mail", max_attempts=4, retry_delay=timedelta(minutes=2), retention_dead="7 days"))
    declared = conn.execute(
        "select declared_queue, declared_max_attempts, declared_retry_delay, declared_retention_dead,"
        " declared_priority, queue, max_attempts from pgqueue.tasks where name = 't'"
    ).fetchall()
    assert declared == [("mail", 4, timedelta(minutes=2), timedelta(days=7), None, None, None)]

    before = row_version()
    await start(app_with(queue="mail", max_attempts=4, retry_delay="120 s", retention_dead=timedelta(days=7)))
    assert row_version() == before
    await start(app_with(queue="mail"))
    assert row_version() != before
    assert value(conn, "select declared_max_attempts from pgqueue.tasks where name = 't'") is None


async def test_an_operators_override_wins_and_survives_the_next_start(
    database: Database, conn: psycopg.Connection
) -> None:
    app = app_with(max_attempts=5, queue="declared", retry_delay="1 hour")
    async with working(app, database.dsn):
        await wait_until_async(lambda: value(conn, "select count(*) from pgqueue.tasks") == 1)
    conn.execute("update pgqueue.tasks set max_attempts = 1, queue = 'overridden' where name = 't'")
    async with working(app, database.dsn):
        job_id = enqueue(conn)
        assert await done(conn, job_id) == ["dead"]
    assert (job(conn, job_id).queue, job(conn, job_id).attempts) == ("overridden", 1)


async def test_a_declaration_that_the_queue_refuses_keeps_the_worker_from_starting(database: Database) -> None:
    worker = Worker(app_with(priority=1000), database.dsn, WorkerConfig())
    with pytest.raises(InvalidArgument, match="task 't' is out of range"):
        await worker.run()
