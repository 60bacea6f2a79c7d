"""update_job() and update_many() change what was never started, and only what is given."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, job, maintain, reserve, reserve_one, table, value

NOON = "2030-01-01 12:00+00"


def refused(conn: psycopg.Connection, job_id: int, **changes: Any) -> str:
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as error:
        call(conn, "update_job", job_id, **changes)
    return error.value.diag.message_detail or ""


def test_only_what_is_given_changes_and_it_is_audited(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    job_id = enqueue(conn, args={"a": 1}, queue="mail", priority=3, limit_key="acme", expires_in="1 h")
    assert call(conn, "update_job", job_id, args=Jsonb({"b": 2})) is True
    row = job(conn, job_id)
    assert (row.args, row.queue, row.priority, row.limit_key) == ({"b": 2}, "mail", 3, "acme")
    assert call(conn, "update_job", job_id, queue="slow", priority=-1, run_at="2030-01-01 13:00+00", limit_key="")
    row = job(conn, job_id)
    assert (row.args, row.queue, row.priority, row.limit_key) == ({"b": 2}, "slow", -1, None)
    assert str(row.run_at)[11:16] == "13:00"
    # It keeps its distance to run_at.
    assert row.expires_at - row.run_at == timedelta(hours=1)
    audited = conn.execute("select action, filter from pgqueue.audit order by n").fetchall()
    assert [row[0] for row in audited] == ["update_job", "update_job"]
    assert audited[0][1] == {"job_id": job_id, "args": "changed"}


def test_a_job_that_is_moved_is_found_in_its_new_lane_below_whose_head_its_time_was(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set(NOON)
    job_id = enqueue(conn, queue="old")
    clock.advance("1 h")
    # The head of the other lane moves past the time of the job.
    for _ in range(5):
        enqueue_many(conn, 3, queue="new")
        table(conn, "reserve", "w", 3, queues=["new"])
        clock.advance("3 s")
        maintain(conn)
    assert call(conn, "update_job", job_id, queue="new") is True
    assert [each.id for each in table(conn, "reserve", "w", 1, queues=["new"])] == [job_id]


def test_what_cannot_be_changed_is_refused_with_the_reason(conn: psycopg.Connection) -> None:
    assert call(conn, "update_job", 999, priority=1) is False
    executing = enqueue(conn)
    held = reserve_one(conn, "press-1")
    assert refused(conn, executing, priority=1) == "Worker press-1 executes it."
    call(conn, "fail", executing, held.reservation, retry_in="0")
    assert "attempted" in refused(conn, executing, priority=1)
    assert call(conn, "update_job", executing, args=Jsonb({"a": 1})) is True
    held = reserve_one(conn)
    assert held.args == {"a": 1}
    call(conn, "complete", executing, held.reservation)
    assert refused(conn, executing, args=Jsonb({})) == "It has ended: succeeded."
    group = call(conn, "open_group", "g")
    assert refused(conn, group, priority=1) == "It is a group."
    stepped = enqueue(conn)
    held = reserve_one(conn)
    call(conn, "complete_step", stepped, held.reservation, "s", None)
    call(conn, "release", [stepped], [held.reservation])
    assert "completed steps" in refused(conn, stepped, args=Jsonb({}))
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="nothing to change"):
        call(conn, "update_job", stepped)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="priority must be between"):
        call(conn, "update_job", stepped, priority=101)


def test_a_job_that_was_prefetched_and_given_back_can_be_changed(conn: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    held = reserve_one(conn)
    call(conn, "release", [job_id], [held.reservation])
    assert call(conn, "update_job", job_id, priority=5) is True
    assert reserve_one(conn).priority == 5


def test_a_dead_job_gets_other_args_and_runs_with_them(conn: psycopg.Connection) -> None:
    job_id = enqueue(conn, args={"price": "12,90"})
    call(conn, "fail", job_id, reserve_one(conn).reservation, retry=False)
    assert "only its args" in refused(conn, job_id, queue="other")
    assert call(conn, "update_job", job_id, args=Jsonb({"price": "12.90"})) is True
    assert call(conn, "retry", job_id) is True
    assert reserve_one(conn).args == {"price": "12.90"}


@pytest.mark.parametrize("change", [{"run_at": "2030-01-02 12:00+00"}, {"queue": "other"}])
def test_a_job_that_gives_up_its_position_lets_the_next_of_its_key_start(
    conn: psycopg.Connection, clock: Clock, change: dict[str, Any]
) -> None:
    clock.set(NOON)
    first = enqueue(conn, key="k", priority=-5)
    second, third = enqueue_many(conn, 2, key="k")
    # A claim blocks those that are behind the first.
    blocked = "select count(*) from pgqueue.jobs where state = 'blocked'"
    conn.execute("update pgqueue.jobs set state = 'blocked' where id = any (%s)", [[second, third]])
    assert value(conn, blocked) == 2
    assert call(conn, "update_job", first, **change) is True
    assert value(conn, blocked) == 1
    assert [each.id for each in table(conn, "reserve", "w", 10, queues=["default"])] == [second]


def test_a_job_at_a_limit_goes_on_under_another_tenant(conn: psycopg.Connection) -> None:
    call(conn, "set_limit", "limit_key", "*", max_executing=1)
    _, waits = enqueue_many(conn, 2, limit_key="a")
    assert len(reserve(conn, 2)) == 1
    assert job(conn, waits).state == "blocked"
    assert call(conn, "update_job", waits, limit_key="b") is True
    assert reserve_one(conn).id == waits


def test_a_child_goes_on_waiting_for_its_parents_and_then_starts_where_it_was_moved(conn: psycopg.Connection) -> None:
    parent = enqueue(conn)
    child = enqueue(conn, depends_on=[parent])
    assert call(conn, "update_job", child, queue="other", priority=7) is True
    held = reserve_one(conn)
    assert held.id == parent
    call(conn, "complete", parent, held.reservation)
    maintain(conn)
    started = reserve_one(conn)
    assert (started.id, started.queue, started.priority) == (child, "other", 7)


def test_a_job_that_suspended_itself_goes_on_waiting_and_comes_back_where_it_was_moved(
    conn: psycopg.Connection,
) -> None:
    enqueue(conn)
    held = reserve_one(conn)
    awaited = enqueue(conn, "awaited", delay="1 day")
    assert call(conn, "suspend", held.id, held.reservation, depends_on=[awaited]) == "suspended"
    assert call(conn, "update_job", held.id, queue="slow", priority=5) is True
    assert reserve(conn, 10) == []
    assert job(conn, held.id).state == "blocked"
    call(conn, "cancel", awaited)
    [again] = reserve(conn, 10)
    assert (again.id, again.queue, again.priority) == (held.id, "slow", 5)


def test_many_are_changed_by_a_filter_portion_by_portion(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 5, "import", queue="mail")
    enqueue_many(conn, 3, "send", queue="mail")
    reserve(conn, 1)
    changed, after = 0, None
    while True:
        filter = Jsonb({"queues": ["mail"], "tasks": ["import"]})
        [done] = table(conn, "update_many", filter, queue="slow", priority=-10, max_jobs=2, after=after)
        changed += done.changed
        after = None if done.next_after is None else Jsonb(done.next_after)
        if after is None:
            break
    assert changed == 4
    assert value(conn, "select count(*) from pgqueue.jobs where queue = 'slow' and priority = -10") == 4
    assert value(conn, "select sum(changed) from pgqueue.audit where action = 'update_many'") == 4
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="filter is empty"):
        call(conn, "update_many", Jsonb({}), priority=1)
    # As array_agg() over no row gives it.
    for field in ("ids", "queues", "errors", "args"):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="null"):
            call(conn, "update_many", Jsonb({field: None}), priority=1)
    for no_object in (None, 0, "mail", []):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="filter must be an object"):
            call(conn, "update_many", Jsonb(no_object), priority=1)


def test_a_job_that_another_session_holds_is_skipped(conn: psycopg.Connection, database: Any) -> None:
    first, second = enqueue_many(conn, 2)
    other = database.connect(autocommit=False)
    other.execute("select from pgqueue.jobs where id = %s for update", [first])
    [done] = table(conn, "update_many", Jsonb({"queues": ["default"]}), priority=4)
    assert (done.changed, done.passed_over) == (1, 1)
    assert job(conn, second).priority == 4
    other.rollback()


@pytest.mark.parametrize(("before", "after"), [("1 day", "-2 hours"), ("-1 day", "1 day")])
def test_a_time_in_the_past_is_now_for_when_a_job_expires(
    conn: psycopg.Connection, clock: Clock, before: str, after: str
) -> None:
    clock.set("2030-01-01 12:00+00")
    run_at = "select pgqueue._clock() + %s::interval"
    moved = enqueue(conn, run_at=value(conn, run_at, before), expires_in="1 hour")
    assert call(conn, "update_job", moved, run_at=value(conn, run_at, after)) is True
    left = "select expires_at - greatest(run_at, pgqueue._clock()) from pgqueue.jobs"
    assert value(conn, left) == timedelta(hours=1)
    assert call(conn, "update_job", moved, priority=5) is True
    assert value(conn, left) == timedelta(hours=1)
