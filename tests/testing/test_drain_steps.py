"""drain: handlers with steps, sleeps, events and waits run as any other."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy

import pgqueue
from pgqueue import App, Job
from pgqueue.errors import EventTimeout, LeaseLost
from pgqueue.testing import Clock, drain, drain_async
from tests.calls import call, enqueue, job, table, value
from tests.databases import Database


@pytest.fixture
def conn(database: Database) -> psycopg.Connection:
    return database.connect(autocommit=False)


@pytest.fixture(params=["sync", "async"])
def is_async(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "async")


def steps(conn: psycopg.Connection, job_id: int) -> list[str]:
    return [row.name for row in table(conn, "steps", job_id)]


def orders(*, is_async: bool) -> tuple[App, list[Any]]:
    """An App with a workflow: charge, sleep a day, wait for an event, ship."""
    app = App()
    calls: list[Any] = []

    def note(what: str) -> str:
        calls.append(what)
        return what

    async def note_later(what: str) -> str:
        return note(what)

    async def order_later(job: Job) -> Any:
        await job.step("charge", note_later, "charge")
        await job.sleep("cool down", "1 day")
        paid = await job.wait_event("paid", timeout="2 days")
        await job.step("ship", note_later, "ship")
        return paid

    def order(job: Job) -> Any:
        job.step("charge", note, "charge")
        job.sleep("cool down", "1 day")
        paid = job.wait_event("paid", timeout="2 days")
        job.step("ship", note, "ship")
        return paid

    app.task(name="order", store_result=True)(order_later if is_async else order)
    return app, calls


def test_a_workflow_travels_through_its_sleep_and_gets_the_event_of_the_test(
    conn: psycopg.Connection, is_async: bool
) -> None:
    app, calls = orders(is_async=is_async)
    job_id = enqueue(conn, "order")
    before = Clock(conn).now()
    drained = drain(conn, app)
    assert (drained.snoozed, calls) == (1, ["charge"])
    pgqueue.emit_event(conn, "paid", {"amount": 5})
    drained = drain(conn, app, scheduled=True)
    assert (drained.succeeded, calls) == (1, ["charge", "ship"])
    assert Clock(conn).now() - before >= timedelta(days=1)
    found = job(conn, job_id)
    assert (found.state, found.result, found.attempts) == ("succeeded", {"amount": 5}, 1)
    conn.rollback()
    assert value(conn, "select count(*) from pgqueue.all_jobs") == 0


def test_an_event_that_does_not_come_times_out(conn: psycopg.Connection, is_async: bool) -> None:
    app, calls = orders(is_async=is_async)
    enqueue(conn, "order", max_attempts=1)
    drained = drain(conn, app, scheduled=True, raise_errors=False)
    assert drained.dead == 1
    assert [type(error) for error in drained.errors] == [EventTimeout]
    assert calls == ["charge"]


def test_no_time_ends_a_wait_without_a_timeout(conn: psycopg.Connection) -> None:
    app = App()

    @app.task
    def wait(job: Job) -> None:
        job.wait_event("paid")

    wait.enqueue(conn)
    assert drain(conn, app, scheduled=True).snoozed == 1
    pgqueue.emit_event(conn, "paid")
    assert drain(conn, app).succeeded == 1


def test_a_crash_between_two_steps_repeats_neither(conn: psycopg.Connection, is_async: bool) -> None:
    app, calls = orders(is_async=is_async)
    pgqueue.emit_event(conn, "paid", None)
    job_id = enqueue(conn, "order")
    drained = drain(conn, app, scheduled=True, crash_after=["charge", "ship"])
    assert (drained.crashed, drained.succeeded, drained.failed) == (2, 1, 0)
    assert calls == ["charge", "ship"]
    assert job(conn, job_id).attempts == 1


def test_what_stands_before_a_step_is_kept_and_what_follows_it_is_undone(conn: psycopg.Connection) -> None:
    app = App()
    conn.execute("create temporary table written (what text)")

    def insert() -> None:
        conn.execute("insert into written values ('step')")

    @app.task(max_attempts=2, retry_policy="fixed", retry_delay="0")
    def write(job: Job) -> None:
        conn.execute("insert into written values ('handler')")
        job.step("one", insert)
        conn.execute("insert into written values ('after')")
        if job.attempt == 1:
            raise LookupError

    write.enqueue(conn)
    drained = drain(conn, app, scheduled=True, raise_errors=False)
    assert (drained.failed, drained.succeeded) == (1, 1)
    written = conn.execute("select what, count(*) from written group by what order by what").fetchall()
    assert written == [("after", 1), ("handler", 2), ("step", 1)]


def test_a_step_that_fails_is_called_again_and_leaves_nothing(conn: psycopg.Connection) -> None:
    app = App()
    conn.execute("create temporary table written (what text)")
    calls: list[int] = []

    def charge() -> None:
        conn.execute("insert into written values ('step')")
        calls.append(1)
        if len(calls) == 1:
            raise LookupError

    @app.task(max_attempts=2, retry_policy="fixed", retry_delay="0")
    def write(job: Job) -> None:
        job.step("charge", charge)

    write.enqueue(conn)
    assert drain(conn, app, scheduled=True, raise_errors=False).succeeded == 1
    assert len(calls) == 2
    assert value(conn, "select count(*) from written") == 1


def test_a_job_waits_for_others_that_drain_runs(conn: psycopg.Connection, is_async: bool) -> None:
    app = App()
    results: list[Any] = []

    @app.task(store_result=True)
    def part(n: int) -> int:
        return n * n

    def start() -> list[int]:
        return part.enqueue_many(conn, [{"n": 2}, {"n": 3}])

    def whole(job: Job) -> None:
        results.extend(job.wait(job.step("start", start)).values())

    async def whole_later(job: Job) -> None:
        results.extend((await job.wait(await job.step("start", start))).values())

    app.task(name="whole")(whole_later if is_async else whole)
    enqueue(conn, "whole")
    drained = drain(conn, app)
    assert (drained.succeeded, drained.snoozed) == (3, 1)
    assert sorted(results) == [("succeeded", 4), ("succeeded", 9)]


def test_a_call_of_several_keys_sleeps_for_each(conn: psycopg.Connection) -> None:
    app = App()
    seen: list[list[str]] = []

    @app.task(accumulate=True, batch_size=2)
    def digest(payloads: dict[str, list[Any]], job: Job) -> None:
        job.step("send", seen.append, sorted(payloads))
        job.sleep("rest", "1 min")

    call(conn, "declare_task", "digest", accumulate=True, batch_size=2)
    for key in ("a", "b"):
        digest.using(key=key).enqueue(conn, {})
    assert drain(conn, app, scheduled=True).succeeded == 2
    assert seen == [["a", "b"]]


async def test_steps_on_an_async_connection(database: Database) -> None:
    connection = await database.connect_async()
    app, calls = orders(is_async=True)
    await pgqueue.enqueue(connection, "order")
    await pgqueue.emit_event(connection, "paid", None)
    drained = await drain_async(connection, app, scheduled=True, crash_after=["charge"])
    assert (drained.crashed, drained.succeeded, calls) == (1, 1, ["charge", "ship"])
    await connection.rollback()


async def test_a_sync_handler_with_steps_beside_a_running_loop(conn: psycopg.Connection) -> None:
    app, calls = orders(is_async=False)
    enqueue(conn, "order")
    pgqueue.emit_event(conn, "paid", None)
    drained = await drain_async(conn, app, scheduled=True)
    assert (drained.succeeded, calls) == (1, ["charge", "ship"])


def test_steps_on_a_connection_of_sqlalchemy(database: Database) -> None:
    app, calls = orders(is_async=False)
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(database.dsn))
    with engine.connect() as connection:
        pgqueue.enqueue(connection, "order")
        pgqueue.emit_event(connection, "paid", None)
        assert drain(connection, app, scheduled=True).succeeded == 1
    assert calls == ["charge", "ship"]
    engine.dispose()


def test_steps_on_an_autocommit_connection_are_committed_one_by_one(database: Database) -> None:
    app, calls = orders(is_async=False)
    own, other = database.connect(), database.connect()
    job_id = enqueue(own, "order")
    drain(own, app)
    assert steps(other, job_id) == ["charge", "cool down"]
    assert calls == ["charge"]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_lost_lease_raises_as_in_a_worker(database: Database, conn: psycopg.Connection, is_async: bool) -> None:
    app = App()
    connection: Any = await database.connect_async() if is_async else conn

    @app.task(max_attempts=1)
    async def lose_later(job: Job) -> None:
        await connection.execute("select pgqueue.release(array[%s], array[%s], '1 day')", (job.id, job.reservation))
        async with job.transaction():
            pass

    @app.task(max_attempts=1)
    def lose(job: Job) -> None:
        conn.execute("select pgqueue.release(array[%s], array[%s], '1 day')", (job.id, job.reservation))
        with job.transaction():
            pass

    if is_async:
        await pgqueue.enqueue(connection, "lose_later")
    else:
        enqueue(conn, "lose")
    drained = await drain_async(connection, app, raise_errors=False)
    assert [type(error) for error in drained.errors] == [LeaseLost]
    if is_async:
        await connection.rollback()
