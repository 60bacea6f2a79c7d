"""Does the speed stay while some other session holds an old snapshot, or a long write transaction, open?

One client drains a queue by reserve(500) and complete_many, as fast as it gets answers, and calls maintain once a
second. Nothing held: nobody else is there. Snapshot: an idle REPEATABLE READ transaction. Writer: a transaction that
has enqueued a job and does not end. In the last two no dead entry of any index goes away. Compared are the last tenth
of the jobs and the first. Beside the speed stand the pages that a job takes: no other load on the machine moves those.
Leases are short, so that those of the first tenth lapse within a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import psycopg

from .harness import Bound, Connection, Report, Server, fill, sized

_JOBS = sized(1_000_000)
_TENTHS = 10
_BATCH = 500
_LEASE = "2 s"

# Slowdowns: of 0.8 and 0.7 of the speed.
_BOUNDS = {"snapshot": 1 / 0.8, "writer": 1 / 0.7}


def _hold_nothing(connection: Connection) -> None:
    pass


def _hold_snapshot(connection: Connection) -> None:
    connection.execute("begin isolation level repeatable read")
    connection.execute("select from pgqueue.jobs limit 1")


def _hold_writer(connection: Connection) -> None:
    connection.execute("begin")
    connection.execute("select pgqueue.enqueue('noop', queue => 'held')")


_HOLDERS: Mapping[str, Callable[[Connection], None]] = {
    "nothing": _hold_nothing,
    "snapshot": _hold_snapshot,
    "writer": _hold_writer,
}


def run(server: Server) -> Report:
    rates: dict[str, list[float]] = {}
    pages: dict[str, list[float]] = {}
    for name, hold in _HOLDERS.items():
        with server.database(f"held_{name}") as dsn:
            # Beside the others it shows what the machine does by itself: that takes no million.
            rates[name], pages[name] = _drain(dsn, hold, _JOBS if name in _BOUNDS else _JOBS // 5)
    ratios = {name: each[-1] / each[0] for name, each in rates.items()}
    return Report(
        f"held_snapshot: {_JOBS:,} jobs drained by one client, jobs a second in each tenth",
        ("held", *(str(number) for number in range(1, _TENTHS + 1)), "last to first", "pages/job"),
        [
            (
                name,
                *(f"{rate:,.0f}" for rate in each),
                f"{ratios[name]:.2f}",
                f"{pages[name][0]:.0f} to {pages[name][-1]:.0f}",
            )
            for name, each in rates.items()
        ],
        {
            name: {"jobs_per_s": each, "last_to_first": ratios[name], "pages_per_job": pages[name]}
            for name, each in rates.items()
        },
        [Bound(f"First tenth to last with a {name} held", 1 / ratios[name], limit) for name, limit in _BOUNDS.items()],
    )


def _drain(dsn: str, hold: Callable[[Connection], None], jobs: int) -> tuple[list[float], list[float]]:
    rates: list[float] = []
    pages: list[float] = []
    with (
        psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as connection,
        psycopg.connect(dsn, autocommit=True) as keeper,
        psycopg.connect(dsn, autocommit=True) as holder,
    ):
        fill(connection, jobs)
        # Plans and caches, not the first tenth.
        fill(connection, 10 * _BATCH)
        for _ in range(10):
            _turn(connection)
        hold(holder)
        touched = _pages(connection)
        kept = started = time.perf_counter()
        done = 0
        while len(rates) < _TENTHS:
            done += _turn(connection)
            now = time.perf_counter()
            if now > kept + 1:
                keeper.execute("select pgqueue.maintain()")
                kept = now
            if done >= jobs // _TENTHS:
                rates.append(done / (now - started))
                pages.append((_pages(connection) - touched) / done)
                touched = _pages(connection)
                started, done = time.perf_counter(), 0
    return rates, pages


def _pages(connection: Connection) -> int:
    """Return how many pages were touched in this database, by whomever."""
    connection.execute("select pg_stat_force_next_flush()")
    row = connection.execute(
        "select blks_hit + blks_read from pg_stat_database where datname = current_database()"
    ).fetchone()
    assert row is not None
    assert isinstance(row[0], int)
    return row[0]


def _turn(connection: Connection) -> int:
    row = connection.execute(
        "select array_agg(r.id), array_agg(r.reservation) from pgqueue.reserve('benchmark', %s, lease => %s) r",
        (_BATCH, _LEASE),
    ).fetchone()
    assert row is not None
    ids, reservations = row
    if not isinstance(ids, list):
        raise RuntimeError("reserve returned nothing, and jobs are left")
    connection.execute("select pgqueue.complete_many(%s::bigint[], %s::bigint[])", (ids, reservations))
    return len(ids)
