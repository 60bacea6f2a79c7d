"""Styles in which a database writes its values change nothing: workers, commands and pages read all of them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from pgqueue import App, Job
from pgqueue.db import consume, observe, presence, samples
from pgqueue.db.call import perform
from pgqueue.wait import wait
from tests.calls import call, enqueue, job, maintain, reserve_one, value
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import done, working

_STYLES = (
    "datestyle = 'German, DMY'",
    "intervalstyle = 'iso_8601'",
    "timezone = 'America/St_Johns'",
    "bytea_output = 'escape'",
    "extra_float_digits = -10",
    "array_nulls = off",
    "standard_conforming_strings = off",
    "escape_string_warning = off",
    "backslash_quote = off",
    "quote_all_identifiers = on",
    "transform_null_equals = on",
    "xmloption = 'document'",
)


@pytest.fixture
def styled(database: Database) -> psycopg.Connection:
    """A connection to a database in which every style is another one."""
    with psycopg.connect(database.dsn, autocommit=True) as conn:
        for style in _STYLES:
            conn.execute(f'alter database "{database.name}" set {style}'.encode())
    # The test itself reads by psycopg.
    return database.connect(options="-c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=1")


async def test_a_worker_keeps_leases_progress_and_ends(database: Database, styled: psycopg.Connection) -> None:
    app, go = App(), asyncio.Event()

    @app.task(store_result=True)
    async def long(job: Job) -> list[float]:
        job.progress(1 / 3)
        await go.wait()
        return [1 / 3]

    @app.task(retry_policy="fixed", retry_delay=timedelta(milliseconds=1))
    async def fails_once(job: Job) -> None:
        if job.attempt == 1:
            raise ValueError("no")

    jobs = [enqueue(styled, name) for name in ("long", "fails_once")]
    reserved = "select j.lease_expires_at - j.reserved_at from pgqueue.jobs j where j.id = %s"
    async with working(app, database.dsn, lease=3.0, poll_interval=0.1):
        # Extended twice, and the process has read for how long.
        await wait_until_async(lambda: value(styled, f"select ({reserved}) > '4.5 s'".replace("%s", str(jobs[0]))))
        await wait_until_async(lambda: job(styled, jobs[0]).progress is not None)
        assert value(
            styled, "select (progress ->> 'done')::float8 = 1::float8 / 3 from pgqueue.jobs where id = %s", jobs[0]
        )
        go.set()
        assert await done(styled, *jobs) == ["succeeded", "succeeded"]
    assert [(job(styled, each).losses, job(styled, each).attempts) for each in jobs] == [(0, 1), (0, 2)]


def test_calls_that_read_times_and_lengths_of_time_read_them(database: Database, styled: psycopg.Connection) -> None:
    call(styled, "schedule", "often", "*/5 * * * *", "t")
    ended = enqueue(styled)
    held = reserve_one(styled)
    maintain(styled)
    call(styled, "complete", held.id, held.reservation)
    with psycopg.connect(database.dsn, autocommit=True) as conn:
        now = datetime.now(UTC)
        assert abs(wait(conn, ended).finished_at - now) < timedelta(days=1)
        assert datetime.fromisoformat(perform(conn, samples.sampled_at()) or "").tzinfo is not None
        perform(conn, presence.claim_name("w", {"instance": "a"}, None))
        _, silent_for = perform(conn, presence.claim_name("w", {"instance": "b"}, None)) or ({}, None)
        assert isinstance(silent_for, timedelta)
        [extended] = perform(conn, consume.extend([_held(styled)], 30.0, [True]))
        assert abs((extended.lease_expires_at or now) - now) < timedelta(days=1)
        for reads in (
            observe.stats(),
            observe.doctor(),
            observe.schedules(),
            observe.workers(),
            observe.job(ended),
        ):
            perform(conn, reads)


def test_a_context_of_an_error_is_read_where_a_backslash_may_escape(styled: psycopg.Connection) -> None:
    assert value(styled, "show standard_conforming_strings") == "off"
    said = value(styled, "select pgqueue._error_text('P0001', 'no', 'PL/pgSQL function app.f(x) line 1')")
    assert "app.f" in said


def _held(conn: psycopg.Connection) -> tuple[int, int]:
    enqueue(conn)
    held = reserve_one(conn)
    return held.id, held.reservation
