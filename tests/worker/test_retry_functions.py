"""Retry functions of the database that do not return: no end of another task waits for one."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from pgqueue import App
from pgqueue.config import WorkerConfig
from pgqueue.worker import Worker
from pgqueue.worker.hold import outbox
from tests.calls import call, enqueue, enqueue_many, job, state, value
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import done, working

_NEVER_RETURNS = "perform pg_sleep(3600);"
_CATCHES = "loop begin perform pg_sleep(3600); exit; exception when query_canceled then null; end; end loop;"


@pytest.mark.parametrize("body", [_NEVER_RETURNS, _CATCHES], ids=["does not return", "catches that it is cancelled"])
async def test_no_other_end_waits_for_a_function_that_does_not_return(
    body: str, database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task
    async def fails() -> None:
        raise ValueError("no")

    @app.task
    async def works() -> None: ...

    conn.execute(
        f"""
        create schema app;
        create function app.policy(job jsonb, error jsonb) returns interval language plpgsql
        set search_path = pg_catalog, pg_temp as $$ begin {body} return '1 h'; end $$;
        """.encode()
    )
    call(conn, "set_retry_function", "fails", "app.policy")
    failing = enqueue(conn, "fails")
    async with working(app, database.dsn):
        await wait_until_async(lambda: _asks(conn))
        jobs = [enqueue(conn, "works") for _ in range(20)]
        assert await done(conn, *jobs) == ["succeeded"] * 20
        # The job itself is retried by the default policy: the session that asked has ended.
        await wait_until_async(lambda: state(conn, failing) == "failed")
        assert "app.policy" in (said := job(conn, failing).errors[0]["policy_error"]) or "no answer" in said
        # Nobody waits for the next one meanwhile.
        again = enqueue(conn, "fails")
        await wait_until_async(lambda: state(conn, again) == "failed")
        assert "not asked" in job(conn, again).errors[0]["policy_error"]
        assert not _asks(conn)


async def test_a_worker_claims_no_more_while_very_many_failures_wait_for_a_function(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "_BACKLOG", 40)
    app, most = App(), 0

    @app.task
    async def fails(i: int) -> None:
        nonlocal most
        most = max(most, worker.status()["held"])
        raise ValueError("no")

    conn.execute(
        """
        create schema app;
        create function app.policy(job jsonb, error jsonb) returns interval language plpgsql
        set search_path = pg_catalog, pg_temp as $$ begin perform pg_sleep(0.02); return '1 h'; end $$;
        """
    )
    call(conn, "set_retry_function", "fails", "app.policy")
    jobs = enqueue_many(conn, 400, "fails")
    async with working(app, database.dsn, concurrency=5) as worker:
        await wait_until_async(lambda: {state(conn, each) for each in jobs} == {"failed"}, timeout=60)
    assert 40 <= most < 150


async def test_a_worker_that_ends_when_no_job_is_left_ends_after_a_failure_on_which_a_function_decides(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task
    async def fails() -> None:
        raise ValueError("no")

    # The worker has found nothing else to do by then, and waits for this end.
    conn.execute(
        """
        create schema app;
        create function app.policy(job jsonb, error jsonb) returns interval language plpgsql
        set search_path = pg_catalog, pg_temp as $$ begin perform pg_sleep(0.3); return '1 h'; end $$;
        """
    )
    call(conn, "set_retry_function", "fails", "app.policy")
    failing = enqueue(conn, "fails")
    await asyncio.wait_for(Worker(app, database.dsn, WorkerConfig(until_empty=True)).run(), 60)
    assert state(conn, failing) == "failed"


def _asks(conn: psycopg.Connection) -> bool:
    return bool(
        value(
            conn,
            "select exists (select from pg_stat_activity"
            " where datname = current_database() and wait_event = 'PgSleep')",
        )
    )
