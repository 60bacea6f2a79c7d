"""drain: due jobs run in the test's own transaction."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from pgqueue import App, Cancel, Discard, Job, Retry, Snooze, Throttled, current_job
from pgqueue.errors import ConfigError, InvalidPayload
from pgqueue.hooks import Dead
from pgqueue.testing import Drained, declare, drain, drain_async
from tests.calls import job, value
from tests.databases import Database

app = App()
calls: list[Any] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


@pytest.fixture
def conn(database: Database) -> psycopg.Connection:
    return database.connect(autocommit=False)


@app.task(store_result=True)
def add(a: int, b: int) -> int:
    calls.append((a, b, threading.get_ident()))
    return a + b


@app.task
async def sleepy(n: int) -> None:
    await asyncio.sleep(0)
    calls.append((n, threading.get_ident()))


@app.task
def fails(message: str) -> None:
    raise LookupError(message)


@app.task
def chain(job: Job, left: int) -> None:
    calls.append((left, job.attempt))
    if left:
        chain.enqueue(connections[-1], left - 1)


@app.task(max_attempts=3, retry_policy="fixed", retry_delay="1 h")
def third_time(job: Job) -> None:
    calls.append(job.attempt)
    if job.attempt < 3:
        raise ValueError(f"attempt {job.attempt}")


@app.task
def decides(what: str) -> None:
    raise {
        "snooze": Snooze("1 h"),
        "retry": Retry(after=60),
        "discard": Discard("no such customer"),
        "cancel": Cancel("withdrawn"),
    }[what]


connections: list[Any] = []


def test_a_job_runs_in_the_open_transaction_and_in_this_thread(conn: psycopg.Connection, database: Database) -> None:
    job_id = add.enqueue(conn, 1, b=2)
    drained = drain(conn, app)
    assert drained == Drained(succeeded=1, ids=[job_id])
    assert calls == [(1, 2, threading.get_ident())]
    assert job(conn, job_id).state == "succeeded"
    assert job(conn, job_id).result == 3
    conn.rollback()
    assert value(database.connect(), "select count(*) from pgqueue.all_jobs") == 0


def test_an_async_handler_runs_in_this_thread_on_a_loop_of_its_own(conn: psycopg.Connection) -> None:
    sleepy.enqueue(conn, 1)
    sleepy.enqueue(conn, 2)
    assert drain(conn, app).succeeded == 2
    assert calls == [(1, threading.get_ident()), (2, threading.get_ident())]


def test_a_sync_handler_runs_without_an_event_loop_around_it(conn: psycopg.Connection) -> None:
    loops = App()

    @loops.task
    def asks() -> None:
        calls.append(asyncio.run(asyncio.sleep(0, "its own")))

    asks.enqueue(conn)
    assert drain(conn, loops).succeeded == 1
    assert calls == ["its own"]


def test_the_first_error_comes_out_with_its_traceback_and_the_failure_is_stored(conn: psycopg.Connection) -> None:
    job_id = fails.enqueue(conn, "no such order")
    with pytest.raises(LookupError, match="no such order") as caught:
        drain(conn, app)
    assert caught.traceback[-1].name == "fails"
    assert job(conn, job_id).state == "failed"
    assert job(conn, job_id).errors[0]["class"] == "LookupError"


def test_errors_are_collected_where_that_is_asked_for(conn: psycopg.Connection) -> None:
    fails.enqueue(conn, "one")
    fails.using(max_attempts=1).enqueue(conn, "two")
    drained = drain(conn, app, raise_errors=False)
    assert (drained.failed, drained.dead) == (1, 1)
    assert [str(error) for error in drained.errors] == ["one", "two"]


def test_what_a_failing_handler_wrote_is_undone_and_the_transaction_goes_on(conn: psycopg.Connection) -> None:
    conn.execute("create table orders (id int primary key)")
    writer = App()

    @writer.task
    def write(good: bool) -> None:
        conn.execute("insert into orders values (1)")
        if not good:
            conn.execute("insert into orders values (1)")

    write.enqueue(conn, False)
    with pytest.raises(psycopg.errors.UniqueViolation):
        drain(conn, writer)
    assert value(conn, "select count(*) from orders") == 0
    write.enqueue(conn, True)
    assert drain(conn, writer).succeeded == 1
    assert value(conn, "select count(*) from orders") == 1


def test_jobs_that_handlers_enqueue_run_as_well(conn: psycopg.Connection) -> None:
    connections.append(conn)
    chain.enqueue(conn, 2)
    assert drain(conn, app).succeeded == 3
    assert calls == [(2, 1), (1, 1), (0, 1)]


def test_without_recursion_they_wait_as_if_nothing_had_touched_them(conn: psycopg.Connection) -> None:
    connections.append(conn)
    chain.enqueue(conn, 2)
    assert drain(conn, app, recursive=False).succeeded == 1
    assert calls == [(2, 1)]
    [row] = conn.execute("select state::text, attempts from pgqueue.jobs").fetchall()
    assert row == ("waiting", 0)
    assert drain(conn, app).succeeded == 2


def test_the_limit_ends_a_loop_and_names_the_task(conn: psycopg.Connection) -> None:
    connections.append(conn)
    chain.enqueue(conn, 1000)
    with pytest.raises(AssertionError, match=r"drain made 5 attempts .* chain \(5 times\)"):
        drain(conn, app, limit=5)


def test_jobs_of_the_future_wait_unless_the_clock_may_move(conn: psycopg.Connection, database: Database) -> None:
    add.using(delay="1 week").enqueue(conn, 1, 1)
    add.using(delay="2 weeks").enqueue(conn, 2, 2)
    assert drain(conn, app).succeeded == 0
    before = value(conn, "select pgqueue._clock()")
    assert drain(conn, app, scheduled=True).succeeded == 2
    assert value(conn, "select pgqueue._clock()") - before > timedelta(days=13)
    conn.rollback()
    assert value(database.connect(), "select abs(extract(epoch from pgqueue._clock() - clock_timestamp())) < 60")


def test_retries_run_at_their_times_when_the_clock_may_move(conn: psycopg.Connection) -> None:
    third_time.enqueue(conn)
    drained = drain(conn, app, scheduled=True, raise_errors=False)
    assert calls == [1, 2, 3]
    assert (drained.failed, drained.succeeded, len(drained.errors)) == (2, 1, 2)


def test_signals_are_no_errors(conn: psycopg.Connection) -> None:
    ids = [decides.enqueue(conn, what) for what in ("snooze", "retry", "discard", "cancel")]
    drained = drain(conn, app)
    assert (drained.snoozed, drained.failed, drained.dead, drained.cancelled) == (1, 1, 1, 1)
    assert drained.errors == []
    assert [job(conn, each).state for each in ids] == ["waiting", "failed", "dead", "cancelled"]


def test_only_the_queues_that_are_named_are_drained(conn: psycopg.Connection) -> None:
    add.using(queue="a").enqueue(conn, 1, 1)
    add.using(queue="b").enqueue(conn, 2, 2)
    add.using(queue="c").enqueue(conn, 3, 3)
    assert drain(conn, app, "a").succeeded == 1
    assert drain(conn, app, ["b", "c"]).succeeded == 2


def test_a_task_that_the_app_does_not_know_is_left_as_it_was_and_named(conn: psycopg.Connection) -> None:
    stranger = App()

    @stranger.task
    def elsewhere() -> None: ...

    job_id = elsewhere.enqueue(conn)
    add.enqueue(conn, 1, 1)
    drained = drain(conn, app)
    assert (drained.succeeded, drained.unknown) == (1, ["elsewhere"])
    assert (job(conn, job_id).state, job(conn, job_id).attempts) == ("waiting", 0)


def test_jobs_of_a_key_run_in_order(conn: psycopg.Connection) -> None:
    for n in range(3):
        add.using(key="k").enqueue(conn, n, 0)
    assert drain(conn, app).succeeded == 3
    assert [call[0] for call in calls] == [0, 1, 2]


def test_the_jobs_own_transaction_is_this_one(conn: psycopg.Connection) -> None:
    own = App()

    @own.task(store_result=True)
    def settles(job: Job, good: bool) -> None:
        with job.transaction() as connection:
            calls.append(connection)
            connection.execute("create temporary table settled ()")
            if not good:
                raise ValueError("not good")

    bad = settles.enqueue(conn, False)
    with pytest.raises(ValueError, match="not good"):
        drain(conn, own)
    assert value(conn, "select to_regclass('settled')") is None
    assert job(conn, bad).state == "failed"
    good = settles.enqueue(conn, True)
    assert drain(conn, own).succeeded == 1
    assert job(conn, good).state == "succeeded"
    assert value(conn, "select to_regclass('settled')") == "settled"
    assert calls == [conn, conn]


def test_middleware_current_job_and_hooks_are_as_in_a_worker(conn: psycopg.Connection) -> None:
    around = App()
    kinds: list[str] = []
    dead: list[Dead] = []
    around.on_dead(dead.append)
    around.on_event(lambda event: kinds.append(event.kind))

    @around.middleware
    def plain(job: Job, call_next: Any) -> Any:
        calls.append(("plain", job.id))
        return call_next()

    @around.task(max_attempts=1)
    def handler() -> None:
        calls.append(("handler", current_job().id))
        raise ValueError("bad")

    job_id = handler.enqueue(conn)
    drain(conn, around, raise_errors=False)
    assert calls == [("plain", job_id), ("handler", job_id)]
    assert kinds == ["started", "dead"]
    assert [(each.job.id, each.error["class"]) for each in dead] == [(job_id, "ValueError")]
    with pytest.raises(RuntimeError):
        current_job()


@pytest.mark.parametrize("async_handler", [False, True])
@pytest.mark.parametrize("async_middleware", [False, True])
def test_middleware_of_either_kind_stands_around_handlers_of_either_kind(
    conn: psycopg.Connection, async_handler: bool, async_middleware: bool
) -> None:
    around = App()

    if async_middleware:

        @around.middleware
        async def outer(job: Job, call_next: Any) -> Any:
            return await call_next() + 1
    else:

        @around.middleware
        def outer(job: Job, call_next: Any) -> Any:
            return call_next() + 1

    if async_handler:

        @around.task(store_result=True)
        async def one() -> int:
            await asyncio.sleep(0)
            return 1
    else:

        @around.task(store_result=True)
        def one() -> int:
            return 1

    job_id = one.enqueue(conn)
    assert drain(conn, around).succeeded == 1
    assert job(conn, job_id).result == 2


def test_a_handler_that_runs_past_its_timeout_fails(conn: psycopg.Connection) -> None:
    slow = App()

    @slow.task
    async def sleeps() -> None:
        await asyncio.sleep(30)

    @slow.task
    def checks(job: Job) -> None:
        assert job.cancelled.wait(10)
        job.check()

    ids = [task.using(timeout="50 ms").enqueue(conn) for task in (sleeps, checks)]
    assert drain(conn, slow).failed == 2
    assert [job(conn, each).errors[0]["class"] for each in ids] == ["Timeout", "Timeout"]


def test_an_accumulating_task_gets_its_payloads_in_one_call(conn: psycopg.Connection) -> None:
    gathering = App()

    @gathering.task(accumulate=True)
    def gather(payloads: dict[str, list[Any]]) -> None:
        calls.append(payloads)

    declare(conn, gathering)
    for n in range(3):
        gather.using(key="k").enqueue(conn, n=n)
    drain(conn, gathering)
    assert calls == [{"k": [{"n": 0}, {"n": 1}, {"n": 2}]}]


def test_arguments_that_do_not_fit_fail_as_they_do_in_a_worker(conn: psycopg.Connection) -> None:
    typed = App()

    @typed.task(validate=True)
    def wants(n: int) -> None: ...

    conn.execute("""select pgqueue.enqueue('wants', '{"n": "x"}')""")
    with pytest.raises(InvalidPayload):
        drain(conn, typed)


def test_ctrl_c_in_a_handler_ends_the_test(conn: psycopg.Connection) -> None:
    stopped = App()

    @stopped.task
    def interrupted() -> None:
        raise KeyboardInterrupt

    interrupted.enqueue(conn)
    with pytest.raises(KeyboardInterrupt):
        drain(conn, stopped)


def test_an_outcome_of_pytest_in_a_handler_is_the_tests_own(conn: psycopg.Connection) -> None:
    skipping = App()

    @skipping.task
    def skips() -> None:
        pytest.skip("not here")

    skips.enqueue(conn)
    with pytest.raises(pytest.skip.Exception):
        drain(conn, skipping)


async def test_on_an_async_connection_handlers_run_on_the_running_loop(database: Database) -> None:
    conn = await database.connect_async(autocommit=False)
    loops = App()

    @loops.task
    async def which(job: Job) -> None:
        calls.append(asyncio.get_running_loop())
        async with job.transaction() as connection:
            assert connection is conn

    await which.enqueue(conn)
    assert (await drain_async(conn, loops)).succeeded == 1
    assert calls == [asyncio.get_running_loop()]
    await conn.rollback()


async def test_an_async_handler_on_a_running_loop_names_the_way(database: Database) -> None:
    conn = database.connect(autocommit=False)
    sleepy.enqueue(conn, 1)
    with pytest.raises(ConfigError, match="drain_async"):
        drain(conn, app)
    conn.rollback()
    sleepy.enqueue(conn, 1)
    assert (await drain_async(conn, app)).succeeded == 1


async def test_an_async_connection_is_refused_by_drain(database: Database) -> None:
    with pytest.raises(TypeError, match="drain_async"):
        drain(await database.connect_async(), app)


async def test_drain_joins_a_transaction_of_asyncpg(database: Database) -> None:
    conn = await asyncpg.connect(database.dsn)
    try:
        transaction = conn.transaction()
        await transaction.start()
        await add.using(delay="1 h").enqueue(conn, 1, 2)
        await sleepy.enqueue(conn, 1)
        await fails.enqueue(conn, "x")
        drained = await drain_async(conn, app, scheduled=True, raise_errors=False, limit=20)
        assert (drained.succeeded, drained.dead) == (2, 1)
        await transaction.rollback()
        assert await conn.fetchval("select count(*) from pgqueue.all_jobs") == 0
    finally:
        await conn.close()


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_drain_joins_a_transaction_of_sqlalchemy(database: Database, driver: str) -> None:
    engine = sqlalchemy.create_engine(database.dsn.replace("postgresql:", f"postgresql+{driver}:"))
    with engine.connect() as conn:
        add.using(delay="1 h").enqueue(conn, 1, 2)
        fails.enqueue(conn, "x")
        drained = drain(conn, app, scheduled=True, raise_errors=False, limit=20)
        assert (drained.succeeded, drained.dead) == (1, 1)
        conn.rollback()
        assert conn.scalar(sqlalchemy.text("select count(*) from pgqueue.all_jobs")) == 0
    engine.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_drain_commits_each_step_on_a_connection_that_is_in_no_transaction(database: Database, driver: str) -> None:
    plain: Any = database.connect() if driver == "psycopg" else psycopg2.connect(database.dsn)
    plain.autocommit = True
    url = database.dsn.replace("postgresql:", f"postgresql+{driver}:")
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as of_sqlalchemy:
        for conn in (plain, of_sqlalchemy):
            succeeded, failed = add.enqueue(conn, 1, 2), fails.enqueue(conn, "x")
            assert drain(conn, app, raise_errors=False).ids == [succeeded, failed]
            with database.connect() as other:
                assert job(other, succeeded).state == "succeeded"
                assert job(other, failed).state == "failed"
    engine.dispose()
    plain.close()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_drain_commits_each_step_on_an_async_connection_too(database: Database, driver: str) -> None:
    url = database.dsn.replace("postgresql:", f"postgresql+{driver}:")
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT")
    async with engine.connect() as conn:
        job_id = await add.enqueue(conn, 1, 2)
        assert (await drain_async(conn, app)).succeeded == 1
    assert job(database.connect(), job_id).state == "succeeded"
    await engine.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_drain_joins_an_async_transaction_of_sqlalchemy(database: Database, driver: str) -> None:
    engine = create_async_engine(database.dsn.replace("postgresql:", f"postgresql+{driver}:"))
    async with engine.connect() as conn:
        await add.using(delay="1 h").enqueue(conn, 1, 2)
        await fails.enqueue(conn, "x")
        drained = await drain_async(conn, app, scheduled=True, raise_errors=False, limit=20)
        assert (drained.succeeded, drained.dead) == (1, 1)
        await conn.rollback()
    await engine.dispose()


@app.task
def throttled_once(n: int, job: Job) -> None:
    calls.append(n)
    if calls.count(n) == 1 and n == 1:
        raise Throttled(after=60, reason="429")


def test_a_throttled_job_and_those_that_wait_with_it_go_on_when_the_clock_is_moved(conn: psycopg.Connection) -> None:
    with conn.transaction(force_rollback=True):
        first, second = throttled_once.enqueue(conn, 1), throttled_once.enqueue(conn, 2)
        drained = drain(conn, app)
        assert (drained.snoozed, job(conn, first).attempts, job(conn, first).state) == (1, 0, "waiting")
        assert job(conn, second).state in ("blocked", "waiting")
        drain(conn, app, scheduled=True)
        assert {job(conn, each).state for each in (first, second)} == {"succeeded"}
