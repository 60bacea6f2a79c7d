"""depends_on and run_if: when a job starts that waits for others, and what becomes of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import (
    call,
    column,
    enqueue,
    enqueue_many,
    ids,
    job,
    maintain,
    pairs,
    reserve,
    reserve_one,
    state,
    table,
    value,
)


def finish(conn: psycopg.Connection, job_id: int, how: str = "succeeded", result: Any = None) -> None:
    """Run the next job, which must be this one, to that end."""
    held = reserve_one(conn)
    assert held.id == job_id
    if how == "succeeded":
        assert call(conn, "complete", held.id, held.reservation, Jsonb(result))
    elif how == "dead":
        assert call(conn, "fail", held.id, held.reservation, Jsonb({"class": "E"}), retry=False) == "dead"
    else:
        assert call(conn, "fail", held.id, held.reservation, cancel=True) == "cancelled"


def last_error(conn: psycopg.Connection, job_id: int) -> str:
    errors = job(conn, job_id).errors
    found: str = errors[-1]["class"]
    return found


def leftovers(conn: psycopg.Connection) -> tuple[int, int]:
    """Rows of dependencies, and notes, once maintenance has read those that are due."""
    maintain(conn)
    return value(conn, "select count(*) from pgqueue.dependencies"), value(conn, "select count(*) from pgqueue.notes")


def test_a_child_starts_when_its_parent_has_succeeded(conn: psycopg.Connection) -> None:
    parent = enqueue(conn)
    child = enqueue(conn, depends_on=[parent])
    assert state(conn, child) == "blocked"
    held = reserve_one(conn)
    assert held.id == parent
    assert reserve(conn, 10) == []
    call(conn, "complete", held.id, held.reservation)
    assert state(conn, child) == "waiting"
    finish(conn, child)
    assert leftovers(conn) == (0, 0)


def test_a_chain_runs_on_within_one_exchange(conn: psycopg.Connection) -> None:
    first = enqueue(conn)
    second = enqueue(conn, depends_on=[first])
    third = enqueue(conn, depends_on=[second])
    held = reserve_one(conn)
    for expected in (second, third):
        rows = table(conn, "exchange", "w", 1, completed=[held.id], completed_reservations=[held.reservation])
        [held] = rows
        assert (held.outcome, held.id) == ("reserved", expected)


def test_a_child_waits_for_all_its_parents(conn: psycopg.Connection) -> None:
    parents = enqueue_many(conn, 3)
    child = enqueue(conn, depends_on=[*parents, parents[0]])
    assert job(conn, child).depends_on == parents
    rows = reserve(conn, 3)
    for row in rows[:2]:
        call(conn, "complete", row.id, row.reservation)
    maintain(conn)
    assert state(conn, child) == "blocked"
    call(conn, "complete", rows[2].id, rows[2].reservation)
    assert state(conn, child) == "waiting"
    assert leftovers(conn) == (0, 0)


@pytest.mark.parametrize("how", ["dead", "cancelled"])
def test_the_first_parent_that_fails_cancels_its_children_and_theirs(conn: psycopg.Connection, how: str) -> None:
    parent, other = enqueue_many(conn, 2)
    child = enqueue(conn, depends_on=[parent, other])
    grandchild = enqueue(conn, depends_on=[child])
    finish(conn, parent, how)
    assert (state(conn, child), state(conn, grandchild)) == ("cancelled", "cancelled")
    assert last_error(conn, child) == "ParentFailed"
    assert str(parent) in job(conn, child).errors[-1]["message"]
    assert state(conn, other) == "waiting"


def test_a_cascade_of_thousands_is_done_in_slices(conn: psycopg.Connection) -> None:
    parent = enqueue(conn)
    children = enqueue_many(conn, 2500, depends_on=[parent])
    last = enqueue(conn, depends_on=[children[-1]])
    finish(conn, parent, "dead")
    assert value(conn, "select count(*) from pgqueue.jobs where blocked_on = '@parents'") == 1501
    for _ in range(4):
        maintain(conn)
    assert value(conn, "select count(*) from pgqueue.jobs") == 0
    assert state(conn, last) == "cancelled"
    assert value(conn, "select count(*) from pgqueue.notes") == 0


@pytest.mark.long
def test_a_deep_chain_is_cancelled_whole(conn: psycopg.Connection) -> None:
    first = last = enqueue(conn)
    for _ in range(1200):
        last = enqueue(conn, depends_on=[last])
    call(conn, "cancel", first)
    for _ in range(3):
        maintain(conn)
    assert state(conn, last) == "cancelled"
    assert value(conn, "select count(*) from pgqueue.jobs") == 0


@pytest.mark.parametrize("how", ["succeeded", "dead", "cancelled"])
def test_run_if_finished_starts_whatever_became_of_the_parents(conn: psycopg.Connection, how: str) -> None:
    parent, other = enqueue_many(conn, 2)
    child = enqueue(conn, depends_on=[parent, other], run_if="finished")
    finish(conn, parent, how)
    assert state(conn, child) == "blocked"
    finish(conn, other)
    assert state(conn, child) == "waiting"
    assert leftovers(conn) == (0, 0)


def test_run_if_failed_starts_at_the_first_failure(conn: psycopg.Connection) -> None:
    parent, other = enqueue_many(conn, 2)
    alarm = enqueue(conn, depends_on=[parent, other], run_if="failed", priority=9)
    finish(conn, parent, "dead")
    assert state(conn, alarm) == "waiting"
    finish(conn, alarm)
    finish(conn, other, "dead")
    assert leftovers(conn) == (0, 0)


def test_run_if_failed_is_cancelled_when_all_have_succeeded(conn: psycopg.Connection) -> None:
    parents = enqueue_many(conn, 2)
    alarm = enqueue(conn, depends_on=parents, run_if="failed")
    for parent in parents:
        finish(conn, parent)
    assert state(conn, alarm) == "cancelled"
    assert last_error(conn, alarm) == "NotNeeded"


def test_a_failure_that_is_retried_is_no_end(conn: psycopg.Connection) -> None:
    parent = enqueue(conn)
    child = enqueue(conn, depends_on=[parent])
    held = reserve_one(conn)
    assert call(conn, "fail", held.id, held.reservation, retry_in="0") == "failed"
    maintain(conn)
    assert state(conn, child) == "blocked"
    finish(conn, parent)
    assert state(conn, child) == "waiting"


@pytest.mark.parametrize(
    ("how", "run_if", "then"),
    [
        ("succeeded", "succeeded", "waiting"),
        ("succeeded", "finished", "waiting"),
        ("succeeded", "failed", "cancelled"),
        ("dead", "succeeded", "cancelled"),
        ("dead", "finished", "waiting"),
        ("cancelled", "failed", "waiting"),
    ],
)
def test_a_parent_that_has_ended_before_counts_at_once(
    conn: psycopg.Connection, how: str, run_if: str, then: str
) -> None:
    parent = enqueue(conn)
    finish(conn, parent, how)
    child = enqueue(conn, depends_on=[parent], run_if=run_if)
    assert state(conn, child) == then


def test_a_parent_must_be_known(conn: psycopg.Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="depends_on names job 999"):
        enqueue(conn, depends_on=[999])
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="at most 1000"):
        enqueue(conn, depends_on=list(range(1, 1002)))
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="run_if"):
        enqueue(conn, depends_on=[enqueue(conn)], run_if="never")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="without depends_on"):
        enqueue(conn, run_if="failed")
    assert enqueue(conn, depends_on=[]) > 0


def test_deleting_a_parent_is_a_failure(conn: psycopg.Connection) -> None:
    parent, other = enqueue_many(conn, 2)
    child = enqueue(conn, depends_on=[parent])
    then = enqueue(conn, depends_on=[other], run_if="finished")
    assert call(conn, "delete", parent)
    assert state(conn, child) == "cancelled"
    table(conn, "purge_queue", "default")
    assert [(row.id, row.state) for row in table(conn, "parents", child)] == [(parent, "deleted")]
    # Purged with its queue.
    assert state(conn, then) is None
    assert leftovers(conn)[1] == 0


def test_a_child_can_be_cancelled_and_deleted_while_it_waits(conn: psycopg.Connection) -> None:
    parent = enqueue(conn)
    one, other = (enqueue(conn, depends_on=[parent], key=key) for key in (None, "k"))
    assert call(conn, "cancel", one) == "cancelled"
    assert call(conn, "delete", other)
    finish(conn, parent)
    assert state(conn, one) == "cancelled"
    assert leftovers(conn) == (0, 0)


def test_a_retried_parent_brings_its_children_back(conn: psycopg.Connection) -> None:
    parent = enqueue(conn)
    child = enqueue(conn, depends_on=[parent])
    grandchild = enqueue(conn, depends_on=[child])
    finish(conn, parent, "dead")
    assert call(conn, "retry", parent)
    assert (state(conn, child), state(conn, grandchild)) == ("blocked", "blocked")
    assert job(conn, child).errors is None
    for each in (parent, child, grandchild):
        finish(conn, each)
    assert leftovers(conn) == (0, 0)


def test_a_retried_parent_leaves_its_children_without_dependents(conn: psycopg.Connection) -> None:
    parent = enqueue(conn)
    child = enqueue(conn, depends_on=[parent])
    finish(conn, parent, "dead")
    assert call(conn, "retry", parent, dependents=False)
    finish(conn, parent)
    assert state(conn, child) == "cancelled"


def test_a_child_of_two_dead_parents_comes_back_when_both_are_retried(conn: psycopg.Connection) -> None:
    parents = enqueue_many(conn, 2)
    child = enqueue(conn, depends_on=parents)
    for parent in parents:
        finish(conn, parent, "dead")
    call(conn, "retry", parents[0])
    assert state(conn, child) == "cancelled"
    finish(conn, parents[0])
    call(conn, "retry", parents[1])
    assert state(conn, child) == "blocked"
    finish(conn, parents[1])
    assert state(conn, child) == "waiting"


def test_a_child_that_an_operator_cancelled_stays_so(conn: psycopg.Connection) -> None:
    parent = enqueue(conn)
    child = enqueue(conn, depends_on=[parent])
    finish(conn, parent, "dead")
    call(conn, "retry", parent)
    call(conn, "cancel", child)
    finish(conn, parent, "dead")
    call(conn, "retry", parent)
    maintain(conn)
    assert state(conn, child) == "cancelled"


def test_a_retried_child_waits_for_what_it_waited_for(conn: psycopg.Connection) -> None:
    parent = enqueue(conn)
    child = enqueue(conn, depends_on=[parent])
    call(conn, "cancel", child)
    assert call(conn, "retry", child)
    assert state(conn, child) == "blocked"
    finish(conn, parent)
    assert state(conn, child) == "waiting"


def test_a_retried_child_of_a_dead_parent_runs(conn: psycopg.Connection) -> None:
    parent = enqueue(conn)
    child = enqueue(conn, depends_on=[parent])
    finish(conn, parent, "dead")
    assert call(conn, "retry", child)
    finish(conn, child)
    assert leftovers(conn) == (0, 0)


def test_a_bulk_retry_of_a_chain_brings_the_chain_back(conn: psycopg.Connection) -> None:
    first = enqueue(conn)
    second = enqueue(conn, depends_on=[first])
    third = enqueue(conn, depends_on=[second])
    finish(conn, first, "dead")
    table(conn, "retry_many", everything=True)
    for each in (first, second, third):
        finish(conn, each)


def test_an_operator_may_let_a_child_start(conn: psycopg.Connection) -> None:
    parent = enqueue(conn)
    child = enqueue(conn, depends_on=[parent], priority=5)
    assert call(conn, "release_from_parents", child)
    assert not call(conn, "release_from_parents", child)
    finish(conn, child)
    finish(conn, parent)
    assert leftovers(conn) == (0, 0)


def test_a_child_waits_for_its_run_at_as_well(conn: psycopg.Connection) -> None:
    parent = enqueue(conn)
    child = enqueue(conn, depends_on=[parent], delay="1 hour")
    finish(conn, parent)
    assert state(conn, child) == "waiting"
    assert reserve(conn) == []


def test_expiry_bounds_the_waiting(conn: psycopg.Connection, clock: Any) -> None:
    parent = enqueue(conn)
    child = enqueue(conn, depends_on=[parent], expires_in="1 hour")
    clock.advance(timedelta(hours=2))
    maintain(conn)
    assert state(conn, child) == "cancelled"


def test_a_child_holds_no_place_in_its_key(conn: psycopg.Connection) -> None:
    # The parent has the later place: each would wait for the other.
    first = enqueue(conn, run_at="2999-01-01", key="k")
    child_of = enqueue(conn, key="k")
    child = enqueue(conn, key="k", depends_on=[child_of])
    behind = enqueue(conn, key="k")
    finish(conn, child_of)
    assert state(conn, child) == "waiting"
    finish(conn, child)
    finish(conn, behind)
    assert state(conn, first) == "waiting"


def test_dedupe_stands_while_a_child_waits(conn: psycopg.Connection) -> None:
    parent = enqueue(conn)
    child = enqueue(conn, depends_on=[parent], dedupe="d")
    assert enqueue(conn, dedupe="d") == child
    assert enqueue(conn, args={"new": 1}, dedupe="d", on_conflict="replace") == child
    assert state(conn, child) == "blocked"
    finish(conn, parent)
    assert reserve_one(conn).args == {"new": 1}


def test_results_of_parents_are_read_by_id(conn: psycopg.Connection) -> None:
    one, other = enqueue(conn, "fetch", retention="0"), enqueue(conn, "parse")
    child = enqueue(conn, depends_on=[one, other], run_if="finished")
    finish(conn, one, result={"rows": 3})
    rows = table(conn, "parents", child)
    assert [(row.id, row.task, row.state, row.result) for row in rows] == [
        (one, "fetch", "succeeded", {"rows": 3}),
        (other, "parse", "waiting", None),
    ]
    finish(conn, other, "dead")
    assert table(conn, "parents", child)[1].error["class"] == "E"


def test_explain_names_the_parents(conn: psycopg.Connection) -> None:
    parents = enqueue_many(conn, 3)
    child = enqueue(conn, depends_on=parents)
    held = reserve(conn, 2)
    call(conn, "complete", held[0].id, held[0].reservation)
    [row] = table(conn, "explain", child)
    assert (row.state, row.reason, row.behind) == ("blocked", "parents", parents[1])
    assert row.detail == f"waits for 2 of 3 parents: {parents[1]} executing, {parents[2]} waiting"


def test_children_of_other_states_are_found_by_bulk_calls(conn: psycopg.Connection) -> None:
    parent = enqueue(conn, queue="q")
    plain = enqueue(conn, depends_on=[parent], queue="q")
    keyed = enqueue(conn, depends_on=[parent], queue="q", key="k")
    [row] = table(conn, "cancel_many", queue="q", key="k")
    assert (row.changed, state(conn, keyed)) == (1, "cancelled")
    [row] = table(conn, "cancel_many", queue="q", state="blocked")
    assert (row.changed, state(conn, plain)) == (1, "cancelled")
    keyed = enqueue(conn, depends_on=[parent], queue="q", key="k")
    [row] = table(conn, "purge_queue", "q")
    assert row.changed == 2


@pytest.mark.parametrize("run_if", [None, "finished"])
def test_many_children_of_one_call(conn: psycopg.Connection, run_if: str | None) -> None:
    parent = enqueue(conn)
    children = enqueue_many(conn, 3, depends_on=[parent], run_if=run_if)
    assert [job(conn, child).args for child in children] == [{"i": 0}, {"i": 1}, {"i": 2}]
    finish(conn, parent)
    assert ids(reserve(conn, 10)) == children


def test_a_batch_names_earlier_jobs_by_ref(conn: psycopg.Connection) -> None:
    earlier = enqueue(conn)
    jobs = [
        {"task": "a", "ref": "a"},
        {"task": "b", "ref": "b", "depends_on": ["a", earlier]},
        {"task": "c", "depends_on": ["a", "b"], "run_if": "finished"},
        {"task": "d", "depends_on": ["e"]},
        {"task": "e", "ref": "e", "priority": 1000},
        {"task": "f", "depends_on": ["e"]},
        {"task": "g", "ref": "a"},
        {"task": "h", "depends_on": [999]},
    ]
    rows = table(conn, "enqueue_batch", [Jsonb(each) for each in jobs])
    a, b, c = (row.job_id for row in rows[:3])
    assert job(conn, b).depends_on == [earlier, a]
    assert (job(conn, c).depends_on, job(conn, c).run_if) == ([a, b], "finished")
    assert [row.outcome for row in rows[3:]] == ["error"] * 5
    assert [row.error["message"].split(" ")[0] for row in rows[3:]] == [
        "depends_on",
        "priority",
        "depends_on",
        "two",
        "depends_on",
    ]


def test_a_ref_may_be_that_of_a_deduped_job(conn: psycopg.Connection) -> None:
    standing = enqueue(conn, dedupe="d", task="a")
    jobs = [
        {"task": "a", "ref": "a", "dedupe": "d"},
        {"task": "b", "depends_on": ["a"]},
        {"task": "a", "ref": "r", "dedupe": "d", "on_conflict": "raise"},
        {"task": "c", "depends_on": ["r"], "ref": "c"},
        {"task": "d", "depends_on": ["c"]},
    ]
    rows = table(conn, "enqueue_batch", [Jsonb(each) for each in jobs])
    assert [row.outcome for row in rows] == ["skipped", "inserted", "error", "error", "error"]
    assert job(conn, rows[1].job_id).depends_on == [standing]
    assert value(conn, "select count(*) from pgqueue.jobs") == 2


def test_staged_jobs_may_depend_on_others(conn: psycopg.Connection) -> None:
    parent = enqueue(conn)
    with conn.transaction():
        conn.execute("select pgqueue.stage()")
        conn.execute("insert into pg_temp.pgqueue_staged (task) values ('c')")
        conn.execute(
            "insert into pg_temp.pgqueue_staged (task, depends_on, run_if) values ('b', array[%s::bigint], 'finished')",
            [parent],
        )
        assert conn.execute("select * from pgqueue.enqueue_staged()").fetchall() == [("inserted", 2)]
    child = value(conn, "select id from pgqueue.jobs where task = 'b'")
    assert state(conn, child) == "blocked"
    finish(conn, parent)
    assert state(conn, child) == "waiting"


def test_a_parent_that_leaves_no_trace_counts_as_succeeded_where_that_is_its_retention(
    conn: psycopg.Connection,
) -> None:
    # The child is committed while its parent ends: the end does not see it.
    conn.execute("update pgqueue.settings set retention_succeeded = '0'")
    parent = enqueue(conn)
    child = enqueue(conn, depends_on=[parent])
    conn.execute("delete from pgqueue.jobs where id = %s", [parent])
    maintain(conn)
    assert state(conn, child) == "waiting"


def test_fail_many_and_complete_many_settle_the_children(conn: psycopg.Connection) -> None:
    parents = enqueue_many(conn, 4)
    good, bad = enqueue(conn, depends_on=parents[:2]), enqueue(conn, depends_on=parents[2:])
    rows = reserve(conn, 4)
    column(conn, "complete_many", *pairs(rows[:2]))
    table(conn, "fail_many", *pairs(rows[2:]), retry=[False, False])
    assert (state(conn, good), state(conn, bad)) == ("waiting", "cancelled")


def test_a_child_is_not_run_now(conn: psycopg.Connection) -> None:
    parent = enqueue(conn)
    child = enqueue(conn, depends_on=[parent])
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="waits for other jobs") as refused:
        table(conn, "run_now_many", job_ids=[child])
    assert refused.value.diag.message_detail == f"waits for 1 of 1 parents: {parent} waiting"
    assert "release_from_parents" in (refused.value.diag.message_hint or "")


@pytest.mark.parametrize("how", ["ids", "group"])
def test_a_bulk_retry_of_jobs_and_what_waits_for_them_keeps_their_order(conn: psycopg.Connection, how: str) -> None:
    group = call(conn, "open_group")
    first = enqueue(conn, group_id=group)
    second = enqueue(conn, group_id=group, depends_on=[first])
    third = enqueue(conn, group_id=group, depends_on=[second])
    finish(conn, first, "dead")
    chosen = {"job_ids": [first, second, third]} if how == "ids" else {"group_id": group}
    [row] = table(conn, "retry_many", **chosen)
    assert row.changed == 3
    # Each waits for the one before it, which has come back with it.
    for each in (first, second, third):
        finish(conn, each)
    assert leftovers(conn) == (0, 0)


def test_a_retried_child_of_a_dead_parent_waits_for_its_other_parents(conn: psycopg.Connection) -> None:
    one, other = enqueue_many(conn, 2)
    child = enqueue(conn, depends_on=[one, other])
    finish(conn, one, "dead")
    assert call(conn, "retry", child)
    assert (state(conn, child), job(conn, child).errors) == ("blocked", None)
    finish(conn, other)
    finish(conn, child)
    assert leftovers(conn) == (0, 0)


def test_a_retried_child_that_an_operator_cancels_stays_so(conn: psycopg.Connection) -> None:
    parent = enqueue(conn)
    child = enqueue(conn, depends_on=[parent])
    finish(conn, parent, "dead")
    call(conn, "retry", child)
    call(conn, "cancel", child)
    call(conn, "retry", parent)
    maintain(conn)
    assert state(conn, child) == "cancelled"


def test_a_job_does_not_wait_for_its_own_group(conn: psycopg.Connection) -> None:
    outer = call(conn, "open_group")
    inner = call(conn, "open_group", group_id=outer)
    then = enqueue(conn, depends_on=[outer])
    member = enqueue(conn, group_id=inner)
    for group, parents in ((outer, [outer]), (inner, [outer]), (inner, [member, then])):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="would make a circle"):
            enqueue(conn, group_id=group, depends_on=parents)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="would make a circle"):
        call(conn, "open_group", group_id=inner, depends_on=[then])
    # By another job of the same call, too.
    jobs = [
        {"task": "a", "ref": "a", "depends_on": [outer]},
        {"task": "b", "ref": "b", "depends_on": ["a"]},
        {"task": "c", "ref": "c", "depends_on": ["b"], "group_id": inner},
        {"task": "d", "depends_on": ["c"]},
        {"task": "e", "depends_on": [member], "group_id": outer, "ref": "e"},
        {"task": "f", "depends_on": ["e"], "group_id": outer},
    ]
    rows = table(conn, "enqueue_batch", [Jsonb(each) for each in jobs])
    assert [row.outcome for row in rows] == ["inserted", "inserted", "error", "error", "inserted", "inserted"]
    assert rows[2].error["message"] == "depends_on would make a circle"
    # What waits for an inner group may well belong to the outer one.
    enqueue(conn, group_id=outer, depends_on=[inner, member])


def test_a_job_of_a_batch_does_not_wait_for_its_group_by_an_older_job_that_has_a_dedupe_key(
    conn: psycopg.Connection,
) -> None:
    group = call(conn, "open_group")
    then = enqueue(conn, "a", dedupe="d", depends_on=[group])
    jobs = [
        {"task": "a", "ref": "a", "dedupe": "d"},
        {"task": "b", "depends_on": ["a"], "group_id": group},
        {"task": "c", "ref": "c", "depends_on": ["a"]},
        {"task": "d", "depends_on": ["c"], "group_id": group},
        {"task": "e", "depends_on": ["c"]},
    ]
    # Each of the two ways alone, and both.
    for some in (jobs[:2], jobs[:1] + jobs[2:], jobs):
        rows = table(conn, "enqueue_batch", [Jsonb(each) for each in some])
        assert rows[0].job_id == then
        for row, each in zip(rows, some, strict=True):
            assert (row.outcome == "error") is ("group_id" in each)


def test_a_batch_is_walked_once_for_its_group_and_not_for_each_of_its_jobs(conn: psycopg.Connection) -> None:
    """A thousand jobs, half of them a chain that the other half waits for, took 14 seconds."""
    first = enqueue(conn)
    group = call(conn, "open_group")
    chain = [{"task": "a", "ref": str(n), "depends_on": [str(n - 1) if n else first]} for n in range(20)]
    jobs = chain + [{"task": "b", "depends_on": ["19"], "group_id": group} for _ in range(20)]
    counted = "select coalesce(pg_stat_get_xact_function_calls('pgqueue._refuse_circle'::regproc), 0)"
    # Of all transactions of the session whose counts it has not sent yet.
    before = value(conn, counted)
    with conn.transaction():
        conn.execute("set local track_functions = 'pl'")
        rows = table(conn, "enqueue_batch", [Jsonb(each) for each in jobs])
        walks = value(conn, counted) - before
    assert {row.outcome for row in rows} == {"inserted"}
    assert walks == 1


def test_an_accumulating_task_depends_on_nothing(conn: psycopg.Connection) -> None:
    parent = enqueue(conn)
    call(conn, "configure_task", "adds", accumulate=True)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="accumulates payloads"):
        enqueue(conn, "adds", key="k", depends_on=[parent])
    # Nor on a job of the same call.
    jobs = [{"task": "t", "ref": "a"}, {"task": "adds", "key": "k", "depends_on": ["a"]}]
    first, second = table(conn, "enqueue_batch", [Jsonb(each) for each in jobs])
    assert (first.outcome, second.outcome) == ("inserted", "error")
    assert "accumulates payloads" in second.error["message"]


@pytest.mark.parametrize("name", ["ParentFailed", "NotNeeded", "GroupCancelled", "MemberFailed"])
def test_a_retried_job_keeps_the_error_of_its_handler_whatever_its_class(conn: psycopg.Connection, name: str) -> None:
    job_id = enqueue(conn)
    held = reserve_one(conn)
    assert call(conn, "fail", held.id, held.reservation, Jsonb({"class": name}), retry=False) == "dead"
    call(conn, "retry", job_id)
    assert last_error(conn, job_id) == name


@pytest.mark.parametrize("by", ["parent", "group"])
def test_a_job_that_comes_back_with_its_parent_keeps_its_time(conn: psycopg.Connection, clock: Clock, by: str) -> None:
    parent = enqueue(conn)
    group = call(conn, "open_group", depends_on=[parent])
    child = enqueue(conn, delay="1 day", **({"group_id": group} if by == "group" else {"depends_on": [parent]}))
    call(conn, "close_group", group)
    run_at = job(conn, child).run_at
    finish(conn, parent, "dead")
    for _ in range(3):
        maintain(conn)
        clock.advance("1 s")
    assert state(conn, child) == "cancelled"
    call(conn, "retry", parent)
    maintain(conn)
    finish(conn, parent)
    # Due at the later of its run_at and the end of its parent.
    assert reserve(conn) == []
    assert (state(conn, child), job(conn, child).run_at) == ("waiting", run_at)
    clock.advance("1 day")
    finish(conn, child)


def test_a_child_that_was_killed_and_is_retried_waits_for_its_parents(conn: psycopg.Connection, clock: Clock) -> None:
    parent = enqueue(conn)
    child = enqueue(conn, depends_on=[parent])
    table(conn, "kill_many", job_ids=[child])
    assert state(conn, child) == "dead"
    # The net deletes what is left of children that do not come back.
    for _ in range(3):
        maintain(conn)
        clock.advance("1 min")
    call(conn, "retry", child)
    assert state(conn, child) == "blocked"
    finish(conn, parent)
    finish(conn, child)
    maintain(conn)
    assert leftovers(conn) == (0, 0)


def test_a_child_that_comes_back_after_the_clock_stepped_back_is_due_at_once(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2030-01-01 13:00+00")
    parent = enqueue(conn)
    child = enqueue(conn, depends_on=[parent])
    call(conn, "cancel", parent)
    for to in ("13:00:01", "13:00:02", "12:00:00"):
        clock.set(f"2030-01-01 {to}+00")
        maintain(conn)
    assert state(conn, child) == "cancelled"
    assert call(conn, "retry", parent)
    maintain(conn)
    finish(conn, parent)
    assert job(conn, child).run_at <= clock.now()
    assert [row.id for row in reserve(conn)] == [child]
