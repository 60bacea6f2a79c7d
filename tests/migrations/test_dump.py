"""A dump that is restored elsewhere, where transactions count from another number: what waits for others goes on."""

from __future__ import annotations

import subprocess
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue import embedded
from pgqueue.testing import Clock
from tests.calls import call, enqueue, job, maintain, reserve, reserve_one, state, table, value
from tests.databases import Cloner, Database

# The packages of npm, which the tests by version run on, hold no pg_dump.
pytestmark = pytest.mark.skipif(
    not embedded.available() or not (embedded.binaries() / "pg_dump").exists(),
    reason="there is no pg_dump beside the server",
)


def restored(cloner: Cloner, database: Database) -> psycopg.Connection:
    """A copy of the database, made by pg_dump and psql. Its xids seem to be of the far future, as in a new cluster."""
    programs = embedded.binaries()
    other = cloner.empty()
    dump = subprocess.run(
        [programs / "pg_dump", "--no-owner", f"--dbname={database.dsn}"], capture_output=True, text=True, check=True
    )
    subprocess.run(
        [programs / "psql", "--quiet", "--set=ON_ERROR_STOP=1", f"--dbname={other.dsn}"],
        input=dump.stdout,
        capture_output=True,
        text=True,
        check=True,
    )
    conn = other.connect()
    conn.execute("update pgqueue.notes set xid = (xid::text::bigint + 1000000000)::text::xid8")
    return conn


def settle(conn: psycopg.Connection, clock: Clock) -> None:
    for _ in range(4):
        maintain(conn)
        clock.advance("1 s")


def test_what_waits_goes_on_in_a_restored_dump(cloner: Cloner, database: Database, conn: psycopg.Connection) -> None:
    # Children: one that is settled, and one whose note nobody has read.
    parents = [enqueue(conn, "parent") for _ in range(2)]
    child = enqueue(conn, "child", depends_on=parents)
    # A group with a member in hand, a nested one, and a callback.
    group = call(conn, "open_group", "g")
    inner = call(conn, "open_group", "inner", group_id=group)
    members = [enqueue(conn, "member", group_id=group), enqueue(conn, "member", group_id=inner)]
    for each in (inner, group):
        call(conn, "close_group", each)
    then = enqueue(conn, "then", depends_on=[group])
    # Steps, a sleep, and an event: one that is waited for, and one that came early.
    story = enqueue(conn, "story", queue="stories")
    held = reserve_one(conn, queues=["stories"])
    call(conn, "complete_step", held.id, held.reservation, "first", Jsonb(7))
    assert table(conn, "await_event", held.id, held.reservation, "paid", "paid")[0].arrived is None
    call(conn, "emit_event", "early", Jsonb(1))
    maintain(conn)
    late = enqueue(conn, "child", depends_on=[parents[1]], run_if="finished")

    other = restored(cloner, database)
    clock = Clock(other)
    settle(other, clock)
    assert [state(other, each) for each in (child, late, then)] == ["blocked"] * 3
    for row in reserve(other, 10, queues=["default"]):
        call(other, "complete", row.id, row.reservation)
    settle(other, clock)
    assert job(other, group).result == {"succeeded": 2, "dead": 0, "cancelled": 0}
    assert [state(other, each) for each in (*members, inner)] == ["succeeded"] * 3
    assert {row.id for row in reserve(other, 10, queues=["default"])} == {child, late, then}
    call(other, "emit_event", "paid", Jsonb(5))
    again = reserve_one(other, queues=["stories"])
    assert again.id == story
    assert next((row.name, row.result) for row in table(other, "steps", story)) == ("first", 7)
    assert _event(other, again, "paid") == (True, 5)
    assert _event(other, again, "early") == (True, 1)
    assert call(other, "complete", again.id, again.reservation)
    assert value(other, "select max(unblocked) from pgqueue.maintenance_runs") == 0
    assert value(other, "select count(*) from pgqueue.dependencies") == 0


def _event(conn: psycopg.Connection, held: Any, event: str) -> tuple[bool, Any]:
    [row] = table(conn, "await_event", held.id, held.reservation, event, event)
    return row.arrived, row.payload
