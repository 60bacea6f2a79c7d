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
from pgqueue.db.call import Call
from pgqueue.db.consume import JobRow
from pgqueue.errors import UnsupportedOption
from pgqueue.worker import Worker
from pgqueue.worker.held import Held
from pgqueue.worker.leases import Leases
from pgqueue.worker.outage import Outage
from tests.calls import call, enqueue, job, maintain, state, value
from tests.databases import Database
from tests.facts import wait_until, wait_until_async
from tests.proxy import Proxy
from tests.worker.conftest import Start
from tests.workers import NEVER, done, working, write_module

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


def takes_handoffs(conn: psycopg.Connection, worker: str) -> bool:
    """Whether enqueue() may hand it a job now."""
    return bool(
        value(
            conn,
            "select exists (select from pgqueue.idle_workers w where w.worker = %s and w.handoff_channel is not null"
            " and w.until > pgqueue._clock())",
            worker,
        )
    )


async def ready(conn: psycopg.Connection, worker: Worker) -> None:
    await wait_until_async(lambda: takes_handoffs(conn, worker.config.name))


def claims(worker: Worker) -> Any:
    """Count the claims of a worker from now on."""
    counted: Counter[str] = Counter()
    claim = worker._report_and_claim

    async def count(*args: Any) -> int:
        counted["claims"] += 1
        return await claim(*args)

    worker._claimer._report_and_claim = count
    return counted


async def test_a_job_starts_without_a_claim(database: Database, conn: psycopg.Connection) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, poll_interval=NEVER) as worker:
        await ready(conn, worker)
        # The polls after its registration are over.
        await asyncio.sleep(1.2)
        counted = claims(worker)
        ids = []
        for _ in range(5):
            ids.append(enqueue(conn))
            assert await done(conn, ids[-1]) == ["succeeded"]
    assert jobs.ran == dict.fromkeys(ids, 1)
    assert counted["claims"] == 0
    assert value(conn, "select count(*) from pgqueue.history where attempts = 1 and reserved_at = created_at") == 5


async def test_a_job_that_runs_on_has_its_lease_extended_in_time(database: Database, conn: psycopg.Connection) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, poll_interval=NEVER, lease=LONG) as worker:
        await ready(conn, worker)
        job_id = enqueue(conn, "t", {"waits": True})
        left = "select extract(epoch from lease_expires_at - pgqueue._clock()) from pgqueue.jobs where id = %s"
        assert value(conn, left, job_id) < 5.1
        began = time.monotonic()
        await wait_until_async(lambda: value(conn, left, job_id) > LONG - 10)
        assert time.monotonic() - began < 4
        jobs.go.set()
        assert await done(conn, job_id) == ["succeeded"]
    assert jobs.ran[job_id] == 1


