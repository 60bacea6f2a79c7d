"""How fair are fair queues, what do their claims cost beside plain ones, and does it depend on who else is there?

One job of a tenant behind a flood of another; shares of tenants, by one session, by eight of one slot, and by workers
that come for the first time each; the CPU of claims and ends, in turns with a plain queue, by the number of tenants
that have jobs and of those that had some before; the CPU of a job beside an old snapshot, in tenths, where tenants flip
between empty and due as well. And what plain claims read and write beside a fair queue.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack

import psycopg

from .cpu import backend_seconds
from .harness import SCALE, Bound, Connection, Report, Server, median, sized

_FLOOD = sized(100_000)
# A worker without a turn draws a tenant. The index of such draws is 1 / (1 + tenants / starts), so that a smaller run
# has as many starts for each tenant.
_STARTS = sized(10_000, least=3_000)
_TENANTS = _STARTS // 100
_ROUNDS = max(9, round(60 * float(os.environ.get(SCALE, "1"))))
# By the size of a claim: how many claims make a round.
_CLAIMS = {100: 3, 10: 15, 1: 60}
_HELD = sized(100_000, least=20_000)
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
        add(f"Jain's index of {_TENANTS} tenants: {name}", index, least, at_least=True)
        if sessions == 1:
            add(f"worst tenant's part of its share: {name}", worst, 0.95, at_least=True)
    with server.database("fair_cost") as dsn, _connect(dsn) as connection:
        costs = _costs(connection)
    for at_a_time, most in ((100, 14), (10, 25), (1, 80)):
        each = costs[at_a_time]
        for queue, found in each.items():
            rows.append((f"us a job, {queue}, claims of {at_a_time}", f"{median(found):.1f}"))
        worst = max(_over(each[queue], each["plain"]) for queue in ("10 tenants", "100 tenants", "1,000 tenants"))
        add(f"us of CPU a job over plain, claims of {at_a_time}", worst, most, is_ratio=False)
    for one, other, bound in (
        ("10,000 tenants", "1,000 tenants", 1.2),
        ("20 of 10,000 tenants", "20 of 20 tenants", 1.3),
    ):
        ratio = median([a / b for a, b in zip(costs[10][one], costs[10][other], strict=True)])
        add(f"{one} to {other}, claims of 10", ratio, bound)
    for name, flips in (("200 tenants", False), ("200 tenants that flip", True)):
        with server.database("fair_held") as dsn:
            used = _held(dsn, _HELD, flips=flips)
        rows.append((f"us a job in each tenth, {name}", " ".join(f"{each:,.0f}" for each in used)))
        add(f"slowest tenth to the first beside an old snapshot: {name}", used[0] / max(used), 0.75, at_least=True)
    with server.database("fair_plain") as dsn, _connect(dsn) as connection:
        before, after = _beside(connection)
    for what, was, now, most_of_it in zip(
        ("blocks", "index entries", "WAL"), before, after, (1.0, 1.0, 1.01), strict=True
    ):
        rows.append((f"plain claims and ends beside a fair queue: {what}", f"{was:,.0f} to {now:,.0f}"))
        add(f"plain claims and ends beside a fair queue, {what}", now / was, most_of_it + 0.005)
    return Report("fair: queues in which tenants take turns", ("", ""), rows, figures, bounds)


def _over(fair: Sequence[float], plain: Sequence[float]) -> float:
    return median([one - other for one, other in zip(fair, plain, strict=True)])


def _connect(dsn: str) -> Connection:
    """Connect without waiting for the disk, which costs no CPU."""
    return psycopg.connect(dsn, autocommit=True, prepare_threshold=0, options="-c synchronous_commit=off")


def _make_fair(connection: Connection, queue: str = "default") -> None:
    connection.execute("select pgqueue.configure_queue(%s, fair_by => 'limit_key')", (queue,))


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
        for tenant in range(_TENANTS):
            _enqueue(connections[0], f"t{tenant}", 2 * _STARTS // _TENANTS)
        for job_id, name in connections[0].execute("select id, limit_key from pgqueue.jobs").fetchall():
            of[int(str(job_id))] = str(name)
        calls = 0
        while started.total() < _STARTS:
            for number, connection in enumerate(connections):
                calls += 1
                worker = f"w{calls}" if forgets else f"w{number}"
                started.update(of[job_id] for job_id in _claim(connection, at_a_time, worker))
    counts = [started[f"t{tenant}"] for tenant in range(_TENANTS)]
    mean = sum(counts) / _TENANTS
    return sum(counts) * mean / sum(each * each for each in counts), min(counts) / mean


def _costs(connection: Connection) -> Mapping[int, Mapping[str, Sequence[float]]]:
    """Microseconds of CPU of claim and end a job, in each round: by the jobs of a claim, and by the queue."""
    jobs = _ROUNDS * sum(number * claims for number, claims in _CLAIMS.items()) + 1_000
    tenants = {"10 tenants": 10, "100 tenants": 100, "1,000 tenants": 1_000, "10,000 tenants": 10_000}
    tenants |= {"20 of 20 tenants": 20, "20 of 10,000 tenants": 20}
    _make_fair(connection, "20 of 10,000 tenants")
    _spread(connection, "20 of 10,000 tenants", 10_000, 10_000)
    while _claim(connection, 100, queue="20 of 10,000 tenants"):
        pass
    _settle(connection)
    _spread(connection, "plain", None, jobs)
    # What its limit_key costs a job in any queue.
    _spread(connection, "not fair, with a limit_key", 100, jobs)
    for queue, number in tenants.items():
        _make_fair(connection, queue)
        # All of them have jobs to the end.
        _spread(connection, queue, number, max(2 * jobs, 2 * number))
    connection.execute("vacuum (analyze) pgqueue.jobs")
    connection.execute("vacuum (analyze) pgqueue.tenant_lanes")
    queues = ["plain", "not fair, with a limit_key", *tenants]
    found: dict[int, dict[str, list[float]]] = {number: {queue: [] for queue in queues} for number in _CLAIMS}
    for number in _CLAIMS:
        for queue in queues:
            _work(connection, queue, number, 3)
    for round_ in range(_ROUNDS):
        connection.execute("select pgqueue.maintain()")
        for number, claims in _CLAIMS.items():
            # In turns, so that what else the machine does changes no difference.
            for queue in queues[round_ % len(queues) :] + queues[: round_ % len(queues)]:
                found[number][queue].append(_work(connection, queue, number, claims))
    return found


def _spread(connection: Connection, queue: str, tenants: int | None, jobs: int) -> None:
    connection.execute(
        "select count(*) from pgqueue.enqueue_batch((select array_agg(jsonb_strip_nulls(jsonb_build_object("
        "'task', 'noop', 'queue', %s::text, 'limit_key', 't' || n %% %s::integer))) from generate_series(1, %s) n))",
        (queue, tenants, jobs),
    )


def _work(connection: Connection, queue: str, at_a_time: int, claims: int) -> float:
    before = backend_seconds(connection)
    done = sum(len(_claim(connection, at_a_time, queue=queue)) for _ in range(claims))
    return (backend_seconds(connection) - before) / done * 1e6


def _settle(connection: Connection) -> None:
    """Wait until lanes without jobs have left the path."""
    until = time.monotonic() + 60
    while connection.execute("select 1 from pgqueue.tenant_lanes where lane_key <> '' limit 1").fetchone():
        if time.monotonic() > until:
            raise RuntimeError("lanes of tenants without jobs stay on the path")
        connection.execute("select pgqueue.maintain()")
        time.sleep(1)


def _held(dsn: str, jobs: int, *, flips: bool) -> list[float]:
    """Microseconds of CPU a job in each tenth."""
    with _connect(dsn) as connection, psycopg.connect(dsn) as holder:
        _make_fair(connection)
        names = [f"t{number}" for number in range(200)]
        flipping = names[::3] if flips else []
        steady = [name for name in names if name not in flipping]
        for name in steady:
            _enqueue(connection, name, 2 * jobs // len(steady))
        holder.execute("begin isolation level repeatable read")
        holder.execute("select from pgqueue.jobs limit 1")
        for _ in range(50):
            _claim(connection, 20)
        used = []
        maintained = time.monotonic()
        for _ in range(_TENTHS):
            done, began, apart = 0, backend_seconds(connection), 0.0
            while done < jobs // _TENTHS:
                done += len(_claim(connection, 20))
                if time.monotonic() - maintained > 1:
                    paused = backend_seconds(connection)
                    connection.execute("select pgqueue.maintain()")
                    _enqueue_each(connection, flipping)
                    maintained = time.monotonic()
                    apart += backend_seconds(connection) - paused
            used.append((backend_seconds(connection) - began - apart) / done * 1e6)
        return used


def _enqueue_each(connection: Connection, tenants: Iterable[str]) -> None:
    for name in tenants:
        _enqueue(connection, name, 1)


def _beside(connection: Connection) -> tuple[list[float], list[float]]:
    """Blocks, index entries and bytes of WAL of plain claims and ends, without and beside a fair queue."""

    def measure() -> list[float]:
        _enqueue(connection, None, 4_000, "plain")
        for _ in range(20):
            _claim(connection, 50, queue="plain")
        connection.execute("vacuum (analyze) pgqueue.jobs")
        # A few claims move heads, by chance: the same ones each time.
        connection.execute("select setseed(0.5)")
        before = _counts(connection)
        for _ in range(40):
            _claim(connection, 50, queue="plain")
        return [after - one for one, after in zip(before, _counts(connection), strict=True)]

    def least() -> list[float]:
        # How far heads may move is a matter of time: what claims walk beyond them differs by a few percent, by chance.
        return [min(each) for each in zip(*(measure() for _ in range(3)), strict=True)]

    measure()
    before = least()
    _make_fair(connection)
    for tenant in range(50):
        _enqueue(connection, f"t{tenant}", 10)
    return before, least()


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
