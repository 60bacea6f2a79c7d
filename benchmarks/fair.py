"""How fair are fair queues, what do their claims cost beside plain ones, and does it depend on who else is there?

One job of a tenant behind a flood of another; shares of a hundred tenants, by one session, by eight of one slot, and
by workers that come for the first time each; the CPU of claims and ends, by the number of tenants that have jobs and of
those that had some before; drained beside an old snapshot, in tenths, where tenants flip between empty and due as well.
And what plain claims read and write beside a fair queue.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack

import psycopg

from .cpu import server_seconds
from .harness import Bound, Connection, Report, Server, sized

_FLOOD = sized(100_000)
_STARTS = sized(10_000)
_TENTHS = 10

Row = tuple[str, ...]


def run(server: Server) -> Report:
    rows: list[Row] = []
    figures: dict[str, object] = {}
    bounds: list[Bound] = []

    def add(what: str, measured: float, limit: float, *, at_least: bool = False, is_ratio: bool = True) -> None:
        rows.append((what, f"{measured:.4g}"))
        figures[what] = measured
        bounds.append(Bound(what, measured, limit, at_least=at_least, is_ratio=is_ratio))

    with server.database("fair_flood") as dsn, _connect(dsn) as connection:
        add("jobs started before the one of B behind a flood of A, claims of 10", _behind_a_flood(connection), 4 + 10)
    for name, sessions, at_a_time, forgets, least in (
        ("one session, claims of 10", 1, 10, False, 0.99),
        ("eight sessions of one slot", 8, 1, False, 0.98),
        ("eight sessions of one slot, without a turn", 8, 1, True, 0.98),
    ):
        with server.database("fair_shares") as dsn:
            index, worst = _shares(dsn, sessions, at_a_time, forgets=forgets)
        add(f"Jain's index of 100 tenants: {name}", index, least, at_least=True)
        if sessions == 1:
            add(f"worst tenant's part of its share: {name}", worst, 0.95, at_least=True)
    for at_a_time, most in ((100, 14), (10, 25), (1, 80)):
        jobs = sized(20_000) if at_a_time > 1 else sized(5_000)
        plain = _cost(server, 0, 1, at_a_time, jobs)
        rows.append((f"us a job, plain, claims of {at_a_time}", f"{plain:.1f}"))
        worst = 0.0
        for tenants in (10, 100, 1_000):
            fair = _cost(server, tenants, tenants, at_a_time, jobs)
            rows.append((f"us a job, {tenants:,} tenants, claims of {at_a_time}", f"{fair:.1f}"))
            worst = max(worst, fair - plain)
        add(f"us of CPU a job over plain, claims of {at_a_time}", worst, most, is_ratio=False)
    jobs = sized(20_000)
    few, many = (_cost(server, tenants, tenants, 10, jobs) for tenants in (1_000, 10_000))
    add("10,000 tenants with jobs to 1,000", many / few, 1.2)
    few, many = (_cost(server, 20, known, 10, jobs) for known in (20, 10_000))
    add("20 tenants with jobs of 10,000 to 20 of 20", many / few, 1.3)
    for name, flips in (("200 tenants", False), ("200 tenants that flip", True)):
        with server.database("fair_held") as dsn:
            rates = _held(dsn, sized(100_000), flips=flips)
        rows.append((f"jobs a second in each tenth, {name}", " ".join(f"{rate:,.0f}" for rate in rates)))
        add(f"slowest tenth to the first beside an old snapshot: {name}", min(rates) / rates[0], 0.75, at_least=True)
    with server.database("fair_plain") as dsn, _connect(dsn) as connection:
        before, after = _beside(connection)
    for what, one, other, most in zip(("blocks", "index entries", "WAL"), before, after, (1.0, 1.0, 1.01), strict=True):
        rows.append((f"plain claims and ends beside a fair queue: {what}", f"{one:,.0f} to {other:,.0f}"))
        add(f"plain claims and ends beside a fair queue, {what}", other / one, most + 0.005)
    return Report("fair: queues in which tenants take turns", ("", ""), rows, figures, bounds)


def _connect(dsn: str) -> Connection:
    return psycopg.connect(dsn, autocommit=True, prepare_threshold=0)


def _make_fair(connection: Connection) -> None:
    connection.execute("select pgqueue.configure_queue('default', fair_by => 'limit_key')")


def _enqueue(connection: Connection, tenant: str | None, jobs: int, queue: str = "default") -> None:
    connection.execute(
        "select count(*) from pgqueue.enqueue_many("
        "'noop', array_fill('{}'::jsonb, array[%s]), queue => %s, limit_key => %s)",
        (jobs, queue, tenant),
    )


def _claim(connection: Connection, at_a_time: int, worker: str = "w", queue: str = "default") -> Sequence[int]:
    found = connection.execute(
        "select id, reservation from pgqueue.reserve(%s, %s, array[%s])", (worker, at_a_time, queue)
    ).fetchall()
    ids = [int(str(each[0])) for each in found]
    if ids:
        connection.execute("select pgqueue.complete_many(%s, %s)", (ids, [each[1] for each in found]))
    return ids


def _behind_a_flood(connection: Connection) -> int:
    _make_fair(connection)
    _enqueue(connection, "a", _FLOOD)
    _enqueue(connection, "b", 1)
    row = connection.execute("select max(id) from pgqueue.jobs").fetchone()
    assert row is not None
    started = 0
    while row[0] not in (ids := _claim(connection, 10)):
        started += len(ids)
    return started


def _shares(dsn: str, sessions: int, at_a_time: int, *, forgets: bool) -> tuple[float, float]:
    started: Counter[object] = Counter()
    with ExitStack() as stack:
        connections = [stack.enter_context(_connect(dsn)) for _ in range(sessions)]
        _make_fair(connections[0])
        of: dict[int, str] = {}
        for tenant in range(100):
            _enqueue(connections[0], f"t{tenant}", _STARTS // 50)
        for job_id, name in connections[0].execute("select id, limit_key from pgqueue.jobs").fetchall():
            of[int(str(job_id))] = str(name)
        calls = 0
        while started.total() < _STARTS:
            for number, connection in enumerate(connections):
                calls += 1
                worker = f"w{calls}" if forgets else f"w{number}"
                started.update(of[job_id] for job_id in _claim(connection, at_a_time, worker))
    counts = [started[f"t{tenant}"] for tenant in range(100)]
    return sum(counts) ** 2 / (100 * sum(each * each for each in counts)), min(counts) / (sum(counts) / 100)


def _cost(server: Server, tenants: int, known: int, at_a_time: int, jobs: int) -> float:
    """Microseconds of CPU of claim and end a job; `tenants` have jobs of those that are `known`; 0: a plain queue."""
    with server.database("fair_cost") as dsn, _connect(dsn) as connection:
        if tenants:
            _make_fair(connection)
            if known > tenants:
                connection.execute(
                    "select count(pgqueue.enqueue('noop', limit_key => 't' || n)) from generate_series(%s, %s) n",
                    (tenants + 1, known),
                )
                while _claim(connection, 100):
                    pass
                _settle(connection)
        left = jobs + jobs // 10
        for tenant in range(max(tenants, 1)):
            _enqueue(connection, f"t{tenant}" if tenants else None, -(-left // max(tenants, 1)))
        connection.execute("vacuum (analyze) pgqueue.jobs")
        connection.execute("vacuum (analyze) pgqueue.tenant_lanes")
        connection.execute("select pgqueue.maintain()")
        for _ in range(20):
            _claim(connection, at_a_time)
        done, before = 0, server_seconds(connection)
        while done < jobs:
            done += len(_claim(connection, at_a_time))
        return (server_seconds(connection) - before) / done * 1e6


def _settle(connection: Connection) -> None:
    """Wait until lanes without jobs have left the path."""
    until = time.monotonic() + 60
    while connection.execute("select from pgqueue.tenant_lanes limit 1").fetchone() and time.monotonic() < until:
        connection.execute("select pgqueue.maintain()")
        time.sleep(1)


def _held(dsn: str, jobs: int, *, flips: bool) -> list[float]:
    with _connect(dsn) as connection, psycopg.connect(dsn) as holder:
        _make_fair(connection)
        names = [f"t{number}" for number in range(200)]
        for name in names:
            _enqueue(connection, name, 2 * jobs // len(names) if not flips or name < "t15" else 1)
        holder.execute("begin isolation level repeatable read")
        holder.execute("select from pgqueue.jobs limit 1")
        for _ in range(50):
            _claim(connection, 20)
        rates = []
        maintained = time.perf_counter()
        for _ in range(_TENTHS):
            done, began, apart = 0, time.perf_counter(), 0.0
            while done < jobs // _TENTHS:
                done += len(_claim(connection, 20))
                if (at := time.perf_counter()) - maintained > 1:
                    connection.execute("select pgqueue.maintain()")
                    if flips:
                        for name in names[::3]:
                            _enqueue(connection, name, 1)
                    maintained = time.perf_counter()
                    apart += maintained - at
            rates.append(done / (time.perf_counter() - began - apart))
        return rates


def _beside(connection: Connection) -> tuple[list[float], list[float]]:
    """Blocks, index entries and bytes of WAL of plain claims and ends, without and beside a fair queue."""

    def measure() -> list[float]:
        _enqueue(connection, None, 4_000, "plain")
        for _ in range(20):
            _claim(connection, 50, queue="plain")
        connection.execute("checkpoint")
        connection.execute("vacuum (analyze) pgqueue.jobs")
        before = _counts(connection)
        for _ in range(40):
            _claim(connection, 50, queue="plain")
        return [after - one for one, after in zip(before, _counts(connection), strict=True)]

    measure()
    before = measure()
    _make_fair(connection)
    for tenant in range(50):
        _enqueue(connection, f"t{tenant}", 10)
    return before, measure()


_COUNTS = (
    b"select (select sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read) from pg_statio_user_tables),"
    b" (select sum(idx_tup_read) from pg_stat_user_indexes),"
    b" pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"
)


def _counts(connection: Connection) -> list[float]:
    connection.execute("select pg_stat_force_next_flush()")
    connection.execute("select 1")
    row = connection.execute(_COUNTS).fetchone()
    assert row is not None
    return [float(str(each)) for each in row]
