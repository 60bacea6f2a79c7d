"""The checker finds what goes wrong with dependencies, groups, steps and events: by hand, and with bugs put in."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.signals import Suspended
from pgqueue.testing import Clock
from tests.calls import Row, call, maintain, reserve, reserve_one, table, value
from tests.chaos.stage import Stage
from tests.chaos.workflow_checker import (
    Arrival,
    Await,
    Call,
    Edge,
    Group,
    Payment,
    Result,
    Workflows,
    check_workflows,
)

# By hand.


def broken(losses: list[tuple[float, float]] | None = None, **records: Any) -> list[str]:
    """The rules that these records break."""
    found = check_workflows(Workflows(**records), losses or [], Counter())
    return [violation.rule for violation in found]


def edge(run_if: str = "succeeded", **known: Any) -> Edge:
    """Job 2 depends on job 1, which succeeded at 10; job 2 began at 20."""
    ended = Edge(2, 1, run_if, False, "succeeded", None, 20, 1.0, "succeeded", 10)
    return ended._replace(**known)


def test_a_child_begins_after_its_parents() -> None:
    assert broken(edges=[edge()]) == []
    assert broken(edges=[edge(), edge(parent=3, parent_gone=21)]) == ["dependency"]
    assert broken(edges=[edge("finished", parent_gone=None)]) == ["dependency"]
    assert broken(edges=[edge(parent_state="dead")]) == ["dependency"]
    assert broken(edges=[edge("finished", parent_state="dead")]) == []


def test_a_job_with_run_if_failed_begins_after_the_failure() -> None:
    failed = edge("failed", parent=3, parent_state="dead")
    assert broken(edges=[edge("failed", parent_gone=30), failed]) == []
    assert broken(edges=[edge("failed"), failed._replace(parent_gone=30)]) == ["dependency"]
    assert broken(edges=[edge("failed")]) == ["dependency"]


def test_a_child_is_cancelled_for_a_reason() -> None:
    cancelled = {"state": "cancelled", "began": None}
    parent = edge(error="ParentFailed", **cancelled)
    assert broken(edges=[parent._replace(parent_state="cancelled")]) == []
    assert broken(edges=[parent]) == ["dependency"]
    assert broken(edges=[parent._replace(run_if="finished", parent_state="dead")]) == ["dependency"]
    assert broken(edges=[edge("failed", error="NotNeeded", **cancelled)]) == []
    assert broken(edges=[edge("failed", error="NotNeeded", parent_state="dead", **cancelled)]) == ["dependency"]
    # What had ended may look deleted while history is not whole.
    assert broken(edges=[parent], away=[(0.5, 1.5)]) == []


def test_a_group_ends_after_its_members_and_counts_them() -> None:
    group = Group(1, "succeeded", 20, 1.0, (2, 0, 0), (2, 0, 0), 19, 0, None)
    assert broken(groups=[group]) == []
    assert broken(groups=[group._replace(last_gone=21)]) == ["group"]
    assert broken(groups=[group._replace(live=1)]) == ["group"]
    assert broken(groups=[group._replace(members=(3, 0, 0))]) == ["group"]
    assert broken(groups=[group._replace(result=(1, 1, 0), members=(1, 1, 0))]) == ["group"]
    assert broken(groups=[group._replace(members=(3, 0, 0))], away=[(0.5, 1.5)]) == []
    assert broken(groups=[group._replace(state="cancelled", error="ParentFailed")]) == []
    inner = group._replace(state="cancelled", error="GroupCancelled")
    assert broken(groups=[inner]) == ["group"]
    assert broken(groups=[inner._replace(outer_state="succeeded")]) == ["group"]
    assert broken(groups=[inner._replace(outer_state="cancelled")]) == []


def test_a_completed_step_is_not_called_under_a_later_claim() -> None:
    assert broken(calls=[Call(1, "a", 5, 10, 11)]) == []
    assert broken(calls=[Call(1, "a", 6, 12, 11)]) == ["step"]
    assert broken(calls=[Call(1, "a", 6, None, None)]) == []


def test_every_attempt_gets_the_result_that_is_stored() -> None:
    assert broken(results=[Result(1, "a", "7", 1.0, "7", 1)]) == []
    assert broken(results=[Result(1, "a", "7", 1.0, "8", 1)]) == ["step"]
    assert broken(results=[Result(1, "a", "7", 1.0, None, 0)]) == ["step"]
    assert broken(results=[Result(1, "a", "7", 1.0, "7", 2)]) == ["step"]
    assert broken([(0.5, 1.5)], results=[Result(1, "a", "7", 1.0, None, 0)]) == []


def test_a_step_and_its_effect_are_there_both_or_neither() -> None:
    assert broken(payments=[Payment(1, "a", 1, 1), Payment(2, "a", 0, 0)]) == []
    assert broken(payments=[Payment(1, "a", 1, 0), Payment(2, "a", 0, 1), Payment(3, "a", 1, 2)]) == ["step"] * 3
    assert broken([(6.0, 8.0)], payments=[Payment(1, "a", 1, 0, 5.0)]) == ["step"]
    assert broken([(4.0, 6.0)], payments=[Payment(1, "a", 1, 0, 5.0)]) == []


def test_a_handler_goes_on_when_the_jobs_that_it_awaits_have_ended() -> None:
    assert broken(awaits=[Await(1, 2, 5.0, 4.0)]) == []
    assert broken(awaits=[Await(1, 2, 5.0, 6.0), Await(1, 3, 5.0, None)]) == ["dependency"] * 2


def test_an_event_arrives_with_its_first_payload_or_is_late() -> None:
    arrival = Arrival(1, "e", 5.0, True, "7", 1, "7", 4.0)
    assert broken(arrivals=[arrival]) == []
    assert broken(arrivals=[arrival._replace(payload="8")]) == ["event"]
    assert broken(arrivals=[arrival._replace(emissions=2)]) == ["event"]
    assert broken(arrivals=[arrival._replace(emissions=0, payload=None, emitted=None)]) == ["event"]
    gave_up = arrival._replace(arrived=False, payload=None)
    assert broken(arrivals=[gave_up]) == ["event"]
    assert broken(arrivals=[gave_up._replace(acknowledged_at=5.1)]) == []
    assert broken([(3.5, 4.5)], arrivals=[gave_up]) == []


def test_steps_and_waits_of_jobs_that_are_gone_are_found() -> None:
    assert broken(left=1) == ["left behind"]


# Bugs put in on purpose.


@pytest.fixture
def clock(stage: Stage) -> Clock:
    return Clock(stage.database.connect())


def settle(stage: Stage, clock: Clock) -> None:
    """What maintenance does in the next seconds."""
    for _ in range(3):
        maintain(stage.conn)
        clock.advance("1 s")


def finish(stage: Stage, job: Row, how: str = "complete", conn: psycopg.Connection | None = None) -> None:
    if how == "complete":
        stage.witness.ran(job.id, job.reservation)
        assert call(conn or stage.conn, "complete", job.id, job.reservation)
    else:
        stage.witness.starts(job.id, job.reservation)
        stage.witness.failed(job.id, job.reservation)
        assert call(conn or stage.conn, "fail", job.id, job.reservation, retry=False) == "dead"


@contextmanager
def open_beside(stage: Stage) -> Iterator[psycopg.Connection]:
    """A transaction that is committed after the block."""
    beside = stage.database.connect(autocommit=False)
    yield beside
    beside.commit()


def end_one_of_two_parents(stage: Stage, how: str = "complete") -> None:
    parents = [stage.enqueue("t") for _ in range(2)]
    stage.enqueue("child", depends_on=parents)
    first, _ = reserve(stage.conn, 2)
    finish(stage, first, how)
    for job in reserve(stage.conn, 5):
        finish(stage, job)
    stage.lapse()
    stage.work_off()


def test_a_child_that_does_not_wait_for_all_is_caught(stage: Stage) -> None:
    stage.bug("pgqueue._decide_child", "when p_open then 'wait'", "when false then 'wait'")
    end_one_of_two_parents(stage)
    assert stage.rules() == ["dependency"]


def test_a_child_that_runs_though_its_parent_failed_is_caught(stage: Stage) -> None:
    stage.bug("pgqueue._decide_child", "when p_failed and p_run_if = 'succeeded' then 'cancel'", "")
    end_one_of_two_parents(stage, "fail")
    assert stage.rules() == ["dependency"]


def test_a_child_that_is_cancelled_for_nothing_is_caught(stage: Stage) -> None:
    stage.bug(
        "pgqueue._end_parents",
        "pgqueue._close_dependencies(v_ids, v_state,",
        "pgqueue._close_dependencies(v_ids, 'dead',",
    )
    end_one_of_two_parents(stage)
    assert stage.rules() == ["dependency"]


@pytest.mark.parametrize("how", ["complete", "fail"])
def test_the_same_with_children_that_wait_breaks_nothing(stage: Stage, how: str) -> None:
    end_one_of_two_parents(stage, how)
    assert stage.rules() == []


def end_both_parents_at_once(stage: Stage, clock: Clock) -> None:
    """Each sees that the other has not ended."""
    parents = [stage.enqueue("t") for _ in range(2)]
    stage.enqueue("child", depends_on=parents)
    settle(stage, clock)
    first, second = reserve(stage.conn, 2)
    with open_beside(stage) as beside:
        finish(stage, first, conn=beside)
        finish(stage, second)
    maintain(stage.conn)
    stage.work_off()


def test_an_end_that_leaves_no_note_with_the_child_is_caught(stage: Stage, clock: Clock) -> None:
    stage.bug("pgqueue._end_parents", "_settle_children(v_children, 'settle')", "_settle_children(v_children, null)")
    end_both_parents_at_once(stage, clock)
    assert stage.rules() == ["stuck"]


def test_the_same_with_the_note_breaks_nothing(stage: Stage, clock: Clock) -> None:
    end_both_parents_at_once(stage, clock)
    assert stage.rules() == []


def enqueue_while_the_parent_ends(stage: Stage, clock: Clock) -> None:
    stage.enqueue("t")
    parent = reserve_one(stage.conn)
    with open_beside(stage) as beside:
        finish(stage, parent, conn=beside)
        stage.enqueue("child", depends_on=[parent.id])
    settle(stage, clock)
    stage.work_off()


def test_an_enqueue_that_leaves_no_note_with_the_child_is_caught(stage: Stage, clock: Clock) -> None:
    stage.bug(
        "pgqueue._add_dependencies", "_settle_children(v_children, 'parents')", "_settle_children(v_children, null)"
    )
    enqueue_while_the_parent_ends(stage, clock)
    # The net has caught it.
    assert stage.rules() == ["net"]


def test_the_same_with_a_note_of_the_enqueue_breaks_nothing(stage: Stage, clock: Clock) -> None:
    enqueue_while_the_parent_ends(stage, clock)
    assert stage.rules() == []


def end_a_group(stage: Stage, clock: Clock) -> None:
    """One member ends while another one executes; then that one."""
    group = stage.open_group()
    for _ in range(2):
        stage.enqueue("t", group_id=group)
    call(stage.conn, "close_group", group)
    stage.enqueue("t", depends_on=[group], run_if="finished")
    first, second = reserve(stage.conn, 2)
    finish(stage, first)
    settle(stage, clock)
    finish(stage, second)
    settle(stage, clock)
    stage.work_off()


def test_a_group_that_does_not_wait_for_members_that_execute_is_caught(stage: Stage, clock: Clock) -> None:
    stage.bug("pgqueue._look_at_groups", "if pgqueue._has_members(v_id) or exists", "if exists")
    end_a_group(stage, clock)
    assert "group" in stage.rules()


def test_a_member_that_leaves_no_note_with_its_group_is_caught(stage: Stage, clock: Clock) -> None:
    stage.bug("pgqueue._follow_ends", " or not pgqueue._has_members(g.id, '{waiting,failed,blocked}')", "")
    # Nor is the note of an earlier look kept.
    stage.bug(
        "pgqueue._look_at_groups",
        "perform pgqueue._leave_notes('group', array[v_id], interval '500 ms') where v_is_ending;",
        "null;",
    )
    end_a_group(stage, clock)
    assert stage.rules() == ["stuck"]


def test_a_group_that_counts_wrong_is_caught(stage: Stage, clock: Clock) -> None:
    stage.bug("pgqueue._ended_members", "where h.group_id is not null and h.group_id = p_group_id", "where false")
    end_a_group(stage, clock)
    assert stage.rules() == ["group"]


def test_the_same_with_members_that_are_awaited_breaks_nothing(stage: Stage, clock: Clock) -> None:
    end_a_group(stage, clock)
    assert stage.rules() == []


def draw(stage: Stage, job: Row, name: str, pay: bool = False) -> None:
    """What job.step does, with a step whose result is another one each time."""
    known = {row.name: row.result for row in table(stage.conn, "steps", job.id)}
    if name not in known:
        stage.steps.calls(job.id, job.reservation, name)
        known[name] = secrets.randbelow(10**9)
        with stage.conn.transaction():
            if pay:
                stage.conn.execute("insert into chaos.payments values (%s, %s)", [job.id, name])
            assert call(stage.conn, "complete_step", job.id, job.reservation, name, Jsonb(known[name]))
    stage.steps.got(job.id, job.reservation, name, known[name])


def lose_a_lease_between_steps(stage: Stage) -> None:
    stage.enqueue("t")
    first = reserve_one(stage.conn, "first")
    stage.witness.starts(first.id, first.reservation)
    draw(stage, first, "a")
    stage.lapse()
    second = reserve_one(stage.conn, "second")
    stage.witness.starts(second.id, second.reservation)
    draw(stage, second, "a")
    draw(stage, second, "pay", pay=True)
    stage.witness.done(second.id, second.reservation)
    assert call(stage.conn, "complete", second.id, second.reservation)


def test_a_step_that_is_not_found_again_is_caught(stage: Stage) -> None:
    stage.bug("pgqueue.steps", "where x.job_id = steps.job_id", "where false")
    lose_a_lease_between_steps(stage)
    assert set(stage.rules()) == {"step"}


def test_a_step_that_is_not_stored_is_caught(stage: Stage) -> None:
    stage.bug("pgqueue._store_step", "from pgqueue.jobs j where j.id = p_job_id\n", "from pgqueue.jobs j where false\n")
    lose_a_lease_between_steps(stage)
    assert set(stage.rules()) == {"step"}


def test_steps_that_outlive_their_job_are_caught(stage: Stage) -> None:
    stage.bug("pgqueue._drop_steps", "delete from pgqueue.steps s where s.job_id = any (p_job_ids);", "")
    lose_a_lease_between_steps(stage)
    assert stage.rules() == ["left behind"]


def test_the_same_with_steps_that_stand_breaks_nothing(stage: Stage) -> None:
    lose_a_lease_between_steps(stage)
    assert stage.rules() == []


def complete_a_step_too_late(stage: Stage) -> None:
    """A worker that has lost its lease completes a step that another one has called as well."""
    stage.enqueue("t")
    first = reserve_one(stage.conn, "first")
    stage.witness.starts(first.id, first.reservation)
    stage.lapse()
    second = reserve_one(stage.conn, "second")
    stage.witness.starts(second.id, second.reservation)
    for job, result in ((first, 1), (second, 2)):
        if call(stage.conn, "complete_step", job.id, job.reservation, "a", Jsonb(result)):
            stage.steps.got(job.id, job.reservation, "a", result)
    stage.witness.done(second.id, second.reservation)
    assert call(stage.conn, "complete", second.id, second.reservation)


def test_a_step_that_is_not_fenced_is_caught(stage: Stage) -> None:
    stage.bug("pgqueue._lock_held", "and j.reservation = p_reservation", "")
    complete_a_step_too_late(stage)
    assert stage.rules() == ["step"]


def test_the_same_with_the_fence_breaks_nothing(stage: Stage) -> None:
    complete_a_step_too_late(stage)
    assert stage.rules() == []


def wait_for_event(stage: Stage, job: Row, timeout: str | None = None) -> bool | None:
    """What job.wait_event does; the job is suspended where this returns None."""
    with suppress(Suspended), stage.witness.running(job.id, job.reservation):
        with stage.witness.leaving(job.id, job.reservation):
            [row] = table(stage.conn, "await_event", job.id, job.reservation, "paid", "paid", timeout)
            if row.arrived is None:
                raise Suspended("it waits")
        got = {"event": "paid", "arrived": row.arrived, **({"payload": row.payload} if row.arrived else {})}
        stage.steps.got(job.id, job.reservation, "paid", got)
        stage.witness.done(job.id, job.reservation)
        assert call(stage.conn, "complete", job.id, job.reservation)
        return bool(row.arrived)
    return None


def emit_while_a_job_begins_to_wait(stage: Stage, clock: Clock) -> None:
    stage.enqueue("t")
    job = reserve_one(stage.conn)
    with open_beside(stage) as beside:
        assert call(beside, "emit_event", "paid", Jsonb(5))
        assert wait_for_event(stage, job) is None
        # What the wait has left is read while the event is not there yet.
        settle(stage, clock)
    stage.steps.emitted("paid")
    settle(stage, clock)
    for again in reserve(stage.conn, 5):
        wait_for_event(stage, again)


def test_an_event_that_leaves_no_note_is_caught(stage: Stage, clock: Clock) -> None:
    stage.bug("pgqueue.emit_event", "perform pgqueue._leave_notes('event', '{null}', '0', emit_event.name);", "")
    emit_while_a_job_begins_to_wait(stage, clock)
    assert stage.rules() == ["stuck"]


def test_an_event_that_arrives_without_its_payload_is_caught(stage: Stage, clock: Clock) -> None:
    stage.bug("pgqueue._wake_waiters", "'payload', v_event.payload", "'payload', null")
    emit_while_a_job_begins_to_wait(stage, clock)
    assert stage.rules() == ["event"]


def test_the_same_with_a_note_and_the_payload_breaks_nothing(stage: Stage, clock: Clock) -> None:
    emit_while_a_job_begins_to_wait(stage, clock)
    assert stage.rules() == []


def emit_twice(stage: Stage, clock: Clock) -> None:
    for _ in range(2):
        stage.enqueue("t")
    first, second = reserve(stage.conn, 2)
    assert wait_for_event(stage, first, "1 min") is None
    call(stage.conn, "emit_event", "paid", Jsonb(5))
    stage.steps.emitted("paid")
    call(stage.conn, "emit_event", "paid", Jsonb(6))
    clock.advance("2 min")
    wait_for_event(stage, second)
    for again in reserve(stage.conn, 5):
        wait_for_event(stage, again, "1 min")


def test_an_event_whose_payload_is_overwritten_is_caught(stage: Stage, clock: Clock) -> None:
    stage.bug("pgqueue.emit_event", "where e.kept_until <= v_now", "where true")
    emit_twice(stage, clock)
    assert set(stage.rules()) == {"event"}


def test_a_wait_that_gives_up_though_the_event_is_there_is_caught(stage: Stage, clock: Clock) -> None:
    # Nothing wakes it, and it asks for its deadline alone.
    stage.bug("pgqueue._wake_waiters", "if not found or not exists", "if true or not exists")
    stage.bug("pgqueue.await_event", "and e.kept_until > coalesce(v_step.since, v_now)", "and false")
    stage.enqueue("t")
    assert wait_for_event(stage, reserve_one(stage.conn), "1 min") is None
    call(stage.conn, "emit_event", "paid", Jsonb(5))
    stage.steps.emitted("paid")
    clock.advance("2 min")
    assert wait_for_event(stage, reserve_one(stage.conn), "1 min") is False
    assert stage.rules() == ["event"]


def test_the_same_with_an_existing_payload_breaks_nothing(stage: Stage, clock: Clock) -> None:
    emit_twice(stage, clock)
    assert stage.rules() == []


def test_a_handler_that_goes_on_too_early_is_caught(stage: Stage) -> None:
    stage.enqueue("t")
    job = reserve_one(stage.conn)
    stage.witness.starts(job.id, job.reservation)
    part = stage.enqueue("t")
    stage.steps.awaited(job.id, job.reservation, [part])
    stage.witness.done(job.id, job.reservation)
    assert call(stage.conn, "complete", job.id, job.reservation)
    stage.work_off()
    assert stage.rules() == ["dependency"]


def test_what_a_handler_records_is_read_back(stage: Stage) -> None:
    """Without lines that a killed process cut off."""
    stage.enqueue("t")
    job = reserve_one(stage.conn)
    draw(stage, job, "a")
    with next(stage.records.directory.glob("*.steps")).open("a") as file:
        file.write("calls\t17\t")
    stage.witness.ran(job.id, job.reservation)
    assert call(stage.conn, "complete", job.id, job.reservation)
    assert stage.rules() == []
    assert value(stage.conn, "select count(*) from chaos.calls") == 1
