"""The audit: every function of an operator leaves a row, by any caller; none if nothing changed."""

from __future__ import annotations

import psycopg
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, maintain, reserve_one, value
from tests.databases import Database


def actions(conn: psycopg.Connection) -> list[tuple[str, int]]:
    return conn.execute("select action, changed from pgqueue.audit order by n").fetchall()


def test_each_function_of_an_operator_leaves_a_row(conn: psycopg.Connection) -> None:
    jobs = enqueue_many(conn, 12)
    held = reserve_one(conn)
    call(conn, "fail", held.id, held.reservation, Jsonb({}), retry=False)
    call(conn, "schedule", "s", "0 3 * * *", "t")
    for function, arguments in [
        ("cancel", [jobs[1]]), ("retry", [jobs[1]]), ("delete", [jobs[2]]), ("pause_queue", ["q"]),
        ("resume_queue", ["q"]), ("configure_queue", ["q", 5]), ("configure_task", ["t", "q"]),
        ("set_limit", ["queue", "q", 3]), ("drop_limit", ["queue", "q"]), ("pause_schedule", ["s"]),
        ("resume_schedule", ["s"]), ("run_schedule_now", ["s"]), ("unschedule", ["s"]),
    ]:  # fmt: skip
        call(conn, function, *arguments)
    call(conn, "retry_many", job_ids=[held.id])
    call(conn, "kill_many", job_ids=[jobs[3]])
    call(conn, "cancel_many", job_ids=[jobs[4], jobs[5]])
    call(conn, "delete_many", job_ids=[jobs[6]])
    call(conn, "run_now_many", job_ids=[enqueue(conn, delay="1 h")])
    call(conn, "purge_queue", "default")
    found = actions(conn)
    assert [action for action, _ in found] == [
        "schedule", "cancel", "retry", "delete", "pause_queue", "resume_queue", "configure_queue", "configure_task",
        "set_limit", "drop_limit", "pause_schedule", "resume_schedule", "run_schedule_now", "unschedule", "retry_many",
        "kill_many", "cancel_many", "delete_many", "run_now_many", "purge_queue",
    ]  # fmt: skip
    assert dict(found)["cancel_many"] == 2


def test_what_changes_nothing_leaves_no_row(conn: psycopg.Connection) -> None:
    call(conn, "cancel", 17)
    call(conn, "retry", 17)
    call(conn, "delete", 17)
    call(conn, "resume_queue", "q")
    call(conn, "cancel_many", queue="q")
    call(conn, "drop_limit", "queue", "q")
    call(conn, "pause_schedule", "s")
    assert actions(conn) == []


def test_a_row_says_who_and_by_what(conn: psycopg.Connection, database: Database) -> None:
    other = database.connect(application_name="nightly script")
    call(other, "pause_queue", "q")
    with other.transaction():
        other.execute("select set_config('pgqueue.actor', 'alice', true), set_config('pgqueue.via', 'web', true)")
        call(other, "resume_queue", "q")
    role = value(conn, "select session_user::text")
    assert conn.execute("select actor, db_role, via, filter from pgqueue.audit order by n").fetchall() == [
        (role, role, "nightly script", {"queue": "q"}),
        ("alice", role, "web", {"queue": "q"}),
    ]


def test_an_action_that_is_rolled_back_leaves_no_row(conn: psycopg.Connection) -> None:
    with conn.transaction(force_rollback=True):
        call(conn, "pause_queue", "q")
    assert actions(conn) == []


def test_many_ids_are_not_written_down_whole(conn: psycopg.Connection) -> None:
    jobs = enqueue_many(conn, 300)
    call(conn, "cancel_many", job_ids=jobs)
    found = value(conn, "select filter from pgqueue.audit")
    assert len(found["job_ids"]) == 100
    assert found["number_of_job_ids"] == 300


def test_a_change_of_options_shows_what_it_was(conn: psycopg.Connection) -> None:
    call(conn, "configure_queue", "q", weight=3)
    call(conn, "configure_queue", "q", weight=4)
    assert value(conn, "select filter from pgqueue.audit order by n desc limit 1") == {
        "queue": "q", "before": {"weight": 3}, "after": {"weight": 4},
    }  # fmt: skip


def test_rows_are_kept_for_as_long_as_the_setting_says(conn: psycopg.Connection, clock: Clock) -> None:
    conn.execute("update pgqueue.settings set retention_audit = '400 days'")
    call(conn, "pause_queue", "q")
    clock.advance("399 days")
    maintain(conn)
    assert actions(conn) != []
    clock.advance("2 days")
    maintain(conn)
    assert actions(conn) == []
