"""Clock: travel and freeze."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from pgqueue import App, enqueue
from pgqueue.testing import Clock, drain
from tests.databases import Database


def test_travel_makes_a_job_due_and_comes_back(database: Database) -> None:
    conn = database.connect(autocommit=False)
    app = App()

    @app.task
    def report() -> None: ...

    clock = Clock(conn)
    before = clock.now()
    enqueue(conn, report, delay="1 day")
    assert drain(conn, app).succeeded == 0
    with clock.travel("1 day") as there:
        assert there - before >= timedelta(days=1)
        assert drain(conn, app).succeeded == 1
    assert clock.now() - before < timedelta(minutes=1)


def test_freeze_stops_the_clock_and_travel_within_it_stays_stopped(database: Database) -> None:
    clock = Clock(database.connect())
    with clock.freeze("2030-01-01 12:00+00") as at:
        assert clock.now() == clock.now() == at
        with clock.travel("1 h"):
            assert clock.now() == at + timedelta(hours=1)
        assert clock.now() == at
    clock.advance("1 day")
    ahead = clock.now()
    with clock.freeze():
        assert clock.now() - ahead < timedelta(minutes=1)
    assert clock.now() - ahead < timedelta(minutes=1)


def test_an_error_in_the_block_comes_out_of_it(database: Database) -> None:
    conn = database.connect(autocommit=False)
    clock = Clock(conn)
    conn.commit()
    with pytest.raises(psycopg.errors.DivisionByZero), clock.travel("1 day"):
        conn.execute("select 1 / 0")
    conn.rollback()
    assert abs(clock.now() - Clock(database.connect()).now()) < timedelta(minutes=1)
