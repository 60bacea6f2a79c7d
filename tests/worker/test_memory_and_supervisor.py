"""What a worker reports of its process: its memory, with each heartbeat, and its supervisor."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue import App
from pgqueue.worker.process import memory
from pgqueue.worker.run import running_jobs
from pgqueue.worker.run.running_jobs import RunningJobs
from tests.calls import call, table, value
from tests.databases import Database
from tests.facts import wait_until, wait_until_async
from tests.worker.conftest import Start
from tests.workers import working, write_module

KNOWN = "select worker, memory, info -> 'supervisor' from pgqueue.worker_status where is_alive order by worker"


def remembered(conn: psycopg.Connection, worker: str = "w") -> int | None:
    found: int | None = value(conn, "select memory from pgqueue.worker_status where worker = %s", worker)
    return found


def test_processes_report_their_memory_and_their_supervisor(
    conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    write_module(tmp_path, "from pgqueue import App\n\napp = App()")
    supervisor = start_worker("-r", "jobs", "--processes", "2", "--name", "s")
    wait_until(lambda: value(conn, "select count(memory) from pgqueue.worker_status") == 2, timeout=90)
    rows = conn.execute(KNOWN.encode()).fetchall()
    assert [row[0] for row in rows] == ["s:1", "s:2"]
    assert all(10 << 20 < row[1] < 1 << 30 for row in rows)
    assert [row[2] for row in rows] == [{"name": "s", "pid": supervisor.pid}] * 2
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 0


def test_processes_report_the_limit_at_which_they_are_replaced(
    conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    write_module(tmp_path, "from pgqueue import App\n\napp = App()")
    start_worker("-r", "jobs", "--max-memory", "900M", "--name", "s")
    limit = "select memory_limit from pgqueue.worker_status where worker = 's:1'"
    wait_until(lambda: value(conn, limit) is not None, timeout=90)
    # Of a container, or of the machine, that has less.
    assert value(conn, limit) == memory.limit(900 << 20) <= 900 << 20
    assert value(conn, "select info -> 'max_memory' from pgqueue.workers") == 900 << 20


def test_the_least_limit_of_the_control_groups_around_a_process_counts(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("12:pids:/x\n0::/app.slice/worker.service\n")
    group = tmp_path / "fs" / "app.slice" / "worker.service"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group.parent / "memory.max").write_text("4096\n")
    (tmp_path / "fs" / "memory.max").write_text("8192\n")
    # Not above the tree of groups.
    (tmp_path / "memory.max").write_text("1\n")
    assert list(memory._of_control_groups(tmp_path / "fs", own)) == [4096, 8192]
    own.write_text("4:memory:/of version 1\n")
    assert list(memory._of_control_groups(tmp_path / "fs", own)) == []
    assert memory.limit(1 << 20) == 1 << 20


def test_the_memory_of_a_process_that_crashed_is_known_for_an_hour(conn: psycopg.Connection) -> None:
    for size in (100, 900):
        call(conn, "hello", "w", None, Jsonb({"memory": size}))
    call(conn, "crashed", "w")
    assert value(conn, "select count(*) from pgqueue.workers") == 0
    assert value(conn, "select max(memory) from pgqueue.worker_memory where worker = 'w'") == 900


async def test_a_worker_alone_has_no_supervisor_and_stores_no_memory_that_grows_old(
    database: Database, conn: psycopg.Connection
) -> None:
    async with working(App(), database.dsn) as worker:
        await wait_until_async(lambda: remembered(conn, worker.config.name) is not None)
        info = value(conn, "select info from pgqueue.workers where name = %s", worker.config.name)
        assert "memory" not in info
        assert "supervisor" not in info


def test_each_heartbeat_brings_the_memory_of_then(conn: psycopg.Connection) -> None:
    call(conn, "hello", "w", None, Jsonb({"memory": 100}))
    assert remembered(conn) == 100
    call(conn, "beat", "w", None, 200)
    assert remembered(conn) == 200
    call(conn, "beat", "w", Jsonb({"jobs": []}), memory=300)
    assert remembered(conn) == 300
    # idle() writes a heartbeat only where the last one is old.
    table(conn, "idle", "w", memory=400)
    assert remembered(conn) == 300
    conn.execute("update pgqueue.heartbeats set at = at - interval '10 s'")
    table(conn, "idle", "w", memory=400)
    assert remembered(conn) == 400
    # Of a client that does not report it.
    call(conn, "beat", "w")
    assert remembered(conn) is None
    call(conn, "beat", "w", memory=-1)
    assert remembered(conn) is None


@pytest.mark.parametrize("odd", [-1, "much", None, 10**30, {"mib": 1}])
def test_an_odd_amount_of_memory_keeps_no_worker_from_starting(conn: psycopg.Connection, odd: object) -> None:
    call(conn, "hello", "w", None, Jsonb({"memory": odd}))
    assert remembered(conn) is None


def test_the_memory_of_this_process_is_what_it_holds() -> None:
    before = memory.reported()
    assert before is not None
    held = bytearray(64 << 20)
    held[::4096] = b"x" * len(held[::4096])
    after = memory.reported()
    assert after is not None
    assert after - before > 48 << 20


def test_the_last_row_of_the_table_of_running_jobs_may_be_taken_by_another_thread() -> None:
    class SeemsFree(list[int]):
        def __bool__(self) -> bool:
            return True

    rows = running_jobs.create(1)
    jobs = RunningJobs(rows)
    positions = jobs.record([(1, 1), (2, 1)])
    assert len(positions) == 1
    assert running_jobs.read(rows) == [(1, 1)]
    jobs._free = SeemsFree()
    assert jobs.record([(3, 1)]) == []
    jobs.clear(positions)
    assert len(jobs.record([(3, 1)])) == 1
    assert running_jobs.read(rows) == [(3, 1)]
    os.close(rows)
