"""The rule on which the order of the ready index rests: a transaction takes its xid, then reads the clock.

Whoever asks "may something still come in below t?" looks for the transactions that had an xid at t. So no row may
enter the index at a time that its transaction read while it had none.
"""

from __future__ import annotations

import psycopg
import pytest

from tests.calls import call, column, enqueue, enqueue_many, job, maintain, pairs, reserve_one, value
from tests.databases import Database

pytestmark = pytest.mark.covers("D1")

BEFORE = "2030-01-01 00:00+00"
AFTER = "2030-01-01 00:01+00"


def split_clock(conn: psycopg.Connection) -> None:
    """A clock that shows a minute later to who has an xid: it tells which came first."""
    conn.execute(
        f"""
        create or replace function pgqueue._clock() returns timestamptz language sql volatile parallel safe as $$
            select case
                when pg_catalog.pg_current_xact_id_if_assigned() is null then timestamptz '{BEFORE}'
                else timestamptz '{AFTER}'
            end
        $$
        """.encode()
    )


def ready_at(conn: psycopg.Connection, job_id: int) -> object:
    return value(conn, f"select ready_at >= timestamptz '{AFTER}' from pgqueue.jobs where id = %s", job_id)


def test_the_clock_of_this_test_tells_the_two_apart(conn: psycopg.Connection) -> None:
    split_clock(conn)
    assert value(conn, "select pgqueue._clock()") < value(conn, "select pgqueue._ready_at(null)")


def test_enqueue_takes_its_xid_before_it_reads_the_clock(conn: psycopg.Connection) -> None:
    split_clock(conn)
    for job_id in (
        enqueue(conn),
        enqueue(conn, delay="0.5 us"),
        enqueue(conn, run_at=BEFORE),
        *enqueue_many(conn, 3),
        *enqueue_many(conn, 1, run_at=BEFORE),
    ):
        assert ready_at(conn, job_id)


@pytest.mark.parametrize("way", ["fail", "release", "snooze", "unheld", "lapse"])
def test_what_comes_back_takes_its_xid_before_it_reads_the_clock(conn: psycopg.Connection, way: str) -> None:
    job_id = enqueue(conn)
    held = reserve_one(conn)
    split_clock(conn)
    if way == "fail":
        assert call(conn, "fail", job_id, held.reservation, retry_in="0") == "failed"
    elif way == "release":
        assert column(conn, "release", *pairs([held])) == []
    elif way == "snooze":
        assert call(conn, "snooze", job_id, held.reservation, "0") is True
    elif way == "unheld":
        assert column(conn, "release_unheld", "w") == [job_id]
    else:
        conn.execute("update pgqueue.jobs set lease_expires_at = '-infinity', grace_given = true")
        assert maintain(conn).rescued == 1
    assert ready_at(conn, job_id)


@pytest.mark.parametrize("was", ["failed", "dead", "cancelled"])
def test_a_retry_takes_its_xid_before_it_reads_the_clock(conn: psycopg.Connection, was: str) -> None:
    job_id = enqueue(conn)
    if was == "cancelled":
        call(conn, "cancel", job_id)
    else:
        call(conn, "fail", job_id, reserve_one(conn).reservation, retry=was == "failed")
    split_clock(conn)
    assert call(conn, "retry", job_id) is True
    assert ready_at(conn, job_id)


def test_what_a_step_back_brings_forward_takes_its_xid_before_it_reads_the_clock(
    conn: psycopg.Connection,
) -> None:
    job_id = enqueue(conn)
    conn.execute(
        """
        update pgqueue.jobs
        set run_at = '2030-01-01 01:00+00', ready_at = '2030-01-01 01:00+00', created_at = '2030-01-01 01:00+00';
        insert into pgqueue.maintenance_runs (at) values ('2030-01-01 01:00+00')
        """
    )
    split_clock(conn)
    maintain(conn)
    assert ready_at(conn, job_id)
    assert value(conn, f"select ready_at < timestamptz '{AFTER}' + '1 s' from pgqueue.jobs")


def test_a_job_of_an_older_transaction_that_commits_late_stands_behind_its_time(database: Database) -> None:
    slow, fast = database.connect(autocommit=False), database.connect()
    began = value(slow, "select now()")
    early = enqueue(fast)
    late = enqueue(slow)
    slow.commit()
    assert job(fast, early).due_at < job(fast, late).due_at
    assert began < job(fast, early).due_at
