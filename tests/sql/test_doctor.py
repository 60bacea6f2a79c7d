"""doctor(): each thing that is wrong is found, with what mends it; and nothing where nothing is."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, maintain, reserve, value
from tests.cli.conftest import Outcome, Run, run
from tests.databases import Database

__all__ = ["run"]


def findings(conn: psycopg.Connection) -> dict[str, tuple[str, str, str]]:
    """Return severity, subject and remedy by topic, but for what depends on the server that tests run on."""
    rows = conn.execute(
        "select topic, severity, subject, remedy from pgqueue.doctor() order by severity desc"
    ).fetchall()
    return {row[0]: row[1:] for row in rows if row[0] not in ("settings", "connections", "blind", "wraparound")}


def test_nothing_is_wrong_with_a_queue_at_work(conn: psycopg.Connection) -> None:
    call(conn, "hello", "w")
    call(conn, "declare_task", "t")
    enqueue_many(conn, 3)
    maintain(conn)
    assert findings(conn) == {}


def test_due_jobs_without_a_worker(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue(conn, queue="mail")
    clock.advance(timedelta(minutes=2))
    maintain(conn)
    assert findings(conn)["no_worker"][:2] == ("critical", "mail")


def test_a_paused_queue_and_its_remedy(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "hello", "w")
    enqueue(conn, queue="mail")
    call(conn, "pause_queue", "mail")
    clock.advance(timedelta(minutes=2))
    severity, subject, remedy = findings(conn)["paused"]
    assert (severity, subject) == ("info", "mail")
    conn.execute(remedy.encode())
    assert "paused" not in findings(conn)


def test_an_unknown_task(conn: psycopg.Connection) -> None:
    call(conn, "declare_task", "send_email")
    enqueue(conn, "sned_email")
    assert findings(conn)["unknown_task"][1] == "sned_email"


def test_maintenance_that_does_not_run(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue(conn)
    assert findings(conn)["maintenance"][0] == "critical"
    maintain(conn)
    assert "maintenance" not in findings(conn)
    clock.advance(timedelta(minutes=2))
    assert findings(conn)["maintenance"][0] == "critical"


def test_a_limit_that_nothing_can_leave(conn: psycopg.Connection) -> None:
    call(conn, "set_limit", "task", "t", max_executing=0)
    enqueue_many(conn, 2)
    reserve(conn, 2)
    assert findings(conn)["limit"][:2] == ("warning", "task:t")


def test_a_schedule_that_missed(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "schedule", "s", every="5 min", task="t")
    clock.advance(timedelta(minutes=30))
    assert findings(conn)["schedule"][:2] == ("critical", "s")


def test_a_clock_that_is_wrong_and_workers_of_two_versions(conn: psycopg.Connection) -> None:
    now = value(conn, "select extract(epoch from clock_timestamp())::float8")
    call(conn, "hello", "a", None, Jsonb({"host": "h", "clock": now + 100, "version": "1"}))
    call(conn, "hello", "b", None, Jsonb({"host": "i", "clock": now, "version": "2", "listen": False}))
    found = findings(conn)
    assert found["clock"][:2] == ("warning", "h")
    assert found["versions"][0] == "info"
    assert found["pooler"][1] == "b"


def test_a_worker_that_is_gone_with_its_jobs(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "hello", "w")
    enqueue(conn)
    reserve(conn, 1, "w")
    clock.advance(timedelta(minutes=3))
    assert findings(conn)["worker"][1] == "w"


def test_a_task_that_mostly_fails(conn: psycopg.Connection) -> None:
    call(conn, "hello", "w")
    call(conn, "beat", "w", Jsonb({"jobs": [{"queue": "q", "task": "bad", "succeeded": 5, "failed": 40}]}))
    maintain(conn)
    assert findings(conn)["failures"][1] == "bad"


def test_rights_that_are_too_wide_and_their_remedy(conn: psycopg.Connection) -> None:
    conn.execute("grant select on pgqueue.jobs to public")
    severity, subject, remedy = findings(conn)["rights"]
    assert (severity, subject) == ("critical", "table jobs")
    conn.execute(remedy.split("and: ")[1].encode())
    assert "rights" not in findings(conn)


def test_autovacuum_that_was_switched_off(conn: psycopg.Connection) -> None:
    conn.execute("alter table pgqueue.jobs set (autovacuum_enabled = false)")
    assert findings(conn)["autovacuum"][:2] == ("critical", "jobs")
    conn.execute(findings(conn)["autovacuum"][2].encode())
    assert "autovacuum" not in findings(conn)


@pytest.mark.parametrize(("setting", "severity"), [("synchronous_commit", "warning")])
def test_a_setting_that_loses_commits(database: Database, setting: str, severity: str) -> None:
    conn = database.connect(options=f"-c {setting}=off")
    rows = conn.execute("select severity, evidence from pgqueue.doctor() where subject = %s", [setting]).fetchall()
    assert [row[0] for row in rows] == [severity] or ["off" in rows[0][1]] == [True]


def test_on_the_command_line_the_exit_code_says_how_bad_it_is(conn: psycopg.Connection, run: Run) -> None:
    def ask(*options: str) -> Outcome:
        return run("doctor", *options)

    assert ask("--fail-on", "never").code == 0
    conn.execute("grant select on pgqueue.jobs to public")
    assert ask("--fail-on", "critical").code == 1
    found = ask("--json", "--fail-on", "never")
    assert {"severity", "topic", "subject", "evidence", "remedy"} == set(found.json()[0])
    assert any(each["topic"] == "rights" for each in found.json())
    assert "revoke" in ask("--fail-on", "never").out
    conn.execute("update pgqueue.releases set revision = '0001', digest = 'x'")
    assert any(each["topic"] == "schema" for each in ask("--json").json())
    assert ask("--fail-on", "sometimes").code == 2
