"""What a process that a handler forks inherits from its worker, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import psycopg
import pytest

from tests.calls import enqueue, value
from tests.facts import wait_until
from tests.worker.conftest import Start
from tests.worker.test_health import port_of
from tests.workers import done, write_module

MODULE = """
    import asyncio, multiprocessing, os, sys, time
    from pathlib import Path
    from pgqueue import App, Job

    app = App()

    def terminate_a_child() -> None:
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        child.start()
        child.terminate()
        child.join()

    @app.task(max_attempts=1, name="sync terminates")
    def terminates() -> None:
        terminate_a_child()

    @app.task(max_attempts=1, name="async terminates")
    async def terminates_on_the_loop() -> None:
        terminate_a_child()

    def fork(how: str) -> int:
        child = os.fork()
        if child == 0:
            if how == "return":
                return 0
            if how == "raise":
                raise ValueError("in the child")
            sys.exit(7)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    @app.task(max_attempts=1, name="sync forks", store_result=True)
    def forks(how: str) -> int:
        return fork(how)

    @app.task(max_attempts=1, name="async forks", store_result=True)
    async def forks_on_the_loop(how: str) -> int:
        return fork(how)

    @app.task
    def leaves(job: Job) -> None:
        # So that there is a connection of the pool for handlers, too.
        with job.transaction():
            pass
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
        Path("child").write_text(str(child))

    @app.task
    def quick() -> None: ...
"""


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_forked_child_can_be_terminated_and_its_worker_goes_on(
    kind: str, tmp_path: Path, conn: psycopg.Connection, start_worker: Start
) -> None:
    write_module(tmp_path, MODULE)
    worker = start_worker("-r", "jobs").started()
    # Two: a second signal would end the worker at once.
    assert await done(conn, *[enqueue(conn, f"{kind} terminates") for _ in range(2)]) == ["succeeded"] * 2
    assert await done(conn, enqueue(conn, "quick")) == ["succeeded"]
    assert "SIGTERM" not in worker.log()
    assert worker.is_alive()


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(("how", "code"), [("return", 0), ("raise", 1), ("exit", 7)])
async def test_a_child_in_which_the_handler_ends_does_not_go_on_as_a_worker(
    kind: str, how: str, code: int, tmp_path: Path, conn: psycopg.Connection, start_worker: Start
) -> None:
    write_module(tmp_path, MODULE)
    worker = start_worker("-r", "jobs", "-c", "1").started()
    forking = enqueue(conn, f"{kind} forks", {"how": how})
    waiting = [enqueue(conn, "quick") for _ in range(5)]
    assert await done(conn, forking, *waiting) == ["succeeded"] * 6
    assert value(conn, "select result from pgqueue.history where id = %s", forking) == code
    # A second worker in the child would log lines of its own.
    wait_until(lambda: worker.log().count("quick[") == 5)


async def test_a_child_that_outlives_its_worker_keeps_none_of_its_sessions_and_ports(
    tmp_path: Path, conn: psycopg.Connection, start_worker: Start
) -> None:
    write_module(tmp_path, MODULE)
    worker = start_worker("-r", "jobs", "--health-port", "0").started()
    port = port_of(worker)
    await done(conn, enqueue(conn, "leaves"))
    file = tmp_path / "child"
    child = int(wait_until(lambda: file.exists() and file.read_text()))
    try:
        worker.kill()
        sessions = (
            "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
            " and backend_type = 'client backend' and application_name like 'pgqueue%'"
        )
        wait_until(lambda: value(conn, sessions) == 0)
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", port))
    finally:
        os.kill(child, signal.SIGKILL)
