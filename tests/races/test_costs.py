"""Buckets of units in forced orders of two sessions: no unit is given out twice, and none is lost."""

from __future__ import annotations

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import call, column, enqueue, ids, maintain, pairs, reserve, reserve_one, value
from tests.databases import Database
from tests.facts import wait_until


@pytest.fixture
def other(database: Database) -> psycopg.Connection:
    return database.connect(autocommit=False)


@pytest.fixture
def clock(conn: psycopg.Connection, clock: Clock) -> Clock:
    """A bucket of 100 units, into which one comes in a second."""
    clock.set("2030-01-01 12:00+00")
    call(conn, "set_limit", "task", "t", rate=60, per="1 min", burst=100)
    conn.execute("set lock_timeout = '5s'")
    return clock


def _claim(conn: psycopg.Connection, clock: Clock) -> list[int]:
    """Claim all that may start; what comes back from a limit is due some microseconds later."""
    clock.advance("1 ms")
    found = ids(reserve(conn, 10, lease="1 day"))
    clock.advance("1 ms")
    return found + ids(reserve(conn, 10, lease="1 day"))


@pytest.mark.parametrize("is_committed", [True, False])
def test_two_claims_at_a_time_take_no_unit_twice(
    conn: psycopg.Connection, other: psycopg.Connection, clock: Clock, is_committed: bool
) -> None:
    first, second = enqueue(conn, cost=60), enqueue(conn, cost=60)
    assert ids(reserve(other, 1, "v", lease="1 day")) == [first]
    # The bucket has 100 units here, and is locked: neither does this claim wait, nor does it take from it.
    assert reserve(conn, 10) == []
    if not is_committed:
        other.rollback()
        clock.advance("2 s")
        assert _claim(conn, clock) == [first]
        return
    other.commit()
    clock.advance("19 s")
    assert _claim(conn, clock) == []
    clock.advance("2 s")
    assert _claim(conn, clock) == [second]


def test_what_is_spent_while_a_claim_is_open_waits_for_nothing_and_is_not_lost(
    conn: psycopg.Connection, other: psycopg.Connection, clock: Clock
) -> None:
    enqueue(conn, cost=10)
    held = reserve_one(conn, lease="1 day")
    [taken, after] = [enqueue(conn, cost=40), enqueue(conn, cost=1)]
    assert ids(reserve(other, 1, "v", lease="1 day")) == [taken]
    # 50 units are left in the bucket, and this takes 70 more: the claim does not see it.
    assert call(conn, "spent", held.id, held.reservation, 80) is True
    assert column(conn, "complete_many", *pairs([held])) == []
    other.commit()
    # 20 below zero; what has come in meanwhile is less than a unit.
    clock.advance("20 s")
    assert _claim(conn, clock) == []
    clock.advance("2 s")
    assert _claim(conn, clock) == [after]


def test_what_is_spent_and_not_committed_counts_from_its_commit_on(
    conn: psycopg.Connection, other: psycopg.Connection, clock: Clock
) -> None:
    enqueue(conn, cost=10)
    held = reserve_one(conn, lease="1 day")
    assert call(other, "spent", held.id, held.reservation, 100) is True
    enqueue(conn, cost=90)
    # The claim writes the level anew, without what it cannot see.
    assert len(_claim(conn, clock)) == 1
    maintain(conn)
    other.commit()
    after = enqueue(conn, cost=1)
    clock.advance("90 s")
    assert _claim(conn, clock) == []
    clock.advance("2 s")
    assert _claim(conn, clock) == [after]
    assert value(conn, "select count(*) from pgqueue.limit_levels where name = 'task:t'") == 1


def test_a_call_that_is_repeated_while_the_first_is_being_committed_counts_once(
    conn: psycopg.Connection, other: psycopg.Connection, clock: Clock
) -> None:
    enqueue(conn, cost=10)
    held = reserve_one(conn, lease="1 day")
    # The worker has lost its connection, and asks again over another one.
    assert call(other, "spent", held.id, held.reservation, 60) is True
    assert call(conn, "spent", held.id, held.reservation, 60) is True
    other.commit()
    assert call(conn, "spent", held.id, held.reservation, 60) is True
    # 40 units are left of 100.
    fits = enqueue(conn, cost=40)
    assert _claim(conn, clock) == [fits]
    enqueue(conn, cost=1)
    assert _claim(conn, clock) == []


def test_units_that_are_given_back_twice_at_a_time_fill_the_bucket_once_each(
    conn: psycopg.Connection, other: psycopg.Connection, clock: Clock
) -> None:
    jobs = [enqueue(conn, cost=50), enqueue(conn, cost=50)]
    held = reserve(conn, 10, lease="1 day")
    assert ids(held) == jobs
    last = enqueue(conn, cost=70)
    assert call(conn, "spent", held[0].id, held[0].reservation, 10) is True
    assert call(other, "spent", held[1].id, held[1].reservation, 10) is True
    # 40 units came back, and 40 more are not committed.
    assert _claim(conn, clock) == []
    other.commit()
    clock.advance("1 s")
    assert _claim(conn, clock) == [last]


def test_a_part_that_one_operator_adds_while_another_drops_one_stays(
    database: Database, conn: psycopg.Connection
) -> None:
    call(conn, "set_limit", "task", "t", rate=1, per="1 s")
    adding, dropping = database.session(), database.session()
    adding.run("begin")
    adding.run("select pgqueue.set_limit('task', 't', max_executing => 5)")
    dropped = dropping.start("select pgqueue.drop_limit('task', 't', 'rate')")
    wait_until(lambda: dropping.waits_behind(adding))
    adding.run("commit")
    assert dropped.result(10) == [(True,)]
    assert conn.execute("select max_executing, rate from pgqueue.limits").fetchall() == [(5, None)]
