"""The server restarts under load, or a standby takes its place: the worker goes on, and nothing is lost."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self

import psycopg
import pytest

from pgqueue import embedded, enqueue
from pgqueue.schema.migrate import migrate
from tests.calls import value
from tests.facts import PATIENCE, wait_until
from tests.workers import WorkerProcess, write_module

pytestmark = [
    pytest.mark.long,
    # It starts servers of its own, from the programs of the extra.
    pytest.mark.skipif(not embedded.available(), reason="the embedded server is not installed"),
]

TASKS = """
    import asyncio
    from pgqueue import App

    app = App()

    @app.task
    async def t(i: int):
        await asyncio.sleep(0.01)
"""


class Server:
    """A server in a directory of its own."""

    options: ClassVar[dict[str, str]] = {"synchronous_commit": "on", "shared_buffers": "32MB"}

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.start()
        self.host = str(directory / "socket")
        self.dsn = f"postgresql://postgres@/pgqueue?host={self.host}"

    def start(self) -> None:
        # A crash of the server leaves what it has written to the machine, which does not crash.
        embedded.start(self.directory, durable=False, options=self.options)

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(statement.encode())

    def standby(self, directory: Path) -> Self:
        """Copy the server into a directory, and start the copy as its standby."""
        directory.mkdir(mode=0o700)
        data = directory / "data"
        subprocess.run(
            [
                *(embedded.binaries() / "pg_basebackup", "--pgdata", data, "--write-recovery-conf"),
                *("--checkpoint=fast", "--wal-method=stream", "--no-sync"),
                *("--dbname", f"host={self.host} user=postgres application_name=standby"),
            ],
            check=True,
            capture_output=True,
        )
        if os.geteuid() == 0:
            # As the embedded server's keeper runs it.
            nobody = pwd.getpwnam("nobody")
            for path in (data, *data.rglob("*")):
                os.chown(path, nobody.pw_uid, nobody.pw_gid, follow_symlinks=False)
        # By this the embedded server knows a directory of its own.
        (directory / "users.lock").touch(mode=0o600)
        return type(self)(directory)

    def stop(self) -> None:
        """As an operator does it: sessions are ended, then a checkpoint."""
        embedded.stop(self.directory)

    def crash(self) -> None:
        pid_file = self.directory / "data" / "postmaster.pid"
        os.kill(int(pid_file.read_text().splitlines()[0]), signal.SIGQUIT)
        wait_until(lambda: not pid_file.exists(), timeout=120)


@pytest.fixture
def pair() -> Iterator[tuple[Server, Server]]:
    """A primary, and a standby without which it commits nothing."""
    directory = Path(tempfile.mkdtemp(prefix="pgqueue-failover-"))
    try:
        primary = Server(directory / "a")
        migrate(primary.dsn)
        standby = primary.standby(directory / "b")
        primary.execute("alter system set synchronous_standby_names = 'standby'")
        primary.execute("select pg_reload_conf()")
        with psycopg.connect(primary.dsn, autocommit=True) as conn:
            wait_until(lambda: value(conn, "select bool_or(sync_state = 'sync') from pg_stat_replication"))
        yield primary, standby
    finally:
        for name in ("a", "b"):
            if (directory / name).exists():
                embedded.stop(directory / name)
        shutil.rmtree(directory, ignore_errors=True)


class Producer(threading.Thread):
    """Enqueues until it is stopped, wherever the primary is; `acknowledged` are the jobs whose commit it saw."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self._stopped = threading.Event()
        self.acknowledged: list[int] = []
        self.start()

    def run(self) -> None:
        while not self._stopped.is_set():
            with suppress(psycopg.Error), psycopg.connect(self._dsn, autocommit=True, connect_timeout=2) as conn:
                while not self._stopped.is_set():
                    self.acknowledged.append(enqueue(conn, "t", {"i": len(self.acknowledged)}))
            # Until there is a primary again.
            self._stopped.wait(0.02)

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def succeeded(conn: psycopg.Connection, jobs: list[int]) -> bool:
    """Whether all of these have."""
    found = "select count(*) from pgqueue.history where state = 'succeeded' and id = any(%s)"
    return bool(value(conn, found, jobs) == len(jobs))


