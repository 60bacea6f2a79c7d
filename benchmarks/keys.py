"""What do keys and limits cost? Claims from hot keys, drains over many and few keys, a hot key and a full limit ahead.

All are ratios within one run, save the longest call and the time until plain jobs behind a hot key start. A caller that
gets nothing in over 20 ms calls again at once: a worker is woken for that. At a scale of 10 a million jobs wait, and it
takes a quarter of an hour.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import LiteralString

import psycopg

from .harness import Bound, Connection, Report, Server, median, percentile, sized

_LARGE = sized(100_000)
_SMALL = 10_000
_HOT = 10
_DRAIN_LARGE = sized(20_000)
_DRAIN_SMALL = sized(2_000)
_DISTINCT = sized(10_000)
_ROUNDS = 100
_SNAPSHOT_STEPS = 4
_CALLS = 5_000

_CLAIM: LiteralString = (
    "select coalesce(array_agg(r.id), '{}'), coalesce(array_agg(r.reservation), '{}')"
    " from pgqueue.reserve('benchmark', %s) r"
)
_FINISH: LiteralString = "select pgqueue.complete_many(%s::bigint[], %s::bigint[])"

Rows = list[tuple[str, str]]


def run(server: Server) -> Report:
    rows: Rows = []
    figures: dict[str, object] = {}
    bounds: list[Bound] = []
    for part in (_hot_keys, _drains, _hot_key_ahead, _distinct_keys, _held_snapshot, _limit_ahead, _limit_elsewhere):
        part(server, rows, figures, bounds)
    return Report("keys: jobs with keys, and limits, with real commits", ("", "figure"), rows, figures, bounds)


def _hot_keys(server: Server, rows: Rows, figures: dict[str, object], bounds: list[Bound]) -> None:
    """reserve(10) and the completion of what it got, while a backlog waits on ten keys, blocked by then."""
    times: dict[int, list[float]] = {}
    for size in (_SMALL, _LARGE):
        with server.database(f"hot_{size}") as dsn, _connect(dsn) as conn:
            _fill(conn, size, f"'k' || n %% {_HOT}")
            # Blocked, until a claim finds only the first jobs of the ten keys in the ready index.
            blocking = _until_blocked(conn)
            conn.execute("vacuum (analyze) pgqueue.jobs")
            took: list[float] = []
            for _ in range(_ROUNDS):
                ms, got = _timed(conn, 10)
                took.append(ms)
                _finish(conn, got)
            times[size] = took
            figures[f"blocking {size}, s"] = blocking
            rows.append((f"reserve(10), {size:,} waiting on {_HOT} keys, ms", f"{median(took):.2f}"))
            rows.append(("  blocking them before, s in all", f"{blocking:.1f}"))
    ratio = median(times[_LARGE]) / median(times[_SMALL])
    figures["hot keys, ratio"] = ratio
    bounds.append(Bound(f"reserve(10) with {_LARGE:,} on {_HOT} keys against {_SMALL:,}", ratio, 1.5))


def _drains(server: Server, rows: Rows, figures: dict[str, object], bounds: list[Bound]) -> None:
    speeds: dict[int, float] = {}
    for size in (_DRAIN_SMALL, _DRAIN_LARGE):
        with server.database(f"drain_{size}") as dsn, _connect(dsn) as conn:
            _fill(conn, size, f"'k' || n %% {_HOT}")
            speeds[size] = _drain(conn, 10, size)
            rows.append((f"jobs/s, {size:,} on {_HOT} keys, one client, batches of 10", f"{speeds[size]:,.0f}"))
            figures[f"drain {size}, jobs/s"] = speeds[size]
    ratio = speeds[_DRAIN_SMALL] / speeds[_DRAIN_LARGE]
    bounds.append(Bound(f"time per job, {_DRAIN_LARGE:,} on {_HOT} keys against {_DRAIN_SMALL:,}", ratio, 1.25))


def _hot_key_ahead(server: Server, rows: Rows, figures: dict[str, object], bounds: list[Bound]) -> None:
    with server.database("ahead") as dsn, _connect(dsn) as conn:
        _fill(conn, _LARGE, "'k'")
        _fill(conn, 1_000, "null")
        times, started = _until_plain(conn)
    rows.append((f"{_LARGE:,} of one key ahead of plain jobs: they start after, s", f"{started:.1f}"))
    rows.append(("  calls until then: longest, 99 %, median, ms", _spread(times)))
    figures["behind a hot key"] = {"started_s": started, "calls": len(times), "longest_ms": max(times)}
    bounds.append(Bound("longest call while a hot key stands ahead, ms", max(times), 50, is_ratio=False))
    bounds.append(Bound("plain jobs behind a hot key start within, s", started, 30, is_ratio=False))


def _distinct_keys(server: Server, rows: Rows, figures: dict[str, object], bounds: list[Bound]) -> None:
    for batch in (100, 500):
        speeds: dict[str, float] = {}
        for what, key in (("plain", "null"), ("keyed", "'k' || n")):
            with server.database(f"distinct_{what}") as dsn, _connect(dsn) as conn:
                _fill(conn, _DISTINCT, key)
                speeds[what] = _drain(conn, batch, _DISTINCT)
        ratio = speeds["plain"] / speeds["keyed"]
        rows.append(
            (
                f"jobs/s, {_DISTINCT:,} distinct keys, batches of {batch}: keyed, plain",
                f"{speeds['keyed']:,.0f}, {speeds['plain']:,.0f} ({1 / ratio:.2f})",
            )
        )
        figures[f"distinct, batches of {batch}"] = speeds
        bounds.append(Bound(f"time of keyed jobs against plain ones, batches of {batch}", ratio, 1 / 0.6))


def _held_snapshot(server: Server, rows: Rows, figures: dict[str, object], bounds: list[Bound]) -> None:
    with server.database("snapshot") as dsn, _connect(dsn) as conn, psycopg.connect(dsn) as holder:
        _fill(conn, 20_000, "'k'")
        _until_blocked(conn)
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from pgqueue.settings")
        costs = []
        for _ in range(_SNAPSHOT_STEPS + 1):
            took = []
            for _ in range(1_000):
                start = time.perf_counter()
                _, got = _timed(conn, 1)
                _finish(conn, got)
                took.append((time.perf_counter() - start) * 1000)
            costs.append(median(took))
        holder.rollback()
    added = (costs[-1] - costs[0]) / _SNAPSHOT_STEPS
    steps = ", ".join(f"{cost:.2f}" for cost in costs)
    rows.append(("one hot key under a held snapshot, ms a job: each 1,000 finished", steps))
    rows.append(("  each 1,000 finished jobs add, ms", f"{added:.3f}"))
    figures["held snapshot"] = {"ms": costs, "added_ms_per_1000": added}


def _limit_ahead(server: Server, rows: Rows, figures: dict[str, object], bounds: list[Bound]) -> None:
    times: dict[int, list[float]] = {}
    for ahead in (0, _LARGE):
        with server.database(f"limit_{ahead}") as dsn, _connect(dsn) as conn:
            conn.execute("insert into pgqueue.limits (kind, target, max_executing) values ('limit_key', 'l', 5)")
            _fill(conn, ahead, "null", "'l'")
            _fill(conn, 20_000, "null")
            if ahead:
                calls, started = _until_plain(conn)
                rows.append((f"{ahead:,} jobs of a reached limit are blocked after, s", f"{started:.1f}"))
                rows.append(("  calls until then: longest, 99 %, median, ms", _spread(calls)))
                figures["blocking under a limit"] = {"started_s": started, "longest_ms": max(calls)}
            conn.execute("vacuum (analyze) pgqueue.jobs")
            times[ahead] = [_timed(conn, 10)[0] for _ in range(_ROUNDS)]
            what = f"reserve(10) of free jobs, {ahead:,} of a full limit ahead, ms"
            rows.append((what, f"{median(times[ahead]):.2f}"))
    ratio = median(times[_LARGE]) / median(times[0])
    figures["limit ahead, ratio"] = ratio
    bounds.append(Bound(f"reserve(10) with {_LARGE:,} jobs of a full limit ahead against none", ratio, 1.5))


def _limit_elsewhere(server: Server, rows: Rows, figures: dict[str, object], bounds: list[Bound]) -> None:
    with server.database("elsewhere") as dsn, _connect(dsn) as conn:
        _fill(conn, 40_000, "null")
        times: dict[bool, list[float]] = {False: [], True: []}
        for number in range(2 * _ROUNDS):
            limited = number % 2 == 1
            if limited:
                conn.execute("insert into pgqueue.limits (kind, target, max_executing) values ('queue', 'other', 5)")
            else:
                conn.execute("delete from pgqueue.limits")
            times[limited].append(_timed(conn, 100)[0])
    rows.append(
        (
            "reserve(100) without any limit, with one of another queue, ms",
            f"{median(times[False]):.2f}, {median(times[True]):.2f}",
        )
    )
    figures["a limit of another queue"] = {"without_ms": median(times[False]), "with_ms": median(times[True])}


def _connect(dsn: str) -> Connection:
    return psycopg.connect(dsn, autocommit=True, prepare_threshold=0)


def _fill(conn: Connection, count: int, key: LiteralString | str, limit_key: str = "null", chunk: int = 50_000) -> None:
    for start in range(0, count, chunk):
        conn.execute(
            (
                "select count(pgqueue.enqueue('noop', key => "
                f"{key}, limit_key => {limit_key})) from generate_series(%s::integer, %s::integer) n"
            ).encode(),
            (start + 1, min(start + chunk, count)),
        )


def _timed(conn: Connection, batch: int) -> tuple[float, tuple[Sequence[int], Sequence[int]]]:
    start = time.perf_counter()
    row = conn.execute(_CLAIM, (batch,)).fetchone()
    ms = (time.perf_counter() - start) * 1000
    assert row is not None
    return ms, (row[0], row[1])  # type: ignore[return-value]


def _finish(conn: Connection, got: tuple[Sequence[int], Sequence[int]]) -> None:
    if got[0]:
        conn.execute(_FINISH, got)


def _until_blocked(conn: Connection) -> float:
    """Claim and give back nothing until nothing waits but what the keys give; seconds."""
    start = time.perf_counter()
    held: list[tuple[Sequence[int], Sequence[int]]] = []
    for _ in range(_CALLS):
        ms, got = _timed(conn, 100)
        held.append(got)
        if not got[0] and ms < 20:
            break
    took = time.perf_counter() - start
    for got in held:
        _finish(conn, got)
    return took


def _until_plain(conn: Connection) -> tuple[list[float], float]:
    """Claim as a worker with ten slots does until a plain job comes; milliseconds of the calls, seconds in all."""
    start = time.perf_counter()
    times: list[float] = []
    for _ in range(_CALLS):
        ms, (ids, _) = _timed(conn, 10)
        times.append(ms)
        if ids and _has_plain(conn, ids):
            break
    return times, time.perf_counter() - start


def _has_plain(conn: Connection, ids: Sequence[int]) -> bool:
    row = conn.execute(
        "select bool_or(key is null and limit_key is null) from pgqueue.jobs where id = any (%s)", (list(ids),)
    ).fetchone()
    return bool(row and row[0])


def _drain(conn: Connection, batch: int, size: int) -> float:
    start = time.perf_counter()
    done = 0
    while done < size:
        _, got = _timed(conn, batch)
        _finish(conn, got)
        done += len(got[0])
    return size / (time.perf_counter() - start)


def _spread(times: Sequence[float]) -> str:
    return f"{max(times):.0f}, {percentile(times, 99):.0f}, {median(times):.0f} ({len(times)} calls)"
