"""exchange, where another session has locked what it ends, or claims what it releases."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import (
    Row,
    call,
    enqueue,
    enqueue_many,
    ids,
    maintain,
    pairs,
    reserve,
    reserve_one,
    state,
    table,
    value,
)
from tests.databases import Database
from tests.facts import wait_until
from tests.sessions import Session


@pytest.fixture
def other(database: Database) -> Session:
    return database.session()


def hold(session: Session, job_id: int) -> None:
    session.run("begin")
    session.run("select from pgqueue.jobs where id = %s for update", [job_id])


def wait_for_a_minute(conn: psycopg.Connection) -> None:
    """Let exchange wait for longer than its 100 ms: a test that waits until it sees that does not race them."""
    [[signature]] = conn.execute("select 'pgqueue.exchange'::regproc::oid::regprocedure::text").fetchall()
    conn.execute(f"alter function {signature} set lock_timeout = '60s'".encode())


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
    # The leases of two of them are taken, and another worker runs one.
    call(conn, "release", *pairs(held[1:3]))
    [taken] = reserve(conn, 1, "other")
    lost = {row.id for row in held[1:3]}
    reported = exchange(conn, [held[0], held[1]], [held[2], held[3]])
    assert reported == [("lost", held[1].id), ("lost", held[2].id), ("failed", held[3].id)]
    assert state(conn, held[0].id) == "succeeded"
    assert taken.id in lost
    assert state(conn, taken.id) == "executing"
    assert call(conn, "complete", taken.id, taken.reservation) is True


def test_a_locked_row_is_reported_and_the_rest_ends_and_the_next_job_comes(
    conn: psycopg.Connection, other: Session
) -> None:
    enqueue_many(conn, 5)
    done, locked, failed, locked_failed = held = reserve(conn, 4)
    other.run("begin")
    other.run("select from pgqueue.jobs where id = any (%s) for update", [ids([locked, locked_failed])])
    reported = exchange(conn, [done, locked], [failed, locked_failed], 1)
    assert reported[:3] == [("locked", locked.id), ("failed", failed.id), ("locked", locked_failed.id)]
    assert [outcome for outcome, _ in reported[3:]] == ["reserved"]
    assert [state(conn, row.id) for row in held] == ["succeeded", "executing", "failed", "executing"]
    other.run("rollback")
    assert exchange(conn, [locked], [locked_failed]) == [("failed", locked_failed.id)]
    assert state(conn, locked.id) == "succeeded"


def test_a_lock_that_ends_soon_is_waited_for(database: Database, conn: psycopg.Connection, other: Session) -> None:
    wait_for_a_minute(conn)
    job_id = enqueue(conn)
    held = reserve_one(conn)
    hold(other, job_id)
    worker = database.session()
    ending = worker.start(
        "select outcome from pgqueue.exchange('w', completed => %s, completed_reservations => %s)",
        [[job_id], [held.reservation]],
    )
    wait_until(lambda: worker.waits_behind(other) or ending.done())
    other.run("rollback")
    assert ending.result(timeout=10) == []
    assert state(conn, job_id) == "succeeded"


def test_a_locked_member_keeps_its_batch_and_nothing_else(conn: psycopg.Connection, other: Session) -> None:
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


def test_a_locked_retry_budget_keeps_only_failures_for_later(conn: psycopg.Connection, other: Session) -> None:
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
    wait_for_a_minute(conn)
    low, high = enqueue_many(conn, 2)
    held = {row.id: row.reservation for row in reserve(conn, 2)}
    gate, *sessions = (database.session() for _ in range(3))
    # Each stops between what it completed and what failed.
    gate.run("select pg_advisory_lock(1)")
    conn.execute("create function public.gate() returns void language sql as 'select pg_advisory_xact_lock_shared(1)'")
    source = value(conn, "select pg_get_functiondef('pgqueue._fail'::regproc)")
    assert "\nbegin\n" in source
    conn.execute(source.replace("\nbegin\n", "\nbegin\n    perform public.gate();\n", 1).encode())
    started = []
    for session, done, failed in ((sessions[0], high, low), (sessions[1], low, high)):
        started.append(
            session.start(
                "select outcome, id from pgqueue.exchange('w', completed => %s, completed_reservations => %s,"
                " failed => %s, failed_reservations => %s)",
                [[done], [held[done]], [failed], [held[failed]]],
            )
        )
        wait_until(session.is_waiting_on_lock)
    gate.run("select pg_advisory_unlock(1)")
    # The first one ends both, and the other one finds neither.
    assert started[0].result(timeout=10) == [("failed", low)]
    assert started[1].result(timeout=10) == [("lost", low), ("lost", high)]
    assert [state(conn, job_id) for job_id in (low, high)] == ["failed", "succeeded"]


@pytest.mark.covers("L1")
def test_while_an_exchange_is_open_no_other_worker_gets_the_job_that_it_released(
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


@pytest.fixture
def noon(conn: psycopg.Connection, clock: Clock) -> Clock:
    clock.set("2030-01-01 12:00+00")
    maintain(conn)
    return clock


@pytest.mark.covers("G9", "D2")
@pytest.mark.parametrize("part", ["completed", "failed", "extended"])
def test_a_job_reported_as_locked_or_extended_stays_held_when_that_lock_ends(
    part: str, conn: psycopg.Connection, other: Session, noon: Clock
) -> None:
    job_id = enqueue(conn)
    held = reserve_one(conn)
    noon.advance("29 s")
    hold(other, job_id)
    for _ in range(3):
        [row] = table(conn, "exchange", "w", **{part: [held.id], f"{part}_reservations": [held.reservation]})
        assert row.outcome == ("extended" if part == "extended" else "locked")
        assert row.lease_expires_at == noon.now() + timedelta(seconds=30)
        for _ in range(6):
            noon.advance("4 s")
            maintain(conn)
    other.run("rollback")
    assert maintain(conn).rescued == 0
    assert reserve(conn, 1, "thief") == []
    rows = table(conn, "exchange", "w", **{part: [held.id], f"{part}_reservations": [held.reservation]})
    assert [row.outcome for row in rows] == {"completed": [], "failed": ["failed"], "extended": ["extended"]}[part]


def in_reserve(database: Database, statement: str) -> None:
    """Have every reserve run a statement first."""
    with database.connect() as conn:
        [[body]] = conn.execute("select pg_get_functiondef('pgqueue.reserve'::regproc)").fetchall()
        assert "\nbegin\n" in body
        conn.execute(body.replace("\nbegin\n", f"\nbegin\n    {statement};\n", 1).encode())


FAULTS = {
    "22012": "perform 1 / 0",
    "53100": "raise disk_full",
    # As a statement_timeout does.
    "57014": "perform pg_cancel_backend(pg_backend_pid()), pg_sleep(60)",
    "40P01": "raise deadlock_detected",
}


@pytest.mark.parametrize("sqlstate", FAULTS)
def test_what_ended_is_stored_although_the_claim_with_it_fails(
    sqlstate: str, database: Database, conn: psycopg.Connection
) -> None:
    enqueue_many(conn, 5)
    done, failed, extended, lost = reserve(conn, 4)
    call(conn, "release", *pairs([lost]), "1 hour")
    in_reserve(database, FAULTS[sqlstate])
    rows = table(
        conn,
        "exchange",
        "w",
        10,
        completed=[done.id, lost.id],
        completed_reservations=[done.reservation, lost.reservation],
        failed=[failed.id],
        failed_reservations=[failed.reservation],
        extended=[extended.id],
        extended_reservations=[extended.reservation],
    )
    assert [(row.outcome, row.id) for row in rows] == [
        ("lost", lost.id),
        ("failed", failed.id),
        ("extended", extended.id),
        ("unclaimed", None),
    ]
    assert rows[-1].note.startswith(f"{sqlstate}: ")
    assert [state(conn, row.id) for row in (done, failed, extended)] == ["succeeded", "failed", "executing"]


def test_a_claim_that_would_wait_costs_no_end(conn: psycopg.Connection, other: Session) -> None:
    enqueue_many(conn, 2)
    held = reserve_one(conn)
    other.run("begin")
    other.run("lock table pgqueue.lanes in access exclusive mode")
    [row] = table(conn, "exchange", "w", 10, completed=[held.id], completed_reservations=[held.reservation])
    assert (row.outcome, row.note[:5]) == ("unclaimed", "55P03")
    assert state(conn, held.id) == "succeeded"
    # With nothing to keep it is an error as of reserve.
    with pytest.raises(psycopg.errors.LockNotAvailable):
        table(conn, "exchange", "w", 10)


def test_misuse_of_the_claim_is_refused_before_anything_ends(conn: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    held = reserve_one(conn)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="strategy is unknown"):
        table(conn, "exchange", "w", 1, strategy="no", completed=[held.id], completed_reservations=[held.reservation])
    assert state(conn, job_id) == "executing"
