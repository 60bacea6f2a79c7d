"""Breakers: when they open, which attempt probes, and what counts for nothing."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import (
    Row,
    call,
    column,
    enqueue,
    enqueue_many,
    ids,
    maintain,
    pairs,
    reserve,
    reserve_one,
    table,
    value,
)

NOON = "2030-01-01 12:00+00"
KINDS = [("task", "t"), ("limit_key", "a"), ("limit_key", "*")]


@pytest.fixture
def clock(clock: Clock) -> Clock:
    clock.set(NOON)
    return clock


def fail(conn: psycopg.Connection, rows: list[Row], **options: Any) -> None:
    for row in rows:
        assert call(conn, "fail", row.id, row.reservation, retry_in="1 day", **options) is not None


def complete(conn: psycopg.Connection, rows: list[Row]) -> None:
    assert column(conn, "complete_many", *pairs(rows)) == []


def claim(conn: psycopg.Connection, max_jobs: int = 1, **options: Any) -> list[Row]:
    """What starts now. What comes back from a pause is due some microseconds later, one after the other."""
    rows: list[Row] = []
    for _ in range(3):
        if len(rows) < max_jobs:
            rows += reserve(conn, max_jobs - len(rows), **{"lease": "1 day", **options})
            conn.execute("select pgqueue_testing.advance_clock('20 us')")
    return rows


def opened(conn: psycopg.Connection) -> list[tuple[str, timedelta]]:
    """Which are open, and for how long they are."""
    found = conn.execute("select target, half_open_at - at from pgqueue.pauses where source = 'breaker' order by 1")
    return [(row[0], row[1]) for row in found]


def audited(conn: psycopg.Connection) -> list[tuple[str, str]]:
    rows = conn.execute("select action, actor from pgqueue.audit where action like '%%_breaker' order by n").fetchall()
    return [(row[0], row[1]) for row in rows]


def open_it(conn: psycopg.Connection, kind: str = "task", target: str = "t") -> None:
    call(conn, "set_breaker", kind, target, failures=0.5, of=4, pause="30 s")
    enqueue_many(conn, 20, limit_key="a")
    complete(conn, claim(conn, 2))
    fail(conn, claim(conn, 2))
    assert len(opened(conn)) == 1


@pytest.mark.parametrize(("kind", "target"), KINDS)
def test_a_breaker_opens_lets_one_probe_and_closes(
    conn: psycopg.Connection, clock: Clock, kind: str, target: str
) -> None:
    call(conn, "set_breaker", kind, target, failures=0.5, of=4, pause="30 s")
    enqueue_many(conn, 20, limit_key="a")
    free = enqueue(conn, "other", queue="q")
    complete(conn, claim(conn, 2))
    fail(conn, claim(conn, 1))
    # Of three attempts one failed: it takes four to say something.
    fail(conn, claim(conn, 1))
    assert opened(conn) == [("t" if kind == "task" else "a", timedelta(seconds=30))]
    assert ids(claim(conn, 5)) == [free]
    assert claim(conn, 5, queues=["default"]) == []
    clock.advance("30 s")
    [probe] = claim(conn, 5, queues=["default"])
    assert claim(conn, 5, queues=["default"]) == []
    complete(conn, [probe])
    assert opened(conn) == []
    assert len(claim(conn, 5, queues=["default"])) == 5
    me = value(conn, "select session_user::text")
    assert audited(conn) == [("set_breaker", me), ("open_breaker", "breaker"), ("close_breaker", "breaker")]


def test_a_probe_that_fails_opens_it_for_twice_as_long_up_to_an_hour(conn: psycopg.Connection, clock: Clock) -> None:
    open_it(conn)
    lasted = [30.0]
    for _ in range(8):
        clock.advance(f"{lasted[-1]} s")
        [probe] = claim(conn, 5)
        assert claim(conn, 5) == []
        fail(conn, [probe])
        lasted.append(opened(conn)[0][1].total_seconds())
        assert claim(conn, 5) == []
    assert lasted == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]


def test_attempts_that_were_reserved_before_it_opened_count_for_nothing(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "set_breaker", "task", "t", of=2)
    enqueue_many(conn, 10)
    early = reserve(conn, 4, lease="1 day")
    fail(conn, early[:2])
    assert len(opened(conn)) == 1
    complete(conn, early[2:3])
    assert len(opened(conn)) == 1
    clock.advance("30 s")
    # An old attempt that still runs keeps none from probing.
    [probe] = claim(conn, 5)
    fail(conn, early[3:])
    assert opened(conn) == [("t", timedelta(seconds=30))]
    complete(conn, [probe])
    assert opened(conn) == []


PASSES: dict[str, Any] = {
    # Its lease is not extended.
    "lost": lambda conn, row: None,
    "release": lambda conn, row: column(conn, "release", [row.id], [row.reservation]),
    "snooze": lambda conn, row: call(conn, "snooze", row.id, row.reservation, "1 hour"),
    "discard": lambda conn, row: call(conn, "fail", row.id, row.reservation, retry=False),
    "cancel": lambda conn, row: call(conn, "fail", row.id, row.reservation, cancel=True),
}


@pytest.mark.parametrize("how", PASSES)
def test_a_probe_that_neither_succeeds_nor_fails_leaves_it_to_the_next_one(
    conn: psycopg.Connection, clock: Clock, how: str
) -> None:
    open_it(conn)
    clock.advance("30 s")
    maintain(conn)
    [probe] = claim(conn, 5, lease="1500 ms")
    PASSES[how](conn, probe)
    for _ in range(3):
        clock.advance("1 s")
        maintain(conn)
    assert value(conn, "select count(*) from pgqueue.jobs where state = 'executing'") == 0
    [after] = claim(conn, 5)
    assert opened(conn) == [("t", timedelta(seconds=30))]
    complete(conn, [after])
    assert opened(conn) == []


def test_a_closed_breaker_makes_no_rule_of_a_claim(conn: psycopg.Connection) -> None:
    find = (
        "select candidates from pgqueue._find_due('w', null, 'weighted', null, 10, pgqueue._clock(), null, false, null)"
    )
    call(conn, "set_breaker", "task", "t", of=1)
    enqueue_many(conn, 3)
    assert value(conn, find) is None
    fail(conn, reserve(conn, 1))
    assert value(conn, find) is not None
    call(conn, "resume", "task", "t", "breaker")
    call(conn, "set_limit", "task", "t", max_executing=1)
    assert value(conn, find) is not None


@pytest.mark.parametrize("how", PASSES)
def test_what_is_given_back_discarded_or_cancelled_opens_nothing(
    conn: psycopg.Connection, clock: Clock, how: str
) -> None:
    call(conn, "set_breaker", "task", "t", of=1)
    enqueue(conn)
    maintain(conn)
    PASSES[how](conn, reserve_one(conn, lease="1500 ms"))
    for _ in range(3):
        clock.advance("1 s")
        maintain(conn)
    assert value(conn, "select count(*) from pgqueue.jobs where state = 'executing'") == 0
    assert (opened(conn), value(conn, "select count(*) from pgqueue.breaker_ends")) == ([], 0)


def test_a_throttled_attempt_counts_for_nothing(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "set_breaker", "task", "t", of=1)
    enqueue(conn)
    held = reserve_one(conn)
    assert call(conn, "throttled", held.id, held.reservation, "1 s") == "throttled"
    assert value(conn, "select count(*) from pgqueue.breaker_ends") == 0


def test_a_probe_that_runs_too_long_keeps_no_other_from_probing(conn: psycopg.Connection, clock: Clock) -> None:
    open_it(conn)
    clock.advance("30 s")
    [slow] = claim(conn, 5)
    clock.advance("59 s")
    assert claim(conn, 5) == []
    clock.advance("2 s")
    [second] = claim(conn, 5)
    complete(conn, [second])
    assert opened(conn) == []
    # It was reserved after the breaker opened: a normal attempt by now.
    fail(conn, [slow])
    assert value(conn, "select sum(failed) from pgqueue.breaker_ends where at > '2030-01-01 12:01'") == 1


def test_the_newest_attempts_decide_and_after_it_closed_they_are_counted_anew(
    conn: psycopg.Connection, clock: Clock
) -> None:
    call(conn, "set_breaker", "task", "t", failures=0.75, of=4)
    enqueue_many(conn, 30)
    for row in claim(conn, 10):
        complete(conn, [row])
    fail(conn, claim(conn, 2))
    assert opened(conn) == []
    fail(conn, claim(conn, 1))
    # Three of the newest four.
    assert len(opened(conn)) == 1
    clock.advance("30 s")
    complete(conn, claim(conn, 1))
    fail(conn, claim(conn, 2))
    assert opened(conn) == []
    fail(conn, claim(conn, 1))
    assert len(opened(conn)) == 1


def test_each_statement_that_stores_ends_writes_one_row_for_a_breaker(conn: psycopg.Connection) -> None:
    call(conn, "set_breaker", "task", "t", of=100)
    call(conn, "set_breaker", "limit_key", "a*", of=100)
    enqueue_many(conn, 10, limit_key="a1")
    enqueue_many(conn, 5, "other")
    complete(conn, reserve(conn, 15))
    rows = conn.execute("select kind, target, ended, failed from pgqueue.breaker_ends order by kind").fetchall()
    assert rows == [("limit_key", "a1", 10, 0), ("task", "t", 10, 0)]


def test_a_batch_of_an_accumulating_task_is_one_attempt(conn: psycopg.Connection) -> None:
    call(conn, "declare_task", "t", accumulate=True)
    call(conn, "set_breaker", "task", "t", of=100)
    for n in range(3):
        enqueue(conn, args={"n": n}, key="k")
        enqueue(conn, args={"n": n}, key="l")
    rows = reserve(conn, 2)
    leaders = [row for row in rows if row.leader == row.id]
    complete(conn, leaders[:1])
    fail(conn, leaders[1:])
    assert conn.execute("select ended, failed from pgqueue.breaker_ends order by n").fetchall() == [(1, 0), (1, 1)]


def test_an_operator_closes_and_removes_a_breaker(conn: psycopg.Connection, clock: Clock) -> None:
    open_it(conn, "limit_key", "a*")
    assert call(conn, "resume", "limit_key", "a", "breaker") is True
    assert len(claim(conn, 2)) == 2
    assert call(conn, "set_breaker", "limit_key", "a*", failures=0.5, of=4, pause="30 s") is False
    fail(conn, claim(conn, 4))
    assert len(opened(conn)) == 1
    assert call(conn, "remove_breaker", "limit_key", "a*") is True
    assert call(conn, "remove_breaker", "limit_key", "a*") is False
    assert opened(conn) == []
    fail(conn, claim(conn, 4))
    assert opened(conn) == []


def test_removing_the_breaker_of_a_prefix_leaves_open_what_another_breaker_has_opened(
    conn: psycopg.Connection, clock: Clock
) -> None:
    for target in ("host:*", "host:a", "host:long:*"):
        call(conn, "set_breaker", "limit_key", target, failures=0.5, of=2, pause="30 s")
    for value_of in ("host:a", "host:b", "host:long:b"):
        enqueue_many(conn, 2, limit_key=value_of)
    fail(conn, claim(conn, 6))
    assert [name for name, _ in opened(conn)] == ["host:a", "host:b", "host:long:b"]
    assert call(conn, "remove_breaker", "limit_key", "host:*") is True
    assert [name for name, _ in opened(conn)] == ["host:a", "host:long:b"]
    assert call(conn, "remove_breaker", "limit_key", "host:a") is True
    assert [name for name, _ in opened(conn)] == ["host:long:b"]


def test_removing_the_breaker_of_a_task_with_a_star_in_its_name_leaves_other_tasks(
    conn: psycopg.Connection, clock: Clock
) -> None:
    for task in ("t", "t*"):
        call(conn, "set_breaker", "task", task, failures=0.5, of=2, pause="30 s")
        enqueue_many(conn, 2, task)
        fail(conn, claim(conn, 2))
    assert [name for name, _ in opened(conn)] == ["t", "t*"]
    assert call(conn, "remove_breaker", "task", "t*") is True
    assert [name for name, _ in opened(conn)] == ["t"]


def test_an_operators_pause_outlasts_an_open_breaker(conn: psycopg.Connection, clock: Clock) -> None:
    open_it(conn)
    call(conn, "pause", "task", "t", clock.now() + timedelta(minutes=5))
    clock.advance("1 min")
    assert claim(conn, 5) == []
    clock.advance("4 min")
    assert len(claim(conn, 5)) == 1


def test_an_idle_worker_wakes_for_the_probe(conn: psycopg.Connection, clock: Clock) -> None:
    open_it(conn)
    assert claim(conn, 5) == []
    [idle] = table(conn, "idle", "w")
    assert idle.next_due == value(conn, "select half_open_at from pgqueue.pauses")


def test_explain_why_late_doctor_stats_and_metrics_know_an_open_breaker(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "declare_task", "t")
    call(conn, "hello", "w")
    open_it(conn)
    assert claim(conn, 20) == []
    job_id = value(conn, "select min(id) from pgqueue.jobs where state = 'blocked'")
    [found] = table(conn, "explain", job_id)
    assert found.reason == "breaker"
    assert found.detail.startswith("task t is stopped by its breaker since ")
    assert found.detail.endswith(" by breaker: 2 of 4 attempts failed")
    [late] = table(conn, "why_late", "default")
    assert (late.cause, late.subject) == ("breaker", "task:t")
    assert late.remedy.endswith("pgqueue limits resume task t --source breaker")
    [said] = [row for row in table(conn, "doctor") if row.topic == "breaker"]
    assert (said.severity, said.subject) == ("warning", "task:t")
    assert "2 of 4 attempts failed" in said.evidence
    [breaker] = call(conn, "stats")["breakers"]
    assert (breaker["kind"], breaker["failures"], breaker["opened"][0]["state"]) == ("task", 0.5, "open")
    found = [row for row in table(conn, "metrics") if row.name == "pgqueue_breakers_open"]
    assert [(row.labels, row.value) for row in found] == [({"kind": "task", "state": "open"}, 1)]
    clock.advance("31 s")
    [probe] = claim(conn, 1)
    [found] = table(conn, "explain", job_id if job_id != probe.id else job_id + 1)
    assert found.reason == "breaker"
    assert "is half-open since" in found.detail
    assert call(conn, "stats")["breakers"][0]["opened"][0]["state"] == "half_open"
    call(conn, "beat", "w")
    assert table(conn, "why_late", "default")[0].cause == "breaker"
    # Where nobody could try a job, that is the cause.
    call(conn, "bye", "w")
    [late] = table(conn, "why_late", "default")
    assert (late.cause, late.subject) == ("no_worker", "default")
    assert re.search(r"the queue has \d+ jobs? (due|blocked) since 20", late.evidence)


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (("queue", "q"), "kind is unknown"),
        (("task", "t", 0), "failures must be between 0.01 and 1"),
        (("task", "t", 0.5, 0), "of must be between 1 and 10000"),
        (("task", "t", 0.5, 1, "2 hours"), "pause must be between a second and an hour"),
    ],
)
def test_a_wrong_breaker_is_refused(conn: psycopg.Connection, args: tuple[Any, ...], found: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=found):
        call(conn, "set_breaker", *args)


def test_an_option_that_is_left_out_keeps_its_value(conn: psycopg.Connection) -> None:
    def stored() -> tuple[Any, ...] | None:
        return conn.execute("select failures, of, extract(epoch from pause)::integer from pgqueue.breakers").fetchone()

    assert call(conn, "set_breaker", "task", "t") is True
    assert stored() == (0.5, 20, 30)
    assert call(conn, "set_breaker", "task", "t", failures=0.25, of=8, pause="2 min") is True
    assert call(conn, "set_breaker", "task", "t") is False
    assert call(conn, "set_breaker", "task", "t", of=9) is True
    assert stored() == (0.25, 9, 120)


def test_maintenance_keeps_the_newest_opening(conn: psycopg.Connection, clock: Clock) -> None:
    open_it(conn)
    clock.advance("2 days")
    maintain(conn)
    assert conn.execute("select ended, since is not null from pgqueue.breaker_ends").fetchall() == [(0, True)]
    assert ids(claim(conn, 1)) != []
