"""Steps of maintenance that take too long: their work is kept, the rest is visible, no other step waits for them."""

from __future__ import annotations

import re
from functools import partial

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import Row, call, enqueue, enqueue_many, maintain, reserve_one, state, stats, steps, table, value
from tests.databases import Database
from tests.facts import wait_until

pytestmark = pytest.mark.partitions

NOON = "2030-01-01 12:00+00"


@pytest.fixture
def clock(clock: Clock) -> Clock:
    # Today, for which there are all partitions of history; at noon, for none of them is to become overdue.
    clock.set(clock.now().replace(hour=12))
    return clock


def slow_down(conn: psycopg.Connection, seconds: str) -> None:
    """Make the step that cancels expired jobs sleep that long (an expression over p_limit) before it does anything."""
    body: str = value(conn, "select prosrc from pg_proc where proname = '_expire_jobs'")
    body = re.sub(r"begin perform pg_sleep\(.*\);", "begin", body)
    conn.execute(
        f"""
        create or replace function pgqueue._expire_jobs(p_limit integer, p_now timestamptz) returns bigint
        language plpgsql as
        $slow${body.replace("begin", f"begin perform pg_sleep({seconds});", 1)}$slow$
        """.encode()
    )


def expiring(conn: psycopg.Connection, clock: Clock, count: int = 1) -> list[int]:
    jobs = enqueue_many(conn, count, expires_in="1 s", queue="expiring")
    clock.advance("2 s")
    return jobs


def scheduled(conn: psycopg.Connection) -> int:
    count: int = value(conn, "select count(*) from pgqueue.jobs where task = 'scheduled'")
    return count


def is_asleep(conn: psycopg.Connection, pid: int) -> bool:
    return value(conn, "select wait_event = 'PgSleep' from pg_stat_activity where pid = %s", pid) is True


def maintain_within(conn: psycopg.Connection, timeout: str) -> Row:
    conn.execute(f"set statement_timeout = '{timeout}'".encode())
    try:
        [row] = table(conn, "maintain")
        return row
    finally:
        conn.execute("set statement_timeout = 0")


@pytest.mark.covers("D3")
def test_what_a_statement_timeout_cuts_is_one_step_and_the_others_go_on(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "schedule", "each minute", "* * * * *", "scheduled")
    maintain(conn)
    slow_down(conn, "30")
    job_id = enqueue(conn)
    reserve_one(conn, lease="1 s")
    [expired] = expiring(conn, clock)
    clock.advance("1 min")
    conn.execute(
        "insert into pgqueue.maintenance_runs (at, gap_at) values (pgqueue._clock() - interval '2 s', '-infinity')"
    )

    # Before the one that is cut: stands. After it: had no turn.
    assert maintain_within(conn, "2 s").rescued == 1
    assert state(conn, job_id) == "waiting"
    assert scheduled(conn) == 0
    found = stats(conn).maintenance
    assert list(found["failures"]) == ["expiry"]
    assert found["failures"]["expiry"]["error"] == "57014: cut by statement_timeout (2s)"
    assert {"schedules", "heads", "keys"} <= set(found["behind"])

    # The next call leaves it alone, and runs what had no turn.
    assert maintain_within(conn, "2 s").ran
    assert scheduled(conn) == 1
    assert stats(conn).maintenance["behind"] == {}
    assert list(stats(conn).maintenance["failures"]) == ["expiry"]

    # It comes again, after the others, and is cut again. The others have had their turns.
    clock.advance("1 min")
    assert maintain_within(conn, "2 s").ran
    assert scheduled(conn) == 2
    found = stats(conn).maintenance
    assert found["failures"]["expiry"]["count"] == 2
    assert set(found["behind"]) <= {"drop"}

    slow_down(conn, "0")
    clock.advance("5 min")
    maintain(conn)
    maintain(conn)
    assert state(conn, expired) == "cancelled"
    assert stats(conn).maintenance["failures"] == {}


def test_a_step_that_was_cut_takes_fewer_rows_until_it_gets_through(conn: psycopg.Connection, clock: Clock) -> None:
    maintain(conn)
    jobs = expiring(conn, clock, 40)
    # With a thousand rows it takes too long for any timeout, with some sixty it does not.
    slow_down(conn, "case when p_limit > 100 then 60 else 0 end")
    slices = []
    while any(state(conn, job_id) != "cancelled" for job_id in jobs):
        maintain_within(conn, "1 s")
        size = steps(conn)["expiry"].slice
        if size is not None and size not in slices:
            slices.append(size)
        clock.advance("1 min")
    assert slices[:2] == [250, 62]


