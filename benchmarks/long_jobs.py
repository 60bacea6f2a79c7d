"""How long does a tenant with jobs of 10 ms wait beside one with jobs of 10 s, in a fair queue?

A worker has ten slots. With max_share 0.9 a job of the second comes each 50 ms: from its enqueue to the first line of
its handler. Without it the first tenant has taken all slots. The second has many jobs, whose first one waits until a
slot becomes free; from then on, from the end of each of them to the start of the next. The slot stays with the second
while it has jobs, though those of the first are older.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from pgqueue import App
from pgqueue.config import WorkerConfig
from pgqueue.worker import Worker

from .harness import Bound, Report, Server, median, percentile

_SLOTS = 10
_LONG = 10.0
_SHORT = 0.01
_EVERY = 0.05
_JOBS = 300
_BACKLOG = 100
# When the first of the long jobs ends that hold all slots: by then maintenance knows them as long ones.
_FREE_AFTER = 3.0
_PATIENCE = 60.0
_MOST = 0.2


class _Tenants:
    """A worker with the jobs of both, and when they ran."""

    def __init__(self) -> None:
        self.app = App()
        self.long = 0
        self.most_long = 0
        self.starts: list[float] = []
        self.ends: list[float] = []

        @self.app.task(name="long")
        async def long(seconds: float) -> None:
            self.long += 1
            self.most_long = max(self.most_long, self.long)
            try:
                await asyncio.sleep(seconds)
            finally:
                self.long -= 1

        @self.app.task(name="short")
        async def short() -> None:
            self.starts.append(time.monotonic())
            await asyncio.sleep(_SHORT)
            self.ends.append(time.monotonic())

    async def until(self, fact: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not fact():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.long} long jobs run, and {len(self.starts)} short ones have started")
            await asyncio.sleep(0.005)


def run(server: Server) -> Report:
    # Long jobs are cut off in the end.
    logging.getLogger("pgqueue").setLevel(logging.CRITICAL)
    with server.database("long_jobs") as dsn:
        beside, most_long = asyncio.run(_beside(dsn))
    with server.database("long_jobs") as dsn:
        first, gaps = asyncio.run(_behind(dsn))
    rows = [
        ("max_share 0.9, from enqueue to start", *_shown(beside)),
        ("without, from the end of a job to the start of the next", *_shown(gaps)),
        ("without, the first job", f"{first:.3f}", "", ""),
    ]
    return Report(
        f"long_jobs: s to start a job of 10 ms beside jobs of 10 s, {_SLOTS} slots",
        ("", "median", "p99", "longest"),
        rows,
        {
            "with_max_share_p99_s": percentile(beside, 99),
            "without_p99_s": percentile(gaps, 99),
            "without_first_s": first,
            "slots_of_long_jobs": most_long,
        },
        [
            Bound("p99 s to start with max_share 0.9", percentile(beside, 99), _MOST, is_ratio=False),
            Bound("p99 s to start without, from the second job on", percentile(gaps, 99), _MOST, is_ratio=False),
            Bound("slots of the first tenant with max_share 0.9", most_long, _SLOTS - 1),
        ],
    )


def _shown(seconds: list[float]) -> tuple[str, str, str]:
    return f"{median(seconds):.3f}", f"{percentile(seconds, 99):.3f}", f"{max(seconds):.3f}"


async def _beside(dsn: str) -> tuple[list[float], int]:
    tenants = _Tenants()
    async with _working(dsn, tenants, "max_share => 0.9") as connection:
        await _enqueue(connection, "long", [_LONG] * 4 * _SLOTS)
        await tenants.until(lambda: tenants.long == _SLOTS - 1)
        sent = []
        began = time.monotonic()
        for n in range(_JOBS):
            await asyncio.sleep(max(0.0, began + n * _EVERY - time.monotonic()))
            sent.append(time.monotonic())
            await connection.execute("select pgqueue.enqueue('short', limit_key => 'second')")
        await tenants.until(lambda: len(tenants.starts) == _JOBS)
    # Those of one tenant start in their order.
    return [start - at for start, at in zip(tenants.starts, sent, strict=True)], tenants.most_long


async def _behind(dsn: str) -> tuple[float, list[float]]:
    tenants = _Tenants()
    async with _working(dsn, tenants, "") as connection:
        lasting = [_FREE_AFTER + n for n in range(_SLOTS)]
        await _enqueue(connection, "long", lasting + [_LONG] * _SLOTS)
        await tenants.until(lambda: tenants.long == _SLOTS)
        sent = time.monotonic()
        await connection.execute(
            "select count(*) from pgqueue.enqueue_many("
            "'short', array_fill('{}'::jsonb, array[%s]), limit_key => 'second')",
            (_BACKLOG,),
        )
        await tenants.until(lambda: len(tenants.ends) == _BACKLOG)
    # One after the other, or in several slots as more become free.
    gaps = [start - tenants.ends[n] for n, start in enumerate(tenants.starts[1:])]
    return tenants.starts[0] - sent, [max(gap, 0.0) for gap in gaps]


@asynccontextmanager
async def _working(
    dsn: str, tenants: _Tenants, options: str
) -> AsyncIterator[psycopg.AsyncConnection[tuple[object, ...]]]:
    config = WorkerConfig(concurrency=_SLOTS, shutdown_timeout=1.0)
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        more = f", {options}" if options else ""
        await connection.execute(f"select pgqueue.configure_queue('default', fair_by => 'limit_key'{more})".encode())
        worker = Worker(tenants.app, dsn, config)
        working = asyncio.create_task(worker.run())
        await worker.started.wait()
        try:
            yield connection
        finally:
            worker.stop()
            await working


async def _enqueue(connection: psycopg.AsyncConnection[Any], task: str, seconds: list[float]) -> None:
    for each in seconds:
        await connection.execute(
            "select pgqueue.enqueue(%s, jsonb_build_object('seconds', %s::float8), limit_key => 'first')", (task, each)
        )
