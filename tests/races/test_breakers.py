"""Breakers in forced orders of two sessions."""

from __future__ import annotations

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import call, enqueue_many, maintain, reserve, value
from tests.databases import Database


@pytest.fixture
def other(database: Database) -> psycopg.Connection:
    return database.connect(autocommit=False)


@pytest.fixture
def clock(clock: Clock) -> Clock:
    clock.set("2030-01-01 12:00+00")
    return clock


def test_an_end_waits_for_no_other_end_of_its_breaker_and_the_next_one_decides(
    conn: psycopg.Connection, other: psycopg.Connection, clock: Clock
) -> None:
    call(conn, "set_breaker", "task", "t", of=2)
    enqueue_many(conn, 4)
    one, two, three, _ = reserve(conn, 4, lease="1 day")
    conn.execute("set lock_timeout = '5s'")
    call(other, "fail", one.id, one.reservation, retry_in="1 day")
    # The first end is not committed: it counts for nobody yet, and holds the lock.
    call(conn, "fail", two.id, two.reservation, retry_in="1 day")
    assert value(conn, "select count(*) from pgqueue.pauses") == 0
    other.commit()
    call(conn, "fail", three.id, three.reservation, retry_in="1 day")
    assert value(conn, "select count(*) from pgqueue.pauses where source = 'breaker'") == 1


def test_two_claims_at_a_time_start_one_probe(
    conn: psycopg.Connection, other: psycopg.Connection, clock: Clock
) -> None:
    call(conn, "set_breaker", "task", "t", of=1)
    enqueue_many(conn, 6)
    [first] = reserve(conn, 1)
    call(conn, "fail", first.id, first.reservation, retry_in="1 day")
    clock.advance("30 s")
    assert len(reserve(other, 3, lease="1 day")) == 1
    assert reserve(conn, 3) == []
    other.commit()
    assert reserve(conn, 3) == []
    other.rollback()
    clock.advance("2 s")
    assert reserve(conn, 3) == []


def test_an_attempt_that_ends_while_another_one_reopens_its_breaker_does_not_close_it(
    conn: psycopg.Connection, other: psycopg.Connection, clock: Clock
) -> None:
    call(conn, "set_breaker", "task", "t", of=1, pause="1 min")
    enqueue_many(conn, 6)
    [first] = reserve(conn, 1)
    call(conn, "fail", first.id, first.reservation, retry_in="1 day")
    clock.advance("1 min")
    [slow] = reserve(conn, 1, lease="1 day")
    clock.advance("61 s")
    [probe] = reserve(conn, 1, lease="1 day") or reserve(conn, 1, lease="1 day")
    call(other, "fail", probe.id, probe.reservation, retry_in="1 day")
    assert call(conn, "complete", slow.id, slow.reservation) is True
    other.commit()
    assert value(conn, "select half_open_at - at = '2 min' from pgqueue.pauses where source = 'breaker'") is True


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_probe_ends_beside_an_open_call_that_resumes_what_its_breaker_stopped(
    conn: psycopg.Connection, other: psycopg.Connection, clock: Clock, is_committed: bool
) -> None:
    call(conn, "set_breaker", "task", "t", of=1, pause="1 min")
    enqueue_many(conn, 3)
    [first] = reserve(conn, 1)
    call(conn, "fail", first.id, first.reservation, retry_in="1 day")
    clock.advance("1 min")
    [probe] = reserve(conn, 1, lease="1 day")
    assert call(other, "resume", "task", "t", "breaker") is True
    conn.execute("set statement_timeout = '20s'")
    assert call(conn, "complete", probe.id, probe.reservation) is True
    if is_committed:
        other.commit()
    else:
        other.rollback()
        # It is half-open still, and the next probe closes it.
        assert value(conn, "select count(*) from pgqueue.pauses") == 1
        [second] = reserve(conn, 1, lease="1 day")
        assert call(conn, "complete", second.id, second.reservation) is True
    assert value(conn, "select count(*) from pgqueue.pauses") == 0


def test_a_breaker_that_is_removed_while_it_opens_is_not_half_open_for_ever(
    conn: psycopg.Connection, other: psycopg.Connection, clock: Clock
) -> None:
    call(conn, "set_breaker", "task", "t", of=1)
    enqueue_many(conn, 6)
    [first] = reserve(conn, 1)
    call(other, "fail", first.id, first.reservation, retry_in="1 day")
    assert call(conn, "remove_breaker", "task", "t") is True
    other.commit()
    assert value(conn, "select source from pgqueue.pauses") == "breaker"
    for _ in range(3):
        clock.advance("1 min")
        maintain(conn)
    assert value(conn, "select count(*) from pgqueue.pauses") == 0
    assert len(reserve(conn, 3, lease="1 day") + reserve(conn, 3, lease="1 day")) == 5
