"""What a handler says is kept with its job, and where it stands can be asked for."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import psycopg
import pytest

from pgqueue import App, Job
from pgqueue.worker.link.connection import Link
from pgqueue.worker.link.outage import Outage
from pgqueue.worker.run.log_lines import LogLines
from tests.calls import call, column, enqueue, table, value
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import done, working


async def test_log_lines_are_kept_by_job_and_attempt(database: Database, conn: psycopg.Connection) -> None:
    app = App()

    @app.task(max_attempts=2, retry_delay="0 s", retry_policy="fixed")
    async def charge(job: Job) -> None:
        job.log("charge %d cents", 200)
        job.log.warning("attempt %s", job.attempt)
        if job.attempt == 1:
            raise ValueError("no")

    @app.task
    def send(job: Job) -> None:
        job.log.debug("too much")
        thread = threading.Thread(target=lambda: job.log.error("a\0b"))
        thread.start()
        thread.join()

    async with working(app, database.dsn):
        first, second = enqueue(conn, "charge"), enqueue(conn, "send")
        await done(conn, first, second)
        await wait_until_async(lambda: len(table(conn, "job_log", first)) == 4)
        await wait_until_async(lambda: len(table(conn, "job_log", second)) == 1)
    rows = table(conn, "job_log", first)
    assert [(row.attempt, row.level, row.line) for row in rows] == [
        (1, "INFO", "charge 200 cents"), (1, "WARNING", "attempt 1"),
        (2, "INFO", "charge 200 cents"), (2, "WARNING", "attempt 2"),
    ]  # fmt: skip
    assert [row.line for row in table(conn, "job_log", first, rows[1].n)] == ["charge 200 cents", "attempt 2"]
    assert [(row.level, row.line) for row in table(conn, "job_log", second)] == [("ERROR", "a\ufffdb")]


async def test_lines_that_are_being_stored_when_the_worker_ends_go_with_the_last_ones(
    database: Database, conn: psycopg.Connection
) -> None:
    link = Link(database.dsn, Outage(database.dsn))
    lines = LogLines(link, ())
    job_id = enqueue(conn)
    lines.keep_of(job_id, 1, "INFO", "one")
    lines.keep_of(job_id, 1, "INFO", "two")
    async with link._turn:
        storing = asyncio.create_task(lines.store())
        await wait_until_async(lambda: not lines._lines)
        lines.keep_of(job_id, 1, "INFO", "three")
        storing.cancel()
        await asyncio.wait({storing})
    await lines.close()
    await link.close()
    assert [row.line for row in table(conn, "job_log", job_id)] == ["one", "two", "three"]


async def test_lines_that_are_left_when_the_worker_stops_are_stored(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task
    async def send(job: Job) -> None:
        for n in range(1200):
            job.log("line %d", n)

    async with working(app, database.dsn):
        job_id = enqueue(conn, "send")
        await done(conn, job_id)
    lines = [row.line for row in table(conn, "job_log", job_id, max_lines=2000)]
    assert lines[:1000] == [f"line {n}" for n in range(1000)]
    assert lines[1000:] == ["200 more lines were not kept"]


async def test_a_chosen_logger_is_kept_with_the_job_that_runs(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    log = logging.getLogger("shop.mail")

    @app.task
    async def send() -> None:
        log.warning("sent to %s", "a@b.c")
        logging.getLogger("shop.other").warning("elsewhere")

    async with working(app, database.dsn, keep_log=("shop.mail",)):
        log.warning("no job runs here")
        job_id = enqueue(conn, "send")
        await done(conn, job_id)
    assert [row.line for row in table(conn, "job_log", job_id)] == ["sent to a@b.c"]
    assert value(conn, "select count(*) from pgqueue.job_logs") == 1
    assert log.handlers == []


async def test_the_stack_of_a_handler_that_hangs_is_asked_for(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    go = asyncio.Event()
    release = threading.Event()
    reached: set[str] = set()

    async def wait_for_the_provider() -> None:
        reached.add("async")
        await go.wait()

    @app.task
    async def hangs() -> None:
        await wait_for_the_provider()

    @app.task
    def hangs_in_a_thread() -> None:
        reached.add("sync")
        release.wait(60)

    async with working(app, database.dsn, name="w"):
        jobs = [enqueue(conn, "hangs"), enqueue(conn, "hangs_in_a_thread")]
        await wait_until_async(lambda: len(reached) == 2)
        for job_id, line in zip(jobs, ("await go.wait()", "release.wait(60)"), strict=True):
            assert call(conn, "ask_stack", job_id) == "w"
            await wait_until_async(lambda job_id=job_id: table(conn, "job_log", job_id))
            rows = table(conn, "job_log", job_id)
            assert {row.level for row in rows} == {"STACK"}
            assert any(line in row.line for row in rows)
        go.set()
        release.set()
        await done(conn, *jobs)
    assert call(conn, "ask_stack", jobs[0]) is None
    assert column(conn, "job_log", 999) == []


async def test_each_member_of_a_batch_says_where_the_handler_stands(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    go = asyncio.Event()

    @app.task(accumulate=True, batch_size=2)
    async def hangs(payloads: dict[str, Any]) -> None:
        await go.wait()

    call(conn, "declare_task", "hangs", accumulate=True, batch_size=2)
    jobs = [enqueue(conn, "hangs", key=key) for key in "ab"]
    async with working(app, database.dsn, name="w"):
        await wait_until_async(
            lambda: value(conn, "select count(*) from pgqueue.jobs where started = reservation") == 2
        )
        for job_id in jobs:
            assert call(conn, "ask_stack", job_id) == "w"
            await wait_until_async(lambda job_id=job_id: table(conn, "job_log", job_id))
            rows = table(conn, "job_log", job_id)
            assert {(row.attempt, row.level) for row in rows} == {(1, "STACK")}
            assert any("await go.wait()" in row.line for row in rows)
        go.set()
        await done(conn, *jobs)


class Detached:
    def __repr__(self) -> str:
        raise RuntimeError("no session")


@pytest.mark.parametrize("given", [("%r", Detached()), ("%d", float("inf")), ("%s %s", 1), (Detached(),)])
async def test_a_line_that_cannot_be_written_fails_no_job(
    database: Database, conn: psycopg.Connection, given: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As without pytest: a handler of logging reports what it cannot write, and raises nothing.
    monkeypatch.setattr(logging.getLogger("pgqueue"), "propagate", False)
    monkeypatch.setattr(logging, "raiseExceptions", False)
    app = App()

    @app.task(max_attempts=1)
    async def t(job: Job) -> None:
        job.log(*given)

    async with working(app, database.dsn):
        assert await done(conn, enqueue(conn)) == ["succeeded"]
