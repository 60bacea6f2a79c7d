"""What an operator says by signal: be quiet, go on, hang up, show where everything stands."""

from __future__ import annotations

import signal
from pathlib import Path

import psycopg
import pytest

from tests.calls import enqueue, state, value
from tests.facts import wait_until
from tests.worker.conftest import Start
from tests.workers import WorkerProcess, is_asleep, write_module

TASKS = """
    import asyncio, pathlib, time
    from pgqueue import App

    app = App()
    here = pathlib.Path(__file__).parent

    async def the_place_where_it_waits():
        while not (here / "go").exists():
            await asyncio.sleep(0.01)

    @app.task
    async def quick():
        pass

    @app.task
    async def long():
        (here / "began").touch()
        await the_place_where_it_waits()

    @app.task
    def long_sync():
        (here / "began").touch()
        while not (here / "go").exists():
            time.sleep(0.01)

    @app.task
    async def block():
        (here / "began").touch()
        while not (here / "go").exists():
            time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def tasks(tmp_path: Path) -> None:
    write_module(tmp_path, TASKS)


def began(directory: Path) -> bool:
    return (directory / "began").exists()


def runs_one(worker: WorkerProcess, conn: psycopg.Connection, directory: Path, task: str = "long") -> int:
    job_id = enqueue(conn, task)
    wait_until(lambda: began(directory))
    return job_id


def test_a_quiet_worker_takes_nothing_new_and_resumes_on_request(
    conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    quiet = start_worker("-r", "jobs", "--name", "quiet").started()
    running = runs_one(quiet, conn, tmp_path)
    quiet.send(signal.SIGUSR1)
    # A second one changes nothing.
    wait_until(lambda: "quiet: reserving no more jobs; 1 still run" in quiet.log())
    quiet.send(signal.SIGUSR1)
    wait_until(lambda: value(conn, "select count(*) from pgqueue.idle_workers") == 0)
    waiting = enqueue(conn, "quick")
    (tmp_path / "go").touch()
    wait_until(lambda: state(conn, running) == "succeeded")
    assert state(conn, waiting) == "waiting"
    assert quiet.is_alive()
    # Its beats go on.
    assert value(conn, "select count(*) from pgqueue.workers") == 1
    quiet.send(signal.SIGUSR2)
    wait_until(lambda: state(conn, waiting) == "succeeded")
    quiet.send(signal.SIGTERM)
    assert quiet.wait() == 0
    assert quiet.log().count("reserving no more jobs;") == 1


def test_no_producer_wakes_a_quiet_worker(conn: psycopg.Connection, start_worker: Start) -> None:
    worker = start_worker("-r", "jobs", "--name", "w", "--poll-interval", "600").started()
    wait_until(lambda: is_asleep(conn, "w"), timeout=20)
    worker.send(signal.SIGUSR1)
    wait_until(lambda: value(conn, "select count(*) from pgqueue.idle_workers where until > clock_timestamp()") == 0)
    job_id = enqueue(conn, "quick")
    worker.send(signal.SIGUSR2)
    wait_until(lambda: state(conn, job_id) == "succeeded")


@pytest.mark.covers("L15")
def test_a_quiet_worker_ends_on_a_stop(conn: psycopg.Connection, start_worker: Start) -> None:
    worker = start_worker("-r", "jobs").started()
    worker.send(signal.SIGUSR1)
    wait_until(lambda: "quiet" in worker.log())
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


def test_hup_lets_running_jobs_end_and_the_worker_with_them(
    conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    worker = start_worker("-r", "jobs").started()
    job_id = runs_one(worker, conn, tmp_path)
    worker.send(signal.SIGHUP)
    wait_until(lambda: "SIGHUP: reserving no more jobs" in worker.log())
    (tmp_path / "go").touch()
    assert worker.wait() == 0
    assert state(conn, job_id) == "succeeded"


@pytest.mark.covers("L15")
@pytest.mark.parametrize(
    ("task", "where"),
    [
        ("long", "the_place_where_it_waits"),
        ("long_sync", "in long_sync"),
        # The event loop is blocked, and cannot be asked.
        ("block", "in block"),
    ],
)
def test_ttin_shows_where_each_job_stands(
    task: str, where: str, conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    worker = start_worker("-r", "jobs").started()
    job_id = runs_one(worker, conn, tmp_path, task)
    worker.send(signal.SIGTTIN)
    wait_until(lambda: "stacks of" in worker.log() and "pgqueue-claiming" in worker.log())
    assert f"job {job_id} (task {task}, queue default, attempt 1)" in worker.log()
    assert where.removeprefix("in ") in worker.log()
    assert "jobs.py:" in worker.log()
    assert "--- thread MainThread" in worker.log()
    (tmp_path / "go").touch()
    wait_until(lambda: state(conn, job_id) == "succeeded")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.long
def test_a_supervisor_passes_its_options_on(conn: psycopg.Connection, start_worker: Start, tmp_path: Path) -> None:
    supervisor = start_worker("-r", "jobs", "--processes", "2")
    wait_until(lambda: supervisor.log().count(" is ready") == 2, timeout=30)
    supervisor.send(signal.SIGUSR1)
    wait_until(lambda: supervisor.log().count("quiet: reserving no more jobs") == 2)
    job_id = enqueue(conn, "quick")
    supervisor.send(signal.SIGTTIN)
    wait_until(lambda: supervisor.log().count("--- thread MainThread") == 2)
    assert state(conn, job_id) == "waiting"
    supervisor.send(signal.SIGUSR2)
    wait_until(lambda: state(conn, job_id) == "succeeded")
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 0
