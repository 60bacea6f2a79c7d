"""Leases: what lapses, what is spared, and who may still do something."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import (
    call,
    column,
    enqueue,
    enqueue_many,
    ids,
    job,
    maintain,
    pairs,
    reserve,
    reserve_one,
    state,
    stats,
    table,
    value,
)
from tests.databases import Database

NOON = "2030-01-01 12:00+00"


@pytest.fixture
def clock(clock: Clock) -> Clock:
    clock.set(NOON)
    return clock


def watch(conn: psycopg.Connection, clock: Clock, seconds: int) -> None:
    """Let time pass under the eyes of housekeeping."""
    maintain(conn)
    for _ in range(seconds):
        clock.advance("1 s")
        maintain(conn)


@pytest.mark.covers("G9", "D2", "D3")
def test_a_worker_that_wakes_after_its_lease_was_taken_can_change_nothing(
    conn: psycopg.Connection, clock: Clock
) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    stopped = reserve_one(conn, "stopped")
    watch(conn, clock, 30)
    taken = reserve_one(conn, "other")
    assert (taken.id, taken.attempt) == (job_id, 1)

    old = stopped.reservation
    assert table(conn, "extend", [job_id], [old]) == []
    assert call(conn, "complete", job_id, old) is False
    assert column(conn, "complete_many", [job_id], [old]) == [job_id]
    assert call(conn, "fail", job_id, old) is None
    assert call(conn, "snooze", job_id, old, "1 s") is False
    assert column(conn, "release", [job_id], [old]) == [job_id]
    assert column(conn, "release_unheld", "stopped") == []
    found = job(conn, job_id)
    assert (found.state, found.reserved_by, found.reservation) == ("executing", "other", taken.reservation)
    assert call(conn, "complete", job_id, taken.reservation) is True


@pytest.mark.covers("D2")
def test_a_lease_that_lapsed_and_was_not_yet_taken_back_is_still_the_workers(
    conn: psycopg.Connection, clock: Clock
) -> None:
    enqueue_many(conn, 2)
    late, later = reserve(conn, 2)
    clock.advance("31 s")
    assert [row.job_id for row in table(conn, "extend", *pairs([late]))] == [late.id]
    assert call(conn, "complete", later.id, later.reservation) is True


@pytest.mark.covers("D3")
def test_with_housekeeping_a_lapsed_lease_is_taken_back_at_once(conn: psycopg.Connection, clock: Clock) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    reserve_one(conn, lease="30 s")
    watch(conn, clock, 29)
    assert state(conn, job_id) == "executing"
    watch(conn, clock, 1)
    assert state(conn, job_id) == "waiting"
    assert stats(conn).housekeeping["rescued"] == 1
    assert stats(conn).housekeeping["prolonged"] == 0


def test_after_a_gap_what_lapsed_gets_one_length_more_and_only_one(conn: psycopg.Connection, clock: Clock) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    held = reserve_one(conn, lease="30 s")
    clock.advance("2 min")  # nobody kept house
    first = maintain(conn)
    assert (first.rescued, first.prolonged) == (0, 1)
    assert job(conn, job_id).lease_expires_at == clock.now() + timedelta(seconds=30)
    watch(conn, clock, 29)
    assert state(conn, job_id) == "executing"

    # The same reservation, a second gap: it has had its length.
    clock.advance("2 min")
    second = maintain(conn)
    assert (second.rescued, second.prolonged) == (1, 0)
    assert state(conn, job_id) == "waiting"

    # A new reservation is spared anew.
    again = reserve_one(conn, lease="30 s")
    assert again.reservation != held.reservation
    clock.advance("2 min")
    assert maintain(conn).prolonged == 1


def test_extending_does_not_earn_a_reservation_a_second_length(conn: psycopg.Connection, clock: Clock) -> None:
    watch(conn, clock, 1)
    enqueue(conn)
    held = reserve_one(conn, lease="30 s")
    clock.advance("2 min")
    assert maintain(conn).prolonged == 1
    assert len(table(conn, "extend", *pairs([held]), "30 s")) == 1
    clock.advance("2 min")
    assert maintain(conn).rescued == 1


def test_a_lease_that_was_running_in_the_gap_and_lapses_after_it_is_spared_as_well(
    conn: psycopg.Connection, clock: Clock
) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    reserve_one(conn, lease="30 s")
    clock.advance("20 s")  # the gap: its worker could not extend at a third of the lease
    assert maintain(conn).prolonged == 0
    watch(conn, clock, 9)
    clock.advance("1 s")
    assert maintain(conn).prolonged == 1
    watch(conn, clock, 29)
    assert state(conn, job_id) == "executing"
    watch(conn, clock, 1)
    assert state(conn, job_id) == "waiting"


def test_a_lease_begun_after_the_gap_is_not_spared(conn: psycopg.Connection, clock: Clock) -> None:
    watch(conn, clock, 1)
    clock.advance("2 min")
    maintain(conn)
    clock.advance("1 s")
    job_id = enqueue(conn)
    reserve_one(conn, lease="10 s")
    watch(conn, clock, 10)
    assert state(conn, job_id) == "waiting"


def test_five_seconds_are_no_gap(conn: psycopg.Connection, clock: Clock) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    reserve_one(conn, lease="4 s")
    clock.advance("5 s")
    maintain(conn)
    assert state(conn, job_id) == "waiting"


def test_rare_callers_of_reserve_are_a_gap_and_each_lease_is_spared_once(
    conn: psycopg.Connection, clock: Clock
) -> None:
    job_ids = enqueue_many(conn, 3)
    reserve(conn, 3, "killed", lease="30 s")
    clock.advance("10 min")
    assert reserve(conn, 3, "other") == []
    clock.advance("10 min")
    assert sorted(ids(reserve(conn, 3, "other"))) == job_ids


def test_a_completion_held_open_costs_its_worker_no_other_lease_and_stops_no_housekeeping(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    watch(conn, clock, 1)
    enqueue_many(conn, 101)
    held = reserve(conn, 101, "w", lease="30 s")
    handlers_own, others = held[50], held[:50] + held[51:]
    handler = database.connect(autocommit=False)
    assert call(handler, "complete", handlers_own.id, handlers_own.reservation) is True
    conn.execute("set statement_timeout = '5s'")

    # Two lease lengths; the worker extends at a third, all of its leases in one batch.
    for _ in range(6):
        for _ in range(10):
            clock.advance("1 s")
            assert maintain(conn).ran is True
        extended = table(conn, "extend", *pairs(held), "30 s")
        assert sorted(row.job_id for row in extended) == ids(held)
    expected = dict.fromkeys(ids(others), clock.now() + timedelta(seconds=30))
    assert {row.job_id: row.lease_expires_at for row in extended if row.job_id in expected} == expected
    assert stats(conn).housekeeping["rescued"] == 0
    assert stats(conn).housekeeping["failures"] == {}
    assert reserve(conn, 10, "other") == []

    handler.commit()
    assert state(conn, handlers_own.id) == "succeeded"
    left = table(conn, "extend", *pairs(held), "30 s")
    assert sorted(row.job_id for row in left) == ids(others)
    assert column(conn, "complete_many", *pairs(others)) == []


def test_a_lease_whose_completion_is_rolled_back_late_comes_back_by_itself(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    held = reserve_one(conn, lease="3 s")
    handler = database.connect(autocommit=False)
    call(handler, "complete", job_id, held.reservation)
    watch(conn, clock, 10)
    assert state(conn, job_id) == "executing"
    handler.rollback()
    watch(conn, clock, 1)
    assert ids(reserve(conn, 1, "other")) == [job_id]


def test_a_share_lock_on_the_job_keeps_its_lease_while_the_transaction_lives(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    held = reserve_one(conn, lease="3 s")
    handler = database.connect(autocommit=False)
    handler.execute("select from pgqueue.jobs where id = %s for share", [job_id])
    watch(conn, clock, 10)
    assert [row.job_id for row in table(conn, "extend", *pairs([held]))] == [job_id]
    assert call(handler, "complete", job_id, held.reservation) is True
    handler.commit()
    assert state(conn, job_id) == "succeeded"


def test_release_gives_back_what_it_can_and_leaves_what_somebody_holds(
    database: Database, conn: psycopg.Connection
) -> None:
    enqueue_many(conn, 3)
    held = reserve(conn, 3)
    handler = database.connect(autocommit=False)
    call(handler, "complete", held[1].id, held[1].reservation)
    conn.execute("set statement_timeout = '5s'")
    assert column(conn, "release", *pairs(held)) == []
    assert column(conn, "release_unheld", "w") == []
    assert [state(conn, row.id) for row in held] == ["waiting", "executing", "waiting"]
    handler.commit()
    assert column(conn, "release", *pairs(held)) == ids(held)
    assert value(conn, "select count(*) from pgqueue.history") == 1


def test_of_many_callers_of_maintain_one_does_the_work(database: Database, conn: psycopg.Connection) -> None:
    first, others = database.connect(autocommit=False), [database.connect() for _ in range(5)]
    assert maintain(first).ran is True
    assert [maintain(other).ran for other in others] == [False] * 5
    first.commit()
    assert maintain(others[0]).ran is True
    assert value(conn, "select count(*) from pgqueue.housekeeping") == 2
