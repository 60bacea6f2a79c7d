"""What happens to a worker's connections must not happen to its jobs."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql

from pgqueue import App, Job
from pgqueue.config import WorkerConfig
from pgqueue.errors import ConfigError, InvalidArgument
from pgqueue.worker import Worker
from tests.calls import enqueue, enqueue_many, job, reserve, value
from tests.databases import Cloner, Database
from tests.facts import wait_until_async
from tests.workers import NEVER, done, is_asleep, working


def backends(conn: psycopg.Connection, worker: str) -> list[int]:
    rows = conn.execute(
        "select pid from pg_stat_activity where datname = current_database() and application_name = %s",
        [f"pgqueue {worker}"],
    )
    return [row[0] for row in rows]


def terminate(conn: psycopg.Connection, pids: list[int]) -> None:
    conn.execute("select pg_terminate_backend(pid) from unnest(%s::int[]) pid", [pids])


@pytest.mark.covers("D3", "A10")
async def test_backends_killed_under_load_lose_no_job_and_end_no_worker(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    ran: Counter[int] = Counter()

    @app.task
    async def t(i: int) -> None:
        await asyncio.sleep(0.002)
        ran[i] += 1

    def has_run(enough: int) -> bool:
        return len(ran) > enough

    jobs = enqueue_many(conn, 2000)
    with caplog.at_level(logging.WARNING, "pgqueue"):
        async with working(app, database.dsn, name="w", concurrency=10, lease=5.0):
            for enough in range(200, 1800, 200):
                await wait_until_async(partial(has_run, enough))
                terminate(conn, backends(conn, "w"))
            assert set(await done(conn, *jobs, timeout=60)) == {"succeeded"}
    assert set(ran) == set(range(2000))
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


async def test_jobs_booked_by_a_reserve_whose_reply_was_lost_are_given_back_on_reconnect(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    started: list[int] = []
    go = asyncio.Event()

    @app.task
    async def held(job: Job) -> None:
        started.append(job.id)
        await go.wait()

    @app.task
    async def t() -> None: ...

    mine = enqueue(conn, "held")
    with caplog.at_level(logging.WARNING, "pgqueue"):
        async with working(app, database.dsn, name="w", poll_interval=NEVER, lease=60.0):
            await wait_until_async(lambda: started)
            await wait_until_async(lambda: is_asleep(conn, "w"))
            # As the server would have it: claimed in the worker's name, and the worker never heard of it.
            with conn.transaction():
                conn.execute("set local pgqueue.notify = off")
                enqueue(conn)
                [lost] = reserve(conn, 10, "w", lease="1 hour")
            terminate(conn, backends(conn, "w"))
            # The next claim finds its connection dead. A job that is handed to the worker needs no claim.
            conn.execute("set pgqueue.hand_off = off")
            woken = enqueue(conn)
            assert await done(conn, woken, lost.id) == ["succeeded", "succeeded"]
            assert job(conn, lost.id).attempts == 1
            # What it does hold it was not made to give back.
            go.set()
            assert await done(conn, mine) == ["succeeded"]
            assert started == [mine]
    assert any(f"that it does not hold: [{lost.id}]" in each.getMessage() for each in caplog.records)


async def test_a_listener_that_was_cut_off_listens_again(database: Database, conn: psycopg.Connection) -> None:
    app = App()

    @app.task
    async def t() -> None: ...

    async with working(app, database.dsn, name="w", poll_interval=NEVER):
        await wait_until_async(lambda: is_asleep(conn, "w"))
        [pid] = [
            row[0]
            for row in conn.execute(
                "select pid from pg_stat_activity where datname = current_database() and query ilike 'listen%'"
            )
        ]
        # No notification arrives for this one: a listener that reconnects polls at once.
        terminate(conn, [pid])
        job_id = enqueue(conn)
        assert await done(conn, job_id) == ["succeeded"]
        await wait_until_async(lambda: is_asleep(conn, "w"))
        assert await done(conn, enqueue(conn)) == ["succeeded"]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_a_worker_works_whatever_the_default_isolation_level_is(
    level: str, database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task
    async def t() -> None: ...

    conn.execute(
        sql.SQL("alter database {} set default_transaction_isolation to {}").format(
            sql.Identifier(database.name), sql.Literal(level)
        )
    )
    async with working(app, database.dsn):
        # From a connection that has the default: a wake-up that comes on the common channel.
        producer = database.connect()
        assert await done(conn, *(enqueue(producer) for _ in range(3))) == ["succeeded"] * 3


async def test_a_worker_without_prepared_statements_and_without_listen_works(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task
    async def t(i: int) -> None: ...

    async with working(app, database.dsn, name="w", prepare=False, listen=False, poll_interval=0.1):
        jobs = enqueue_many(conn, 50)
        assert set(await done(conn, *jobs)) == {"succeeded"}
        # Behind PgBouncer the next statement may run on another backend: nothing may be left on this one.
        assert len(backends(conn, "w")) <= 3


async def test_a_worker_that_is_stopped_while_it_starts_leaves_nothing_behind(
    database: Database, conn: psycopg.Connection
) -> None:
    holder = database.session()
    holder.run("begin")
    # Of what a worker does to start, only the claim reads this table.
    holder.run("lock table pgqueue.lanes in access exclusive mode")
    worker = Worker(App(), database.dsn, WorkerConfig(name="w"))
    running = asyncio.create_task(worker.run())
    await wait_until_async(
        lambda: value(
            conn,
            "select bool_or(wait_event_type = 'Lock') from pg_stat_activity"
            " where datname = current_database() and application_name = 'pgqueue w'",
        )
    )
    assert value(conn, "select count(*) from pgqueue.workers") == 1
    worker.stop()
    holder.run("commit")
    assert await asyncio.wait_for(running, 60) is True
    assert value(conn, "select count(*) from pgqueue.workers") == 0
    await wait_until_async(lambda: backends(conn, "w") == [])


async def test_a_worker_whose_settings_are_refused_leaves_nothing_behind(
    database: Database, conn: psycopg.Connection
) -> None:
    worker = Worker(App(), database.dsn, WorkerConfig(name="w", queues=("a", "b"), weights=(3, 0)))
    with pytest.raises(InvalidArgument, match="weights must be between"):
        await worker.run()
    assert value(conn, "select count(*) from pgqueue.workers") == 0
    await wait_until_async(lambda: backends(conn, "w") == [])


async def test_a_worker_that_cannot_listen_where_it_is_to_claims_no_job_before_it_says_so(
    database: Database, conn: psycopg.Connection, cloner: Cloner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqueue.worker.link.listener._ECHO_WITHIN", 0.1)
    app = App()
    ran: list[int] = []

    @app.task
    def t(run: Job) -> None:
        ran.append(run.id)

    job_id = enqueue(conn)
    other = cloner.migrated()
    try:
        with pytest.raises(ConfigError, match="do not arrive"):
            await Worker(app, database.dsn, WorkerConfig(listen_dsn=other.dsn)).run()
    finally:
        cloner.drop(other)
    found = job(conn, job_id)
    assert (ran, found.state, found.claims) == ([], "waiting", 0)
    assert value(conn, "select count(*) from pgqueue.workers") == 0


# The second as after a failover that a pooler hid.
@pytest.mark.parametrize(
    "forgetting", ["delete from pgqueue.workers", "update pgqueue.workers set server_started_at = '-infinity'"]
)
async def test_a_worker_forgotten_after_a_long_silence_introduces_itself_again(
    forgetting: LiteralString, database: Database, conn: psycopg.Connection
) -> None:
    known = "select count(*) from pgqueue.workers where server_started_at = pg_postmaster_start_time()"
    async with working(App(), database.dsn, name="w", lease=1.0):
        await wait_until_async(lambda: value(conn, known) == 1)
        conn.execute(forgetting)
        await wait_until_async(lambda: value(conn, known) == 1)
    assert value(conn, "select count(*) from pgqueue.workers") == 0


@pytest.mark.parametrize(("listen", "connections"), [(True, 4), (False, 3)])
async def test_a_worker_holds_four_connections_and_three_without_listen(
    database: Database, conn: psycopg.Connection, listen: bool, connections: int
) -> None:
    app = App()

    @app.task
    async def t(i: int) -> None:
        await asyncio.sleep(0)

    jobs = enqueue_many(conn, 500)
    async with working(app, database.dsn, name="counted", concurrency=100, listen=listen):
        await done(conn, *jobs, timeout=60)
        await wait_until_async(lambda: len(backends(conn, "counted")) == connections)
