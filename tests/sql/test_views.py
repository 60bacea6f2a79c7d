"""worker_status and manual, for people."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, enqueue_many, reserve


def status(conn: psycopg.Connection) -> dict[str, tuple[Any, ...]]:
    rows = conn.execute("select worker, is_alive, executing, lapsed from pgqueue.worker_status").fetchall()
    return {row[0]: row[1:] for row in rows}


def test_a_worker_is_alive_while_its_heartbeats_come(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    call(conn, "hello", "quick")
    call(conn, "hello", "slow", None, Jsonb({"heartbeat": 60}))
    call(conn, "hello", "odd", None, Jsonb({"heartbeat": "often"}))
    clock.advance("14 s")
    assert status(conn) == {"quick": (True, 0, 0), "slow": (True, 0, 0), "odd": (True, 0, 0)}
    clock.advance("2 s")
    assert status(conn) == {"quick": (False, 0, 0), "slow": (True, 0, 0), "odd": (False, 0, 0)}
    clock.advance("50 s")
    assert status(conn)["slow"] == (False, 0, 0)


def test_a_worker_that_is_gone_shows_with_its_jobs_and_their_lapsed_leases(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2030-01-01 12:00+00")
    enqueue_many(conn, 5)
    call(conn, "hello", "here")
    reserve(conn, 2, worker="here", lease="1 hour")
    reserve(conn, 3, worker="gone", lease="30 s")
    clock.advance("10 s")
    assert status(conn) == {"here": (True, 2, 0), "gone": (False, 3, 0)}
    clock.advance("21 s")
    assert status(conn)["gone"] == (False, 3, 3)


def test_the_manual_has_a_line_for_each_public_function(conn: psycopg.Connection) -> None:
    rows = conn.execute("select name, arguments, what_it_does, example, who_may from pgqueue.manual").fetchall()
    manual = {row[0]: row[1:] for row in rows}
    public = conn.execute(
        "select proname from pg_proc where pronamespace = 'pgqueue'::regnamespace and proname !~ '^_'"
    ).fetchall()
    assert {*manual} == {name for (name,) in public}
    assert not [name for name, (_, what, _, _) in manual.items() if not what]
    arguments, what, example, who_may = manual["enqueue"]
    assert "delay interval DEFAULT NULL" in arguments
    assert what.startswith("Enqueue")
    assert example is not None
    assert who_may == ["producer", "operator"]
    assert manual["grant_access"][3] == []


def test_the_examples_of_the_manual_are_statements(conn: psycopg.Connection) -> None:
    for (example,) in conn.execute("select example from pgqueue.manual where example is not null").fetchall():
        # Parsed, not run.
        conn.execute(f"prepare example as {example}".encode())
        conn.execute("deallocate example")
