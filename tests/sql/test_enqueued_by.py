"""Who enqueued a job: the role that was logged in, and its application."""

from __future__ import annotations

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import call, enqueue, maintain, reserve_one, value
from tests.databases import Database

WAYS = {
    "enqueue": "select pgqueue.enqueue('t')",
    "enqueue with options": "select pgqueue.enqueue('t', queue => 'q')",
    "enqueue with dedupe": "select pgqueue.enqueue('t', dedupe => 'd')",
    "enqueue_many": "select pgqueue.enqueue_many('t', array['{}']::jsonb[])",
    "enqueue_outcome": "select pgqueue.enqueue_outcome('t')",
    "enqueue_batch": """select pgqueue.enqueue_batch(array['{"task": "t"}']::jsonb[])""",
    "enqueue_staged": "select pgqueue.stage(); insert into pgqueue_staged (task) values ('t');"
    " select pgqueue.enqueue_staged()",
    "enqueue_staged with tags": "select pgqueue.stage(); insert into pgqueue_staged (task, tags) values ('t', '{a}');"
    " select pgqueue.enqueue_staged()",
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_enqueue_writes_role_and_application(way: str, database: Database) -> None:
    own = database.connect(application_name="web of the shop")
    with own.transaction():
        own.execute(WAYS[way].encode())
    role = value(own, "select session_user::text")
    assert value(own, "select enqueued_by from pgqueue.all_jobs") == f"{role} web of the shop"


def test_without_an_application_name_it_is_the_role(conn: psycopg.Connection) -> None:
    conn.execute("set application_name = ''")
    enqueue(conn)
    assert value(conn, "select enqueued_by = session_user from pgqueue.all_jobs") is True


def test_the_role_is_the_one_that_logged_in_whatever_rights_it_has_taken(database: Database) -> None:
    own = database.connect(application_name="web")
    role = value(own, "select session_user::text")
    own.execute("begin; create role pgqueue_test_other; grant all on schema pgqueue to pgqueue_test_other")
    own.execute("grant execute on all functions in schema pgqueue to pgqueue_test_other; set role pgqueue_test_other")
    own.execute("select pgqueue.enqueue('t')")
    own.execute("reset role")
    assert value(own, "select enqueued_by from pgqueue.jobs") == f"{role} web"
    own.execute("rollback")


def test_it_goes_with_the_job_into_history_and_back(database: Database, conn: psycopg.Connection) -> None:
    own = database.connect(application_name="web")
    job_id = enqueue(own)
    conn.execute("set application_name = 'worker'")
    before = value(conn, "select enqueued_by from pgqueue.jobs")
    assert before.endswith(" web")
    call(conn, "cancel", job_id)
    assert value(conn, "select enqueued_by from pgqueue.history") == before
    call(conn, "retry", job_id)
    assert value(conn, "select enqueued_by from pgqueue.jobs") == before
    call(conn, "complete", job_id, reserve_one(conn).reservation)
    assert value(conn, "select enqueued_by from pgqueue.history where state = 'succeeded'") == before


def test_a_scheduled_job_names_its_schedule(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set("2030-01-07 00:00:30+00")
    call(conn, "schedule", "nightly", None, "t", every="1 minute")
    clock.advance("1 minute")
    maintain(conn)
    assert value(conn, "select enqueued_by from pgqueue.jobs") == "schedule nightly"
    conn.execute("delete from pgqueue.jobs")
    call(conn, "run_schedule_now", "nightly")
    assert value(conn, "select enqueued_by = pgqueue._enqueued_by() from pgqueue.jobs") is True


def test_the_default_of_the_column_says_what_the_function_says(conn: psycopg.Connection) -> None:
    for name in ("", "a", "two words", " led by a space"):
        conn.execute("select set_config('application_name', %s, false)", [name])
        enqueue(conn)
        found = value(conn, "select enqueued_by from pgqueue.jobs order by id desc limit 1")
        assert found == value(conn, "select pgqueue._enqueued_by()")
