"""Jobs and groups that come back by a retry, where another session meets them on their way."""

from __future__ import annotations

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import call, enqueue, job, maintain, reserve, reserve_one, state
from tests.databases import Database
from tests.races.test_dependencies import CHILD, RR, dead, left, opened, settle
from tests.sql.test_dependencies import finish


@pytest.mark.parametrize("becomes", ["alive", "succeeded", "dead"])
def test_a_parent_is_retried_while_a_child_that_found_it_dead_is_not_committed(
    database: Database, conn: psycopg.Connection, clock: Clock, becomes: str
) -> None:
    parent = dead(conn)
    producer = opened(database)
    [(child,)] = producer.run(CHILD, [[parent]])
    [(grandchild,)] = producer.run(CHILD, [[child]])
    # The retry does not see the child that it is to bring back.
    assert call(conn, "retry", parent)
    if becomes != "alive":
        finish(conn, parent, becomes)
    producer.run("commit")
    assert state(conn, child) == "cancelled"
    settle(conn, clock)
    assert state(conn, child) == {"alive": "blocked", "succeeded": "waiting", "dead": "cancelled"}[becomes]
    assert state(conn, grandchild) == ("cancelled" if becomes == "dead" else "blocked")
    if becomes == "alive":
        finish(conn, parent)
        assert state(conn, child) == "waiting"
    assert left(conn) == 0


