"""What do dependencies, groups and steps cost, against the same work without them?

Drains are by one client that exchanges 100 jobs at a time, and alternate in one database. They are compared by the CPU
time of the client's backend, in pairs: what else the machine does shows less in that than in seconds. The chain runs on
one worker with its default settings, against jobs that start one by one on the same worker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import psycopg

from pgqueue import App
from pgqueue.config import WorkerConfig
from pgqueue.worker import Worker

from .harness import Bound, Connection, Report, Server, median, rounds, sized

_JOBS = sized(100_000, least=10_000)
_WAITING = sized(50_000, least=5_000)
_LINKS = sized(1_000, least=100)
_CHILDREN = sized(10_000, least=1_000)
_ROUNDS = rounds()
# Of drains with and without others that wait: the difference is small.
_PAIRS = 15


class _Drain(NamedTuple):
    seconds: float
    cpu: float


def run(server: Server) -> Report:
    with server.database("workflows") as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        drains = {**_beside(connection), **_drains(connection, dsn)}
        release = _release(connection)
        steps, inserts = _steps(connection)
    with server.database("workflows_chain") as dsn:
        link, single = asyncio.run(_chain(dsn))
    figures = {
        **{name: _rate(each) for name, each in drains.items()},
        "release_s": release,
        "link_ms": 1000 * link,
        "start_ms": 1000 * single,
        "ten_steps_ms": 1000 * steps,
        "ten_inserts_ms": 1000 * inserts,
    }
    return Report(
        f"workflows, against the same work without them, median of {_ROUNDS}; while others wait: of {_PAIRS} pairs",
        ("", "measured"),
        [
            (f"plain jobs, {_JOBS:,} a drain", f"{_rate(drains['plain']):,.0f} jobs/s"),
            ("plain jobs in the pairs of the next line", f"{_rate(drains['alone']):,.0f} jobs/s"),
            (f"the same while {_WAITING:,} jobs wait for others elsewhere", f"{_rate(drains['beside']):,.0f} jobs/s"),
            (f"a group of {_JOBS:,}", f"{_rate(drains['group']):,.0f} jobs/s"),
            ("plain jobs beside a held snapshot", f"{_rate(drains['held_plain']):,.0f} jobs/s"),
            ("a group beside a held snapshot", f"{_rate(drains['held_group']):,.0f} jobs/s"),
            (f"{_CHILDREN:,} children of one parent released", f"{release:.2f} s"),
            ("a plain job, from its enqueue to its start", f"{1000 * single:.2f} ms"),
            (f"a link of a chain of {_LINKS:,}", f"{1000 * link:.2f} ms"),
            ("ten INSERTs with commit", f"{1000 * inserts:.2f} ms"),
            ("ten steps of a job", f"{1000 * steps:.2f} ms"),
        ],
        figures,
        (
            Bound("plain while others wait, to plain", _speed(drains["beside"], drains["alone"]), 0.97, at_least=True),
            Bound("a group, to plain", _speed(drains["group"], drains["plain"]), 0.85, at_least=True),
            Bound(
                "a group beside a held snapshot, to plain",
                _speed(drains["held_group"], drains["held_plain"]),
                0.8,
                at_least=True,
            ),
            Bound("children released, seconds", release, 1.0, is_ratio=False),
            Bound("a link, to the start of a plain job", link / single, 2.0),
            Bound("ten INSERTs, to ten steps", inserts / steps, 0.5, at_least=True),
        ),
    )


def _beside(connection: Connection) -> dict[str, list[_Drain]]:
    """Drains with and without others that wait; which of a pair comes first changes."""
    found: dict[str, list[_Drain]] = {"alone": [], "beside": []}
    for number in range(_PAIRS):
        for name in ("alone", "beside")[:: 1 if number % 2 else -1]:
            # Or the second one walks what the first has left.
            connection.execute("vacuum pgqueue.jobs")
            with _others_waiting(connection) if name == "beside" else nullcontext():
                found[name].append(_drain(connection, None))
    return found


def _drains(connection: Connection, dsn: str) -> dict[str, list[_Drain]]:
    """Drains of each kind, in the order of the rounds."""
    found: dict[str, list[_Drain]] = {name: [] for name in ("plain", "group", "held_plain", "held_group")}
    for number in range(_ROUNDS):
        found["plain"].append(_drain(connection, None))
        connection.execute("vacuum pgqueue.jobs")
        found["group"].append(_drain(connection, _open(connection)))
        with psycopg.connect(dsn) as old:
            old.execute("begin isolation level repeatable read")
            old.execute("select 1")
            # Which of them comes second walks what the first has left.
            for name in ("held_plain", "held_group")[:: 1 if number % 2 else -1]:
                found[name].append(_drain(connection, _open(connection) if name == "held_group" else None))
        connection.execute("vacuum pgqueue.jobs")
    return found


def _speed(of: list[_Drain], against: list[_Drain]) -> float:
    """How fast drains are against others of the same rounds, by CPU time: the median of the pairs."""
    return median([other.cpu / each.cpu for each, other in zip(of, against, strict=True)])


def _rate(of: list[_Drain]) -> float:
    return median([_JOBS / each.seconds for each in of])


def _open(connection: Connection) -> int:
    row = connection.execute("select pgqueue.open_group('bench')").fetchone()
    assert row is not None
    return int(row[0])


def _fill(connection: Connection, jobs: int, group: int | None) -> None:
    connection.execute(
        "select count(*) from pgqueue.enqueue_many('noop', array_fill('{}'::jsonb, array[%s]), group_id => %s::bigint)",
        [jobs, group],
    )
    connection.execute("select pgqueue.maintain()")


def _drain(connection: Connection, group: int | None) -> _Drain:
    _fill(connection, _JOBS, group)
    if group is not None:
        connection.execute("select pgqueue.close_group(%s)", [group])
    done = 0
    ids: list[int] = []
    reservations: list[int] = []
    cpu = _cpu(connection)
    began = time.perf_counter()
    while done < _JOBS:
        rows = connection.execute(
            "select id, reservation from pgqueue.exchange('bench', 100, array['default'],"
            " completed => %s::bigint[], completed_reservations => %s::bigint[]) where outcome = 'reserved'",
            [ids, reservations],
        ).fetchall()
        done += len(ids)
        ids = [row[0] for row in rows]
        reservations = [row[1] for row in rows]
    seconds = time.perf_counter() - began
    used = _cpu(connection)
    return _Drain(seconds, seconds if cpu is None or used is None else used - cpu)


def _cpu(connection: Connection) -> float | None:
    """Seconds of CPU that the connection's backend has used; None where it is not a process of this machine."""
    stat = Path(f"/proc/{connection.info.backend_pid}/schedstat")
    return int(stat.read_text().split()[0]) / 1e9 if stat.exists() else None


