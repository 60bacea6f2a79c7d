"""worker_lifespan: a worker inside of another program."""

from __future__ import annotations

import asyncio
import logging
import signal

import pytest

import pgqueue.lifespan
from pgqueue import App, worker_lifespan
from pgqueue.errors import ConfigError, SchemaError
from pgqueue.worker import Worker
from tests.calls import job
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import done

app = App()


@app.task
async def quick() -> None: ...


running_now = asyncio.Event()


@app.task
async def sleeps(seconds: float) -> None:
    running_now.set()
    await asyncio.sleep(seconds)


@app.task(on_shutdown="release")
async def hangs() -> None:
    await asyncio.sleep(600)


async def test_it_runs_jobs_for_the_length_of_the_block_and_lets_them_end(database: Database) -> None:
    conn = database.connect()
    running_now.clear()
    async with worker_lifespan(app, database.dsn, concurrency=3) as worker:
        assert worker.health().ready
        assert await done(conn, quick.enqueue(conn)) == ["succeeded"]
        running = sleeps.enqueue(conn, 0.5)
        # A job that was claimed, and not started, is given back.
        await wait_until_async(running_now.is_set)
    assert job(conn, running).state == "succeeded"
    assert (worker.health().live, worker.health().ready) == (False, False)
    assert conn.execute("select count(*) from pgqueue.workers").fetchone() == (0,)


async def test_at_the_end_what_does_not_end_is_released(database: Database) -> None:
    conn = database.connect()
    async with worker_lifespan(app, database.dsn, shutdown_timeout=0.1):
        running = hangs.enqueue(conn)
        await wait_until_async(lambda: job(conn, running).state == "executing")
    assert (job(conn, running).state, job(conn, running).attempts) == ("waiting", 0)


async def test_it_leaves_signals_and_logging_to_the_host(database: Database) -> None:
    handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    logs = (
        logging.getLogger().handlers[:],
        logging.getLogger("pgqueue").handlers[:],
        logging.getLogger("pgqueue").level,
    )
    async with worker_lifespan(app, database.dsn):
        assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == handlers
        pgqueue_log = logging.getLogger("pgqueue")
        assert (logging.getLogger().handlers[:], pgqueue_log.handlers[:], pgqueue_log.level) == logs


async def test_called_as_frameworks_do_it_yields_nothing_and_may_be_entered_again(database: Database) -> None:
    lifespan = worker_lifespan(app, database.dsn)
    for _ in range(2):
        async with lifespan(object()) as state:
            assert state is None
            assert lifespan.health().live


async def test_a_worker_that_cannot_start_raises(empty_database: Database) -> None:
    with pytest.raises(SchemaError):
        async with worker_lifespan(app, empty_database.dsn):
            pass


def test_a_text_that_is_no_dsn_is_refused_at_once_without_its_password() -> None:
    with pytest.raises(ConfigError, match=r"^dsn is not a PostgreSQL DSN"):
        worker_lifespan(app, "x")
    with pytest.raises(ConfigError) as refused:
        worker_lifespan(app, "mysql://me:secret@h/d")
    assert "secret" not in str(refused.value)


async def test_a_database_that_cannot_be_reached_keeps_the_host_neither_from_starting_nor_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pgqueue.lifespan, "_START_WITHIN", 0.2)
    async with asyncio.timeout(60), worker_lifespan(app, "postgresql://localhost:1/nowhere") as worker:
        health = worker.health()
        assert (health.live, health.ready) == (True, False)


async def test_a_crash_is_survived(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    conn = database.connect()
    async with worker_lifespan(app, database.dsn) as worker:
        crashed = worker._worker
        await crash(worker, monkeypatch, times=1)
        # A job that comes earlier may be handed to the one that crashes: it waits for its lease, as any that it holds.
        await wait_until_async(lambda: worker._worker is not crashed and worker.health().ready)
        assert await done(conn, quick.enqueue(conn)) == ["succeeded"]


async def test_the_block_ends_while_a_crashed_worker_waits_for_its_restart(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pgqueue.lifespan, "_FIRST_PAUSE", 600.0)
    async with asyncio.timeout(60), worker_lifespan(app, database.dsn) as worker:
        await crash(worker, monkeypatch, times=1)
        await wait_until_async(lambda: "the worker crashed (ArithmeticError)" in caplog.text)
    assert not worker.health().live


async def test_one_that_crashes_again_and_again_comes_out_of_the_block(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def host() -> None:
        async with worker_lifespan(app, database.dsn) as worker:
            await crash(worker, monkeypatch, times=100)
            await asyncio.sleep(60)

    with pytest.raises(ArithmeticError, match="of the loop"):
        await host()
    current = asyncio.current_task()
    assert current is not None
    assert not current.cancelling()


async def crash(worker: pgqueue.lifespan.WorkerLifespan, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """End the loop of the worker at hand, and of the next ones, by an error."""
    left = [times]
    real = Worker.run

    async def run(self: Worker) -> bool:
        if left[0] > 0:
            left[0] -= 1
            raise ArithmeticError("an error of the loop")
        return await real(self)

    monkeypatch.setattr(Worker, "run", run)
    # What run() waits for: it ends with this error, after it has cleaned up.
    waiters = worker._worker._requests.stopping._waiters  # type: ignore[attr-defined]
    await wait_until_async(lambda: [each for each in waiters if not each.done()])
    for waiter in [each for each in waiters if not each.done()]:
        waiter.set_exception(ArithmeticError("an error of the loop"))
