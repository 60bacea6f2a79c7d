"""Which job comes next."""

from __future__ import annotations

import random

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, ids, maintain, pairs, reserve, reserve_one

NOON = "2030-01-01 12:00+00"


@pytest.mark.covers("D1")
def test_sooner_due_is_sooner_out_whatever_the_order_of_enqueueing(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    minutes = list(range(1, 41))
    random.Random(4).shuffle(minutes)
    due = {minute: enqueue(conn, delay=f"{minute} min") for minute in minutes}
    clock.advance("30 min")
    expected = [due[minute] for minute in range(1, 31)]
    assert ids(reserve(conn, 7)) == expected[:7]
    assert ids(reserve(conn, 100)) == expected[7:]
    assert reserve(conn, 100) == []


def test_jobs_due_at_one_instant_come_in_the_order_of_their_ids(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    job_ids = enqueue_many(conn, 30)
    assert ids(reserve(conn, 30)) == job_ids


def test_higher_priority_comes_first_over_all_queues(conn: psycopg.Connection) -> None:
    job_ids = {
        priority: enqueue(conn, priority=priority, queue=f"q{priority % 3}") for priority in (0, -100, 50, 100, -1, 1)
    }
    assert ids(reserve(conn, 10)) == [job_ids[priority] for priority in (100, 50, 1, 0, -1, -100)]


def test_of_queues_with_one_priority_the_one_with_the_older_job_comes_first(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set(NOON)
    late = enqueue(conn, queue="a", delay="2 min")
    early = enqueue(conn, queue="b", delay="1 min")
    clock.advance("5 min")
    assert ids(reserve(conn, 2)) == [early, late]


def test_strict_order_serves_a_queue_only_when_earlier_ones_are_empty(conn: psycopg.Connection) -> None:
    low = enqueue_many(conn, 3, queue="low", priority=100)
    high = enqueue_many(conn, 3, queue="high", priority=-100)
    enqueue(conn, queue="not served")
    both = ["high", "low"]
    assert ids(reserve(conn, 2, queues=both, strategy="strict")) == high[:2]
    assert ids(reserve(conn, 3, queues=both, strategy="strict")) == [high[2], *low[:2]]
    assert ids(reserve(conn, 3, queues=both, strategy="strict")) == [low[2]]


def test_only_the_named_queues_are_served(conn: psycopg.Connection) -> None:
    one, two = enqueue(conn, queue="one"), enqueue(conn, queue="two")
    enqueue(conn, queue="three")
    assert ids(reserve(conn, 10, queues=["two", "empty", "one", "one"])) == [one, two]


def test_equal_weights_are_as_none(conn: psycopg.Connection) -> None:
    low, high = enqueue(conn, queue="a"), enqueue(conn, queue="b", priority=1)
    assert ids(reserve(conn, 10, queues=["a", "b"], weights=[3, 3])) == [high, low]


def test_no_queues_named_is_every_queue(conn: psycopg.Connection) -> None:
    job_ids = [enqueue(conn, queue=f"q{n}") for n in range(5)]
    assert sorted(ids(reserve(conn, 10))) == job_ids


def test_what_came_back_is_read_before_the_rest_of_its_lane_in_the_order_of_return(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set(NOON)
    first, second, *rest = enqueue_many(conn, 5)
    higher = enqueue(conn, priority=1, delay="1 min")
    held = {row.id: row.reservation for row in reserve(conn, 2)}
    clock.advance("1 s")
    assert call(conn, "release", [second], [held[second]]) is None
    clock.advance("1 s")
    assert call(conn, "release", [first], [held[first]]) is None
    clock.advance("1 min")
    assert ids(reserve(conn, 10)) == [higher, second, first, *rest]


def test_what_comes_back_later_takes_its_place_by_its_time(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    failed = enqueue(conn)
    snoozed = enqueue(conn)
    released = enqueue(conn)
    held = {row.id: row.reservation for row in reserve(conn, 3)}
    before = enqueue(conn, delay="59 s")
    after = enqueue(conn, delay="61 s")
    assert call(conn, "fail", failed, held[failed], retry_in="60 s") == "failed"
    assert call(conn, "snooze", snoozed, held[snoozed], "60 s") is True
    assert call(conn, "release", [released], [held[released]], "60 s") is None
    clock.advance("2 min")
    assert ids(reserve(conn, 10)) == [before, failed, snoozed, released, after]


def test_max_jobs_is_filled_across_lanes_and_past_expired_jobs(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    keep = enqueue(conn, queue="a")
    expired = [enqueue(conn, queue="a", expires_in="1 s") for _ in range(3)]
    later = [enqueue(conn, queue=queue) for queue in ("a", "a", "b")]
    clock.advance("2 s")
    assert ids(reserve(conn, 4)) == [keep, *later]
    states = conn.execute("select distinct state from pgqueue.history where id = any (%s)", [expired])
    assert states.fetchall() == [("cancelled",)]


def test_max_jobs_is_filled_with_what_the_same_call_rescued(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    lapsed = enqueue(conn, queue="b")
    reserve_one(conn, "killed", lease="3 s")
    for _ in range(4):
        clock.advance("1 s")
        # Maintenance without a gap, and each time before the lease ends: nothing is spared, nothing taken back.
        conn.execute("insert into pgqueue.maintenance_runs (at) values (pgqueue._clock())")
    first = enqueue(conn, queue="a")
    assert ids(reserve(conn, 2, queues=["a", "b"], strategy="strict")) == [first, lapsed]


@pytest.mark.covers("D2")
def test_a_batch_leaves_nothing_of_itself_to_the_next(conn: psycopg.Connection) -> None:
    job_ids = enqueue_many(conn, 250)
    seen: list[int] = []
    while batch := reserve(conn, 100):
        seen += ids(batch)
    assert seen == job_ids


def test_a_paused_queue_is_skipped_until_it_is_resumed(conn: psycopg.Connection) -> None:
    executing = enqueue(conn, queue="p")
    held = reserve_one(conn)
    assert call(conn, "pause_queue", "p") is True
    assert call(conn, "pause_queue", "p") is False
    paused, other = enqueue(conn, queue="p", priority=10), enqueue(conn, queue="other")
    assert ids(reserve(conn, 10)) == [other]
    assert call(conn, "complete", executing, held.reservation) is True
    assert call(conn, "resume_queue", "p") is True
    assert call(conn, "resume_queue", "p") is False
    assert ids(reserve(conn, 10)) == [paused]
    maintain(conn)
    assert pairs(reserve(conn, 10)) == ([], [])
