"""What other sessions do between an enqueue and its commit, which decides whether the job is handed over."""

from __future__ import annotations

import psycopg
import pytest

from tests.calls import call, enqueue, ids, reserve, value
from tests.databases import Database
from tests.facts import wait_until
from tests.sql.test_handoff import Idle


@pytest.mark.parametrize("what", ["pause", "limit", "awake", "listener ends", "idle"])
def test_what_changed_between_enqueue_and_commit_counts(
    what: str, database: Database, conn: psycopg.Connection
) -> None:
    idle = Idle(database) if what != "idle" else None
    producer = database.connect(autocommit=False)
    job_id = enqueue(producer)
    if what == "pause":
        call(conn, "pause_queue", "default")
    elif what == "limit":
        call(conn, "set_limit", "queue", "default", max_executing=0)
    elif what == "awake":
        call(conn, "awake", "w")
    elif what == "listener ends":
        assert idle is not None
        pid = idle.conn.info.backend_pid
        idle.conn.close()
        wait_until(lambda: value(conn, "select not exists (select from pg_stat_activity where pid = %s)", pid))
    else:
        idle = Idle(database)
    producer.commit()
    assert value(conn, "select state from pgqueue.jobs where id = %s", job_id) == "waiting"
    if what in ("awake", "idle"):
        # It polls before it sleeps.
        assert idle is not None
        assert (idle.heard(), ids(reserve(conn, 1, "w"))) == ([], [job_id])


def test_another_worker_became_idle_meanwhile_and_gets_it(database: Database, conn: psycopg.Connection) -> None:
    first = Idle(database, "a")
    producer = database.connect(autocommit=False)
    job_id = enqueue(producer)
    call(conn, "awake", "a")
    second = Idle(database, "b")
    producer.commit()
    assert (first.heard(), [row.id for row in second.handed()]) == ([], [job_id])


def test_two_commits_at_once_do_not_wait_for_each_other(database: Database) -> None:
    idle = Idle(database)
    first, second = database.connect(autocommit=False), database.connect(autocommit=False)
    made = {enqueue(first), enqueue(second)}
    second.commit()
    first.commit()
    assert {row.id for row in idle.handed()} == made
