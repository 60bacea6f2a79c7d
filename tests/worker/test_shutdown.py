"""How a worker ends: handlers are asked to end, get their time, and are then cut off, each by its task's options."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import psycopg
import pytest

import pgqueue
from pgqueue import App, Job
from pgqueue.config import WorkerConfig
from pgqueue.db.consume import JobRow
from pgqueue.errors import ConfigError
from pgqueue.hooks import Event
from pgqueue.worker import Worker
from pgqueue.worker.hold.held import Held
from tests.calls import enqueue, job, state, value
from tests.databases import Database
from tests.facts import wait_until_async


async def stopped(worker: Worker, running: asyncio.Task[bool]) -> tuple[bool, float]:
    """Whether all jobs have ended, and the seconds that it took; handlers that hang do so for twice as many."""
    began = time.monotonic()
    worker.stop()
    clean = await asyncio.wait_for(running, 60)
    return clean, time.monotonic() - began


def started(app: App, database: Database, **settings: Any) -> tuple[Worker, asyncio.Task[bool]]:
    worker = Worker(app, database.dsn, WorkerConfig(**settings))
    return worker, asyncio.create_task(worker.run())


def declare(app: App, kind: str, release: threading.Event, name: str = "t", **options: Any) -> None:
    """A handler that goes on for ever: the async one until it is cancelled, the sync one even if it is asked to end."""

    async def asynchronous() -> None:
        await asyncio.sleep(600)

    def synchronous() -> None:
        release.wait(120)

    app.task(name=name, **options)(asynchronous if kind == "async" else synchronous)


@pytest.fixture
def release() -> Any:
    """Lets the threads of a test end."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.covers("L15", "A11")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_handlers_learn_that_the_worker_shuts_down(
    kind: str, database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    told: list[bool] = []

    async def asynchronous(job: Job) -> None:
        told.append(bool(job.stopping))
        told.append(await job.stopping)

    def synchronous(job: Job) -> None:
        told.append(bool(job.stopping))
        told.append(job.stopping.wait(120))

    app.task(name="t")(asynchronous if kind == "async" else synchronous)
    job_id = enqueue(conn)
    worker, running = started(app, database)
    await wait_until_async(lambda: told)
    clean, _ = await stopped(worker, running)
    assert (clean, worker.exit_code, told) == (True, 0, [False, True])
    assert state(conn, job_id) == "succeeded"


@pytest.mark.covers("A11")
@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("on_shutdown", ["fail", "release"])
async def test_what_outlasts_its_own_shutdown_timeout_ends_as_its_task_says(
    on_shutdown: str, kind: str, database: Database, conn: psycopg.Connection, release: threading.Event
) -> None:
    app = App()
    declare(app, kind, release, shutdown_timeout=0.2, on_shutdown=on_shutdown)
    job_id = enqueue(conn)
    worker, running = started(app, database)
    await wait_until_async(lambda: state(conn, job_id) == "executing")
    await wait_until_async(lambda: worker._runner.running == 1)
    clean, took = await stopped(worker, running)
    assert (clean, worker.exit_code) == (False, 1)
    assert took >= 0.2
    found = job(conn, job_id)
    if on_shutdown == "release":
        assert (found.state, found.attempts, found.errors) == ("waiting", 0, None)
    else:
        assert (found.state, found.attempts, found.errors[0]["class"]) == ("failed", 1, "Interrupted")
        assert "shutdown timeout of 0.2 s" in found.errors[0]["message"]
    assert conn.execute("select count(*) from pgqueue.workers").fetchone() == (0,)


@pytest.mark.covers("A11")
async def test_the_workers_own_bound_holds_for_tasks_that_ask_for_more(
    database: Database, conn: psycopg.Connection, release: threading.Event
) -> None:
    app = App()
    declare(app, "sync", release, "patient", shutdown_timeout=600)
    declare(app, "async", release, "default")
    jobs = [enqueue(conn, task) for task in ("patient", "default")]
    worker, running = started(app, database, shutdown_timeout=0.3)
    await wait_until_async(lambda: worker._runner.running == 2)
    clean, _ = await stopped(worker, running)
    assert not clean
    assert {state(conn, each) for each in jobs} == {"failed"}


@pytest.mark.long
@pytest.mark.covers("A11")
async def test_a_hanging_completion_does_not_hang_the_shutdown(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    began, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def t() -> None:
        began.set()
        await go.wait()

    job_id = enqueue(conn)
    worker, running = started(app, database, shutdown_timeout=1.0)
    await wait_until_async(began.is_set)
    with database.connect(autocommit=False) as other:
        other.execute("select from pgqueue.jobs for update")
        go.set()
        await wait_until_async(lambda: worker._runner.running == 0)
        clean, _ = await stopped(worker, running)
        assert (clean, worker.exit_code) == (False, 1)
        other.rollback()
    # It comes back with its lease.
    assert state(conn, job_id) == "executing"


async def test_a_worker_that_is_stopped_before_it_waits_for_its_last_job_does_not_wait_for_it_to_look_again() -> None:
    worker = Worker(App(), "host=localhost", WorkerConfig(until_empty=True))
    row = JobRow(1, "t", b"", None, "q", None, 0, 1, 1, 1, 0, 0, 0, None, None, 0, 0, True, "reserved", None)
    worker._holding.add(Held(row, 0.0))
    # During the claim that has found nothing.
    worker.stop()
    await asyncio.wait_for(worker._claimer._wait_for_end(), 60)


@pytest.mark.parametrize("options", [{"on_shutdown": "explode"}, {"shutdown_timeout": -1}])
def test_wrong_options_of_a_shutdown_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        App().task(**options)(lambda: None)


async def test_jobs_that_come_beside_a_long_one_start_before_a_worker_ends_when_all_is_done(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task
    async def part() -> None: ...

    @app.task(max_attempts=1)
    async def whole() -> None:
        # Only after the claim that finds nothing.
        await asyncio.sleep(0.5)
        async with await psycopg.AsyncConnection.connect(database.dsn, autocommit=True) as own:
            await pgqueue.wait(own, await pgqueue.enqueue(own, "part"), timeout=30)

    enqueue(conn, "whole")
    await asyncio.wait_for(Worker(app, database.dsn, WorkerConfig(until_empty=True, concurrency=4)).run(), 60)
    assert sorted(conn.execute("select task, state from pgqueue.history")) == [
        ("part", "succeeded"),
        ("whole", "succeeded"),
    ]


async def test_a_job_that_its_handler_completed_is_not_lost_when_the_handler_is_cut_off(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    events: list[str] = []
    completed = threading.Event()
    may_return = threading.Event()

    @app.on_event
    def note(event: Event) -> None:
        events.append(event.kind)

    @app.task
    def t(run: Job) -> None:
        with run.transaction():
            pass
        completed.set()
        may_return.wait(60)

    worker = Worker(app, database.dsn, WorkerConfig(shutdown_timeout=0.2))
    running = asyncio.create_task(worker.run())
    enqueue(conn)
    await wait_until_async(completed.is_set)
    worker.stop()
    await asyncio.wait_for(running, 30)
    may_return.set()
    assert value(conn, "select state from pgqueue.history") == "succeeded"
    assert "lost" not in events
