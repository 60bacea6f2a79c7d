"""What do samples and reports cost at work? CPU of server and worker for each job, with and without them.

Pairs of drains of no-ops, one after the other, the order changing from pair to pair. Without: `maintain` takes no
samples, and the worker counts and reports nothing. CPU, from the times of the processes, is what does not depend on
what else the machine does; the figure is the median of the pairs' ratios. A sample of a queue that is full is what a
drain has to carry, so it is timed where most jobs still wait.

Beside them: the CPU of a sample beside a million live jobs in 30 queues (`--scale 10`: ten million), with a million in
history, as a part of one core. Sixty samples, ten seconds apart by the clock that they are given, so that each
large queue is counted whole in its turn.
"""

from __future__ import annotations

import os
import subprocess
import time

import psycopg

from .beside import fill_beside
from .cpu import backend_seconds, server_seconds
from .harness import Bound, Connection, Report, Server, fill, median, sized
from .probe import command

# A larger run has no more of them: the ratio does not depend on their number.
_JOBS = min(sized(200_000, least=40_000), 200_000)
_PAIRS = 7
_LIVE = sized(1_000_000, least=100_000)
_SAMPLES = 60
_MOST_PERCENT = 0.5

_NONE = (
    "create or replace function pgqueue._sample(p_now timestamptz, p_cursor text[] default null) returns text[]"
    " language plpgsql as 'begin return null; end'"
)


def run(server: Server) -> Report:
    costs: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    samples = 0
    for pair in range(_PAIRS):
        for with_samples in (True, False) if pair % 2 else (False, True):
            with server.database("samples") as dsn, psycopg.connect(dsn, autocommit=True) as connection:
                if not with_samples:
                    connection.execute(_NONE)
                costs[with_samples].append(_drain(connection, dsn, with_samples))
                if with_samples:
                    samples += _count(connection)
    ratios = [sum(one) / sum(other) for one, other in zip(costs[True], costs[False], strict=True)]
    rows = [
        (name, *(f"{1e6 * median([each[part] for each in costs[way]]):.2f}" for part in (0, 1)))
        for name, way in (("with samples and reports", True), ("without", False))
    ]
    ratio = median(ratios)
    with server.database("samples") as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        took = fill_beside(dsn, _LIVE, late=10)
        percent, longest = _beside_many(connection)
    rows.append((f"a sample beside {_LIVE:,} live jobs, % of a core", f"{percent:.3f}", ""))
    rows.append(("the longest of them, ms", f"{longest:.0f}", ""))
    rows.append(("seconds in which these jobs were filled in", f"{took:.0f}", ""))
    return Report(
        f"samples: {_JOBS:,} no-op jobs, us of CPU a job, {_PAIRS} pairs; {samples / _PAIRS:.1f} samples a drain",
        ("", "server", "worker"),
        rows,
        {
            "ratio": ratio,
            "ratios": ratios,
            "samples_per_drain": samples / _PAIRS,
            "percent_of_a_core": percent,
            "longest_ms": longest,
            "live": _LIVE,
            "fill_s": took,
        },
        [
            Bound("CPU with samples and reports, to without", ratio, 1.02),
            Bound(f"CPU of samples beside {_LIVE:,} live jobs, % of a core", percent, _MOST_PERCENT, is_ratio=False),
        ],
    )


def _beside_many(connection: Connection) -> tuple[float, float]:
    """Return the part of a core that samples take, in per cent, and the milliseconds of the longest."""
    spent = []
    # The first ones count every queue for the first time.
    for n in range(-_SAMPLES, _SAMPLES):
        if n == 0:
            before = backend_seconds(connection)
        began = time.perf_counter()
        connection.execute("select pgqueue._sample(pgqueue._clock() + %s * interval '10 s')", (n + _SAMPLES,))
        spent.append(1000 * (time.perf_counter() - began))
    return 100 * (backend_seconds(connection) - before) / (10 * _SAMPLES), max(spent[_SAMPLES:])


def _count(connection: Connection) -> int:
    [found] = connection.execute("select count(distinct at) from pgqueue.samples").fetchone() or [0]
    return int(str(found))


def _drain(connection: Connection, dsn: str, with_samples: bool) -> tuple[float, float]:
    """Return seconds of CPU for a job: of the server, and of the worker."""
    fill(connection, _JOBS)
    server, worker = server_seconds(connection), _children()
    subprocess.run(command("drain", *([] if with_samples else ["--uncounted"]), dsn), check=True)
    return (server_seconds(connection) - server) / _JOBS, (_children() - worker) / _JOBS


def _children() -> float:
    times = os.times()
    return times.children_user + times.children_system
