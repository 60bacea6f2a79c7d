"""Two loads at once: they wait for each other at a dedupe key, nowhere else, and never in a circle."""

from __future__ import annotations

import psycopg
import pytest

from tests.calls import call, enqueue, reserve_one, value
from tests.databases import Database
from tests.facts import wait_until
from tests.sessions import Session

ENQUEUE = "select outcome, jobs from pgqueue.enqueue_staged()"
STANDING = "select array_agg(dedupe order by dedupe) from pgqueue.jobs where dedupe is not null"


def begin(session: Session, *dedupes: str | None) -> None:
    session.run("begin")
    session.run("select pgqueue.stage()")
    for dedupe in dedupes:
        session.run("insert into pg_temp.pgqueue_staged (task, dedupe) values ('t', %s)", [dedupe])


@pytest.fixture
def two(database: Database) -> tuple[Session, Session]:
    return database.session(), database.session()


def test_two_loads_of_plain_rows_do_not_wait(conn: psycopg.Connection, two: tuple[Session, Session]) -> None:
    first, second = two
    begin(first, None, None)
    begin(second, None)
    assert first.run(ENQUEUE) == [("inserted", 2)]
    assert second.run(ENQUEUE) == [("inserted", 1)]
    second.run("commit")
    assert value(conn, "select count(*) from pgqueue.jobs") == 1
    first.run("commit")
    assert value(conn, "select count(*) from pgqueue.jobs") == 3


@pytest.mark.parametrize(
    ("end", "outcomes"),
    [("commit", [("inserted", 1), ("skipped", 2)]), ("rollback", [("inserted", 3)])],
)
def test_the_second_load_waits_for_the_keys_of_the_first(
    conn: psycopg.Connection, two: tuple[Session, Session], end: str, outcomes: list[tuple[str, int]]
) -> None:
    first, second = two
    begin(first, "a", "b")
    begin(second, "b", None, "a")
    first.run(ENQUEUE)
    waits = second.start(ENQUEUE)
    wait_until(lambda: second.waits_behind(first))
    first.run(end)  # type: ignore[arg-type]
    assert waits.result(timeout=10) == outcomes
    second.run("commit")
    assert value(conn, STANDING) == ["a", "b"]


def test_loads_with_the_same_keys_in_opposite_order_do_not_deadlock(
    database: Database, conn: psycopg.Connection, two: tuple[Session, Session]
) -> None:
    """Held in the middle of their keys by a third transaction, both go on in one order when it lets them."""
    first, second = two
    holder = database.session()
    holder.run("begin")
    holder.run("select pgqueue.enqueue('t', dedupe => 'm')")
    begin(first, "z", "m", "a")
    begin(second, "a", "m", "z")
    inserts = first.start(ENQUEUE)
    wait_until(lambda: first.waits_behind(holder))
    waits = second.start(ENQUEUE)
    # At the very first of its keys, which the other one has taken.
    wait_until(lambda: second.waits_behind(first))
    holder.run("rollback")
    assert inserts.result(timeout=10) == [("inserted", 3)]
    first.run("commit")
    assert waits.result(timeout=10) == [("skipped", 3)]
    second.run("commit")
    assert value(conn, STANDING) == ["a", "m", "z"]


def test_a_load_gives_up_at_a_key_that_stays_locked_and_names_its_row(
    conn: psycopg.Connection, two: tuple[Session, Session]
) -> None:
    conn.execute("update pgqueue.settings set dedupe_wait = '100 ms'")
    first, second = two
    begin(first, "a")
    begin(second, None, "a")
    first.run(ENQUEUE)
    with pytest.raises(
        psycopg.errors.LockNotAvailable, match="row 2 of the load: another transaction holds dedupe key"
    ):
        second.run(ENQUEUE)
    second.run("rollback")
    first.run("commit")
    assert value(conn, "select count(*) from pgqueue.jobs") == 1


def test_a_parent_that_succeeds_without_a_trace_while_a_later_row_waits_releases_its_child(
    conn: psycopg.Connection, two: tuple[Session, Session]
) -> None:
    first, second = two
    parent = enqueue(conn, "p", retention="0 s")
    begin(first, "b")
    first.run(ENQUEUE)
    begin(second, "b")
    second.run("insert into pg_temp.pgqueue_staged (task, dedupe, depends_on) values ('child', 'a', %s)", [[parent]])
    waits = second.start(ENQUEUE)
    wait_until(lambda: second.waits_behind(first))
    held = reserve_one(conn)
    assert held.id == parent
    assert call(conn, "complete", held.id, held.reservation) is True
    assert value(conn, "select count(*) from pgqueue.history") == 0
    first.run("commit")
    waits.result(timeout=10)
    second.run("commit")
    assert value(conn, "select state::text from pgqueue.jobs where task = 'child'") == "waiting"
