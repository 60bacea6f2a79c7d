"""Children and parents, where two sessions meet in the order that would lose a wake-up."""

from __future__ import annotations

from typing import LiteralString

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import Row, call, enqueue, enqueue_many, maintain, reserve, reserve_one, state, value
from tests.databases import Database
from tests.facts import wait_until
from tests.sessions import Session

RR: LiteralString = "begin isolation level repeatable read"
SERIALIZABLE: LiteralString = "begin isolation level serializable"
CHILD: LiteralString = "select pgqueue.enqueue('child', depends_on => %s::bigint[])"

# How a parent that executes ends, and what becomes of its child.
ENDS: dict[str, tuple[LiteralString, str]] = {
    "complete": ("select pgqueue.complete(%(id)s, %(reservation)s)", "waiting"),
    "fail": ("select pgqueue.fail(%(id)s, %(reservation)s, retry => false)", "cancelled"),
    "exchange": (
        "select * from pgqueue.exchange("
        "'w', completed => array[%(id)s], completed_reservations => array[%(reservation)s])",
        "waiting",
    ),
}

# How a parent that waits ends.
LEAVES: dict[str, LiteralString] = {
    "cancel": "select pgqueue.cancel(%s)",
    "delete": "select pgqueue.delete(%s)",
    "purge": "select changed from pgqueue.purge_queue((select queue from pgqueue.jobs where id = %s))",
}


def of(row: Row) -> dict[str, int]:
    return {"id": row.id, "reservation": row.reservation}


def opened(database: Database, begin: LiteralString = "begin") -> Session:
    session = database.session()
    session.run(begin)
    # Whatever waits for another session fails.
    session.run("set local statement_timeout = '20s'")
    return session


def settle(conn: psycopg.Connection, clock: Clock) -> None:
    """What maintenance does in the next seconds."""
    for _ in range(3):
        maintain(conn)
        clock.advance("1 s")


def left(conn: psycopg.Connection) -> int:
    """What the net had to find, and notes: none."""
    found: int = value(
        conn, "select coalesce(max(unblocked), 0) + (select count(*) from pgqueue.notes) from pgqueue.maintenance_runs"
    )
    return found


@pytest.mark.parametrize("how", ENDS)
def test_a_child_that_is_committed_while_its_parent_ends_is_woken(
    database: Database, conn: psycopg.Connection, clock: Clock, how: str
) -> None:
    enqueue(conn)
    held = reserve_one(conn)
    finisher = opened(database)
    finisher.run(ENDS[how][0], of(held))
    child = enqueue(conn, "child", depends_on=[held.id])
    settle(conn, clock)
    # Its parent is visible, and locked: it may be ending.
    assert state(conn, child) == "blocked"
    assert value(conn, "select count(*) from pgqueue.notes") == 1
    finisher.run("commit")
    settle(conn, clock)
    assert state(conn, child) == ENDS[how][1]
    assert left(conn) == 0


@pytest.mark.parametrize("how", ENDS)
def test_a_parent_ends_while_its_child_is_not_committed(
    database: Database, conn: psycopg.Connection, clock: Clock, how: str
) -> None:
    enqueue(conn)
    held = reserve_one(conn)
    producer = opened(database)
    [(child,)] = producer.run(CHILD, [[held.id]])
    finisher = opened(database)
    finisher.run(ENDS[how][0], of(held))
    finisher.run("commit")
    settle(conn, clock)
    producer.run("commit")
    settle(conn, clock)
    assert state(conn, child) == ENDS[how][1]
    assert left(conn) == 0


@pytest.mark.parametrize("how", LEAVES)
@pytest.mark.parametrize("run_if", ["succeeded", "finished"])
def test_a_parent_is_cancelled_or_deleted_while_its_child_is_not_committed(
    database: Database, conn: psycopg.Connection, clock: Clock, how: str, run_if: str
) -> None:
    parent = enqueue(conn)
    producer = opened(database)
    [(child,)] = producer.run(
        "select pgqueue.enqueue('child', queue => 'other', depends_on => array[%s], run_if => %s)", [parent, run_if]
    )
    leaver = opened(database)
    leaver.run(LEAVES[how], [parent])
    leaver.run("commit")
    producer.run("commit")
    settle(conn, clock)
    assert state(conn, child) == ("waiting" if run_if == "finished" else "cancelled")
    assert left(conn) == 0


