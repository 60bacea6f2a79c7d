"""Jobs of one key that wait for each other's groups: a child that waits for parents holds no position in its key.

By their ids the child comes first in the key, and by the dependency the member does. If the child held its position,
each would wait for the other for ever.
"""

from __future__ import annotations

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, ids, reserve, reserve_one, state, stats, table, value
from tests.databases import Database
from tests.races.test_dependencies import settle
from tests.sql.test_dependencies import finish, leftovers

pytestmark = pytest.mark.covers("L1")


def open_group(conn: psycopg.Connection) -> int:
    group: int = call(conn, "open_group", "import")
    return group


def nothing_is_left(conn: psycopg.Connection, clock: Clock) -> None:
    settle(conn, clock)
    assert leftovers(conn) == (0, 0)
    assert value(conn, "select count(*) from pgqueue.key_notes") == 0
    assert value(conn, "select count(*) from pgqueue.jobs") == 0
    assert stats(conn).maintenance["hidden"] == 0
    # The net of maintenance found nothing to release.
    assert value(conn, "select coalesce(max(unblocked), 0) from pgqueue.maintenance_runs") == 0


def test_a_member_of_the_key_runs_before_the_child_that_waits_for_its_group(
    conn: psycopg.Connection, clock: Clock
) -> None:
    group = open_group(conn)
    child = enqueue(conn, key="k", depends_on=[group])
    member = enqueue(conn, key="k", group_id=group)
    call(conn, "close_group", group)
    assert child < member
    held = reserve_one(conn)
    assert held.id == member
    # The child is not ready yet, and the key is not free.
    assert reserve(conn, 10) == []
    call(conn, "complete", held.id, held.reservation)
    settle(conn, clock)
    assert (state(conn, group), state(conn, child)) == ("succeeded", "waiting")
    finish(conn, child)
    nothing_is_left(conn, clock)


def test_a_child_that_is_released_takes_the_position_of_its_id(conn: psycopg.Connection, clock: Clock) -> None:
    group = open_group(conn)
    child = enqueue(conn, key="k", depends_on=[group])
    member = enqueue(conn, key="k", group_id=group)
    behind = enqueue_many(conn, 2, key="k")
    call(conn, "close_group", group)
    held = reserve_one(conn)
    assert held.id == member
    # This claim blocks what is behind the member.
    assert reserve(conn, 10) == []
    call(conn, "complete", held.id, held.reservation)
    settle(conn, clock)
    for each in (child, *behind):
        finish(conn, each)
    nothing_is_left(conn, clock)


def test_a_child_that_is_released_waits_for_the_one_of_its_key_that_executes(
    conn: psycopg.Connection, clock: Clock
) -> None:
    group = open_group(conn)
    child = enqueue(conn, key="k", depends_on=[group])
    member = enqueue(conn, group_id=group)
    later = enqueue(conn, key="k")
    held = {row.id: row for row in reserve(conn, 10)}
    assert set(held) == {member, later}
    call(conn, "close_group", group)
    call(conn, "complete", member, held[member].reservation)
    assert reserve(conn, 10) == []
    assert state(conn, child) == "blocked"
    call(conn, "complete", later, held[later].reservation)
    finish(conn, child)
    nothing_is_left(conn, clock)


def test_a_member_adds_the_member_of_the_key(conn: psycopg.Connection, clock: Clock) -> None:
    group = open_group(conn)
    child = enqueue(conn, key="k", depends_on=[group])
    first = enqueue(conn, group_id=group)
    call(conn, "close_group", group)
    held = reserve_one(conn)
    assert held.id == first
    added = enqueue(conn, key="k", group_id=first)
    call(conn, "complete", held.id, held.reservation)
    finish(conn, added)
    settle(conn, clock)
    finish(conn, child)
    nothing_is_left(conn, clock)


@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
def test_two_keys_cross_two_groups(database: Database, conn: psycopg.Connection, clock: Clock, level: str) -> None:
    one, other = open_group(conn), open_group(conn)
    children = [enqueue(conn, key="k", depends_on=[one]), enqueue(conn, key="l", depends_on=[other])]
    members = [enqueue(conn, key="l", group_id=one), enqueue(conn, key="k", group_id=other)]
    behind = [enqueue(conn, key="k"), enqueue(conn, key="l")]
    for group in (one, other):
        call(conn, "close_group", group)
    finisher = database.connect(autocommit=False)
    ended: list[int] = []
    for _ in range(20):
        held = reserve(conn, 10)
        finisher.execute(f"set transaction isolation level {level}".encode())
        for row in held:
            call(finisher, "complete", row.id, row.reservation)
            ended.append(row.id)
        finisher.commit()
        settle(conn, clock)
    assert ended[:2] == members
    assert sorted(ended) == sorted([*children, *members, *behind])
    # Above read committed the end of a member leaves notes, and what was behind it may start before these are read.
    if level == "read committed":
        assert ended[2:] == [*children, *behind]
    nothing_is_left(conn, clock)


