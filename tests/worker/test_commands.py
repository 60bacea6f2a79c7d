"""What an operator asks of a worker through the database: be quiet, go on, stop."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from pgqueue import App
from pgqueue.errors import LockTimeout
from tests.calls import call, enqueue, state, value
from tests.databases import Database
from tests.facts import wait_until, wait_until_async
from tests.worker.conftest import Start
from tests.workers import working, write_module

TASKS = """
    import asyncio, pathlib
    from pgqueue import App

    app = App()
    here = pathlib.Path(__file__).parent

    @app.task
    async def quick():
        pass

    @app.task
    async def long():
        (here / "began").touch()
        while not (here / "go").exists():
            await asyncio.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def tasks(tmp_path: Path) -> None:
    write_module(tmp_path, TASKS)


def obeys(conn: psycopg.Connection, worker: str) -> bool:
    return bool(value(conn, "select obeyed_at is not null from pgqueue.workers where name = %s", worker))


def test_a_worker_is_made_quiet_and_resumed(conn: psycopg.Connection, start_worker: Start, tmp_path: Path) -> None:
    worker = start_worker("-r", "jobs", "--name", "w", "--lease", "120").started()
    running = enqueue(conn, "long")
    wait_until((tmp_path / "began").exists)
    assert call(conn, "quiet_worker", "w") is True
    # By the notification: its next heartbeat is 40 s away.
    wait_until(lambda: obeys(conn, "w"))
    wait_until(lambda: "quiet: reserving no more jobs; 1 still run" in worker.log())
    waiting = enqueue(conn, "quick")
    (tmp_path / "go").touch()
    wait_until(lambda: state(conn, running) == "succeeded")
    assert state(conn, waiting) == "waiting"
    assert worker.is_alive()
    assert call(conn, "resume_worker", "w") is True
    wait_until(lambda: state(conn, waiting) == "succeeded")


def test_a_stopped_worker_ends_its_jobs_first(conn: psycopg.Connection, start_worker: Start, tmp_path: Path) -> None:
    worker = start_worker("-r", "jobs", "--name", "w").started()
    running = enqueue(conn, "long")
    wait_until((tmp_path / "began").exists)
    assert call(conn, "stop_worker", "w") is True
    # It reports the command first, for a worker that stops deletes its row.
    wait_until(lambda: "an operator's command came through the database: stop" in worker.log())
    waiting = enqueue(conn, "quick")
    assert worker.is_alive()
    (tmp_path / "go").touch()
    assert worker.wait() == 0
    assert (state(conn, running), state(conn, waiting)) == ("succeeded", "waiting")
    assert value(conn, "select count(*) from pgqueue.workers") == 0


def test_a_worker_that_does_not_listen_obeys_with_its_next_heartbeat(
    conn: psycopg.Connection, start_worker: Start
) -> None:
    worker = start_worker("-r", "jobs", "--name", "w", "--no-listen", "--lease", "3").started()
    call(conn, "stop_worker", "w")
    assert worker.wait() == 0


def test_a_command_that_was_given_while_the_worker_was_cut_off_is_obeyed(
    conn: psycopg.Connection, start_worker: Start
) -> None:
    start_worker("-r", "jobs", "--name", "w", "--lease", "6").started()
    # As if the notification had been lost.
    conn.execute("update pgqueue.workers set command = 'quiet', commanded_at = now()")
    wait_until(lambda: obeys(conn, "w"))


async def test_a_command_is_carried_out_also_where_reporting_it_fails_at_first(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(App(), database.dsn, name="w") as worker:
        orders = worker._orders
        ask = orders._ask
        refused: list[str] = []

        async def refuse_once() -> str:
            if orders._obeys == "quiet" and not refused:
                refused.append("quiet")
                raise LockTimeout("a migration has locked the table")
            return await ask()

        monkeypatch.setattr(orders, "_ask", refuse_once)
        call(conn, "quiet_worker", "w")
        await wait_until_async(lambda: worker.status()["quiet"])
        assert refused


def test_a_supervisor_replaces_a_worker_that_was_stopped(conn: psycopg.Connection, start_worker: Start) -> None:
    supervisor = start_worker("-r", "jobs", "--name", "s", "--processes", "2")
    names = "select array_agg(name order by name) from pgqueue.workers"
    wait_until(lambda: value(conn, names) == ["s:1", "s:2"])
    before = value(conn, "select info ->> 'pid' from pgqueue.workers where name = 's:1'")
    call(conn, "stop_worker", "s:1")
    wait_until(
        lambda: value(conn, "select info ->> 'pid' from pgqueue.workers where name = 's:1'") not in (None, before)
    )
    # No crash was logged, and the new process has no command.
    assert "ended with exit code" not in supervisor.log()
    wait_until(lambda: value(conn, "select command is null from pgqueue.workers where name = 's:1'") is True)
    assert value(conn, "select command is null from pgqueue.workers where name = 's:2'") is True
