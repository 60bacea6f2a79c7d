"""A claim whose reply is lost is given back, and nothing that the worker runs is given back with it."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pgqueue import App, Job, Snooze
from pgqueue.hooks import Dead, Event
from tests.calls import enqueue, enqueue_many, job, value
from tests.databases import Database
from tests.facts import wait_until_async
from tests.proxy import Proxy
from tests.workers import done, is_asleep, takes_handoffs, working

# Whether a handler fails, and how many attempts its job has.
ENDS = ((False, 1), (True, 1), (True, 2))

GIVES_BACK = re.compile(r"gave back|that it does not hold")


@pytest.fixture
def proxy(database: Database) -> Iterator[Proxy]:
    with Proxy(database.dsn) as proxy:
        yield proxy


@pytest.mark.covers("A6")
async def test_a_job_claimed_while_another_connection_is_made_anew_is_not_given_back(
    database: Database, conn: psycopg.Connection, proxy: Proxy
) -> None:
    app = App()
    ran: Counter[int] = Counter()
    ends = {"first": asyncio.Event(), "second": asyncio.Event()}

    @app.task
    async def t(run: Job, name: str) -> None:
        ran[run.id] += 1
        await ends[name].wait()

    async with working(app, proxy.dsn, name="w", lease=600.0) as worker:
        first = enqueue(conn, "t", {"name": "first"})
        await wait_until_async(lambda: ran[first] == 1)
        await wait_until_async(lambda: is_asleep(conn, "w"))
        # Either connection may have claimed the job: the one that is cut is the second.
        second_connection = worker._links.second._connection
        assert second_connection is not None
        conn.execute("select pg_terminate_backend(%s)", [second_connection.info.backend_pid])
        # Whatever a worker says first on a new connection about jobs that it does not hold stays on the way.
        proxy.hold(b"held")
        ends["first"].set()
        await wait_until_async(lambda: proxy.holds or job(conn, first).state == "succeeded")
        second = enqueue(conn, "t", {"name": "second"})
        await wait_until_async(lambda: ran[second] == 1)
        reservation = job(conn, second).reservation
        proxy.deliver()
        assert await done(conn, first) == ["succeeded"]
        found = job(conn, second)
        assert (found.state, found.reservation, found.losses) == ("executing", reservation, 0)
        ends["second"].set()
        assert await done(conn, second) == ["succeeded"]
    assert set(ran.values()) == {1}


@pytest.mark.covers("A6")
@pytest.mark.parametrize("statement", [b"pgqueue.held_by(", b"pgqueue.release("])
async def test_no_claim_begins_while_a_worker_gives_back(
    database: Database, conn: psycopg.Connection, proxy: Proxy, statement: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    ran: Counter[int] = Counter()
    go_on = asyncio.Event()

    @app.task
    async def marked(run: Job, i: int = 0) -> None:
        ran[run.id] += 1
        await go_on.wait()

    with caplog.at_level(logging.WARNING, "pgqueue"):
        async with working(app, proxy.dsn, name="w", lease=600.0) as worker:
            await wait_until_async(lambda: is_asleep(conn, "w"))
            proxy.hold(statement)
            proxy.cut_reply_with(b"marked")
            # A job that is handed over is reserved by no claim.
            conn.execute("set pgqueue.hand_off = off")
            lost = enqueue(conn, "marked")
            await wait_until_async(lambda: proxy.holds)
            assert proxy.cuts == 1
            # It is woken for this one, and would have claimed it within milliseconds.
            late = enqueue(conn, "marked")
            until = time.monotonic() + 1
            await wait_until_async(lambda: time.monotonic() > until)
            assert job(conn, late).state == "waiting"
            proxy.deliver()
            await wait_until_async(lambda: len(ran) == 2)
            assert worker.status()["held"] == 2
            go_on.set()
            assert await done(conn, lost, late) == ["succeeded"] * 2
    assert set(ran.values()) == {1}
    assert [each.getMessage() for each in caplog.records if GIVES_BACK.search(each.getMessage())] == [
        f"gave back 1 job that it does not hold: [{lost}]"
    ]
    assert [(job(conn, each).attempts, job(conn, each).losses) for each in (lost, late)] == [(1, 0)] * 2


@pytest.mark.covers("A6")
@pytest.mark.parametrize("statement", [b"pgqueue.held_by(", b"pgqueue.release("])
async def test_a_give_back_that_the_network_delivers_late_takes_nothing_that_was_claimed_since(
    database: Database, conn: psycopg.Connection, proxy: Proxy, statement: bytes
) -> None:
    app = App()
    ran: Counter[int] = Counter()
    go_on = asyncio.Event()

    @app.task
    async def marked(run: Job, i: int = 0) -> None:
        ran[run.id] += 1
        await go_on.wait()

    # A lease this short makes a connection give up after 2 s without an answer.
    async with working(app, proxy.dsn, name="w", lease=4.0):
        await wait_until_async(lambda: is_asleep(conn, "w"))
        proxy.hold(statement)
        proxy.cut_reply_with(b"marked")
        jobs = enqueue_many(conn, 3, "marked")
        await wait_until_async(lambda: proxy.holds)
        stuck = value(
            conn,
            "select max(pid) from pg_stat_activity"
            " where datname = current_database() and application_name = 'pgqueue w'",
        )
        # It gives up, connects anew, gives back, and claims the three again.
        await wait_until_async(lambda: len(ran) == 3, timeout=15)
        held = [job(conn, each).reservation for each in jobs]
        proxy.deliver()
        await wait_until_async(lambda: not proxy.holds)
        # Only now would another reservation be claimed; a round trip after the server has read the late one.
        await wait_until_async(lambda: not _runs(conn, statement))
        assert stuck is not None
        assert [job(conn, each).reservation for each in jobs] == held
        go_on.set()
        assert await done(conn, *jobs) == ["succeeded"] * 3
    assert set(ran.values()) == {1}


def _runs(conn: psycopg.Connection, statement: bytes) -> bool:
    return bool(
        value(
            conn,
            "select exists (select from pg_stat_activity where datname = current_database()"
            " and application_name = 'pgqueue w' and state = 'active' and query like %s)",
            f"%{statement.decode()}%",
        )
    )


@pytest.mark.covers("A6")
async def test_a_claim_that_the_second_connection_sent_is_given_back_when_its_reply_is_lost(
    database: Database, conn: psycopg.Connection, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    ran: Counter[int] = Counter()

    @app.task
    async def t(run: Job, i: int = 0) -> None:
        ran[run.id] += 1
        await asyncio.sleep(0.005)

    with caplog.at_level(logging.WARNING, "pgqueue"):
        async with working(app, proxy.dsn, name="w", concurrency=20, lease=600.0) as worker:
            jobs = enqueue_many(conn, 2000)
            await wait_until_async(lambda: worker.completed > 200)
            # Of two connections that claim in turn, both lose replies.
            for i in range(6):
                before = worker.completed
                proxy.cut_reply_with(b"reserved")
                await wait_until_async(lambda i=i: proxy.cuts > i)  # type: ignore[misc]
                await wait_until_async(lambda before=before: worker.completed > before)  # type: ignore[misc]
            assert set(await done(conn, *jobs, timeout=60)) == {"succeeded"}
    assert value(conn, "select max(attempts) + max(losses) from pgqueue.history") == 1
    # What ended with a lost reply was stored, so nothing ran twice.
    assert len(ran) == 2000
    assert set(ran.values()) == {1}


async def test_ends_whose_reply_is_lost_are_told_as_they_were_stored(
    database: Database, conn: psycopg.Connection, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    go = asyncio.Event()
    events: list[tuple[int | None, str]] = []
    dead: list[int] = []

    @app.on_event
    def note(event: Event) -> None:
        if event.kind not in ("reserved", "started"):
            events.append((event.job_id, event.kind))

    @app.on_dead
    async def hear(found: Dead) -> None:
        dead.append(found.job.id)

    @app.task(retry_policy="fixed", retry_delay="1 hour")
    async def t(fails: bool) -> None:
        await go.wait()
        if fails:
            raise ValueError("no")

    async with working(app, proxy.dsn, name="w") as worker:
        jobs = [enqueue(conn, "t", {"fails": fails}, max_attempts=tries) for fails, tries in ENDS]
        await wait_until_async(lambda: worker.status()["running"] == 3)
        # A column of the reply to ends, in which there may be no row.
        proxy.cut_reply_with(b"outcome")
        go.set()
        await wait_until_async(lambda: len(events) == 3)
        await wait_until_async(lambda: worker.status()["held"] == 0)
        assert (worker.completed, worker.failed) == (1, 2)
        await wait_until_async(lambda: dead)
    assert proxy.cuts == 1
    assert sorted(events) == list(zip(jobs, ["succeeded", "dead", "failed"], strict=True))
    assert dead == jobs[1:2]
    assert "was over" not in caplog.text


@pytest.mark.parametrize(
    ("task", "column", "kind"), [("naps", b"snooze", "snoozed"), ("nobody", b"release", "released")]
)
async def test_a_job_that_goes_back_with_a_lost_reply_is_told_so(
    task: str, column: bytes, kind: str, database: Database, conn: psycopg.Connection, proxy: Proxy
) -> None:
    app = App()
    events: list[str] = []

    @app.on_event
    def note(event: Event) -> None:
        if event.kind not in ("reserved", "started"):
            events.append(event.kind)

    @app.task
    async def naps() -> None:
        raise Snooze("1 hour")

    async with working(app, proxy.dsn, name="w"):
        await wait_until_async(lambda: is_asleep(conn, "w"))
        proxy.cut_reply_with(column)
        # There is no task with the other name: it is given back for ten seconds.
        enqueue(conn, task)
        await wait_until_async(lambda: events)
    assert proxy.cuts == 1
    assert events == [kind]


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_sleep_whose_reply_is_lost_is_no_failure_that_a_handler_undoes(
    kind: str, database: Database, conn: psycopg.Connection, proxy: Proxy
) -> None:
    app = App()
    undone: list[Exception] = []
    ended: list[int] = []

    async def asynchronous(run: Job) -> None:
        try:
            await run.sleep("nap", "1 s")
        except Exception as error:
            undone.append(error)
        ended.append(run.id)

    def synchronous(run: Job) -> None:
        try:
            run.sleep("nap", "1 s")
        except Exception as error:
            undone.append(error)
        ended.append(run.id)

    app.task(name="t", max_attempts=1)(asynchronous if kind == "async" else synchronous)
    async with working(app, proxy.dsn, name="w", lease=600.0):
        await wait_until_async(lambda: is_asleep(conn, "w"))
        # The name of the column that sleep_step is read from.
        proxy.cut_reply_with(b"over")
        job_id = enqueue(conn)
        assert await done(conn, job_id) == ["succeeded"]
    assert proxy.cuts == 1
    assert (undone, ended) == ([], [job_id])
    assert (job(conn, job_id).attempts, job(conn, job_id).losses) == (1, 0)


@pytest.mark.long
@pytest.mark.covers("A6")
@pytest.mark.timeout(120)
async def test_with_a_backend_terminated_every_quarter_of_a_second_nothing_runs_twice(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    ran: Counter[int] = Counter()
    running: set[int] = set()
    overlaps: list[int] = []

    @app.task
    async def t(run: Job, i: int = 0) -> None:
        if run.id in running:
            overlaps.append(run.id)
        running.add(run.id)
        ran[run.id] += 1
        await asyncio.sleep(0.05)
        running.discard(run.id)

    jobs: list[int] = []
    given_back: list[int] = []
    with caplog.at_level(logging.WARNING, "pgqueue"):
        async with working(app, database.dsn, name="w", concurrency=20):
            for _ in range(32):
                jobs += enqueue_many(conn, 50)
                await asyncio.sleep(0.25)
                backends = [
                    pid
                    for (pid,) in conn.execute(
                        "select pid from pg_stat_activity where datname = current_database()"
                        " and application_name = 'pgqueue w'"
                    )
                ]
                if backends:
                    conn.execute("select pg_terminate_backend(%s)", [random.choice(backends)])
            assert set(await done(conn, *jobs, timeout=60)) == {"succeeded"}
    for record in caplog.records:
        if "that it does not hold" in record.getMessage():
            given_back += record.args[1]  # type: ignore[index, arg-type]
    assert overlaps == []
    assert {each for each, times in ran.items() if times > 1} == set()
    assert value(conn, "select max(losses) from pgqueue.history") == 0


@pytest.mark.covers("A6")
async def test_a_job_that_is_handed_off_while_the_worker_asks_for_its_name_is_not_given_back(
    database: Database, conn: psycopg.Connection, proxy: Proxy
) -> None:
    app = App()
    runs: Counter[int] = Counter()
    may_end = asyncio.Event()

    @app.task
    async def t(job: Job, reply: str = "") -> None:
        runs[job.id] += 1
        await may_end.wait()

    with Proxy(database.dsn) as listening:
        async with working(app, proxy.dsn, name="w", lease=600.0, listen_dsn=listening.dsn) as worker:
            await wait_until_async(lambda: is_asleep(conn, "w"))
            # The reply of a claim is lost, and the list of what is reserved waits.
            proxy.hold(b"held_by(")
            proxy.cut_reply_with(b"lost")
            conn.execute("set pgqueue.hand_off = off")
            lost = enqueue(conn, args={"reply": "lost"})
            await wait_until_async(lambda: proxy.holds)
            conn.execute("set pgqueue.hand_off = on")
            await wait_until_async(lambda: takes_handoffs(conn, "w"))
            listening.freeze()
            handed = enqueue(conn)
            assert job(conn, handed).state == "executing"
            is_taken = worker._identity.is_taken

            async def asked(perform: Any) -> bool:
                # The notification arrives only now, when the job is on the list already.
                listening.thaw()
                await wait_until_async(lambda: runs[handed] == 1)
                return await is_taken(perform)

            worker._identity.is_taken = asked  # type: ignore[method-assign]
            proxy.deliver()
            # The lost one was given back, and is claimed again.
            await wait_until_async(lambda: runs[lost] == 1)
            await wait_until_async(lambda: not worker._exchange.is_unsure)
            held = job(conn, handed)
            assert (held.state, held.attempts, runs[handed]) == ("executing", 1, 1)
            may_end.set()
            assert await done(conn, lost, handed) == ["succeeded"] * 2
    assert runs == {lost: 1, handed: 1}
