"""What do 200 idle workers cost the server, with one enqueue a second, and how many of them does each enqueue wake?

Each worker is simulated by one connection, which sends the statements of a real idle worker at the same pauses: LISTEN
every ten seconds, `idle` when its last reply asks for the next call, and a claim when a notification arrives or a job
is due. The worker that gets the job completes it. (A real worker has three more connections, silent while it is idle.
It also polls for a second when it first goes idle; that is over before the measurement.) The processor time is that of
all processes of the server, read from /proc, so the server must run on this machine.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from pgqueue.config import WorkerConfig
from pgqueue.db import consume, presence
from pgqueue.db.call import Call, T, perform_async
from pgqueue.worker.link.connection import connect

from .harness import Bound, Report, Server, median, sized

_WORKERS = 200
_SECONDS = sized(60_000, least=15_000) / 1000

# Seconds until every worker is idle.
_SETTLE = 12.0
_FIRST_RUNS = 20

_DEFAULTS = WorkerConfig()
_PULSE = _DEFAULTS.lease / 3


@dataclass(slots=True)
class _Counts:
    notified: int = 0
    claims: int = 0
    empty_claims: int = 0
    statements: int = 0
    started: list[float] = field(default_factory=list)


def run(server: Server) -> Report:
    with server.database("fleet") as dsn:
        cpu, seconds, jobs, counts = asyncio.run(_measure(dsn))
    share = 100 * cpu / seconds
    woken = counts.notified / jobs
    empty = counts.empty_claims / jobs
    sent = counts.statements / seconds
    return Report(
        f"idle_fleet: {_WORKERS} sleeping workers, one enqueue a second, {seconds:.0f} s",
        ("", ""),
        [
            ("processor time of the server, percent of one core", f"{share:.2f}"),
            ("statements a second, all workers", f"{sent:.1f}"),
            ("statements a second, each worker", f"{sent / _WORKERS:.3f}"),
            ("workers woken by an enqueue", f"{woken:.2f}"),
            ("claims that found nothing, for each enqueue", f"{empty:.2f}"),
            ("ms from enqueue to claim, median", f"{median(counts.started):.1f}"),
            ("ms from enqueue to claim, max", f"{max(counts.started):.1f}"),
        ],
        {
            "core_percent": share,
            "statements_per_s": sent,
            "woken_per_enqueue": woken,
            "empty_claims_per_enqueue": empty,
            "median_ms": median(counts.started),
            "max_ms": max(counts.started),
            "jobs": jobs,
        },
        [
            Bound("Percent of one core in the server", share, 5.0, is_ratio=False),
            Bound("Workers woken by an enqueue", woken, 3.0, is_ratio=False),
        ],
    )


async def _measure(dsn: str) -> tuple[float, float, int, _Counts]:
    counts = _Counts()
    producer = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    postmaster = _postmaster(producer.info.backend_pid)
    # The first runs of maintain on a new database create its partitions, a few in each: no cost of the fleet.
    for _ in range(_FIRST_RUNS):
        await producer.execute("select pgqueue.maintain()")
    fleet = [asyncio.create_task(_sleep(dsn, f"sleeper {n}", counts)) for n in range(_WORKERS)]
    try:
        began = time.monotonic()
        while time.monotonic() < began + _SETTLE:
            _raise_first(fleet)
            await asyncio.sleep(0.2)
        before, began, jobs = _cpu(postmaster), time.monotonic(), 0
        counts.notified = counts.claims = counts.empty_claims = counts.statements = 0
        while time.monotonic() < began + _SECONDS:
            _raise_first(fleet)
            await producer.execute("select pgqueue.enqueue('noop')")
            jobs += 1
            await asyncio.sleep(began + jobs - time.monotonic())
        seconds, spent = time.monotonic() - began, _cpu(postmaster) - before
        rows = await producer.execute(
            "select extract(epoch from h.reserved_at - h.created_at)::float8 * 1000 from pgqueue.history h"
        )
        counts.started = [row[0] for row in await rows.fetchall()]
        if len(counts.started) < jobs - 1:
            raise RuntimeError(f"{len(counts.started)} of {jobs} jobs ran")
        return spent, seconds, jobs, counts
    finally:
        for each in fleet:
            each.cancel()
        await asyncio.gather(*fleet, return_exceptions=True)
        await producer.close()


def _raise_first(fleet: list[asyncio.Task[None]]) -> None:
    for each in fleet:
        if each.done():
            each.result()


async def _sleep(dsn: str, name: str, counts: _Counts) -> None:
    # A random start, so that the workers do not call in step.
    await asyncio.sleep(random.uniform(0.0, 5.0))
    connection = await connect(dsn)
    claim = consume.Claim(name, None, None, _DEFAULTS.lease, _DEFAULTS.strategy)
    poll = _DEFAULTS.poll_interval

    async def send(call: Call[T]) -> T:
        counts.statements += 1
        return await perform_async(connection, call)

    async def is_notified(seconds: float) -> bool:
        heard = False
        async for each in connection.notifies(timeout=max(seconds, 0.0), stop_after=1):
            heard = heard or each.payload.startswith("wake")
        counts.notified += heard
        return heard

    async def claimed() -> bool:
        rows = await send(consume.exchange(claim, _DEFAULTS.concurrency, ask=False))
        counts.claims += 1
        counts.empty_claims += not rows
        if rows:
            await send(consume.exchange(claim, 0, [(row[0], row[9]) for row in rows], ask=False))
        return bool(rows)

    try:
        channel = await send(presence.hello(name, None, {}))
        await connection.execute(f'listen "{channel}"'.encode())
        pulse_at = time.monotonic() + _PULSE
        call_at = 0.0
        # A real worker polls at first: see worker/sleeper.py.
        for _ in range(10):
            await claimed()
        while True:
            now = time.monotonic()
            if now >= pulse_at:
                counts.statements += 1
                await connection.execute(f'listen "{channel}"'.encode())
                pulse_at = now + _PULSE
            due_at = float("inf")
            if now >= call_at:
                due_in, again_in, *_ = await send(consume.idle(name, None, poll))
                call_at = now + min(again_in, poll * random.uniform(0.9, 1.0))
                due_at = float("inf") if due_in is None else now + due_in
            if await is_notified(min(call_at, due_at, pulse_at) - time.monotonic()):
                # The claim may find nothing: the job is taken, or due later. Calling idle next tells when one is due.
                await claimed()
                call_at = 0.0
            elif time.monotonic() >= due_at:
                await claimed()
    finally:
        await connection.close()


def _postmaster(backend: int) -> int:
    stat = Path(f"/proc/{backend}/stat")
    if not stat.exists() or "postgres" not in stat.read_text():
        raise RuntimeError("the server does not run on this machine, or /proc is missing: its time cannot be read")
    return int(_fields(backend)[1])


def _cpu(postmaster: int) -> float:
    """Return the processor seconds of the server, including those of its processes that have ended."""
    ticks = sum(int(each) for each in _fields(postmaster)[11:15])
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = _fields(int(entry.name))
            except OSError:
                continue
            if int(fields[1]) == postmaster:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _fields(pid: int) -> list[str]:
    # The fields of stat after the process name, which may hold spaces and parentheses: state, parent, ...
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
