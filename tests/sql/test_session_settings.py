"""Settings of a client's session change nothing that the queue computes or stores."""

from __future__ import annotations

import re

import psycopg
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, maintain, reserve_one, steps, value
from tests.databases import Database


def test_a_session_with_another_style_of_dates_leaves_a_cursor_that_others_can_read(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2026-11-23 22:00+00")
    enqueue_many(conn, 3)
    clock.set("2026-11-23 21:00+00")
    cursor = None
    for style in ("German", "SQL, DMY", "ISO, MDY"):
        conn.execute(f"set datestyle = '{style}'".encode())
        cursor = value(conn, "select pgqueue._bring_forward('2026-11-23 22:00+00', 1, %s::text[])", cursor)
        assert cursor is not None
    assert value(conn, "select count(*) from pgqueue.jobs where ready_at < '2026-11-23 21:01+00'") == 3


def test_jobs_of_a_queue_that_becomes_fair_get_their_lanes_whatever_the_style_of_dates(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2026-11-23 22:00+00")
    for tenant in "abc":
        enqueue(conn, limit_key=tenant)
    call(conn, "configure_queue", "default", fair_by="limit_key")
    cursor = None
    for style in ("German", "SQL, DMY", "ISO, MDY"):
        conn.execute(f"set datestyle = '{style}'".encode())
        row = conn.execute("select moved, next_cursor from pgqueue._move_to_lanes(1, %s::text[])", [cursor]).fetchone()
        assert row is not None
        moved, cursor = row
        assert moved == 1
        assert cursor is not None


def test_backslashes_in_literals_may_escape(database: Database) -> None:
    conn = database.connect(options="-c standard_conforming_strings=off -c escape_string_warning=off")
    assert call(conn, "cron_next", "*/5 * * * *", "2026-01-01 00:01+00").minute == 5
    job_id = enqueue(conn, "a_b", queue="x%y")
    assert call(conn, "search", Jsonb({"tasks": ["a_*"], "queues": ["x%y"]})) == [job_id]
    assert not call(conn, "search", Jsonb({"tasks": ["a\\*"]}))
    maintain(conn)
    assert steps(conn)["partitions"].error is None
    held = reserve_one(conn)
    call(conn, "fail", held.id, held.reservation, retry=False)
    conn.execute("select * from pgqueue.dead_groups(queue => %s)", ["x%y"])
    assert call(conn, "cron_next", "0  0 * sep sun", "2026-01-01 00:00+00").month == 9
    line = "db-1.example.com:5432 refused job abc-17 "
    assert value(conn, "select pgqueue._fingerprint(%s)", line) == "<host> refused job <id> "
    assert value(conn, "select pgqueue._shell_quoted('a,b', true)") == "'a,b,1'"


def test_no_body_has_a_backslash_in_a_literal_that_a_setting_changes(conn: psycopg.Connection) -> None:
    # In this order: a comment, E'...', $x$...$x$, and '...', which is the one that standard_conforming_strings changes.
    token = re.compile(r"--[^\n]*|\b[eE]'(?:[^'\\]|\\.|'')*'|\$(\w*)\$.*?\$\1\$|('(?:[^']|'')*')", re.DOTALL)
    bodies = conn.execute(
        "select p.proname, p.prosrc from pg_proc p where p.pronamespace = 'pgqueue'::regnamespace order by 1"
    ).fetchall()
    found = [(name, each[2]) for name, body in bodies for each in token.finditer(body) if "\\" in (each[2] or "")]
    assert found == []
