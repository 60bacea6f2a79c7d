"""Every function of an operator leaves its row in the audit, with the actor: from psql, the command line and the pages.

The catalog says which functions there are: public ones that write, which no producer or worker may call. One that is
added without a case here makes the first test fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue import embedded
from tests.calls import call, enqueue, maintain, reserve_one, value
from tests.cli.conftest import Run
from tests.databases import Database

Ask = Callable[..., httpx.Response]
Given = dict[str, Any]

# The arguments of each, in SQL, about what `given` makes.
IN_SQL = {
    "cancel": "{waiting}",
    "cancel_many": "job_ids => array[{waiting}]::bigint[]",
    "configure_queue": "'mail', weight => 3",
    "configure_schedule": "'nightly', '0 4 * * *'",
    "configure_task": "'t', max_attempts => 3",
    "delete": "{waiting}",
    "delete_events": "array['event']",
    "delete_many": "job_ids => array[{waiting}]::bigint[]",
    "drop_limit": "'queue', 'mail'",
    "grant_access": "'reader', '{role}'",
    "kill_many": "job_ids => array[{waiting}]::bigint[]",
    "kill_worker": "'w'",
    "pause": "'task', 't'",
    "ask_stack": "{executing}",
    "update_job": "{waiting}, priority => 3",
    "update_many": """'{{"ids": [{waiting}]}}', priority => 3""",
    "pause_queue": "'mail'",
    "pause_schedule": "'nightly'",
    "purge_queue": "'mail'",
    "quiet_worker": "'w'",
    "release_from_parents": "{child}",
    "resume": "'limit_key', 'paused'",
    "resume_queue": "'paused'",
    "resume_schedule": "'paused'",
    "resume_worker": "'quiet'",
    "retry": "{dead}",
    "retry_many": "job_ids => array[{dead}]::bigint[]",
    "revoke_access": "'producer', '{role}'",
    "run_now_many": "job_ids => array[{later}]::bigint[]",
    "run_schedule_now": "'nightly'",
    "set_limit": "'task', 't', 3",
    "set_share": "'tenant:5', 3",
    "set_breaker": "'task', 't'",
    "remove_breaker": "'task', 'other'",
    "set_retry_function": "'t', 'public.waits'",
    "stop_worker": "'w'",
    "unschedule": "'nightly'",
}

# By which commands they are called; the others have none.
BY_COMMAND = {
    "cancel": "jobs cancel {waiting}",
    "cancel_many": "jobs cancel --queue mail --yes",
    "configure_queue": "queues set mail --weight 3",
    "configure_schedule": "schedules set nightly --timezone Europe/Berlin",
    "configure_task": "tasks set t --max-attempts 3",
    "delete": "jobs delete {waiting}",
    "delete_events": "events delete event",
    "delete_many": "jobs delete --state waiting --queue mail --yes",
    "drop_limit": "limits drop queue mail",
    "grant_access": "grant reader {role}",
    "kill_many": "jobs kill {waiting}",
    "pause": "limits pause task t --for 1h --reason down",
    "update_job": "jobs update {waiting} --priority 3",
    "update_many": "jobs update --where id:{waiting} --priority 3 --yes",
    "pause_queue": "queues pause mail",
    "pause_schedule": "schedules pause nightly",
    "purge_queue": "queues purge mail --yes",
    "quiet_worker": "workers quiet w",
    "resume": "limits resume limit_key paused",
    "resume_queue": "queues resume paused",
    "resume_schedule": "schedules resume paused",
    "resume_worker": "workers resume quiet",
    "retry": "jobs retry {dead}",
    "retry_many": "jobs retry --state dead --yes",
    "revoke_access": "grant producer {role} --revoke",
    "run_now_many": "jobs run {later}",
    "run_schedule_now": "schedules run nightly",
    "set_limit": "limits set task t --max-executing 3",
    "set_share": "shares set tenant:5 3",
    "set_breaker": "breakers set task t",
    "remove_breaker": "breakers remove task other",
    "stop_worker": "workers stop w",
    "unschedule": "schedules remove nightly",
}
# A worker answers `jobs stack` and `workers kill`: tests/worker/test_job_logs.py, test_killed_by_command.py.
NO_COMMAND = {"release_from_parents", "set_retry_function", "ask_stack", "kill_worker"}

# By which forms of the pages. The pages call the *_many functions, also for one job.
BY_FORM = {
    "ask_stack": "act action=stack id={executing}",
    "cancel": "group id={group}",
    "cancel_many": "act action=cancel id={waiting}",
    "configure_queue": "queue do=configure name=mail weight=3",
    "configure_schedule": "schedule do=set name=nightly timezone=Europe/Berlin",
    "configure_task": "task name=set option=max_attempts",
    "delete_events": "event name=event",
    "delete_many": "act action=delete id={waiting}",
    "drop_limit": "limit do=drop kind=queue target=mail",
    "kill_many": "act action=kill id={waiting}",
    "kill_worker": "worker do=kill name=w",
    "pause": "limit do=pause kind=task target=t reason=down",
    "pause_queue": "queue do=pause name=mail",
    "pause_schedule": "schedule do=pause name=nightly",
    "purge_queue": "queue do=purge name=mail typed=mail",
    "quiet_worker": "worker do=quiet name=w",
    "resume": "limit do=resume kind=limit_key target=paused source=operator",
    "resume_queue": "queue do=resume name=paused",
    "resume_schedule": "schedule do=resume name=paused",
    "resume_worker": "worker do=resume name=quiet",
    "retry_many": "act action=retry id={dead}",
    "run_now_many": "act action=run id={later}",
    "run_schedule_now": "schedule do=run name=nightly",
    "set_limit": "limit do=set kind=task target=t max_executing=3",
    "set_share": "limit do=set_share target=tenant:5 weight=3",
    "set_breaker": "limit do=set_breaker kind=task target=t",
    "remove_breaker": "limit do=remove_breaker kind=task target=other",
    "stop_worker": "worker do=stop name=w",
    "unschedule": "schedule do=remove name=nightly",
    "update_job": "act action=update id={waiting} priority=3",
    "update_many": "act action=update scope=all q=id:{waiting} count=1 priority=3",
}
NO_FORM = {
    "release_from_parents",
    "set_retry_function",
    "grant_access",
    "revoke_access",
    "delete",
    "retry",
}


@pytest.fixture
def given(conn: psycopg.Connection, database: Database) -> Iterator[Given]:
    """What each function finds something to change in."""
    role = f"audited_{database.name}"
    conn.execute(f"create role {role}".encode())
    conn.execute(
        "create function public.waits(job jsonb, error jsonb) returns interval language sql"
        " set search_path = pg_catalog, pg_temp as $$ select interval '1 s' $$"
    )
    try:
        call(conn, "grant_access", "producer", role)
        call(conn, "declare_task", "t")
        call(conn, "configure_task", "set", max_attempts=3)
        dead = enqueue(conn)
        held = reserve_one(conn)
        call(conn, "fail", held.id, held.reservation, Jsonb({"class": "KeyError"}), retry=False)
        waiting = enqueue(conn, queue="mail")
        child = enqueue(conn, depends_on=[waiting])
        group = call(conn, "open_group", "import")
        for name in ("nightly", "paused"):
            call(conn, "schedule", name, "0 3 * * *", "t")
        call(conn, "pause_schedule", "paused")
        call(conn, "pause_queue", "paused")
        call(conn, "pause", "limit_key", "paused")
        call(conn, "set_limit", "queue", "mail", max_executing=50)
        call(conn, "set_breaker", "task", "other")
        for name in ("w", "quiet"):
            call(conn, "hello", name)
        call(conn, "quiet_worker", "quiet")
        call(conn, "emit_event", "event")
        executing = enqueue(conn, queue="held")
        reserve_one(conn, "w", queues=["held"], lease="1 h")
        maintain(conn)
        yield {
            "role": role, "dead": dead, "waiting": waiting, "child": child, "group": group, "executing": executing,
            "later": enqueue(conn, delay="1 h"),
        }  # fmt: skip
    finally:
        conn.execute(f"drop owned by {role}; drop role {role}; drop function public.waits".encode())


def newest(conn: psycopg.Connection) -> tuple[str, str, str, int]:
    row = conn.execute("select action, actor, via, changed from pgqueue.audit order by n desc limit 1").fetchone()
    assert row is not None
    return row


def test_each_function_of_an_operator_has_a_case_and_a_way(conn: psycopg.Connection) -> None:
    rows = conn.execute(
        """
        select p.proname
        from pg_proc p
        where p.pronamespace = 'pgqueue'::regnamespace
            and p.proname !~ '^_'
            and p.provolatile = 'v'
            -- What producers and workers call is the queue's own work.
            and coalesce(pgqueue._who_may_call(p.oid) = '{operator}', true)
        """
    ).fetchall()
    functions = {row[0] for row in rows}
    assert functions == IN_SQL.keys()
    assert functions == BY_COMMAND.keys() | NO_COMMAND
    assert functions == BY_FORM.keys() | NO_FORM


def psql() -> str:
    program = shutil.which("psql") or (str(embedded.binaries() / "psql") if embedded.available() else None)
    if program is None:
        # It is the client that the test is about.
        pytest.skip("there is no psql")
    return program


@pytest.mark.parametrize("function", sorted(IN_SQL))
def test_from_psql(conn: psycopg.Connection, database: Database, given: Given, function: str) -> None:
    statement = f"select * from pgqueue.{function}({IN_SQL[function].format_map(given)})"
    who = "select set_config('pgqueue.actor', 'alice', false)"
    done = subprocess.run(
        [psql(), "-X", "-q", "-v", "ON_ERROR_STOP=1", database.dsn, "-c", who, "-c", statement],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PGAPPNAME": "psql"},
    )
    assert done.returncode == 0, done.stderr
    assert newest(conn) == (function, "alice", "psql", 1)


@pytest.mark.parametrize("function", sorted(BY_COMMAND))
def test_from_the_command_line(
    conn: psycopg.Connection, run: Run, given: Given, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    arguments = BY_COMMAND[function].format_map(given).split(" ")
    monkeypatch.setenv("PGOPTIONS", "-c pgqueue.actor=alice")
    done = run(*arguments)
    assert done.code == 0, done.err
    action, actor, via, changed = newest(conn)
    assert (action, actor, changed) == (function, "alice", 1)
    assert via.startswith("pgqueue")
    monkeypatch.delenv("PGOPTIONS")
    # Without a word on who it is, the role.
    run("queues", "set", "other", "--weight", "2", "--create")
    assert newest(conn)[1] == value(conn, "select session_user::text")


@pytest.mark.parametrize("function", sorted(BY_FORM))
def test_from_the_pages(conn: psycopg.Connection, ask: Ask, given: Given, function: str) -> None:
    path, *fields = BY_FORM[function].format_map(given).split(" ")
    form = dict(field.split("=", 1) for field in fields)
    answer = ask("POST", f"/{path}", **form, confirm="yes")
    assert answer.status_code == 303, answer.text
    assert newest(conn) == (function, "alice", "web", 1)
