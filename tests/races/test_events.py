"""Events and those who wait for them, where two sessions meet in the order that would lose one."""

from __future__ import annotations

from typing import LiteralString

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, ids, reserve, reserve_one, table, value
from tests.databases import Database
from tests.facts import wait_until
from tests.races.test_dependencies import RR, left, opened, settle

WAIT: LiteralString = "select arrived from pgqueue.await_event(%s, %s, 'wait', 'paid', '1 hour')"
EMIT: LiteralString = "select pgqueue.emit_event('paid', '5')"


def arrives(conn: psycopg.Connection, job_id: int) -> None:
    """The job comes back once, and gets the payload."""
    [held] = reserve(conn, 10)
    assert (held.id, held.attempt) == (job_id, 1)
    [row] = table(conn, "await_event", held.id, held.reservation, "wait", "paid")
    assert (row.arrived, row.payload) == (True, 5)
    assert reserve(conn, 10) == []
    assert value(conn, "select count(*) from pgqueue.event_waits") == 0
    assert left(conn) == 0


@pytest.mark.parametrize("begin", ["begin", RR])
@pytest.mark.parametrize("first", ["waiter", "emitter"])
def test_the_event_and_the_wait_are_committed_beside_each_other(
    database: Database, conn: psycopg.Connection, clock: Clock, first: str, begin: LiteralString
) -> None:
    enqueue(conn)
    held = reserve_one(conn)
    waiter, emitter = opened(database), opened(database, begin)
    # Neither sees the other's row.
    emitter.run("select count(*) from pgqueue.events")
    assert waiter.run(WAIT, [held.id, held.reservation]) == [(None,)]
    assert emitter.run(EMIT) == [(True,)]
    one, other = (waiter, emitter) if first == "waiter" else (emitter, waiter)
    one.run("commit")
    settle(conn, clock)
    other.run("commit")
    settle(conn, clock)
    arrives(conn, held.id)


def test_an_event_that_is_rolled_back_wakes_no_job(database: Database, conn: psycopg.Connection, clock: Clock) -> None:
    enqueue(conn)
    held = reserve_one(conn)
    conn.execute(WAIT, [held.id, held.reservation])
    emitter = opened(database)
    emitter.run(EMIT)
    emitter.run("rollback")
    settle(conn, clock)
    assert reserve(conn) == []
    call(conn, "emit_event", "paid", Jsonb(5))
    arrives(conn, held.id)


def test_of_two_emitters_the_first_to_commit_wins(database: Database, conn: psycopg.Connection) -> None:
    one, other = opened(database), database.session()
    one.run(EMIT)
    second = other.start("select pgqueue.emit_event('paid', '6')")
    wait_until(lambda: other.waits_behind(one))
    one.run("commit")
    assert second.result(timeout=5) == [(False,)]
    assert value(conn, "select payload from pgqueue.events") == 5


