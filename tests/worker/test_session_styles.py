"""Styles in which a database writes its values change nothing: workers, commands and pages read all of them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

import pgqueue
from pgqueue import App, Job
from pgqueue.db import consume, declare, observe, presence, samples
from pgqueue.db.call import perform
from pgqueue.errors import InvalidArgument
from pgqueue.testing import Clock, drain, enqueued
from pgqueue.wait import wait
from tests.calls import call, enqueue, job, maintain, reserve_one, value
from tests.databases import Database
from tests.facts import wait_until_async
from tests.python.test_drivers import WAYS, django_on
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


_NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def _drained_at_one(connection: Any) -> int:
    """Enqueue, read and drain a job through the connection, with the clock stopped at one."""
    app = App()

    @app.schedule(every="1 day")
    @app.task
    def t() -> None: ...

    clock = Clock(connection)
    with clock.freeze(_NOON) as at, clock.travel("-1 h"):
        assert (at, clock.now()) == (_NOON, _NOON - timedelta(hours=1))
        job_id: int = t.using(delay="2 h", timeout="90 s").enqueue(connection)
        [found] = enqueued(connection, t)
        assert (found.created_at, found.run_at) == (clock.now(), clock.now() + timedelta(hours=2))
        assert (found.delay, found.timeout) == (timedelta(hours=2), timedelta(seconds=90))
        assert drain(connection, app, scheduled=True).succeeded == 1
    return job_id


@pytest.mark.parametrize(
    "name", ["psycopg2_connection", "sqlalchemy_connection", "sqlalchemy_connection_on_psycopg2", "sqlalchemy_session"]
)
async def test_a_test_and_a_wait_read_times_through_any_driver(
    name: str, database: Database, styled: psycopg.Connection
) -> None:
    async with WAYS[name](database) as hand:
        job_id = await asyncio.to_thread(_drained_at_one, hand.given)
        await hand.commit()
        outcome = await asyncio.to_thread(wait, hand.given, job_id)
        assert outcome.finished_at == _NOON + timedelta(hours=1)


def test_a_test_and_a_wait_read_times_through_django(database: Database, styled: psycopg.Connection) -> None:
    with django_on(database) as db:
        with db.transaction.atomic():
            job_id = _drained_at_one(db.connection)
        assert wait(db.connection, job_id).finished_at == _NOON + timedelta(hours=1)


@pytest.mark.parametrize("name", ["sqlalchemy_async_connection", "sqlalchemy_async_connection_on_asyncpg"])
async def test_a_wait_reads_times_through_an_async_driver(
    name: str, database: Database, styled: psycopg.Connection
) -> None:
    ended = enqueue(styled)
    held = reserve_one(styled)
    call(styled, "complete", held.id, held.reservation)
    async with WAYS[name](database) as hand:
        outcome = await wait(hand.given, ended)
        assert outcome.finished_at == job(styled, ended).finished_at


def test_none_among_tags_is_refused_and_never_stored_as_a_text(database: Database, styled: psycopg.Connection) -> None:
    with psycopg.connect(database.dsn, autocommit=True) as conn:
        for send in (
            lambda tags: pgqueue.enqueue(conn, "t", tags=tags),
            lambda tags: pgqueue.enqueue_copy(conn, [{"task": "t", "tags": tags}]),
            lambda tags: perform(conn, declare.schedule("s", None, "t", {}, {"every": "1 h", "tags": tags})),
        ):
            with pytest.raises(InvalidArgument, match=r"tags.* holds None; leave it out"):
                send(["a", None])
            send(["a", "NULL"])
    assert value(styled, "select array_agg(distinct tags) from pgqueue.jobs") == [["a", "NULL"]]
    assert value(styled, "select tags from pgqueue.schedules") == ["a", "NULL"]


def test_a_context_of_an_error_is_read_where_a_backslash_may_escape(styled: psycopg.Connection) -> None:
    assert value(styled, "show standard_conforming_strings") == "off"
    said = value(styled, "select pgqueue._error_text('P0001', 'no', 'PL/pgSQL function app.f(x) line 1')")
    assert "app.f" in said


def _held(conn: psycopg.Connection) -> tuple[int, int]:
    enqueue(conn)
    held = reserve_one(conn)
    return held.id, held.reservation
