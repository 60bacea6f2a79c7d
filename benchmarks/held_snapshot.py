"""Does the speed stay while some other session holds an old snapshot, or a long write transaction, open?

One client drains a queue by reserve and complete_many, as fast as it gets answers, and calls maintain once a second.
Snapshot: an idle REPEATABLE READ transaction. Writer: a transaction that has enqueued a job and does not end. While
either is open, no dead entry of any index goes away. Nothing: no other session, to show what the machine itself does.

Shapes: jobs of many bulk calls, each with its own time; of one bulk call, which share their time; of one run_at, which
has come; with 200 keys and with 20,000. Batches: 500, 20 and 1. Compared are the slowest tenth of a run's jobs and the
fastest. Beside the speed stand the pages that a job takes: no other load on the machine moves those. Leases are short,
so that those of the first tenth lapse within a run.

With keys each job costs a little more than the one before it of its key: the unique index that keeps a key from running
twice reads all remaining entries of the key.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import psycopg

from .harness import SCALE, Bound, Connection, Report, Server, fill, median, rounds, sized

_TENTHS = 10
_ROUNDS = rounds()
_LEASE = "2 s"
_AT_LEAST = 0.7
_AT_LEAST_OF_KEYS = 0.75
_SMALL = float(os.environ.get(SCALE, "1")) < 0.1


class Shape(NamedTuple):
    """What waits in the queue; `keys` is 0 for jobs without."""

    name: str
    fill: Callable[[Connection, int], None]


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


def _fill_one_call(connection: Connection, jobs: int) -> None:
    fill(connection, jobs, chunk=jobs)


def _fill_one_run_at(connection: Connection, jobs: int) -> None:
    run_at = connection.execute("select now() + %s * interval '30 us' + interval '2 s'", (jobs,)).fetchone()
    assert run_at is not None
    for start in range(0, jobs, 50_000):
        connection.execute(
            "select count(*) from pgqueue.enqueue_many('noop', array_fill('{}'::jsonb, array[%s]), run_at => %s)",
            (min(50_000, jobs - start), *run_at),
        )
    connection.execute("select pg_sleep(extract(epoch from %s::timestamptz - clock_timestamp()))", run_at)


def _fill_keys(keys: int) -> Callable[[Connection, int], None]:
    def fill_keys(connection: Connection, jobs: int) -> None:
        connection.execute(
            "insert into pgqueue.jobs (queue, task, args, priority, run_at, ready_at, created_at, key)"
            " select 'default', 'noop', '{}', 0, clock_timestamp(), clock_timestamp(), clock_timestamp(),"
            " 'k' || n %% %s from generate_series(1, %s) n",
            (keys, jobs),
        )
        connection.execute("insert into pgqueue.lanes (queue, priority, until) values ('default', 0, 'infinity')")

    return fill_keys


_SPREAD = Shape("many calls", fill)
_ONE_CALL = Shape("one call", _fill_one_call)
_ONE_RUN_AT = Shape("one run_at", _fill_one_run_at)
_FEW_KEYS = Shape("200 keys", _fill_keys(200))
_MANY_KEYS = Shape("20,000 keys", _fill_keys(20_000))

# By batch: as many jobs as a client takes ten seconds for. With few keys fewer, for each costs more than the last.
_JOBS = {500: 600_000, 20: 150_000, 1: 12_000}
_MANY_KEYS_JOBS = {500: 300_000, 20: 100_000, 1: 6_000}
_FEW_KEYS_JOBS = {500: 24_000, 20: 24_000, 1: 4_000}


def _runs() -> list[tuple[Shape, int, str, int]]:
    if _SMALL:
        return [(shape, 500, "snapshot", 10_000) for shape in (_ONE_CALL, _FEW_KEYS)]
    return [
        *((_SPREAD, 500, held, sized(1_000_000)) for held in ("snapshot", "writer")),
        (_SPREAD, 500, "nothing", sized(200_000)),
        *(
            (shape, batch, held, sized(sizes[batch]))
            for shape, sizes in (
                (_ONE_CALL, _JOBS),
                (_ONE_RUN_AT, _JOBS),
                (_FEW_KEYS, _FEW_KEYS_JOBS),
                (_MANY_KEYS, _MANY_KEYS_JOBS),
            )
            for batch in sizes
            for held in ("snapshot", "writer")
        ),
    ]


def run(server: Server) -> Report:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, object] = {}
    bounds: list[Bound] = []
    for shape, batch, held, jobs in _runs():
        rates, pages = _median_drain(server, shape, batch, held, jobs)
        name = f"{shape.name}, batches of {batch}, {held}"
        ratio = min(rates) / max(rates)
        rows.append((name, *(f"{rate:,.0f}" for rate in rates), f"{ratio:.2f}", f"{pages[0]:.0f} to {pages[-1]:.0f}"))
        figures[name] = {"jobs": jobs, "jobs_per_s": rates, "slowest_to_fastest": ratio, "pages_per_job": pages}
        if held != "nothing":
            least = _AT_LEAST_OF_KEYS if shape.name == "200 keys" else _AT_LEAST
            bounds.append(Bound(f"Slowest tenth to fastest: {name}", ratio, least, at_least=True))
    return Report(
        "held_snapshot: drained by one client, jobs a second in each tenth",
        ("shape, batch, held", *(str(number) for number in range(1, _TENTHS + 1)), "slowest to fastest", "pages/job"),
        rows,
        figures,
        bounds,
    )


def _median_drain(server: Server, shape: Shape, batch: int, held: str, jobs: int) -> tuple[list[float], list[float]]:
    """Return the rate and the pages per job of each tenth, the median of some runs: a stall hits one of them."""
    drains = []
    for _ in range(1 if _SMALL else _ROUNDS):
        with server.database("held") as dsn:
            drains.append(_drain(dsn, shape, batch, held, jobs))
    rates, pages = zip(*drains, strict=True)
    return [median(each) for each in zip(*rates, strict=True)], [median(each) for each in zip(*pages, strict=True)]


def _drain(dsn: str, shape: Shape, batch: int, held: str, jobs: int) -> tuple[list[float], list[float]]:
    rates: list[float] = []
    pages: list[float] = []
    with (
        psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as connection,
        psycopg.connect(dsn, autocommit=True) as keeper,
        psycopg.connect(dsn, autocommit=True) as holder,
    ):
        # Plans and caches, not the first tenth.
        fill(connection, 10 * batch)
        for _ in range(10):
            _turn(connection, batch)
        shape.fill(connection, jobs)
        connection.execute("vacuum analyze pgqueue.jobs")
        for _ in range(3):
            keeper.execute("select pgqueue.maintain()")
        _HOLDERS[held](holder)
        touched = _pages(connection)
        kept = started = time.perf_counter()
        done = total = 0
        while len(rates) < _TENTHS:
            got = _turn(connection, batch)
            done += got
            total += got
            now = time.perf_counter()
            if now > kept + 1:
                keeper.execute("select pgqueue.maintain()")
                kept = now
            # Of the whole, for a tenth need not be a number of batches.
            if total >= (len(rates) + 1) * jobs // _TENTHS - batch // 2:
                rates.append(done / (now - started))
                pages.append((_pages(connection) - touched) / done)
                touched = _pages(connection)
                started, done = time.perf_counter(), 0
    return rates, pages


def _pages(connection: Connection) -> int:
    """Return how many pages were touched in this database, by all sessions."""
    connection.execute("select pg_stat_force_next_flush()")
    row = connection.execute(
        "select blks_hit + blks_read from pg_stat_database where datname = current_database()"
    ).fetchone()
    assert row is not None
    assert isinstance(row[0], int)
    return row[0]


def _turn(connection: Connection, batch: int) -> int:
    row = connection.execute(
        "select array_agg(r.id), array_agg(r.reservation) from pgqueue.reserve('benchmark', %s, lease => %s) r",
        (batch, _LEASE),
    ).fetchone()
    assert row is not None
    ids, reservations = row
    if not isinstance(ids, list):
        raise RuntimeError("reserve returned nothing, and jobs are left")
    connection.execute("select pgqueue.complete_many(%s::bigint[], %s::bigint[])", (ids, reservations))
    return len(ids)
