"""How long does a command take to start, and a worker to its first job?

`pgqueue --version`, beside a Python that imports psycopg and nothing else. `pgqueue worker`, from the start of the
process to the end of a no-op job that was there before, beside a process that connects with psycopg, claims a row and
deletes it. All on a warm machine: each is run once before it is timed, and in turn with the others.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import psycopg

from .harness import Bound, Report, Server, median

_ROUNDS = 7
_IMPORT, _VERSION = "python, import psycopg", "pgqueue --version"
_BARE, _WORKER = "a process that claims and deletes one row", "pgqueue worker, to the end of its first job"

# Seconds.
_MOST = {_VERSION: 0.4, _WORKER: 1.0}

_CLAIM_ONE = """
import sys
import psycopg
with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    claim = "select id from bare order by id limit 1 for update skip locked"
    connection.execute(f"delete from bare where id = ({claim})")
"""


def run(server: Server) -> Report:
    with server.database("startup") as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table bare (id bigint generated always as identity primary key)")

        def claim_one() -> float:
            connection.execute("insert into bare default values")
            return _timed("-c", _CLAIM_ONE, dsn)

        def first_job() -> float:
            connection.execute("select pgqueue.enqueue('noop')")
            began = time.time()
            _timed("-m", "pgqueue", "worker", "--dsn", dsn, "-r", "benchmarks.noops", "--until-empty", *_QUIET)
            [ended] = connection.execute(_LAST_END).fetchone() or [0.0]
            return float(str(ended)) - began

        ways: dict[str, Callable[[], float]] = {
            _IMPORT: lambda: _timed("-c", "import psycopg"),
            _VERSION: lambda: _timed("-m", "pgqueue", "--version"),
            _BARE: claim_one,
            _WORKER: first_job,
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        for n in range(_ROUNDS + 1):
            for way, measure in ways.items():
                seconds = measure()
                if n:
                    times[way].append(seconds)
    baselines = {_IMPORT: _IMPORT, _VERSION: _IMPORT, _BARE: _BARE, _WORKER: _BARE}
    ratios = {way: median(times[way]) / median(times[baselines[way]]) for way in ways}
    return Report(
        f"startup: seconds, median of {_ROUNDS}",
        ("", "median", "all runs", "to the one above it"),
        [
            (way, f"{median(each):.2f}", " ".join(f"{seconds:.2f}" for seconds in each), f"{ratios[way]:.1f}")
            for way, each in times.items()
        ],
        {way: {"median_s": median(each), "to_baseline": ratios[way]} for way, each in times.items()},
        [Bound(f"seconds, {way}", median(times[way]), most, is_ratio=False) for way, most in _MOST.items()],
    )


_QUIET = ("--log-level", "warning")
# By the clock of the server, which is that of this machine.
_LAST_END = "select extract(epoch from max(h.finished_at))::float8 from pgqueue.history h"


def _timed(*arguments: str) -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began
