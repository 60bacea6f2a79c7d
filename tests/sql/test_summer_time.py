"""A day has 24 hours, whatever the session's TimeZone says: every time that the queue computes, over both changes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, column, enqueue, enqueue_many, job, maintain, reserve, reserve_one, table, value

DAY = timedelta(hours=24)
END_OF_SUMMER, END_OF_WINTER = "2026-10-24 12:00+02", "2027-03-27 12:00+01"


@pytest.mark.parametrize("start", [END_OF_SUMMER, END_OF_WINTER])
@pytest.mark.parametrize("interval", [DAY, "1 day", "24 hours"])
def test_a_day_is_24_hours_over_both_changes(conn: psycopg.Connection, start: str, interval: Any) -> None:
    clock = Clock(conn)
    clock.set(start)
    conn.execute("set timezone = 'Europe/Berlin'")
    assert {name: hours for name, hours in days(conn, clock, interval) if hours != 24} == {}


@pytest.mark.parametrize("start", [END_OF_SUMMER, END_OF_WINTER])
def test_no_time_of_the_queue_depends_on_the_zone_of_a_session(conn: psycopg.Connection, start: str) -> None:
    clock = Clock(conn)
    found: dict[str, list[Any]] = {}
    for zone in ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"):
        clock.set(start)
        conn.execute(f"set timezone = '{zone}'".encode())
        for interval in ("1 day", "30 hours", "1 month"):
            with conn.transaction(force_rollback=True):
                fill(conn, interval, clock)
                assert times(conn) == found.setdefault(interval, times(conn))


def days(conn: psycopg.Connection, clock: Clock, interval: Any) -> list[tuple[str, float]]:
    """How long `interval` is in each place where it is taken."""
    ends: dict[str, Any] = {}
    ends["delay"] = job(conn, enqueue(conn, queue="later", delay=interval)).run_at
    ends["delay of many"] = job(conn, enqueue_many(conn, 1, queue="later", delay=interval)[0]).run_at
    ends["expires_in"] = job(conn, enqueue(conn, queue="later", expires_in=interval)).expires_at
    enqueue(conn, queue="later", dedupe="d", dedupe_for=interval)
    ends["dedupe_for"] = value(conn, "select until from pgqueue.dedupe_keys where dedupe = 'd'")

    claimed = claim(conn, lease=interval)
    lease = "select lease_expires_at from pgqueue.jobs where id = %s"
    ends["lease"] = value(conn, lease, claimed.id)
    call(conn, "extend", [claimed.id], [claimed.reservation], interval)
    ends["extend"] = value(conn, lease, claimed.id)
    call(conn, "snooze", claimed.id, claimed.reservation, interval)
    ends["snooze"] = job(conn, claimed.id).due_at
    claimed = claim(conn)
    call(conn, "fail", claimed.id, claimed.reservation, retry_in=interval)
    ends["retry_in"] = job(conn, claimed.id).due_at
    conn.execute("insert into pgqueue.tasks (name, retry_jitter) values ('delayed', 0)")
    claimed = claim(conn, "delayed", retry_policy="fixed", retry_delay=interval)
    call(conn, "fail", claimed.id, claimed.reservation)
    ends["retry_delay"] = job(conn, claimed.id).due_at

    claimed = claim(conn)
    call(conn, "sleep_step", claimed.id, claimed.reservation, "s", interval)
    ends["sleep"] = job(conn, claimed.id).due_at
    claimed = claim(conn)
    table(conn, "await_event", claimed.id, claimed.reservation, "s", "e", timeout=interval)
    ends["timeout of an event"] = job(conn, claimed.id).due_at
    call(conn, "emit_event", "f", keep_for=interval)
    ends["keep_for"] = value(conn, "select kept_until from pgqueue.events where name = 'f'")

    for many in (False, True):
        rows = [claim(conn, retention=interval) for _ in range(2 if many else 1)]
        column(conn, "complete_many", [row.id for row in rows], [row.reservation for row in rows])
        ends[f"retention, {len(rows)}"] = value(conn, "select kept_until from pgqueue.history order by id desc limit 1")

    call(conn, "set_limit", "queue", "limited", rate=1, per=interval)
    enqueue_many(conn, 2, queue="limited")
    reserve(conn, 2, queues=["limited"])
    ends["per"] = call(conn, "_next_due", "w", ["limited"], True, True, False, clock.now())
    ends["every"] = call(conn, "schedule", "s", every=interval, task="t")

    # As timestamps: Python subtracts two times of one zone by their wall clocks.
    before = clock.now().timestamp()
    ends["a moved clock"] = clock.advance(interval)
    return [(name, (end.timestamp() - before) / 3600) for name, end in ends.items()]


def fill(conn: psycopg.Connection, interval: str, clock: Clock) -> None:
    """Give `interval` to what takes it, and let it pass once."""
    call(conn, "set_limit", "queue", "limited", rate=1, per=interval)
    call(conn, "schedule", "cron", "30 2 * * *", "t", timezone="Europe/Berlin", catch_up="all")
    call(conn, "schedule", "every", every="30 hours", task="t", catch_up="all", expires_in=interval)
    call(conn, "enqueue_batch", [Jsonb({"task": "t", "delay": interval, "expires_in": interval})])
    enqueue(conn, dedupe="x", dedupe_for=interval, delay=interval, on_conflict="debounce")
    enqueue(conn, dedupe="x", dedupe_for=interval, delay=interval, on_conflict="debounce")
    call(conn, "stage")
    conn.execute("insert into pgqueue_staged (task, delay, expires_in) values ('t', %s, %s)", [interval, interval])
    call(conn, "enqueue_staged")
    call(conn, "emit_event", "e", keep_for=interval)
    for _ in range(3):
        enqueue_many(conn, 2, queue="limited")
        for claimed in reserve(conn, 10):
            call(conn, "complete", claimed.id, claimed.reservation)
        maintain(conn)
        clock.advance("25 hours")


def times(conn: psycopg.Connection) -> list[Any]:
    # Python takes no time of a doubled hour for equal to one in another zone.
    conn.execute("set local timezone = 'UTC'")
    return conn.execute(
        """
        select 'jobs', task, queue, run_at, ready_at, expires_at, lease_expires_at from pgqueue.jobs
        union all select 'history', task, queue, run_at, finished_at, kept_until, null from pgqueue.history
        union all select 'dedupe', dedupe, null, until, null, null, null from pgqueue.dedupe_keys
        union all select 'events', name, null, emitted_at, kept_until, null, null from pgqueue.events
        union all select 'waits', name, null, next_at, null, null, null from pgqueue.limit_waits
        union all select 'schedules', schedule, outcome, at, next_at, decided_at, passed_from from pgqueue.schedule_runs
        order by 1, 2, 3, 4, 5, 6, 7
        """
    ).fetchall()


def claim(conn: psycopg.Connection, task: str = "t", lease: Any = "30 s", **options: Any) -> Any:
    job_id = enqueue(conn, task, queue="now", **options)
    claimed = reserve_one(conn, queues=["now"], lease=lease)
    assert claimed.id == job_id
    return claimed
