"""The server goes away for longer than a lease, with jobs in flight, and comes back."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from pgqueue import App, embedded
from pgqueue.schema.migrate import migrate
from tests.calls import enqueue, value
from tests.facts import wait_until, wait_until_async
from tests.workers import NEVER, WorkerProcess, is_asleep, working, write_module

pytestmark = pytest.mark.skipif(not embedded.available(), reason="the embedded server is not installed")

# Maintenance takes a gap of more than 5 s for an outage. A lease that was about to be extended must be extended
# again within five thirds of its length, so the server has about 19 s to start, also on a machine that is busy.
LEASE = 30
OUTAGE = 30.5

TASKS = """
    import asyncio, pathlib, time
    from pgqueue import App, Job

    app = App()
    here = pathlib.Path(__file__).parent

    def say(what, job):
        with (here / "ran").open("a") as file:
            file.write(f"{what} {job.id}\\n")

    @app.task
    async def long(job: Job):
        say("began", job)
        while not (here / "go").exists():
            await asyncio.sleep(0.01)
        say("ended", job)

    @app.task
    def long_sync(job: Job):
        say("began", job)
        while not (here / "go").exists():
            time.sleep(0.01)
        say("ended", job)
"""


class Server:
    """A durable server of the test's own, that can be stopped in the middle of everything."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.start()
        # By the symlink: the directory of the socket is another one after each start.
        self.dsn = f"postgresql://postgres@/pgqueue?host={directory / 'socket'}"

    def stop_immediately(self) -> None:
        """As a crash does it: no checkpoint, no goodbye, recovery at the next start."""
        pid_file = self._directory / "data" / "postmaster.pid"
        os.kill(int(pid_file.read_text().splitlines()[0]), signal.SIGQUIT)
        wait_until(lambda: not pid_file.exists())

    def start(self) -> None:
        embedded.start(self._directory)


@pytest.fixture
def server() -> Iterator[Server]:
    directory = Path(tempfile.mkdtemp(prefix="pgqueue-outage-"))
    server = Server(directory)
    migrate(server.dsn)
    yield server
    embedded.stop(directory)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.long
@pytest.mark.covers("D3", "A10")
def test_an_outage_longer_than_a_lease_runs_nothing_twice_while_the_workers_live(
    server: Server, tmp_path: Path
) -> None:
    write_module(tmp_path, TASKS)
    ran = tmp_path / "ran"
    ran.touch()

    def counted() -> Counter[str]:
        return Counter(ran.read_text().splitlines())

    with psycopg.connect(server.dsn, autocommit=True) as conn:
        jobs = [enqueue(conn, task) for task in ("long", "long_sync") for _ in range(8)]
        # More than the workers have slots for: these wait for the end of the outage.
        later = [enqueue(conn, "long") for _ in range(4)]
    workers = [
        WorkerProcess(tmp_path, server.dsn, "-r", "jobs", "-c", "8", "--lease", str(LEASE), "--name", name)
        for name in ("a", "b")
    ]
    try:
        wait_until(lambda: len(counted()) == len(jobs), timeout=20)
        server.stop_immediately()
        down_since = time.monotonic()
        wait_until(lambda: time.monotonic() - down_since > OUTAGE, timeout=20)
        server.start()
        with psycopg.connect(server.dsn, autocommit=True) as conn:
            back_at = value(conn, "select clock_timestamp()")
            # Maintenance grants jobs in flight a grace period, once; beyond that only its workers can extend it.
            beyond = back_at + timedelta(seconds=LEASE + 4)
            wait_until(
                lambda: (
                    value(
                        conn,
                        "select count(*) filter (where lease_expires_at > %s and reserved_by in ('a', 'b'))"
                        " from pgqueue.jobs where state = 'executing'",
                        beyond,
                    )
                    == len(jobs)
                ),
                timeout=20,
            )
            (tmp_path / "go").touch()
            wait_until(lambda: value(conn, "select count(*) from pgqueue.jobs") == 0, timeout=30)
            assert dict(conn.execute("select state::text, count(*) from pgqueue.history group by 1").fetchall()) == {
                "succeeded": len(jobs) + len(later)
            }
            assert value(conn, "select max(attempts) + max(losses) from pgqueue.history") == 1
        assert counted() == Counter(f"{what} {job_id}" for what in ("began", "ended") for job_id in jobs + later)
        for worker in workers:
            assert worker.is_alive()
            # One line when it went, one when it was back; two more when a connection that slept through it is used.
            assert 1 <= worker.log().count("trying again until it answers") <= 2
            assert 1 <= worker.log().count("answers again after") <= 2
            assert "is lost" not in worker.log()
            worker.send(signal.SIGTERM)
            assert worker.wait() == 0
    finally:
        for worker in workers:
            worker.kill()
            # Shown when the test fails.
            sys.stderr.write(worker.log())


@pytest.mark.long
@pytest.mark.covers("A11")
def test_a_worker_that_is_stopped_during_an_outage_ends_within_its_bound(server: Server, tmp_path: Path) -> None:
    write_module(tmp_path, TASKS)
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        enqueue(conn, "long")
    worker = WorkerProcess(tmp_path, server.dsn, "-r", "jobs", "--shutdown-timeout", "1")
    try:
        wait_until((tmp_path / "ran").exists, timeout=20)
        server.stop_immediately()
        wait_until(lambda: "trying again" in worker.log())
        worker.send(signal.SIGTERM)
        # 1 s for the handler, 5 s for what it leaves to be stored, and some; all in all 10 s more than that 1 s.
        assert worker.wait() == 1
        assert "could not be stored" in worker.log() or "ending without what holds it" in worker.log()
    finally:
        worker.kill()


@pytest.mark.long
@pytest.mark.covers("A10", "G3")
async def test_a_worker_registers_as_idle_again_after_a_crash_which_takes_all_registrations(server: Server) -> None:
    app = App()
    ran = asyncio.Event()

    @app.task
    async def t() -> None:
        ran.set()

    async with working(app, server.dsn, name="w", poll_interval=NEVER):
        with psycopg.connect(server.dsn, autocommit=True) as conn:
            await wait_until_async(lambda: is_asleep(conn, "w"))
        await asyncio.to_thread(server.stop_immediately)
        await asyncio.to_thread(server.start)
        with psycopg.connect(server.dsn, autocommit=True) as conn:
            await wait_until_async(lambda: is_asleep(conn, "w"), timeout=30)
            enqueue(conn)
        await wait_until_async(ran.is_set)
