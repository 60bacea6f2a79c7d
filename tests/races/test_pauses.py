"""Pauses in forced orders of two sessions: which claims they bind, and that no job is lost when one ends."""

from __future__ import annotations

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, ids, maintain, reserve, state, value
from tests.databases import Database
from tests.facts import wait_until
from tests.sql.test_handoff import Idle

KINDS = [("queue", "default"), ("task", "t"), ("limit_key", "a")]


@pytest.fixture
def other(database: Database) -> psycopg.Connection:
    return database.connect(autocommit=False)


@pytest.mark.parametrize(("kind", "target"), KINDS)
def test_a_claim_after_the_commit_of_a_pause_is_bound_also_in_an_older_transaction(
    conn: psycopg.Connection, other: psycopg.Connection, kind: str, target: str
) -> None:
    first, second = enqueue_many(conn, 2, limit_key="a")
    other.execute("select 1 from pgqueue.jobs limit 1")
    call(conn, "pause", kind, target)
    assert reserve(other, 5) == []
    other.rollback()
    assert reserve(conn, 5) == []
    call(other, "resume", kind, target)
    # It is not resumed before the commit.
    assert reserve(conn, 5) == []
    other.commit()
    wait_until(lambda: ids(reserve(conn, 1)) == [first])
    wait_until(lambda: ids(reserve(conn, 1)) == [second])


@pytest.mark.parametrize(("kind", "target"), KINDS)
def test_an_open_pause_holds_up_no_claim_and_no_other_pause(
    database: Database, conn: psycopg.Connection, other: psycopg.Connection, kind: str, target: str
) -> None:
    job_id = enqueue(conn, limit_key="a")
    call(other, "throttle", kind, target, "1 hour")
    third = database.connect(autocommit=False)
    conn.execute("set lock_timeout = '5s'")
    third.execute("set lock_timeout = '5s'")
    # Two hundred workers that meet a 429 at a moment insert two hundred rows.
    assert call(third, "throttle", kind, target, "1 hour") is True
    assert ids(reserve(conn)) == [job_id]
    third.commit()
    other.commit()
    assert value(conn, "select count(*) from pgqueue.pauses") == 2
    enqueue(conn, limit_key="a")
    assert reserve(conn) == []


@pytest.mark.parametrize(("kind", "target"), KINDS[1:])
def test_jobs_that_an_open_claim_blocks_while_their_pause_ends_come_back(
    conn: psycopg.Connection, other: psycopg.Connection, clock: Clock, kind: str, target: str
) -> None:
    clock.set("2030-01-01 12:00+00")
    job_id = enqueue(conn, limit_key="a")
    call(conn, "pause", kind, target, "2030-01-02 12:00+00")
    assert reserve(other) == []
    assert state(other, job_id) == "blocked"
    call(conn, "resume", kind, target)
    # The note that resume left is read, and finds nothing to release: the claim has not committed.
    maintain(conn)
    assert value(conn, "select count(*) from pgqueue.limit_waits") == 0
    assert state(conn, job_id) == "waiting"
    other.commit()
    assert state(conn, job_id) == "blocked"
    clock.advance("200 ms")
    assert ids(reserve(conn)) == [job_id]


@pytest.mark.parametrize(("kind", "target"), KINDS[1:])
def test_a_check_that_saw_the_pause_does_not_swallow_its_end(
    conn: psycopg.Connection, other: psycopg.Connection, clock: Clock, kind: str, target: str
) -> None:
    clock.set("2030-01-01 12:00+00")
    job_id = enqueue(conn, limit_key="a")
    call(conn, "pause", kind, target)
    assert reserve(conn) == []
    clock.advance("200 ms")
    # Under the lock of the row that it has deleted, it decides to check again in a minute.
    maintain(other)
    call(conn, "resume", kind, target)
    other.commit()
    assert ids(reserve(conn)) == [job_id]


def test_a_throttle_that_is_not_committed_outlives_the_end_of_another(
    conn: psycopg.Connection, other: psycopg.Connection
) -> None:
    enqueue(conn)
    call(conn, "throttle", "task", "t", "10 min")
    call(other, "throttle", "task", "t", "20 min")
    assert call(conn, "resume", "task", "t", "throttle") is True
    other.commit()
    assert reserve(conn) == []


@pytest.mark.parametrize(("kind", "target"), KINDS[:2])
def test_a_pause_between_enqueue_and_commit_keeps_the_job_from_being_handed_off(
    database: Database, conn: psycopg.Connection, other: psycopg.Connection, kind: str, target: str
) -> None:
    idle = Idle(database)
    job_id = enqueue(other)
    call(conn, "pause", kind, target)
    other.commit()
    assert state(conn, job_id) == "waiting"
    assert idle.heard() == ["wake"]
    assert reserve(conn) == []
