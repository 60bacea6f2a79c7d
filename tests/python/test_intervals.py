"""Seconds as a number wherever an interval is asked for."""

from __future__ import annotations

import math
from datetime import timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest

import pgqueue
from pgqueue import App, Job
from pgqueue._options import TaskOptions, is_age, timedelta_text
from pgqueue.db.call import perform
from pgqueue.db.declare import declare_task, schedule
from pgqueue.errors import ConfigError, InvalidArgument
from pgqueue.testing import Clock, drain
from tests.calls import job, value
from tests.databases import Database


def test_a_job_takes_seconds_for_each_of_its_intervals(conn: psycopg.Connection) -> None:
    given: Any = {
        "delay": 7260, "timeout": 20.5, "expires_in": 3600, "retention": 90, "retry_delay": 0.25, "retry_cap": 8.5,
    }  # fmt: skip
    app = App()
    t = app.task(lambda: None, name="t")  # type: ignore[call-overload]
    ids = [
        pgqueue.enqueue(conn, "t", **given),
        pgqueue.enqueue_many(conn, "t", [{}], **given)[0],
        pgqueue.enqueue_outcome(conn, "t", dedupe="d", dedupe_for=30, **given).job_id,
        pgqueue.enqueue_batch(conn, [{"task": "t", **given}])[0].job_id or 0,
        t.using(**given).enqueue(conn),
    ]
    assert pgqueue.enqueue_copy(conn, [{"task": "t", **given}]) == {"inserted": 1}
    for job_id in [*ids, max(ids) + 1]:
        found = job(conn, job_id)
        assert (found.run_at - found.created_at, found.timeout) == (timedelta(seconds=7260), timedelta(seconds=20.5))
        assert found.expires_at - found.run_at == timedelta(hours=1)
        assert value(conn, "select retention from pgqueue.jobs where id = %s", job_id) == timedelta(seconds=90)


def test_a_task_and_a_schedule_take_seconds(conn: psycopg.Connection) -> None:
    options = TaskOptions(
        timeout=20.5, retry_delay=5, retry_policy="list", retry_delays=[1, "2 s", 7200.5], expires_in=86_460
    )
    assert (options.timeout, options.expires_in) == (timedelta(seconds=20.5), timedelta(days=1, seconds=60))
    perform(conn, declare_task("t", options.as_mapping()))
    assert value(conn, "select declared_timeout from pgqueue.tasks where name = 't'") == timedelta(seconds=20.5)
    assert value(conn, "select declared_retry_delays from pgqueue.tasks where name = 't'") == [
        timedelta(seconds=1), timedelta(seconds=2), timedelta(hours=2, seconds=0.5),
    ]  # fmt: skip
    perform(conn, schedule("s", None, "t", {}, {"every": 90, "jitter": 1.5}))
    assert value(conn, "select every from pgqueue.effective_schedules where name = 's'") == timedelta(seconds=90)


@pytest.mark.parametrize("style", ["postgres", "postgres_verbose", "sql_standard", "iso_8601"])
@pytest.mark.parametrize(
    "given",
    [
        timedelta(0),
        timedelta(microseconds=-1),
        timedelta(hours=1),
        timedelta(days=-3, seconds=7),
        timedelta(days=365_000),
        timedelta.min,
    ],
)
def test_a_length_of_time_is_read_as_it_is_meant(conn: psycopg.Connection, style: str, given: timedelta) -> None:
    conn.execute(f"set intervalstyle = {style}".encode())
    seconds = value(conn, "select extract(epoch from %s::text::interval)", timedelta_text(given))
    assert seconds == Decimal(given // timedelta(microseconds=1)) / 1_000_000


def test_a_task_with_an_hour_to_live_is_enqueued(conn: psycopg.Connection) -> None:
    app = App()

    @app.task(expires_in=timedelta(hours=1))
    def t() -> None: ...

    found = job(conn, t.enqueue(conn))
    assert found.expires_at - found.run_at == timedelta(hours=1)


def test_steps_events_and_the_clock_take_seconds(database: Database, conn: psycopg.Connection) -> None:
    app = App()

    @app.task
    def t(job: Job) -> None:
        job.sleep("cool down", 7200)
        assert job.wait_event("paid", 0.5) == 5

    t.enqueue(conn)
    pgqueue.emit_event(conn, "paid", 5, keep_for=86_400.5)
    before = Clock(conn).now()
    assert drain(conn, app, scheduled=True).succeeded == 1
    assert Clock(conn).now() - before >= timedelta(hours=2)
    with Clock(conn).travel(60) as later:
        assert later - before >= timedelta(hours=2, seconds=60)


@pytest.mark.parametrize("wrong", [True, math.nan, math.inf, 1e300])
def test_what_is_no_length_of_time_is_refused(conn: psycopg.Connection, wrong: float) -> None:
    app = App()
    t = app.task(lambda: None, name="t")  # type: ignore[call-overload]
    for call in (
        lambda: pgqueue.enqueue(conn, "t", delay=wrong),
        lambda: pgqueue.enqueue_batch(conn, [{"task": "t", "delay": wrong}]),
        lambda: pgqueue.enqueue_copy(conn, [{"task": "t", "delay": wrong}]),
        lambda: t.using(delay=wrong),
        lambda: pgqueue.emit_event(conn, "e", keep_for=wrong),
    ):
        with pytest.raises(InvalidArgument, match=r"is (True|nan|inf|1e)"):
            call()
    with pytest.raises(ConfigError, match="timeout is"):
        app.task(timeout=wrong)(lambda: None)


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("2 hours", True), ("2 hours ago", True), ("1 mon 2 days", True), ("90s", True), ("1 day 02:00:00", True),
        ("1 decade", True), ("1 dec 2026", False), ("1 DEC 2026", False), ("24 oct 2026", False), ("1 dec", False),
        ("1 december 2026", False), ("2026-12-24", False), ("20261224T180000", False), ("yesterday", False),
    ],
)  # fmt: skip
def test_a_date_with_the_name_of_its_month_is_no_age(text: str, age: bool) -> None:
    assert is_age(text) is age
