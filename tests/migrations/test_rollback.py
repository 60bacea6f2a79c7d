"""A deploy that is rolled back: two made-up versions after this one, then their predecessors on the newest schema."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

from pgqueue.schema import bundled
from tests.calls import value
from tests.databases import Database
from tests.facts import wait_until
from tests.migrations.made_up import add_revision
from tests.workers import WorkerProcess, environment_without_dsn, write_module

ROOT = Path(__file__).parents[2]

TASKS = """
    import asyncio
    from pgqueue import App

    app = App()

    @app.task
    async def work(n: int):
        await asyncio.sleep(0)
"""


class Version:
    """The program of a version, in a directory of its own; `command` ends with its exit code."""

    def __init__(self, directory: Path, database: Database, revision: str) -> None:
        self.directory, self.revision, self._dsn = directory, revision, database.dsn
        self.environment = {"PYTHONPATH": str(directory)}

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pgqueue", *arguments],
            cwd=self.directory,
            env={**environment_without_dsn(), **self.environment, "PGQUEUE_DSN": self._dsn},
            capture_output=True,
            text=True,
        )  # fmt: skip

    def worker(self) -> WorkerProcess:
        name = f"of-{self.revision}"
        return WorkerProcess(
            self.directory, self._dsn, "-r", "jobs", "--name", name, environment=self.environment
        ).started()


@pytest.fixture
def versions(tmp_path: Path, empty_database: Database) -> list[Version]:
    """This version, N-1 and N. Each made-up one adds a column and changes functions, as an expanding release does."""
    revisions = [bundled.revisions()[-1], "9001", "9002"]
    found = []
    for n, revision in enumerate(revisions):
        place = tmp_path / revision
        shutil.copytree(ROOT / "pgqueue", place / "pgqueue", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("sql", "migrations"):
            shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        for old, new in pairwise(revisions[: n + 1]):
            add_revision(place / "migrations", old, new)
            _edit(place / "sql/functions/produce/enqueue.sql", "return v_id;", f"return v_id + 0 * {new};")
            beat = place / "sql/functions/worker/beat.sql"
            _edit(beat, "memory bigint default null", f"memory bigint default null, made_up_{new} integer default 0")
            _edit(beat, "pgqueue.beat(text, jsonb, bigint", "pgqueue.beat(text, jsonb, bigint, integer")
        write_module(place, TASKS)
        found.append(Version(place, empty_database, revision))
    return found


def _edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


class Producer(threading.Thread):
    """Enqueues job after job, each in a transaction of its own, until it is stopped or refused."""

    def __init__(self, conn: psycopg.Connection) -> None:
        super().__init__()
        self.enqueued = 0
        self.errors: list[Exception] = []
        self.stopping = threading.Event()
        self._conn = conn

    def run(self) -> None:
        while not self.stopping.wait(0.002):
            try:
                self._conn.execute("select pgqueue.enqueue('work', '{\"n\": 1}')")
                self.enqueued += 1
            except psycopg.Error as error:
                self.errors.append(error)
                return


@pytest.fixture
def producer(versions: list[Version], empty_database: Database) -> Iterator[Producer]:
    assert versions[0].command("migrate").returncode == 0
    # It prepares the statement, and keeps its plan over every migration.
    thread = Producer(empty_database.connect(prepare_threshold=1))
    thread.start()
    yield thread
    thread.stopping.set()
    thread.join()


@pytest.mark.timeout(400)
def test_a_deploy_is_rolled_back_version_by_version_without_a_failed_enqueue(
    versions: list[Version], producer: Producer, empty_database: Database
) -> None:
    conn = empty_database.connect(prepare_threshold=None)
    this, before, newest = versions

    def works(version: Version) -> None:
        worker = version.worker()
        try:
            seen = value(conn, "select count(*) from pgqueue.history")
            wait_until(lambda: value(conn, "select count(*) from pgqueue.history") > seen + 20)
        finally:
            worker.kill()
        assert "Traceback" not in worker.log()

    # Forward, as a deploy does it.
    for version in (before, newest):
        assert version.command("migrate", "--check").returncode == 1
        done = version.command("migrate")
        assert done.returncode == 0, done.stderr
        works(version)
    # And back: what a deploy does finds nothing to do, and the older program works on the newer schema.
    for version in (before, this):
        check = version.command("migrate", "--check")
        assert (check.returncode, check.stderr) == (0, "")
        assert f"revision 9002 (newer than this pgqueue ({version.revision})" in check.stdout
        assert version.command("migrate").returncode == 0
        assert value(conn, "select revision from pgqueue.version()") == "9002"
        assert "critical: schema" not in version.command("doctor").stdout
        works(version)
    producer.stopping.set()
    producer.join()
    assert producer.errors == []
    assert producer.enqueued > 100
    worker = this.worker()
    try:
        # The jobs of the workers that were killed come back with their leases of 30 s.
        wait_until(lambda: value(conn, "select count(*) from pgqueue.history") == producer.enqueued, timeout=120)
        assert value(conn, "select count(*) from pgqueue.history where state <> 'succeeded'") == 0
    finally:
        worker.kill()
