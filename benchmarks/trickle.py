"""What does a job cost the server when jobs come one by one?

One worker process with default settings; one producer that enqueues a no-op job at a steady rate. Over a whole job:
seconds of CPU by the server's own process times, commits, and bytes of WAL; the heartbeats and the maintenance of that
time are in it, and so are a few commits of the measurement itself. Beside it, in the same minutes, the bare loop: an
INSERT with NOTIFY, a claim, a DELETE with a row of history, each a durable commit, by one connection that listens and
works.

PostgreSQL counts a fourth commit, which writes nothing: a session that listens reads each notification in a
transaction.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from .bare import CLAIM, END, INSERT, TABLES
from .cpu import server_seconds
from .harness import Bound, Connection, Report, Server, median, paired, rounds, sized

_RATES = (10, 20, 50, 200)
# By jobs a second. The commits are a number, and need no baseline.
_CPU_TO_BARE = {20: 2.0, 200: 2.0}
_COMMITS = {20: 3.0}
_ROUNDS = rounds()
_SECONDS = sized(15_000, least=3_000) / 1000
_OURS, _BARE = "pgqueue", "the bare loop"


@dataclass(frozen=True, slots=True)
class _Cost:
    """Of one job."""

    cpu_ms: float
    commits: float
    wal: float


def run(server: Server) -> Report:
    costs: dict[tuple[int, str], list[_Cost]] = {(rate, way): [] for rate in _RATES for way in (_OURS, _BARE)}
    for _ in range(_ROUNDS):
        for rate in _RATES:
            with server.database("trickle") as dsn:
                costs[rate, _OURS].append(_measure_ours(dsn, rate))
            with server.database("bare") as dsn:
                costs[rate, _BARE].append(_measure_bare(dsn, rate))
    rows, figures, bounds = [], {}, []
    for rate in _RATES:
        ours, bare = (_median(costs[rate, way]) for way in (_OURS, _BARE))
        for way, each in ((_OURS, ours), (_BARE, bare)):
            name = f"{way}, {rate} jobs/s"
            ratio = paired(*([cost.cpu_ms for cost in costs[rate, of]] for of in (way, _BARE)))
            rows.append((name, f"{each.cpu_ms:.2f}", f"{each.commits:.2f}", f"{each.wal:,.0f}", f"{ratio:.2f}"))
            figures[name] = {
                "cpu_ms_per_job": each.cpu_ms,
                "commits_per_job": each.commits,
                "wal_bytes_per_job": each.wal,
                "cpu_to_bare": ratio,
            }
        if rate in _CPU_TO_BARE:
            ratio = figures[f"{_OURS}, {rate} jobs/s"]["cpu_to_bare"]
            bounds.append(Bound(f"CPU to the bare loop, {rate} jobs/s", ratio, _CPU_TO_BARE[rate]))
        if rate in _COMMITS:
            bounds.append(Bound(f"commits per job, {rate} jobs/s", ours.commits, _COMMITS[rate]))
    return Report(
        f"trickle: what a job costs the server, {_SECONDS:g} s for each rate, median of {_ROUNDS}",
        ("", "ms of CPU", "commits", "bytes of WAL", "CPU to the bare loop"),
        rows,
        figures,
        bounds,
    )


def _measure_ours(dsn: str, rate: int) -> _Cost:
    def enqueue(connection: Connection) -> None:
        connection.execute("select pgqueue.enqueue('noop')")

    ended = "select count(*) from pgqueue.history where state = 'succeeded'"
    with _worker(dsn), psycopg.connect(dsn, autocommit=True) as connection:
        return _measure(connection, rate, enqueue, ended)


def _measure_bare(dsn: str, rate: int) -> _Cost:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(TABLES.encode())
        with _bare_worker(dsn):
            return _measure(
                connection,
                rate,
                lambda connection: connection.execute(INSERT.encode(), (0,)),
                "select count(*) from bare_history",
            )


def _measure(connection: Connection, rate: int, enqueue: Callable[[Connection], object], ended: str) -> _Cost:
    """Enqueue at a steady rate, and return what a job costs from the first to the end of the last."""
    # Not measured: the worker starts, and sessions plan their statements.
    _feed(connection, rate, 1.0, enqueue, ended)
    before = _figures(connection)
    jobs = _feed(connection, rate, _SECONDS, enqueue, ended)
    cpu, commits, wal = (now - then for now, then in zip(_figures(connection), before, strict=True))
    return _Cost(1000 * cpu / jobs, commits / jobs, wal / jobs)


def _feed(
    connection: Connection, rate: int, seconds: float, enqueue: Callable[[Connection], object], ended: str
) -> int:
    first = _number(connection, ended)
    jobs = max(int(rate * seconds), 1)
    began = time.monotonic()
    for n in range(jobs):
        time.sleep(max(0.0, began + n / rate - time.monotonic()))
        enqueue(connection)
    deadline = time.monotonic() + 60
    while _number(connection, ended) < first + jobs:
        if time.monotonic() > deadline:
            raise RuntimeError("the jobs were not run within a minute")
        time.sleep(0.2)
    return jobs


def _figures(connection: Connection) -> tuple[float, float, float]:
    """Return seconds of CPU, commits and bytes of WAL so far."""
    # Sessions report their commits when they have been idle for a second.
    time.sleep(1.2)
    connection.execute("select pg_stat_clear_snapshot()")
    commits = _number(connection, "select xact_commit from pg_stat_database where datname = current_database()")
    wal = _number(connection, "select pg_current_wal_insert_lsn() - '0/0'")
    return server_seconds(connection), commits, wal


def _number(connection: Connection, question: str) -> float:
    [answer] = connection.execute(question.encode()).fetchone() or [0]
    return float(str(answer))


def _median(costs: list[_Cost]) -> _Cost:
    return _Cost(*(median([getattr(cost, name) for cost in costs]) for name in ("cpu_ms", "commits", "wal")))


@contextmanager
def _worker(dsn: str) -> Iterator[None]:
    options = ("--dsn", dsn, "-r", "benchmarks.noops", "--log-level", "warning")
    with subprocess.Popen([sys.executable, "-m", "pgqueue", "worker", *options]) as process:
        try:
            yield
        finally:
            process.terminate()


@contextmanager
def _bare_worker(dsn: str) -> Iterator[None]:
    listens, over = threading.Event(), threading.Event()

    def work() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("listen bare")
            listens.set()
            while not over.is_set():
                # One claim for each notification, so that no claim finds nothing.
                for _ in list(connection.notifies(timeout=0.5, stop_after=1)):
                    job_id, _ = connection.execute(CLAIM.encode()).fetchone() or (None, 0)
                    connection.execute(END.encode(), (job_id,))

    thread = threading.Thread(target=work)
    thread.start()
    listens.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()
