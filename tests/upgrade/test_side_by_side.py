"""Workers of the last release and of this one, side by side on the new schema, under load.

The archive beside this file is the last release, as tests/upgrade/build.sh builds it from the history.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgqueue.schema.migrate import migrate
from tests.calls import enqueue, value
from tests.databases import Database
from tests.facts import wait_until
from tests.migrations.releases import install
from tests.workers import WorkerProcess, environment_without_dsn, write_module

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

ARCHIVE = Path(__file__).parent / "last_release.tar.xz"

TASKS = """
    import os, random, time
    from pgqueue import App, Job

    app = App()

    def note(job):
        fd = os.open("runs", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{os.environ['RELEASE']} {job.id} {job.key} {time.time()}\\n".encode())
        os.close(fd)

    @app.task
    async def plain(job: Job, i: int):
        note(job)

    @app.task
    def keyed(job: Job, i: int):
        note(job)
        time.sleep(0.002)

    @app.task(max_attempts=3)
    def fails_once(job: Job, i: int):
        note(job)
        if job.attempt == 1:
            raise ValueError("once")
"""


@pytest.fixture
def last_release(tmp_path: Path) -> Path:
    place = tmp_path / "last_release"
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(place, filter="data")
    return place


class OldWorker(WorkerProcess):
    """A worker of the release in a directory."""

    def __init__(self, directory: Path, dsn: str, place: Path, *options: str) -> None:
        self._log = directory / f"old-{options[-1]}.log"
        environment = {**environment_without_dsn(), "PGQUEUE_DSN": dsn, "RELEASE": "old", "PYTHONPATH": str(place)}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pgqueue", "worker", *options],
                cwd=directory, env=environment, stdout=log, stderr=log,
            )  # fmt: skip


@pytest.fixture
def old(empty_database: Database, last_release: Path, tmp_path: Path) -> Iterator[OldWorker]:
    """A worker that was started on the last release's schema, and is there when the migration comes."""
    conn = empty_database.connect(prepare_threshold=None)
    install(conn)
    conn.execute("reset all")
    write_module(tmp_path, TASKS)
    worker = OldWorker(tmp_path, empty_database.dsn, last_release, "-r", "jobs", "--lease", "6", "--name", "old")
    try:
        yield worker.started()
    finally:
        worker.kill()
        print(worker.log()[-6000:])  # noqa: T201


def test_both_releases_work_under_load_and_no_job_is_lost_or_run_twice(
    empty_database: Database, old: OldWorker, tmp_path: Path, last_release: Path
) -> None:
    probe = subprocess.run(
        [sys.executable, "-c", "import pgqueue; print(pgqueue.__file__)"],
        env={**os.environ, "PYTHONPATH": str(last_release)}, capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert probe.stdout.startswith(str(last_release)), "the old worker would run this release's code"
    conn = empty_database.connect(prepare_threshold=None)
    enqueued: list[int] = []

    def load(count: int) -> None:
        for n in range(count):
            kind = n % 10
            task = "keyed" if kind < 3 else "fails_once" if kind == 3 else "plain"
            key = f"k{n % 4}" if task == "keyed" else None
            enqueued.append(enqueue(conn, task, {"i": n}, key=key, **({"queue": "keyed"} if key else {})))

    load(200)
    wait_until(lambda: _runs(tmp_path)["old"], timeout=30)
    migrate(empty_database.dsn)
    new = WorkerProcess(
        tmp_path, empty_database.dsn, "-r", "jobs", "--lease", "6", "--name", "new", environment={"RELEASE": "new"}
    )
    try:
        new.started()
        before = _runs(tmp_path)["old"]
        until = time.monotonic() + 10
        while time.monotonic() < until:
            load(100)
        # The last release goes on beside this one.
        wait_until(lambda: _runs(tmp_path)["old"] > before + 20, timeout=30)
        wait_until(lambda: _runs(tmp_path)["new"] > 20, timeout=30)
        wait_until(lambda: value(conn, "select count(*) from pgqueue.jobs") == 0, timeout=90)
        assert value(conn, "select count(*) from pgqueue.history where state = 'succeeded'") == len(enqueued)
        attempts = conn.execute("select task, max(attempts), min(attempts) from pgqueue.history group by 1").fetchall()
        assert sorted(attempts) == [("fails_once", 2, 2), ("keyed", 1, 1), ("plain", 1, 1)]
        lines = [line.split() for line in (tmp_path / "runs").read_text().splitlines()]
        ran = Counter(int(line[1]) for line in lines)
        twice = {job_id for job_id, times in ran.items() if times > 1}
        assert twice == {row[0] for row in conn.execute("select id from pgqueue.history where task = 'fails_once'")}
        # Across both releases.
        for key in {line[2] for line in lines} - {"None"}:
            order = [int(line[1]) for line in lines if line[2] == key]
            assert order == sorted(order)
        for worker in (new, old):
            worker.send(signal.SIGTERM)
            assert worker.wait() == 0
            # No other error has a traceback in the log.
            raised = re.findall(r"^Traceback .*\n(?:[ \t].*\n)+(\S.*)", worker.log(), re.MULTILINE)
            assert len(raised) == worker.log().count("Traceback (most recent call last)")
            assert set(raised) <= {"ValueError: once"}
    finally:
        new.kill()
        print(new.log()[-3000:])  # noqa: T201


def _runs(directory: Path) -> Counter[str]:
    file = directory / "runs"
    return Counter(line.split()[0] for line in file.read_text().splitlines()) if file.exists() else Counter()