def test_work_that_is_longer_than_a_call_is_done_by_and_by(conn: psycopg.Connection, clock: Clock) -> None:
    maintain(conn)
    jobs = expiring(conn, clock, 14)
    # Two jobs at a time, 0.3 s for both: an eighth of the timeout is for one step.
    slow_down(conn, "0.3")
    conn.execute("insert into pgqueue.maintenance_steps (at, step, slice) values (pgqueue._clock(), 'expiry', 2)")
    left = [len(jobs)]
    while left[-1]:
        clock.advance("1 s")
        expired = maintain_within(conn, "6 s").expired
        left.append(left[-1] - expired)
        assert remaining(conn) == left[-1]
        assert stats(conn).maintenance["failures"] == {}
        assert "expiry" in stats(conn).maintenance["behind"] or not left[-1]
    assert len(left) > 3
    maintain(conn)
    assert stats(conn).maintenance["behind"] == {}


def remaining(conn: psycopg.Connection) -> int:
    count: int = value(conn, "select count(*) from pgqueue.jobs where queue = 'expiring'")
    return count


@pytest.mark.long
def test_what_had_no_turn_goes_first_next_time(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "schedule", "each minute", "* * * * *", "scheduled")
    maintain(conn)
    # After 3 s a call begins no step, whatever the timeout.
    slow_down(conn, "3.1")
    clock.advance("1 min")
    table(conn, "maintain")
    assert scheduled(conn) == 0
    assert "schedules" in stats(conn).maintenance["behind"]
    clock.advance("1 s")
    table(conn, "maintain")
    assert scheduled(conn) == 1
    assert "schedules" not in stats(conn).maintenance["behind"]
    # And the slow one is not starved by those either.
    [expired] = expiring(conn, clock)
    table(conn, "maintain")
    assert state(conn, expired) == "cancelled"


def test_a_persons_cancel_still_cancels(database: Database, clock: Clock) -> None:
    conn, session = database.connect(), database.session()
    slow_down(conn, "30")
    session.run("set statement_timeout = '1 min'")
    running = session.start("select * from pgqueue.maintain()")
    wait_until(lambda: is_asleep(conn, session.pid))
    conn.execute("select pg_cancel_backend(%s)", [session.pid])
    with pytest.raises(psycopg.errors.QueryCanceled):
        running.result(10)
    assert value(conn, "select count(*) from pgqueue.maintenance_runs") == 0


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_step_in_which_each_call_is_killed_does_not_take_the_others_with_it(
    database: Database, clock: Clock, how: str
) -> None:
    conn = database.connect()
    call(conn, "schedule", "each minute", "* * * * *", "scheduled")
    maintain(conn)
    slow_down(conn, "30")
    clock.advance("1 min")
    for count in (1, 2):
        session = database.session()
        running = session.start("select * from pgqueue.maintain()")
        wait_until(partial(is_asleep, conn, session.pid))
        conn.execute(f"select {how}(%s)".encode(), [session.pid])
        with pytest.raises(psycopg.Error):
            running.result(10)
        # Nothing of that call is left but the step in which it ended.
        assert scheduled(conn) == count - 1
        assert maintain(conn).ran
        assert scheduled(conn) == count
        failures = stats(conn).maintenance["failures"]
        assert list(failures) == ["expiry"]
        assert failures["expiry"]["count"] == count
        assert "within this step" in failures["expiry"]["error"]
        clock.advance("1 min")


def test_idle_makes_and_drops_no_tables_that_others_have_a_day_for(conn: psycopg.Connection, clock: Clock) -> None:
    maintain(conn)
    gone = value(conn, "select max(relation::text) from pgqueue._partitions()")
    conn.execute(f"drop table {gone}".encode())

    def is_there() -> bool:
        return value(conn, "select to_regclass(%s) is not null", gone) is True

    clock.advance("1 hour")
    call(conn, "idle", "w")
    assert not is_there()
    # Nobody else did.
    clock.advance("1 day")
    call(conn, "idle", "w")
    assert is_there()


def test_a_migration_leaves_no_partitions_to_make(conn: psycopg.Connection) -> None:
    assert value(conn, "select count(*) from pgqueue._partitions()") == 15 + 27
    assert value(conn, "select count(*) from pgqueue._partition_gaps(14, 26)") == 0
