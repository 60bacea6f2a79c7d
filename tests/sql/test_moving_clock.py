"""The clock that tests of other people's code move: from psql, by functions; see pgqueue.testing for Python."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime

import psycopg
import pytest

from tests.calls import call, enqueue, reserve, reserve_one, value


@pytest.fixture
def moved(conn: psycopg.Connection) -> psycopg.Connection:
    """A database into which the output of `python -m pgqueue.testing` was loaded."""
    printed = subprocess.run(
        [sys.executable, "-m", "pgqueue.testing"], capture_output=True, check=True, timeout=120
    ).stdout
    conn.execute(printed)
    return conn


@pytest.mark.covers("A3")
def test_a_week_passes_in_one_statement(moved: psycopg.Connection) -> None:
    moved.execute("select pgqueue_testing.set_clock('2030-01-01 12:00+00')")
    job_id = enqueue(moved, delay="1 week")
    assert reserve(moved) == []
    moved.execute("select pgqueue_testing.advance_clock('1 week')")
    assert [row.id for row in reserve(moved)] == [job_id]


def test_a_ladder_of_retries_and_a_lapsed_lease_need_no_waiting(moved: psycopg.Connection) -> None:
    moved.execute("select pgqueue_testing.set_clock('2030-01-01 12:00+00')")
    job_id = enqueue(moved, max_attempts=3)
    for _ in range(2):
        row = reserve_one(moved)
        assert call(moved, "fail", row.id, row.reservation) == "failed"
        moved.execute("select pgqueue_testing.advance_clock('1 min')")
    row = reserve_one(moved)
    call(moved, "maintain")
    moved.execute("select pgqueue_testing.advance_clock('4 s')")
    call(moved, "extend", [row.id], [row.reservation], "1 s")
    call(moved, "maintain")
    moved.execute("select pgqueue_testing.advance_clock('2 s')")
    call(moved, "maintain")
    again = reserve_one(moved)
    assert (again.id, again.attempt) == (job_id, 3)
    assert call(moved, "fail", again.id, again.reservation) == "dead"


def test_a_clock_set_by_hand_stands_and_one_moved_runs_on(moved: psycopg.Connection) -> None:
    standing: datetime = value(moved, "select pgqueue_testing.set_clock('2030-01-01 12:00+00')")
    assert value(moved, "select pgqueue._clock()") == standing
    moved.execute("select pgqueue_testing.real_clock()")
    moved.execute("select pgqueue_testing.advance_clock('-1 day')")
    # The inner clock is read between two outer ones, so the day is neither long nor short by the time between them.
    for _ in range(2):
        before, inside, after = moved.execute(
            "select clock_timestamp() - interval '1 day', pgqueue._clock(), clock_timestamp() - interval '1 day'"
        ).fetchall()[0]
        assert before <= inside <= after
    moved.execute("select pgqueue_testing.real_clock()")
    assert value(moved, "select abs(extract(epoch from clock_timestamp() - pgqueue._clock())) < 1") is True
