"""Groups, where two sessions meet in the order that would end them twice, too early, or never."""

from __future__ import annotations

from typing import LiteralString

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, job, maintain, reserve, reserve_one, state, value
from tests.databases import Database
from tests.facts import wait_until
from tests.races.test_dependencies import ENDS, RR, left, of, opened, settle


def closed(conn: psycopg.Connection, members: int) -> int:
    group: int = call(conn, "open_group")
    enqueue_many(conn, members, group_id=group)
    call(conn, "close_group", group)
    return group


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("first", [0, 1])
def test_two_last_members_end_at_once(
    database: Database, conn: psycopg.Connection, clock: Clock, how: str, first: int
) -> None:
    group = closed(conn, 2)
    finishers = [opened(database), opened(database)]
    for finisher, row in zip(finishers, reserve(conn, 2), strict=True):
        finisher.run(ENDS[how][0], of(row))
    finishers[first].run("commit")
    settle(conn, clock)
    assert state(conn, group) == "blocked"
    finishers[1 - first].run("commit")
    settle(conn, clock)
    assert state(conn, group) == ("dead" if how == "fail" else "succeeded")
    assert left(conn) == 0


def test_a_member_ends_in_a_long_transaction_while_the_others_are_claimed_and_completed(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    group = closed(conn, 2)
    [held] = reserve(conn, 1)
    slow = opened(database)
    # Sees the other one waiting, and leaves no note.
    slow.run(ENDS["complete"][0], of(held))
    [other] = reserve(conn, 1)
    call(conn, "complete", other.id, other.reservation)
    for _ in range(60):
        maintain(conn)
        clock.advance("1 s")
    assert state(conn, group) == "blocked"
    slow.run("commit")
    settle(conn, clock)
    assert (state(conn, group), left(conn)) == ("succeeded", 0)


def test_the_last_waiting_member_is_cancelled_while_the_other_ends(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    group = closed(conn, 2)
    [held] = reserve(conn, 1)
    slow = opened(database)
    slow.run(ENDS["complete"][0], of(held))
    call(conn, "cancel", held.id + 1)
    settle(conn, clock)
    assert state(conn, group) == "blocked"
    slow.run("commit")
    settle(conn, clock)
    assert (state(conn, group), left(conn)) == ("cancelled", 0)


def test_a_finisher_with_an_old_snapshot_ends_the_group(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    group = closed(conn, 1)
    [held] = reserve(conn, 1)
    finisher = opened(database, RR)
    finisher.run("select count(*) from pgqueue.jobs")
    enqueue(conn, group_id=held.id)
    finisher.run(ENDS["complete"][0], of(held))
    finisher.run("commit")
    settle(conn, clock)
    assert state(conn, group) == "blocked"
    [other] = reserve(conn, 1)
    call(conn, "complete", other.id, other.reservation)
    settle(conn, clock)
    assert (state(conn, group), left(conn)) == ("succeeded", 0)


def test_close_waits_for_joining_transactions(database: Database, conn: psycopg.Connection, clock: Clock) -> None:
    group = call(conn, "open_group")
    producer, other = opened(database), opened(database)
    producer.run("select pgqueue.enqueue('t', group_id => %s)", [group])
    # Two producers do not wait for each other.
    other.run("select pgqueue.enqueue('t', group_id => %s)", [group])
    closer = database.session()
    closing = closer.start("select pgqueue.close_group(%s)", [group])
    wait_until(lambda: closer.is_waiting_on_lock())
    producer.run("commit")
    other.run("rollback")
    assert closing.result(timeout=5) == [(True,)]
    settle(conn, clock)
    assert state(conn, group) == "blocked"
    [held] = reserve(conn, 10)
    call(conn, "complete", held.id, held.reservation)
    settle(conn, clock)
    assert (state(conn, group), left(conn)) == ("succeeded", 0)


def test_a_reader_of_the_note_of_an_open_group_holds_up_no_producer(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    group = call(conn, "open_group")
    reader = opened(database)
    assert reader.run("select pgqueue._read_notes(100)") == [(True,)]
    conn.execute("set statement_timeout = '20s'")
    enqueue(conn, group_id=group)
    reader.run("commit")
    assert call(conn, "close_group", group) is True
    held = reserve_one(conn)
    call(conn, "complete", held.id, held.reservation)
    conn.execute("reset statement_timeout")
    settle(conn, clock)
    assert (state(conn, group), left(conn)) == ("succeeded", 0)


def test_the_last_member_ends_and_its_note_is_read_while_the_close_is_not_committed(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    group = call(conn, "open_group")
    enqueue(conn, group_id=group)
    settle(conn, clock)
    closer = opened(database)
    # It sees that a member waits.
    assert closer.run("select pgqueue.close_group(%s)", [group]) == [(True,)]
    held = reserve_one(conn)
    call(conn, "complete", held.id, held.reservation)
    settle(conn, clock)
    closer.run("commit")
    settle(conn, clock)
    assert (state(conn, group), left(conn)) == ("succeeded", 0)


def test_a_join_that_waits_for_the_close_is_refused(database: Database, conn: psycopg.Connection) -> None:
    group = call(conn, "open_group")
    closer = opened(database)
    closer.run("select pgqueue.close_group(%s)", [group])
    producer = database.session()
    joining = producer.start("select pgqueue.enqueue('t', group_id => %s)", [group])
    wait_until(lambda: producer.is_waiting_on_lock())
    closer.run("commit")
    with pytest.raises((psycopg.errors.ObjectNotInPrerequisiteState, psycopg.errors.InvalidParameterValue)):
        joining.result(timeout=5)


def test_a_member_cannot_end_while_it_adds_another(database: Database, conn: psycopg.Connection, clock: Clock) -> None:
    group = closed(conn, 1)
    [held] = reserve(conn, 1)
    adder = opened(database)
    adder.run("select pgqueue.enqueue('t', group_id => %s)", [held.id])
    ender = database.session()
    ending = ender.start("select pgqueue.complete(%s, %s)", [held.id, held.reservation])
    wait_until(lambda: ender.waits_behind(adder))
    settle(conn, clock)
    adder.run("commit")
    assert ending.result(timeout=5) == [(True,)]
    settle(conn, clock)
    assert state(conn, group) == "blocked"
    [other] = reserve(conn, 1)
    call(conn, "complete", other.id, other.reservation)
    settle(conn, clock)
    assert (state(conn, group), left(conn)) == ("succeeded", 0)


def test_a_group_whose_last_member_runs_for_long_is_not_looked_at_until_that_ends(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    group = closed(conn, 2)
    first, last = reserve(conn, 2, lease="1 day")
    slow = opened(database)
    slow.run(ENDS["complete"][0], of(last))
    call(conn, "complete", first.id, first.reservation)
    settle(conn, clock)
    # It may be ending, and may have seen that the other one waits.
    assert value(conn, "select count(*) from pgqueue.notes where kind = 'group'") == 1
    slow.run("rollback")
    settle(conn, clock)
    assert (state(conn, group), left(conn)) == ("blocked", 0)
    call(conn, "complete", last.id, last.reservation)
    settle(conn, clock)
    assert (state(conn, group), left(conn)) == ("succeeded", 0)


def test_a_member_is_retried_while_its_group_ends(database: Database, conn: psycopg.Connection, clock: Clock) -> None:
    group = closed(conn, 1)
    [held] = reserve(conn, 1)
    call(conn, "fail", held.id, held.reservation, retry=False)
    reader = opened(database)
    reader.run("select pgqueue._read_notes(100)")
    # The group is ending: it is neither in jobs nor in history for the retry.
    assert call(conn, "retry", held.id)
    reader.run("commit")
    assert state(conn, group) == "dead"
    settle(conn, clock)
    assert state(conn, group) == "blocked"
    [again] = reserve(conn, 1)
    call(conn, "complete", again.id, again.reservation)
    settle(conn, clock)
    assert (state(conn, group), left(conn)) == ("succeeded", 0)
    assert job(conn, group).result == {"succeeded": 1, "dead": 0, "cancelled": 0}


@pytest.mark.parametrize("added", ["job", "far job", "group"])
def test_a_group_is_cancelled_while_a_member_that_was_asked_to_cancel_adds_another(
    database: Database, conn: psycopg.Connection, clock: Clock, added: str
) -> None:
    group = call(conn, "open_group")
    enqueue(conn, group_id=group)
    held = reserve_one(conn)
    call(conn, "close_group", group)
    call(conn, "cancel", held.id)
    adder = opened(database)
    add: dict[str, LiteralString] = {
        "job": "select pgqueue.enqueue('late', group_id => %s)",
        "far job": "select pgqueue.enqueue('late', group_id => %s, delay => '1 year')",
        "group": "select pgqueue.open_group(group_id => %s)",
    }
    [(late,)] = adder.run(add[added], [held.id])
    # It does not see the new member, and has asked the other one already.
    call(conn, "cancel", group)
    settle(conn, clock)
    adder.run("commit")
    settle(conn, clock)
    call(conn, "fail", held.id, held.reservation, cancel=True)
    settle(conn, clock)
    settle(conn, clock)
    assert (state(conn, late), state(conn, group), left(conn)) == ("cancelled", "cancelled", 0)


def test_a_group_is_cancelled_while_its_members_come_back(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    parent = enqueue(conn)
    group = call(conn, "open_group", depends_on=[parent])
    member = enqueue(conn, group_id=group, delay="1 year")
    call(conn, "close_group", group)
    held = reserve_one(conn)
    call(conn, "fail", held.id, held.reservation, retry=False)
    settle(conn, clock)
    assert (state(conn, group), state(conn, member)) == ("cancelled", "cancelled")
    call(conn, "retry", parent)
    while value(conn, "select kind from pgqueue.notes order by n limit 1") != "revive":
        conn.execute("select pgqueue._read_notes(1)")
    reader = opened(database)
    reader.run("select pgqueue._read_notes(1)")
    call(conn, "cancel", group)
    settle(conn, clock)
    reader.run("commit")
    settle(conn, clock)
    settle(conn, clock)
    assert (state(conn, member), state(conn, group), left(conn)) == ("cancelled", "cancelled", 0)


@pytest.mark.parametrize(("run_if", "ends"), [("succeeded", "cancelled"), ("finished", "succeeded")])
def test_a_parent_fails_while_another_session_looks_at_the_group(
    database: Database, conn: psycopg.Connection, clock: Clock, run_if: str, ends: str
) -> None:
    """The end of the parent finds the group locked, and leaves it a note for later; the last member ends before."""
    enqueue(conn, "parent", max_attempts=1)
    parent = reserve_one(conn)
    group = call(conn, "open_group", depends_on=[parent.id], run_if=run_if)
    enqueue(conn, "member", group_id=group)
    call(conn, "close_group", group)
    # The notes of the group and of its dependency.
    settle(conn, clock)
    member = reserve_one(conn)
    looks = opened(database)
    looks.run("select from pgqueue.jobs where id = %s for update", [group])
    assert call(conn, "fail", parent.id, parent.reservation) == "dead"
    looks.run("rollback")
    assert call(conn, "complete", member.id, member.reservation)
    maintain(conn)
    assert state(conn, group) in ("blocked", ends)
    settle(conn, clock)
    assert (state(conn, group), left(conn)) == (ends, 0)
