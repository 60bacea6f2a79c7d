"""docs/operate/operating.md on erasure, followed: what is left of a person in the tables of the queue."""

from __future__ import annotations

import shlex

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb
from typer.testing import CliRunner

from pgqueue import cli
from pgqueue.testing import Clock
from tests.calls import call, enqueue, maintain, reserve_one, value
from tests.databases import Database
from tests.docs.pages import blocks, commands

PERSON = "ada@example.org"


def tables_that_hold(conn: psycopg.Connection, text: str) -> list[str]:
    found = conn.execute(
        "select relname from pg_class where relnamespace = 'pgqueue'::regnamespace and relkind = 'r' order by relname"
    )
    query = sql.SQL("select exists (select from pgqueue.{} t where t::text like %s)")
    return [
        name
        for (name,) in found.fetchall()
        if conn.execute(query.format(sql.Identifier(name)), [f"%{text}%"]).fetchone() == (True,)
    ]


def erase(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the commands of the page."""
    monkeypatch.setenv("PGQUEUE_DSN", database.dsn)
    [block] = [each for each in blocks("docs/operate/operating.md") if PERSON in each.text]
    for command in commands(block):
        done = CliRunner().invoke(cli.cli, shlex.split(command)[1:])
        assert done.exit_code == 0, done.output


def test_an_erasure_by_key_leaves_nothing_of_a_person_in_jobs_history_steps_and_events(
    database: Database, conn: psycopg.Connection, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = f"customer:{PERSON}"
    call(conn, "set_limit", "limit_key", "customer:*", rate=10, per="1 min")
    of_person = {"key": key, "limit_key": key, "tags": [PERSON], "headers": Jsonb({"who": PERSON})}
    enqueue(conn, "mail", {"to": PERSON}, dedupe=key, dedupe_for="1 day", max_attempts=1, **of_person)
    for queue in ("default", "default", "default", "other"):
        enqueue(conn, "mail", {"to": PERSON}, queue=queue, **of_person)
    dead = reserve_one(conn, queues=["default"])
    call(conn, "complete_step", dead.id, dead.reservation, "charge", Jsonb(PERSON))
    call(conn, "write_log", Jsonb([{"job_id": dead.id, "attempt": 1, "line": PERSON}]))
    call(conn, "fail", dead.id, dead.reservation, Jsonb({"message": PERSON}))
    succeeded = reserve_one(conn, queues=["default"])
    call(conn, "complete", succeeded.id, succeeded.reservation, Jsonb({"sent_to": PERSON}))
    call(conn, "emit_event", f"paid:{PERSON}", Jsonb({"by": PERSON}))
    stays = enqueue(conn, "mail", {"to": "bob@example.org"}, key="customer:bob@example.org")
    held = set(tables_that_hold(conn, PERSON))
    assert {"jobs", "dedupe_keys", "limit_starts", "events", "job_logs"} < held
    assert any(name.startswith("history") for name in held)

    erase(database, monkeypatch)
    # The starts of a rate and the notes of an event are dropped by maintenance. The audit has what was typed.
    clock.advance("1 hour")
    maintain(conn)
    assert tables_that_hold(conn, PERSON) == ["audit"]
    assert value(conn, "select array_agg(id) from pgqueue.all_jobs") == [stays]


def test_an_executing_job_of_a_person_is_cancelled_and_erased_when_it_has_ended(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(conn, "mail", {"to": PERSON}, key=f"customer:{PERSON}")
    held = reserve_one(conn)
    erase(database, monkeypatch)
    assert "jobs" in tables_that_hold(conn, PERSON)
    call(conn, "complete", held.id, held.reservation)
    erase(database, monkeypatch)
    assert tables_that_hold(conn, PERSON) == []
