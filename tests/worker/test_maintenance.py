"""What a worker logs about maintenance."""

from __future__ import annotations

import psycopg
import pytest

from pgqueue import App
from tests.calls import value
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import working


async def test_a_step_that_keeps_failing_is_logged_once_and_so_is_its_recovery(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqueue.worker.presence.maintenance._FULL_RUN_EVERY", 0.0)
    caplog.set_level("INFO", "pgqueue.worker")
    whole = value(conn, "select pg_get_functiondef('pgqueue._expire_jobs'::regproc)")
    conn.execute(
        "create or replace function pgqueue._expire_jobs(p_limit integer, p_now timestamptz) returns bigint"
        " language plpgsql as $$ begin raise 'no cake today'; end $$"
    )
    async with working(App(), database.dsn):
        await wait_until_async(lambda: "step expiry keeps failing: P0001: no cake today" in caplog.text)
        failures = "select failures from pgqueue.maintenance_steps where step = 'expiry' order by n desc limit 1"
        seen = value(conn, failures)
        await wait_until_async(lambda: value(conn, failures) > seen + 2)
        assert caplog.text.count("keeps failing") == 1
        conn.execute(whole.encode())
        await wait_until_async(lambda: "step expiry works again" in caplog.text)
