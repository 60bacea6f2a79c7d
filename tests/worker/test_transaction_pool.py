"""`job.transaction()` takes its connection from a pool, and brings it back as it was."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.rows import dict_row

from pgqueue import App, Job
from tests.calls import enqueue, value
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import done, working

KINDS = pytest.mark.parametrize("kind", ["async", "sync"])


def declare(app: App, kind: str, pids: list[int], inside: Any = lambda connection: None) -> None:
    """Declare task "t": it notes the session that its transaction is in, and calls `inside` with the connection."""

    def synchronous(job: Job) -> None:
        with job.transaction() as connection:
            pids.append(connection.info.backend_pid)
            inside(connection)

    async def asynchronous(job: Job) -> None:
        async with job.transaction() as connection:
            pids.append(connection.info.backend_pid)
            inside(connection)

    app.task(name="t")(asynchronous if kind == "async" else synchronous)


def sessions(conn: psycopg.Connection, pids: list[int]) -> int:
    found = value(conn, "select count(*) from pg_stat_activity where pid = any (%s)", pids)
    assert isinstance(found, int)
    return found


@KINDS
async def test_jobs_share_as_many_connections_as_run_at_once(
    kind: str, database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    pids: list[int] = []
    names: list[Any] = []
    declare(app, kind, pids, lambda connection: names.append(connection.info.get_parameters()["application_name"]))
    for _ in range(60):
        enqueue(conn)
    async with working(app, database.dsn, name="pooled", concurrency=3) as worker:
        await wait_until_async(lambda: worker.completed == 60)
        assert len(pids) == 60
        assert len(set(pids)) <= 3
        assert set(names) == {"pgqueue pooled"}
    await wait_until_async(lambda: sessions(conn, pids) == 0)


@KINDS
async def test_a_connection_that_broke_in_the_pool_costs_no_attempt(
    kind: str, database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    pids: list[int] = []
    declare(app, kind, pids)
    async with working(app, database.dsn, concurrency=1) as worker:
        for round_ in range(1, 4):
            enqueue(conn)
            await wait_until_async(lambda expected=round_: worker.completed == expected)
            assert value(conn, "select pg_terminate_backend(%s, 5000)", pids[-1])
        assert worker.failed == 0
    assert len(set(pids)) == 3


@KINDS
async def test_what_a_handler_set_on_a_connection_is_gone_for_the_next(
    kind: str, database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    pids: list[int] = []
    seen: list[tuple[Any, ...]] = []

    def look_and_change(connection: Any) -> None:
        seen.append((connection.row_factory, connection.prepare_threshold))
        connection.row_factory = dict_row
        connection.prepare_threshold = 1

    declare(app, kind, pids, look_and_change)
    async with working(app, database.dsn, concurrency=1) as worker:
        for round_ in (1, 2):
            enqueue(conn)
            await wait_until_async(lambda expected=round_: worker.completed == expected)
    assert len(set(pids)) == 1
    assert seen[0] == seen[1]


async def test_a_handler_that_is_cut_off_gives_its_connection_back(
    database: Database, conn: psycopg.Connection
) -> None:
    """By its timeout, again and again, in the middle of a statement; two connections are all there are."""
    app = App()
    pids: list[int] = []

    @app.task(timeout="200 ms", max_attempts=1)
    async def hang(job: Job) -> None:
        async with job.transaction() as connection:
            pids.append(connection.info.backend_pid)
            await connection.execute("select pg_sleep(600)")

    @app.task
    async def quick(job: Job) -> None:
        async with job.transaction():
            await asyncio.sleep(0)

    hanging = [enqueue(conn, "hang") for _ in range(6)]
    async with working(app, database.dsn, concurrency=2):
        assert await done(conn, *hanging) == ["dead"] * 6
        assert await done(conn, enqueue(conn, "quick")) == ["succeeded"]
    await wait_until_async(lambda: sessions(conn, pids) == 0)


async def test_settings_of_the_transaction_do_not_outlive_it(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    seen: list[Any] = []

    @app.task
    def t(job: Job) -> None:
        with job.transaction() as connection:
            seen.append((connection.isolation_level, connection.execute("show lock_timeout").fetchone()))
            connection.execute("set local lock_timeout = '7s'")

        connection.isolation_level = IsolationLevel.SERIALIZABLE

    async with working(app, database.dsn, concurrency=1) as worker:
        for round_ in (1, 2):
            enqueue(conn)
            await wait_until_async(lambda expected=round_: worker.completed == expected)
    assert seen[0] == seen[1]
