"""Jobs that kill their worker: real processes die here."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.calls import call, enqueue, job, state, value
from tests.facts import wait_until
from tests.worker.conftest import Start
from tests.workers import WorkerProcess, environment_without_dsn, write_module

TASKS = """
    import asyncio, os, pathlib, threading
    from pgqueue import App, Job

    app = App()
    here = pathlib.Path(__file__).parent

    def say(what, job):
        with (here / "ran").open("a") as file:
            file.write(f"{what} {job.id} {os.getpid()}\\n")

    @app.task
    async def poison(job: Job):
        say("poison", job)
        os._exit(1)

    @app.task
    def innocent(job: Job):
        say("innocent", job)
        job.stopping.wait(60)

    @app.task
    async def waits(job: Job):
        say("waits", job)
        while not (here / "go").exists():
            await asyncio.sleep(0.02)

    @app.task
    async def second_long(job: Job):
        say("second_long", job)
        await asyncio.sleep(1)

    @app.task(timeout="0.2 s", retry_policy="fixed", retry_delay="1 hour")
    def deaf(job: Job):
        say("deaf", job)
        threading.Event().wait(600)

"""


@pytest.fixture(autouse=True)
def tasks(tmp_path: Path) -> None:
    write_module(tmp_path, TASKS)
    (tmp_path / "ran").touch()


@pytest.fixture(autouse=True)
def housekeeper(tasks: None, start_worker: Start) -> WorkerProcess:
    """Runs maintenance regularly: after a gap every lease would get a grace period first."""
    return start_worker("-r", "jobs", "-q", "elsewhere", "--lease", "1", "--name", "housekeeper").started()


def ran(directory: Path, what: str) -> int:
    return sum(line.startswith(f"{what} ") for line in (directory / "ran").read_text().splitlines())


@pytest.mark.long
def test_a_job_that_kills_its_process_at_once_is_dead_after_its_third_counted_run(
    conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    job_id = enqueue(conn, "poison")
    # In the first run it dies before anybody says that it has started. From then on it is reported first.
    for run in range(1, 5):
        worker = start_worker("-r", "jobs", "-q", "default", "--lease", "1", "--name", f"w{run}")
        assert worker.wait() == 1
        assert ran(tmp_path, "poison") == run
        wait_until(lambda: state(conn, job_id) != "executing")
        assert job(conn, job_id).crashes == run - 1
    found = job(conn, job_id)
    assert (found.state, found.crashed_on) == ("dead", ["w2", "w3", "w4"])
    assert found.errors[-1]["class"] == "Poison"
    # No worker dies of it any more.
    worker = start_worker("-r", "jobs", "-q", "default", "--until-empty")
    assert worker.wait() == 0


@pytest.mark.long
def test_a_worker_that_is_restarted_under_its_name_does_not_run_its_poison_for_ever(
    conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    job_id = enqueue(conn, "poison")
    for _ in range(4):
        # As systemd would: at once. The lease has not lapsed.
        assert start_worker("-r", "jobs", "-q", "default", "--lease", "60", "--name", "same").wait() == 1
    worker = start_worker("-r", "jobs", "-q", "default", "--lease", "60", "--name", "same", "--until-empty")
    assert worker.wait() == 0
    found = job(conn, job_id)
    assert (found.state, found.crashed_on) == ("dead", ["same"] * 3)
    assert ran(tmp_path, "poison") == 4


@pytest.mark.long
def test_jobs_beside_the_one_that_killed_their_worker_survive(
    conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    innocents = [enqueue(conn, "second_long") for _ in range(5)]
    poison = enqueue(conn, "poison", delay="0.3 s")
    # All have been lost before, so that all are counted from the first run on.
    conn.execute("update pgqueue.jobs set losses = 1")
    for _ in range(3):
        # The last run of the poison finds it alone, or among jobs that no process died of before.
        assert start_worker("-r", "jobs", "-q", "default", "--lease", "60", "--name", "same").wait() == 1
    worker = start_worker("-r", "jobs", "-q", "default", "--lease", "60", "--name", "same")
    wait_until(lambda: value(conn, "select count(*) from pgqueue.jobs") == 0, timeout=60)
    assert worker.is_alive()
    assert (state(conn, poison), job(conn, poison).crashes) == ("dead", 3)
    assert {state(conn, each) for each in innocents} == {"succeeded"}
    assert {job(conn, each).crashes for each in innocents} <= {0, 1}


@pytest.mark.long
@pytest.mark.covers("L13")
def test_a_killed_worker_counts_against_what_it_ran_for_a_while_and_not_against_the_rest(
    conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    job_id = enqueue(conn, "waits")
    worker = start_worker("-r", "jobs", "-q", "default", "--lease", "3", "--name", "killed").started()
    # Told with the next extension.
    wait_until(lambda: value(conn, "select started = reservation from pgqueue.jobs where id = %s", job_id))
    worker.send(signal.SIGKILL)
    worker.wait()
    wait_until(lambda: state(conn, job_id) == "waiting")
    assert (job(conn, job_id).losses, job(conn, job_id).crashed_on) == (1, ["killed"])
    assert ran(tmp_path, "waits") == 1


@pytest.mark.long
def test_a_deploy_is_no_crash(conn: psycopg.Connection, start_worker: Start, tmp_path: Path) -> None:
    job_id = enqueue(conn, "innocent")
    worker = start_worker("-r", "jobs", "-q", "default", "--lease", "3").started()
    wait_until(lambda: value(conn, "select started = reservation from pgqueue.jobs where id = %s", job_id))
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert (state(conn, job_id), job(conn, job_id).crashes) == ("succeeded", 0)


SUPERVISED = """
import asyncio, logging, os
from jobs import app
from pgqueue.config import WorkerConfig
from pgqueue.worker.run.taken import Running
from pgqueue.worker import Worker

Running.overdue.__defaults__ = (0.2,)
logging.basicConfig(level=logging.INFO)


async def work():
    worker = Worker(app, os.environ["PGQUEUE_DSN"], WorkerConfig(queues=("default",), supervised=True))
    await worker.run()
    return worker.exit_code


os._exit(asyncio.run(work()))
"""


@pytest.mark.long
def test_under_a_supervisor_a_deaf_handler_costs_its_process_and_the_others_end(
    conn: psycopg.Connection, database: object, tmp_path: Path
) -> None:
    (tmp_path / "supervised.py").write_text(SUPERVISED)
    deaf, other = enqueue(conn, "deaf"), enqueue(conn, "innocent")
    done = subprocess.run(
        [sys.executable, "supervised.py"],
        cwd=tmp_path,
        env={**environment_without_dsn(), "PGQUEUE_DSN": database.dsn},  # type: ignore[attr-defined]
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 75, done.stderr
    found = job(conn, deaf)
    assert (found.state, found.attempts, found.errors[0]["class"]) == ("failed", 1, "Timeout")
    assert "its process was replaced" in found.errors[0]["message"]
    # That one was asked to stop, and did.
    assert state(conn, other) == "succeeded"
    assert call(conn, "stats")["workers"][0]["worker"] == "housekeeper"
