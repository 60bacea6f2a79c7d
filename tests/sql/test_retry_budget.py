"""At most n retries of a queue become due in a second."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, job, maintain, reserve, reserve_one, value
from tests.databases import Database
from tests.facts import wait_until

NOON = "2030-01-01 12:00+00"


@pytest.fixture
def clock(clock: Clock) -> Clock:
    clock.set(NOON)
    return clock


def allow(conn: psycopg.Connection, budget: int | None, queue: str = "default") -> None:
    conn.execute(
        "insert into pgqueue.queues (name, retry_budget) values (%s, %s)"
        " on conflict (name) do update set retry_budget = excluded.retry_budget",
        [queue, budget],
    )


def fail_all(conn: psycopg.Connection, count: int, retry_in: str) -> None:
    enqueue_many(conn, count)
    for held in reserve(conn, count):
        assert call(conn, "fail", held.id, held.reservation, retry_in=retry_in) == "failed"


def due_seconds(conn: psycopg.Connection, clock: Clock) -> dict[int, int]:
    """How many jobs become due in which second from now."""
    rows = conn.execute("select due_at from pgqueue.all_jobs where state = 'failed'").fetchall()
    return dict(Counter(int((due_at - clock.now()).total_seconds()) for (due_at,) in rows))


def test_retries_are_deferred_to_the_first_second_with_capacity(conn: psycopg.Connection, clock: Clock) -> None:
    allow(conn, 3)
    fail_all(conn, 4, "10 s")
    assert due_seconds(conn, clock) == {10: 3, 11: 1}
    fail_all(conn, 4, "11 s")
    assert due_seconds(conn, clock) == {10: 3, 11: 3, 12: 2}
    fail_all(conn, 1, "20 s")
    fail_all(conn, 6, "10 s")
    assert due_seconds(conn, clock) == {10: 3, 11: 3, 12: 3, 13: 3, 14: 2, 20: 1}


def test_a_retry_within_the_budget_keeps_its_exact_time(conn: psycopg.Connection, clock: Clock) -> None:
    allow(conn, 1)
    job_id = enqueue(conn)
    call(conn, "fail", job_id, reserve_one(conn).reservation, retry_in="10.25 s")
    assert job(conn, job_id).due_at - clock.now() == timedelta(seconds=10.25)


def test_a_budget_holds_for_the_queue_in_which_the_retry_waits(conn: psycopg.Connection, clock: Clock) -> None:
    allow(conn, 1, "slow")
    call(conn, "declare_task", "t", retry_queue="slow")
    fail_all(conn, 3, "5 s")
    assert due_seconds(conn, clock) == {5: 1, 6: 1, 7: 1}
    call(conn, "declare_task", "t")
    fail_all(conn, 3, "5 s")
    assert due_seconds(conn, clock) == {5: 4, 6: 1, 7: 1}


def test_a_changed_budget_takes_effect_at_once(conn: psycopg.Connection, clock: Clock) -> None:
    allow(conn, 1)
    fail_all(conn, 3, "5 s")
    allow(conn, 2)
    fail_all(conn, 1, "5 s")
    assert due_seconds(conn, clock) == {5: 2, 6: 1, 7: 1}
    allow(conn, None)
    fail_all(conn, 5, "5 s")
    assert due_seconds(conn, clock) == {5: 7, 6: 1, 7: 1}


def test_without_a_budget_nothing_is_booked(conn: psycopg.Connection) -> None:
    fail_all(conn, 3, "5 s")
    assert value(conn, "select count(*) from pgqueue.retry_bookings") == 0


def test_two_that_fail_at_once_do_not_take_the_same_capacity(database: Database, clock: Clock) -> None:
    conn = database.connect()
    allow(conn, 1)
    allow(conn, 1, "other")
    one, two = enqueue(conn), enqueue(conn)
    elsewhere, free = enqueue(conn, queue="other"), enqueue(conn, queue="free")
    held = {row.id: row.reservation for row in reserve(conn, 4)}
    first, second = database.session(), database.session()
    failing = "select pgqueue.fail(%s, %s, retry_in => '5 s')"
    first.run("begin")
    first.run(failing, [one, held[one]])
    failed = second.start(failing, [two, held[two]])
    wait_until(lambda: second.waits_behind(first))
    # Nobody else waits.
    for job_id in (elsewhere, free):
        assert call(conn, "fail", job_id, held[job_id], retry_in="5 s") == "failed"
    first.run("commit")
    assert failed.result(timeout=10) == [("failed",)]
    seconds = [int((job(conn, job_id).due_at - clock.now()).total_seconds()) for job_id in (one, two, elsewhere, free)]
    assert seconds == [5, 6, 5, 5]


def test_capacity_that_is_rolled_back_is_free_again(database: Database, clock: Clock) -> None:
    conn = database.connect()
    allow(conn, 1)
    job_id = enqueue(conn)
    held = reserve_one(conn)
    with conn.transaction(force_rollback=True):
        call(conn, "fail", job_id, held.reservation, retry_in="5 s")
    call(conn, "fail", job_id, held.reservation, retry_in="5 s")
    assert due_seconds(conn, clock) == {5: 1}


def test_a_storm_costs_each_failure_little(conn: psycopg.Connection, clock: Clock) -> None:
    """Signposts: it does not walk the seconds that are full, not even when the first asked for is a new one."""
    allow(conn, 1)
    conn.execute(
        "insert into pgqueue.retry_bookings (queue, second, booked)"
        " select 'default', %s::timestamptz + n * '1 s'::interval, 1 from generate_series(5, 5004) n",
        [clock.now()],
    )

    def looks() -> int:
        # Counted when the transaction of a look has ended, and shown at the next.
        with conn.transaction():
            before = value(conn, "select pg_stat_get_xact_numscans('pgqueue.retry_bookings_by_second'::regclass)")
            fail_all(conn, 1, "5 s")
            after = value(conn, "select pg_stat_get_xact_numscans('pgqueue.retry_bookings_by_second'::regclass)")
        return after - before

    assert looks() >= 5000
    for _ in range(3):
        assert looks() <= 5
        clock.advance("1 s")
    assert max(due_seconds(conn, clock).values()) == 1


def test_expired_rows_are_deleted(conn: psycopg.Connection, clock: Clock) -> None:
    allow(conn, 1)
    fail_all(conn, 3, "5 s")
    clock.advance("1 min 8 s")
    maintain(conn)
    assert _booked(conn) == []
    fail_all(conn, 1, "5 s")
    clock.advance("30 s")
    maintain(conn)
    assert len(_booked(conn)) == 1


def _booked(conn: psycopg.Connection) -> list[datetime]:
    return [row[0] for row in conn.execute("select second from pgqueue.retry_bookings").fetchall()]
