"""exchange, where somebody holds what it ends, or claims what it lets go."""

from __future__ import annotations

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import Row, call, enqueue, enqueue_many, ids, maintain, pairs, reserve, reserve_one, state, table
from tests.databases import Database
from tests.facts import wait_until
from tests.sessions import Session


@pytest.fixture
def other(database: Database) -> Session:
    return database.session()


def hold(session: Session, job_id: int) -> None:
    session.run("begin")
    session.run("select from pgqueue.jobs where id = %s for update", [job_id])


def exchange(conn: psycopg.Connection, done: list[Row], failed: list[Row], max_jobs: int = 0) -> list[tuple[str, int]]:
    rows = table(
        conn,
        "exchange",
        "w",
        max_jobs,
        completed=ids(done),
        completed_reservations=pairs(done)[1],
        failed=ids(failed),
        failed_reservations=pairs(failed)[1],
    )
    return [(row.outcome, row.id) for row in rows]


def test_a_job_whose_lease_was_taken_while_it_ran_spoils_no_other(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    maintain(conn)
    enqueue_many(conn, 4)
    held = reserve(conn, 4)
    # Of two of them the leases are taken, and somebody else runs one.
    call(conn, "release", *pairs(held[1:3]))
    [taken] = reserve(conn, 1, "other")
    lost = {row.id for row in held[1:3]}
    told = exchange(conn, [held[0], held[1]], [held[2], held[3]])
    assert told == [("lost", held[1].id), ("lost", held[2].id), ("failed", held[3].id)]
    assert state(conn, held[0].id) == "succeeded"
    assert taken.id in lost
    assert state(conn, taken.id) == "executing"
    assert call(conn, "complete", taken.id, taken.reservation) is True


def test_what_somebody_holds_is_told_and_the_rest_ends_and_the_next_comes(
    conn: psycopg.Connection, other: Session
) -> None:
    enqueue_many(conn, 5)
    done, locked, failed, locked_failed = held = reserve(conn, 4)
    other.run("begin")
    other.run("select from pgqueue.jobs where id = any (%s) for update", [ids([locked, locked_failed])])
    told = exchange(conn, [done, locked], [failed, locked_failed], 1)
    assert told[:3] == [("locked", locked.id), ("failed", failed.id), ("locked", locked_failed.id)]
    assert [outcome for outcome, _ in told[3:]] == ["reserved"]
    assert [state(conn, row.id) for row in held] == ["succeeded", "executing", "failed", "executing"]
    other.run("rollback")
    assert exchange(conn, [locked], [locked_failed]) == [("failed", locked_failed.id)]
    assert state(conn, locked.id) == "succeeded"


def test_a_holder_that_is_gone_soon_is_waited_for(database: Database, conn: psycopg.Connection, other: Session) -> None:
    job_id = enqueue(conn)
    held = reserve_one(conn)
    hold(other, job_id)
    worker = database.session()
    ending = worker.start(
        "select outcome from pgqueue.exchange('w', completed => %s, completed_reservations => %s)",
        [[job_id], [held.reservation]],
    )
    # While it waits it is not answered; the answer tells which came first.
    wait_until(lambda: worker.waits_behind(other) or ending.done())
    other.run("rollback")
    assert ending.result(timeout=10) in ([], [("locked",)])
    assert (state(conn, job_id) == "succeeded") == (ending.result() == [])


def test_a_payload_that_somebody_holds_keeps_its_call_and_nothing_else(
    conn: psycopg.Connection, other: Session
) -> None:
    call(conn, "declare_task", "acc", accumulate=True)
    for n in range(3):
        enqueue(conn, "acc", {"n": n}, key="k")
    plain = enqueue(conn)
    rows = reserve(conn, 10)
    leader = rows[0]
    [single] = [row for row in rows if row.id == plain]
    hold(other, [row.id for row in rows if row.key == "k"][2])
    assert exchange(conn, [leader, single], []) == [("locked", leader.id)]
    assert state(conn, plain) == "succeeded"
    other.run("rollback")
    assert exchange(conn, [leader], []) == []
    assert {state(conn, row.id) for row in rows} == {"succeeded"}


def test_a_retry_budget_that_somebody_holds_keeps_only_failures_for_later(
    conn: psycopg.Connection, other: Session
) -> None:
    conn.execute("insert into pgqueue.queues (name, retry_budget) values ('default', 5)")
    enqueue_many(conn, 3)
    first, second, third = reserve(conn, 3)
    other.run("begin")
    other.run("select pgqueue.fail(%s, %s)", [first.id, first.reservation])
    assert exchange(conn, [second], [third]) == [("locked", third.id)]
    other.run("commit")
    assert exchange(conn, [], [third]) == [("failed", third.id)]
    assert [state(conn, row.id) for row in (first, second, third)] == ["failed", "succeeded", "failed"]


def test_two_exchanges_over_the_same_jobs_in_opposite_parts_end_without_a_deadlock(
    database: Database, conn: psycopg.Connection
) -> None:
    # One completes what the other fails, and the other way round: the rows are locked in the order of their ids.
    job_ids = enqueue_many(conn, 2)
    held = {row.id: row.reservation for row in reserve(conn, 2)}
    low, high = job_ids
    gate = database.session()
    hold(gate, low)
    sessions = [database.session(), database.session()]
    started = [
        session.start(
            "select outcome, id from pgqueue.exchange('w', completed => %s, completed_reservations => %s,"
            " failed => %s, failed_reservations => %s)",
            [[done], [held[done]], [failed], [held[failed]]],
        )
        for session, done, failed in ((sessions[0], high, low), (sessions[1], low, high))
    ]
    gate.run("rollback")
    for each in started:
        each.result(timeout=10)
    for job_id in job_ids:
        if state(conn, job_id) == "executing":
            # Told as locked, to be said again.
            assert ("locked", job_id) in started[0].result() + started[1].result()


@pytest.mark.covers("L1")
def test_while_an_exchange_is_open_nobody_else_gets_the_job_that_it_let_go(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2030-01-01 12:00+00")
    first, second, third = enqueue_many(conn, 3, key="k")
    held = reserve_one(conn)
    assert reserve(conn, 10) == []
    worker = database.session()
    worker.run("begin")
    rows = worker.run(
        "select outcome, id from pgqueue.exchange('w', 10, completed => %s, completed_reservations => %s)",
        [[held.id], [held.reservation]],
    )
    assert rows == [("reserved", second)]
    assert reserve(conn, 10, "other") == []
    worker.run("commit")
    assert reserve(conn, 10, "other") == []
    assert [state(conn, job_id) for job_id in (first, second, third)] == ["succeeded", "executing", "blocked"]