def test_a_parent_that_is_retried_in_a_long_transaction_brings_back_a_child_that_found_it_dead(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    parent = dead(conn)
    retrier = opened(database)
    retrier.run("select pgqueue.retry(%s)", [parent])
    child = enqueue(conn, "child", depends_on=[parent])
    settle(conn, clock)
    # Each reader of the note finds the parent locked.
    assert state(conn, child) == "cancelled"
    retrier.run("commit")
    settle(conn, clock)
    assert (state(conn, child), left(conn)) == ("blocked", 0)


def test_a_producer_with_an_old_snapshot_finds_a_parent_dead_that_has_succeeded_since(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    parent = dead(conn)
    producer = opened(database, RR)
    producer.run("select count(*) from pgqueue.jobs")
    call(conn, "retry", parent)
    finish(conn, parent)
    [(child,)] = producer.run(CHILD, [[parent]])
    producer.run("commit")
    settle(conn, clock)
    assert (state(conn, child), left(conn)) == ("waiting", 0)


def test_a_child_that_is_locked_in_history_comes_back_later_with_its_own(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    parent = enqueue(conn)
    child = enqueue(conn, "child", depends_on=[parent])
    grandchild = enqueue(conn, "grandchild", depends_on=[child])
    finish(conn, parent, "dead")
    holder = opened(database)
    holder.run("select from pgqueue.history where id = %s for update", [child])
    assert call(conn, "retry", parent)
    settle(conn, clock)
    holder.run("rollback")
    settle(conn, clock)
    assert [state(conn, each) for each in (child, grandchild)] == ["blocked", "blocked"]
    finish(conn, parent)
    finish(conn, child)
    assert (state(conn, grandchild), left(conn)) == ("waiting", 0)


def test_a_child_is_retried_while_its_other_parent_ends(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    # Both parents died; one came back alone, and ends while the child is retried.
    one, other = enqueue(conn), enqueue(conn)
    child = enqueue(conn, "child", depends_on=[one, other])
    for parent in (one, other):
        finish(conn, parent, "dead")
    call(conn, "retry", one, dependents=False)
    held = reserve_one(conn)
    retrier, finisher = opened(database), opened(database)
    retrier.run("select pgqueue.retry(%s)", [child])
    finisher.run("select pgqueue.complete(%s, %s)", [held.id, held.reservation])
    finisher.run("commit")
    retrier.run("commit")
    settle(conn, clock)
    assert (state(conn, child), left(conn)) == ("waiting", 0)


def test_a_group_that_is_cancelled_for_a_parent_comes_back_though_it_had_not_ended(
    conn: psycopg.Connection, clock: Clock
) -> None:
    parent = enqueue(conn)
    group = call(conn, "open_group", "g", depends_on=[parent])
    enqueue(conn, group_id=group)
    member = enqueue(conn, group_id=group, delay="1 hour")
    call(conn, "close_group", group)
    failing, running = reserve(conn, 2)
    call(conn, "fail", failing.id, failing.reservation, retry=False)
    settle(conn, clock)
    # It waits for the member that executes.
    assert (state(conn, group), state(conn, member)) == ("blocked", "cancelled")
    call(conn, "retry", parent)
    settle(conn, clock)
    call(conn, "complete", running.id, running.reservation)
    finish(conn, parent)
    settle(conn, clock)
    assert (state(conn, group), state(conn, member)) == ("blocked", "waiting")
    clock.advance("1 hour")
    finish(conn, member)
    settle(conn, clock)
    assert (state(conn, group), left(conn)) == ("succeeded", 0)


def test_a_group_that_an_operator_cancelled_stays_so_whatever_its_parent_does(
    conn: psycopg.Connection, clock: Clock
) -> None:
    parent = enqueue(conn)
    group = call(conn, "open_group", "g", depends_on=[parent])
    enqueue(conn, group_id=group)
    call(conn, "close_group", group)
    failing, running = reserve(conn, 2)
    call(conn, "cancel", group)
    call(conn, "fail", failing.id, failing.reservation, retry=False)
    settle(conn, clock)
    call(conn, "retry", parent)
    call(conn, "complete", running.id, running.reservation)
    settle(conn, clock)
    assert (state(conn, group), left(conn)) == ("cancelled", 0)


def test_the_net_takes_no_wait_that_began_since_it_looked(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    parent, waiter = enqueue(conn), enqueue(conn)
    held = {row.id: row for row in reserve(conn, 2)}
    # Left over from an earlier wait, as when its row was locked.
    conn.execute(
        "insert into pgqueue.dependencies (parent, child, ended, traceless) values (%s, %s, 'dead', true)",
        [parent, waiter],
    )
    writer = opened(database)
    # The net reads, and then waits for this lock before it deletes.
    writer.run("lock table pgqueue.dependencies in share row exclusive mode")
    sweeper = database.session()
    sweep = sweeper.start("select pgqueue._sweep_dependencies(100, null)")
    while not sweeper.waits_behind(writer):
        assert not sweep.done()
    writer.run(
        "select pgqueue.suspend(%s, %s, depends_on => %s::bigint[])", [waiter, held[waiter].reservation, [parent]]
    )
    writer.run("commit")
    sweep.result(timeout=5)
    settle(conn, clock)
    assert state(conn, waiter) == "blocked"
    call(conn, "complete", parent, held[parent].reservation)
    maintain(conn)
    assert (state(conn, waiter), left(conn)) == ("waiting", 0)


@pytest.mark.parametrize("becomes", ["succeeded", "dead"])
def test_a_member_comes_back_while_its_group_ends_and_ends_before_the_note_is_read(
    database: Database, conn: psycopg.Connection, clock: Clock, becomes: str
) -> None:
    group = call(conn, "open_group")
    member = enqueue(conn, group_id=group)
    then = enqueue(conn, "then", depends_on=[group])
    call(conn, "close_group", group)
    finish(conn, member, "dead")
    retrier = opened(database)
    retrier.run("select pgqueue.retry(%s)", [member])
    # The reader sees no live member.
    settle(conn, clock)
    assert [state(conn, each) for each in (group, then)] == ["dead", "cancelled"]
    retrier.run("commit")
    finish(conn, member, becomes)
    settle(conn, clock)
    assert [state(conn, each) for each in (group, then)] == (
        ["succeeded", "waiting"] if becomes == "succeeded" else ["dead", "cancelled"]
    )
    # The last end is that of the group.
    assert job(conn, group).finished_at > job(conn, member).finished_at
    assert left(conn) == 0


def test_a_member_that_comes_back_waits_for_no_open_enqueue_of_its_dedupe_key(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    parent = enqueue(conn)
    group = call(conn, "open_group", depends_on=[parent])
    member = enqueue(conn, "member", group_id=group, dedupe="d", delay="1 year")
    call(conn, "close_group", group)
    held = reserve_one(conn)
    call(conn, "fail", held.id, held.reservation, retry=False)
    settle(conn, clock)
    assert (state(conn, group), state(conn, member)) == ("cancelled", "cancelled")
    producer, claim = opened(database), opened(database)
    producer.run("select pgqueue.enqueue('member', dedupe => 'd')")
    assert call(conn, "retry", parent) is True
    # It comes up short, and reads the note that brings the members back.
    assert claim.run("select id from pgqueue.reserve('w', 10)") == [(parent,)]
    claim.run("commit")
    assert (state(conn, member), job(conn, member).dedupe) == ("waiting", None)
    producer.run("commit")
    settle(conn, clock)
    assert (state(conn, group), left(conn)) == ("blocked", 0)
