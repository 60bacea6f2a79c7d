"""declare_task, where another session changes the options of the task."""

from __future__ import annotations

import psycopg

from tests.calls import call, value
from tests.databases import Database


def test_a_worker_that_declares_the_same_again_waits_for_no_operator(
    database: Database, conn: psycopg.Connection
) -> None:
    assert call(conn, "declare_task", "t", priority=5, docs="https://example.org/t") is True
    operator = database.session()
    operator.run("begin")
    operator.run("select pgqueue.configure_task('t', priority => 9)")
    conn.execute("set lock_timeout = '1s'")
    assert call(conn, "declare_task", "t", priority=5, docs="https://example.org/t") is False
    operator.run("commit")
    assert value(conn, "select priority from pgqueue.effective_tasks where name = 't'") == 9
    assert call(conn, "declare_task", "t", priority=6) is True
    assert value(conn, "select declared_priority from pgqueue.tasks where name = 't'") == 6
