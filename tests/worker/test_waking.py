"""When an idle worker polls: woken, at a due time, or at its poll interval."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue import App, Job
from pgqueue.db import consume
from pgqueue.db.call import perform
from tests.calls import call, enqueue, job, maintain, table, value
from tests.databases import Database
from tests.facts import wait_until, wait_until_async
from tests.workers import NEVER, done, is_asleep, working


@pytest.fixture
def app() -> App:
    app = App()

    @app.task
    async def t() -> None: ...

    return app


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements of workers on this loop, as they leave: the server's own counters are seconds late."""
    statements: list[str] = []
    send = psycopg.AsyncCursor.execute

    async def noted(cursor: psycopg.AsyncCursor, query: Any, *args: Any, **options: Any) -> psycopg.AsyncCursor:
        statements.append(query.decode() if isinstance(query, bytes) else str(query))
        return await send(cursor, query, *args, **options)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", noted)
    return statements


def wait_of(conn: psycopg.Connection, job_id: int, since: str) -> float:
    """Seconds from an instant of the job to its end; its handler does nothing."""
    seconds = value(
        conn,
        f"select extract(epoch from finished_at - {since})::float8 from pgqueue.all_jobs where id = %s",
        job_id,
    )
    return float(seconds)


async def test_notify_wakes_a_sleeping_worker(app: App, database: Database, conn: psycopg.Connection) -> None:
    async with working(app, database.dsn, poll_interval=NEVER) as worker:
        await wait_until_async(lambda: is_asleep(conn, worker.config.name))
        assert await done(conn, enqueue(conn)) == ["succeeded"]


async def test_a_producer_above_read_committed_wakes_a_sleeping_worker_too(
    app: App, database: Database, conn: psycopg.Connection
) -> None:
    producer = database.connect(autocommit=False)
    producer.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    async with working(app, database.dsn, poll_interval=NEVER, queues=("default",)) as worker:
        await wait_until_async(lambda: is_asleep(conn, worker.config.name))
        job_id = enqueue(producer)
        producer.commit()
        assert await done(conn, job_id) == ["succeeded"]


