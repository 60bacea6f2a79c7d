"""Leases: kept while a handler runs, and what happens when one is lost all the same."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from datetime import datetime
from functools import partial
from typing import Literal

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue import App, Job
from pgqueue.worker.hold.held import SUCCEEDED
from tests.calls import call, enqueue, job, value
from tests.databases import Database
from tests.facts import wait_until, wait_until_async
from tests.proxy import Proxy
from tests.workers import done, is_asleep, take_away, working


def lease_of(conn: psycopg.Connection, job_id: int) -> datetime:
    found: datetime = value(conn, "select lease_expires_at from pgqueue.jobs where id = %s", job_id)
    return found


def _is_later(conn: psycopg.Connection, job_id: int, first: datetime) -> bool:
    return lease_of(conn, job_id) > first


async def test_a_lease_whose_extension_the_server_refuses_takes_no_other_one_along(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    conn.execute(
        """
        create function public.refuse() returns trigger language plpgsql as $$
        begin
            if new.queue = 'bad' and old.state = 'executing' and new.state = 'executing' then
                raise exception 'not this one';
            end if;
            return new;
        end $$;
        create trigger refuse before update on pgqueue.jobs for each row execute function public.refuse();
        """
    )
    app, go = App(), asyncio.Event()
    ended: list[int] = []

    @app.task
    async def t(job: Job, i: int) -> None:
        try:
            await go.wait()
        finally:
            ended.append(i)

    jobs = [enqueue(conn, "t", {"i": i}, queue="bad" if i == 2 else "default") for i in range(5)]
    async with working(app, database.dsn, lease=3.0):
        await wait_until_async(lambda: ended == [2])
        go.set()
        assert await done(conn, *jobs[:2], *jobs[3:]) == ["succeeded"] * 4
        conn.execute("drop trigger refuse on pgqueue.jobs")
    assert {job(conn, each).claims for each in (*jobs[:2], *jobs[3:])} == {1}
    assert (
        f"the lease of job {jobs[2]} (task t, queue bad, attempt 1) could not be extended: not this one" in caplog.text
    )


@pytest.mark.covers("G9", "D2")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_job_longer_than_its_lease_runs_once_while_the_lease_is_extended(
    kind: str, database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    ran: list[int] = []
    go, go_sync = asyncio.Event(), threading.Event()

    async def asynchronous(job: Job) -> None:
        ran.append(job.attempt)
        await go.wait()

    def synchronous(job: Job) -> None:
        ran.append(job.attempt)
        assert go_sync.wait(120)

    app.task(name="t")(asynchronous if kind == "async" else synchronous)
    job_id = enqueue(conn)
    async with working(app, database.dsn, name="a", lease=3.0), working(app, database.dsn, name="b", lease=3.0):
        await wait_until_async(lambda: ran)
        first = lease_of(conn, job_id)
        await wait_until_async(lambda: (lease_of(conn, job_id) - first).total_seconds() > 3.5)
        go.set()
        go_sync.set()
        assert await done(conn, job_id) == ["succeeded"]
    assert ran == [1]
    assert job(conn, job_id).attempts == 1


@pytest.mark.covers("G9", "D2")
async def test_a_lost_lease_stops_the_async_handler_and_nothing_of_it_is_stored(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    started, stopped = asyncio.Event(), asyncio.Event()

    @app.task
    async def t() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    job_id = enqueue(conn)
    with caplog.at_level(logging.WARNING, "pgqueue"):
        async with working(app, database.dsn, lease=2.0):
            await wait_until_async(started.is_set)
            reservation = take_away(conn, job_id)
            await wait_until_async(stopped.is_set)
            # Whatever the worker says of the job now comes before its answer to this.
            assert await done(conn, enqueue(conn, "t", queue="x", expires_in="1 us")) == ["cancelled"]
            found = job(conn, job_id)
            assert (found.state, found.reserved_by, found.reservation) == ("executing", "thief", reservation)
    assert any("is lost: the database took it back" in record.getMessage() for record in caplog.records)
    assert call(conn, "complete", job_id, reservation, Jsonb({"by": "thief"})) is True
    found = job(conn, job_id)
    assert (found.state, found.result, found.errors, found.attempts) == ("succeeded", {"by": "thief"}, None, 1)


async def test_a_job_whose_end_cannot_be_stored_is_not_called_lost_again_and_again(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    started, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def t() -> None:
        started.set()
        await go.wait()

    job_id = enqueue(conn)
    with Proxy(database.dsn) as proxy, caplog.at_level(logging.WARNING, "pgqueue"):
        async with working(app, proxy.dsn, lease=1.0, listen=False):
            await wait_until_async(started.is_set)
            proxy.freeze()
            go.set()
            await wait_until_async(
                lambda: value(
                    conn, "select clock_timestamp() > lease_expires_at + '1 s' from pgqueue.jobs where id = %s", job_id
                )
            )
            proxy.drop()
            proxy.thaw()
            await done(conn, job_id)
    assert [each.getMessage() for each in caplog.records if "is lost" in each.getMessage()] == []


async def test_a_statement_that_hangs_keeps_no_lease_from_being_extended(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    go = asyncio.Event()
    ran: list[int] = []

    @app.task
    async def t(job: Job) -> None:
        ran.append(job.attempt)
        await go.wait()

    job_id = enqueue(conn)
    holder = database.session()
    async with working(app, database.dsn, name="w", lease=3.0, listen=False):
        await wait_until_async(lambda: ran)
        first = lease_of(conn, job_id)
        # Whoever rewrites this table: each beat hangs until it is given up, again and again.
        holder.run("begin")
        holder.run("lock table pgqueue.workers in access exclusive mode")
        await wait_until_async(lambda: (lease_of(conn, job_id) - first).total_seconds() > 6, timeout=15)
        holder.run("commit")
        go.set()
        assert await done(conn, job_id) == ["succeeded"]
    assert ran == [1]
    assert job(conn, job_id).losses == 0


@pytest.mark.parametrize("outcome", ["returns", "raises"])
async def test_a_sync_handler_whose_lease_was_lost_ends_without_changing_the_job(
    outcome: str, database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    started, go = threading.Event(), threading.Event()

    @app.task
    def t() -> None:
        started.set()
        assert go.wait(120)
        if outcome == "raises":
            raise LookupError

    job_id = enqueue(conn)
    with caplog.at_level(logging.INFO, "pgqueue"):
        async with working(app, database.dsn, lease=2.0):
            await wait_until_async(started.is_set)
            reservation = take_away(conn, job_id)
            await wait_until_async(lambda: any("is lost" in each.getMessage() for each in caplog.records))
            go.set()
    # The worker has ended, and with it everything that it had to say.
    found = job(conn, job_id)
    assert (found.state, found.reserved_by, found.reservation) == ("executing", "thief", reservation)
    assert found.errors is None


async def test_a_handler_that_ends_before_it_learns_of_its_loss_is_fenced_off(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    started, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def t() -> None:
        started.set()
        await go.wait()

    job_id = enqueue(conn)
    with caplog.at_level(logging.INFO, "pgqueue"):
        async with working(app, database.dsn, lease=60.0) as worker:
            await wait_until_async(started.is_set)
            reservation = take_away(conn, job_id)
            go.set()
            await wait_until_async(lambda: any("reservation was over" in each.getMessage() for each in caplog.records))
            assert (worker.completed, worker.failed) == (0, 0)
    found = job(conn, job_id)
    assert (found.state, found.reserved_by, found.reservation) == ("executing", "thief", reservation)


async def test_an_end_whose_job_is_gone_when_it_is_to_be_reported_again_is_told_as_lost_and_wakes_the_worker(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    go = asyncio.Event()
    told: list[str] = []
    app.on_event(lambda event: told.append(event.kind))

    @app.task
    async def t() -> None:
        await go.wait()

    enqueue(conn)
    async with working(app, database.dsn) as worker:
        await wait_until_async(lambda: "started" in told)
        [held] = worker._holding.held.values()
        # The report of its end was not answered in time, and the extension of its lease found it gone.
        held.attempt.ending = SUCCEEDED
        worker._holding.remove(held)
        worker._requests.freed.clear()
        worker._trade.report_again([held])
        assert told[-1] == "lost"
        assert worker._requests.freed.is_set()
        go.set()


async def test_a_job_that_comes_back_to_the_same_worker_runs_under_the_new_reservation_only(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    stopped: list[int] = []
    started: list[int] = []
    go = asyncio.Event()

    @app.task
    async def t(job: Job) -> None:
        started.append(job.reservation)
        try:
            await go.wait()
        except asyncio.CancelledError:
            stopped.append(job.reservation)
            raise

    job_id = enqueue(conn)
    async with working(app, database.dsn, lease=6.0, poll_interval=0.2, listen=False):
        await wait_until_async(lambda: len(started) == 1)
        first = lease_of(conn, job_id)
        await wait_until_async(lambda: lease_of(conn, job_id) > first)
        # Right after an extension: for two seconds now the worker does not learn that this reservation is over.
        conn.execute("update pgqueue.jobs set lease_expires_at = pgqueue._ready_at(null), grace_given = true")
        await wait_until_async(lambda: len(started) == 2)
        await wait_until_async(lambda: stopped == started[:1])
        go.set()
        assert await done(conn, job_id) == ["succeeded"]
    assert value(conn, "select reservation from pgqueue.history where id = %s", job_id) == started[1]


def test_a_cancel_without_a_listener_arrives_with_the_next_extension(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    started = threading.Event()

    @app.task
    async def t() -> None:
        started.set()
        await asyncio.sleep(60)

    async def scenario() -> None:
        job_id = enqueue(conn)
        async with working(app, database.dsn, lease=2.0, listen=False, poll_interval=0.2):
            await wait_until_async(started.is_set)
            assert call(conn, "cancel", job_id) == "requested"
            assert await done(conn, job_id) == ["cancelled"]

    asyncio.run(scenario())
    wait_until(lambda: value(conn, "select count(*) from pgqueue.workers") == 0)


@pytest.mark.covers("G9", "D2")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_what_was_not_started_within_its_lease_is_not_started_under_it(
    kind: str, database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    ran: list[str] = []
    held: list[str | None] = []
    taken: list[int] = []

    @app.task
    async def blocks() -> None:
        # As when the process is stopped: the other job was claimed with this one, and another worker has it by now.
        if taken:
            # Its own lease lapses meanwhile as well.
            return
        with database.connect() as thief:
            held.append(job(thief, waits).reserved_by)
            taken.append(take_away(thief, waits))
        time.sleep(3.5)  # noqa: ASYNC251 - that is the point

    async def asynchronous() -> None:
        ran.append("async")

    def synchronous() -> None:
        ran.append("sync")

    app.task(name="waits")(asynchronous if kind == "async" else synchronous)
    async with working(app, database.dsn, name="a", lease=3.0):
        # It begins with a claim of one.
        await wait_until_async(lambda: is_asleep(conn, "a"))
        with conn.transaction():
            # One claim brings both.
            conn.execute("set local pgqueue.hand_off = off")
            blocking = enqueue(conn, "blocks")
            waits = enqueue(conn, "waits")
        await wait_until_async(lambda: taken and job(conn, blocking).state != "executing")
        assert (held, job(conn, waits).reserved_by, ran) == (["a"], "thief", [])
        assert call(conn, "complete", waits, taken[0]) is True


@pytest.mark.covers("G9", "D2")
@pytest.mark.parametrize("end", ["rollback", "commit"])
async def test_a_job_whose_row_another_session_locks_for_longer_than_its_lease_runs_once(
    end: Literal["rollback", "commit"], database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    ran: list[int] = []
    go = asyncio.Event()

    @app.task
    async def t(job: Job) -> None:
        ran.append(job.attempt)
        await go.wait()

    job_id = enqueue(conn)
    other = database.session()
    async with (
        working(app, database.dsn, name="a", lease=3.0, poll_interval=0.2),
        working(app, database.dsn, name="b", lease=3.0, poll_interval=0.2),
    ):
        await wait_until_async(lambda: ran)
        for _ in range(3):
            other.run("begin")
            other.run("select from pgqueue.jobs where id = %s for update", [job_id])
            first = lease_of(conn, job_id)
            # Past the lease that stands in the row: what its worker was promised holds it.
            await wait_until_async(partial(value, conn, "select clock_timestamp() > %s + interval '0.5 s'", first))
            other.run(end)
            await wait_until_async(partial(_is_later, conn, job_id, first))
        go.set()
        assert await done(conn, job_id) == ["succeeded"]
    assert ran == [1]
    assert job(conn, job_id).losses == 0


async def test_a_lease_that_the_database_did_not_grant_ends_when_the_one_before_ends(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    started, stopped = asyncio.Event(), asyncio.Event()

    @app.task
    async def t() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.set()
            raise

    job_id = enqueue(conn)
    other = database.session()
    async with working(app, database.dsn, lease=2.0, listen=False):
        await wait_until_async(started.is_set)
        other.run("begin")
        # It lapsed, and another session has it in hand, as one that gives it away has.
        other.run("update pgqueue.jobs set lease_expires_at = pgqueue._ready_at(null) where id = %s", [job_id])
        other.run("commit")
        other.run("begin")
        other.run("select from pgqueue.jobs where id = %s for update", [job_id])
        await wait_until_async(stopped.is_set)
        assert any("its lease could not be extended in time" in each.getMessage() for each in caplog.records)
        other.run("rollback")


async def test_what_ended_with_a_claim_that_fails_is_stored_and_the_claim_comes_again(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()

    @app.task
    async def t() -> None:
        await asyncio.sleep(0)

    other = database.session()
    async with working(app, database.dsn, concurrency=10):
        jobs = [enqueue(conn) for _ in range(400)]
        await wait_until_async(lambda: value(conn, "select count(*) from pgqueue.history") > 20)
        # A claim registers nothing, but it reads the lanes; what ends does not.
        other.run("begin")
        other.run("lock table pgqueue.lanes in access exclusive mode")
        await wait_until_async(lambda: value(conn, "select count(*) from pgqueue.jobs where state = 'executing'") == 0)
        other.run("rollback")
        assert set(await done(conn, *jobs)) == {"succeeded"}
    assert value(conn, "select max(attempts) + max(losses) from pgqueue.history") == 1
