"""A parent of which history keeps nothing ends badly while its child is being enqueued."""

from __future__ import annotations

from typing import LiteralString

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import call, enqueue, maintain, reserve_one, state, table, value
from tests.databases import Database
from tests.facts import wait_until
from tests.sessions import Session

CHILD: LiteralString = "select pgqueue.enqueue('child', depends_on => array[%s::bigint])"
BEGINS: list[LiteralString] = ["begin", "begin isolation level repeatable read"]


def settle(conn: psycopg.Connection, clock: Clock) -> None:
    """What maintenance does in the next minutes."""
    for _ in range(4):
        maintain(conn)
        clock.advance("61 s")


def traces(conn: psycopg.Connection, clock: Clock) -> int:
    """How many traces are left, once maintenance had its time: a busy run leaves steps to the next one."""
    for _ in range(20):
        if not (number := value(conn, "select count(*)::integer from pgqueue.traces")):
            break
        settle(conn, clock)
    return int(number)


def opened(database: Database, begin: LiteralString) -> Session:
    session = database.session()
    session.run(begin)
    session.run("select count(*) from pgqueue.jobs")
    return session


def end(conn: psycopg.Connection, parent: int, how: str, clock: Clock) -> None:
    match how:
        case "dead":
            held = reserve_one(conn)
            assert held.id == parent
            call(conn, "fail", held.id, held.reservation, retry=False)
        case "dead, and deleted from history":
            held = reserve_one(conn)
            call(conn, "fail", held.id, held.reservation, retry=False)
            assert call(conn, "delete", parent) is True
        case "expired":
            clock.advance("2 min")
            maintain(conn)
        case "purge":
            table(conn, "purge_queue", "default")
        case _:
            call(conn, how, parent)


@pytest.mark.parametrize("begin", BEGINS)
@pytest.mark.parametrize("how", ["dead", "dead, and deleted from history", "expired", "cancel", "delete", "purge"])
def test_a_child_does_not_run_for_a_parent_that_ended_badly_and_left_no_history(
    how: str, begin: LiteralString, database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    call(conn, "declare_task", "parent", retention_succeeded="0")
    options = {} if "history" in how else {"retention": "0"}
    parent = enqueue(conn, "parent", expires_in="1 min" if how == "expired" else None, **options)
    producer = opened(database, begin)
    [[child]] = producer.run(CHILD, [parent])
    end(conn, parent, how, clock)
    settle(conn, clock)
    producer.run("commit")
    # Transactions of other databases of the server count too, while they live.
    wait_until(lambda: traces(conn, clock) == 0)
    assert state(conn, child) == "cancelled"


@pytest.mark.parametrize("begin", BEGINS)
def test_a_child_runs_for_a_parent_that_succeeded_and_left_no_history(
    begin: LiteralString, database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    parent = enqueue(conn, "parent", retention="0")
    producer = opened(database, begin)
    [[child]] = producer.run(CHILD, [parent])
    held = reserve_one(conn)
    call(conn, "complete", held.id, held.reservation)
    settle(conn, clock)
    producer.run("commit")
    settle(conn, clock)
    assert state(conn, child) == "waiting"


def test_a_trace_stays_while_a_transaction_of_its_time_is_open(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    parent = enqueue(conn, "parent", retention="0")
    reader = opened(database, BEGINS[1])
    call(conn, "cancel", parent)
    later = database.session()
    for _ in range(3):
        settle(conn, clock)
        later.run("begin")
        later.run("select 1")
    assert value(conn, "select state from pgqueue.traces where id = %s", parent) == "cancelled"
    reader.run("commit")
    # One that began later does not count; those of other databases of the server do, while they live.
    wait_until(lambda: traces(conn, clock) == 0)
    later.run("commit")


def test_a_trace_stays_for_a_child_whose_note_is_not_read_yet(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    parent = enqueue(conn, "parent", retention="0")
    producer = opened(database, BEGINS[0])
    [[child]] = producer.run(CHILD, [parent])
    call(conn, "cancel", parent)
    call(conn, "_tidy_traces")
    producer.run("commit")
    call(conn, "_tidy_traces")
    assert value(conn, "select count(*) from pgqueue.traces") == 1
    settle(conn, clock)
    assert state(conn, child) == "cancelled"


def test_a_job_of_which_history_keeps_something_leaves_no_trace(conn: psycopg.Connection) -> None:
    for how in ("cancel", "delete"):
        call(conn, how, enqueue(conn, "parent"))
    assert value(conn, "select count(*) from pgqueue.traces") == 0
