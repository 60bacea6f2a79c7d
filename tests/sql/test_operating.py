"""The actions of an operator: cancel, retry, delete, read the numbers."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, enqueue, ids, job, maintain, reserve, reserve_one, state, stats, value

NOON = "2030-01-01 12:00+00"


@pytest.mark.covers("A6")
def test_a_waiting_job_is_cancelled_once(conn: psycopg.Connection) -> None:
    for job_id in (enqueue(conn), enqueue(conn, delay="1 hour")):
        assert call(conn, "cancel", job_id) == "cancelled"
        assert call(conn, "cancel", job_id) is None
        assert state(conn, job_id) == "cancelled"
    assert reserve(conn) == []
    assert call(conn, "cancel", 999) is None


@pytest.mark.covers("A6")
def test_a_failed_job_is_cancelled_with_its_errors(conn: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    call(conn, "fail", job_id, reserve_one(conn).reservation, Jsonb({"message": "m"}))
    assert call(conn, "cancel", job_id) == "cancelled"
    assert [error["message"] for error in job(conn, job_id).errors] == ["m"]


def test_a_dead_job_is_retried_with_a_fresh_count_and_all_it_carried(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    job_id = enqueue(conn, "t", {"a": 1}, queue="q", priority=3, max_attempts=2, headers=Jsonb({"h": 1}), tags=["x"])
    old = []
    for _ in range(2):
        reserved = reserve_one(conn)
        old.append(reserved.reservation)
        call(conn, "fail", job_id, reserved.reservation, Jsonb({"message": "m"}), retry_in="0")
    before = job(conn, job_id)
    assert before.state == "dead"
    clock.advance("1 hour")

    assert call(conn, "retry", job_id) is True
    back = job(conn, job_id)
    kept = ("queue", "task", "args", "priority", "max_attempts", "headers", "tags", "errors", "created_at")
    assert [getattr(back, name) for name in kept] == [getattr(before, name) for name in kept]
    assert (back.state, back.attempts, back.due_at) == ("waiting", 0, clock.now())
    assert value(conn, "select count(*) from pgqueue.history") == 0

    again = reserve_one(conn)
    assert (again.id, again.attempt) == (job_id, 1)
    assert again.reservation > max(old)
    for reservation in old:
        assert call(conn, "complete", job_id, reservation) is False
    assert call(conn, "fail", job_id, again.reservation) == "failed"


def test_a_cancelled_job_is_retried(conn: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    call(conn, "cancel", job_id)
    assert call(conn, "retry", job_id) is True
    assert call(conn, "retry", job_id) is False
    assert ids(reserve(conn)) == [job_id]


def test_a_failed_job_is_retried_now_and_keeps_its_count(conn: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    enqueue(conn)
    first = reserve_one(conn)
    call(conn, "fail", job_id, first.reservation)
    assert call(conn, "retry", job_id) is True
    again = reserve_one(conn)
    assert (again.id, again.attempt) == (job_id, 2)
    assert again.reservation > first.reservation


def test_nothing_else_is_retried(conn: psycopg.Connection) -> None:
    waiting, executing, succeeded = enqueue(conn, delay="1 hour"), enqueue(conn), enqueue(conn)
    held = {row.id: row.reservation for row in reserve(conn, 2)}
    call(conn, "complete", succeeded, held[succeeded])
    assert [call(conn, "retry", job_id) for job_id in (waiting, executing, succeeded, 999)] == [False] * 4
    assert [state(conn, job_id) for job_id in (waiting, executing, succeeded)] == [
        "waiting",
        "executing",
        "succeeded",
    ]


def test_a_job_is_deleted_unless_it_is_executing(conn: psycopg.Connection) -> None:
    waiting, finished, executing = enqueue(conn, delay="1 hour"), enqueue(conn), enqueue(conn)
    held = {row.id: row.reservation for row in reserve(conn, 2)}
    call(conn, "complete", finished, held[finished])
    assert [call(conn, "delete", job_id) for job_id in (waiting, finished, executing)] == [True, True, False]
    assert [call(conn, "delete", job_id) for job_id in (waiting, finished, 999)] == [False] * 3
    assert [state(conn, job_id) for job_id in (waiting, finished, executing)] == [None, None, "executing"]


def test_a_job_that_does_not_start_in_time_is_cancelled_by_reserve(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    job_id, other = enqueue(conn, expires_in="1 min"), enqueue(conn)
    clock.advance("1 min")
    assert ids(reserve(conn, 1)) == [other]
    found = job(conn, job_id)
    assert (found.state, found.errors[-1]["class"]) == ("cancelled", "Expired")


def test_a_job_that_does_not_start_in_time_is_cancelled_by_maintain(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    job_id, executing = enqueue(conn, delay="1 hour", expires_in="1 min"), enqueue(conn, expires_in="1 min")
    reserve_one(conn, lease="1 day")
    clock.advance("1 hour 59 s")
    assert maintain(conn).expired == 0
    clock.advance("1 s")
    assert maintain(conn).expired == 1
    assert state(conn, job_id) == "cancelled"
    assert state(conn, executing) == "executing"


@pytest.mark.covers("G8")
def test_stats_count_jobs_by_queue_and_in_total(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    empty = stats(conn)
    assert empty.queues == []
    assert (empty.total["length"], empty.total["lag"]) == (0, 0)

    failed, dead, _executing = (enqueue(conn, queue="a") for _ in range(3))
    held = {row.id: row.reservation for row in reserve(conn, 3)}
    call(conn, "fail", failed, held[failed])
    call(conn, "fail", dead, held[dead], retry=False)
    enqueue(conn, queue="a")
    enqueue(conn, queue="a", delay="1 hour")
    call(conn, "pause_queue", "b")
    clock.advance("10 s")

    found = stats(conn)
    a, b = found.queues
    assert (a["queue"], b["queue"]) == ("a", "b")
    assert b["paused_at"] is not None
    assert b["length"] == 0
    expected = {
        "length": 3,
        "waiting": 2,
        "failed": 1,
        "scheduled": 2,
        "due": 1,
        "counted_to": None,
        "counted_at": None,
        "ready_counted_at": None,
        "executing": 1,
        "blocked": 0,
        "dead": 1,
        "lag": 10,
        "stuck_for": 0,
    }
    assert {name: a[name] for name in expected} == expected
    assert found.total == expected


def test_what_comes_out_of_the_history_has_not_failed_until_it_fails_again(conn: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    call(conn, "fail", job_id, reserve_one(conn).reservation, retry=False)
    call(conn, "retry", job_id)
    for _ in range(2):
        assert state(conn, job_id) == "waiting"
        call(conn, "release", [job_id], [reserve_one(conn).reservation])
    call(conn, "fail", job_id, reserve_one(conn).reservation, retry_in=timedelta(0))
    call(conn, "release", [job_id], [reserve_one(conn).reservation])
    assert state(conn, job_id) == "failed"
