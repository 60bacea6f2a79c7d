"""Accumulating tasks in a worker: one call for all payloads of some keys."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from pgqueue import App, Job
from pgqueue.errors import ConfigError, InvalidArgument
from tests.calls import call, enqueue, job, value
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import done, is_asleep, working


@pytest.mark.covers("L3", "L4", "L6")
async def test_a_call_gets_the_payloads_of_several_keys_by_score(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    calls: list[tuple[int, dict[str, list[Any]]]] = []

    @app.task(accumulate=True, batch_size=2)
    async def handle(payloads: dict[str, list[Any]], job: Job) -> None:
        calls.append((job.id, payloads))

    call(conn, "declare_task", "handle", accumulate=True, batch_size=2)
    ids = [
        handle.using(key=key, score=score).enqueue(conn, {"n": score})
        for key in ("a", "b", "c")
        for score in (3, 1, 2, 1)
    ]
    async with working(app, database.dsn):
        assert set(await done(conn, *ids)) == {"succeeded"}
    assert [payloads for _, payloads in calls] == [
        {"a": [{"n": 1}, {"n": 2}, {"n": 3}], "b": [{"n": 1}, {"n": 2}, {"n": 3}]},
        {"c": [{"n": 1}, {"n": 2}, {"n": 3}]},
    ]
    assert calls[0][0] == ids[1]
    assert job(conn, ids[3]).merged_into == ids[1]


@pytest.mark.covers("L5", "L7")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_failed_call_fails_for_each_of_its_keys(
    kind: str, database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    calls: list[dict[str, list[Any]]] = []

    def fail(payloads: dict[str, list[Any]]) -> None:
        calls.append(payloads)
        if len(calls) == 1:
            raise ValueError("not today")

    async def fail_later(payloads: dict[str, list[Any]]) -> None:
        fail(payloads)

    options: dict[str, Any] = {"accumulate": True, "batch_size": 5, "retry_policy": "fixed", "retry_delay": "0"}
    app.task(name="handle", **options)(fail_later if kind == "async" else fail)
    call(conn, "declare_task", "handle", accumulate=True, batch_size=5)
    ids = [enqueue(conn, "handle", {"n": n}, key=key) for key in ("a", "b") for n in (1, 2)]
    async with working(app, database.dsn):
        assert set(await done(conn, *ids)) == {"succeeded"}
    assert len(calls[0]) == 2
    for job_id in ids:
        found = job(conn, job_id)
        assert (found.attempts, found.errors[0]["class"], found.errors[0]["message"]) == (2, "ValueError", "not today")


async def test_a_payload_that_an_operator_has_come_alone_is_a_call_of_its_own(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    calls: list[dict[str, list[Any]]] = []

    @app.task(accumulate=True)
    async def handle(payloads: dict[str, list[Any]]) -> None:
        calls.append(payloads)

    conn.execute("insert into pgqueue.tasks (name, accumulate) values ('handle', false)")
    keyed, unkeyed = enqueue(conn, "handle", {"n": 1}, key="a"), enqueue(conn, "handle", {"n": 2})
    async with working(app, database.dsn):
        assert await done(conn, keyed, unkeyed) == ["succeeded", "succeeded"]
    assert sorted(calls, key=str) == [{"": [{"n": 2}]}, {"a": [{"n": 1}]}]


async def test_a_function_that_takes_single_jobs_fails_a_gathered_call_and_says_why(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task
    async def handle(n: int) -> None:
        pass

    conn.execute("insert into pgqueue.tasks (name, accumulate) values ('handle', true)")
    job_id = enqueue(conn, "handle", {"n": 1}, key="a")
    async with working(app, database.dsn):
        await wait_until_async(lambda: job(conn, job_id).state == "failed")
    assert "accumulate" in job(conn, job_id).errors[0]["message"]


@pytest.mark.covers("L13")
async def test_leases_of_calls_are_kept_and_given_back_at_shutdown(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    started: list[dict[str, list[Any]]] = []

    @app.task(accumulate=True, batch_size=2)
    async def handle(payloads: dict[str, list[Any]]) -> None:
        started.append(payloads)

    call(conn, "declare_task", "handle", accumulate=True, batch_size=2)
    ids = [enqueue(conn, "handle", {"n": n}, key=key) for key in ("a", "b", "c") for n in (1, 2)]
    async with working(app, database.dsn, concurrency=1):
        assert set(await done(conn, *ids)) == {"succeeded"}
    assert value(conn, "select count(*) from pgqueue.jobs") == 0
    assert len(started) == 2


def test_a_function_of_an_accumulating_task_takes_the_payloads_and_nothing_else() -> None:
    app = App()
    with pytest.raises(ConfigError, match="accumulates"):

        @app.task(accumulate=True)
        def handle(one: int, other: int) -> None: ...

    @app.task(accumulate=True)
    def good(payloads: dict[str, list[Any]]) -> None: ...

    assert good.bind({"a": 1}) == good.bind(a=1) == {"a": 1}
    with pytest.raises(InvalidArgument, match="one mapping"):
        good.bind(1, 2)


async def test_a_call_of_several_keys_that_sleeps_comes_back_for_each_of_them(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    sent: list[list[str]] = []
    slept: list[list[str]] = []

    @app.task(accumulate=True, batch_size=2)
    def handle(payloads: dict[str, list[Any]], job: Job) -> None:
        job.step("send", sent.append, sorted(payloads))
        job.sleep("cool down", "1 s")
        slept.append(sorted(payloads))

    call(conn, "declare_task", "handle", accumulate=True, batch_size=2)
    ids = [handle.using(key=key).enqueue(conn, {}) for key in ("a", "b")]
    async with working(app, database.dsn):
        assert set(await done(conn, *ids)) == {"succeeded"}
    assert sent == [["a", "b"]]
    assert sorted(slept) == [["a"], ["b"]]
    assert [job(conn, id).losses for id in ids] == [0, 0]


async def test_a_transaction_completes_every_key_of_its_call(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    calls: list[list[str]] = []

    @app.task(accumulate=True, batch_size=2, store_result=True)
    def handle(payloads: dict[str, list[Any]], job: Job) -> None:
        calls.append(sorted(payloads))
        transaction = job.transaction()
        with transaction as connection:
            connection.execute("select 1")
            transaction.result = {"sent": 2}

    call(conn, "declare_task", "handle", accumulate=True, batch_size=2, store_result=True)
    ids = [handle.using(key=key).enqueue(conn, {}) for key in ("a", "b")]
    async with working(app, database.dsn):
        assert set(await done(conn, *ids)) == {"succeeded"}
    assert calls == [["a", "b"]]
    assert [job(conn, id).losses for id in ids] == [0, 0]
    assert sorted(str(job(conn, id).result) for id in ids) == ["None", "{'sent': 2}"]


async def test_a_call_whose_transaction_has_completed_all_its_keys_goes_on_to_its_end_and_none_of_them_is_lost(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    committed, go = asyncio.Event(), asyncio.Event()
    ended: list[str] = []
    told: list[str] = []
    app.on_event(lambda event: told.append(event.kind))

    @app.task(accumulate=True, batch_size=2)
    async def handle(payloads: dict[str, list[Any]], job: Job) -> None:
        async with job.transaction():
            pass
        committed.set()
        await go.wait()
        ended.append("by itself")

    call(conn, "declare_task", "handle", accumulate=True, batch_size=2)
    for key in ("a", "b"):
        handle.using(key=key).enqueue(conn, {})
    async with working(app, database.dsn) as worker:
        await wait_until_async(committed.is_set)
        # The extension of their leases finds that they are gone.
        worker._holding.extend_now.set()
        await wait_until_async(lambda: not worker._holding.held)
        go.set()
        await wait_until_async(lambda: worker.completed == 2)
    assert ended == ["by itself"]
    assert told.count("succeeded") == 2
    assert "lost" not in told


async def test_the_start_of_a_call_is_reported_at_once_also_where_only_its_second_key_was_lost_before(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    began, go = asyncio.Event(), asyncio.Event()

    @app.task(accumulate=True, batch_size=2)
    async def handle(payloads: dict[str, list[Any]]) -> None:
        began.set()
        await go.wait()

    # Leases are extended, and starts reported with them, every 200 s here.
    async with working(app, database.dsn, lease=600.0) as worker:
        await wait_until_async(lambda: is_asleep(conn, worker.config.name))
        with conn.transaction():
            ids = [handle.using(key=key).enqueue(conn, {}) for key in ("a", "b")]
            conn.execute("update pgqueue.jobs set losses = 1 where key = 'b'")
        await wait_until_async(began.is_set)
        assert value(conn, "select array_agg(started = reservation) from pgqueue.jobs") == [True, True]
        go.set()
        assert await done(conn, *ids) == ["succeeded"] * 2
