"""Does the memory of a worker grow with the number of jobs that it has run?

One worker, async and sync no-ops, supervised as in production (its board is written). Its resident memory is read
after a tenth of the jobs and after all of them.
"""

from __future__ import annotations

import subprocess
import time
from typing import Any

import psycopg

from pgqueue.worker.process import memory

from .harness import Bound, Report, Server, fill, sized
from .probe import command

_JOBS = sized(1_000_000)

# Jobs in the queue at a time: what waits is the server's, not the worker's.
_CHUNK = max(_JOBS // 20, 1)

# What an allocator may keep, of a worker that leaks nothing.
_LIMIT = 1.05


def run(server: Server) -> Report:
    sizes = {kind: _measure(server, kind) for kind in ("async", "sync")}
    return Report(
        f"memory: resident MiB of a worker after {_JOBS // 10:,} and after {_JOBS:,} no-op jobs",
        ("handlers", "at the start", f"after {_JOBS // 10:,}", f"after {_JOBS:,}", "grown"),
        [
            (kind, *(f"{size / 2**20:.1f}" for size in found), f"{found[2] / found[1]:.3f}")
            for kind, found in sizes.items()
        ],
        {kind: {"start": a, "tenth": b, "all": c} for kind, (a, b, c) in sizes.items()},
        [Bound(f"grown, {kind} handlers", found[2] / found[1], _LIMIT) for kind, found in sizes.items()],
    )


def _measure(server: Server, kind: str) -> tuple[int, int, int]:
    with (
        server.database("memory") as dsn,
        psycopg.connect(dsn, autocommit=True) as connection,
        subprocess.Popen(command("work", *(["--sync"] if kind == "sync" else []), dsn)) as process,
    ):
        try:
            _wait_until(connection, "select count(*) from pgqueue.workers where name is not null", 1, process)
            start = memory.resident(process.pid)
            ran, tenth = 0, 0
            while ran < _JOBS:
                fill(connection, _CHUNK)
                ran += _CHUNK
                _wait_until(connection, "select count(*) = 0 from (select from pgqueue.jobs limit 1) j", True, process)
                if not tenth and ran * 10 >= _JOBS:
                    tenth = memory.resident(process.pid)
            return start, tenth, memory.resident(process.pid)
        finally:
            process.terminate()


def _wait_until(
    connection: psycopg.Connection[Any], query: str, answer: object, process: subprocess.Popen[Any]
) -> None:
    while True:
        row = connection.execute(query.encode()).fetchone()
        if row is not None and row[0] == answer:
            return
        if process.poll() is not None:
            raise RuntimeError(f"the worker ended with exit code {process.returncode}")
        time.sleep(0.02)