def test_a_waiter_that_is_locked_gets_the_event_later(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    enqueue(conn)
    held = reserve_one(conn)
    conn.execute(WAIT, [held.id, held.reservation])
    operator = opened(database)
    operator.run("select from pgqueue.jobs where id = %s for update", [held.id])
    emitter = opened(database)
    emitter.run(EMIT)
    emitter.run("commit")
    settle(conn, clock)
    operator.run("rollback")
    settle(conn, clock)
    arrives(conn, held.id)


def test_an_event_that_is_being_emitted_at_the_deadline_arrives(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    enqueue(conn)
    held = reserve_one(conn)
    conn.execute(WAIT, [held.id, held.reservation])
    clock.advance("1 hour")
    emitter = opened(database)
    emitter.run(EMIT)
    # It holds the row of the job that it wakes.
    assert reserve(conn) == []
    emitter.run("commit")
    arrives(conn, held.id)


@pytest.mark.parametrize("emits", ["after the claim", "after the timeout"])
def test_a_timeout_and_an_event_at_once(database: Database, conn: psycopg.Connection, clock: Clock, emits: str) -> None:
    enqueue(conn)
    held = reserve_one(conn)
    conn.execute(WAIT, [held.id, held.reservation])
    clock.advance("1 hour")
    emitter = opened(database)
    [again] = reserve(conn)
    if emits == "after the claim":
        emitter.run(EMIT)
        emitter.run("commit")
    [row] = table(conn, "await_event", again.id, again.reservation, "wait", "paid")
    assert row.arrived is (emits == "after the claim")
    if emits == "after the timeout":
        emitter.run(EMIT)
    emitter.run("commit")
    settle(conn, clock)
    # Decided once, and for good.
    [row] = table(conn, "await_event", again.id, again.reservation, "wait", "paid")
    assert row.arrived is (emits == "after the claim")
    assert left(conn) == 0


def test_a_job_that_dies_between_its_wait_and_its_next_attempt_gets_the_event(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    enqueue(conn)
    held = reserve_one(conn)
    conn.execute(WAIT, [held.id, held.reservation])
    call(conn, "emit_event", "paid", Jsonb(5))
    reserve_one(conn)
    # Its worker is killed: the lease lapses, after a grace period.
    for _ in range(3):
        clock.advance("40 s")
        settle(conn, clock)
    arrives(conn, held.id)


@pytest.mark.parametrize("keep_for", ["0", "1 min"])
def test_an_event_whose_time_is_over_reaches_a_job_that_waited_and_was_locked(
    database: Database, conn: psycopg.Connection, clock: Clock, keep_for: str
) -> None:
    enqueue(conn)
    held = reserve_one(conn)
    conn.execute(WAIT, [held.id, held.reservation])
    operator = opened(database)
    operator.run("select from pgqueue.jobs where id = %s for update", [held.id])
    call(conn, "emit_event", "paid", Jsonb(5), keep_for)
    for _ in range(3):
        settle(conn, clock)
        clock.advance("5 min")
    operator.run("rollback")
    settle(conn, clock)
    arrives(conn, held.id)


def test_an_event_whose_time_is_over_reaches_a_job_that_waited_and_fails(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    enqueue(conn)
    held = reserve_one(conn)
    conn.execute(WAIT, [held.id, held.reservation])
    clock.advance("1 hour")
    held = reserve_one(conn)
    # It executes, and reads the event itself; but it fails before it does.
    call(conn, "emit_event", "paid", Jsonb(5), "0")
    call(conn, "fail", held.id, held.reservation, retry_in="30 min")
    settle(conn, clock)
    clock.advance("30 min")
    [again] = reserve(conn)
    [row] = table(conn, "await_event", again.id, again.reservation, "wait", "paid")
    assert (row.arrived, row.payload) == (True, 5)


def test_a_job_that_has_as_many_steps_as_it_may_have_keeps_no_event_from_others(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    full, locked = enqueue(conn), enqueue(conn)
    for held in reserve(conn, 2):
        conn.execute(WAIT, [held.id, held.reservation])
    conn.execute(
        "insert into pgqueue.steps (job_id, name, attempt, at)"
        " select id, 's' || n, 1, now() from pgqueue.jobs cross join generate_series(1, 10000) n"
    )
    operator = opened(database)
    operator.run("select from pgqueue.jobs where id = %s for update", [locked])
    assert conn.execute(EMIT).fetchall() == [(True,)]
    operator.run("rollback")
    # The other one gets it by a note.
    settle(conn, clock)
    assert ids(reserve(conn, 2)) == [full, locked]
    assert left(conn) == 0


def test_an_event_reaches_a_job_behind_a_thousand_that_cannot_continue(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue_many(conn, 1000, "paused")
    other = enqueue(conn, "other")
    conn.execute(
        "select count(w.arrived) from pgqueue.reserve('w', 1001) r cross join lateral pgqueue.await_event("
        "r.id, r.reservation, 'wait', 'paid', case when r.task = 'paused' then interval '1 min' end) w"
    )
    assert value(conn, "select count(*) from pgqueue.event_waits") == 1001
    call(conn, "pause", "task", "paused")
    clock.advance("61 s")
    wait_until(lambda: reserve(conn, 1000) == [] and value(conn, BLOCKED) == 1000)
    assert conn.execute(EMIT).fetchall() == [(True,)]
    assert ids(reserve(conn)) == [other]


BLOCKED = "select count(*) from pgqueue.jobs where state = 'blocked'"
