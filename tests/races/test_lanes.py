"""Registering a lane makes no session wait and hides no committed job."""

from __future__ import annotations

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


def _drop_the_lane_under_an_open_enqueue(database: Database, clock: Clock) -> int:
    """The enqueue finds its lane registered; maintain, which cannot see its job, drops the lane; then it commits."""
    clock.set(NOON)
    producer, conn = database.connect(autocommit=False), database.connect()
    call(conn, "delete", enqueue(conn, queue="old"))
    maintain(conn)
    clock.advance("59 min")
    job_id = enqueue(producer, queue="old")
    assert value(conn, "select count(*) from pgqueue.lanes") == 1
    clock.advance("2 min")
    maintain(conn)
    assert value(conn, "select count(*) from pgqueue.lanes") == 0
    producer.commit()
    return job_id


def test_a_job_whose_lane_was_dropped_before_its_commit_is_found_by_the_next_maintain(
    database: Database, clock: Clock
) -> None:
    job_id = _drop_the_lane_under_an_open_enqueue(database, clock)
    conn = database.connect()
    assert reserve(conn) == []
    maintain(conn)
    assert ids(reserve(conn)) == [job_id]


def test_a_job_whose_lane_was_dropped_before_its_commit_is_found_by_reserve_without_maintenance(
    database: Database, clock: Clock
) -> None:
    job_id = _drop_the_lane_under_an_open_enqueue(database, clock)
    conn = database.connect()
    clock.advance("6 s")
    assert ids(reserve(conn)) == [job_id]


def test_a_claim_that_fills_up_elsewhere_leaves_an_unregistered_lane_to_maintain(
    database: Database, clock: Clock
) -> None:
    job_id = _drop_the_lane_under_an_open_enqueue(database, clock)
    conn = database.connect()
    other = enqueue(conn)
    clock.advance("6 s")
    assert ids(reserve(conn)) == [other]
    maintain(conn)
    assert ids(reserve(conn)) == [job_id]
