"""Maintenance as one caller sees it. Forced orders with several stand in tests/races."""

from __future__ import annotations

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import call, enqueue, ids, job, maintain, reserve, reserve_one, state, stats, value

pytestmark = pytest.mark.partitions

NOON = "2030-01-01 12:00+00"

FUNCTIONS = {
    "leases": "_rescue(p_limit integer, p_gap_at timestamptz, out rescued bigint, out spared bigint)",
    "expiry": "_expire_jobs(p_limit integer, p_now timestamptz) returns bigint",
    "clock": "_bring_forward(p_from timestamptz, p_limit integer, p_cursor text[]) returns text[]",
    "lanes": "_find_lanes() returns integer",
    "schedules": "_run_schedules(p_limit integer) returns bigint",
    "tidy_lanes": "_tidy_lanes(p_now timestamptz) returns void",
    "tidy_workers": "_tidy(p_step text, p_now timestamptz, p_limit integer) returns bigint",
    "partitions": "_attach_partitions(p_days integer, p_months integer, p_limit integer, out attached integer,"
    " out problem text)",
    "drop": "_drop_partition(p_now timestamptz) returns void",
}


@pytest.mark.parametrize("step", sorted(FUNCTIONS.keys() - {"clock"}))
def test_a_step_that_fails_stops_no_other_and_shows_in_stats_until_it_succeeds(
    conn: psycopg.Connection, clock: Clock, step: str
) -> None:
    # Today, for which the installation has left partitions of history; at noon, for none of them is to become overdue
    # in the hours to come.
    clock.set(clock.now().replace(hour=12))
    # Of the real clock, which may be close to the one that follows.
    conn.execute("delete from pgqueue.maintenance_steps")
    function = FUNCTIONS[step]
    name = function.partition("(")[0]
    original = value(conn, f"select pg_get_functiondef('pgqueue.{name}'::regproc)")
    others = f"if p_step <> '{step}' then return 0; end if;" if name == "_tidy" else ""
    conn.execute(
        f"create or replace function pgqueue.{function} language plpgsql"
        f" as $$ begin {others} raise exception 'broken by a test'; end $$".encode()
    )
    lapsing, expiring = enqueue(conn), enqueue(conn, delay="1 hour", expires_in="1 s")
    stray = enqueue(conn, queue="stray")
    conn.execute("delete from pgqueue.lanes where queue = 'stray'")
    reserve_one(conn, queues=["default"], lease="1 s")
    conn.execute("insert into pgqueue.workers values ('gone', 'c', null, '{}', '-infinity')")
    conn.execute(
        """
        create table pgqueue.history_d_20010101 (like pgqueue.history_days);
        alter table pgqueue.history_days attach partition pgqueue.history_d_20010101
            for values from ('2001-01-01 00:00+00') to ('2001-01-02 00:00+00');
        """
    )
    # Watched all the time: what lapses is not spared.
    clock.advance("1 hour 1 min")
    conn.execute("insert into pgqueue.maintenance_runs (at, gap_at) values (pgqueue._clock(), '-infinity')")
    # Another is missing.
    conn.execute(value(conn, "select format('drop table %s', max(relation::text)) from pgqueue._partitions()").encode())
    partitions = "select count(*) from pg_inherits where inhparent = 'pgqueue.history_months'::regclass"
    months = value(conn, partitions)

    # More than once: a partition in each, for midnight may have passed since the installation, and no step begins late.
    for _ in range(20):
        assert maintain(conn).ran is True
    done = {
        "leases": state(conn, lapsing) == "waiting",
        "expiry": state(conn, expiring) == "cancelled",
        "lanes": ids(reserve(conn, queues=["stray"])) == [stray],
        "tidy_workers": stats(conn).workers == [],
        "drop": stats(conn).maintenance["overdue_partitions"] == 0,
        "partitions": value(conn, partitions) > months,
    }
    assert done == {name: name != step for name in done}

    def failures() -> dict[str, dict[str, object]]:
        found: dict[str, dict[str, object]] = stats(conn).maintenance["failures"]
        return found

    assert list(failures()) == [step]
    assert "broken by a test" in str(failures()[step]["error"])
    since = failures()[step]["since"]
    # Steps that do not run each second still show between their runs.
    clock.advance("1 s")
    maintain(conn)
    assert list(failures()) == [step]
    clock.advance("3 min")
    maintain(conn)
    assert failures()[step]["since"] == since
    assert failures()[step]["count"] >= 2

    conn.execute(original.encode())
    clock.advance("1 hour")
    maintain(conn)
    assert failures() == {}


