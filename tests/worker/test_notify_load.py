"""A worker leaves "idle" where its notifications make commits of producers wait for each other, and not elsewhere."""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections import Counter

import psycopg
import pytest

from pgqueue import App, Job
from pgqueue.worker.hold.handoffs import Handoffs
from pgqueue.worker.trade.notify_load import NotifyLoad
from tests.calls import enqueue, enqueue_many, value
from tests.databases import Database
from tests.facts import wait_until_async
from tests.worker.test_handoff import ready, takes_handoffs
from tests.workers import NEVER, done, working


def commits(load: NotifyLoad, producers: int, takes: float, pause: float = 0.0, seconds: float = 30.0) -> float | None:
    """Let producers commit, each after its own last one and a pause; when the load says to leave idle, if it does.

    NOTIFY's lock lets one commit at a time, which takes `takes` seconds; a commit waits for those before it.
    """
    rng = random.Random(1)
    begins = [100.0 + rng.random() * (pause or takes) for _ in range(producers)]
    free_at = 0.0
    while (began := min(begins)) < 100.0 + seconds:
        free_at = max(free_at, began) + takes
        load.came(1, free_at)
        if load.heard(free_at - began, free_at):
            return free_at
        begins[begins.index(began)] = free_at + (rng.expovariate(1 / pause) if pause else 0.0)
    return None


@pytest.mark.parametrize("takes", [0.0005, 0.002, 0.01, 0.05])
def test_one_producer_never_makes_a_worker_leave_idle_however_it_commits(takes: float) -> None:
    assert commits(NotifyLoad(), 1, takes) is None


@pytest.mark.parametrize(("producers", "takes"), [(2, 0.01), (4, 0.01), (16, 0.01), (16, 0.004), (16, 0.1)])
def test_producers_that_wait_for_each_other_do_so_at_once(producers: int, takes: float) -> None:
    left_at = commits(NotifyLoad(), producers, takes)
    assert left_at is not None
    # Some commits are needed to see it.
    assert left_at <= 100.0 + 12 * takes


def test_a_quiet_trickle_of_slow_commits_and_a_thousand_quick_ones_a_second_do_not() -> None:
    # 40 a second of 10 ms.
    assert commits(NotifyLoad(), 8, 0.01, pause=0.19) is None
    assert commits(NotifyLoad(), 4, 0.0003, pause=0.0037) is None
    # As fast as they can, they wait for each other on any disk.
    assert commits(NotifyLoad(), 32, 0.00005) is not None


def test_some_thousand_hand_offs_a_second_are_not_too_many_and_two_thousand_are() -> None:
    load = NotifyLoad()
    for n in range(1_000):
        load.came(1, 100.0 + n * 0.001, handed=True)
    assert not load.outruns_handoffs(101.0)
    for n in range(400):
        load.came(1, 101.0 + n * 0.0005, handed=True)
    assert load.outruns_handoffs(101.2)
    assert not load.outruns_handoffs(102.0)


def test_a_worker_that_claims_a_stream_polls_on_and_tries_to_be_idle_again_after_ten_seconds() -> None:
    load = NotifyLoad()
    # Four hundred a second.
    for n in range(1_400):
        load.came(4, 100.0 + n * 0.01)
        if n == 200:
            assert load.polls_on(102.0, is_idle=True)
            load.left_idle(102.0)
        elif n == 1_100:
            assert load.polls_on(111.0, is_idle=False)
    assert not load.polls_on(114.0, is_idle=False)
    # A drain.
    load.came(500, 114.0)
    assert load.polls_on(114.0, is_idle=False)


def test_a_worker_that_had_too_many_hand_offs_polls_and_tries_to_be_idle_again_after_a_second() -> None:
    load = NotifyLoad()
    for n in range(400):
        load.came(1, 100.0 + n * 0.0005, handed=True)
    load.left_idle(100.2)
    for n in range(200):
        load.came(10, 100.2 + n * 0.01)
        if n == 90:
            assert load.polls_on(101.1, is_idle=False)
    assert not load.polls_on(102.2, is_idle=False)