@pytest.mark.covers("D3", "A10")
def test_a_server_that_restarts_and_one_that_crashes_under_load_loses_no_job(tmp_path: Path) -> None:
    directory = Path(tempfile.mkdtemp(prefix="pgqueue-restart-"))
    write_module(tmp_path, TASKS)
    worker = producer = None
    try:
        server = Server(directory)
        migrate(server.dsn)
        worker = WorkerProcess(tmp_path, server.dsn, "-r", "jobs", "--lease", "6", "--name", "w").started()
        producer = Producer(server.dsn)
        for ends, end in enumerate((server.stop, server.crash)):
            wait_until(lambda ends=ends: worker.log().count("answers again") == ends, timeout=20)  # type: ignore[misc]
            before = len(producer.acknowledged)
            wait_until(lambda before=before: len(producer.acknowledged) > before + 100, timeout=20)  # type: ignore[misc]
            end()
            server.start()
        before = len(producer.acknowledged)
        wait_until(lambda: len(producer.acknowledged) > before + 20, timeout=20)
        wait_until(lambda: worker.log().count("answers again") == 2, timeout=20)
        producer.stop()
        with psycopg.connect(server.dsn, autocommit=True) as conn:
            wait_until(lambda: succeeded(conn, producer.acknowledged), timeout=20)
            # What was under way was neither lost nor counted twice.
            assert value(conn, "select max(attempts) from pgqueue.history") == 1
        assert "Traceback" not in worker.log()
        assert worker.log().count("trying again until it answers") == 2
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    finally:
        if producer is not None:
            producer.stop()
        if worker is not None:
            worker.kill()
            print(worker.log())  # noqa: T201  (shown when the test fails)
        embedded.stop(directory)
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.covers("D3", "A10")
@pytest.mark.parametrize("how", ["crashes", "is demoted"])
def test_a_worker_goes_with_the_primary_and_no_replicated_job_is_lost(
    how: str, pair: tuple[Server, Server], tmp_path: Path
) -> None:
    primary, standby = pair
    write_module(tmp_path, TASKS)
    dsn = f"postgresql://postgres@/pgqueue?host={primary.host},{standby.host}&port=5432,5432"
    # It needs no option to choose a server that takes writes.
    worker = WorkerProcess(tmp_path, dsn, "-r", "jobs", "--lease", "6", "--name", "w").started()
    producer = Producer(f"{dsn}&target_session_attrs=read-write")
    try:
        with psycopg.connect(primary.dsn, autocommit=True) as conn:
            wait_until(lambda: value(conn, "select count(*) from pgqueue.history") > 100, timeout=20)
        if how == "crashes":
            primary.crash()
        else:
            # It goes on to answer, and sessions that are open stay open, but nothing can be written there.
            primary.execute("alter system set default_transaction_read_only = on")
            primary.execute("select pg_reload_conf()")
            with psycopg.connect(primary.dsn, autocommit=True) as conn:
                wait_until(
                    lambda: value(conn, "select bool_and(pg_current_wal_lsn() = replay_lsn) from pg_stat_replication")
                )
        enqueued = len(producer.acknowledged)
        standby.execute("select pg_promote()")
        promoted_at = time.monotonic()
        wait_until(lambda: len(producer.acknowledged) > enqueued + 50, timeout=20)
        with psycopg.connect(standby.dsn, autocommit=True) as conn:
            last = producer.acknowledged[-1]
            wait_until(
                lambda: value(conn, "select 1 from pgqueue.history where id >= %s and state = 'succeeded'", last),
                timeout=20,
            )
            assert time.monotonic() - promoted_at < 15 * PATIENCE
            producer.stop()
            wait_until(lambda: succeeded(conn, producer.acknowledged), timeout=20)
        assert "Traceback" not in worker.log()
        assert worker.log().count("trying again until it answers") <= 3
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    finally:
        producer.stop()
        worker.kill()
        print(worker.log())  # noqa: T201  (shown when the test fails)
