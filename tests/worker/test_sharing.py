"""Work is spread over workers: none holds back a job that another could run now."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from pgqueue import App
from tests.calls import enqueue_many, value
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import done, is_asleep, working


@pytest.mark.covers("D4")
async def test_long_jobs_are_shared_evenly_by_two_workers(database: Database, conn: psycopg.Connection) -> None:
    app = App()

    @app.task
    async def t(i: int) -> None:
        await asyncio.sleep(0.2)

    async with (
        working(app, database.dsn, name="a", concurrency=10),
        working(app, database.dsn, name="b", concurrency=10),
    ):
        for name in "ab":
            await wait_until_async(lambda name=name: is_asleep(conn, name))
        jobs = enqueue_many(conn, 200)
        await done(conn, *jobs, timeout=30)
    ends = dict(
        conn.execute("select reserved_by, max(finished_at) from pgqueue.history group by reserved_by").fetchall()
    )
    began = value(conn, "select min(reserved_at) from pgqueue.history")
    took = [(end - began).total_seconds() for end in ends.values()]
    # Even would be 100 each; what a first reserve takes before the other wakes is within 10 %.
    counts = dict(conn.execute("select reserved_by, count(*) from pgqueue.history group by reserved_by").fetchall())
    assert all(90 <= counts[name] <= 110 for name in "ab"), counts
    assert max(took) < 1.25 * (200 * 0.2 / 20), took


async def test_what_was_not_started_within_two_seconds_goes_to_a_worker_that_sleeps(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App()
    go = asyncio.Event()

    @app.task
    async def long(i: int) -> None:
        await go.wait()

    async with working(app, database.dsn, name="busy", concurrency=2) as busy:
        await wait_until_async(lambda: is_asleep(conn, "busy"))
        # As after a stream of quick jobs, which on a slow machine is none.
        monkeypatch.setattr(busy._runner._pace, "buffer", lambda: 28)
        with conn.transaction():
            enqueue_many(conn, 30, "long")
        await wait_until_async(lambda: busy._runner.running == 2 and busy._runner.unstarted > 0)
        monkeypatch.undo()
        async with working(app, database.dsn, name="idle", concurrency=50):
            await wait_until_async(
                lambda: value(conn, "select count(*) from pgqueue.jobs where reserved_by = 'idle'") == 28
            )
            assert busy._runner.unstarted == 0
            go.set()
            await wait_until_async(lambda: value(conn, "select count(*) from pgqueue.jobs") == 0)
    # Given back uncounted.
    assert value(conn, "select max(attempts) from pgqueue.history") == 1