def test_a_member_that_is_retried_runs_again_before_the_child(conn: psycopg.Connection, clock: Clock) -> None:
    group = open_group(conn)
    child = enqueue(conn, key="k", depends_on=[group])
    member = enqueue(conn, key="k", group_id=group)
    call(conn, "close_group", group)
    finish(conn, member, "dead")
    settle(conn, clock)
    assert (state(conn, group), state(conn, child)) == ("dead", "cancelled")
    later = enqueue(conn, key="k")
    assert call(conn, "retry", member)
    assert (state(conn, group), state(conn, child)) == ("blocked", "blocked")
    for each in (member, child, later):
        finish(conn, each)
        settle(conn, clock)
    assert (state(conn, group), state(conn, child)) == ("succeeded", "succeeded")
    nothing_is_left(conn, clock)


def test_a_parent_outside_the_key_is_retried_while_the_member_waits(conn: psycopg.Connection, clock: Clock) -> None:
    parent = enqueue(conn)
    group: int = call(conn, "open_group", "import", depends_on=[parent])
    child = enqueue(conn, key="k", depends_on=[group])
    member = enqueue(conn, key="k", group_id=group, depends_on=[parent])
    call(conn, "close_group", group)
    finish(conn, parent, "dead")
    settle(conn, clock)
    assert [state(conn, each) for each in (group, child, member)] == ["cancelled"] * 3
    later = enqueue(conn, key="k")
    assert call(conn, "retry", parent)
    settle(conn, clock)
    assert [state(conn, each) for each in (group, child, member)] == ["blocked"] * 3
    # Neither holds a position while it waits.
    held = {row.id: row for row in reserve(conn, 10)}
    assert set(held) == {parent, later}
    call(conn, "complete", parent, held[parent].reservation)
    assert ids(reserve(conn, 10)) == []
    call(conn, "complete", later, held[later].reservation)
    finish(conn, member)
    settle(conn, clock)
    finish(conn, child)
    assert [state(conn, each) for each in (group, child, member)] == ["succeeded"] * 3
    nothing_is_left(conn, clock)


def test_a_child_that_began_does_not_wait_again_and_keeps_its_position(conn: psycopg.Connection, clock: Clock) -> None:
    group = open_group(conn)
    child = enqueue(conn, key="k", depends_on=[group], run_if="finished")
    member = enqueue(conn, key="k", group_id=group)
    call(conn, "close_group", group)
    finish(conn, member, "dead")
    settle(conn, clock)
    finish(conn, child, "dead")
    assert call(conn, "retry", member)
    assert call(conn, "retry", child)
    assert [state(conn, each) for each in (group, member, child)] == ["blocked", "waiting", "waiting"]
    finish(conn, child)
    finish(conn, member)
    nothing_is_left(conn, clock)


def test_a_child_that_was_killed_waits_again_and_holds_no_position(conn: psycopg.Connection, clock: Clock) -> None:
    group = open_group(conn)
    child = enqueue(conn, key="k", depends_on=[group])
    member = enqueue(conn, key="k", group_id=group)
    call(conn, "close_group", group)
    table(conn, "kill_many", job_ids=[child])
    assert state(conn, child) == "dead"
    assert call(conn, "retry", child)
    assert state(conn, child) == "blocked"
    finish(conn, member)
    settle(conn, clock)
    finish(conn, child)
    nothing_is_left(conn, clock)


def test_a_member_that_fails_and_is_retried_comes_before_the_child(conn: psycopg.Connection, clock: Clock) -> None:
    group = open_group(conn)
    child = enqueue(conn, key="k", depends_on=[group])
    member = enqueue(conn, key="k", group_id=group)
    later = enqueue(conn, key="k")
    call(conn, "close_group", group)
    held = reserve_one(conn)
    assert held.id == member
    assert call(conn, "fail", held.id, held.reservation, retry_in="1 min") == "failed"
    # The member keeps its position while it waits for its next attempt, and the child waits for the member.
    assert reserve(conn, 10) == []
    clock.advance("1 min")
    for each in (member, child, later):
        finish(conn, each)
        settle(conn, clock)
    nothing_is_left(conn, clock)
