"""How fast do workers empty a queue of no-ops, against what the database gives to clients that run nothing?

The limit: two pgbench clients that reserve 500 and complete them, with no Python and no rows on the wire. All are
timed by the database, from the first claim to the last completion. Workers have their default settings; two processes
are `pgqueue worker --processes 2`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import psycopg

from .harness import Bound, Report, Server, fill, median, pgbench, sized
from .probe import command

_JOBS = sized(200_000, least=40_000)
_BATCH = 500
_CLIENTS = 2
_ROUNDS = 3

_ASYNC = "one worker, async handlers"
_SYNC = "one worker, sync handlers"
_TWO = "two worker processes, async handlers"

# What part of the limit each must reach.
_LEAST = {_ASYNC: 0.5, _SYNC: 0.15, _TWO: 0.6}

# Two statements, two commits; the arrays travel as they would from any driver.
_LOOP = f"""
select quote_literal(array_agg(r.id)) as ids, quote_literal(array_agg(r.reservation)) as reservations
from pgqueue.reserve('client :client_id', {_BATCH}) r \\gset
select count(*) from pgqueue.complete_many(:ids, :reservations);
"""


def run(server: Server) -> Report:
    ways: dict[str, Callable[[str], None]] = {
        f"the limit: {_CLIENTS} clients, reserve({_BATCH}) and complete_many": _by_clients,
        _ASYNC: _by_async_worker,
        _SYNC: _by_sync_worker,
        _TWO: _by_two_workers,
    }
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(_ROUNDS):
        for way, work in ways.items():
            with server.database("drain") as dsn:
                rates[way].append(_drain(dsn, work))
    limit = median(next(iter(rates.values())))
    return Report(
        f"drain: {_JOBS:,} no-op jobs, jobs a second, median of {_ROUNDS}",
        ("", "jobs/s", "all runs", "of the limit"),
        [
            (way, f"{median(each):,.0f}", " ".join(f"{rate:,.0f}" for rate in each), f"{median(each) / limit:.2f}")
            for way, each in rates.items()
        ],
        {way: {"jobs_per_s": median(each), "of_limit": median(each) / limit} for way, each in rates.items()},
        [
            Bound(f"Part of the limit, {way}", median(rates[way]) / limit, least, at_least=True)
            for way, least in _LEAST.items()
        ],
    )


def _drain(dsn: str, work: Callable[[str], None]) -> float:
    with psycopg.connect(dsn, autocommit=True) as connection:
        fill(connection, _JOBS)
        work(dsn)
        row = connection.execute(
            "select count(*), extract(epoch from max(h.finished_at) - min(h.reserved_at))::float8"
            " from pgqueue.history h where h.state = 'succeeded'"
        ).fetchone()
    assert row is not None
    done, seconds = row
    if done != _JOBS or not isinstance(seconds, float):
        raise RuntimeError(f"{done} jobs succeeded instead of {_JOBS}")
    return _JOBS / seconds


def _by_clients(dsn: str) -> None:
    pgbench(dsn, _LOOP, f"--client={_CLIENTS}", f"--transactions={_JOBS // _BATCH // _CLIENTS}")


def _by_async_worker(dsn: str) -> None:
    subprocess.run(command("drain", dsn), check=True)


def _by_sync_worker(dsn: str) -> None:
    subprocess.run(command("drain", "--sync", dsn), check=True)


def _by_two_workers(dsn: str) -> None:
    options = ("--dsn", dsn, "-r", "benchmarks.noops", "--processes", "2", "--until-empty", "--log-level", "warning")
    subprocess.run([sys.executable, "-m", "pgqueue", "worker", *options], check=True)
