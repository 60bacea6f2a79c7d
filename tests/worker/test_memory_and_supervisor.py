"""What a worker reports of its process: its memory, with each heartbeat, and its supervisor."""

from __future__ import annotations

import signal
from pathlib import Path

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue import App
from pgqueue.worker.process import memory
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
