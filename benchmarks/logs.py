"""What does a log line at each job's end cost a drain?

`pgqueue worker` drains no-op jobs in pairs of runs: one at the default log level, written to a file, and one at
`warning`. The order alternates from pair to pair. The benchmark compares the CPU time of server and worker, because
other load on the machine changes it least. The figure is the median of the pairs' ratios.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import psycopg

from .cpu import server_seconds
from .harness import Bound, Report, Server, fill, median, sized

_JOBS = sized(200_000, least=40_000)
_PAIRS = 7
_LEVELS = ("info", "warning")


def run(server: Server) -> Report:
    costs: dict[str, list[float]] = {level: [] for level in _LEVELS}
    lines = 0
    for pair in range(_PAIRS):
        for level in _LEVELS if pair % 2 else reversed(_LEVELS):
            with server.database("logs") as dsn:
                cost, written = _drain(dsn, level)
            costs[level].append(cost)
            lines += written
    ratio = median([one / other for one, other in zip(*costs.values(), strict=True)])
    return Report(
        f"logs: {_JOBS:,} no-op jobs, us of CPU a job, {_PAIRS} pairs; {lines / _PAIRS:.0f} lines a pair",
        ("log level", "server and worker"),
        [(level, f"{1e6 * median(each):.2f}") for level, each in costs.items()],
        {"ratio": ratio, "cpu_us_per_job": costs},
        [Bound("CPU at the default log level, to without", ratio, 1.03)],
    )


def _drain(dsn: str, level: str) -> tuple[float, int]:
    """Return the seconds of CPU for each job, and how many lines the worker logged."""
    command = ("worker", "--dsn", dsn, "-r", "benchmarks.noops", "--until-empty", "--log-level", level)
    with psycopg.connect(dsn, autocommit=True) as connection, tempfile.TemporaryFile() as log:
        fill(connection, _JOBS)
        before = server_seconds(connection) + _children()
        subprocess.run([sys.executable, "-m", "pgqueue", *command], check=True, stderr=log, stdout=log)
        cost = (server_seconds(connection) + _children() - before) / _JOBS
        log.seek(0)
        return cost, len(log.readlines())


def _children() -> float:
    times = os.times()
    return times.children_user + times.children_system
