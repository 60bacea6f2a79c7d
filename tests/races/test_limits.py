"""Limits in forced orders of two sessions."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, ids, maintain, reserve, value
from tests.databases import Database
from tests.facts import wait_until


@pytest.fixture
def other(database: Database) -> psycopg.Connection:
    return database.connect(autocommit=False)


@pytest.fixture
def clock(clock: Clock) -> Clock:
    clock.set("2030-01-01 12:00+00")
    return clock


def started_within_ten_minutes(conn: psycopg.Connection, clock: Clock) -> list[int]:
    started = []
    for _ in range(10):
        clock.advance("1 min")
        maintain(conn)
        started += ids(reserve(conn, 3, lease="1 day"))
    return sorted(started)


@pytest.mark.parametrize(
    ("kind", "target", "how"),
    [
        ("task", "t", "drop"),
        ("task", "t", "raise"),
        ("limit_key", "a*", "drop"),
    ],
)
def test_jobs_that_a_claim_blocks_while_their_rate_is_changed_start_soon(
    conn: psycopg.Connection, other: psycopg.Connection, clock: Clock, kind: str, target: str, how: str
) -> None:
    call(conn, "set_limit", kind, target, rate=1, per="31 days")
    [_, two, three] = enqueue_many(conn, 3, limit_key="a1")
    assert len(reserve(other, 3, lease="1 day")) == 1
    # The claim blocked the two others until next month, and is not committed: nobody sees them blocked.
    if how == "drop":
        assert call(conn, "drop_limit", kind, target) is True
    else:
        assert call(conn, "set_limit", kind, target, rate=1000, per="1 min") is True
    maintain(conn)
    assert reserve(conn, 3) == []
    other.commit()
    assert started_within_ten_minutes(conn, clock) == [two, three]


def test_jobs_that_a_claim_blocks_while_units_are_given_back_start_soon(
    conn: psycopg.Connection, other: psycopg.Connection, clock: Clock
) -> None:
    call(conn, "set_limit", "task", "t", rate=100, per="1 day")
    enqueue(conn, cost=100)
    [row] = reserve(conn, 1, lease="1 day")
    next_one = enqueue(conn, cost=50)
    assert reserve(other, 1) == []
    assert call(conn, "spent", row.id, row.reservation, 10) is True
    assert call(conn, "complete", row.id, row.reservation)
    maintain(conn)
    other.commit()
    assert started_within_ten_minutes(conn, clock) == [next_one]


def beside(database: Database, other: psycopg.Connection, change: Callable[[psycopg.Connection], object]) -> None:
    """Call it in a session that meets the row of `other` before that is committed."""
    with database.connect() as third:
        thread = threading.Thread(target=change, args=(third,))
        thread.start()
        with database.connect() as watch:
            wait_until(
                lambda: value(
                    watch,
                    "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s",
                    third.info.backend_pid,
                )
            )
        other.commit()
        thread.join()


def test_two_first_calls_of_set_limit_keep_what_each_set(
    conn: psycopg.Connection, other: psycopg.Connection, database: Database
) -> None:
    assert call(other, "set_limit", "task", "t", max_executing=1) is True
    beside(database, other, lambda third: call(third, "set_limit", "task", "t", rate=100, per="1 min"))
    assert conn.execute("select max_executing, rate from pgqueue.limits").fetchall() == [(1, 100)]


def test_two_first_calls_of_set_breaker_keep_what_each_set(
    conn: psycopg.Connection, other: psycopg.Connection, database: Database
) -> None:
    assert call(other, "set_breaker", "task", "t", failures=0.75, of=500) is True
    beside(database, other, lambda third: call(third, "set_breaker", "task", "t", pause="1 min"))
    stored = conn.execute("select failures, of, extract(epoch from pause)::integer from pgqueue.breakers").fetchall()
    assert stored == [(0.75, 500, 60)]


def test_a_claim_that_stood_still_counts_what_started_meanwhile(
    conn: psycopg.Connection, other: psycopg.Connection, database: Database, clock: Clock
) -> None:
    call(conn, "configure_queue", "fair", fair_by="limit_key")
    call(conn, "set_limit", "task", "t", rate=2, per="1 min")
    enqueue_many(conn, 5, queue="fair", limit_key="a")
    enqueue_many(conn, 5, queue="plain")
    other.execute("lock table pgqueue.turns in access exclusive mode")
    late: list[object] = []
    slow = database.connect()
    thread = threading.Thread(target=lambda: late.extend(reserve(slow, 5, queues=["fair"])))
    thread.start()
    wait_until(
        lambda: value(
            conn, "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s", slow.info.backend_pid
        )
    )
    clock.advance("2 s")
    assert len(reserve(conn, 5, queues=["plain"])) == 2
    other.commit()
    thread.join()
    assert late == []
