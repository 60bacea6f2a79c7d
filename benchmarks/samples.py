"""What do samples and reports cost at work? CPU of server and worker for each job, with and without them.

Pairs of drains of no-ops, one after the other, the order changing from pair to pair. Without: `maintain` takes no
samples, and the worker counts and reports nothing. CPU, from the times of the processes, is what does not depend on
what else the machine does; the figure is the median of the pairs' ratios. A sample of a queue that is full is what a
drain has to carry, so it is timed where most jobs still wait.
"""

from __future__ import annotations

import os
import subprocess

import psycopg

from .cpu import server_seconds
from .harness import Bound, Connection, Report, Server, fill, median, sized
from .probe import command

_JOBS = sized(200_000, least=40_000)
_PAIRS = 7

_NONE = (
    "create or replace function pgqueue._sample(p_now timestamptz) returns void language plpgsql as 'begin return; end'"
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
    return Report(
        f"samples: {_JOBS:,} no-op jobs, us of CPU a job, {_PAIRS} pairs; {samples / _PAIRS:.1f} samples a drain",
        ("", "server", "worker"),
        rows,
        {"ratio": ratio, "ratios": ratios, "samples_per_drain": samples / _PAIRS},
        [Bound("CPU with samples and reports, to without", ratio, 1.02)],
    )


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
