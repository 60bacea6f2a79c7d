"""Hand-offs in the worker: a job that enqueue() reserved for it starts without a claim, once, and is never lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgqueue import App, Job
from pgqueue.db.consume import JobRow
from pgqueue.testing import Clock
from pgqueue.worker import Worker
from pgqueue.worker.hold.held import Held
from pgqueue.worker.link.connection import Link
from pgqueue.worker.run.runner import Runner
from pgqueue.worker.run.throughput import Throughput
from pgqueue.worker.trade.exchange import Exchange, Reply
from pgqueue.worker.trade.notify_load import NotifyLoad
from tests.calls import call, enqueue, job, maintain, state, value
from tests.databases import Database
from tests.facts import wait_until, wait_until_async
from tests.proxy import Proxy
from tests.worker.conftest import Start
from tests.workers import NEVER, done, takes_handoffs, working, write_module

LONG = 60.0


class Jobs:
    """An app whose task `t` counts its runs, and waits for `go` where it is asked to."""

    def __init__(self) -> None:
        self.app = App()
        self.ran: Counter[int] = Counter()
        self.go = asyncio.Event()

        @self.app.task
        async def t(run: Job, waits: bool = False) -> None:
            self.ran[run.id] += 1
            if waits:
                await self.go.wait()


async def ready(conn: psycopg.Connection, worker: Worker) -> None:
    await wait_until_async(lambda: takes_handoffs(conn, worker.config.name))


def polls_no_more(worker: Worker) -> bool:
    """Whether it waits to be woken, and the polls after its registration are over."""
    waiting = worker._sleeper._waiting
    until = None if waiting is None or waiting.expired() else waiting.when()
    return until is not None and until > asyncio.get_running_loop().time() + 0.5


def claims(worker: Worker) -> Any:
    """Count the claims of a worker from now on."""
    counted: Counter[str] = Counter()
    claim = worker._trade.claim

    async def count(*args: Any, **named: Any) -> int:
        counted["claims"] += 1
        return await claim(*args, **named)

    worker._trade.claim = count
    return counted


def late_claims(worker: Worker) -> tuple[asyncio.Event, asyncio.Event]:
    """Hold back the replies of claims that bring jobs: whether one came, and the event that lets them go on."""
    claimed, arrives = asyncio.Event(), asyncio.Event()

    def late(perform: Callable[..., Any]) -> Callable[..., Any]:
        async def performed(call: Any, **options: Any) -> Any:
            reply = await perform(call, **options)
            if isinstance(reply, list) and reply and isinstance(reply[0], JobRow):
                claimed.set()
                await arrives.wait()
            return reply

        return performed

    for link in (worker._links.first, worker._links.second):
        link.perform = late(link.perform)  # type: ignore[method-assign]
    return claimed, arrives


async def test_a_job_starts_without_a_claim(database: Database, conn: psycopg.Connection) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, poll_interval=NEVER) as worker:
        await ready(conn, worker)
        await wait_until_async(lambda: polls_no_more(worker))
        counted = claims(worker)
        ids = []
        for _ in range(5):
            ids.append(enqueue(conn))
            assert await done(conn, ids[-1]) == ["succeeded"]
    assert jobs.ran == dict.fromkeys(ids, 1)
    assert counted["claims"] == 0
    assert value(conn, "select count(*) from pgqueue.history where attempts = 1") == 5


LEFT = "select extract(epoch from lease_expires_at - pgqueue._clock()) from pgqueue.jobs where id = %s"


async def test_a_handler_that_keeps_the_worker_from_all_else_runs_once_while_its_lease_holds(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    app = App()
    ran: list[int] = []
    began, go = threading.Event(), threading.Event()

    @app.task
    async def t(run: Job) -> None:
        # Nothing else of this worker runs meanwhile: its loop is blocked, as by the interpreter's lock.
        ran.append(run.attempt)
        began.set()
        go.wait(120)

    def other_worker() -> int:
        """Run maintenance until the lease is nearly over, as another worker would."""
        began.wait(120)
        rescued = 0
        with psycopg.connect(database.dsn, autocommit=True) as beside:
            for _ in range(9):
                clock.advance("6 s")
                rescued += maintain(beside).rescued
        clock.back_to_real()
        go.set()
        return rescued

    async with working(app, database.dsn, name="a", poll_interval=NEVER, lease=LONG) as a:
        await ready(conn, a)
        beside = asyncio.get_running_loop().run_in_executor(None, other_worker)
        job_id = enqueue(conn)
        assert await done(conn, job_id) == ["succeeded"]
        assert await beside == 0
    assert (ran, job(conn, job_id).losses) == ([1], 0)


async def test_a_worker_without_a_free_slot_gives_a_job_back_at_once(
    database: Database, conn: psycopg.Connection
) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", concurrency=1, poll_interval=NEVER) as a:
        await ready(conn, a)
        first, second = enqueue(conn, "t", {"waits": True}), enqueue(conn)
        assert job(conn, second).reserved_by == "a"
        await wait_until_async(lambda: state(conn, second) == "waiting")
        async with working(jobs.app, database.dsn, name="b", poll_interval=NEVER):
            assert await done(conn, second) == ["succeeded"]
        jobs.go.set()
        assert await done(conn, first) == ["succeeded"]
    assert jobs.ran == {first: 1, second: 1}
    assert {(job(conn, each).attempts, job(conn, each).losses) for each in (first, second)} == {(1, 0)}


async def test_a_claimed_job_whose_slot_a_hand_off_took_meanwhile_goes_to_another_worker(
    database: Database, conn: psycopg.Connection
) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", concurrency=1, poll_interval=NEVER) as a:
        await ready(conn, a)
        # A claim that is under way already would not be held back, and may bring what comes later.
        await wait_until_async(lambda: polls_no_more(a))
        claimed, arrives = late_claims(a)
        conn.execute("set pgqueue.hand_off = off")
        announced = enqueue(conn)
        await claimed.wait()
        conn.execute("reset pgqueue.hand_off")
        handed = enqueue(conn, "t", {"waits": True})
        await wait_until_async(lambda: jobs.ran[handed])
        arrives.set()
        await wait_until_async(lambda: state(conn, announced) == "waiting")
        async with working(jobs.app, database.dsn, name="b", poll_interval=NEVER):
            assert await done(conn, announced) == ["succeeded"]
        jobs.go.set()
        assert await done(conn, handed) == ["succeeded"]
    assert jobs.ran == {announced: 1, handed: 1}


async def test_a_worker_whose_slots_stay_full_takes_no_more(database: Database, conn: psycopg.Connection) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", concurrency=2, poll_interval=NEVER) as a:
        await ready(conn, a)
        waiting = [enqueue(conn, "t", {"waits": True})]
        await wait_until_async(lambda: jobs.ran[waiting[0]])
        # It has a free slot still, and so registers once more.
        until = "select max(until) from pgqueue.idle_workers where handoff_channel is not null"
        registered = value(conn, until)
        await wait_until_async(lambda: value(conn, until) > registered)
        assert takes_handoffs(conn, "a")
        waiting.append(enqueue(conn, "t", {"waits": True}))
        await wait_until_async(lambda: not takes_handoffs(conn, "a"))
        late = enqueue(conn)
        assert state(conn, late) == "waiting"
        jobs.go.set()
        assert await done(conn, *waiting, late) == ["succeeded"] * 3
        # Idle again.
        await ready(conn, a)


async def test_a_worker_that_could_not_claim_takes_no_more_for_these_would_go_before_jobs_that_are_announced(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As of a stream of a thousand a second; and these commits wait for no other.
    monkeypatch.setattr(Throughput, "buffer", lambda _: 100)
    monkeypatch.setattr(NotifyLoad, "heard", lambda *_: False)
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", concurrency=1, poll_interval=NEVER) as a:
        await ready(conn, a)
        running = enqueue(conn, "t", {"waits": True})
        await wait_until_async(lambda: jobs.ran[running])
        # More than half of what it holds, and not all: it has room for others, and begins no claim.
        waiting = [enqueue(conn) for _ in range(60)]
        await wait_until_async(lambda: not takes_handoffs(conn, "a"))
        assert a._runner.room > 0
        late = enqueue(conn)
        assert state(conn, late) == "waiting"
        jobs.go.set()
        assert set(await done(conn, running, *waiting, late)) == {"succeeded"}
        # Idle again.
        await ready(conn, a)
    assert jobs.ran == dict.fromkeys([running, *waiting, late], 1)


@pytest.mark.parametrize("how", ["stop", "quiet"])
async def test_a_worker_that_claims_no_more_takes_no_more(
    how: str, database: Database, conn: psycopg.Connection
) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", poll_interval=NEVER) as a:
        await ready(conn, a)
        running = enqueue(conn, "t", {"waits": True})
        await wait_until_async(lambda: jobs.ran[running])
        heard: list[str] = []
        a._hearing.handed_off = heard.append
        late = enqueue(conn)
        await wait_until_async(lambda: heard)
        (a.stop if how == "stop" else a.be_quiet)()
        await wait_until_async(lambda: not takes_handoffs(conn, "a"))
        # Handed over before.
        a._intake.handed_off(heard[0])
        await wait_until_async(lambda: state(conn, late) == "waiting")
        jobs.go.set()
        assert await done(conn, running) == ["succeeded"]
    assert jobs.ran == {running: 1}


async def test_a_transaction_that_stays_open_after_its_enqueue_hands_off_when_it_commits(
    database: Database, conn: psycopg.Connection
) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", poll_interval=NEVER, lease=LONG) as a:
        await ready(conn, a)
        other = database.connect(autocommit=False)
        other.execute("create table orders ()")
        job_id = enqueue(other, "t", {"waits": True})
        # Longer than the registration that it saw.
        until = value(conn, "select max(until) from pgqueue.idle_workers where handoff_channel is not null")
        await wait_until_async(lambda: value(conn, "select clock_timestamp() > %s", until))
        assert state(other, job_id) == "waiting"
        await ready(conn, a)
        other.commit()
        await wait_until_async(lambda: jobs.ran[job_id])
        assert value(conn, LEFT, job_id) > LONG - 10
        jobs.go.set()
        assert await done(conn, job_id) == ["succeeded"]
    assert jobs.ran[job_id] == 1
    assert job(conn, job_id).attempts == 1


def _queue_is_paused(conn: psycopg.Connection) -> None:
    call(conn, "pause_queue", "default")


def _limit_is_reached(conn: psycopg.Connection) -> None:
    call(conn, "set_limit", "queue", "default", 1)
    enqueue(conn, "t", {"waits": True})
    wait_until(lambda: value(conn, "select count(*) from pgqueue.jobs where state = 'executing'") == 1)


@pytest.mark.parametrize("meanwhile", [_queue_is_paused, _limit_is_reached], ids=["paused", "limit"])
async def test_what_happens_before_the_commit_keeps_a_job_from_starting(
    meanwhile: Callable[[psycopg.Connection], None], database: Database, conn: psycopg.Connection
) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", poll_interval=NEVER) as a:
        await ready(conn, a)
        other = database.connect(autocommit=False)
        job_id = enqueue(other)
        await asyncio.to_thread(meanwhile, conn)
        other.commit()
        # Decided with the commit.
        assert state(conn, job_id) == "waiting"
        jobs.go.set()
    assert jobs.ran[job_id] == 0


async def test_a_job_that_is_cancelled_in_its_own_transaction_does_not_start(
    database: Database, conn: psycopg.Connection
) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", poll_interval=NEVER) as a:
        await ready(conn, a)
        with conn.transaction():
            job_id = enqueue(conn)
            call(conn, "cancel", job_id)
        assert await done(conn, job_id) == ["cancelled"]
    assert jobs.ran == {}


async def test_a_job_whose_lease_was_over_when_its_notification_came_does_not_start_under_it(
    database: Database, conn: psycopg.Connection
) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", poll_interval=NEVER, lease=LONG) as a:
        await ready(conn, a)
        heard: list[str] = []
        a._hearing.handed_off = heard.append
        job_id = enqueue(conn)
        await wait_until_async(lambda: heard)
        # The commit waited that long for NOTIFY's lock, or the worker stood still. Given back, it stays where it is.
        call(conn, "pause_queue", "default")
        a._intake.handoffs.clock_read(time.time() + LONG + 1, time.monotonic())
        a._intake.handed_off(heard[0])
        await wait_until_async(lambda: state(conn, job_id) == "waiting")
        assert jobs.ran == {}


async def test_a_hand_off_that_does_not_arrive_comes_back_when_the_registration_ends_and_is_ignored_later(
    database: Database, conn: psycopg.Connection
) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", poll_interval=NEVER, lease=LONG) as a:
        await ready(conn, a)
        heard: list[str] = []
        a._hearing.handed_off = heard.append
        job_id = enqueue(conn)
        await wait_until_async(lambda: heard)
        # Another job keeps it busy.
        conn.execute("set pgqueue.hand_off = off")
        a._intake.leave_idle()
        assert await done(conn, job_id) == ["succeeded"]
        a._intake.handed_off(heard[0])
        later = enqueue(conn)
        assert await done(conn, later) == ["succeeded"]
    assert jobs.ran == {job_id: 1, later: 1}


async def test_a_hand_off_that_does_not_arrive_comes_back_also_where_the_loop_that_claims_is_started_again(
    database: Database, conn: psycopg.Connection
) -> None:
    jobs = Jobs()
    # By its lease it would come back after an hour.
    async with working(jobs.app, database.dsn, name="a", poll_interval=NEVER, lease=3600) as a:
        await ready(conn, a)
        heard: list[str] = []
        a._hearing.handed_off = heard.append
        job_id = enqueue(conn)
        await wait_until_async(lambda: heard)
        # In a second it will be looked for.
        a._intake.compare_soon()
        [claiming] = [each for each in asyncio.all_tasks() if each.get_name() == "pgqueue-claiming"]
        claiming.cancel()
        assert await done(conn, job_id) == ["succeeded"]
    assert jobs.ran == {job_id: 1}


async def test_a_claim_under_way_is_not_taken_for_a_hand_off_that_was_lost(
    database: Database, conn: psycopg.Connection
) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", poll_interval=NEVER) as a:
        await ready(conn, a)
        # A claim that is under way already would not be held back.
        await wait_until_async(lambda: polls_no_more(a))
        claimed, arrives = late_claims(a)
        # Offered, and by then announced.
        with conn.transaction():
            job_id = enqueue(conn, "t", {"waits": True})
            conn.execute("set constraints all immediate")
        await claimed.wait()
        a._exchange.compare_handoffs()
        older = "select reserved_at < pgqueue._clock() - interval '0.6 s' from pgqueue.jobs where id = %s"
        await wait_until_async(lambda: value(conn, older, job_id))
        arrives.set()
        await wait_until_async(lambda: jobs.ran[job_id])
        jobs.go.set()
        assert await done(conn, job_id) == ["succeeded"]
    assert (jobs.ran, job(conn, job_id).losses) == ({job_id: 1}, 0)


async def test_a_listening_connection_that_does_not_answer_is_offered_no_more(
    database: Database, conn: psycopg.Connection
) -> None:
    jobs = Jobs()
    with Proxy(database.dsn) as proxy:
        async with working(jobs.app, database.dsn, name="a", poll_interval=1, lease=600, listen_dsn=proxy.dsn) as a:
            await ready(conn, a)
            proxy.freeze()
            # It is reserved for the worker, whose listener hears nothing, or not offered any more.
            job_id = enqueue(conn)
            await wait_until_async(lambda: not takes_handoffs(conn, "a"))
            assert await done(conn, job_id) == ["succeeded"]
            proxy.thaw()
            # The same connection answers again.
            await ready(conn, a)
            again = enqueue(conn)
            assert await done(conn, again) == ["succeeded"]
    assert jobs.ran == {job_id: 1, again: 1}


async def test_the_same_notification_twice_starts_one_job(database: Database, conn: psycopg.Connection) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", poll_interval=NEVER) as a:
        await ready(conn, a)
        take = a._intake.handed_off

        def twice(payload: str) -> None:
            take(payload)
            take(payload)

        a._hearing.handed_off = twice
        job_id = enqueue(conn, "t", {"waits": True})
        await wait_until_async(lambda: jobs.ran[job_id])
        jobs.go.set()
        assert await done(conn, job_id) == ["succeeded"]
    assert jobs.ran == {job_id: 1}


async def test_a_notification_that_is_lost_with_its_connection_delays_the_job_by_the_reconnect_only(
    database: Database, conn: psycopg.Connection
) -> None:
    jobs = Jobs()
    # By its lease it would come back after an hour.
    async with working(jobs.app, database.dsn, name="a", poll_interval=NEVER, lease=3600) as a:
        await ready(conn, a)
        heard: list[str] = []
        a._hearing.handed_off = heard.append
        job_id = enqueue(conn)
        await wait_until_async(lambda: heard)
        listener = value(conn, "select listener from pgqueue.idle_workers where listener is not null limit 1")
        conn.execute("select pg_terminate_backend(%s)", [listener])
        assert await done(conn, job_id) == ["succeeded"]
    assert jobs.ran == {job_id: 1}


async def test_an_unknown_task_is_given_back_with_a_delay(database: Database, conn: psycopg.Connection) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", poll_interval=NEVER) as a:
        await ready(conn, a)
        job_id = enqueue(conn, "unknown")
        assert job(conn, job_id).reserved_by == "a"
        await wait_until_async(lambda: state(conn, job_id) == "waiting")
        assert value(conn, "select run_at < ready_at from pgqueue.jobs where id = %s", job_id)


def enqueue_some(conn: psycopg.Connection) -> list[int]:
    return [enqueue(conn) for _ in range(10)]


async def test_hand_offs_that_keep_up_go_on(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Thirty jobs in 100 ms are more than a busy machine runs for sure.
    monkeypatch.setattr(Runner, "is_busy", property(lambda _: True))
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", poll_interval=NEVER) as a:
        await ready(conn, a)
        since = a._sleeper._idle_since
        for _ in range(40):
            assert await done(conn, enqueue(conn)) == ["succeeded"]
        assert a._sleeper._idle_since == since
    assert list(jobs.ran.values()) == [1] * 40


async def test_ends_of_a_stream_of_hand_offs_are_reported_together(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A stream, however slow the machine is.
    for name, setting in (("_STREAM_OF", 0), ("_SPAN", 60.0), ("_STREAM", 60.0)):
        monkeypatch.setattr(f"pgqueue.worker.trade.notify_load.{name}", setting)
    monkeypatch.setattr("pgqueue.worker.trade.trade._GATHER", 2.0)
    reported: list[int] = []
    perform = Exchange.perform

    async def note(self: Exchange, link: Link, max_jobs: int, batch: list[Held], **how: Any) -> Reply:
        reported.append(len(batch))
        return await perform(self, link, max_jobs, batch, **how)

    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", poll_interval=NEVER) as a:
        await ready(conn, a)
        # A claim takes along the ends that wait.
        await wait_until_async(lambda: polls_no_more(a))
        monkeypatch.setattr(Exchange, "perform", note)
        ids = [enqueue(conn) for _ in range(4)]
        assert await done(conn, *ids) == ["succeeded"] * 4
    assert jobs.ran == dict.fromkeys(ids, 1)
    assert len([each for each in reported if each]) < 4


async def test_a_stream_of_jobs_makes_the_worker_claim(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each commit with a NOTIFY waits for the others. Thirteen hundred a second are more than a busy machine has.
    monkeypatch.setattr("pgqueue.worker.trade.notify_load._MOST", 5)
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", poll_interval=NEVER) as a:
        await ready(conn, a)
        ids: list[int] = []
        producers = [database.connect() for _ in range(6)]
        while takes_handoffs(conn, "a"):
            for each in await asyncio.gather(*(asyncio.to_thread(enqueue_some, one) for one in producers)):
                ids += each
        assert set(await done(conn, *ids)) == {"succeeded"}
    assert jobs.ran == dict.fromkeys(ids, 1)


async def test_a_worker_that_lives_on_hand_offs_is_ready(database: Database, conn: psycopg.Connection) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", poll_interval=5) as a:
        await ready(conn, a)
        await wait_until_async(lambda: polls_no_more(a))
        # It has not claimed for long: it is idle, or every job was handed to it.
        a._intake.claimed_at = time.monotonic() - 1000
        assert a.status()["ready"] is True
        a._sleeper.answered_at = time.monotonic() - 1000
        assert a.status()["reason"] == "no call of reserve or idle was answered for 1000 s"


TASKS = """
    from pgqueue import App

    app = App()

    @app.task
    async def t(): ...
"""


def test_a_killed_worker_gets_no_more_jobs(start_worker: Start, conn: psycopg.Connection, tmp_path: Path) -> None:
    write_module(tmp_path, TASKS)
    # What is handed to the dead one comes back after an hour.
    options = ("--lease", "3600", "--poll-interval", "3600")
    killed, _ = (start_worker("-r", "jobs", "--name", name, *options) for name in ("killed", "other"))
    for name in ("killed", "other"):
        wait_until(lambda name=name: takes_handoffs(conn, name))
    killed.kill()
    ids = [enqueue(conn) for _ in range(20)]
    ended = "select count(*) from pgqueue.history where id = any(%s) and state = 'succeeded'"
    wait_until(lambda: value(conn, ended, ids) == 20)
