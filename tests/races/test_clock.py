"""The database's clock steps back (NTP, failover to a slower host, a restored dump)."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import (
    call,
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
)

pytestmark = pytest.mark.covers("D1", "D3")

NOON = "2030-01-01 12:00+00"


@pytest.fixture
def clock(clock: Clock, conn: psycopg.Connection) -> Clock:
    clock.set(NOON)
    maintain(conn)
    return clock


def test_jobs_that_waited_run_in_their_order_and_later_ones_keep_their_instant(
    conn: psycopg.Connection, clock: Clock
) -> None:
    first = enqueue_many(conn, 3)
    clock.advance("1 ms")
    second = enqueue_many(conn, 3, queue="other")
    later = enqueue(conn, run_at="2030-01-01 11:30+00")  # the past, before the step
    scheduled = enqueue(conn, delay="10 min")
    soon = enqueue(conn, run_at="2030-01-01 12:00:00.5+00")
    clock.advance("-1 hour")
    assert reserve(conn, 100) == []
    maintain(conn)
    clock.advance("1 ms")
    assert ids(reserve(conn, 100, queues=["default"], lease="1 day")) == [*first, later]
    assert ids(reserve(conn, 100, lease="1 day")) == second
    new = enqueue(conn)
    assert ids(reserve(conn, 100, lease="1 day")) == [new]

    for job_id, at in ((soon, "12:00:00.5"), (scheduled, "12:10:00.001")):
        clock.set(f"2030-01-01 {at}+00")
        clock.advance("-1 us")
        assert ids(reserve(conn, 100, lease="1 day")) == []
        clock.advance("1 us")
        assert ids(reserve(conn, 100, lease="1 day")) == [job_id]


def test_what_had_come_back_runs_as_well(conn: psycopg.Connection, clock: Clock) -> None:
    released, rest = enqueue_many(conn, 2)
    call(conn, "release", *pairs([reserve_one(conn)]))
    clock.advance("-1 hour")
    maintain(conn)
    clock.advance("1 ms")
    assert ids(reserve(conn, 10)) == [released, rest]


def test_a_retry_that_is_pending_keeps_its_instant(conn: psycopg.Connection, clock: Clock) -> None:
    job_id = enqueue(conn)
    call(conn, "fail", job_id, reserve_one(conn).reservation, retry_in="1 s")
    due = job(conn, job_id).due_at
    clock.advance("-1 hour")
    maintain(conn)
    assert job(conn, job_id).due_at == due


def test_leases_are_cut_to_one_length_from_now(conn: psycopg.Connection, clock: Clock) -> None:
    job_id = enqueue(conn)
    held = reserve_one(conn, "killed", lease="30 s")
    clock.advance("-1 hour")
    maintain(conn)
    assert job(conn, job_id).lease_expires_at == clock.now() + timedelta(seconds=30)
    # That is the one length more which a lease gets after a gap in maintenance.
    for _ in range(29):
        clock.advance("1 s")
        maintain(conn)
    assert state(conn, job_id) == "executing"
    clock.advance("1 s")
    maintain(conn)
    [again] = reserve(conn, 1, "other")
    assert again.reservation > held.reservation
    assert table(conn, "extend", *pairs([held])) == []


def test_what_an_open_transaction_commits_from_before_the_step_is_found_for_minutes(
    conn: psycopg.Connection, clock: Clock
) -> None:
    with psycopg.connect(conn.info.dsn, password=conn.info.password) as slow:
        job_id = enqueue(slow)
        clock.advance("-1 hour")
        maintain(conn)
        clock.advance("1 min")
        maintain(conn)
        slow.commit()
    clock.advance("1 s")
    maintain(conn)
    clock.advance("1 ms")
    assert ids(reserve(conn)) == [job_id]


def test_maintenance_goes_on_after_a_step(conn: psycopg.Connection, clock: Clock) -> None:
    for _ in range(3):
        clock.advance("-1 hour")
        assert maintain(conn).ran is True
        job_id = enqueue(conn)
        reserve_one(conn, lease="2 s")
        for _ in range(4):
            clock.advance("1 s")
            maintain(conn)
        assert ids(reserve(conn)) == [job_id]
        call(conn, "release", [job_id], [job(conn, job_id).reservation])
        call(conn, "delete", job_id)
    assert stats(conn).maintenance["failures"] == {}


def test_what_a_step_back_left_in_the_future_is_gone_through_to_its_end(conn: psycopg.Connection, clock: Clock) -> None:
    """A call reads a few, the next goes on behind them: scheduled jobs there do not stop it."""
    waiting: dict[str, list[int]] = {"default": [], "other": []}
    for n in range(12):
        for queue, jobs in waiting.items():
            enqueue_many(conn, 3, queue=queue, delay=f"{n + 1} min")
            jobs.append(enqueue(conn, queue=queue))
        clock.advance("1 min")
    stepped_from = clock.now()
    clock.advance("-1 hour")
    cursor, calls = None, 0
    while True:
        cursor = call(conn, "_bring_forward", stepped_from, 4, cursor)
        clock.advance("1 ms")
        calls += 1
        if cursor is None:
            break
    assert calls >= 12
    for queue, jobs in waiting.items():
        assert ids(reserve(conn, 100, queues=[queue])) == jobs
