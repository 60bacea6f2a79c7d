"""A handler that does not end: its process is killed by a command, and its supervisor starts another."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.calls import call, enqueue, job, state, value
from tests.cli.conftest import Run, run
from tests.facts import wait_until
from tests.worker.conftest import Start
from tests.workers import write_module

__all__ = ["run"]

TASKS = """
    import os, pathlib, time
    from pgqueue import App, Job

    app = App()
    here = pathlib.Path(__file__).parent

    @app.task
    def hang(job: Job):
        with (here / "began").open("a") as file:
            file.write(f"{job.id} {os.getpid()}\\n")
        while not (here / "go").exists():
            time.sleep(0.01)

    @app.task
    async def quick():
        pass
"""


@pytest.fixture(autouse=True)
def tasks(tmp_path: Path) -> None:
    write_module(tmp_path, TASKS)
    (tmp_path / "began").touch()


def began(directory: Path) -> list[list[int]]:
    return [[int(part) for part in line.split()] for line in (directory / "began").read_text().splitlines()]


def test_the_process_of_a_handler_that_ignores_its_cancel_is_killed_and_replaced(
    conn: psycopg.Connection, start_worker: Start, run: Run, tmp_path: Path
) -> None:
    # With leases so long that nothing comes back by itself.
    supervisor = start_worker("-r", "jobs", "--processes", "1", "-c", "2", "--lease", "600", "--name", "s")
    stuck, innocent = enqueue(conn, "hang"), enqueue(conn, "hang")
    wait_until(lambda: len(began(tmp_path)) == 2, timeout=90)
    behind = enqueue(conn, "quick")
    assert run("jobs", "cancel", stuck).code == 0
    assert "pgqueue workers kill --job ID" in run("jobs", "kill", stuck).out
    assert state(conn, behind) == "waiting"
    done = run("workers", "kill", "--job", stuck)
    assert (done.code, done.out) == (0, "Worker s:1: killed\n"), done.err
    # The one is cancelled, as it was asked to; the other counts a crash, and runs again in another process.
    wait_until(lambda: len(began(tmp_path)) == 3, timeout=60)
    assert state(conn, stuck) == "cancelled"
    assert job(conn, innocent).crashed_on == ["s:1"]
    [(_, first), _, (again, other)] = began(tmp_path)
    assert (again, other == first) == (innocent, False)
    wait_until(lambda: state(conn, behind) == "succeeded", timeout=60)
    assert "an operator's command came through the database: kill" in supervisor.log()
    assert value(conn, "select count(*) from pgqueue.audit where action = 'kill_worker'") == 1
    (tmp_path / "go").touch()
    wait_until(lambda: state(conn, innocent) == "succeeded")


def test_a_worker_without_a_supervisor_ends_and_one_that_stops_does_too(
    conn: psycopg.Connection, start_worker: Start, run: Run, tmp_path: Path
) -> None:
    worker = start_worker("-r", "jobs", "--name", "w", "--lease", "120").started()
    held = enqueue(conn, "hang")
    wait_until(lambda: len(began(tmp_path)) == 1)
    assert call(conn, "stop_worker", "w") is True
    wait_until(lambda: value(conn, "select obeyed_at is not null from pgqueue.workers where name = 'w'"))
    assert worker.is_alive()
    assert run("workers", "kill", "w").code == 0
    assert worker.wait() == 137
    # Nobody knows of its end but by its lease.
    assert state(conn, held) == "executing"


def test_no_worker_is_killed_for_a_job_that_does_not_execute(
    conn: psycopg.Connection, run: Run, tmp_path: Path
) -> None:
    waiting = enqueue(conn, "quick")
    assert call(conn, "kill_worker", job_id=waiting) is None
    assert f"Job {waiting} executes on no worker" in run("workers", "kill", "--job", waiting).err
    assert "There is no worker w" in run("workers", "kill", "w").err
    assert run("workers", "kill").code == 2
    assert run("workers", "kill", "w", "--job", waiting).code == 2


def test_a_worker_that_does_not_answer_is_named_with_its_process(
    conn: psycopg.Connection, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqueue.cli.workers._ANSWERS", 0.0)
    conn.execute("""select pgqueue.hello('w', null, '{"pid": 17, "host": "web-1"}')""")
    for _ in range(2):
        # Asked once, and waited for again.
        done = run("workers", "kill", "w")
        assert done.code == 1
        assert "else end process 17 on web-1" in done.err
    assert value(conn, "select count(*) from pgqueue.audit") == 1
