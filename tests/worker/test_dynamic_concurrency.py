"""How many handlers run at a time, fixed and as a range."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import psycopg
import pytest

from pgqueue import App
from pgqueue.config import WorkerConfig
from pgqueue.errors import ConfigError
from pgqueue.worker.run.concurrency import Concurrency, Sample, parse
from tests.calls import enqueue_many, value
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import NEVER, working

CALM = {"lag": 0.0, "cpu": 0.1}


def test_it_grows_by_half_while_jobs_wait_and_all_slots_are_taken() -> None:
    wanted = Concurrency(4, 64, now=0.0)
    numbers = [wanted.follow(Sample(True, wanted.number, **CALM), now) for now in range(8)]
    assert numbers == [6, 9, 13, 19, 28, 42, 63, 64]
    assert wanted.follow(Sample(False, 64, **CALM), 9) == 64
    assert wanted.follow(Sample(True, 40, **CALM), 10) == 64


@pytest.mark.parametrize("look", [Sample(True, 64, 0.5, 0.1), Sample(True, 64, 0.0, 0.97)])
def test_it_shrinks_by_a_quarter_while_its_handlers_starve(look: Sample) -> None:
    wanted = Concurrency(4, 64, now=0.0)
    wanted.number = 64
    numbers = [wanted.follow(look, now) for now in range(20)]
    assert numbers[:3] == [48, 36, 27]
    assert numbers[-1] == 4


def test_it_stays_where_it_is_between_the_marks() -> None:
    wanted = Concurrency(4, 64, now=0.0)
    assert wanted.follow(Sample(True, 4, 0.0, 0.85), 1.0) == 4
    assert wanted.follow(Sample(True, 4, 0.05, 0.1), 2.0) == 4


def test_it_shrinks_to_the_number_in_use_when_it_is_idle_for_some_seconds() -> None:
    wanted = Concurrency(4, 64, now=0.0)
    wanted.number = 64
    numbers = [wanted.follow(Sample(False, 3, **CALM), float(now)) for now in range(1, 40)]
    assert numbers[:3] == [64, 64, 64]
    assert sorted(set(numbers), reverse=True) == [64, 32, 16, 8, 4]


@pytest.mark.parametrize(("text", "meaning"), [("20", (None, 20)), ("4:64", (4, 64))])
def test_it_is_said_as_a_number_or_a_range(text: str, meaning: tuple[int | None, int]) -> None:
    assert parse(text) == meaning


@pytest.mark.parametrize("text", ["", "x", "4:", "4-64", "1:2:3"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="concurrency"):
        parse(text)


def test_a_range_has_its_smaller_number_first() -> None:
    with pytest.raises(ConfigError, match="min-concurrency is 9"):
        WorkerConfig(min_concurrency=9, concurrency=3)


@pytest.mark.long
@pytest.mark.covers("A12", "A9")
@pytest.mark.parametrize("kind", ["async", pytest.param("sync", marks=pytest.mark.long)])
async def test_a_worker_with_a_range_grows_under_load_and_shrinks_afterwards(
    kind: str, database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    go = threading.Event()

    if kind == "async":

        @app.task(name="waits")
        async def waits(i: int) -> None:
            while not go.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    else:

        @app.task(name="waits")
        def waits_in_a_thread(i: int) -> None:
            go.wait()

    enqueue_many(conn, 40, "waits")
    async with working(app, database.dsn, min_concurrency=2, concurrency=16) as worker:
        try:
            await wait_until_async(lambda: worker.status()["running"] == 16, 30)
        finally:
            go.set()
        await wait_until_async(lambda: value(conn, "select count(*) from pgqueue.history") == 40, 30)
        await wait_until_async(lambda: worker.status()["concurrency"] == 2, 60)


@pytest.mark.covers("L10")
async def test_no_more_handlers_than_the_number_run_at_a_time_when_it_shrinks(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    running: set[object] = set()
    most = 0
    go = asyncio.Event()

    @app.task
    async def job(i: int) -> None:
        nonlocal most
        me = object()
        running.add(me)
        most = max(most, len(running))
        await go.wait()
        await asyncio.sleep(0.01)
        running.discard(me)

    async with working(app, database.dsn, concurrency=16) as worker:
        enqueue_many(conn, 200, "job")
        await wait_until_async(lambda: len(running) == 16)
        go.set()
        await wait_until_async(lambda: value(conn, "select count(*) from pgqueue.history") == 200, 30)
        assert most == 16
        worker._slots.concurrency = 3
        # Each of those above serves one job more at most.
        enqueue_many(conn, 100, "job")
        await wait_until_async(lambda: value(conn, "select count(*) from pgqueue.history") == 300, 30)
        most = 0
        enqueue_many(conn, 100, "job")
        await wait_until_async(lambda: value(conn, "select count(*) from pgqueue.history") == 400, 30)
        assert most <= 3


@pytest.mark.long
@pytest.mark.covers("A9")
async def test_a_worker_at_concurrency_1000_keeps_1000_handlers_in_flight(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    rounds = 6
    gates = [asyncio.Event() for _ in range(rounds + 1)]
    begun: Counter[int] = Counter()

    @app.task
    async def waits(i: int) -> None:
        mine = sum(gate.is_set() for gate in gates)
        begun[mine] += 1
        await gates[mine].wait()

    enqueue_many(conn, 1000 * rounds + 200, "waits")
    async with working(app, database.dsn, concurrency=1000):
        for n in range(rounds):
            # None of these has ended.
            await wait_until_async(lambda n=n: begun[n] >= 1000, 60)  # type: ignore[misc]
            gates[n].set()
        await wait_until_async(lambda: begun[rounds] == 200, 60)
        gates[rounds].set()
    assert begun == dict.fromkeys(range(rounds), 1000) | {rounds: 200}


@pytest.mark.covers("A12")
async def test_a_job_that_comes_after_the_number_shrank_while_idle_starts_at_once(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task
    async def job(i: int) -> None:
        await asyncio.sleep(0.01)

    async with working(app, database.dsn, concurrency=16, poll_interval=NEVER) as worker:
        # Sixteen coroutines that wait for a job, of which two may stay.
        enqueue_many(conn, 100, "job")
        await wait_until_async(lambda: value(conn, "select count(*) from pgqueue.history") == 100, 30)
        worker._slots.concurrency = 2
        for n in range(1, 5):
            enqueue_many(conn, 1, "job")
            await wait_until_async(
                lambda n=n: value(conn, "select count(*) from pgqueue.history") == 100 + n,  # type: ignore[misc]
                10,
            )
