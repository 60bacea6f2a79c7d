"""exchange and fail_many: what a busy worker reports and asks for in one call."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import Row, call, enqueue, enqueue_many, ids, job, maintain, pairs, reserve, reserve_one, state, table

NOON = "2030-01-01 12:00+00"


@pytest.fixture
def clock(clock: Clock) -> Clock:
    clock.set(NOON)
    return clock


def exchange(conn: psycopg.Connection, max_jobs: int = 0, worker: str = "w", **parts: Any) -> list[Row]:
    return table(conn, "exchange", worker, max_jobs, **parts)


def completing(rows: list[Row]) -> dict[str, Any]:
    job_ids, reservations = pairs(rows)
    return {"completed": job_ids, "completed_reservations": reservations}


def failing(rows: list[Row]) -> dict[str, Any]:
    job_ids, reservations = pairs(rows)
    return {"failed": job_ids, "failed_reservations": reservations}


def outcomes(rows: list[Row]) -> list[tuple[str, int]]:
    return [(row.outcome, row.id) for row in rows]


def delays(conn: psycopg.Connection, clock: Clock, job_ids: list[int]) -> list[timedelta]:
    return [job(conn, job_id).due_at - clock.now() for job_id in job_ids]


# exchange


def test_one_call_completes_fails_extends_and_reserves(conn: psycopg.Connection, clock: Clock) -> None:
    job_ids = enqueue_many(conn, 7)
    done, gone, failed, dead, kept, stopped = reserve(conn, 6)
    call(conn, "complete", gone.id, gone.reservation)
    call(conn, "cancel", stopped.id)
    clock.advance("10 s")
    rows = exchange(
        conn,
        5,
        **completing([done, gone]),
        results=[Jsonb({"n": 1}), None],
        **failing([failed, dead]),
        errors=[Jsonb({"class": "E", "message": "first"}), Jsonb({"class": "E", "message": "second"})],
        retry_in=["1 min", None],
        retry=[None, False],
        extended=ids([kept, stopped]),
        extended_reservations=pairs([kept, stopped])[1],
        started=[True, False],
        lease="40 s",
    )
    assert outcomes(rows) == [
        ("lost", gone.id),
        ("failed", failed.id),
        ("dead", dead.id),
        ("extended", kept.id),
        ("cancel", stopped.id),
        ("reserved", job_ids[6]),
    ]
    assert [state(conn, job_id) for job_id in job_ids] == [
        "succeeded",
        "succeeded",
        "failed",
        "dead",
        "executing",
        "executing",
        "executing",
    ]
    assert job(conn, done.id).result == {"n": 1}
    assert delays(conn, clock, [failed.id]) == [timedelta(minutes=1)]
    assert [job(conn, each.id).errors[0]["message"] for each in (failed, dead)] == ["first", "second"]
    assert [row.lease_expires_at - clock.now() for row in rows[3:]] == [timedelta(seconds=40)] * 3
    assert (rows[5].task, rows[5].args, rows[5].attempt) == ("t", {"i": 6}, 1)


def test_what_it_reserves_is_what_reserve_returns(conn: psycopg.Connection) -> None:
    enqueue(conn, "t", {"x": 1}, key="k", priority=3, headers=Jsonb({"h": 2}), timeout="7 s", max_attempts=4)
    [taken] = exchange(conn, 3)
    call(conn, "release", [taken.id], [taken.reservation])
    again = reserve_one(conn)
    moving = ("reservation", "lease_expires_at")
    assert {name: getattr(taken, name) for name in again._fields if name not in moving} == {
        name: getattr(again, name) for name in again._fields if name not in moving
    }
    assert (taken.outcome, taken.note) == ("reserved", None)


def test_each_part_may_be_left_out(conn: psycopg.Connection) -> None:
    assert exchange(conn) == []
    enqueue_many(conn, 3)
    held = reserve(conn, 3)
    assert exchange(conn, **completing(held[:1])) == []
    assert outcomes(exchange(conn, **failing(held[1:2]))) == [("failed", held[1].id)]
    extended = exchange(conn, extended=[held[2].id], extended_reservations=[held[2].reservation])
    assert outcomes(extended) == [("extended", held[2].id)]
    assert state(conn, held[0].id) == "succeeded"


@pytest.mark.covers("L1")
@pytest.mark.parametrize("end", ["completed", "dead"])
def test_the_next_job_of_a_key_comes_with_the_end_of_the_one_before(conn: psycopg.Connection, end: str) -> None:
    first, second, third = enqueue_many(conn, 3, key="k")
    plain = enqueue(conn)
    held = reserve_one(conn)
    assert reserve(conn, 10)[0].id == plain  # and blocks the others
    assert [state(conn, job_id) for job_id in (second, third)] == ["blocked", "blocked"]
    parts = completing([held]) if end == "completed" else {**failing([held]), "retry": [False]}
    rows = exchange(conn, 10, **parts)
    assert outcomes(rows)[-1] == ("reserved", second)
    assert state(conn, third) == "blocked"
    assert held.id == first


@pytest.mark.covers("L1")
def test_a_job_of_a_key_that_fails_keeps_its_place_and_none_behind_it_comes(conn: psycopg.Connection) -> None:
    first, second = enqueue_many(conn, 2, key="k")
    held = reserve_one(conn)
    assert outcomes(exchange(conn, 10, **failing([held]), retry_in=["1 hour"])) == [("failed", first)]
    assert outcomes(exchange(conn, 10)) == []
    assert state(conn, second) == "blocked"


def test_a_job_blocked_by_a_limit_comes_with_the_end_of_the_one_that_reached_it(conn: psycopg.Connection) -> None:
    call(conn, "set_limit", "task", "t", max_executing=1)
    enqueue_many(conn, 3)
    [held] = reserve(conn, 3)
    [following] = exchange(conn, 3, **completing([held]))
    assert following.outcome == "reserved"
    [last] = exchange(conn, 3, **failing([following]), retry=[False])[1:]
    assert last.outcome == "reserved"


@pytest.mark.covers("L8")
def test_calls_of_an_accumulating_task_end_among_other_jobs(conn: psycopg.Connection) -> None:
    call(conn, "declare_task", "acc", accumulate=True)
    for key in ("a", "b"):
        for n in range(3):
            enqueue(conn, "acc", {"n": n}, key=key, score=n)
    enqueue_many(conn, 2)
    rows = reserve(conn, 10)
    leaders = [row for row in rows if row.leader == row.id]
    a, b = (next(row for row in rows if row.key == key) for key in ("a", "b"))
    plain = [row for row in rows if row.key is None]
    assert leaders
    reported = outcomes(exchange(conn, **completing([a, plain[0]]), **failing([plain[1], b]), retry=[True, False]))
    assert reported == [("failed", plain[1].id), ("dead", b.id)]
    assert Counter(state(conn, row.id) for row in rows) == {"succeeded": 4, "failed": 1, "dead": 3}


def test_a_job_that_is_named_twice_ends_once(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 2, max_attempts=9)
    done, failed = reserve(conn, 2)
    rows = exchange(conn, **completing([done, done]), **failing([done, failed, failed]), retry_in=["0", "0", "0"])
    assert outcomes(rows) == [("lost", done.id), ("failed", failed.id), ("lost", failed.id)]
    assert state(conn, done.id) == "succeeded"
    assert len(job(conn, failed.id).errors) == 1


def test_a_job_that_is_named_under_an_old_reservation_and_its_own_has_an_outcome_for_each(
    conn: psycopg.Connection,
) -> None:
    enqueue_many(conn, 2, max_attempts=9)
    old = reserve(conn, 2)
    call(conn, "release", *pairs(old))
    going, failed = reserve(conn, 2)
    named = [old[0], going]
    job_ids, reservations = pairs(named)
    rows = exchange(conn, extended=job_ids, extended_reservations=reservations, **failing([old[1], failed]))
    assert [(row.outcome, row.reservation) for row in rows] == [
        ("lost", old[1].reservation),
        ("failed", failed.reservation),
        ("lost", old[0].reservation),
        ("extended", going.reservation),
    ]
    assert state(conn, failed.id) == "failed"


# fail_many


@pytest.mark.covers("G10")
def test_each_of_a_batch_fails_as_it_would_alone(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "declare_task", "fixed", retry_policy="fixed", retry_delay="5 s", retry_jitter=0)
    call(conn, "declare_task", "listed", retry_policy="list", retry_delays=["7 s", "9 s"], retry_jitter=0)
    fixed, listed = enqueue(conn, "fixed"), enqueue(conn, "listed")
    own = enqueue(conn, "fixed", retry_policy="fixed", retry_delay="1 min", retry_queue="later")
    stopped, reportedf, last, by_call = (enqueue(conn, "fixed", max_attempts=n) for n in (9, 9, 1, 9))
    held = {row.id: row for row in reserve(conn, 10)}
    call(conn, "cancel", stopped)
    order = [by_call, last, reportedf, stopped, own, listed, fixed]
    rows = table(
        conn,
        "fail_many",
        order,
        [held[job_id].reservation for job_id in order],
        [Jsonb({"message": str(job_id)}) for job_id in order],
        retry_in=["3 s", *[None] * 6],
        retry=[True, True, True, True, None, None, None],
        policies=[None] * 7,
        cancel=[None, False, True, None, None, None, None],
    )
    assert [(row.job_id, row.state, row.policy_error) for row in rows] == [
        (by_call, "failed", None),
        (last, "dead", None),
        (reportedf, "cancelled", None),
        (stopped, "cancelled", None),
        (own, "failed", None),
        (listed, "failed", None),
        (fixed, "failed", None),
    ]
    assert [delay.total_seconds() for delay in delays(conn, clock, [by_call, listed, fixed])] == [3, 7, 5]
    assert job(conn, own).queue == "later"
    for job_id in order:
        assert [error["message"] for error in job(conn, job_id).errors] == [str(job_id)]
        assert [state(conn, job_id)] == [row.state for row in rows if row.job_id == job_id]


def test_of_several_failures_the_lost_ones_are_reported_and_the_others_fail(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 3)
    job_ids, reservations = pairs(reserve(conn, 3))
    wrong = [reservations[0], reservations[1] + 1, reservations[2]]
    rows = table(conn, "fail_many", job_ids, wrong)
    assert [(row.job_id, row.state) for row in rows] == list(zip(job_ids, ["failed", None, "failed"], strict=True))
    assert [state(conn, job_id) for job_id in job_ids] == ["failed", "executing", "failed"]
    assert table(conn, "fail_many", [], []) == []


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"retry_in": ["-1 s", None]}, "retry_in must be between zero and ten years: It is -00:00:01"),
        ({"retry_in": ["11 years", None]}, "ten years: It is 11 years"),
        ({"policies": ["polynomial", None]}, "policy is unknown: It is 'polynomial'"),
        ({"policies": ["list", None]}, "no retry_delays"),
        ({"policies": ["function", None]}, "no retry_function"),
    ],
)
def test_what_one_failure_cannot_have_spoils_no_other(
    conn: psycopg.Connection, clock: Clock, asked: dict[str, Any], reason: str
) -> None:
    call(conn, "declare_task", "t", retry_policy="fixed", retry_delay="5 s", retry_jitter=0)
    odd, plain = enqueue_many(conn, 2)
    job_ids, reservations = pairs(reserve(conn, 2))
    rows = table(conn, "fail_many", job_ids, reservations, [Jsonb({"message": "m"})] * 2, **asked)
    assert [row.state for row in rows] == ["failed", "failed"]
    assert reason in rows[0].policy_error
    assert rows[1].policy_error is None
    assert delays(conn, clock, [odd, plain]) == [timedelta(seconds=5)] * 2
    [error] = job(conn, odd).errors
    assert (error["message"], error["policy_error"]) == ("m", rows[0].policy_error)


def test_a_batch_keeps_to_the_retry_budgets_of_its_queues(conn: psycopg.Connection, clock: Clock) -> None:
    conn.execute("insert into pgqueue.queues (name, retry_budget) values ('a', 2), ('b', 1)")
    for queue in ("a", "b", "free"):
        enqueue_many(conn, 4, queue=queue)
    held = reserve(conn, 12)
    assert {row.outcome for row in exchange(conn, **failing(held), retry_in=["10 s"] * 12)} == {"failed"}
    seconds: dict[str, Counter[int]] = {}
    for row in held:
        due = (job(conn, row.id).due_at - clock.now()).total_seconds()
        seconds.setdefault(row.queue, Counter())[int(due)] += 1
    assert seconds == {"a": {10: 2, 11: 2}, "b": {10: 1, 11: 1, 12: 1, 13: 1}, "free": {10: 4}}


def test_a_retry_function_that_was_canceled_is_not_asked_again_in_the_same_batch(conn: psycopg.Connection) -> None:
    conn.execute("create schema app")
    conn.execute("create sequence app.asked")
    conn.execute(
        "create function app.policy(job jsonb, error jsonb) returns interval language plpgsql"
        " set search_path = pg_catalog, pg_temp"
        " as $f$ begin perform nextval('app.asked'); perform pg_sleep(60); return '1 s'; end $f$"
    )
    call(conn, "set_retry_function", "t", "app.policy")
    enqueue_many(conn, 3)
    job_ids, reservations = pairs(reserve(conn, 3))
    conn.execute("set statement_timeout = '3s'")
    rows = table(conn, "fail_many", job_ids, reservations)
    conn.execute("reset statement_timeout")
    assert [row.state for row in rows] == ["failed"] * 3
    assert "57014" in rows[0].policy_error
    assert all("not called" in row.policy_error for row in rows[1:])
    [(asked,)] = conn.execute("select last_value from app.asked").fetchall()
    assert asked == 1


@pytest.mark.covers("L1")
def test_a_failed_batch_lets_earlier_jobs_of_its_keys_go_first(conn: psycopg.Connection, clock: Clock) -> None:
    # The earlier one was not due when the later one started.
    earlier = enqueue(conn, key="k", delay="5 s")
    later = enqueue(conn, key="k")
    held = reserve_one(conn)
    assert held.id == later
    clock.advance("6 s")
    assert reserve(conn, 10) == []
    rows = exchange(conn, 10, **failing([held]), retry_in=["0"])
    assert outcomes(rows) == [("failed", later), ("reserved", earlier)]
    maintain(conn)
