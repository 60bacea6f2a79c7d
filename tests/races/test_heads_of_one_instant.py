"""Heads within one instant: jobs of one bulk call, of one claim or of one release share their time.

A head is a pair of time and id. A head that were a time alone could not move past such jobs, and beside an old snapshot
each claim would walk the dead entries of all that were claimed before. See sql/functions/claim/_head.sql.
"""

from __future__ import annotations

from datetime import datetime

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import Row, column, enqueue_many, ids, job, maintain, pairs, reserve, stats
from tests.databases import Database
from tests.sql.plans import blocks

pytestmark = pytest.mark.covers("D1", "D3")

NOON = "2030-01-01 12:00+00"
JOBS = 3000
# What a claim may read more at the end of such an instant than at its beginning.
SPARE = 20


@pytest.fixture(autouse=True)
def noon(clock: Clock) -> None:
    clock.set(NOON)


@pytest.fixture
def old_snapshot(database: Database) -> psycopg.Connection:
    """A session whose snapshot keeps each dead entry from being removed."""
    holder = database.connect(autocommit=False)
    holder.execute("set transaction isolation level repeatable read")
    holder.execute("select count(*) from pgqueue.jobs")
    return holder


def head(conn: psycopg.Connection, queue: str = "default", *, resumed: bool = False) -> tuple[datetime, int]:
    row = conn.execute(
        "select h.head, h.head_id from pgqueue._head(%s, 0::smallint, %s) h", [queue, resumed]
    ).fetchone()
    assert row is not None
    return row[0], row[1]


def move(conn: psycopg.Connection, clock: Clock) -> None:
    """Let enough time pass for a horizon, for the second that the safe point stays behind, and for a move."""
    for _ in range(3):
        clock.advance("1 s")
        maintain(conn)


def instant(conn: psycopg.Connection, column_name: str = "ready_at") -> datetime:
    """The one time that all live jobs have."""
    rows = conn.execute(f"select distinct {column_name} from pgqueue.jobs".encode()).fetchall()
    [(at,)] = rows
    found: datetime = at
    return found


def read_by_a_claim(conn: psycopg.Connection, queue: str) -> int:
    # Now and then a small claim moves heads: not these.
    conn.execute("select setseed(0.5)")
    return blocks(conn, f"pgqueue.reserve('w', 1, queues => '{{{queue}}}', lease => '1 day')")


def run(conn: psycopg.Connection, count: int) -> list[int]:
    """Claim `count` jobs and complete them."""
    done: list[int] = []
    while len(done) < count:
        held = reserve(conn, min(100, count - len(done)), lease="1 day")
        assert held
        column(conn, "complete_many", *pairs(held))
        done += ids(held)
    return done


def walk_through(conn: psycopg.Connection, clock: Clock, job_ids: list[int], *, resumed: bool = False) -> None:
    """Run jobs of one instant, in the order of their ids, and see that the head follows and claims read no more."""
    at = instant(conn)
    assert run(conn, 100) == job_ids[:100]
    move(conn, clock)
    assert head(conn, resumed=resumed) == (at, job_ids[100])
    at_first = read_by_a_claim(conn, "default")
    # It claims twice: the first claim makes the plans.
    assert run(conn, JOBS - 202) == job_ids[102:-100]
    move(conn, clock)
    assert head(conn, resumed=resumed) == (at, job_ids[-100])
    at_last = read_by_a_claim(conn, "default")
    assert at_last <= at_first + SPARE
    assert run(conn, 98) == job_ids[-98:]
    assert stats(conn).maintenance["hidden"] == 0


def test_the_head_moves_within_the_jobs_of_one_call(
    conn: psycopg.Connection, clock: Clock, old_snapshot: psycopg.Connection
) -> None:
    walk_through(conn, clock, enqueue_many(conn, JOBS))


def test_the_head_moves_within_the_jobs_of_one_run_at(
    conn: psycopg.Connection, clock: Clock, old_snapshot: psycopg.Connection
) -> None:
    job_ids = enqueue_many(conn, JOBS, delay="1 min")
    clock.advance("1 min")
    walk_through(conn, clock, job_ids)


def test_the_head_moves_within_the_jobs_that_came_back_at_one_instant(
    conn: psycopg.Connection, clock: Clock, old_snapshot: psycopg.Connection
) -> None:
    job_ids = enqueue_many(conn, JOBS)
    held: list[Row] = [row for _ in range(JOBS // 100) for row in reserve(conn, 100, lease="1 day")]
    assert column(conn, "release", *pairs(held)) == []
    clock.advance("1 ms")
    walk_through(conn, clock, job_ids, resumed=True)


def test_the_head_of_leases_moves_within_the_leases_of_one_instant(
    database: Database, conn: psycopg.Connection, clock: Clock, old_snapshot: psycopg.Connection
) -> None:
    enqueue_many(conn, JOBS)
    held: list[Row] = [row for _ in range(JOBS // 100) for row in reserve(conn, 100, lease="20 s")]
    # Each lapses without a grace period.
    conn.execute("update pgqueue.jobs set grace_given = true")
    at = instant(conn, "lease_expires_at")
    first, last = held[0], held[-1]
    # The row of the first is locked at the end of its lease, then that of the last: each counts as held meanwhile.
    locker = database.connect(autocommit=False)
    locker.execute("select from pgqueue.jobs where id = any (%s) for update", [[first.id, last.id]])
    clock.advance("21 s")
    move(conn, clock)
    assert head(conn, "") == (at, first.id)
    # The least of three: what autovacuum has analyzed meanwhile is planned anew.
    at_first = min(read_by_a_claim(conn, "none") for _ in range(3))
    locker.rollback()
    locker.execute("select from pgqueue.jobs where id = %s for update", [last.id])
    move(conn, clock)
    assert head(conn, "") == (at, last.id)
    at_last = min(read_by_a_claim(conn, "none") for _ in range(3))
    assert at_last <= at_first + SPARE
    locker.rollback()
    move(conn, clock)
    assert job(conn, last.id).state == "waiting"
    assert stats(conn).maintenance["hidden"] == 0
