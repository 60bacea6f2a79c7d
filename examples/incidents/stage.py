"""Where an incident happens: a database, the workers that run in it, and what ends with it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg.rows import dict_row

T = TypeVar("T")

MODULE = "examples.incidents.tasks"
_ROOT = Path(__file__).parents[2]

# Seconds for a worker to end by itself.
_ENDS = 1.0


class Stage:
    """A database for practice. `small`: with few jobs, as tests have it."""

    def __init__(self, dsn: str, small: bool = False, log: Path | None = None) -> None:
        self.dsn = dsn
        self.small = small
        self.conn = psycopg.connect(dsn, autocommit=True, application_name="incidents")
        self.sessions: list[psycopg.Connection[Any]] = []
        self._log = log
        self._workers: list[subprocess.Popen[bytes]] = []

    def many(self, full: int, small: int) -> int:
        """Return how many jobs there are to be."""
        return small if self.small else full

    def value(self, query: str, *params: object) -> Any:
        """Return the only value of a query."""
        row = self.conn.execute(query.encode(), params).fetchone()
        return None if row is None else row[0]

    def rows(self, query: str, *params: object) -> list[dict[str, Any]]:
        """Return the rows of a query, by column."""
        with self.conn.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query.encode(), params).fetchall()

    def enqueue(self, task: str, queue: str, args: str, jobs: int = 1, due: str = "20 min", **options: str) -> None:
        """Enqueue jobs as if they were due since a while, before any worker starts. `args` is SQL, of n."""
        given = "".join(f", {name} => %s" for name in options)
        with self.conn.transaction():
            self.conn.execute(
                f"select count(pgqueue.enqueue(%s, {args}, queue => %s, run_at => now() - %s::interval{given}))"
                f" from generate_series(0, {jobs - 1}) n".encode(),
                [task, queue, due, *options.values()],
            )
            # The queue makes nothing due in the past: claims begin at heads, below which no job may come.
            self.conn.execute("update pgqueue.jobs set ready_at = run_at where ready_at > run_at and state = 'waiting'")
            self.conn.execute("delete from pgqueue.heads where queue <> ''")

    def live(self, condition: str) -> int:
        """Count live jobs."""
        return int(self.value(f"select count(*) from pgqueue.jobs where {condition}"))

    def started(self, task: str) -> int:
        """Count the jobs of a task whose handlers run."""
        return int(
            self.value(
                "select count(*) from pgqueue.jobs where task = %s and state = 'executing' and started = reservation",
                task,
            )
        )

    def age(self, minutes: int = 40) -> None:
        """Make what executes, and what was asked to cancel, older than it is: nobody wants to wait for it."""
        self.conn.execute(
            "update pgqueue.jobs set reserved_at = reserved_at - make_interval(mins => %s),"
            " cancel_requested_at = cancel_requested_at - interval '1 min' where state = 'executing'",
            [minutes],
        )

    def worker(self, *options: str, **environment: str) -> None:
        """Start a worker, and wait until it is registered."""
        name = f"incident-{len(self._workers)}"
        self.run_worker(["-r", MODULE, "--name", name, "--lease", "6", *options], environment)
        self.until(lambda: self.value("select count(*) from pgqueue.workers where name like %s || '%%'", name))

    def run_worker(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start `pgqueue worker` with these arguments."""
        command = [sys.executable, "-m", "pgqueue", "worker", *arguments]
        with self._log.open("ab") if self._log else open(os.devnull, "wb") as log:
            self._workers.append(
                subprocess.Popen(command, cwd=_ROOT, env=self._environment(environment), stdout=log, stderr=log)
            )

    def command(self, command: str) -> None:
        """Run a command of `pgqueue` in a shell, as an operator who says yes. Raises CalledProcessError."""
        subprocess.run(
            # Where it is not installed, the shell finds it all the same.
            ["sh", "-c", f'pgqueue() {{ {shlex.quote(sys.executable)} -m pgqueue "$@"; }}\n{command}'],
            cwd=_ROOT,
            env=self._environment(),
            input=b"y\n",
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=120,
        )

    def until(self, fact: Callable[[], T | None], within: float = 90.0) -> T:
        """Wait for a fact."""
        deadline = time.monotonic() + within
        while not (found := fact()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {within:g} s")
            time.sleep(0.1)
        return found

    def stop_workers(self) -> None:
        """End all workers."""
        for each in self._workers:
            each.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _ENDS
        for each in self._workers:
            try:
                each.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                # The second signal ends a supervisor with its processes.
                each.send_signal(signal.SIGTERM)
                try:
                    each.wait(5 * _ENDS)
                except subprocess.TimeoutExpired:
                    each.kill()
                    each.wait()
        self._workers.clear()

    def close(self) -> None:
        """End all that was started."""
        self.stop_workers()
        for each in (*self.sessions, self.conn):
            each.close()

    def _environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("PGQUEUE_")}
        return {**kept, "PGQUEUE_DSN": self.dsn, "PYTHONPATH": str(_ROOT), **(more or {})}
