"""release, where another session has locked the row."""

from __future__ import annotations

import psycopg
import pytest

from tests.calls import column, enqueue_many, pairs, reserve, state
from tests.databases import Database


def test_release_waits_for_a_lock_that_is_soon_gone(database: Database, conn: psycopg.Connection) -> None:
    enqueue_many(conn, 2)
    held = reserve(conn, 2)
    other, releasing = database.session(), database.session()
    # Half a second may be over before a slow machine has seen it wait.
    for _ in range(20):
        other.run("begin")
        other.run("select from pgqueue.jobs where id = %s for update", (held[0].id,))
        answer = releasing.start("select * from pgqueue.release(%s, %s)", pairs(held))
        has_waited = releasing.waits_behind(other)
        other.run("rollback")
        try:
            assert answer.result(10) == []
        except psycopg.errors.LockNotAvailable:
            continue
        assert [state(conn, row.id) for row in held] == ["waiting", "waiting"]
        if has_waited:
            return
        held = reserve(conn, 2)
    raise AssertionError("it never waited")


def test_release_refuses_behind_a_lock_that_stays(database: Database, conn: psycopg.Connection) -> None:
    # A row that it left out without a word would be executing until its lease lapses, and held by no worker.
    enqueue_many(conn, 2)
    held = reserve(conn, 2)
    other = database.session()
    other.run("begin")
    other.run("select from pgqueue.jobs where id = %s for update", (held[0].id,))
    with pytest.raises(psycopg.errors.LockNotAvailable):
        column(conn, "release", *pairs(held))
    assert [state(conn, row.id) for row in held] == ["executing", "executing"]
    assert column(conn, "release", *pairs(held[1:])) == []
    assert state(conn, held[1].id) == "waiting"
