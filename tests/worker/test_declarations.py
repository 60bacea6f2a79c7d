"""What the code says of a task, and what an operator says against it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pgqueue import App, current_job
from pgqueue.config import WorkerConfig
from pgqueue.errors import InvalidArgument
from pgqueue.worker import Worker
from pgqueue.worker.presence.identity import Identity
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
            await wait_until_async(lambda: value(conn, "select count(*) from pgqueue.heartbeats") > 0)

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


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"timezone": "Mars/Olympus"}, "schedule t: timezone is 'Mars/Olympus': "),
        ({"jitter": "-1 s"}, "schedule t: jitter is '-1 s': "),
        ({"catch_up": "some"}, "schedule t: catch_up is 'some': "),
    ],
)
async def test_what_the_database_refuses_of_a_schedule_names_it_and_the_option(
    schedule: dict[str, Any], expected: str, database: Database
) -> None:
    app = App()

    @app.schedule("0 3 * * *", **schedule)
    @app.task
    async def t() -> None: ...

    with pytest.raises(InvalidArgument) as refused:
        await Worker(app, database.dsn, WorkerConfig()).run()
    assert str(refused.value).startswith(f"the database refuses {expected}")


async def test_what_the_database_refuses_of_a_task_names_it_and_the_option(
    database: Database, conn: psycopg.Connection
) -> None:
    # Stricter than the code knows, as a later release may be.
    conn.execute("alter table pgqueue.tasks add constraint at_most_a_day check (declared_timeout <= '1 day')")
    with pytest.raises(InvalidArgument) as refused:
        await Worker(app_with(timeout="2 days"), database.dsn, WorkerConfig()).run()
    assert "the database refuses task t" in str(refused.value)
    conn.execute("alter table pgqueue.tasks drop constraint at_most_a_day")
    conn.execute("alter table pgqueue.tasks add constraint declared_timeout_check check (declared_timeout <= '1 day')")
    with pytest.raises(InvalidArgument) as refused:
        await Worker(app_with(timeout="2 days"), database.dsn, WorkerConfig()).run()
    assert str(refused.value).startswith("the database refuses task t: timeout is '2 days': ")


async def test_jobs_under_a_former_name_run_and_the_worker_reports_both_names(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    seen: list[str] = []

    @app.task(aliases=["old"], store_result=True)
    async def new(n: int) -> None:
        seen.append(f"{current_job().task} {n}")

    old_id, new_id = enqueue(conn, "old", {"n": 1}), enqueue(conn, "new", {"n": 2})
    async with working(app, database.dsn):
        assert await done(conn, old_id, new_id) == ["succeeded", "succeeded"]
        assert value(conn, "select info -> 'tasks' from pgqueue.workers") == ["new", "old"]
    assert sorted(seen) == ["new 2", "old 1"]


def test_a_worker_of_very_many_tasks_names_none() -> None:
    assert Identity(WorkerConfig(), tasks=[f"t{n}" for n in range(500)]).info()["tasks"]
    assert "tasks" not in Identity(WorkerConfig(), tasks=[f"t{n}" for n in range(501)]).info()
    assert "tasks" not in Identity(WorkerConfig()).info()
