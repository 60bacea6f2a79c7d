"""Accumulating tasks: all due payloads of a key go to one call, and share its fate."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import Row, call, column, enqueue, ids, job, maintain, pairs, reserve, reserve_one, state, table, value


@pytest.fixture
def acc(conn: psycopg.Connection, clock: Clock) -> psycopg.Connection:
    """A database with the task `acc`, whose payloads accumulate, and a clock that stands."""
    clock.set("2030-01-01 12:00+00")
    call(conn, "declare_task", "acc", accumulate=True)
    return conn


def push(conn: psycopg.Connection, n: object, key: str = "k", **options: object) -> int:
    return enqueue(conn, "acc", {"n": n}, key=key, **options)


def payloads(rows: list[Row]) -> list[object]:
    return [row.args["n"] for row in rows]


def left_behind(conn: psycopg.Connection) -> int:
    maintain(conn)
    found: int = value(conn, "select unblocked from pgqueue.maintenance_runs order by n desc limit 1")
    return found


@pytest.mark.covers("L3")
def test_all_due_payloads_of_a_key_go_to_one_call_by_score(acc: psycopg.Connection) -> None:
    for n, score in ((1, 30), (2, 10), (3, 20)):
        push(acc, n, score=score)
    push(acc, 4, delay="1 hour")
    rows = reserve(acc, 1)
    assert payloads(rows) == [2, 3, 1]
    assert {row.leader for row in rows} == {rows[0].id}
    assert [row.score for row in rows] == [10, 20, 30]
    assert call(acc, "complete", rows[0].id, rows[0].reservation) is True
    assert {state(acc, row.id) for row in rows} == {"succeeded"}
    assert reserve(acc, 10) == []


@pytest.mark.covers("L3")
def test_without_a_score_payloads_go_by_the_time_of_their_enqueue(acc: psycopg.Connection, clock: Clock) -> None:
    push(acc, "future", delay="5 s")
    clock.advance("1 s")
    push(acc, "then")
    clock.advance("10 s")
    push(acc, "now")
    push(acc, "first", score=0)
    assert payloads(reserve(acc, 1)) == ["first", "future", "then", "now"]


@pytest.mark.covers("L4")
def test_equal_payloads_become_one_with_the_smallest_score(acc: psycopg.Connection) -> None:
    dear, cheap, other = push(acc, 1, score=9), push(acc, 1, score=2), push(acc, 2, score=5)
    rows = reserve(acc, 1)
    assert ids(rows) == [cheap, other]
    merged = job(acc, dear)
    assert merged.state == "succeeded"
    assert value(acc, "select merged_into from pgqueue.history where id = %s", dear) == cheap


@pytest.mark.covers("L6")
def test_a_call_gets_up_to_batch_size_keys_with_all_their_payloads(acc: psycopg.Connection) -> None:
    acc.execute("update pgqueue.tasks set batch_size = 2 where name = 'acc'")
    for key in ("a", "b", "c"):
        push(acc, 1, key), push(acc, 2, key)
    rows = reserve(acc, 1)
    assert [(row.key, row.args["n"]) for row in rows] == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    assert {row.leader for row in rows} == {rows[0].id}
    [*rest] = reserve(acc, 1)
    assert {row.key for row in rest} == {"c"}


@pytest.mark.covers("L6")
def test_max_jobs_counts_calls(acc: psycopg.Connection) -> None:
    for key in ("a", "b", "c"):
        for n in range(3):
            push(acc, n, key)
    plain = enqueue(acc)
    rows = reserve(acc, 2)
    assert {row.key for row in rows} == {"a", "b"}
    assert len(rows) == 6
    assert len({row.leader for row in rows}) == 2
    rest = reserve(acc, 2)
    assert (len(rest), plain in ids(rest)) == (4, True)


@pytest.mark.covers("L3")
def test_a_call_gets_at_most_a_thousand_payloads_of_a_key(acc: psycopg.Connection) -> None:
    acc.execute("select pgqueue.enqueue('acc', jsonb_build_object('n', n), key => 'k') from generate_series(1, 1500) n")
    rows = reserve(acc, 1)
    assert payloads(rows) == list(range(1, 1001))
    assert call(acc, "complete", rows[0].id, rows[0].reservation) is True
    again = reserve(acc, 1)
    assert payloads(again) == list(range(1001, 1501))
    assert left_behind(acc) == 0


@pytest.mark.covers("L2")
def test_payloads_that_come_while_a_call_runs_go_to_the_next(acc: psycopg.Connection) -> None:
    push(acc, 1)
    [first] = reserve(acc, 1)
    push(acc, 2), push(acc, 3)
    assert reserve(acc, 10) == []
    call(acc, "complete", first.id, first.reservation)
    assert payloads(reserve(acc, 10)) == [2, 3]
    assert left_behind(acc) == 0


@pytest.mark.covers("L5", "L7")
def test_a_failed_call_is_retried_on_its_own_count_and_fresh_payloads_wait_with_it(
    acc: psycopg.Connection, clock: Clock
) -> None:
    push(acc, 1), push(acc, 2)
    now = clock.now()
    rows = reserve(acc, 1)
    assert [row.max_attempts for row in rows] == [26, 26]
    assert call(acc, "fail", rows[0].id, rows[0].reservation) == "failed"
    [[ready_at]] = acc.execute("select distinct ready_at from pgqueue.jobs").fetchall()
    delay = ready_at - now
    assert timedelta(seconds=15) <= delay <= timedelta(seconds=45)
    fresh = push(acc, 3)
    assert reserve(acc, 10) == []
    assert [left_behind(acc) for _ in range(2)] == [0, 0]
    assert state(acc, fresh) == "blocked"
    clock.advance("46 s")
    again = reserve(acc, 10)
    assert payloads(again) == [1, 2, 3]
    assert {row.attempt for row in again} == {2}


@pytest.mark.covers("L5")
def test_an_earlier_payload_that_comes_due_in_the_backoff_waits_as_well(acc: psycopg.Connection, clock: Clock) -> None:
    early = push(acc, 1, delay="5 s")
    push(acc, 2)
    [row] = reserve(acc, 1)
    call(acc, "fail", row.id, row.reservation, retry_in="1 min")
    clock.advance("10 s")
    assert reserve(acc, 10) == []
    assert state(acc, early) == "blocked"
    assert [left_behind(acc) for _ in range(3)] == [0, 0, 0]
    clock.advance("50 s")
    assert payloads(reserve(acc, 10)) == [1, 2]


@pytest.mark.covers("L8")
def test_out_of_attempts_only_the_lowest_score_is_dead_and_the_others_go_on_at_once(acc: psycopg.Connection) -> None:
    acc.execute("update pgqueue.tasks set max_attempts = 2, retry_policy = 'fixed', retry_delay = '0'")
    for n in (1, 2, 3):
        push(acc, n, score=n)
    first = reserve(acc, 1)
    assert call(acc, "fail", first[0].id, first[0].reservation) == "failed"
    second = reserve(acc, 1)
    assert {row.attempt for row in second} == {2}
    assert call(acc, "fail", second[0].id, second[0].reservation, Jsonb({"class": "Oops"})) == "dead"
    assert (state(acc, second[0].id), payloads(second)[0]) == ("dead", 1)
    assert job(acc, second[0].id).errors[-1]["class"] == "Oops"
    third = reserve(acc, 1)
    assert payloads(third) == [2, 3]
    assert {row.attempt for row in third} == {1}


@pytest.mark.covers("L8")
def test_payloads_that_go_back_without_the_first_one_are_found_whatever_their_priorities(
    acc: psycopg.Connection, clock: Clock
) -> None:
    acc.execute("update pgqueue.tasks set max_attempts = 1")
    dead, other = push(acc, 1, score=1), push(acc, 2, score=2, priority=5)
    first = reserve(acc, 1, lease="1 day")
    assert ids(first) == [dead, other]
    for _ in range(5):
        clock.advance("31 min")
        maintain(acc)
    assert value(acc, "select count(*) from pgqueue.lanes") == 0, "the lanes of both are empty, and have left"
    assert call(acc, "fail", dead, first[0].reservation) == "dead"
    assert ids(reserve(acc, 1)) == [other]
    maintain(acc)
    assert value(acc, "select found_lanes from pgqueue.maintenance_runs order by n desc limit 1") == 0


@pytest.mark.covers("L9")
def test_a_dead_payload_that_is_retried_merges_with_what_waits(acc: psycopg.Connection) -> None:
    dead = push(acc, 1, score=7)
    [row] = reserve(acc, 1)
    assert call(acc, "fail", row.id, row.reservation, retry=False) == "dead"
    push(acc, 2, score=1)
    call(acc, "retry", dead)
    rows = reserve(acc, 1)
    assert payloads(rows) == [2, 1]
    assert {row.attempt for row in rows} == {1}


@pytest.mark.covers("L8")
def test_a_batch_that_must_not_be_retried_is_dead_with_all_its_payloads(acc: psycopg.Connection) -> None:
    push(acc, 1), push(acc, 2)
    rows = reserve(acc, 1)
    assert call(acc, "fail", rows[0].id, rows[0].reservation, retry=False) == "dead"
    assert {state(acc, row.id) for row in rows} == {"dead"}


@pytest.mark.covers("L13")
@pytest.mark.parametrize("how", ["release", "snooze", "release_unheld", "lease"])
def test_a_call_that_is_given_back_comes_back_whole_and_uncounted(
    acc: psycopg.Connection, clock: Clock, how: str
) -> None:
    maintain(acc)
    for n in range(3):
        push(acc, n)
    rows = reserve(acc, 1, lease="6 s")
    if how == "release":
        assert column(acc, "release", *pairs(rows[:1])) == []
    elif how == "snooze":
        assert call(acc, "snooze", rows[0].id, rows[0].reservation, "0") is True
    elif how == "release_unheld":
        assert column(acc, "release_unheld", "w") == [rows[0].id]
    else:
        for _ in range(3):
            clock.advance("3 s")
            maintain(acc)
    again = reserve(acc, 1)
    assert payloads(again) == [0, 1, 2]
    assert {row.attempt for row in again} == {1}
    assert call(acc, "complete", rows[0].id, rows[0].reservation) is False
    assert column(acc, "complete_many", *pairs(again)) == []
    assert {state(acc, row.id) for row in again} == {"succeeded"}
    assert left_behind(acc) == 0


@pytest.mark.covers("L13")
def test_extending_the_first_payload_holds_the_whole_call(acc: psycopg.Connection, clock: Clock) -> None:
    maintain(acc)
    push(acc, 1), push(acc, 2)
    rows = reserve(acc, 1, lease="6 s")
    for _ in range(5):
        clock.advance("4 s")
        assert len(table(acc, "extend", *pairs(rows[:1]), "6 s")) == 1
        maintain(acc)
    assert {state(acc, row.id) for row in rows} == {"executing"}
    assert call(acc, "complete", rows[0].id, rows[0].reservation) is True


@pytest.mark.covers("A6")
def test_a_payload_that_is_to_be_cancelled_is_cancelled_when_its_batch_fails(acc: psycopg.Connection) -> None:
    push(acc, 1), push(acc, 2), push(acc, 3)
    rows = reserve(acc, 1)
    assert call(acc, "cancel", rows[1].id) == "requested"
    assert call(acc, "fail", rows[0].id, rows[0].reservation, retry_in="0") == "failed"
    assert state(acc, rows[1].id) == "cancelled"
    assert payloads(reserve(acc, 1)) == [1, 3]


@pytest.mark.covers("A6")
def test_a_first_payload_that_is_to_be_cancelled_goes_alone(acc: psycopg.Connection) -> None:
    push(acc, 1), push(acc, 2)
    rows = reserve(acc, 1)
    call(acc, "cancel", rows[0].id)
    assert call(acc, "fail", rows[0].id, rows[0].reservation) == "cancelled"
    again = reserve_one(acc)
    assert (again.id, again.attempt) == (rows[1].id, 1)


def test_a_payload_without_a_key_is_refused(acc: psycopg.Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
        enqueue(acc, "acc")
    assert refused.value.diag.message_hint


@pytest.mark.covers("L1")
def test_jobs_of_another_task_keep_their_place_among_payloads_of_the_same_key(acc: psycopg.Connection) -> None:
    push(acc, 1)
    between = enqueue(acc, key="k")
    push(acc, 2)
    first = reserve(acc, 10)
    assert payloads(first) == [1, 2]
    call(acc, "complete", first[0].id, first[0].reservation)
    assert ids(reserve(acc, 10)) == [between]


def test_payloads_blocked_by_a_limit_go_with_the_batch_that_gets_capacity(acc: psycopg.Connection) -> None:
    acc.execute("insert into pgqueue.limits (kind, target, max_executing) values ('task', 'acc', 0)")
    push(acc, 1)
    assert reserve(acc, 10) == []
    acc.execute("update pgqueue.limits set max_executing = 1")
    push(acc, 2)
    assert payloads(reserve(acc, 10)) == [1, 2]


def test_the_payloads_of_a_call_take_one_place_of_a_limit(acc: psycopg.Connection) -> None:
    acc.execute("insert into pgqueue.limits (kind, target, max_executing) values ('task', 'acc', 2)")
    for key in ("a", "b", "c"):
        push(acc, 1, key), push(acc, 2, key)
    rows = reserve(acc, 10)
    assert {row.key for row in rows} == {"a", "b"}
    assert len(rows) == 4
    assert call(acc, "complete", rows[0].id, rows[0].reservation) is True
    assert {row.key for row in reserve(acc, 10)} == {"c"}


def suspend(conn: psycopg.Connection, row: Row, parent: int) -> None:
    assert call(conn, "suspend", row.id, row.reservation, depends_on=[parent]) == "suspended"


@pytest.mark.covers("L1")
@pytest.mark.parametrize("others", ["new", "earlier", "member"])
def test_all_payloads_of_a_key_wait_for_one_that_suspended_itself(
    acc: psycopg.Connection, clock: Clock, others: str
) -> None:
    parent = enqueue(acc, queue="elsewhere", delay="1 day")
    other = push(acc, 1, delay="5 s", score=2) if others == "earlier" else None
    if others == "member":
        other = push(acc, 1, score=2)
    first = push(acc, 2, score=1)
    row = reserve(acc, 1)[0]
    assert row.id == first
    suspend(acc, row, parent)
    if others == "new":
        other = push(acc, 1, score=2)
    clock.advance("10 s")
    assert ids(reserve(acc, 10)) == []
    assert [left_behind(acc) for _ in range(3)] == [0, 0, 0]
    assert reserve(acc, 10) == []
    assert (state(acc, first), job(acc, first).blocked_on) == ("blocked", "@jobs")
    call(acc, "cancel", parent)
    again = reserve(acc, 10)
    assert [(row.id, row.leader, row.attempt) for row in again] == [(first, first, 1), (other, first, 1)]
    assert call(acc, "complete", first, again[0].reservation) is True
    assert left_behind(acc) == 0


@pytest.mark.covers("L1")
def test_payloads_that_waited_for_a_suspended_one_go_on_when_it_is_cancelled(acc: psycopg.Connection) -> None:
    parent = enqueue(acc, queue="elsewhere", delay="1 day")
    push(acc, 1)
    [row] = reserve(acc, 1)
    suspend(acc, row, parent)
    push(acc, 2), push(acc, 3)
    assert reserve(acc, 10) == []
    call(acc, "cancel", row.id)
    assert payloads(reserve(acc, 10)) == [2, 3]


@pytest.mark.covers("L1")
def test_a_suspended_payload_holds_no_other_key_and_no_other_task(acc: psycopg.Connection, clock: Clock) -> None:
    parent = enqueue(acc, queue="elsewhere", delay="1 day")
    before = enqueue(acc, "plain", key="k", delay="1 s")
    push(acc, 1)
    [row] = reserve(acc, 1)
    suspend(acc, row, parent)
    other = push(acc, 2, "other key")
    clock.advance("1 s")
    assert set(ids(reserve(acc, 10))) == {before, other}


def executing_under(conn: psycopg.Connection, limit_key: str) -> int:
    found: int = value(
        conn,
        "select count(distinct coalesce(leader, id)) from pgqueue.jobs where state = 'executing' and limit_key = %s",
        limit_key,
    )
    return found


@pytest.mark.covers("L3")
def test_a_call_gets_payloads_of_one_limit_key_alone(acc: psycopg.Connection) -> None:
    acc.execute("insert into pgqueue.limits (kind, target, max_executing) values ('limit_key', 'l', 1)")
    plain = enqueue(acc, "plain", limit_key="l")
    [full] = reserve(acc)
    assert full.id == plain
    push(acc, 1), push(acc, 2, limit_key="l"), push(acc, 3), push(acc, 4, limit_key="l")
    first = reserve(acc, 10)
    assert payloads(first) == [1, 3]
    assert executing_under(acc, "l") == 1
    call(acc, "complete", first[0].id, first[0].reservation)
    assert reserve(acc, 10) == []
    last = push(acc, 5)
    assert reserve(acc, 10) == []
    assert [left_behind(acc) for _ in range(2)] == [0, 0]
    assert state(acc, last) == "blocked"
    call(acc, "complete", full.id, full.reservation)
    second = reserve(acc, 10)
    assert payloads(second) == [2, 4]
    assert executing_under(acc, "l") == 1
    assert reserve(acc, 10) == []
    call(acc, "complete", second[0].id, second[0].reservation)
    assert payloads(reserve(acc, 10)) == [5]
    assert left_behind(acc) == 0


@pytest.mark.covers("L3")
def test_a_payload_at_its_limit_keeps_its_place_before_those_of_another_limit_key(acc: psycopg.Connection) -> None:
    acc.execute("insert into pgqueue.limits (kind, target, max_executing) values ('limit_key', 'l', 0)")
    limited = push(acc, 1, limit_key="l")
    push(acc, 2)
    assert reserve(acc, 10) == []
    assert (job(acc, limited).blocked_on, left_behind(acc)) == ("limit_key:l", 0)
    call(acc, "cancel", limited)
    assert payloads(reserve(acc, 10)) == [2]


@pytest.mark.covers("L5")
def test_a_failed_call_is_retried_with_payloads_of_its_limit_key(acc: psycopg.Connection, clock: Clock) -> None:
    push(acc, 1, limit_key="l")
    push(acc, 2)
    push(acc, 3, limit_key="l")
    [first, _] = reserve(acc, 10)
    call(acc, "fail", first.id, first.reservation, retry_in="10 s")
    assert reserve(acc, 10) == []
    clock.advance("11 s")
    push(acc, 4, limit_key="l")
    again = reserve(acc, 10)
    assert (payloads(again), {row.attempt for row in again}) == ([1, 3, 4], {2})
    call(acc, "complete", again[0].id, again[0].reservation)
    assert [(row.args["n"], row.attempt) for row in reserve(acc, 10)] == [(2, 1)]


@pytest.mark.covers("L6")
@pytest.mark.parametrize("limited_first", [False, True])
def test_keys_of_a_call_may_have_limit_keys_of_their_own(acc: psycopg.Connection, limited_first: bool) -> None:
    acc.execute("update pgqueue.tasks set batch_size = 3 where name = 'acc'")
    acc.execute("insert into pgqueue.limits (kind, target, max_executing) values ('limit_key', 'l', 1)")
    for key in ("a", "b"):
        for n in (1, 2):
            push(acc, n, key, limit_key="l" if (n == 1) == limited_first else None)
    rows = reserve(acc, 10)
    wanted = [("a", 1)] if limited_first else [("a", 1), ("b", 1)]
    assert [(row.key, row.args["n"]) for row in rows] == wanted
    assert executing_under(acc, "l") == (1 if limited_first else 0)


@pytest.mark.covers("L1")
@pytest.mark.parametrize("how", ["fail", "suspend"])
def test_an_earlier_payload_of_another_limit_key_runs_in_its_place_and_leaves_none_behind(
    acc: psycopg.Connection, clock: Clock, how: str
) -> None:
    parent = enqueue(acc, queue="elsewhere", delay="1 day")
    early = push(acc, 1, limit_key="l", delay="5 s")
    late = push(acc, 2)
    [row] = reserve(acc, 10)
    assert row.id == late
    if how == "fail":
        call(acc, "fail", row.id, row.reservation, retry_in="1 min")
    else:
        suspend(acc, row, parent)
    clock.advance("10 s")
    [row] = reserve(acc, 10)
    assert row.id == early
    call(acc, "cancel", parent)
    clock.advance("1 min")
    assert reserve(acc, 10) == []
    call(acc, "complete", row.id, row.reservation)
    assert payloads(reserve(acc, 10)) == [2]
    assert left_behind(acc) == 0


@pytest.mark.covers("L1")
def test_a_payload_does_not_wait_for_what_waits_for_another_of_its_batch(acc: psycopg.Connection) -> None:
    push(acc, 1), push(acc, 2)
    leader, member = reserve(acc, 1)
    enqueue(acc, queue="elsewhere")
    [other] = reserve(acc, 1)
    child = enqueue(acc, queue="elsewhere", depends_on=[member.id])
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="would make a circle"):
        call(acc, "suspend", leader.id, leader.reservation, depends_on=[child])
    suspend(acc, leader, other.id)
    assert reserve(acc, 10) == []
    assert state(acc, member.id) == "blocked"
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="would make a circle"):
        call(acc, "suspend", other.id, other.reservation, depends_on=[member.id])