async def test_a_worker_goes_to_sleep_again_and_is_woken_again(
    app: App, database: Database, conn: psycopg.Connection
) -> None:
    async with working(app, database.dsn, poll_interval=NEVER) as worker:
        for _ in range(3):
            await wait_until_async(lambda: is_asleep(conn, worker.config.name))
            assert await done(conn, enqueue(conn)) == ["succeeded"]


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_a_worker_fills_its_last_slot_while_the_others_are_in_use(
    is_async: bool, database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    started: list[int] = []
    go = threading.Event()

    async def of_loop(run: Job) -> None:
        started.append(run.id)
        await asyncio.to_thread(go.wait)

    def in_thread(run: Job) -> None:
        started.append(run.id)
        go.wait()

    app.task(of_loop if is_async else in_thread, name="t")
    # Announced, and claimed.
    conn.execute("set pgqueue.hand_off = off")
    async with working(app, database.dsn, concurrency=4, poll_interval=NEVER) as worker:
        await wait_until_async(lambda: is_asleep(conn, worker.config.name))
        ids = []
        try:
            for _ in range(4):
                ids.append(enqueue(conn))
                await wait_until_async(lambda: started == ids)
            # No more than it has slots for: it claims again when one is free.
            await wait_until_async(lambda: worker._claimer.waits_for_capacity)
            waiting = enqueue(conn)
            assert job(conn, waiting).state == "waiting"
        finally:
            go.set()
        assert await done(conn, *ids, waiting) == ["succeeded"] * 5


async def test_a_woken_worker_claims_while_its_call_of_idle_is_under_way(
    app: App, database: Database, conn: psycopg.Connection
) -> None:
    locker = database.connect(autocommit=False)
    # After the time of the lock, the worker polls.
    async with working(app, database.dsn, poll_interval=25) as worker:
        await wait_until_async(lambda: is_asleep(conn, worker.config.name))
        # Readers pass: an enqueue sees which workers are idle.
        locker.execute("lock table pgqueue.idle_workers in share mode")
        waits = (
            "select exists (select from pg_stat_activity where datname = current_database()"
            " and wait_event_type = 'Lock' and query ~ 'pgqueue.idle')"
        )
        await wait_until_async(lambda: value(conn, waits))
        assert await done(conn, enqueue(conn)) == ["succeeded"]
        locker.rollback()
        # It is still registered, or is so again.
        await wait_until_async(lambda: is_asleep(conn, worker.config.name))
        assert await done(conn, enqueue(conn)) == ["succeeded"]


async def test_a_worker_whose_call_of_idle_was_cut_off_calls_it_again(
    app: App, database: Database, conn: psycopg.Connection
) -> None:
    locker = database.connect(autocommit=False)
    async with working(app, database.dsn, poll_interval=NEVER) as worker:
        await wait_until_async(lambda: is_asleep(conn, worker.config.name))
        locker.execute("lock table pgqueue.idle_workers in share mode")
        waits = (
            "select max(pid) from pg_stat_activity where datname = current_database()"
            " and wait_event_type = 'Lock' and query ~ %s and pid <> %s"
        )
        first = await wait_until_async(lambda: value(conn, waits, "pgqueue.idle", 0))
        # As code of a handler does that cancels all asyncio tasks.
        [claiming] = [each for each in asyncio.all_tasks() if each.get_name() == "pgqueue-claiming"]
        claiming.cancel()
        # On another connection, for the state of the one before is not known.
        await wait_until_async(lambda: value(conn, waits, "pgqueue.(hello|idle)", first))
        locker.rollback()
        await wait_until_async(lambda: is_asleep(conn, worker.config.name))
        assert await done(conn, enqueue(conn)) == ["succeeded"]


def test_the_clock_that_idle_returns_is_that_of_the_call_however_long_it_takes(
    database: Database, conn: psycopg.Connection
) -> None:
    locker = database.connect(autocommit=False)
    locker.execute("lock table pgqueue.idle_workers in share mode")
    with ThreadPoolExecutor(1) as thread:
        reply = thread.submit(perform, database.connect(), consume.idle("w", None, 5.0))
        waits = (
            "select exists (select from pg_stat_activity where datname = current_database()"
            " and wait_event_type = 'Lock' and query ~ 'pgqueue.idle')"
        )
        wait_until(lambda: value(conn, waits))
        came_before = value(conn, "select extract(epoch from clock_timestamp())::float8")
        locker.rollback()
        assert reply.result(30).clock < came_before


async def test_a_worker_woken_for_nothing_still_wakes_at_the_next_due_time(
    app: App, database: Database, conn: psycopg.Connection
) -> None:
    async with working(app, database.dsn, poll_interval=NEVER) as worker:
        await wait_until_async(lambda: is_asleep(conn, worker.config.name))
        # In one transaction with its end, by another worker: the wake-up finds nothing.
        with conn.transaction():
            conn.execute("set local pgqueue.hand_off = off")
            enqueue(conn)
            [(job_id, reservation)] = conn.execute("select id, reservation from pgqueue.reserve('other')").fetchall()
            call(conn, "complete", job_id, reservation)
        later = enqueue(conn, delay="1.5 s")
        assert await done(conn, later) == ["succeeded"]
        assert wait_of(conn, later, "run_at") >= 0


@pytest.mark.parametrize("listen", [True, False], ids=["every NOTIFY lost", "no LISTEN"])
async def test_without_notify_a_job_is_found_by_a_poll(
    listen: bool, app: App, database: Database, conn: psycopg.Connection
) -> None:
    conn.execute("set pgqueue.notify = off")
    async with working(app, database.dsn, poll_interval=1.5, listen=listen):
        await done(conn, enqueue(conn))
        for _ in range(3):
            assert await done(conn, enqueue(conn)) == ["succeeded"]


async def test_without_listen_no_producer_is_asked_to_notify(
    app: App, database: Database, conn: psycopg.Connection
) -> None:
    async with working(app, database.dsn, poll_interval=0.2, listen=False):
        await done(conn, enqueue(conn))
        assert await done(conn, enqueue(conn)) == ["succeeded"]
    assert value(conn, "select count(*) from pgqueue.idle_workers") == 0


@pytest.mark.covers("G3", "D1")
async def test_a_delayed_job_starts_at_its_due_time_without_a_poll(
    app: App, database: Database, conn: psycopg.Connection
) -> None:
    before = enqueue(conn, delay="1.8 s")
    async with working(app, database.dsn, poll_interval=NEVER) as worker:
        await wait_until_async(lambda: is_asleep(conn, worker.config.name))
        assert await done(conn, before) == ["succeeded"]
        await wait_until_async(lambda: is_asleep(conn, worker.config.name))
        # Sooner than anything the sleeping worker knew of.
        later, sooner = enqueue(conn, delay="1 hour"), enqueue(conn, delay="1 s")
        assert await done(conn, sooner) == ["succeeded"]
    for job_id in (before, sooner):
        assert wait_of(conn, job_id, "run_at") >= 0
    assert job(conn, later).state == "waiting"


@pytest.mark.covers("G11")
async def test_a_failed_job_is_retried_at_its_due_time_without_a_poll(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task(retry_policy="fixed", retry_delay="1.5 s", retry_jitter=0.0, max_attempts=2)
    async def fails() -> None:
        raise LookupError

    job_id = enqueue(conn, "fails")
    async with working(app, database.dsn, poll_interval=NEVER):
        assert await done(conn, job_id) == ["dead"]
    first, second = job(conn, job_id).errors
    gap = "select extract(epoch from %s::timestamptz - %s::timestamptz)::float8"
    # `at` is when the error was stored, which is some time after the backoff began.
    assert value(conn, gap, second["reserved_at"], first["retry_at"]) >= 0
    assert value(conn, gap, first["retry_at"], first["reserved_at"]) >= 1.5


async def test_a_job_of_a_transaction_that_was_open_at_the_registration_is_found_by_the_polls_after_it(
    app: App, database: Database, conn: psycopg.Connection, sent: list[str]
) -> None:
    producer = database.connect(autocommit=False)
    # No worker is idle yet, so this enqueue notifies none.
    job_id = enqueue(producer)
    async with working(app, database.dsn, poll_interval=NEVER):
        # The registration that stays: the first one comes before it listens.
        listens = "select exists (select from pgqueue.idle_workers where handoff_channel is not null)"
        await wait_until_async(lambda: value(conn, listens))
        # The worker has no turn between these two lines: it is on this event loop.
        sent.clear()
        producer.commit()
        assert await done(conn, job_id) == ["succeeded"]
        found = next(i for i, statement in enumerate(sent) if "pgqueue.exchange" in statement or "reserve" in statement)
        assert not [statement for statement in sent[:found] if "pgqueue.idle" in statement]


async def test_a_job_of_a_transaction_that_stays_open_starts_after_its_commit(
    app: App, database: Database, conn: psycopg.Connection
) -> None:
    producer = database.connect(autocommit=False)
    async with working(app, database.dsn, poll_interval=NEVER) as worker:
        await wait_until_async(lambda: is_asleep(conn, worker.config.name))
        job_id = enqueue(producer)
        # Its polls after the next registration are over too.
        until = "select max(until) from pgqueue.idle_workers where handoff_channel is not null"
        registered = value(conn, until)
        await wait_until_async(lambda: value(conn, until) > registered)
        await wait_until_async(lambda: is_asleep(conn, worker.config.name))
        producer.commit()
        assert await done(conn, job_id) == ["succeeded"]


@pytest.mark.long
async def test_an_idle_worker_issues_at_most_one_statement_a_second_and_one_that_tests_its_listener(
    app: App, database: Database, conn: psycopg.Connection, sent: list[str]
) -> None:
    async with working(app, database.dsn) as worker:
        assert worker.config.poll_interval == 5
        # It registers once more when it listens, for it takes hand-offs then.
        listens = "select exists (select from pgqueue.idle_workers where handoff_channel is not null)"
        await wait_until_async(lambda: value(conn, listens))
        await wait_until_async(lambda: is_asleep(conn, worker.config.name))
        assert len(sent) > 5
        sent.clear()
        began = time.monotonic()
        before = value(conn, "select count(*) from pgqueue.maintenance_runs")
        # Two poll intervals and a beat; more where the machine is busy.
        await wait_until_async(lambda: time.monotonic() - began > 11, timeout=20)
        await wait_until_async(lambda: len(sent) > 3)
        await wait_until_async(lambda: value(conn, "select count(*) from pgqueue.maintenance_runs") - before > 3)
        await wait_until_async(lambda: value(conn, "select count(*) from pgqueue.heartbeats") >= 2)
        # One more of each, for both ends of that time count.
        assert len(sent) <= 2 * (time.monotonic() - began + 1)


@pytest.mark.partitions
async def test_an_idle_worker_makes_history_partitions_on_its_second_connection(
    app: App, database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqueue.worker.presence.maintenance._FULL_RUN_EVERY", 0.0)
    async with working(app, database.dsn) as worker:
        await wait_until_async(lambda: is_asleep(conn, worker.config.name))
        gone = value(conn, "select max(relation::text) from pgqueue._partitions()")
        conn.execute(f"drop table {gone}".encode())
        conn.execute("delete from pgqueue.maintenance_steps where step = 'partitions'")
        await wait_until_async(lambda: value(conn, "select to_regclass(%s) is not null", gone), timeout=30)


async def test_a_job_that_wakes_a_worker_is_found_beside_hundreds_of_queues(
    app: App, database: Database, conn: psycopg.Connection
) -> None:
    jobs = [Jsonb({"task": "t", "queue": f"queue {number}"}) for number in range(200)]
    first = [row.job_id for row in table(conn, "enqueue_batch", jobs)]
    maintain(conn)
    async with working(app, database.dsn, poll_interval=NEVER) as worker:
        assert await done(conn, *first) == ["succeeded"] * 200
        await wait_until_async(lambda: is_asleep(conn, worker.config.name))
        # A job with a key is not handed off: it is found by claims, which pass the lanes that have just become empty.
        again = [enqueue(conn, queue=f"queue {number}", key="k") for number in (7, 77, 177)]
        assert await done(conn, *again) == ["succeeded"] * 3