def test_hand_offs_beside_a_claim_are_no_reason_to_leave_idle() -> None:
    load = NotifyLoad()
    for n in range(1_000):
        load.came(1, 100.0 + n * 0.001, handed=True)
    load.came(2, 101.0)
    assert not load.polls_on(101.0, is_idle=True)


def test_a_worker_stays_awake_while_the_load_lasts_and_no_longer() -> None:
    load = NotifyLoad()
    left_at = commits(load, 16, 0.01)
    assert left_at is not None
    # Nothing waits for the lock any more: a thousand a second.
    for n in range(3_000):
        load.came(2, left_at + n * 0.002)
    ended_at = left_at + 6.0
    assert load.pause(ended_at) == pytest.approx(0.005)
    # Fewer than one commit would stand there now.
    for n in range(40):
        load.came(1, ended_at + n * 0.025)
    assert load.pause(ended_at + 1.0) is None
    assert load.pause(ended_at + 10.0) is None


async def test_no_job_waits_when_a_worker_leaves_idle_or_is_idle_again(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    ran: Counter[int] = Counter()

    @app.task
    async def t(job: Job) -> None:
        ran[job.id] += 1

    async with working(app, database.dsn, name="a", poll_interval=NEVER, lease=600) as a:
        await ready(conn, a)
        other = database.connect(autocommit=False)
        # It saw an idle worker, and commits when there is none any more.
        saw_it = enqueue(other)
        load = a._intake.load
        loop = asyncio.get_running_loop()
        # Notifications of commits of which sixteen wait for each other.
        for n in range(20):
            if load.heard(0.16, loop.time() + n * 0.01):
                a._intake.leave_idle()
        load.came(1_000, loop.time())
        await wait_until_async(lambda: not takes_handoffs(conn, "a"))
        other.commit()
        beside = enqueue(conn)
        assert await done(conn, saw_it, beside) == ["succeeded"] * 2
        # The load is over.
        await ready(conn, a)
        again = enqueue(conn)
        assert await done(conn, again) == ["succeeded"]
    assert ran == {saw_it: 1, beside: 1, again: 1}
    assert value(conn, "select max(losses) from pgqueue.history") == 0


async def test_a_worker_leaves_idle_beside_slow_commits_of_several_jobs_and_of_further_ones(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App()

    @app.task
    async def t(i: int) -> None: ...

    # Each commit took half a second, as the worker sees it: two a second are one in the path, all the time.
    age = Handoffs.age
    monkeypatch.setattr(Handoffs, "age", lambda handoffs, at, now: age(handoffs, at, now) + 0.5)
    async with working(app, database.dsn, name="a", poll_interval=NEVER) as a:
        left: list[str] = []
        await ready(conn, a)
        for queue, delay in (("now", None), ("later", "3 s")):
            monkeypatch.setattr(a._intake, "leave_idle", functools.partial(left.append, queue))
            until = time.monotonic() + 120
            while queue not in left and time.monotonic() < until:
                # Nothing of it is handed off. Between, the worker is idle again.
                enqueue_many(conn, 2, queue=queue, delay=delay)
                await asyncio.sleep(0.05)
            assert queue in left


async def test_a_commit_that_sends_several_notifications_is_one_commit(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task
    async def t() -> None: ...

    async with working(app, database.dsn, name="a", poll_interval=NEVER) as a:
        await ready(conn, a)
        heard = len(a._intake.load._heard)
        with conn.transaction():
            handed, announced = enqueue(conn), enqueue(conn)
        assert await done(conn, handed, announced) == ["succeeded"] * 2
        await wait_until_async(lambda: len(a._intake.load._heard) > heard)
        assert len(a._intake.load._heard) == heard + 1
