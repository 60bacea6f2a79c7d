"""Why is a job not running? One row says it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import Row, call, enqueue, enqueue_many, job, reserve, reserve_one, table

NOON = "2030-01-01 12:00+00"


def explain(conn: psycopg.Connection, job_id: int) -> Row:
    [row] = table(conn, "explain", job_id)
    assert row.job_id == job_id
    return row


def change(conn: psycopg.Connection, job_id: int, **columns: Any) -> None:
    for name, to in columns.items():
        conn.execute(f"update pgqueue.jobs set {name} = %s where id = %s".encode(), [to, job_id])


def test_a_job_that_is_nowhere_is_unknown(conn: psycopg.Connection) -> None:
    found = explain(conn, 999)
    assert (found.state, found.reason, found.until, found.behind) == ("unknown", "unknown", None, None)


def test_a_job_that_ended_says_how_and_when(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    succeeded, dead, cancelled = enqueue_many(conn, 3)
    call(conn, "complete", succeeded, reserve_one(conn).reservation)
    call(conn, "fail", dead, reserve_one(conn).reservation, Jsonb({"message": "no paper"}), retry=False)
    call(conn, "cancel", cancelled)
    for job_id, state, said in (
        (succeeded, "succeeded", "after 1 attempt"),
        (dead, "dead", "no paper"),
        (cancelled, "cancelled", "2030-01-01"),
    ):
        found = explain(conn, job_id)
        assert (found.state, found.reason) == (state, "finished")
        assert state in found.detail
        assert said in found.detail


def test_a_job_that_executes_says_who_holds_it_until_when(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    job_id = enqueue(conn)
    held = reserve_one(conn, "press-1")
    found = explain(conn, job_id)
    assert (found.state, found.reason, found.until) == ("executing", "executing", held.lease_expires_at)
    assert "press-1" in found.detail
    assert "attempt 1 of 11" in found.detail
    call(conn, "cancel", job_id)
    assert explain(conn, job_id).reason == "cancelling"
    clock.advance("1 min")
    found = explain(conn, job_id)
    assert (found.reason, found.until) == ("lapsed", held.lease_expires_at)


def test_a_job_that_is_not_due_says_when_it_is(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    scheduled = enqueue(conn, delay="1 hour")
    failed = enqueue(conn, max_attempts=3)
    call(conn, "fail", failed, reserve_one(conn).reservation, retry_in="5 min")
    for job_id, said in ((scheduled, "it is to run"), (failed, "attempt 2 of 3")):
        found = explain(conn, job_id)
        assert (found.reason, found.until) == ("not_due", job(conn, job_id).due_at)
        assert said in found.detail


def test_a_job_that_did_not_start_in_time_says_so(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    job_id = enqueue(conn, expires_in="1 min")
    clock.advance("1 min")
    assert explain(conn, job_id).reason == "expired"


def test_a_paused_queue_is_a_reason(conn: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    call(conn, "pause_queue", "default")
    assert explain(conn, job_id).reason == "paused"
    call(conn, "resume_queue", "default")
    assert explain(conn, job_id).reason == "no_worker"


@pytest.mark.parametrize("state", ["waiting", "blocked"])
def test_a_job_behind_another_of_its_key_says_which(conn: psycopg.Connection, clock: Clock, state: str) -> None:
    clock.set(NOON)
    call(conn, "hello", "w")
    first, middle, last = enqueue_many(conn, 3)
    other = enqueue(conn, queue="b")
    conn.execute("update pgqueue.jobs set key = 'k'")
    change(conn, last, state=state)
    if state == "blocked":
        change(conn, middle, state=state)
    else:
        change(conn, middle, run_at="2030-01-01 13:00+00", ready_at="2030-01-01 13:00+00")
        # One that was never tried holds its place only while it is due.
        change(conn, first, run_at="2030-01-01 13:00+00")
        assert explain(conn, last).reason == "turn"
        change(conn, first, run_at=clock.now(), reservation=1, ready_at="2030-01-01 13:00+00")
    found = explain(conn, last)
    assert (found.reason, found.behind) == ("key", first)
    change(conn, first, state="executing", reserved_by="press-1", lease_expires_at="2030-01-01 12:01+00")
    found = explain(conn, last)
    assert (found.reason, found.behind, str(found.until)[11:16]) == ("key", first, "12:01")
    assert "press-1" in found.detail
    assert explain(conn, other).reason == "turn"


def test_a_job_that_is_blocked_without_a_reason_says_so(conn: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    change(conn, job_id, key="k", state="blocked")
    found = explain(conn, job_id)
    assert (found.reason, found.behind) == ("key", None)
    assert "maintain()" in found.detail


@pytest.mark.parametrize(
    ("kind", "target", "name", "row"),
    [
        ("queue", "default", "queue:default", ""),
        ("task", "t", "task:t", ""),
        ("key", "or", "key:or", ""),
        ("limit_key", "acme", "limit_key:acme", ""),
        ("limit_key", "ac*", "limit_key:acme", " (set for ac*)"),
        ("limit_key", "*", "limit_key:acme", " (set for *)"),
    ],
)
def test_a_limit_without_capacity_is_a_reason(
    conn: psycopg.Connection, clock: Clock, kind: str, target: str, name: str, row: str
) -> None:
    clock.set(NOON)
    first, second = enqueue_many(conn, 2)
    conn.execute("update pgqueue.jobs set limit_key = 'acme', key = 'order:' || id")
    change(conn, first, state="executing", lease_expires_at="2030-01-01 13:00+00")
    call(conn, "set_limit", kind, target, max_executing=2)
    assert explain(conn, second).reason == "no_worker"
    call(conn, "set_limit", kind, target, max_executing=1)
    found = explain(conn, second)
    assert (found.reason, found.detail) == ("limit", f"1 of 1 jobs execute under the limit {name}{row}")
    change(conn, second, state="blocked", blocked_on=name)
    assert explain(conn, second).detail == found.detail
    call(conn, "drop_limit", kind, target)
    assert "has capacity now" in explain(conn, second).detail


def test_of_two_limits_for_a_limit_key_its_own_holds_and_else_the_longer(conn: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    change(conn, job_id, limit_key="acme")
    call(conn, "set_limit", "limit_key", "*", max_executing=0)
    assert explain(conn, job_id).reason == "limit"
    call(conn, "set_limit", "limit_key", "ac*", max_executing=9)
    assert explain(conn, job_id).reason == "no_worker"
    call(conn, "set_limit", "limit_key", "acme", max_executing=0)
    assert explain(conn, job_id).reason == "limit"


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"rate": 1, "per": "1 h"}, "1 of 1 jobs started within 01:00:00 under the limit limit_key:acme (set for ac*)"),
        ({"max_cost": 1}, "its limit limit_key:acme (set for ac*) has 0 of 1 units"),
    ],
)
def test_a_limit_of_a_prefix_is_named_with_its_row(conn: psycopg.Connection, parts: dict[str, Any], says: str) -> None:
    call(conn, "set_limit", "limit_key", "ac*", **parts)
    _, second = enqueue_many(conn, 2, limit_key="acme", cost=1)
    assert len(reserve(conn, 2)) == 1
    found = explain(conn, second)
    assert (found.reason, found.detail.partition(", ")[0]) == ("limit", says)


def test_a_rate_that_is_used_up_is_a_reason_and_says_until_when(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    job_id = enqueue(conn)
    call(conn, "set_limit", "task", "t", rate=3, per="1 min")
    conn.execute(
        "insert into pgqueue.limit_starts values ('task:t', pgqueue._clock(), 2), ('task:u', pgqueue._clock(), 9)"
    )
    assert explain(conn, job_id).reason == "no_worker"
    clock.advance("10 s")
    conn.execute("insert into pgqueue.limit_starts values ('task:t', pgqueue._clock(), 1)")
    found = explain(conn, job_id)
    assert (found.reason, str(found.until)[11:19]) == ("limit", "12:01:00")
    assert "3 of 3 jobs started" in found.detail
    clock.advance("50 s")
    assert explain(conn, job_id).reason == "no_worker"


def test_a_worker_that_is_silent_or_serves_other_queues_does_not_count(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    job_id = enqueue(conn)
    call(conn, "hello", "other", ["other"])
    assert explain(conn, job_id).reason == "no_worker"
    call(conn, "hello", "mine", ["default"])
    assert explain(conn, job_id).reason == "turn"
    clock.advance("61 s")
    assert explain(conn, job_id).reason == "no_worker"
    call(conn, "beat", "mine")
    assert explain(conn, job_id).reason == "turn"


def test_a_job_that_is_due_says_how_many_are_ahead(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    call(conn, "hello", "w")
    first, *_, last = enqueue_many(conn, 5)
    enqueue_many(conn, 3, priority=1)
    enqueue_many(conn, 3, delay="1 h")
    assert "behind 4 jobs in priority 0 of queue default" in explain(conn, last).detail
    change(conn, last, resumed=True)
    assert "behind 0 jobs in" in explain(conn, last).detail
    assert "behind 1 job in" in explain(conn, first).detail
    conn.execute(
        "insert into pgqueue.jobs (queue, task, args, priority, run_at, ready_at, created_at)"
        " select 'default', 't', '{}', 0, at, at, at from (select '2030-01-01 11:00+00'::timestamptz as at) x,"
        " generate_series(1, 1500)"
    )
    assert "behind 1,000 or more jobs in" in explain(conn, first).detail


@pytest.mark.parametrize(
    ("of_job", "of_task", "accumulates"), [(None, None, True), (None, None, False), (None, 7, True), (3, 7, True)]
)
def test_explain_counts_attempts_as_reserve_does(
    conn: psycopg.Connection, of_job: int | None, of_task: int | None, accumulates: bool
) -> None:
    call(conn, "declare_task", "t", max_attempts=of_task, accumulate=accumulates)
    job_id = enqueue(conn, "t", key="k", max_attempts=of_job)
    waiting = explain_running(conn, job_id)
    held = reserve_one(conn)
    assert f"of {held.max_attempts}" in waiting
    assert f"of {held.max_attempts}" in explain_running(conn, job_id)


def explain_running(conn: psycopg.Connection, job_id: int) -> str:
    """What explain says of a job that executes, or that is not due."""
    if job(conn, job_id).state == "waiting":
        change(conn, job_id, ready_at="2100-01-01 00:00+00")
        detail: str = explain(conn, job_id).detail
        change(conn, job_id, ready_at="2000-01-01 00:00+00")
        return detail
    return str(explain(conn, job_id).detail)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("sned_email", "send_email"),
        ("send_emial", "send_email"),
        ("send-email", "send_email"),
        ("sendemail", "send_email"),
        ("resize", None),
    ],
)
def test_a_task_that_no_worker_has_declared_is_a_reason_and_names_the_nearest(
    conn: psycopg.Connection, typed: str, meant: str | None
) -> None:
    job_id = enqueue(conn, typed, delay="1 hour")
    # SQL clients need not declare their tasks.
    assert explain(conn, job_id).reason == "not_due"
    call(conn, "declare_task", "send_email")
    call(conn, "declare_task", "invoice")
    call(conn, "hello", "w")
    call(conn, "hello", "other", ["elsewhere"])
    found = explain(conn, job_id)
    assert found.reason == "unknown_task"
    assert f"task {typed}; 1 living worker serves queue default" in found.detail
    assert found.detail.endswith(f"did you mean {meant}?") == (meant is not None)
    call(conn, "declare_task", typed)
    assert explain(conn, job_id).reason == "not_due"


def test_a_pause_comes_before_a_task_that_no_worker_has(conn: psycopg.Connection) -> None:
    call(conn, "declare_task", "send_email")
    call(conn, "hello", "w", None, Jsonb({"tasks": ["send_email"]}))
    job_id = enqueue(conn, "sned_email")
    later = enqueue(conn, "sned_email", delay="1 hour")
    call(conn, "pause", "queue", "default")
    assert explain(conn, job_id).reason == "paused"
    assert explain(conn, later).reason == "unknown_task"
    call(conn, "resume", "queue", "default")
    assert explain(conn, job_id).reason == "unknown_task"


def test_a_job_of_a_task_that_was_renamed_says_so_before_any_worker_has_touched_it(conn: psycopg.Connection) -> None:
    for name in ("send_mail", "send_email"):
        call(conn, "declare_task", name)
    call(conn, "hello", "v2", None, Jsonb({"tasks": ["send_email", "invoice"]}))
    job_id = enqueue(conn, "send_mail")
    found = explain(conn, job_id)
    assert (found.reason, found.detail) == (
        "unknown_task",
        "no living worker has task send_mail; 1 living worker serves queue default; did you mean send_email?;"
        " if the task was renamed, give it this name as an alias",
    )
    assert explain(conn, enqueue(conn, "send_email")).reason == "turn"
    # One that has it, or that does not say: then it waits its turn.
    for info in ({"tasks": ["send_mail"]}, {}):
        call(conn, "hello", "v1", None, Jsonb(info))
        assert explain(conn, job_id).reason == "turn"
    call(conn, "hello", "v1", ["elsewhere"], Jsonb({"tasks": ["send_mail"]}))
    assert explain(conn, job_id).reason == "unknown_task"


def test_a_job_that_workers_without_its_task_give_back_says_so(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    call(conn, "declare_task", "old")
    job_id = enqueue(conn, "old")
    for said in ("it was deferred; it runs again", "it was deferred; it runs again", "workers reserved it 3 times"):
        held = reserve_one(conn, "v2")
        call(conn, "release", [held.id], [held.reservation], "10 s")
        found = explain(conn, job_id)
        assert (found.reason, found.detail.startswith(said)) == ("not_due", True), found.detail
        clock.set(found.until)
    assert "the last time v2: they do not have task old, or its handler snoozes; it runs again at" in found.detail


def test_a_silent_worker_serves_no_queue(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    job_id = enqueue(conn)
    call(conn, "hello", "w")
    call(conn, "hello", "slow", None, Jsonb({"heartbeat": 40}))
    assert explain(conn, job_id).reason == "turn"
    clock.advance("20 s")
    call(conn, "declare_task", "other")
    assert "1 living worker serves queue default" in explain(conn, job_id).detail
    call(conn, "declare_task", "t")
    assert explain(conn, job_id).reason == "turn"
    clock.advance("30 s")
    found = explain(conn, job_id)
    assert (found.reason, found.detail) == ("no_worker", "no living worker serves queue default")
    call(conn, "beat", "w")
    assert explain(conn, job_id).reason == "turn"


def test_a_payload_behind_the_backoff_of_a_later_one_says_until_when(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    call(conn, "declare_task", "t", accumulate=True)
    early, late = enqueue(conn, "t", {"n": 1}, key="k", delay="5 s"), enqueue(conn, "t", {"n": 2}, key="k")
    row = reserve_one(conn)
    assert row.id == late
    call(conn, "fail", late, row.reservation, retry_in="1 min")
    clock.advance("10 s")
    for _ in range(2):
        found = explain(conn, early)
        assert (found.reason, found.behind, found.until) == ("key", late, job(conn, late).due_at)
        # The claim finds the same, and blocks it.
        assert table(conn, "reserve", "w", 10) == []
    clock.advance("51 s")
    assert len(table(conn, "reserve", "w", 10)) == 2


def test_payloads_of_one_batch_are_not_ahead_of_each_other(conn: psycopg.Connection) -> None:
    call(conn, "declare_task", "t", accumulate=True)
    call(conn, "hello", "w")
    _first, second = enqueue(conn, "t", {"n": 1}, key="k"), enqueue(conn, "t", {"n": 2}, key="k")
    assert explain(conn, second).reason == "turn"


@pytest.mark.parametrize(
    ("info", "queues", "expected"),
    [
        ({}, None, ["high", "old"]),
        ({"strategy": "weighted", "weights": [1, 2]}, None, []),
        ({"strategy": "round_robin"}, None, []),
        ({"strategy": "strict"}, ["low", "mail", "high"], ["low"]),
        ({"strategy": "lag"}, None, ["old"]),
    ],
)
def test_a_job_whose_workers_serve_other_queues_first_says_which(
    conn: psycopg.Connection, clock: Clock, info: dict[str, Any], queues: list[str] | None, expected: list[str]
) -> None:
    clock.set(NOON)
    enqueue_many(conn, 3, queue="old")
    clock.advance("1 min")
    job_id = enqueue(conn, queue="mail")
    clock.advance("1 min")
    enqueue_many(conn, 2, queue="high", priority=5)
    enqueue_many(conn, 2, queue="low", priority=-5)
    enqueue_many(conn, 2, queue="paused", priority=9)
    call(conn, "pause_queue", "paused")
    call(conn, "hello", "w", queues, Jsonb(info))
    found = explain(conn, job_id)
    assert found.reason == "turn"
    first = found.detail.partition("serve first: ")[2]
    assert [each.split()[1].rstrip(",") for each in first.split("; ") if each] == sorted(
        expected, key=lambda name: name != "old"
    )
    if "old" in expected:
        assert "queue old, priority 0 (3 due)" in first
    # A worker that serves it alone serves nothing before it.
    call(conn, "hello", "other", ["mail"])
    assert "serve first" not in explain(conn, job_id).detail
