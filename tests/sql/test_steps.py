"""Durable steps, sleeps, waits and events of one job."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import Row, call, enqueue, enqueue_many, job, maintain, reserve, reserve_one, state, table, value


def step(conn: psycopg.Connection, held: Row, name: str, result: object = None) -> bool:
    done: bool = call(conn, "complete_step", held.id, held.reservation, name, Jsonb(result))
    return done


def names(conn: psycopg.Connection, job_id: int) -> list[tuple[str, object]]:
    return [(row.name, row.result) for row in table(conn, "steps", job_id)]


def begin(conn: psycopg.Connection, **options: object) -> Row:
    enqueue(conn, **options)
    return reserve_one(conn)


def await_event(conn: psycopg.Connection, held: Row, event: str, **options: object) -> list[tuple[bool | None, object]]:
    rows = table(conn, "await_event", held.id, held.reservation, "wait", event, **options)
    return [(row.arrived, row.payload) for row in rows]


def test_the_next_attempt_finds_the_completed_steps(conn: psycopg.Connection) -> None:
    held = begin(conn)
    assert step(conn, held, "charge", {"id": 7})
    assert step(conn, held, "mail")
    call(conn, "fail", held.id, held.reservation, retry_in="0")
    again = reserve_one(conn)
    assert names(conn, again.id) == [("charge", {"id": 7}), ("mail", None)]


def test_the_first_result_of_a_name_stands(conn: psycopg.Connection) -> None:
    held = begin(conn)
    assert step(conn, held, "charge", 1)
    assert step(conn, held, "charge", 2)
    assert names(conn, held.id) == [("charge", 1)]


def test_a_step_is_fenced(conn: psycopg.Connection) -> None:
    held = begin(conn)
    call(conn, "snooze", held.id, held.reservation, "0")
    again = reserve_one(conn)
    assert not step(conn, held, "charge", 1)
    assert step(conn, again, "charge", 2)
    assert names(conn, held.id) == [("charge", 2)]


def test_a_step_extends_a_lease_that_is_half_over(conn: psycopg.Connection, clock: Clock) -> None:
    held = begin(conn)
    step(conn, held, "one")
    before = job(conn, held.id).lease_expires_at
    clock.advance("20 s")
    step(conn, held, "two")
    assert job(conn, held.id).lease_expires_at >= before + timedelta(seconds=19)


def test_history_keeps_names_of_what_succeeded_and_results_of_what_may_be_retried(conn: psycopg.Connection) -> None:
    for end in ("succeeded", "dead"):
        held = begin(conn)
        step(conn, held, "charge", {"id": 7})
        if end == "succeeded":
            call(conn, "complete", held.id, held.reservation)
        else:
            call(conn, "fail", held.id, held.reservation, retry=False)
        assert names(conn, held.id) == [("charge", {"id": 7} if end == "dead" else None)]
    assert value(conn, "select count(*) from pgqueue.steps") == 0
    call(conn, "retry", held.id)
    assert reserve_one(conn).id == held.id
    assert names(conn, held.id) == [("charge", {"id": 7})]
    call(conn, "cancel", held.id)


def test_deleting_a_job_deletes_its_steps(conn: psycopg.Connection) -> None:
    held = begin(conn)
    step(conn, held, "one")
    assert await_event(conn, held, "e") == [(None, None)]
    call(conn, "delete", held.id)
    assert value(conn, "select (select count(*) from pgqueue.steps) + (select count(*) from pgqueue.event_waits)") == 0


def test_limits_of_steps(conn: psycopg.Connection) -> None:
    held = begin(conn)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="name of a step"):
        step(conn, held, "")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="result of a step"):
        step(conn, held, "large", "x" * 1_100_000)
    conn.execute(
        "insert into pgqueue.steps (job_id, name, attempt, at) "
        "select %s, 's' || i, 1, now() from generate_series(1, 10000) i",
        [held.id],
    )
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="at most 10000 steps"):
        step(conn, held, "more")


def test_a_sleep_is_over_at_its_deadline_whatever_happens_meanwhile(conn: psycopg.Connection, clock: Clock) -> None:
    held = begin(conn, key="k")
    behind = enqueue(conn, key="k")
    assert call(conn, "sleep_step", held.id, held.reservation, "cool down", "1 day") is False
    assert reserve(conn) == []
    clock.advance("12 hours")
    call(conn, "run_now_many", job_ids=[held.id])
    held = reserve_one(conn)
    assert (held.attempt, call(conn, "sleep_step", held.id, held.reservation, "cool down", "1 day")) == (1, False)
    clock.advance("12 hours")
    held = reserve_one(conn)
    assert (held.attempt, held.id < behind) == (1, True)
    assert call(conn, "sleep_step", held.id, held.reservation, "cool down", "1 day") is True
    assert call(conn, "sleep_step", held.id, held.reservation + 1, "other", "1 day") is None


def test_a_job_waits_for_jobs_that_it_started(conn: psycopg.Connection) -> None:
    held = begin(conn)
    others = [enqueue(conn, "part") for _ in range(3)]
    assert call(conn, "suspend", held.id, held.reservation, depends_on=others) == "suspended"
    assert state(conn, held.id) == "blocked"
    [row] = table(conn, "explain", held.id)
    assert (row.reason, row.behind) == ("parents", others[0])
    assert row.detail == "waits for 3 jobs: " + ", ".join(f"{other} waiting" for other in others)
    for number, other in enumerate(others):
        part = reserve_one(conn)
        assert part.id == other
        if number:
            call(conn, "complete", part.id, part.reservation)
        else:
            call(conn, "fail", part.id, part.reservation, retry=False)
    again = reserve_one(conn)
    assert (again.id, again.attempt) == (held.id, 1)
    assert call(conn, "suspend", again.id, again.reservation, depends_on=others) == "ready"
    assert call(conn, "suspend", held.id, held.reservation, depends_on=others) is None
    call(conn, "complete", again.id, again.reservation)
    maintain(conn)
    assert value(conn, "select (select count(*) from pgqueue.dependencies) + (select count(*) from pgqueue.notes)") == 0


def test_suspend_until(conn: psycopg.Connection, clock: Clock) -> None:
    held = begin(conn)
    assert call(conn, "suspend", held.id, held.reservation, until=clock.now() + timedelta(hours=1)) == "suspended"
    assert reserve(conn) == []
    clock.advance("1 hour")
    held = reserve_one(conn)
    assert call(conn, "suspend", held.id, held.reservation, until=clock.now()) == "ready"
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="either until or depends_on"):
        call(conn, "suspend", held.id, held.reservation)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="either until or depends_on"):
        call(conn, "suspend", held.id, held.reservation, depends_on=[[held.id], [held.id]])


def test_an_event_wakes_its_waiter_once(conn: psycopg.Connection) -> None:
    held = begin(conn)
    assert await_event(conn, held, "paid:1", timeout="7 days") == [(None, None)]
    assert reserve(conn) == []
    assert call(conn, "emit_event", "paid:1", Jsonb({"amount": 5}))
    assert not call(conn, "emit_event", "paid:1", Jsonb({"amount": 6}))
    again = reserve_one(conn)
    assert (again.id, again.attempt) == (held.id, 1)
    assert await_event(conn, again, "paid:1") == [(True, {"amount": 5})]
    assert await_event(conn, again, "paid:1") == [(True, {"amount": 5})]
    assert await_event(conn, held, "paid:1") == []
    maintain(conn)
    assert value(conn, "select (select count(*) from pgqueue.event_waits) + (select count(*) from pgqueue.notes)") == 0


def test_a_wait_that_gets_a_timeout_later_ends_by_it(conn: psycopg.Connection, clock: Clock) -> None:
    """Newer code gives one, and an operator runs the job now."""
    held = begin(conn)
    assert await_event(conn, held, "paid:1") == [(None, None)]
    table(conn, "run_now_many", job_ids=[held.id])
    assert await_event(conn, reserve_one(conn), "paid:1", timeout="1 hour") == [(None, None)]
    clock.advance("1 hour")
    maintain(conn)
    assert await_event(conn, reserve_one(conn), "paid:1", timeout="1 hour") == [(False, None)]


def test_an_early_event_is_kept(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "emit_event", "paid:1", Jsonb(1), "1 hour")
    assert await_event(conn, begin(conn), "paid:1") == [(True, 1)]
    clock.advance("2 hours")
    assert await_event(conn, begin(conn), "paid:1") == [(None, None)]
    clock.advance("1 hour")
    maintain(conn)
    assert value(conn, "select count(*) from pgqueue.events") == 0
    assert call(conn, "emit_event", "paid:1", Jsonb(2))
    assert await_event(conn, reserve_one(conn), "paid:1") == [(True, 2)]


def test_a_wait_without_a_timeout_waits(conn: psycopg.Connection, clock: Clock) -> None:
    held = begin(conn)
    assert await_event(conn, held, "paid:1") == [(None, None)]
    clock.advance("1 day")
    assert reserve(conn) == []


def test_a_wait_times_out_once_and_for_all(conn: psycopg.Connection, clock: Clock) -> None:
    held = begin(conn)
    await_event(conn, held, "paid:1", timeout="1 hour")
    clock.advance("1 hour")
    held = reserve_one(conn)
    assert await_event(conn, held, "paid:1", timeout="1 hour") == [(False, None)]
    call(conn, "emit_event", "paid:1")
    assert await_event(conn, held, "paid:1") == [(False, None)]


def test_an_event_wakes_all_its_waiters(conn: psycopg.Connection, clock: Clock) -> None:
    jobs = []
    for _ in range(1200):
        held = begin(conn)
        await_event(conn, held, "go")
        jobs.append(held.id)
    call(conn, "emit_event", "go", Jsonb("now"))
    # In slices: a claim that comes up short reads the note of the rest.
    woken = 0
    for _ in range(50):
        woken += len(reserve(conn, 2000))
        clock.advance("100 ms")
    assert woken == 1200
    assert value(conn, "select count(*) from pgqueue.steps where result -> 'payload' = '\"now\"'") == 1200


def test_a_job_does_not_wait_for_what_waits_for_it(conn: psycopg.Connection) -> None:
    group = call(conn, "open_group")
    held, other = begin(conn, group_id=group), begin(conn)
    then = enqueue(conn, depends_on=[group])
    after = enqueue(conn, depends_on=[held.id])
    for waited in (group, then, after):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="would make a circle"):
            call(conn, "suspend", held.id, held.reservation, depends_on=[waited])
    assert call(conn, "suspend", held.id, held.reservation, depends_on=[other.id]) == "suspended"
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="would make a circle"):
        call(conn, "suspend", other.id, other.reservation, depends_on=[held.id])


def test_a_job_does_not_wait_for_another_of_its_key(conn: psycopg.Connection) -> None:
    held = begin(conn, key="k")
    behind, elsewhere = enqueue(conn, key="k"), enqueue(conn, key="k", queue="q")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="of the same key"):
        call(conn, "suspend", held.id, held.reservation, depends_on=[behind])
    assert call(conn, "suspend", held.id, held.reservation, depends_on=[elsewhere]) == "suspended"


def test_an_event_that_is_not_kept_reaches_all_that_wait(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue_many(conn, 2_500)
    for held in reserve(conn, 2_500):
        await_event(conn, held, "go", timeout="1 hour")
    call(conn, "emit_event", "go", Jsonb("now"), "0")
    # In slices; maintenance tidies events in between.
    for _ in range(4):
        maintain(conn)
        clock.advance("1 s")
    enqueue(conn, "late")
    woken = {row.id: row for row in reserve(conn, 5_000)}
    assert len(woken) == 2_501
    assert await_event(conn, woken.pop(2_501), "go") == [(None, None)]
    assert all(await_event(conn, held, "go") == [(True, "now")] for held in woken.values())


def test_a_job_waits_for_no_job_of_an_earlier_wait(conn: psycopg.Connection) -> None:
    held = begin(conn)
    earlier, parent = enqueue(conn), enqueue(conn)
    # As when another session had locked it.
    conn.execute(
        "insert into pgqueue.dependencies (parent, child, traceless) values (%s, %s, true)", [earlier, held.id]
    )
    call(conn, "suspend", held.id, held.reservation, depends_on=[parent])
    call(conn, "cancel", parent)
    assert state(conn, held.id) == "waiting"


@pytest.mark.parametrize("through", ["child", "suspended"])
def test_a_job_does_not_wait_for_what_waits_for_its_key(conn: psycopg.Connection, through: str) -> None:
    held, other = begin(conn, key="k"), begin(conn)
    behind = enqueue(conn, key="k")
    if through == "child":
        waited = enqueue(conn, depends_on=[behind])
    else:
        waited = other.id
        call(conn, "suspend", other.id, other.reservation, depends_on=[behind])
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="would make a circle"):
        call(conn, "suspend", held.id, held.reservation, depends_on=[waited])
    elsewhere = enqueue(conn, key="k", queue="q")
    assert call(conn, "suspend", held.id, held.reservation, depends_on=[elsewhere]) == "suspended"


def refused(conn: psycopg.Connection, held: Row, function: str, *args: object) -> str:
    with pytest.raises(psycopg.DataError) as raised:
        table(conn, function, held.id, held.reservation, *args)
    return raised.value.diag.message_primary or ""


def test_a_wait_for_another_event_under_the_same_step_is_refused_with_both_names(conn: psycopg.Connection) -> None:
    held = begin(conn)
    call(conn, "emit_event", "paid:1", Jsonb("for one"))
    assert await_event(conn, held, "paid:1") == [(True, "for one")]
    for _ in range(2):
        message = refused(conn, held, "await_event", "wait", "paid:2")
        assert message == "step 'wait' waits for event 'paid:1', not for 'paid:2'"
        call(conn, "snooze", held.id, held.reservation, "0")
        held = reserve_one(conn)
    assert await_event(conn, held, "paid:1") == [(True, "for one")]


def test_a_wait_that_goes_on_is_not_for_another_event(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    held = begin(conn)
    assert await_event(conn, held, "paid:1", timeout="1 min") == [(None, None)]
    clock.advance("2 min")
    held = reserve_one(conn)
    assert (
        refused(conn, held, "await_event", "wait", "paid:2") == "step 'wait' waits for event 'paid:1', not for 'paid:2'"
    )
    assert await_event(conn, held, "paid:1", timeout="1 min") == [(False, None)]
    assert (
        refused(conn, held, "await_event", "wait", "paid:2") == "step 'wait' waits for event 'paid:1', not for 'paid:2'"
    )


def test_an_event_that_wakes_a_job_names_itself_in_the_step(conn: psycopg.Connection) -> None:
    held = begin(conn)
    assert await_event(conn, held, "paid:1") == [(None, None)]
    call(conn, "emit_event", "paid:1", Jsonb(1))
    maintain(conn)
    held = reserve_one(conn)
    assert (
        refused(conn, held, "await_event", "wait", "paid:2") == "step 'wait' waits for event 'paid:1', not for 'paid:2'"
    )


def test_a_wait_or_sleep_under_the_name_of_another_step_is_refused(conn: psycopg.Connection) -> None:
    held = begin(conn)
    step(conn, held, "charge", {"id": 7})
    assert refused(conn, held, "await_event", "charge", "paid") == "step 'charge' is not a wait for an event"
    assert refused(conn, held, "sleep_step", "charge", timedelta(minutes=1)) == "step 'charge' is not a sleep"
    assert state(conn, held.id) == "executing"