async def test_a_handler_that_blocks_the_event_loop_keeps_its_job_as_long_as_a_claimed_one(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    ran: list[int] = []
    go = threading.Event()

    @app.task
    async def t(run: Job) -> None:
        ran.append(run.attempt)
        go.wait(15)

    def other_worker() -> float:
        """Take back leases for longer than a first one holds, as another worker would; the job's at the end of that."""
        left = -1.0
        with psycopg.connect(database.dsn, autocommit=True) as beside:
            began = time.monotonic()
            while time.monotonic() < began + 7:
                maintain(beside)
                left = value(beside, "select extract(epoch from lease_expires_at - pgqueue._clock()) from pgqueue.jobs")
                time.sleep(0.2)
        go.set()
        return float(left)

    async with working(app, database.dsn, name="a", poll_interval=NEVER, lease=LONG) as a:
        await ready(conn, a)
        beside = asyncio.get_running_loop().run_in_executor(None, other_worker)
        job_id = enqueue(conn)
        assert await done(conn, job_id) == ["succeeded"]
        assert LONG - 10 < await beside < LONG
    assert (ran, job(conn, job_id).losses) == ([1], 0)


async def test_an_error_of_the_first_extension_does_not_lose_the_lease(
    database: Database, conn: psycopg.Connection
) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", lease=LONG) as a:
        await ready(conn, a)
        perform, raised = a._links.keeping.perform, False

        async def once(call: Any, **options: Any) -> Any:
            nonlocal raised
            if b"pgqueue.extend" in call.text and not raised:
                # A migration has outdated the plan.
                raised = True
                raise UnsupportedOption("cached plan must not change result type", hint="")
            return await perform(call, **options)

        a._links.keeping.perform = once  # type: ignore[method-assign]
        job_id = enqueue(conn, "t", {"waits": True})
        left = "select extract(epoch from lease_expires_at - pgqueue._clock()) from pgqueue.jobs where id = %s"
        await wait_until_async(lambda: value(conn, left, job_id) > LONG - 10, timeout=8)
        assert raised
        jobs.go.set()
        assert await done(conn, job_id) == ["succeeded"]
    assert (jobs.ran[job_id], job(conn, job_id).losses) == (1, 0)


async def test_a_frozen_connection_is_replaced_before_the_first_lease_ends(
    database: Database, conn: psycopg.Connection
) -> None:
    jobs = Jobs()
    with Proxy(database.dsn) as proxy:
        async with working(jobs.app, proxy.dsn, name="a", lease=LONG) as a:
            await ready(conn, a)
            proxy.hold(b"pgqueue.extend")
            job_id = enqueue(conn, "t", {"waits": True})
            await wait_until_async(lambda: proxy.holds)
            left = "select extract(epoch from lease_expires_at - pgqueue._clock()) from pgqueue.jobs where id = %s"
            await wait_until_async(lambda: value(conn, left, job_id) > LONG - 10, timeout=8)
            jobs.go.set()
            assert await done(conn, job_id) == ["succeeded"]
            proxy.deliver()
    assert (jobs.ran[job_id], job(conn, job_id).losses) == (1, 0)


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
        claimed, arrives = asyncio.Event(), asyncio.Event()
        perform = a._links.first.perform

        async def late(call: Any, **options: Any) -> Any:
            reply = await perform(call, **options)
            if isinstance(reply, list) and reply:
                claimed.set()
                await arrives.wait()
            return reply

        a._links.first.perform = late  # type: ignore[method-assign]
        conn.execute("set pgqueue.fast_path = off")
        announced = enqueue(conn)
        await claimed.wait()
        conn.execute("reset pgqueue.fast_path")
        handed = enqueue(conn, "t", {"waits": True})
        await wait_until_async(lambda: jobs.ran[handed])
        arrives.set()
        await wait_until_async(lambda: state(conn, announced) == "waiting", timeout=3)
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
        await asyncio.sleep(0.1)
        assert takes_handoffs(conn, "a")
        waiting.append(enqueue(conn, "t", {"waits": True}))
        await wait_until_async(lambda: not takes_handoffs(conn, "a"))
        late = enqueue(conn)
        assert state(conn, late) == "waiting"
        jobs.go.set()
        assert await done(conn, *waiting, late) == ["succeeded"] * 3
        # Idle again.
        await ready(conn, a)


@pytest.mark.parametrize("how", ["stop", "quiet"])
async def test_a_worker_that_claims_no_more_takes_no_more(
    how: str, database: Database, conn: psycopg.Connection
) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", poll_interval=NEVER) as a:
        await ready(conn, a)
        running = enqueue(conn, "t", {"waits": True})
        await wait_until_async(lambda: jobs.ran[running])
        other = database.connect(autocommit=False)
        late = enqueue(other)
        assert state(other, late) == "executing"
        (a.stop if how == "stop" else a.be_quiet)()
        await wait_until_async(lambda: not takes_handoffs(conn, "a"))
        # Handed over before.
        other.commit()
        await wait_until_async(lambda: state(conn, late) == "waiting")
        jobs.go.set()
        assert await done(conn, running) == ["succeeded"]
    assert jobs.ran == {running: 1}


@pytest.mark.parametrize("seconds", [1.2, 6.5], ids=["lease holds", "lease over"])
async def test_a_transaction_that_stays_open_after_its_enqueue(
    seconds: float, database: Database, conn: psycopg.Connection
) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", poll_interval=NEVER, lease=LONG) as a:
        await ready(conn, a)
        other = database.connect(autocommit=False)
        job_id = enqueue(other, "t", {"waits": True})
        await asyncio.sleep(seconds)
        other.commit()
        left = "select extract(epoch from lease_expires_at - pgqueue._clock()) from pgqueue.jobs where id = %s"
        await wait_until_async(lambda: jobs.ran[job_id], timeout=3)
        assert value(conn, left, job_id) > LONG - 10
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
        assert state(other, job_id) == "executing"
        await asyncio.to_thread(meanwhile, conn)
        # More than a second after the enqueue.
        await asyncio.sleep(1.2)
        other.commit()
        await wait_until_async(lambda: state(conn, job_id) == "waiting")
        await asyncio.sleep(0.3)
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
            assert state(conn, job_id) == "executing"
            call(conn, "cancel", job_id)
        assert await done(conn, job_id) == ["cancelled"]
    assert jobs.ran == {}


async def test_a_job_that_is_cancelled_before_its_late_notification_is_read_does_not_start(
    database: Database, conn: psycopg.Connection
) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", poll_interval=NEVER) as a:
        await ready(conn, a)
        heard: list[str] = []
        a._listener._on_handoff = heard.append
        job_id = enqueue(conn)
        await wait_until_async(lambda: heard)
        # The worker stood still meanwhile.
        await asyncio.sleep(1.2)
        conn.execute("set pgqueue.notify = off")
        assert call(conn, "cancel", job_id) == "requested"
        a._claimer.handed_off(heard[0])
        assert await done(conn, job_id) == ["cancelled"]
    assert jobs.ran == {}


async def test_a_job_that_was_given_back_before_its_notification_came_does_not_start(
    database: Database, conn: psycopg.Connection
) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", poll_interval=NEVER) as a:
        await ready(conn, a)
        heard: list[str] = []
        a._listener._on_handoff = heard.append
        job_id = enqueue(conn)
        await wait_until_async(lambda: heard)
        # As if it were still on its way.
        a._exchange.handoffs_missed()
        assert await done(conn, job_id) == ["succeeded"]
        a._claimer.handed_off(heard[0])
        await asyncio.sleep(0.1)
    assert jobs.ran == {job_id: 1}


async def test_the_same_notification_twice_starts_one_job(database: Database, conn: psycopg.Connection) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", poll_interval=NEVER) as a:
        await ready(conn, a)
        take = a._claimer.handed_off

        def twice(payload: str) -> None:
            take(payload)
            take(payload)

        a._listener._on_handoff = twice
        job_id = enqueue(conn, "t", {"waits": True})
        await wait_until_async(lambda: jobs.ran[job_id])
        jobs.go.set()
        assert await done(conn, job_id) == ["succeeded"]
    assert jobs.ran == {job_id: 1}


async def test_a_notification_that_is_lost_with_its_connection_delays_the_job_by_the_reconnect_only(
    database: Database, conn: psycopg.Connection
) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", poll_interval=NEVER) as a:
        await ready(conn, a)
        heard: list[str] = []
        a._listener._on_handoff = heard.append
        job_id = enqueue(conn)
        await wait_until_async(lambda: heard)
        began = time.monotonic()
        listener = value(conn, "select listener from pgqueue.idle_workers where listener is not null limit 1")
        conn.execute("select pg_terminate_backend(%s)", [listener])
        assert await done(conn, job_id) == ["succeeded"]
        assert time.monotonic() - began < 4
    assert jobs.ran == {job_id: 1}


async def test_an_unknown_task_is_given_back_with_a_delay(database: Database, conn: psycopg.Connection) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", poll_interval=NEVER) as a:
        await ready(conn, a)
        job_id = enqueue(conn, "unknown")
        assert job(conn, job_id).reserved_by == "a"
        await wait_until_async(lambda: state(conn, job_id) == "waiting")
        assert value(conn, "select run_at < ready_at from pgqueue.jobs where id = %s", job_id)


async def test_a_stream_of_jobs_makes_the_worker_claim(database: Database, conn: psycopg.Connection) -> None:
    # Each commit with a NOTIFY waits for the others.
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", poll_interval=NEVER) as a:
        await ready(conn, a)
        ids: list[int] = []
        began = time.monotonic()
        while takes_handoffs(conn, "a"):
            assert time.monotonic() - began < 20
            for _ in range(50):
                ids.append(await asyncio.to_thread(enqueue, conn))
        assert set(await done(conn, *ids)) == {"succeeded"}
    assert jobs.ran == dict.fromkeys(ids, 1)


async def test_a_worker_that_lives_on_hand_offs_is_ready(database: Database, conn: psycopg.Connection) -> None:
    jobs = Jobs()
    async with working(jobs.app, database.dsn, name="a", poll_interval=5) as a:
        await ready(conn, a)
        await asyncio.sleep(1.2)
        # It has not claimed for long: it is idle, or every job was handed to it.
        a._claimer.claimed_at = time.monotonic() - 1000
        assert a.status()["ready"] is True
        a._claimer.sleeper.answered_at = time.monotonic() - 1000
        assert a.status()["reason"] == "no call of reserve or idle was answered for 1000 s"


TASKS = """
    from pgqueue import App

    app = App()

    @app.task
    async def t(): ...
"""


def test_a_killed_worker_gets_no_more_jobs(start_worker: Start, conn: psycopg.Connection, tmp_path: Path) -> None:
    write_module(tmp_path, TASKS)
    killed, _ = (start_worker("-r", "jobs", "--name", name) for name in ("killed", "other"))
    for name in ("killed", "other"):
        wait_until(lambda name=name: takes_handoffs(conn, name))
    killed.kill()
    began = time.monotonic()
    ids = [enqueue(conn) for _ in range(20)]
    ended = "select count(*) from pgqueue.history where id = any(%s) and state = 'succeeded'"
    wait_until(lambda: value(conn, ended, ids) == 20)
    # Less than the lease of a hand-off, and than the poll interval.
    assert time.monotonic() - began < 3


class _Recording:
    """A connection for leases, which takes down what it is asked and never answers."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    async def perform(self, call: Call[object], **_: object) -> object:
        self.asked.append(call.params[0])
        return await asyncio.Event().wait()


def _held(job_id: int, age: float) -> Held:
    """A job that was handed over `age` seconds ago."""
    now = time.monotonic()
    row = JobRow(**dict.fromkeys(JobRow._fields) | {"id": job_id, "reservation": 1})
    return Held(row, now - age + 5.0, now - age)


async def test_a_first_lease_is_not_extended_while_its_job_has_just_come() -> None:
    link = _Recording()
    leases = Leases(link, Outage(""), 30.0, lambda held, why: None, lambda held: None)  # type: ignore[arg-type]
    leases.add_short(_held(1, age=4.0))
    # It stays as young as this for the whole test.
    leases.add_short(_held(2, age=-60.0))
    extending = asyncio.create_task(leases.extend_short_forever())
    await wait_until_async(lambda: link.asked)
    extending.cancel()
    assert link.asked == [[1]]
