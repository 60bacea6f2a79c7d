"""What is measured of a queue: a drain, and jobs that come one by one.

- Drain: from the start of the first handler until no job is undone. The worker starts after the jobs were enqueued and
  the tables vacuumed and analysed, so its start-up is not in the figure. The server is asked every 10 ms from the start
  of the last handler on. The server's CPU is of the same time.
- Start: a job every 20 ms to a worker that is idle; from the moment when the producer's enqueue has returned, which is
  after its commit, to the first line of the handler. A handler that starts before that counts as 0 or less.
- Flow: producers that enqueue one job a commit, at a rate in all or as fast as they can, for one worker or several; the
  start as above, jobs a second from the first commit to the last start, and the server's CPU for a job.
- Life: the server's CPU and its transactions from a job at every 50 ms, for all that the server does meanwhile: the
  enqueue, the work, heartbeats, polls and maintenance, and a few transactions of the measurement.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import psycopg

from ..cpu import server_seconds
from ..harness import Connection, percentile
from .program import NotRunError, Program
from .queues import Queue

# Milliseconds between jobs.
EVERY_START = 20
EVERY_LIFE = 50
_WARM_UP = 50
# For a flow without a rate, milliseconds between jobs, and how many each producer is given for a second.
_AT_ONCE = 0.001
_OF_A_SECOND = 400
# Seconds. The slowest queue needs some for a drain.
_PATIENCE = 600.0


@dataclass(frozen=True, slots=True)
class Drain:
    jobs_per_s: float
    cpu_us: float


@dataclass(frozen=True, slots=True)
class Paced:
    """`cpu_ms` and `transactions` are of one job."""

    start_p50_ms: float
    start_p99_ms: float
    cpu_ms: float
    transactions: float


@dataclass(frozen=True, slots=True)
class Flow:
    """Of one run: milliseconds from the return of the enqueue to the start, jobs a second, and microseconds of CPU."""

    p50: float
    p99: float
    rate: float
    cpu_us: float


def drain(queue: Queue, dsn: str, jobs: int, processes: int = 1) -> Drain:
    """Drain `jobs` jobs by `processes` workers, in an empty database."""
    with Program(queue, dsn, "produce") as producer:
        producer.mark()
        producer.order(jobs, 0)
        producer.mark(_PATIENCE)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("vacuum analyze")
        with ExitStack() as running:
            workers = [running.enter_context(Program(queue, dsn, "work", str(jobs))) for _ in range(processes)]
            before = server_seconds(connection)
            if processes == 1:
                _, began = workers[0].mark()
                before = server_seconds(connection)
                workers[0].mark(_PATIENCE)
                _wait_for_end(queue, connection, jobs, 0.01)
            else:
                _wait_for_end(queue, connection, jobs, 0.01, _PATIENCE)
                # A process that came too late has no first job.
                began = min(at for worker in workers for _, at in worker.marks())
            seconds = (time.monotonic_ns() - began) / 1e9
            return Drain(jobs / seconds, 1e6 * (server_seconds(connection) - before) / jobs)


def paced(queue: Queue, dsn: str, jobs: int) -> Paced:
    """Enqueue jobs one by one for an idle worker, in an empty database: `jobs` for the start, and `jobs` for a life."""
    with Program(queue, dsn, "produce") as producer:
        producer.mark()
        with (
            Program(queue, dsn, "work", "0") as worker,
            psycopg.connect(dsn, autocommit=True) as connection,
        ):
            # Not measured: the worker starts, and sessions plan their statements.
            _feed(producer, worker, _WARM_UP, EVERY_START)
            starts = _feed(producer, worker, jobs, EVERY_START)
            _wait_for_end(queue, connection, _WARM_UP + jobs, 0.2)
            before = _so_far(connection)
            _feed(producer, worker, jobs, EVERY_LIFE)
            _wait_for_end(queue, connection, _WARM_UP + 2 * jobs, 0.2)
            cpu, transactions = (now - then for now, then in zip(_so_far(connection), before, strict=True))
    return Paced(percentile(starts, 50), percentile(starts, 99), 1000 * cpu / jobs, transactions / jobs)


def flow(queue: Queue, dsn: str, rate: int, producers: int, workers: int, seconds: float) -> Flow:
    """Enqueue jobs one by one at a rate in all, 0 being as fast as they can, for workers that are idle before."""
    every = 1000 * producers / rate if rate else _AT_ONCE
    jobs = round(seconds * (rate / producers if rate else _OF_A_SECOND))
    with ExitStack() as running, psycopg.connect(dsn, autocommit=True) as connection:
        makers = []
        for n in range(producers):
            makers.append(running.enter_context(Program(queue, dsn, "produce", *(["again"] if n else []))))
            makers[-1].mark()
        runners = [running.enter_context(Program(queue, dsn, "work", "0")) for _ in range(workers)]
        # Not measured: workers start, and sessions plan their statements.
        _pour(makers, runners, _WARM_UP, EVERY_START, 0)
        warm = _WARM_UP * producers
        _wait_for_end(queue, connection, warm, 0.2)
        before = server_seconds(connection)
        committed, started = _pour(makers, runners, jobs, every, warm)
        _wait_for_end(queue, connection, warm + jobs * producers, 0.05)
        cpu = server_seconds(connection) - before
    waits = [(started[number] - at) / 1e6 for number, at in committed.items()]
    took = (max(started.values()) - min(committed.values())) / 1e9
    return Flow(percentile(waits, 50), percentile(waits, 99), len(waits) / took, 1e6 * cpu / len(waits))


def _pour(
    makers: Sequence[Program], runners: Sequence[Program], jobs: int, every: float, first: int
) -> tuple[dict[int, int], dict[int, int]]:
    """Let each maker enqueue `jobs` jobs; return when each was committed, and when it started, in nanoseconds."""
    for n, maker in enumerate(makers):
        maker.order(jobs, every, first + n * jobs)
        # Not all at the same instants.
        time.sleep(every / 1000 / len(makers))
    committed = dict(maker.mark() for maker in makers for _ in range(jobs))
    started: dict[int, int] = {}
    deadline = time.monotonic() + 60
    while len(started) < len(committed):
        if time.monotonic() > deadline:
            raise NotRunError(f"{len(started)} of {len(committed)} jobs were run within a minute")
        started.update(mark for runner in runners for mark in runner.marks())
        time.sleep(0.02)
    return committed, started


def _feed(producer: Program, worker: Program, jobs: int, every: int) -> list[float]:
    """Return the milliseconds from each commit to the start of its handler."""
    producer.order(jobs, every)
    committed = dict(producer.mark() for _ in range(jobs))
    started = dict(worker.mark() for _ in range(jobs))
    if len(started) != jobs:
        raise NotRunError(f"{len(started)} of {jobs} jobs were run, some of them twice")
    return [(started[number] - at) / 1e6 for number, at in committed.items()]


def _wait_for_end(queue: Queue, connection: Connection, jobs: int, every: float, patience: float = 60) -> None:
    deadline = time.monotonic() + patience
    while (left := connection.execute(queue.left.encode(), {"n": jobs}).fetchone()) != (0,):
        if time.monotonic() > deadline:
            raise NotRunError(f"after {patience:g} s jobs were not done: {left}")
        time.sleep(every)


def _so_far(connection: Connection) -> tuple[float, float]:
    """Return seconds of CPU and transactions."""
    # Sessions report theirs when they have been idle for a second.
    time.sleep(1.2)
    connection.execute("select pg_stat_clear_snapshot()")
    row = connection.execute(
        "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
    ).fetchone()
    assert row is not None
    return server_seconds(connection), float(str(row[0]))
