"""quiet_worker(), resume_worker(), stop_worker(): what is written, who is notified, and when a command ends."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, enqueue, maintain, value
from tests.databases import Database


def command(conn: psycopg.Connection, worker: str = "w") -> tuple[str | None, bool, bool]:
    """Return the command in worker_status, and whether it has its times."""
    row = conn.execute(
        "select command, commanded_at is not null, obeyed_at is not null from pgqueue.worker_status where worker = %s",
        [worker],
    ).fetchone()
    assert row is not None
    return row


def test_each_command_counts_once(conn: psycopg.Connection) -> None:
    call(conn, "hello", "w")
    assert call(conn, "worker_command", "w") == "run"
    assert call(conn, "resume_worker", "w") is False
    assert call(conn, "quiet_worker", "w") is True
    assert call(conn, "quiet_worker", "w") is False
    assert call(conn, "worker_command", "w") == "quiet"
    assert call(conn, "resume_worker", "w") is True
    assert call(conn, "worker_command", "w") == "run"
    assert call(conn, "quiet_worker", "w") is True
    assert call(conn, "stop_worker", "w") is True
    for function in ("quiet_worker", "resume_worker", "stop_worker"):
        # A stop cannot be taken back.
        assert call(conn, function, "w") is False
    assert call(conn, "worker_command", "w") == "stop"


@pytest.mark.parametrize("function", ["quiet_worker", "resume_worker", "stop_worker"])
def test_a_worker_that_is_not_there_takes_no_command(conn: psycopg.Connection, function: str) -> None:
    assert call(conn, function, "nobody") is False
    assert call(conn, "worker_command", "nobody") == "run"
    assert value(conn, "select count(*) from pgqueue.audit") == 0


def test_the_worker_says_when_it_obeys(conn: psycopg.Connection) -> None:
    call(conn, "hello", "w")
    assert command(conn) == (None, False, False)
    call(conn, "quiet_worker", "w")
    call(conn, "worker_command", "w", "run")
    assert command(conn) == ("quiet", True, False)
    call(conn, "worker_command", "w", "quiet")
    assert command(conn) == ("quiet", True, True)
    call(conn, "stop_worker", "w")
    assert command(conn) == ("stop", True, False)
    call(conn, "hello", "x")
    assert command(conn, "x") == (None, False, False)


def test_the_worker_and_no_other_is_notified(conn: psycopg.Connection, database: Database) -> None:
    listener = database.connect()
    for worker in ("w", "x"):
        listener.execute(f"listen {call(conn, 'hello', worker)}".encode())
    call(conn, "quiet_worker", "w")
    call(conn, "quiet_worker", "w")
    # Its backend passes on what was notified before its next statement ends.
    listener.execute("select 1")
    heard = [(each.channel, each.payload) for each in listener.notifies(timeout=0)]
    assert heard == [(value(conn, "select channel from pgqueue.workers where name = 'w'"), "command")]


def test_a_command_ends_with_the_process(conn: psycopg.Connection) -> None:
    call(conn, "hello", "w", None, Jsonb({"instance": "a"}))
    call(conn, "stop_worker", "w")
    # The same process registers again, after an outage.
    call(conn, "hello", "w", None, Jsonb({"instance": "a"}))
    assert command(conn)[0] == "stop"
    call(conn, "hello", "w", None, Jsonb({"instance": "b"}))
    assert command(conn) == (None, False, False)
    call(conn, "quiet_worker", "w")
    call(conn, "claim_name", "w", Jsonb({"instance": "c"}), "b")
    assert command(conn) == (None, False, False)


def test_a_worker_that_obeys_does_not_wait_for_an_operators_open_transaction(
    conn: psycopg.Connection, database: Database
) -> None:
    call(conn, "hello", "w")
    call(conn, "quiet_worker", "w")
    operator = database.session()
    operator.run("begin")
    operator.run("select pgqueue.stop_worker('w')")
    conn.execute("set lock_timeout = '1s'")
    # Its connection extends leases, too.
    assert call(conn, "worker_command", "w", "quiet") == "quiet"
    operator.run("rollback")
    assert command(conn) == ("quiet", True, False)
    call(conn, "worker_command", "w", "quiet")
    assert command(conn) == ("quiet", True, True)


def test_a_quiet_worker_that_was_silent_for_a_while_stays_quiet(conn: psycopg.Connection, clock: Clock) -> None:
    for worker, info in (("w", {"instance": "a"}), ("x", {"instance": "b"}), ("y", {})):
        call(conn, "hello", worker, None, Jsonb(info))
    for worker in ("w", "y"):
        call(conn, "quiet_worker", worker)
    clock.advance(timedelta(minutes=11))
    maintain(conn)
    # Nobody could tell the process of the last one from another that takes its name.
    assert [call(conn, "beat", worker) for worker in ("w", "x", "y")] == [True, False, False]
    assert call(conn, "worker_command", "w") == "quiet"
    clock.advance(timedelta(days=8))
    maintain(conn)
    assert call(conn, "beat", "w") is False


def test_maintenance_does_not_wait_for_an_operator_of_a_silent_worker(
    conn: psycopg.Connection, database: Database, clock: Clock
) -> None:
    for worker in ("w", "x"):
        call(conn, "hello", worker)
    operator = database.session()
    operator.run("begin")
    operator.run("select pgqueue.stop_worker('w')")
    clock.advance(timedelta(minutes=11))
    maintain(conn)
    assert value(conn, "select count(*) from pgqueue.maintenance_steps where error is not null") == 0
    assert [name for (name,) in conn.execute("select name from pgqueue.workers")] == ["w"]


def test_a_quiet_worker_counts_as_none_that_claims(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "hello", "w")
    enqueue(conn, queue="mail")
    call(conn, "quiet_worker", "w")
    clock.advance(timedelta(seconds=40))
    call(conn, "beat", "w")
    maintain(conn)
    found = {
        topic: (severity, subject, remedy)
        for topic, severity, subject, remedy in conn.execute(
            "select topic, severity, subject, remedy from pgqueue.doctor() where topic in ('no_worker', 'command')"
        )
    }
    assert found["no_worker"] == ("critical", "mail", "select pgqueue.resume_worker('w');")
    assert found["command"][:2] == ("info", "w")
    conn.execute(found["command"][2].partition(" when")[0].encode())
    topics = {row[0] for row in conn.execute("select topic from pgqueue.doctor()")}
    assert not topics & {"no_worker", "command"}


def test_a_command_that_a_worker_does_not_obey_is_found(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "hello", "w")
    call(conn, "stop_worker", "w")
    clock.advance(timedelta(minutes=3))
    call(conn, "beat", "w")
    severity, evidence = conn.execute(
        "select severity, evidence from pgqueue.doctor() where topic = 'command'"
    ).fetchone() or ("", "")
    assert severity == "warning"
    assert "has not obeyed yet" in evidence
