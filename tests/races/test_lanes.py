"""Registering a lane makes no session wait and hides no committed job."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import call, enqueue, ids, maintain, reserve, value
from tests.databases import Database

NOON = "2030-01-01 12:00+00"


def test_two_enqueues_that_register_one_lane_do_not_wait_and_both_jobs_are_seen(database: Database) -> None:
    first, second = database.connect(autocommit=False), database.connect()
    second.execute("set statement_timeout = '5s'")
    mine = enqueue(first, queue="new")
    theirs = enqueue(second, queue="new")
    assert ids(reserve(second, 10)) == [theirs]
    first.commit()
    assert ids(reserve(second, 10)) == [mine]
    assert value(second, "select count(*) from pgqueue.lanes") == 2


def test_a_job_is_seen_whose_lane_only_a_rolled_back_enqueue_has_registered(database: Database) -> None:
    first, second = database.connect(autocommit=False), database.connect()
    enqueue(first, queue="new")
    theirs = enqueue(second, queue="new")
    first.rollback()
    assert ids(reserve(second, 10)) == [theirs]


def test_merging_lanes_does_not_wait_for_an_open_enqueue(database: Database, clock: Clock) -> None:
    clock.set(NOON)
    producer, conn = database.connect(autocommit=False), database.connect()
    conn.execute("set statement_timeout = '5s'")
    theirs = enqueue(conn, queue="new")
    conn.execute("insert into pgqueue.lanes select * from pgqueue.lanes")
    mine = enqueue(producer, queue="new")
    assert maintain(conn).ran is True
    producer.commit()
    assert ids(reserve(conn, 10)) == [theirs, mine]


def _leave_a_lane_unregistered(database: Database, clock: Clock) -> int:
    """A fault that this release cannot have: a job in a lane without a row."""
    clock.set(NOON)
    conn = database.connect()
    maintain(conn)
    job_id = enqueue(conn, queue="old")
    conn.execute("delete from pgqueue.lanes")
    return job_id


def test_a_job_in_an_unregistered_lane_is_found_by_the_next_maintain(database: Database, clock: Clock) -> None:
    job_id = _leave_a_lane_unregistered(database, clock)
    conn = database.connect()
    assert reserve(conn) == []
    maintain(conn)
    assert ids(reserve(conn)) == [job_id]


def test_a_job_in_an_unregistered_lane_is_found_by_reserve_without_maintenance(
    database: Database, clock: Clock
) -> None:
    job_id = _leave_a_lane_unregistered(database, clock)
    conn = database.connect()
    clock.advance("6 s")
    assert ids(reserve(conn)) == [job_id]


def test_a_claim_that_fills_up_elsewhere_leaves_an_unregistered_lane_to_maintain(
    database: Database, clock: Clock
) -> None:
    job_id = _leave_a_lane_unregistered(database, clock)
    conn = database.connect()
    other = enqueue(conn)
    clock.advance("6 s")
    assert ids(reserve(conn)) == [other]
    maintain(conn)
    assert ids(reserve(conn)) == [job_id]


# --- No lane leaves while a job may come that relies on it. Few lanes last an hour, many four seconds. ---------------

MANY = 70


@dataclass
class Lanes:
    """A database in which the lane `old` is registered, and empty soon."""

    database: Database
    clock: Clock
    conn: psycopg.Connection
    lasts: str

    def count(self, where: str = "true") -> int:
        found: int = value(self.conn, f"select count(*) from pgqueue.lanes where queue = 'old' and {where}")
        return found

    def found(self, max_jobs: int = 1) -> list[int]:
        """What a worker finds: where there are many lanes, a claim that found nothing makes it claim again."""
        return [job_id for _ in range(6) for job_id in ids(reserve(self.conn, max_jobs))]

    def pass_by(self) -> None:
        """Let its row end, and maintenance run with horizons from before and after that."""
        for step in ("1 s", self.lasts, "3 s", "61 s", "3 s", "61 s"):
            self.clock.advance(step)
            maintain(self.conn)


@pytest.fixture(params=["few", "many"])
def lanes(request: pytest.FixtureRequest, database: Database, clock: Clock) -> Lanes:
    clock.set(NOON)
    conn = database.connect()
    if request.param == "many":
        for number in range(MANY):
            enqueue(conn, queue=f"other {number}", delay="1 day")
        maintain(conn)
    maintain(conn)
    call(conn, "delete", enqueue(conn, queue="old"))
    made = Lanes(database, clock, conn, "62 min" if request.param == "few" else "5 s")
    assert made.count() == 1
    return made


def test_an_empty_lane_leaves_and_comes_back_with_its_next_job(lanes: Lanes) -> None:
    lanes.pass_by()
    assert lanes.count() == 0
    job_id = enqueue(lanes.conn, queue="old")
    assert lanes.found() == [job_id]


def test_a_lane_stays_until_an_enqueue_that_relies_on_it_has_committed(lanes: Lanes) -> None:
    producer = lanes.database.connect(autocommit=False)
    job_id = enqueue(producer, queue="old")
    # It found the lane registered.
    assert lanes.count() == 1
    lanes.pass_by()
    assert lanes.count() == 1
    producer.commit()
    assert lanes.found() == [job_id]


def test_an_enqueue_after_the_row_has_ended_registers_the_lane_whatever_its_snapshot_shows(lanes: Lanes) -> None:
    producer = lanes.database.connect(autocommit=False)
    producer.execute("set transaction isolation level repeatable read")
    assert value(producer, "select count(*) from pgqueue.lanes where queue = 'old'") == 1
    lanes.pass_by()
    assert lanes.count() == 0
    # Its snapshot still shows the lane.
    assert value(producer, "select count(*) from pgqueue.lanes where queue = 'old'") == 1
    job_id = enqueue(producer, queue="old")
    producer.commit()
    assert lanes.found() == [job_id]


def test_a_lane_whose_only_job_another_claim_has_locked_is_not_empty(lanes: Lanes) -> None:
    job_id = enqueue(lanes.conn, queue="old")
    claimer = lanes.database.connect(autocommit=False)
    assert ids(reserve(claimer, queues=["old"])) == [job_id]
    lanes.pass_by()
    assert lanes.count() > 0
    claimer.rollback()
    assert lanes.found() == [job_id]


def test_a_job_that_is_sooner_than_the_first_of_its_lane_is_not_hidden_by_it(lanes: Lanes) -> None:
    later = enqueue(lanes.conn, queue="old", delay="1 day")
    producer = lanes.database.connect(autocommit=False)
    job_id = enqueue(producer, queue="old")
    lanes.pass_by()
    producer.commit()
    assert lanes.found() == [job_id]
    again = enqueue(lanes.conn, queue="old")
    assert lanes.found() == [again]
    lanes.clock.advance("1 day")
    assert later in lanes.found(500)


def test_a_job_for_later_that_relies_on_a_lane_for_later_is_found_at_its_time(lanes: Lanes) -> None:
    first = enqueue(lanes.conn, queue="old", delay="1 hour")
    lanes.pass_by()
    producer = lanes.database.connect(autocommit=False)
    job_id = enqueue(producer, queue="old", delay="2 hours")
    call(lanes.conn, "delete", first)
    lanes.pass_by()
    lanes.clock.advance("1 hour")
    lanes.pass_by()
    producer.commit()
    lanes.clock.advance("2 hours")
    assert lanes.found() == [job_id]


def test_nothing_leaves_after_the_clock_stepped_back(lanes: Lanes) -> None:
    producer = lanes.database.connect(autocommit=False)
    job_id = enqueue(producer, queue="old")
    maintain(lanes.conn)
    lanes.clock.advance("-10 min")
    lanes.pass_by()
    producer.commit()
    lanes.clock.advance("20 min")
    assert lanes.found() == [job_id]
