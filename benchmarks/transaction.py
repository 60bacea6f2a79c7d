"""What does `job.transaction()` cost a handler that writes one row?

Beside it the same two statements and the commit on connections of a psycopg pool, without a worker: INSERT, and the end
of a job that was reserved before. Both run ten at a time, on the event loop of one process, with durable commits.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import psycopg
from psycopg_pool import AsyncConnectionPool

from .harness import Bound, Report, Server, fill, median, paired, rounds, sized

_JOBS = sized(4_000)
_AT_ONCE = 10
_ROUNDS = rounds()
_AT_LEAST = 0.5
_POOLED, _WORKER = "INSERT and complete on a pooled connection", "job.transaction() and INSERT in a worker"


def run(server: Server) -> Report:
    rates: dict[str, list[float]] = {_POOLED: [], _WORKER: []}
    for _ in range(_ROUNDS):
        for way, measure in ((_POOLED, _by_pool), (_WORKER, _by_worker)):
            with server.database("transaction") as dsn, psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("create table written (job bigint)")
                fill(connection, _JOBS)
                connection.execute("update pgqueue.jobs set task = 'write'")
                rates[way].append(_JOBS / measure(connection, dsn))
                _must_be_written(connection)
    ratio = paired(rates[_WORKER], rates[_POOLED])
    return Report(
        f"transaction: jobs a second, {_AT_ONCE} at a time, median of {_ROUNDS}",
        ("", "median", "all runs", "to the one above it"),
        [
            (way, f"{median(each):,.0f}", " ".join(f"{rate:,.0f}" for rate in each), f"{rate_ratio:.2f}")
            for (way, each), rate_ratio in zip(rates.items(), (1.0, ratio), strict=True)
        ],
        {"pooled_per_s": median(rates[_POOLED]), "worker_per_s": median(rates[_WORKER]), "ratio": ratio},
        [Bound("job.transaction() to a pooled connection", ratio, _AT_LEAST, at_least=True)],
    )


def _by_pool(connection: psycopg.Connection[tuple[object, ...]], dsn: str) -> float:
    pairs = connection.execute(
        "select r.id, r.reservation from pgqueue.reserve('benchmark', %s, lease => '1 hour') r", (_JOBS,)
    ).fetchall()
    return asyncio.run(_write_all(dsn, pairs))


async def _write_all(dsn: str, pairs: list[tuple[object, ...]]) -> float:
    async with AsyncConnectionPool(dsn, min_size=_AT_ONCE, max_size=_AT_ONCE, open=False) as pool:
        await pool.wait()
        rest = iter(pairs)

        async def write() -> None:
            for pair in rest:
                async with pool.connection() as connection:
                    await connection.execute("insert into written values (%s)", pair[:1])
                    await connection.execute("select pgqueue.complete(%s, %s)", pair)

        began = time.perf_counter()
        await asyncio.gather(*(write() for _ in range(_AT_ONCE)))
        return time.perf_counter() - began


def _by_worker(connection: psycopg.Connection[tuple[object, ...]], dsn: str) -> float:
    options = ("--dsn", dsn, "-r", "benchmarks.noops", "--concurrency", str(_AT_ONCE), "--until-empty")
    subprocess.run([sys.executable, "-m", "pgqueue", "worker", *options, "--log-level", "warning"], check=True)
    [seconds] = connection.execute(
        "select extract(epoch from max(h.finished_at) - min(h.reserved_at))::float8 from pgqueue.history h"
    ).fetchone() or [0.0]
    assert isinstance(seconds, float)
    return seconds


def _must_be_written(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    [written] = connection.execute(
        "select count(distinct w.job) from written w join pgqueue.history h on h.id = w.job and h.state = 'succeeded'"
    ).fetchone() or [0]
    if written != _JOBS:
        raise RuntimeError(f"{written} jobs wrote and succeeded instead of {_JOBS}")
