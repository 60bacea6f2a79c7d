"""docs/operate/failover.md, followed as written: three servers, a worker, and a primary that is killed under load."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

import pgqueue
from examples.failover import cluster as example
from tests.facts import wait_until

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/operate/failover.md"

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(420),
    # Patroni and etcd come from Debian, not from PyPI; .ci/run installs them where it can.
    pytest.mark.skipif(bool(example.missing()), reason=example.missing() or "-"),
]


def commands() -> list[list[str]]:
    """The commands of the page's section, save the one that installs packages."""
    section = PAGE.read_text().split("## Three servers with Patroni", 1)[1].split("| setting |", 1)[0]
    lines = "\n".join(re.findall(r"```text\n(.*?)```", section, re.S)).splitlines()
    return [shlex.split(line) for line in lines if line and not line.startswith("apt-get")]


@contextmanager
def running(command: list[str], directory: Path, log: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """The program of a line: python is this one, and so are the programs beside it."""
    program = sys.executable if command[0] == "python" else str(Path(sys.executable).with_name(command[0]))
    with log.open("a") as errors:
        process = subprocess.Popen(
            [program, *command[1:]],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Load:
    """Enqueues fifty times a second. `acknowledged` are the jobs whose commits were."""

    def __init__(self, dsn: str) -> None:
        self.acknowledged: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._enqueue, args=[dsn])
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _enqueue(self, dsn: str) -> None:
        while not self._over.is_set():
            with (
                suppress(psycopg.Error),
                psycopg.connect(
                    dsn, autocommit=True, connect_timeout=3, target_session_attrs="read-write", tcp_user_timeout=3000
                ) as connection,
            ):
                while not self._over.wait(0.02):
                    self.acknowledged.append(pgqueue.enqueue(connection, "greet", {"name": "you"}))


def test_the_page_is_followed_and_no_job_is_lost(tmp_path: Path) -> None:
    start, migrate, enqueue, work = commands()
    (tmp_path / "tasks.py").write_text(
        "from pgqueue import App\n\napp = App()\n\n@app.task\ndef greet(name: str) -> None:\n    print('hello', name)\n"
    )
    log = tmp_path / "worker.log"
    with ExitStack() as stack:
        cluster = stack.enter_context(running(start, ROOT, tmp_path / "cluster.log"))
        assert cluster.stdout is not None
        printed = [cluster.stdout.readline() for _ in range(4)]
        dsn = printed[0].removeprefix("export PGQUEUE_DSN='").rstrip("'\n")
        for command in (migrate, enqueue):
            with running(command, tmp_path, tmp_path / "commands.log", PGQUEUE_DSN=dsn) as process:
                assert process.wait(60) == 0
        stack.enter_context(running(work, tmp_path, log, PGQUEUE_DSN=dsn))
        load = Load(dsn)
        stack.callback(load.stop)
        wait_until(lambda: len(load.acknowledged) > 200, timeout=60)
        [primary] = [line for line in printed if "primary" in line]
        for pid in re.findall(r"(?:Patroni|server) (\d+)", primary):
            os.kill(int(pid), signal.SIGKILL)
        killed_at, before = time.monotonic(), len(load.acknowledged)
        wait_until(lambda: len(load.acknowledged) > before + 200, timeout=120)
        print(f"enqueues are acknowledged again after {time.monotonic() - killed_at:.1f} s")  # noqa: T201
        load.stop()
        with psycopg.connect(dsn, autocommit=True, target_session_attrs="read-write") as conn:
            wait_until(lambda: conn.execute("select from pgqueue.jobs limit 1").fetchone() is None, timeout=60)
            ended: dict[int, str] = dict(conn.execute("select id, state::text from pgqueue.history").fetchall())
    assert set(load.acknowledged) - set(ended) == set()
    assert set(ended.values()) == {"succeeded"}
    # The lines of the worker's log that the page names.
    assert re.search(r"cannot use .* trying again until it answers", log.read_text(), re.S)
    assert "answers again" in log.read_text()
