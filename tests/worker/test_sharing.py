"""Work is spread over workers: none holds back a job that another could run now."""

from __future__ import annotations

import asyncio
from collections import Counter

import psycopg
import pytest

from pgqueue import App
from tests.calls import call, enqueue, enqueue_many, value
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import NEVER, done, is_asleep, working


@pytest.mark.covers("D4")
async def test_long_jobs_are_shared_evenly_by_two_workers(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    gates = [asyncio.Event() for _ in range(10)]
    begun: Counter[int] = Counter()

    @app.task
    async def t(i: int) -> None:
        mine = sum(gate.is_set() for gate in gates)
        begun[mine] += 1
        # Else it would be quick, and the next ones fetched before.
        await asyncio.sleep(0.2)
        await gates[mine].wait()

    async with (
        working(app, database.dsn, name="a", concurrency=10),
        working(app, database.dsn, name="b", concurrency=10),
    ):
        for name in "ab":
            await wait_until_async(lambda name=name: is_asleep(conn, name))
        jobs = enqueue_many(conn, 200)
        for n, gate in enumerate(gates):
            # Both workers run as many as they may, also of the last ones.
            await wait_until_async(lambda n=n: begun[n] == 20)  # type: ignore[misc]
            gate.set()
        await done(conn, *jobs, timeout=30)
    # Even would be 100 each; what a first reserve takes before the other wakes is within 10 %.
    counts = dict(conn.execute("select reserved_by, count(*) from pgqueue.history group by reserved_by").fetchall())
    assert all(90 <= counts[name] <= 110 for name in "ab"), counts


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
        monkeypatch.setattr(busy._runner._throughput, "buffer", lambda: 28)
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


async def test_a_tenant_with_long_jobs_leaves_a_slot_to_the_others_and_goes_on_as_its_own_end(
    database: Database, conn: psycopg.Connection
) -> None:
    call(conn, "configure_queue", "default", fair_by="limit_key", max_share=0.75)
    app = App()
    gates = [asyncio.Event() for _ in range(8)]
    running: list[int] = []

    @app.task
    async def long(i: int) -> None:
        running.append(i)
        await gates[i].wait()

    @app.task
    async def short() -> None: ...

    async with working(app, database.dsn, concurrency=4, poll_interval=NEVER) as worker:
        await wait_until_async(lambda: is_asleep(conn, worker.config.name))
        jobs = enqueue_many(conn, 8, "long", limit_key="a")
        await wait_until_async(lambda: running == [0, 1, 2])
        for _ in range(5):
            assert await done(conn, enqueue(conn, "short", limit_key="b")) == ["succeeded"]
        for n in range(8):
            await wait_until_async(lambda n=n: len(running) == min(n + 3, 8))  # type: ignore[misc]
            assert worker.status()["running"] <= 3
            gates[running[n]].set()
        assert await done(conn, *jobs) == ["succeeded"] * 8