def test_a_failing_step_for_a_clock_that_stepped_back_shows_in_stats(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    maintain(conn)
    conn.execute(
        f"create or replace function pgqueue.{FUNCTIONS['clock']} language plpgsql"
        " as $$ begin raise exception 'broken by a test'; end $$".encode()
    )
    clock.advance("-1 hour")
    maintain(conn)
    assert list(stats(conn).maintenance["failures"]) == ["clock"]


def test_maintain_called_within_max_age_of_the_last_run_does_nothing(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    assert call(conn, "maintain", "500 ms") is True
    clock.advance("400 ms")
    assert call(conn, "maintain", "500 ms") is False
    clock.advance("200 ms")
    assert call(conn, "maintain", "500 ms") is True
    assert value(conn, "select count(*) from pgqueue.maintenance_runs") == 2


def test_a_lane_that_is_empty_for_an_hour_is_dropped_and_comes_back_with_its_next_job(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set(NOON)
    used, unused = enqueue(conn, queue="used", delay="1 day"), enqueue(conn, queue="unused")
    call(conn, "delete", unused)
    for _ in range(5):
        clock.advance("31 min")
        maintain(conn)
    assert value(conn, "select array_agg(queue) from pgqueue.lanes") == ["used"]
    again = enqueue(conn, queue="unused")
    assert ids(reserve(conn, 10)) == [again]
    clock.advance("1 day")
    assert used in ids(reserve(conn, 10))


def test_a_lane_registered_twice_is_merged_and_serves_each_job_once(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    job_id = enqueue(conn)
    conn.execute("insert into pgqueue.lanes select * from pgqueue.lanes")
    assert ids(reserve(conn, 10)) == [job_id]
    maintain(conn)
    assert value(conn, "select count(*) from pgqueue.lanes") == 1


def test_unregistered_lanes_are_found_wherever_they_lie(conn: psycopg.Connection) -> None:
    expected = []
    for queue in ("a", "m", "m ", "z", "ä"):
        for priority in (-100, 0, 100):
            expected.append(enqueue(conn, queue=queue, priority=priority))
    conn.execute("delete from pgqueue.lanes where (queue, priority) not in (('m', 0), ('z', -100))")
    maintain(conn)
    assert sorted(ids(reserve(conn, 100))) == expected
    assert stats(conn).maintenance["found_lanes"] > 0


def test_without_maintenance_reserve_finds_a_job_in_an_unregistered_lane(conn: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    conn.execute("delete from pgqueue.lanes")
    assert ids(reserve(conn)) == [job_id]


@pytest.mark.covers("D3", "G9")
def test_a_client_that_never_calls_maintain_is_rescued_by_its_own_reserve(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set(NOON)
    job_id = enqueue(conn)
    reserve_one(conn, "killed", lease="30 s")
    clock.advance("31 s")
    # Maintenance did not run: the holder may not have been able to extend, and gets a grace period.
    assert reserve(conn, 1, "other") == []
    assert state(conn, job_id) == "executing"
    clock.advance("31 s")
    [again] = reserve(conn, 1, "other")
    assert (again.id, again.attempt) == (job_id, 1)
    assert job(conn, job_id).losses == 1