@contextmanager
def _others_waiting(connection: Connection) -> Iterator[None]:
    connection.execute("select pgqueue.enqueue('parent', queue => 'elsewhere', delay => '1 day')")
    connection.execute(
        "select count(*) from pgqueue.enqueue_many('child', array_fill('{}'::jsonb, array[%s]), queue => 'elsewhere',"
        " depends_on => array[(select max(id) from pgqueue.jobs)])",
        [_WAITING],
    )
    while connection.execute("select from pgqueue.notes limit 1").fetchone() is not None:
        connection.execute("select pgqueue.maintain()")
    try:
        yield
    finally:
        connection.execute("delete from pgqueue.jobs where queue = 'elsewhere'")
        connection.execute("delete from pgqueue.dependencies")
        connection.execute("vacuum pgqueue.dependencies")


def _release(connection: Connection) -> float:
    took = []
    for _ in range(_ROUNDS):
        connection.execute("select pgqueue.enqueue('parent', queue => 'fan')")
        connection.execute(
            "select count(*) from pgqueue.enqueue_many('child', array_fill('{}'::jsonb, array[%s]), queue => 'out',"
            " depends_on => array[(select max(id) from pgqueue.jobs)])",
            [_CHILDREN],
        )
        while connection.execute("select from pgqueue.notes limit 1").fetchone() is not None:
            connection.execute("select pgqueue.maintain()")
        row = connection.execute("select id, reservation from pgqueue.reserve('bench', 1, array['fan'])").fetchone()
        began = time.perf_counter()
        connection.execute("select pgqueue.complete(%s, %s)", row)
        while connection.execute("select from pgqueue.jobs where blocked_on = '@parents' limit 1").fetchone():
            # As workers without anything to do call it.
            connection.execute("select count(*) from pgqueue.reserve('bench', 1, array['nothing'])")
        took.append(time.perf_counter() - began)
        connection.execute("delete from pgqueue.jobs where queue = 'out'")
    return median(took)


def _steps(connection: Connection) -> tuple[float, float]:
    connection.execute("create table plain_steps (job_id bigint, name text, result jsonb, primary key (job_id, name))")
    steps, inserts = [], []
    for number in range(200):
        connection.execute("select pgqueue.enqueue('t', queue => 'steps')")
        row = connection.execute("select id, reservation from pgqueue.reserve('bench', 1, array['steps'])").fetchone()
        assert row is not None
        began = time.perf_counter()
        for step in range(10):
            connection.execute("select pgqueue.complete_step(%s, %s, %s, '{\"n\": 1}')", [*row, f"step {step}"])
        middle = time.perf_counter()
        for step in range(10):
            connection.execute("insert into plain_steps values (%s, %s, '{\"n\": 1}')", [number, f"step {step}"])
        ended = time.perf_counter()
        connection.execute("select pgqueue.complete(%s, %s)", row)
        steps.append(middle - began)
        inserts.append(ended - middle)
    return median(steps), median(inserts)


async def _chain(dsn: str) -> tuple[float, float]:
    app = App()
    started = asyncio.Event()
    ended = asyncio.Event()

    @app.task
    async def link() -> None:
        pass

    @app.task
    async def single() -> None:
        started.set()

    @app.task
    async def last() -> None:
        ended.set()

    worker = Worker(app, dsn, WorkerConfig())
    running = asyncio.create_task(worker.run())
    await worker.started.wait()
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        waits = []
        for _ in range(100):
            started.clear()
            # The worker has gone idle by then.
            await asyncio.sleep(0.02)
            began = time.perf_counter()
            await connection.execute("select pgqueue.enqueue('single')")
            await started.wait()
            waits.append(time.perf_counter() - began)
        async with connection.transaction():
            cursor = await connection.execute("select pgqueue.enqueue('link')")
            row = await cursor.fetchone()
            for number in range(_LINKS):
                assert row is not None
                task = "last" if number == _LINKS - 1 else "link"
                cursor = await connection.execute("select pgqueue.enqueue(%s, depends_on => array[%s])", [task, row[0]])
                row = await cursor.fetchone()
            began = time.perf_counter()
        await ended.wait()
        took = time.perf_counter() - began
    worker.stop()
    await running
    return took / _LINKS, median(waits)
