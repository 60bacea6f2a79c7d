"""A handler's own transaction: its writes and the job's completion together, or neither."""

from __future__ import annotations

import asyncio
import importlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from examples.handover.app import app as handover
from pgqueue import App, Job
from pgqueue.errors import InvalidArgument, LeaseLost
from tests.calls import column, enqueue, job, reserve_one, value
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import NEVER, done, working

SCHEMA = Path(__file__).parents[2] / "examples" / "handover" / "schema.sql"


@pytest.fixture
def written(conn: psycopg.Connection) -> Callable[[], list[int]]:
    """A table for handlers to write into; what stands in it."""
    conn.execute("create table written (n int)")
    return lambda: [row[0] for row in conn.execute("select n from written order by n")]


def take_away(conn: psycopg.Connection, job_id: int) -> None:
    with conn.transaction():
        conn.execute(
            # Now, and not long ago: leases have a head, below which no call reads.
            "update pgqueue.jobs set lease_expires_at = pgqueue._ready_at(null), grace_given = true where id = %s",
            [job_id],
        )
        assert reserve_one(conn, "thief", lease="1 hour").id == job_id


def declare(app: App, kind: str, inside: Callable[[Job], None] = lambda job: None, **options: Any) -> None:
    """Declare task "t": it writes its attempt within its transaction, calls `inside`, and ends it."""

    def synchronous(job: Job) -> None:
        with job.transaction() as connection:
            connection.execute("insert into written values (%s)", [job.attempt])
            inside(job)

    async def asynchronous(job: Job) -> None:
        async with job.transaction() as connection:
            await connection.execute("insert into written values (%s)", [job.attempt])
            await asyncio.to_thread(inside, job)

    app.task(name="t", **options)(asynchronous if kind == "async" else synchronous)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_writes_and_completion_are_committed_together(
    kind: str,
    database: Database,
    conn: psycopg.Connection,
    written: Callable[[], list[int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App()
    inside: list[tuple[Any, ...]] = []

    def look(job_: Job) -> None:
        with psycopg.connect(database.dsn) as other:
            inside.append((job(other, job_.id).state, other.execute("select count(*) from written").fetchone()))

    declare(app, kind, look)
    job_id = enqueue(conn)
    with caplog.at_level(logging.INFO, "pgqueue"):
        async with working(app, database.dsn) as worker:
            assert await done(conn, job_id) == ["succeeded"]
        assert (worker.completed, worker.failed) == (1, 0)
    assert inside == [("executing", (0,))]
    assert written() == [1]
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
    assert not any("reservation was over" in each.getMessage() for each in caplog.records)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_handler_that_fails_inside_writes_nothing_and_is_retried(
    kind: str, database: Database, conn: psycopg.Connection, written: Callable[[], list[int]]
) -> None:
    app = App()

    def fail_at_first(job: Job) -> None:
        if job.attempt == 1:
            raise LookupError("at first")

    declare(app, kind, fail_at_first, retry_policy="fixed", retry_delay="0")
    job_id = enqueue(conn)
    async with working(app, database.dsn):
        assert await done(conn, job_id) == ["succeeded"]
    assert written() == [2]
    assert [error["class"] for error in job(conn, job_id).errors] == ["LookupError"]


@pytest.mark.parametrize("when", ["before it begins", "inside"])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_lost_lease_rolls_everything_back_and_says_so(
    kind: str, when: str, database: Database, conn: psycopg.Connection, written: Callable[[], list[int]]
) -> None:
    app = App()
    raised: list[BaseException] = []

    def synchronous(job_: Job) -> None:
        try:
            if when != "inside":
                take_away(conn, job_.id)
            with job_.transaction() as connection:
                connection.execute("insert into written values (1)")
                # What no lease allows, for the row is locked: the reservation is over all the same.
                connection.execute("update pgqueue.jobs set reservation = reservation + 1")
        except LeaseLost as error:
            raised.append(error)
            raise

    async def asynchronous(job_: Job) -> None:
        try:
            if when != "inside":
                await asyncio.to_thread(take_away, conn, job_.id)
            async with job_.transaction() as connection:
                await connection.execute("insert into written values (1)")
                await connection.execute("update pgqueue.jobs set reservation = reservation + 1")
        except LeaseLost as error:
            raised.append(error)
            raise

    app.task(name="t")(asynchronous if kind == "async" else synchronous)
    # Leases are extended when a worker has started and then never: an extension that finds the lease lost before the
    # handler does would cancel it, and it would see that instead.
    async with working(app, database.dsn, lease=NEVER) as worker:
        await worker.started.wait()
        enqueue(conn)
        await wait_until_async(lambda: raised)
    assert written() == []
    assert "rolled back" in str(raised[0])


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_handler_that_is_superseded_inside_is_asked_to_stop_and_writes_nothing(
    kind: str, database: Database, conn: psycopg.Connection, written: Callable[[], list[int]]
) -> None:
    app = App()
    began = threading.Event()

    def synchronous(job_: Job) -> None:
        with job_.transaction() as connection:
            connection.execute("insert into written values (1)")
            began.set()
            if job_.cancelled.wait(60):
                raise LookupError(job_.cancelled.reason)

    async def asynchronous(job_: Job) -> None:
        async with job_.transaction() as connection:
            await connection.execute("insert into written values (1)")
            began.set()
            await asyncio.sleep(60)

    app.task(name="t")(asynchronous if kind == "async" else synchronous)
    # Leases are not extended by themselves: the notification alone has the worker ask.
    async with working(app, database.dsn, lease=NEVER):
        first = enqueue(conn, dedupe="d")
        await wait_until_async(began.is_set)
        second = enqueue(conn, dedupe="d", on_conflict="supersede", delay="1 hour")
        assert await done(conn, first) == ["cancelled"]
    assert written() == []
    assert job(conn, second).state == "waiting"


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_the_lease_holds_while_the_transaction_lives(
    kind: str, database: Database, conn: psycopg.Connection, written: Callable[[], list[int]]
) -> None:
    app = App()
    began, go = threading.Event(), threading.Event()

    def pause(job: Job) -> None:
        began.set()
        assert go.wait(120)

    declare(app, kind, pause)
    job_id = enqueue(conn)
    async with working(app, database.dsn, lease=3.0), working(app, database.dsn, lease=3.0):
        await wait_until_async(began.is_set)
        ends_at = job(conn, job_id).lease_expires_at
        await wait_until_async(lambda: value(conn, "select clock_timestamp() > %s + interval '1 s'", ends_at))
        go.set()
        assert await done(conn, job_id) == ["succeeded"]
    assert written() == [1]
    assert job(conn, job_id).losses == 0


async def test_a_result_is_stored_with_it_and_what_the_handler_does_after_it_changes_nothing(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()

    @app.task(store_result=True)
    def t(job: Job) -> str:
        transaction = job.transaction()
        with transaction:
            transaction.result = {"rows": 3}
        return "too late"

    @app.task
    async def fails_after(job: Job) -> None:
        async with job.transaction():
            pass
        raise LookupError("too late")

    jobs = [enqueue(conn, "t"), enqueue(conn, "fails_after")]
    async with working(app, database.dsn) as worker:
        assert await done(conn, *jobs) == ["succeeded"] * 2
        await wait_until_async(lambda: worker.completed == 2)
    assert job(conn, jobs[0]).result == {"rows": 3}
    assert any("its handler failed after that: LookupError: too late" in each.getMessage() for each in caplog.records)


async def test_a_job_whose_transaction_is_committed_has_succeeded_whatever_the_formatter_says_of_a_later_error(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App(error_formatter=lambda error: {})

    @app.task
    async def t(job: Job) -> None:
        async with job.transaction():
            pass
        raise LookupError("too late")

    job_id = enqueue(conn)
    async with working(app, database.dsn) as worker:
        assert await done(conn, job_id) == ["succeeded"]
        await wait_until_async(lambda: worker.completed == 1)


async def test_the_users_own_connection_is_used(
    database: Database, conn: psycopg.Connection, written: Callable[[], list[int]]
) -> None:
    app = App()
    url = database.dsn.replace("postgresql://", "postgresql+psycopg://", 1)
    engine = create_engine(url)
    insert = text("insert into written values (:n)")

    @app.task
    def with_psycopg(job: Job) -> None:
        for n, autocommit in ((1, True), (0, False)):
            if job.queue == f"autocommit-{autocommit}":
                with psycopg.connect(database.dsn, autocommit=autocommit) as mine, job.transaction(mine) as same:
                    assert same is mine
                    mine.execute("insert into written values (%s)", [n])

    @app.task
    async def with_async_psycopg(job: Job) -> None:
        async with await psycopg.AsyncConnection.connect(database.dsn) as mine, job.transaction(mine):
            await mine.execute("insert into written values (2)")

    @app.task
    def with_a_connection(job: Job) -> None:
        with engine.connect() as mine, job.transaction(mine):
            mine.execute(insert, {"n": 3})

    @app.task
    def with_a_session(job: Job) -> None:
        with Session(engine) as mine, job.transaction(mine):
            mine.execute(insert, {"n": 4})

    jobs = [enqueue(conn, "with_psycopg", queue=f"autocommit-{each}") for each in (True, False)]
    jobs += [enqueue(conn, task, max_attempts=1) for task in app.tasks if task != "with_psycopg"]
    async with working(app, database.dsn):
        states = await done(conn, *jobs)
    errors = [job(conn, each).errors for each in jobs]
    assert set(states) == {"succeeded"}, errors
    assert written() == [0, 1, 2, 3, 4]
    engine.dispose()


async def test_async_connections_and_sessions_of_sqlalchemy_are_used(
    database: Database, conn: psycopg.Connection, written: Callable[[], list[int]]
) -> None:
    pytest.importorskip("greenlet")
    sqlalchemy: Any = importlib.import_module("sqlalchemy.ext.asyncio")
    app = App()
    async_engine = sqlalchemy.create_async_engine(database.dsn.replace("postgresql://", "postgresql+psycopg://", 1))
    insert = text("insert into written values (:n)")

    @app.task
    async def with_an_async_connection(job: Job) -> None:
        async with async_engine.connect() as mine, job.transaction(mine):
            await mine.execute(insert, {"n": 5})

    @app.task
    async def with_an_async_session(job: Job) -> None:
        async with sqlalchemy.AsyncSession(async_engine) as mine, job.transaction(mine):
            await mine.execute(insert, {"n": 6})

    @app.task(retry_policy="fixed", retry_delay="0")
    async def fails_inside(job: Job) -> None:
        async with async_engine.connect() as mine, job.transaction(mine):
            await mine.execute(insert, {"n": job.attempt * 10})
            if job.attempt == 1:
                raise LookupError

    jobs = [enqueue(conn, task) for task in app.tasks]
    async with working(app, database.dsn):
        assert await done(conn, *jobs) == ["succeeded"] * 3
    assert written() == [5, 6, 20]
    await async_engine.dispose()


async def test_a_session_rolls_back_when_the_lease_is_lost_or_the_block_fails(
    database: Database, conn: psycopg.Connection, written: Callable[[], list[int]]
) -> None:
    app = App()
    url = database.dsn.replace("postgresql://", "postgresql+psycopg://", 1)
    engine = create_engine(url)
    raised: list[type[BaseException]] = []

    @app.task(retry_policy="fixed", retry_delay="0")
    def t(job_: Job) -> None:
        if job_.attempt == 2:
            take_away(conn, job_.id)
        try:
            with Session(engine) as session, job_.transaction(session):
                session.execute(text("insert into written values (1)"))
                raise LookupError
        except Exception as error:
            raised.append(type(error))
            raise

    enqueue(conn)
    async with working(app, database.dsn):
        await wait_until_async(lambda: len(raised) == 2)
    assert raised == [LookupError, LeaseLost]
    assert written() == []
    engine.dispose()


async def test_an_open_transaction_and_an_unknown_connection_are_refused(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    raised: list[Exception] = []
    engine = create_engine(database.dsn.replace("postgresql://", "postgresql+psycopg://", 1))

    @app.task(max_attempts=1)
    def t(job: Job) -> None:
        with psycopg.connect(database.dsn) as mine, Session(engine) as session:
            mine.execute("select 1")
            session.execute(text("select 1"))
            for given in (mine, session, object()):
                try:
                    with job.transaction(given):
                        raise AssertionError
                except (InvalidArgument, TypeError) as error:
                    raised.append(error)

    job_id = enqueue(conn)
    async with working(app, database.dsn):
        assert await done(conn, job_id) == ["succeeded"]
    assert [type(error) for error in raised] == [InvalidArgument, InvalidArgument, TypeError]
    assert "open on this connection already" in str(raised[0])
    engine.dispose()


async def test_a_connection_of_sqlalchemy_that_commits_by_itself_is_refused(
    database: Database, conn: psycopg.Connection, written: Callable[[], list[int]]
) -> None:
    pytest.importorskip("greenlet")
    sqlalchemy: Any = importlib.import_module("sqlalchemy.ext.asyncio")
    app = App()
    url = database.dsn.replace("postgresql://", "postgresql+psycopg://", 1)
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    async_engine = sqlalchemy.create_async_engine(url, isolation_level="AUTOCOMMIT")
    raised: list[str] = []

    @app.task
    def t(job: Job) -> None:
        with engine.connect() as connection, Session(engine) as session:
            for given in (connection, session):
                with pytest.raises(InvalidArgument) as error, job.transaction(given):
                    given.execute(text("insert into written values (1)"))
                raised.append(str(error.value))

    @app.task
    async def asynchronous(job: Job) -> None:
        async with async_engine.connect() as connection, sqlalchemy.AsyncSession(async_engine) as session:
            for given in (connection, session):
                with pytest.raises(InvalidArgument) as error:
                    async with job.transaction(given):
                        await given.execute(text("insert into written values (1)"))
                raised.append(str(error.value))

    jobs = [enqueue(conn, task) for task in app.tasks]
    async with working(app, database.dsn):
        assert await done(conn, *jobs) == ["succeeded"] * 2
    assert ["AUTOCOMMIT" in each for each in raised] == [True] * 4
    assert written() == []
    engine.dispose()
    await async_engine.dispose()


@pytest.mark.covers("D6")
@pytest.mark.parametrize("task", ["release_order", "release_order_async"])
async def test_a_job_is_handed_over_to_other_queues_in_one_transaction(
    task: str, database: Database, conn: psycopg.Connection
) -> None:
    conn.execute(SCHEMA.read_bytes())
    job_id = enqueue(conn, task, {"order_id": 17}, queue="orders", retry_policy="fixed", retry_delay="0.3 s")
    # One of the queues refuses at first: then neither has it, and it is still a job here.
    conn.execute("alter table outbox add constraint refuse check (topic <> 'orders')")
    async with working(handover, database.dsn, queues=("orders",)):
        await wait_until_async(lambda: job(conn, job_id).errors)
        assert value(conn, "select count(*) from pgqueue.jobs where queue = 'warehouse'") == 0
        conn.execute("alter table outbox drop constraint refuse")
        assert await done(conn, job_id) == ["succeeded"]
    assert conn.execute("select topic, body from outbox").fetchall() == [("orders", {"id": 17})]
    packed = reserve_one(conn, queues=["warehouse"])
    assert (packed.task, packed.args) == ("pack_order", {"order_id": 17})
    assert column(conn, "release", [packed.id], [packed.reservation]) == []
