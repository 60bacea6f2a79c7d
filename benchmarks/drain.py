"""How fast do workers empty a queue of no-ops, against what the database gives to clients that run nothing?

The limit: two pgbench clients that reserve 500 and complete them, with no Python and no rows on the wire. All are
timed by the database, from the first claim to the last completion. Workers have their default settings; two processes
are `pgqueue worker --processes 2`.
One worker more has many slots, and its jobs wait for a millisecond: what one process reaches where handlers wait.
Below the limit, the bare loop: two pgbench clients that claim 500 rows of a plain table and delete them, without
history. With each rate goes the CPU that the server used for a job, by its own process times.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import psycopg

from .cpu import server_seconds
from .harness import Bound, Connection, Report, Server, fill, median, paired, pgbench, rounds, sized
from .probe import command

_JOBS = sized(200_000, least=40_000)
_BATCH = 500
_CLIENTS = 2
_ROUNDS = rounds()

_LIMIT = f"the limit: {_CLIENTS} clients, reserve({_BATCH}) and complete_many"
_BARE = f"the bare loop: {_CLIENTS} clients, claim {_BATCH} and delete {_BATCH}"
_ASYNC = "one worker, async handlers"
_SYNC = "one worker, sync handlers"
_TWO = "two worker processes, async handlers"
_SLOTS = 256
_PAUSES = f"one worker, {_SLOTS} slots, jobs of 1 ms"

# What part of the limit each must reach.
_LEAST = {_ASYNC: 0.7, _SYNC: 0.15, _TWO: 0.6}
_LIMIT_TO_BARE = 0.6
_TWO_TO_ONE = 1.3
# Of the server, against the bare loop.
_CPU_TO_BARE = 1.5

# Two statements, two commits; the arrays travel as they would from any driver.
_LOOP = f"""
select quote_literal(array_agg(r.id)) as ids, quote_literal(array_agg(r.reservation)) as reservations
from pgqueue.reserve('client :client_id', {_BATCH}) r \\gset
select count(*) from pgqueue.complete_many(:ids, :reservations);
"""


_BARE_TABLE = """
create table bare (
    id bigint generated always as identity primary key,
    state smallint not null default 0,
    at timestamptz not null default now(),
    args jsonb not null
);
create index on bare (at, id) where state = 0;
"""
_BARE_LOOP = f"""
with claimed as (
    update bare set state = 1, at = clock_timestamp()
    where id = any (array(select id from bare where state = 0 order by at, id limit {_BATCH} for update skip locked))
    returning id
)
select quote_literal(array_agg(c.id)) as ids from claimed c \\gset
delete from bare where id = any (:ids::bigint[]);
"""


def run(server: Server) -> Report:
    ways: dict[str, Callable[[str], None]] = {
        _LIMIT: _by_clients,
        _ASYNC: _by_async_worker,
        _SYNC: _by_sync_worker,
        _TWO: _by_two_workers,
        _PAUSES: _by_slots,
    }
    rates: dict[str, list[float]] = {way: [] for way in (_BARE, *ways)}
    costs: dict[str, list[float]] = {way: [] for way in rates}
    for _ in range(_ROUNDS):
        for way in rates:
            with server.database("drain") as dsn, psycopg.connect(dsn, autocommit=True) as connection:
                rate, cost = _drain_bare(connection, dsn) if way == _BARE else _drain(connection, dsn, ways[way])
                rates[way].append(rate)
                costs[way].append(cost)
    parts = {way: paired(each, rates[_LIMIT]) for way, each in rates.items()}
    to_bare = {way: paired(each, costs[_BARE]) for way, each in costs.items()}
    limit_to_bare = paired(rates[_LIMIT], rates[_BARE])
    two_to_one = paired(rates[_TWO], rates[_ASYNC])
    return Report(
        f"drain: {_JOBS:,} no-op jobs, jobs a second, median of {_ROUNDS}",
        ("", "jobs/s", "all runs", "of the limit", "server, us of CPU", "CPU to the bare loop"),
        [
            (
                way,
                f"{median(each):,.0f}",
                " ".join(f"{rate:,.0f}" for rate in each),
                f"{parts[way]:.2f}",
                f"{1e6 * median(costs[way]):.1f}",
                f"{to_bare[way]:.2f}",
            )
            for way, each in rates.items()
        ],
        {
            **{
                way: {
                    "jobs_per_s": median(each),
                    "of_limit": parts[way],
                    "cpu_us_per_job": 1e6 * median(costs[way]),
                    "cpu_to_bare": to_bare[way],
                }
                for way, each in rates.items()
            },
            "limit_to_bare": limit_to_bare,
            "two_processes_to_one": two_to_one,
        },
        [Bound(f"Part of the limit, {way}", parts[way], least, at_least=True) for way, least in _LEAST.items()]
        + [
            Bound("the limit to the bare loop", limit_to_bare, _LIMIT_TO_BARE, at_least=True),
            Bound("two processes to one", two_to_one, _TWO_TO_ONE, at_least=True),
            # In a small run the sessions of the worker, which begin and end, are a large part of it.
            Bound(
                "the server's CPU, one worker to the bare loop",
                to_bare[_ASYNC],
                _CPU_TO_BARE,
                is_ratio=_JOBS >= 200_000,
            ),
        ],
    )


def _drain(connection: Connection, dsn: str, work: Callable[[str], None]) -> tuple[float, float]:
    """Return jobs a second, and the server's seconds of CPU for one."""
    fill(connection, _JOBS)
    before = server_seconds(connection)
    work(dsn)
    cost = (server_seconds(connection) - before) / _JOBS
    row = connection.execute(
        "select count(*), extract(epoch from max(h.finished_at) - min(h.reserved_at))::float8"
        " from pgqueue.history h where h.state = 'succeeded'"
    ).fetchone()
    assert row is not None
    done, seconds = row
    if done != _JOBS or not isinstance(seconds, float):
        raise RuntimeError(f"{done} jobs succeeded instead of {_JOBS}")
    return _JOBS / seconds, cost


def _drain_bare(connection: Connection, dsn: str) -> tuple[float, float]:
    connection.execute(_BARE_TABLE.encode())
    connection.execute("insert into bare (args) select '{}' from generate_series(1, %s)", (_JOBS,))
    connection.execute("analyze bare")
    before = server_seconds(connection)
    transactions = _JOBS // _BATCH // _CLIENTS
    rate = pgbench(dsn, _BARE_LOOP, f"--client={_CLIENTS}", f"--transactions={transactions}")
    cost = (server_seconds(connection) - before) / _JOBS
    [left] = connection.execute("select count(*) from bare").fetchone() or [None]
    if left:
        raise RuntimeError(f"{left} rows are left")
    return rate * _BATCH, cost


def _by_clients(dsn: str) -> None:
    pgbench(dsn, _LOOP, f"--client={_CLIENTS}", f"--transactions={_JOBS // _BATCH // _CLIENTS}")


def _by_async_worker(dsn: str) -> None:
    subprocess.run(command("drain", dsn), check=True)


def _by_sync_worker(dsn: str) -> None:
    subprocess.run(command("drain", "--sync", dsn), check=True)


def _by_slots(dsn: str) -> None:
    subprocess.run(command("drain", "--slots", str(_SLOTS), dsn), check=True)


def _by_two_workers(dsn: str) -> None:
    options = ("--dsn", dsn, "-r", "benchmarks.noops", "--processes", "2", "--until-empty", "--log-level", "warning")
    subprocess.run([sys.executable, "-m", "pgqueue", "worker", *options], check=True)