def test_a_child_of_a_finisher_that_was_rolled_back_waits_on(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    enqueue(conn)
    held = reserve_one(conn)
    finisher = opened(database)
    finisher.run(ENDS["complete"][0], of(held))
    child = enqueue(conn, "child", depends_on=[held.id])
    settle(conn, clock)
    finisher.run("rollback")
    settle(conn, clock)
    assert (state(conn, child), left(conn)) == ("blocked", 0)
    call(conn, "complete", held.id, held.reservation)
    assert state(conn, child) == "waiting"


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("how", ENDS)
def test_two_last_parents_end_at_once(
    database: Database, conn: psycopg.Connection, clock: Clock, how: str, first: int
) -> None:
    parents = enqueue_many(conn, 2)
    child = enqueue(conn, "child", depends_on=parents, run_if="finished")
    settle(conn, clock)
    held = reserve(conn, 2)
    finishers = [opened(database), opened(database)]
    for finisher, row in zip(finishers, held, strict=True):
        finisher.run(ENDS[how][0], of(row))
    finishers[first].run("commit")
    settle(conn, clock)
    assert state(conn, child) == "blocked"
    finishers[1 - first].run("commit")
    # Each saw the other's row: without the note no session would release it.
    assert state(conn, child) == "blocked"
    settle(conn, clock)
    assert state(conn, child) == "waiting"
    assert left(conn) == 0


def test_one_of_two_last_parents_ends_in_a_transaction_that_stays_open_for_a_minute(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    parents = enqueue_many(conn, 2)
    child = enqueue(conn, "child", depends_on=parents)
    one, other = reserve(conn, 2)
    slow = opened(database)
    slow.run(ENDS["complete"][0], of(one))
    call(conn, "complete", other.id, other.reservation)
    for _ in range(60):
        maintain(conn)
        clock.advance("1 s")
    assert state(conn, child) == "blocked"
    slow.run("commit")
    settle(conn, clock)
    assert state(conn, child) == "waiting"
    assert left(conn) == 0


def test_a_reserve_that_comes_up_short_reads_the_notes(database: Database, conn: psycopg.Connection) -> None:
    # No maintenance: a worker that has just ended the last but one parent finds the child by its next claim.
    parents = enqueue_many(conn, 2)
    child = enqueue(conn, "child", depends_on=parents)
    held = reserve(conn, 2)
    finishers = [opened(database), opened(database)]
    for finisher, row in zip(finishers, held, strict=True):
        finisher.run(ENDS["exchange"][0], of(row))
    for finisher in finishers:
        finisher.run("commit")
    assert reserve_one(conn).id == child


@pytest.mark.parametrize("begin", [RR, SERIALIZABLE])
@pytest.mark.parametrize("how", ["complete", "fail"])
def test_a_finisher_with_an_old_snapshot_wakes_a_child_that_it_cannot_see(
    database: Database, conn: psycopg.Connection, clock: Clock, how: str, begin: LiteralString
) -> None:
    enqueue(conn)
    held = reserve_one(conn)
    finisher = opened(database, begin)
    finisher.run("select count(*) from pgqueue.jobs")
    child = enqueue(conn, "child", depends_on=[held.id])
    settle(conn, clock)
    assert value(conn, "select count(*) from pgqueue.notes") == 0
    finisher.run(ENDS[how][0], of(held))
    finisher.run("commit")
    settle(conn, clock)
    assert state(conn, child) == ENDS[how][1]
    assert left(conn) == 0


@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_an_old_snapshot_deletes_a_parent_whose_child_it_cannot_see(
    database: Database, conn: psycopg.Connection, clock: Clock, how: str
) -> None:
    parent = enqueue(conn)
    leaver = opened(database, RR)
    leaver.run("select count(*) from pgqueue.jobs")
    child = enqueue(conn, "child", depends_on=[parent])
    settle(conn, clock)
    leaver.run(LEAVES[how], [parent])
    leaver.run("commit")
    settle(conn, clock)
    assert (state(conn, child), left(conn)) == ("cancelled", 0)


def test_a_producer_with_an_old_snapshot_may_depend_on_a_job_that_has_ended_since(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    enqueue(conn)
    held = reserve_one(conn)
    producer = opened(database, RR)
    producer.run("select count(*) from pgqueue.jobs")
    call(conn, "complete", held.id, held.reservation)
    [(child,)] = producer.run(CHILD, [[held.id]])
    producer.run("commit")
    settle(conn, clock)
    assert (state(conn, child), left(conn)) == ("waiting", 0)


def test_a_finisher_does_not_wait_for_a_child_that_is_locked(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    parent = enqueue(conn)
    child = enqueue(conn, "child", depends_on=[parent])
    settle(conn, clock)
    held = reserve_one(conn)
    operator = opened(database)
    operator.run("select from pgqueue.jobs where id = %s for update", [child])
    finisher = opened(database)
    finisher.run(ENDS["complete"][0], of(held))
    finisher.run("commit")
    settle(conn, clock)
    assert state(conn, child) == "blocked"
    operator.run("rollback")
    settle(conn, clock)
    assert (state(conn, child), left(conn)) == ("waiting", 0)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_an_operator_cancels_the_child_while_its_parent_ends(
    database: Database, conn: psycopg.Connection, clock: Clock, end: LiteralString
) -> None:
    parent = enqueue(conn)
    child = enqueue(conn, "child", depends_on=[parent])
    held = reserve_one(conn)
    operator = opened(database)
    operator.run("select pgqueue.cancel(%s)", [child])
    call(conn, "complete", held.id, held.reservation)
    operator.run(end)
    settle(conn, clock)
    assert state(conn, child) == ("cancelled" if end == "commit" else "waiting")
    assert left(conn) == 0


def dead(conn: psycopg.Connection) -> int:
    enqueue(conn)
    held = reserve_one(conn)
    call(conn, "fail", held.id, held.reservation, retry=False)
    found: int = held.id
    return found


def test_a_parent_is_retried_while_a_reader_of_notes_cancels_its_child(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    # The child is locked when its parent dies, so that its end is left to a note.
    parent = enqueue(conn)
    child = enqueue(conn, "child", depends_on=[parent])
    settle(conn, clock)
    held = reserve_one(conn)
    operator = opened(database)
    operator.run("select from pgqueue.jobs where id = %s for update", [child])
    call(conn, "fail", held.id, held.reservation, retry=False)
    operator.run("rollback")
    clock.advance("1 s")
    reader = opened(database)
    reader.run("select pgqueue._read_notes(100)")
    retrier = opened(database)
    retrier.run("select pgqueue.retry(%s)", [parent])
    retrier.run("commit")
    reader.run("commit")
    assert state(conn, child) == "cancelled"
    settle(conn, clock)
    assert state(conn, child) == "blocked"
    finished = reserve_one(conn)
    call(conn, "complete", finished.id, finished.reservation)
    assert (state(conn, child), left(conn)) == ("waiting", 0)


def test_a_parent_is_retried_while_a_reader_of_notes_finds_it_dead(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    parent = enqueue(conn)
    producer = opened(database)
    [(child,)] = producer.run(CHILD, [[parent]])
    held = reserve_one(conn)
    call(conn, "fail", held.id, held.reservation, retry=False)
    producer.run("commit")
    reader = opened(database)
    reader.run("select pgqueue._read_notes(100)")
    # Waits for the reader of notes, which has locked the row of the parent in history.
    retrier = database.session()
    retried = retrier.start("select pgqueue.retry(%s)", [parent])
    wait_until(lambda: retrier.waits_behind(reader))
    reader.run("commit")
    assert retried.result(timeout=5) == [(True,)]
    settle(conn, clock)
    assert state(conn, child) == "blocked"
    again = reserve_one(conn)
    call(conn, "complete", again.id, again.reservation)
    assert (state(conn, child), left(conn)) == ("waiting", 0)


def test_two_dead_parents_are_retried_at_once(database: Database, conn: psycopg.Connection, clock: Clock) -> None:
    parents = enqueue_many(conn, 2)
    child = enqueue(conn, "child", depends_on=parents)
    for held in reserve(conn, 2):
        call(conn, "fail", held.id, held.reservation, retry=False)
    retriers = [opened(database), opened(database)]
    for retrier, parent in zip(retriers, parents, strict=True):
        retrier.run("select pgqueue.retry(%s)", [parent])
    for retrier in retriers:
        retrier.run("commit")
    settle(conn, clock)
    assert (state(conn, child), left(conn)) == ("blocked", 0)


def test_a_parent_is_retried_by_an_old_snapshot(database: Database, conn: psycopg.Connection, clock: Clock) -> None:
    parent = dead(conn)
    retrier = opened(database, RR)
    retrier.run("select count(*) from pgqueue.jobs")
    child = enqueue(conn, "child", depends_on=[parent])
    assert state(conn, child) == "cancelled"
    retrier.run("select pgqueue.retry(%s)", [parent])
    retrier.run("commit")
    settle(conn, clock)
    assert (state(conn, child), left(conn)) == ("blocked", 0)


def test_a_child_is_retried_while_its_last_parent_ends(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    enqueue(conn)
    held = reserve_one(conn)
    child = enqueue(conn, "child", depends_on=[held.id])
    call(conn, "cancel", child)
    finisher = opened(database)
    finisher.run(ENDS["complete"][0], of(held))
    assert call(conn, "retry", child)
    assert state(conn, child) == "blocked"
    finisher.run("commit")
    settle(conn, clock)
    assert (state(conn, child), left(conn)) == ("waiting", 0)


def test_a_producer_hides_no_parent_from_a_claim(database: Database, conn: psycopg.Connection) -> None:
    parent = enqueue(conn)
    producer = opened(database)
    producer.run(CHILD, [[parent]])
    assert reserve_one(conn).id == parent


def test_a_check_hides_no_parent_from_a_claim(database: Database, conn: psycopg.Connection) -> None:
    parent = enqueue(conn)
    enqueue(conn, "child", depends_on=[parent])
    reader = opened(database)
    reader.run("select pgqueue._read_notes(100)")
    assert reserve_one(conn).id == parent


def test_the_net_finds_what_no_note_names(conn: psycopg.Connection, clock: Clock) -> None:
    # Only a hand that deletes rows can bring this about.
    parent = enqueue(conn)
    child = enqueue(conn, "child", depends_on=[parent], run_if="finished")
    conn.execute("delete from pgqueue.notes")
    conn.execute("delete from pgqueue.jobs where id = %s", [parent])
    clock.advance("2 min")
    settle(conn, clock)
    assert state(conn, child) == "waiting"
    assert value(conn, "select max(unblocked) from pgqueue.maintenance_runs") == 1


def test_a_parent_that_leaves_no_trace_ends_while_the_enqueue_waits_for_a_dedupe_key(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    parent = enqueue(conn, retention="0")
    first = opened(database)
    first.run("select pgqueue.enqueue('child', dedupe => 'd')")
    producer = database.session()
    producing = producer.start("select pgqueue.enqueue('child', dedupe => 'd', depends_on => %s::bigint[])", [[parent]])
    wait_until(lambda: producer.waits_behind(first))
    held = reserve_one(conn)
    call(conn, "complete", held.id, held.reservation)
    first.run("rollback")
    [(child,)] = producing.result(timeout=5)
    settle(conn, clock)
    assert (state(conn, child), left(conn)) == ("waiting", 0)


@pytest.mark.parametrize(
    "enqueues",
    [
        "select pgqueue.enqueue('child', depends_on => array[%s]::bigint[])",
        "select pgqueue.enqueue_many('child', array['{}']::jsonb[], depends_on => array[%s]::bigint[])",
        "select outcome from pgqueue.enqueue_batch("
        "array[jsonb_build_object('task', 'child', 'depends_on', jsonb_build_array(%s::bigint))])",
        "select pgqueue.open_group('child', depends_on => array[%s]::bigint[])",
    ],
    ids=["enqueue", "many", "batch", "group"],
)
def test_a_parent_that_leaves_no_trace_ends_while_its_child_is_being_inserted(
    database: Database, conn: psycopg.Connection, enqueues: LiteralString
) -> None:
    enqueue(conn, "parent", retention="0")
    held = reserve_one(conn)
    gate, producer = database.session(), database.session()
    gate.run("select pg_advisory_lock(1)")
    conn.execute("create function public.gate() returns void language sql as 'select pg_advisory_xact_lock_shared(1)'")
    source = value(conn, "select pg_get_functiondef('pgqueue._add_dependencies'::regproc)")
    conn.execute(source.replace("begin\n", "begin\n    perform public.gate();\n", 1).encode())
    producing = producer.start(enqueues, [held.id])
    wait_until(lambda: producer.waits_behind(gate))
    assert call(conn, "complete", held.id, held.reservation) is True
    assert value(conn, "select count(*) from pgqueue.history") == 0
    gate.run("select pg_advisory_unlock(1)")
    producing.result(10)
    # Neither the child nor the group is cancelled.
    assert value(conn, "select count(*) from pgqueue.jobs where cancel_requested_at is null") == 1
