"""Exactly one job for each instant of a schedule, in forced orders of callers."""

from __future__ import annotations

from typing import LiteralString

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import call, maintain, value
from tests.databases import Database
from tests.facts import wait_until


@pytest.fixture(autouse=True)
def _due(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set("2030-01-07 00:00:30+00")
    call(conn, "schedule", "s", "* * * * *", "t")
    clock.set("2030-01-07 00:01:00+00")


def jobs(conn: psycopg.Connection) -> list[str]:
    return [row[0] for row in conn.execute("select run_at::text from pgqueue.jobs order by id")]


@pytest.mark.parametrize(("end", "second_enqueues"), [("commit", 0), ("rollback", 1)])
def test_two_that_run_one_instant_at_once_enqueue_one_job(
    database: Database, conn: psycopg.Connection, end: str, second_enqueues: int
) -> None:
    """Past maintain's lock, which keeps them apart otherwise: the unique key alone has to hold."""
    first, second = database.session(), database.session()
    first.run("begin")
    assert first.run("select pgqueue._run_schedules(100)") == [(1,)]
    other = second.start("select pgqueue._run_schedules(100)")
    wait_until(lambda: second.waits_behind(first))
    first.run("commit" if end == "commit" else "rollback")
    assert other.result(timeout=10) == [(second_enqueues,)]
    assert len(jobs(conn)) == 1
    assert maintain(conn).ran is True
    assert len(jobs(conn)) == 1


def test_while_one_session_runs_maintenance_no_other_runs_schedules_or_waits(
    database: Database, conn: psycopg.Connection
) -> None:
    first = database.session()
    first.run("begin")
    first.run("select from pgqueue.maintain()")
    assert maintain(conn).ran is False
    first.run("commit")
    assert len(jobs(conn)) == 1


def test_a_declaration_that_commits_late_is_found(database: Database, conn: psycopg.Connection, clock: Clock) -> None:
    first = database.session()
    first.run("begin")
    first.run("select pgqueue.schedule('late', '* * * * *', 't', catch_up => 'all')")
    clock.set("2030-01-07 00:02:00+00")
    maintain(conn)
    first.run("commit")
    clock.set("2030-01-07 00:03:00+00")
    maintain(conn)
    found = "select count(*) from pgqueue.jobs where headers ->> 'schedule' = 'late'"
    assert value(conn, found) == 2


@pytest.mark.parametrize("change", ["select pgqueue.pause_schedule('s')", "select pgqueue.unschedule('s')"])
def test_a_schedule_removed_or_paused_meanwhile_does_no_harm(
    database: Database, conn: psycopg.Connection, clock: Clock, change: LiteralString
) -> None:
    first = database.session()
    first.run("begin")
    first.run(change)
    # Its row is locked: maintenance neither waits nor fails, and as nothing is committed yet, it runs.
    maintain(conn)
    assert call(conn, "stats")["maintenance"]["failures"] == {}
    assert len(jobs(conn)) == 1
    first.run("commit")
    clock.set("2030-01-07 00:02:00+00")
    maintain(conn)
    assert len(jobs(conn)) == 1


def test_two_workers_that_declare_it_at_once_write_one_plan(database: Database, conn: psycopg.Connection) -> None:
    first, second = database.session(), database.session()
    first.run("begin")
    declare = "select pgqueue.schedule('new', '5 * * * *', 't')"
    first.run(declare)
    other = second.start(declare)
    wait_until(lambda: second.waits_behind(first))
    first.run("commit")
    other.result(timeout=10)
    assert value(conn, "select count(*) from pgqueue.schedule_runs where schedule = 'new'") == 1


def test_an_edit_beside_maintenance_that_runs_the_same_instant_enqueues_one_job(
    database: Database, conn: psycopg.Connection
) -> None:
    first, second = database.session(), database.session()
    first.run("begin")
    assert first.run("select pgqueue._run_schedules(100)") == [(1,)]
    other = second.start("select pgqueue.schedule('s', '0 4 * * *', 't')")
    wait_until(lambda: second.waits_behind(first))
    first.run("commit")
    other.result(timeout=10)
    maintain(conn)
    assert len(jobs(conn)) == 1


def test_maintenance_beside_an_edit_that_is_not_committed_loses_nothing(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    first = database.session()
    for end in ("rollback", "commit"):
        first.run("begin")
        first.run("select pgqueue.schedule('s', '0 4 * * *', 't')")
        maintain(conn)  # Waits 50 ms for the instant that the edit settled, and records an error.
        assert jobs(conn) == []
        first.run(end)  # type: ignore[arg-type]
    maintain(conn)
    assert len(jobs(conn)) == 1
    clock.set("2030-01-07 04:00:00+00")
    maintain(conn)
    assert len(jobs(conn)) == 2


def test_under_an_old_snapshot_a_check_costs_the_same(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    """A schedule of every second, and nothing that was deleted is cleaned up: where it stands is still one probe."""
    call(conn, "schedule", "busy", "* * * * * *", "t")
    old = database.session()
    old.run("begin isolation level repeatable read")
    old.run("select 1 from pgqueue.schedules")
    conn.execute(
        """
        insert into pgqueue.schedule_runs (schedule, at, decided_at, outcome, next_at, rule)
        select
            r.schedule, r.next_at + g.n * interval '1 s', r.decided_at, 'enqueued',
            r.next_at + (g.n + 1) * interval '1 s', r.rule
        from pgqueue.schedule_runs r, generate_series(0, 20000) g (n)
        where r.schedule = 'busy' order by g.n
        """
    )
    conn.execute(
        "delete from pgqueue.schedule_runs where schedule = 'busy' and n < (select max(n) from pgqueue.schedule_runs)"
    )
    [[plan]] = conn.execute(
        """
        explain (analyze, buffers, format json)
        select x.next_at
        from pgqueue.schedules s cross join lateral pgqueue._latest_plan(s.name, pgqueue._clock()) x
        where s.name = 'busy'
        """
    ).fetchall()
    top = plan[0]["Plan"]
    assert top["Shared Hit Blocks"] + top["Shared Read Blocks"] < 20
