"""Retries of many jobs and of groups, where another session holds one of the rows of history."""

from __future__ import annotations

import psycopg

from pgqueue.testing import Clock
from tests.calls import Row, call, enqueue, reserve, state, table
from tests.databases import Database
from tests.races.test_dependencies import left, opened, settle
from tests.sessions import Session
from tests.sql.test_dependencies import finish


def reader_of(database: Database, conn: psycopg.Connection, parent: int) -> Session:
    """A claim or a run of maintenance that reads the note of a new child of the dead parent, and is not committed."""
    enqueue(conn, "late", depends_on=[parent], priority=-9)
    reader = opened(database)
    assert reader.run("select pgqueue._read_notes(100)") == [(True,)]
    return reader


def retry_many(conn: psycopg.Connection, **options: object) -> Row:
    [row] = table(conn, "retry_many", **options)
    return row


def test_a_bulk_retry_passes_over_a_chain_whose_first_job_is_locked(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    first = enqueue(conn)
    second = enqueue(conn, depends_on=[first])
    third = enqueue(conn, depends_on=[second])
    apart = enqueue(conn)
    finish(conn, first, "dead")
    finish(conn, apart, "dead")
    settle(conn, clock)
    chosen = [first, second, third, apart]
    reader = reader_of(database, conn, first)
    row = retry_many(conn, job_ids=chosen)
    # Without the first one the others would start at once.
    assert (row.changed, row.passed_over, row.next_after) == (1, 3, None)
    assert [state(conn, each) for each in chosen] == ["dead", "cancelled", "cancelled", "waiting"]
    reader.run("commit")
    row = retry_many(conn, job_ids=chosen)
    assert (row.changed, row.passed_over) == (3, 0)
    assert [state(conn, each) for each in chosen] == ["waiting", "blocked", "blocked", "waiting"]
    for each in (apart, first, second, third):
        finish(conn, each)


def test_a_retry_of_a_job_that_ran_does_not_mind_a_parent_that_is_locked(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    parent = enqueue(conn)
    child = enqueue(conn, depends_on=[parent], run_if="finished")
    finish(conn, parent, "dead")
    finish(conn, child, "dead")
    settle(conn, clock)
    reader_of(database, conn, parent)
    row = retry_many(conn, job_ids=[parent, child])
    assert (row.changed, row.passed_over, state(conn, child)) == (1, 1, "waiting")


def test_a_member_that_is_locked_in_history_comes_back_later_with_its_group(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    parent = enqueue(conn)
    group = call(conn, "open_group", depends_on=[parent])
    members = [enqueue(conn, group_id=group, delay="1 hour") for _ in range(2)]
    call(conn, "close_group", group)
    finish(conn, parent, "dead")
    settle(conn, clock)
    assert [state(conn, each) for each in (group, *members)] == ["cancelled"] * 3
    holder = opened(database)
    holder.run("select from pgqueue.history where id = %s for key share", [members[0]])
    call(conn, "retry", parent)
    settle(conn, clock)
    assert [state(conn, each) for each in (group, *members)] == ["blocked", "cancelled", "waiting"]
    finish(conn, parent)
    holder.run("rollback")
    settle(conn, clock)
    assert [state(conn, each) for each in (group, *members)] == ["blocked", "waiting", "waiting"]
    clock.advance("1 hour")
    for each in reserve(conn, 10):
        call(conn, "complete", each.id, each.reservation)
    settle(conn, clock)
    assert (state(conn, group), left(conn)) == ("succeeded", 0)


def test_a_group_does_not_end_while_a_member_that_is_to_come_back_is_locked(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    parent = enqueue(conn)
    group = call(conn, "open_group", depends_on=[parent])
    member = enqueue(conn, group_id=group, delay="1 hour")
    call(conn, "close_group", group)
    finish(conn, parent, "dead")
    settle(conn, clock)
    holder = opened(database)
    holder.run("select from pgqueue.history where id = %s for key share", [member])
    call(conn, "retry", parent)
    settle(conn, clock)
    finish(conn, parent)
    settle(conn, clock)
    assert state(conn, group) == "blocked"
    holder.run("rollback")
    settle(conn, clock)
    clock.advance("1 hour")
    finish(conn, member)
    settle(conn, clock)
    assert (state(conn, group), left(conn)) == ("succeeded", 0)


def test_a_bulk_retry_of_a_member_and_the_callback_of_its_group_keeps_their_order(
    conn: psycopg.Connection, clock: Clock
) -> None:
    group = call(conn, "open_group")
    member = enqueue(conn, group_id=group)
    callback = enqueue(conn, "callback", depends_on=[group])
    call(conn, "close_group", group)
    finish(conn, member, "dead")
    settle(conn, clock)
    assert [state(conn, each) for each in (group, callback)] == ["dead", "cancelled"]
    assert retry_many(conn, job_ids=[member, callback]).changed == 2
    assert [state(conn, each) for each in (group, callback)] == ["blocked", "blocked"]
    finish(conn, member)
    settle(conn, clock)
    assert (state(conn, group), state(conn, callback), left(conn)) == ("succeeded", "waiting", 0)
