"""What an imported module, or a handler, changes of the worker's process: the worker still logs, and still ends."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from pgqueue.errors import LockTimeout
from pgqueue.worker.process.loops import keep_running
from tests.calls import enqueue
from tests.facts import wait_until
from tests.worker.conftest import Start
from tests.workers import done, environment_without_dsn, write_module

MODULE = """
    import logging, logging.config, os, signal
    from pgqueue import App

    app = App()

    def change() -> None:
        logging.config.dictConfig(
            {
                "version": 1,
                "handlers": {"console": {"class": "logging.StreamHandler"}},
                "root": {"handlers": ["console"], "level": "INFO"},
            }
        )
        logging.disable(logging.CRITICAL)
        # Handlers run in threads, which may not set these.
        if os.environ["CHANGED_BY"] != "thread":
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)

    if os.environ["CHANGED_BY"] == "import":
        change()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        os.chdir("/")

    @app.task
    def thread() -> None:
        change()

    @app.task
    async def loop() -> None:
        change()

    @app.task(max_attempts=1)
    def breaks() -> None:
        logging.disable(logging.CRITICAL)
        raise ValueError("boom")
"""


@pytest.mark.parametrize("by", ["import", "thread", "loop"])
async def test_a_worker_logs_and_ends_whatever_the_application_has_set(
    by: str, tmp_path: Path, conn: psycopg.Connection, start_worker: Start
) -> None:
    write_module(tmp_path, MODULE)
    worker = start_worker("-r", "jobs", CHANGED_BY=by).started()
    if by != "import":
        await done(conn, enqueue(conn, by))
    await done(conn, enqueue(conn, "breaks"))
    wait_until(lambda: "ValueError: boom" in worker.log())
    assert "has called logging.disable(CRITICAL): the log is on again" in worker.log()
    if by == "loop":
        wait_until(lambda: "has set its own handler for SIGTERM" in worker.log())
    worker.send(signal.SIGTERM)
    assert worker.wait(20) == 0


async def test_a_loop_that_has_waited_for_a_lock_too_long_says_so_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    waits = [LockTimeout("another transaction\nholds the table")]
    errors: list[Exception] = []

    async def loop() -> None:
        if waits:
            raise waits.pop()

    await keep_running("claiming", loop, "w", lambda: True, lambda error, where: errors.append(error))
    [line] = caplog.records
    assert (line.levelno, line.exc_info, errors) == (logging.WARNING, None, [])
    assert "waited too long" in line.getMessage()
    assert "\n" not in line.getMessage()


FIRST_PROCESS = """
    import ctypes, os, signal, subprocess, sys, time
    from pathlib import Path
    from pgqueue.processes import first_process

    # Orphans come to this process, as to process 1 of a container.
    ctypes.CDLL(None).prctl(36, 1)
    first, pid = os.getpid(), os.getpid
    os.getpid = lambda: 1
    if sys.argv[1:]:
        # As its parent hands it down.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    first_process.go_on_in_child()
    os.getpid = pid
    for _ in range(3):
        subprocess.run(["sh", "-c", "sleep 0.1 & exit 0"])

    def children() -> list[str]:
        return Path(f"/proc/{first}/task/{first}/children").read_text().split()

    def on_signal(number, frame) -> None:
        sys.exit(7)

    signal.signal(signal.SIGTERM, on_signal)
    while children() != [str(pid())]:
        time.sleep(0.01)
    print("reaped", flush=True)
    while True:
        time.sleep(0.1)
"""


@pytest.mark.skipif(sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "prctl"), reason="needs Linux")
@pytest.mark.parametrize("options", [(), ("ends are ignored",)])
def test_as_the_first_process_of_a_container_it_reaps_orphans_and_passes_signals_on(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    write_module(tmp_path, FIRST_PROCESS, "first")
    with subprocess.Popen(
        [sys.executable, "-m", "first", *options], cwd=tmp_path, env=environment_without_dsn(), stdout=subprocess.PIPE
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"reaped\n"
        os.kill(first.pid, signal.SIGTERM)
        assert first.wait(60) == 7
