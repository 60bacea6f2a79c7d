"""A handler's own transaction: complete and fail at every isolation level, and its effects exactly once."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, column, enqueue, job, maintain, reserve_one, state, steps, table, value
from tests.databases import Database

pytestmark = pytest.mark.covers("A5")

LEVELS = ["read committed", "repeatable read", "serializable"]


@pytest.fixture(params=LEVELS)
def handler(request: pytest.FixtureRequest, database: Database) -> psycopg.Connection:
    """A connection whose next transaction has the level."""
    conn = database.connect(autocommit=False)
    conn.execute("create table effects (job_id bigint)")
    conn.commit()
    conn.execute(f"set transaction isolation level {request.param}".encode())
    return conn


def test_a_completion_and_the_handlers_own_writes_are_committed_together(
    conn: psycopg.Connection, handler: psycopg.Connection
) -> None:
    job_id = enqueue(conn)
    held = reserve_one(conn)
    value(handler, "select count(*) from effects")  # its snapshot
    handler.execute("insert into effects values (%s)", [job_id])
    assert call(handler, "complete", job_id, held.reservation) is True
    assert state(conn, job_id) == "executing"
    handler.commit()
    assert state(conn, job_id) == "succeeded"
    assert value(conn, "select count(*) from effects") == 1


def test_a_completion_that_is_rolled_back_leaves_the_job_and_no_effects(
    conn: psycopg.Connection, handler: psycopg.Connection
) -> None:
    job_id = enqueue(conn)
    held = reserve_one(conn)
    handler.execute("insert into effects values (%s)", [job_id])
    assert call(handler, "complete", job_id, held.reservation) is True
    handler.rollback()
    assert state(conn, job_id) == "executing"
    assert value(conn, "select count(*) from effects") == 0
    assert call(conn, "fail", job_id, held.reservation) == "failed"


def test_a_failure_may_be_reported_at_every_isolation_level(
    conn: psycopg.Connection, handler: psycopg.Connection
) -> None:
    job_id = enqueue(conn, max_attempts=2)
    held = reserve_one(conn)
    assert call(handler, "fail", job_id, held.reservation, retry_in="0") == "failed"
    handler.commit()
    held = reserve_one(conn)
    assert call(handler, "fail", job_id, held.reservation) == "dead"
    handler.commit()
    assert job(conn, job_id).attempts == 2


def test_a_batch_may_be_completed_at_every_level(conn: psycopg.Connection, handler: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    held = reserve_one(conn)
    assert column(handler, "complete_many", [job_id, job_id + 1], [held.reservation, 1]) == [job_id + 1]
    handler.commit()
    assert state(conn, job_id) == "succeeded"


@pytest.mark.partitions
@pytest.mark.usefixtures("functions_wait_for_a_minute")
def test_a_missing_partition_is_attached_at_every_level(
    conn: psycopg.Connection, handler: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2030-01-01 12:00+00")
    job_id = enqueue(conn)
    held = reserve_one(conn)
    value(handler, "select count(*) from effects")
    assert call(handler, "complete", job_id, held.reservation) is True
    handler.commit()
    assert state(conn, job_id) == "succeeded"


def test_a_handler_whose_lease_was_lost_commits_nothing(
    conn: psycopg.Connection, handler: psycopg.Connection, clock: Clock
) -> None:
    clock.set(clock.now())
    job_id = enqueue(conn)
    held = reserve_one(conn, lease="2 s")
    for _ in range(4):
        maintain(conn)
        clock.advance("1 s")
    assert reserve_one(conn, "other").id == job_id
    handler.execute("insert into effects values (%s)", [job_id])
    assert call(handler, "complete", job_id, held.reservation) is False
    handler.rollback()
    assert job(conn, job_id).reserved_by == "other"
    assert value(conn, "select count(*) from effects") == 0


def test_a_lease_lost_after_the_handlers_snapshot_is_never_completed(
    conn: psycopg.Connection, handler: psycopg.Connection
) -> None:
    job_id = enqueue(conn)
    held = reserve_one(conn)
    level = value(handler, "select current_setting('transaction_isolation') from (select count(*) from effects) e")
    call(conn, "release", [job_id], [held.reservation])
    other = reserve_one(conn, "other")
    if level == "read committed":
        assert call(handler, "complete", job_id, held.reservation) is False
    else:
        # There PostgreSQL refuses a row that changed since the snapshot.
        with pytest.raises(psycopg.errors.SerializationFailure):
            call(handler, "complete", job_id, held.reservation)
    handler.rollback()
    assert job(conn, job_id).reservation == other.reservation


@pytest.mark.parametrize("end", ["complete", "fail"])
def test_steps_that_the_end_could_not_see_go_to_history_too(
    end: str, conn: psycopg.Connection, handler: psycopg.Connection
) -> None:
    job_id = enqueue(conn, max_attempts=1)
    held = reserve_one(conn)
    call(conn, "complete_step", job_id, held.reservation, "first", Jsonb(1))
    value(handler, "select count(*) from effects")  # its snapshot
    call(conn, "complete_step", job_id, held.reservation, "second", Jsonb(2))
    call(handler, end, job_id, held.reservation)
    handler.commit()
    maintain(conn)
    assert value(conn, "select count(*) from pgqueue.steps") == 0
    kept = value(conn, "select steps from pgqueue.history where id = %s", job_id)
    assert [step["name"] for step in kept] == ["first", "second"]
    assert [step.get("result") for step in kept] == ([None, None] if end == "complete" else [1, 2])


def test_a_job_that_is_retried_before_its_steps_have_moved_keeps_them(
    conn: psycopg.Connection, handler: psycopg.Connection
) -> None:
    job_id = enqueue(conn, max_attempts=1)
    held = reserve_one(conn)
    call(conn, "complete_step", job_id, held.reservation, "look", Jsonb(0))
    value(handler, "select count(*) from effects")  # its snapshot
    call(conn, "complete_step", job_id, held.reservation, "charge", Jsonb(1))
    call(handler, "fail", job_id, held.reservation)
    handler.commit()
    call(conn, "retry", job_id)
    maintain(conn)
    assert [(row.name, row.result) for row in table(conn, "steps", job_id)] == [("look", 0), ("charge", 1)]


def test_steps_of_a_job_whose_retry_is_not_committed_are_left_to_it(
    database: Database, conn: psycopg.Connection, handler: psycopg.Connection, clock: Clock
) -> None:
    job_id = enqueue(conn, max_attempts=1)
    held = reserve_one(conn)
    call(conn, "complete_step", job_id, held.reservation, "look", Jsonb(0))
    value(handler, "select count(*) from effects")  # its snapshot
    call(conn, "complete_step", job_id, held.reservation, "charge", Jsonb(1))
    call(handler, "fail", job_id, held.reservation)
    handler.commit()
    operator = database.connect(autocommit=False)
    call(operator, "retry", job_id)
    conn.execute("set lock_timeout = '1s'")
    maintain(conn)
    # It did not wait for the retry.
    assert steps(conn)["notes"].error is None
    operator.commit()
    clock.advance("2 s")
    maintain(conn)
    assert [(row.name, row.result) for row in table(conn, "steps", job_id)] == [("look", 0), ("charge", 1)]
    assert value(conn, "select count(*) from pgqueue.notes") == 0
