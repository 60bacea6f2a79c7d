"""Steps of accumulating tasks: a batch that has one stands still, and so do the other keys of its call."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import Row, call, enqueue, ids, job, maintain, reserve, reserve_one, state, table, value
from tests.databases import Database


@pytest.fixture
def acc(conn: psycopg.Connection, clock: Clock) -> psycopg.Connection:
    """A database with the task `acc`, whose payloads accumulate, and a clock that stands."""
    clock.set("2030-01-01 12:00+00")
    call(conn, "declare_task", "acc", accumulate=True, retry_policy="fixed", retry_delay="1 min", batch_size=10)
    return conn


def push(conn: psycopg.Connection, n: object, key: str = "k", **options: object) -> int:
    return enqueue(conn, "acc", {"n": n}, key=key, **options)


def payloads(rows: list[Row]) -> list[object]:
    return [row.args["n"] for row in rows]


def step(conn: psycopg.Connection, held: Row, name: str = "send") -> None:
    assert call(conn, "complete_step", held.id, held.reservation, name, Jsonb(name)) is True


def fail(conn: psycopg.Connection, held: Row) -> str:
    ended: str = call(conn, "fail", held.id, held.reservation)
    return ended


def names(conn: psycopg.Connection, job_id: int) -> list[str]:
    return [row.name for row in table(conn, "steps", job_id)]


def others(leader: Row, *held: Row) -> tuple[list[int], list[int]]:
    return [row.id for row in held], [row.reservation for row in held]


def test_a_payload_that_came_after_the_step_of_a_batch_is_in_the_next_batch(
    acc: psycopg.Connection, clock: Clock
) -> None:
    push(acc, "a")
    push(acc, "b")
    first = reserve(acc)
    step(acc, first[0])
    assert fail(acc, first[0]) == "failed"
    push(acc, "c")
    clock.advance("5 min")
    again = reserve(acc)
    assert payloads(again) == ["a", "b"]
    assert {row.leader for row in again} == {first[0].id}
    assert names(acc, again[0].id) == ["send"]
    assert reserve(acc) == [], "c waits for its key"
    call(acc, "complete", again[0].id, again[0].reservation)
    following = reserve(acc)
    assert payloads(following) == ["c"]
    assert names(acc, following[0].id) == []


def test_a_payload_does_not_wait_for_a_batch_with_a_step_that_is_blocked_as_well(
    acc: psycopg.Connection, clock: Clock
) -> None:
    early = push(acc, "early", delay="3 min")
    other = enqueue(acc, "t", key="k", delay="2 min")
    batch = push(acc, "batch")
    [held] = reserve(acc)
    step(acc, held)
    assert fail(acc, held) == "failed"
    clock.advance("2 min")
    [ahead] = reserve(acc)
    clock.advance("2 min")
    assert (ahead.id, reserve(acc)) == (other, [])
    assert (state(acc, early), state(acc, batch)) == ("blocked", "blocked")

    call(acc, "complete", ahead.id, ahead.reservation)
    [first] = reserve(acc)
    assert first.id == early
    call(acc, "complete", first.id, first.reservation)
    assert ids(reserve(acc)) == [batch]


def test_a_batch_without_a_step_takes_along_what_came_meanwhile(acc: psycopg.Connection, clock: Clock) -> None:
    push(acc, "a")
    [first] = reserve(acc)
    fail(acc, first)
    push(acc, "b")
    clock.advance("5 min")
    assert payloads(reserve(acc)) == ["a", "b"]


@pytest.mark.parametrize("leave", ["sleep", "snooze", "release", "lapse", "wait", "event"])
def test_a_batch_that_has_a_step_comes_back_whole_and_alone_however_it_went_back(
    acc: psycopg.Connection, clock: Clock, leave: str
) -> None:
    push(acc, "a")
    push(acc, "b")
    other = enqueue(acc, "other", queue="others")
    first = reserve(acc, queues=["default"])
    head = first[0]
    step(acc, head)
    match leave:
        case "sleep":
            assert call(acc, "sleep_step", head.id, head.reservation, "rest", "1 min") is False
        case "snooze":
            call(acc, "snooze", head.id, head.reservation, "1 min")
        case "release":
            call(acc, "release", [head.id], [head.reservation])
        case "lapse":
            clock.advance("1 hour")
            maintain(acc)
            clock.advance("1 hour")
            maintain(acc)
        case "wait":
            assert call(acc, "suspend", head.id, head.reservation, depends_on=[other]) == "suspended"
        case "event":
            table(acc, "await_event", head.id, head.reservation, "paid", "paid")
    push(acc, "c")
    push(acc, "d", key="other")
    if leave == "wait":
        call(acc, "cancel", other)
        maintain(acc)
    if leave == "event":
        call(acc, "emit_event", "paid", Jsonb(1))
        maintain(acc)
    clock.advance("5 min")
    batches = [payloads(reserve(acc, queues=["default"])), payloads(reserve(acc, queues=["default"]))]
    assert sorted(batches) == [["a", "b"], ["d"]]


def test_a_member_of_a_batch_with_a_step_runs_by_itself_where_its_task_accumulates_no_more(
    acc: psycopg.Connection, clock: Clock
) -> None:
    member, leader = push(acc, "member", score=2), push(acc, "leader", score=1)
    first = reserve(acc)
    assert ids(first) == [leader, member]
    step(acc, first[0])
    assert fail(acc, first[0]) == "failed"
    acc.execute("update pgqueue.tasks set accumulate = false where name = 'acc'")
    clock.advance("5 min")
    [held] = reserve(acc, 10)
    assert held.id == member
    # It has a lease, and its key.
    [row] = table(acc, "extend", [held.id], [held.reservation])
    assert row.lease_expires_at is not None
    maintain(acc)
    assert reserve(acc, 10) == []
    assert state(acc, leader) == "blocked"
    assert call(acc, "complete", held.id, held.reservation) is True
    assert ids(reserve(acc, 10)) == [leader]


def test_a_batch_that_has_a_step_shares_no_call_with_another_key(acc: psycopg.Connection, clock: Clock) -> None:
    push(acc, "a", key="1")
    [first] = reserve(acc)
    step(acc, first)
    fail(acc, first)
    clock.advance("5 min")
    for key in "0234":
        push(acc, key, key=key)
    calls = {}
    for row in reserve(acc, 10):
        calls.setdefault(row.leader, []).append(row.args["n"])
    assert sorted(sorted(each) for each in calls.values()) == [["0", "2", "3", "4"], ["a"]]


def test_a_claim_passes_by_a_batch_of_which_a_row_is_locked(
    acc: psycopg.Connection, clock: Clock, database: Database
) -> None:
    a, _ = push(acc, "a"), push(acc, "b")
    first = reserve(acc)
    step(acc, first[0])
    fail(acc, first[0])
    clock.advance("5 min")
    operator = database.connect()
    with operator.transaction():
        operator.execute("select from pgqueue.jobs where id = %s for update", (a,))
        assert reserve(acc) == [], "without its leader the batch would repeat its steps"
    clock.advance("2 s")
    assert payloads(reserve(acc)) == ["a", "b"]


@pytest.mark.parametrize("how", ["cancel", "delete", "cancel while it executes", "dead"])
def test_the_next_member_leads_and_has_the_steps_where_the_leader_ends_alone(
    acc: psycopg.Connection, clock: Clock, how: str
) -> None:
    a, b, _ = (push(acc, n, max_attempts=1 if how == "dead" else 5) for n in "abc")
    head = reserve(acc)[0]
    step(acc, head)
    if how == "cancel while it executes":
        call(acc, "cancel", a)
    fail(acc, head)
    if how in ("cancel", "delete"):
        call(acc, how, a)
    push(acc, "late")
    clock.advance("5 min")
    again = reserve(acc)
    assert payloads(again) == ["b", "c"]
    assert {row.leader for row in again} == {b}
    assert names(acc, b) == ["send"]
    call(acc, "complete", again[0].id, again[0].reservation)
    assert value(acc, "select count(*) from pgqueue.steps") == 0
    assert payloads(reserve(acc)) == ["late"]


def test_a_dead_batch_goes_on_where_it_stopped_when_it_is_retried(acc: psycopg.Connection) -> None:
    a, b = push(acc, "a"), push(acc, "b")
    head = reserve(acc)[0]
    step(acc, head)
    assert call(acc, "fail", head.id, head.reservation, retry=False) == "dead"
    assert {state(acc, id) for id in (a, b)} == {"dead"}
    call(acc, "retry", a)
    call(acc, "retry", b)
    push(acc, "c")
    seen = []
    while rows := reserve(acc):
        seen.append((payloads(rows), names(acc, rows[0].id)))
        call(acc, "complete", rows[0].id, rows[0].reservation)
    assert sorted(seen) == [(["a"], ["send"]), (["b"], ["send"]), (["c"], [])]


def test_history_of_a_batch_keeps_the_steps_with_its_leader(acc: psycopg.Connection) -> None:
    a, b = push(acc, "a"), push(acc, "b")
    head = reserve(acc)[0]
    step(acc, head)
    call(acc, "complete", head.id, head.reservation)
    assert names(acc, a) == ["send"]
    assert state(acc, b) == "succeeded"


def test_the_other_keys_of_a_call_get_its_steps_and_come_back_apart(acc: psycopg.Connection, clock: Clock) -> None:
    push(acc, "a", key="1")
    push(acc, "b", key="2")
    first, second = reserve(acc)
    assert first.leader == second.leader
    step(acc, first)
    call(acc, "share_steps", first.id, "send", *others(first, second))
    fail(acc, first)
    fail(acc, second)
    push(acc, "c", key="2")
    clock.advance("5 min")
    calls = [reserve(acc), reserve(acc)]
    assert sorted(payloads(again) for again in calls) == [["a"], ["b"]]
    assert [names(acc, again[0].id) for again in calls] == [["send"], ["send"]]


def test_a_sleep_puts_back_every_key_of_its_call(acc: psycopg.Connection, clock: Clock) -> None:
    for key in "12":
        push(acc, key, key=key)
        push(acc, key + "b", key=key)
    rows = reserve(acc)
    first, second = (next(row for row in rows if row.key == key) for key in "12")
    with acc.transaction():
        assert call(acc, "sleep_step", first.id, first.reservation, "rest", "1 min") is False
        call(acc, "share_steps", first.id, "rest", *others(first, second), True)
    assert {job(acc, row.id).state for row in rows} == {"waiting"}
    assert reserve(acc) == []
    clock.advance("5 min")
    calls = [reserve(acc), reserve(acc)]
    assert sorted(payloads(again) for again in calls) == [["1", "1b"], ["2", "2b"]]
    for again in calls:
        assert call(acc, "sleep_step", again[0].id, again[0].reservation, "rest", "1 min") is True
        assert {row.losses for row in again} == {0}


def test_a_wait_for_jobs_puts_back_every_key_of_its_call(acc: psycopg.Connection, clock: Clock) -> None:
    push(acc, "a", key="1")
    push(acc, "b", key="2")
    other = enqueue(acc, "other", queue="others")
    first, second = reserve(acc, queues=["default"])
    with acc.transaction():
        assert call(acc, "suspend", first.id, first.reservation, depends_on=[other]) == "suspended"
        call(acc, "share_steps", first.id, None, *others(first, second), True)
    maintain(acc)
    assert {job(acc, row.id).blocked_on for row in (first, second)} == {"@jobs"}
    call(acc, "cancel", other)
    maintain(acc)
    clock.advance("1 s")
    assert sorted(ids(reserve(acc, 10, queues=["default"]))) == sorted([first.id, second.id])


def test_a_wait_for_an_event_puts_back_every_key_of_its_call(acc: psycopg.Connection) -> None:
    push(acc, "a", key="1")
    push(acc, "b", key="2")
    first, second = reserve(acc)
    with acc.transaction():
        table(acc, "await_event", first.id, first.reservation, "paid", "paid:1")
        call(acc, "share_steps", first.id, "paid", *others(first, second), True)
    assert reserve(acc) == []
    call(acc, "emit_event", "paid:1", Jsonb(5))
    maintain(acc)
    for _ in range(2):
        [again] = reserve(acc)
        [answer] = table(acc, "await_event", again.id, again.reservation, "paid", "paid:1")
        assert (answer.arrived, answer.payload) == (True, 5)


def test_the_other_keys_run_again_where_the_leader_was_asked_to_cancel(acc: psycopg.Connection) -> None:
    push(acc, "a", key="1")
    push(acc, "b", key="2")
    first, second = reserve(acc)
    call(acc, "cancel", first.id)
    with acc.transaction():
        call(acc, "sleep_step", first.id, first.reservation, "rest", "1 min")
        call(acc, "share_steps", first.id, "rest", *others(first, second), True)
    assert state(acc, first.id) == "cancelled"
    assert reserve_one(acc).id == second.id


def test_the_steps_of_a_call_are_not_shared_with_a_key_that_is_lost(acc: psycopg.Connection) -> None:
    push(acc, "a", key="1")
    push(acc, "b", key="2")
    first, second = reserve(acc)
    call(acc, "release", [second.id], [second.reservation])
    step(acc, first)
    call(acc, "share_steps", first.id, "send", *others(first, second))
    assert names(acc, second.id) == []
