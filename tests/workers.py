"""Workers for tests: on the test's own event loop, or as real processes that can be killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg

from pgqueue import App, testing
from pgqueue.config import WorkerConfig
from pgqueue.worker import Worker
from tests.calls import reserve_one, value
from tests.facts import PATIENCE, wait_until, wait_until_async

# Longer than any test, so that no worker polls.
NEVER = 600.0


@asynccontextmanager
async def working(app: App, dsn: str, **settings: Any) -> AsyncIterator[Worker]:
    """Run the worker of pgqueue.testing, which polls as rarely as in production; its handlers may fail."""
    settings = {"poll_interval": WorkerConfig().poll_interval, **settings}
    async with testing.RunningWorker(app, dsn, raise_errors=False, **settings) as beside:
        yield beside.worker


async def done(conn: psycopg.Connection, *job_ids: int, timeout: float = 15) -> list[str]:  # noqa: ASYNC109
    """Wait until these jobs are final; returns their states."""
    await wait_until_async(lambda: len(_final(conn, job_ids)) == len(job_ids), timeout)
    states = _final(conn, job_ids)
    return [states[job_id] for job_id in job_ids]


def take_away(conn: psycopg.Connection, job_id: int) -> int:
    """Have the queue believe that the lease lapsed, and reserve the job for another worker; the new reservation."""
    with conn.transaction():
        conn.execute("update pgqueue.jobs set lease_expires_at = pgqueue._ready_at(null) where id = %s", [job_id])
        # Rescued once already, so that it gets no grace period.
        conn.execute("update pgqueue.jobs set grace_given = true where id = %s", [job_id])
        taken = reserve_one(conn, "thief", lease="1 hour")
    assert taken.id == job_id
    reservation: int = taken.reservation
    return reservation


def takes_handoffs(conn: psycopg.Connection, worker: str) -> bool:
    """Whether enqueue() may hand it a job now."""
    return bool(
        value(
            conn,
            "select exists (select from pgqueue.idle_workers w where w.worker = %s and w.handoff_channel is not null"
            " and w.until > pgqueue._clock())",
            worker,
        )
    )


def is_asleep(conn: psycopg.Connection, worker: str) -> bool:
    """Whether the worker is registered as idle, and its polls after that are over."""
    return bool(
        value(
            conn,
            "select bool_and(a.state = 'idle' and a.state_change < clock_timestamp() - interval '0.3 s')"
            " from pg_stat_activity a"
            " where a.datname = current_database() and a.application_name = %s"
            " and a.query ~ 'pgqueue.(reserve|idle)'"
            " and exists (select from pgqueue.idle_workers s where s.worker = %s and s.until > clock_timestamp())",
            f"pgqueue {worker}"[:63],
            worker,
        )
    )


def claims(conn: psycopg.Connection, worker: str) -> int | None:
    """The pid of the backend on which the worker reserves."""
    pid: int | None = value(
        conn,
        "select pid from pg_stat_activity where datname = current_database() and application_name = %s"
        " and query ~ 'pgqueue.(reserve|idle|awake)'"
        # It claims on another one only while this one is in use.
        " order by query ~ 'pgqueue.(idle|awake)' desc",
        f"pgqueue {worker}"[:63],
    )
    return pid


def _final(conn: psycopg.Connection, job_ids: tuple[int, ...]) -> dict[int, str]:
    rows = conn.execute("select id, state::text from pgqueue.history where id = any(%s)", [list(job_ids)])
    return dict(rows.fetchall())


class WorkerProcess:
    """`python -m pgqueue worker` in a directory of the test's; `log()` is what it has written to stderr."""

    def __init__(self, directory: Path, dsn: str, *options: str, environment: Mapping[str, str] | None = None) -> None:
        self._log = directory / f"worker-{len(list(directory.glob('worker-*.log')))}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pgqueue", "worker", *options],
                cwd=directory,
                env={**environment_without_dsn(), "PGQUEUE_DSN": dsn, **(environment or {})},
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        return self._log.read_text()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = 30) -> int:
        """Wait for its end, as patiently as for a fact; returns its exit code."""
        return self.process.wait(timeout * PATIENCE)

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def started(self) -> WorkerProcess:
        """Wait until it logs that it runs."""
        wait_until(lambda: self._says(", concurrency"), timeout=60)
        return self

    def kill(self) -> None:
        if self.is_alive():
            self.process.kill()
        self.process.wait()

    def _says(self, what: str) -> bool:
        assert self.is_alive() or what in self.log(), f"the worker has ended: {self.log()}"
        return what in self.log()


def write_module(directory: Path, text: str, name: str = "jobs") -> None:
    """Write a module with tasks for a worker process."""
    (directory / f"{name}.py").write_text(textwrap.dedent(text))


def environment_without_dsn() -> dict[str, str]:
    """The environment, without anything that names a database."""
    return {
        name: text for name, text in os.environ.items() if not re.match(r"PGQUEUE_|DATABASE_URL$|PG[A-Z]+$", name)
    } | {"PYTHONPATH": str(Path(__file__).parents[1])}
