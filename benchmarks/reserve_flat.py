"""Does a claim cost the same whatever waits behind it? reserve(100) from 10,000 due jobs and from 1,000,000.

As many again are due in the future. Both databases are measured in turn, with real commits, in the three states in
which plans go wrong: planned while the table was empty, never analysed, and vacuumed and analysed.
--scale 10 compares with ten million.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import psycopg

from .harness import Bound, Connection, Report, Server, fill, median, percentile, sized

_SMALL = 10_000
_LARGE = sized(1_000_000)
_BATCH = 100
_ROUNDS = 60
_WARM_UP = 6
# Of the full size 0.7 of the speed is asked for.
_BOUND = 2.0 if _LARGE < 10_000_000 else 1 / 0.7

# What comes due when: spread over a day, as real schedules are.
_FUTURE_CHUNKS = 20


@dataclass(frozen=True, slots=True)
class _Times:
    """Milliseconds of each call."""

    reserve: list[float] = field(default_factory=list)
    complete: list[float] = field(default_factory=list)


def run(server: Server) -> Report:
    with ExitStack() as stack:
        dsns = {size: stack.enter_context(server.database(f"reserve_{size}")) for size in (_SMALL, _LARGE)}

        def connect() -> dict[int, Connection]:
            return {
                size: stack.enter_context(psycopg.connect(dsn, autocommit=True, prepare_threshold=0))
                for size, dsn in dsns.items()
            }

        planned_when_empty = connect()
        for size, connection in planned_when_empty.items():
            # Statistics come when this asks for them, and not in the middle.
            connection.execute("alter table pgqueue.jobs set (autovacuum_enabled = off)")
            for _ in range(_WARM_UP):
                _claim(connection, _Times(), 0)
            _fill(connection, size)

        measured = {"planned when empty": _measure(planned_when_empty), "never analysed": _measure(connect())}
        for connection in planned_when_empty.values():
            connection.execute("vacuum (analyze) pgqueue.jobs")
        measured["analysed"] = _measure(connect())
    return _report(measured)


def _fill(connection: Connection, size: int) -> None:
    chunk = size // _FUTURE_CHUNKS
    for number in range(1, _FUTURE_CHUNKS + 1):
        fill(connection, chunk)
        fill(connection, chunk, delay=f"{number} hours")


def _measure(connections: Mapping[int, Connection]) -> dict[int, _Times]:
    times = {size: _Times() for size in connections}
    for number in range(-_WARM_UP, _ROUNDS):
        for size, connection in connections.items():
            _claim(connection, times[size] if number >= 0 else _Times(), _BATCH)
            # As many waiting for the last claim as for the first.
            fill(connection, _BATCH)
    return times


def _claim(connection: Connection, times: _Times, expected: int) -> None:
    start = time.perf_counter()
    row = connection.execute(
        "select array_agg(r.id), array_agg(r.reservation) from pgqueue.reserve('benchmark', %s) r", (_BATCH,)
    ).fetchone()
    reserved = time.perf_counter()
    assert row is not None
    ids, reservations = row
    count = len(ids) if isinstance(ids, list) else 0
    if count != expected:
        raise RuntimeError(f"reserve returned {count} jobs instead of {expected}")
    if count:
        middle = time.perf_counter()
        connection.execute("select pgqueue.complete_many(%s::bigint[], %s::bigint[])", (ids, reservations))
        times.complete.append((time.perf_counter() - middle) * 1000)
        times.reserve.append((reserved - start) * 1000)


def _report(measured: Mapping[str, Mapping[int, _Times]]) -> Report:
    rows = []
    bounds = []
    figures: dict[str, object] = {}
    for state, times in measured.items():
        for call in ("reserve", "complete_many"):
            small, large = (
                times[size].reserve if call == "reserve" else times[size].complete for size in (_SMALL, _LARGE)
            )
            ratio = median(large) / median(small)
            rows.append(
                (
                    f"{call}({_BATCH}), {state}",
                    f"{median(small):.2f}",
                    f"{percentile(small, 95):.2f}",
                    f"{median(large):.2f}",
                    f"{percentile(large, 95):.2f}",
                    f"{ratio:.2f}",
                )
            )
            figures[f"{call}, {state}"] = {
                "small_ms": median(small),
                "large_ms": median(large),
                "ratio": ratio,
            }
            if call == "reserve":
                bounds.append(Bound(f"Cost of reserve with {_LARGE:,} waiting to {_SMALL:,}, {state}", ratio, _BOUND))
    return Report(
        f"reserve_flat: ms a call with real commits, {_SMALL:,} or {_LARGE:,} jobs waiting and as many of the future",
        ("", "small median", "p95", "large median", "p95", "ratio"),
        rows,
        figures,
        bounds,
    )
