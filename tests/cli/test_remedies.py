"""Remedies: SQL where the answer is read in SQL, commands of the command line where a program reads it."""

from __future__ import annotations

import re
import shlex
from typing import Any

import psycopg
import pytest

from pgqueue._remedies import for_people, steps
from pgqueue.schema import bundled
from tests.calls import call, enqueue, value
from tests.cli.commands import commands
from tests.cli.conftest import Run

# Functions that remedies name and that no command calls.
WITHOUT_COMMAND = {"maintain", "close_group", "release_from_parents", "_apply_grants"}


def translated(remedy: str) -> str:
    return str(for_people({"evidence": "", "remedy": remedy})["remedy"])


@pytest.mark.parametrize(
    ("remedy", "command"),
    [
        ("select pgqueue.resume('queue', 'mail', 'operator');", "pgqueue queues resume mail"),
        ("select pgqueue.resume('queue', 'm', 'breaker');", "pgqueue limits resume queue m --source breaker"),
        ("select pgqueue.resume('task', 'it''s', 'operator');", """pgqueue limits resume task 'it'"'"'s'"""),
        ("select pgqueue.resume('task',  E'a\\\\b', 'operator');", "pgqueue limits resume task 'a\\b'"),
        ("select pgqueue.resume_worker('w'); when it may", "pgqueue workers resume w; when it may"),
        ("select pgqueue.set_limit('task', 't', max_executing => 1);", "pgqueue limits set task t --max-executing 1"),
        ("select pgqueue.configure_queue('m', weight => 10); or", "pgqueue queues set m --weight 10; or"),
        ("correct it, or: select pgqueue.cancel_many(task => 't');", "correct it, or: pgqueue jobs cancel --task t"),
        ("select pgqueue.maintain(); select pgqueue.cancel(7);", "select pgqueue.maintain(); pgqueue jobs cancel 7"),
        ("select pgqueue.delete_events(array['a b']);", "pgqueue events delete 'a b'"),
        ("select * from pgqueue.events(by_size => true); then", "pgqueue events list; then"),
        ("select pgqueue.revoke_access('worker', 'w');", "pgqueue grant worker w --revoke"),
        ("select pgqueue.resume('task', '-t', 'breaker');", "pgqueue limits resume --source breaker -- task -t"),
        ("select pgqueue.resume_worker('--w');", "pgqueue workers resume -- --w"),
        ("vacuum pgqueue.jobs; if it removes nothing", "vacuum pgqueue.jobs; if it removes nothing"),
    ],
)  # fmt: skip
def test_a_call_of_sql_becomes_the_command_that_makes_it(remedy: str, command: str) -> None:
    assert translated(remedy) == command


def test_the_remedies_of_two_queues_are_two_commands() -> None:
    one, other = (f"select pgqueue.resume('queue', '{name}', 'operator');" for name in "ab")
    assert translated(f"{one} {other}") == "pgqueue queues resume a; pgqueue queues resume b"


@pytest.mark.parametrize(
    ("remedy", "parts"),
    [
        ("pgqueue queues resume mail", ["`pgqueue queues resume mail`"]),
        (
            "pgqueue jobs stack 17; pgqueue jobs cancel --task t --state executing",
            ["`pgqueue jobs stack 17`", "`pgqueue jobs cancel --task t --state executing`"],
        ),
        (
            "raise it, if what it protects allows that: pgqueue limits set queue 'a; b, c: d' --max-executing 2",
            [
                "raise it, if what it protects allows that:",
                "`pgqueue limits set queue 'a; b, c: d' --max-executing 2`",
            ],
        ),
        (
            "pgqueue limits resume task 'it'\"'\"'s'; then: pgqueue status",
            ["`pgqueue limits resume task 'it'\"'\"'s'`", "then:", "`pgqueue status`"],
        ),
        (
            "select pg_terminate_backend(17); and set idle_in_transaction_session_timeout",
            ["`select pg_terminate_backend(17);`", "and set idle_in_transaction_session_timeout"],
        ),
        (
            "create role app_worker login; then: pgqueue grant worker app_worker, and let workers connect as it",
            [
                "`create role app_worker login;`",
                "then:",
                "`pgqueue grant worker app_worker`",
                "and let workers connect as it",
            ],
        ),
        (
            "alter table pgqueue.jobs set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);",
            ["`alter table pgqueue.jobs set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);`"],
        ),
        ("use a pooler, or raise max_connections", ["use a pooler, or raise max_connections"]),
    ],
)
def test_the_commands_of_a_remedy_stand_apart_from_its_words(remedy: str, parts: list[str]) -> None:
    assert [f"`{text}`" if is_command else text for text, is_command in steps(remedy)] == parts


@pytest.mark.parametrize(
    ("evidence", "shown"),
    [
        (
            "the oldest of about 39704 jobs is due since 2026-11-26",
            "the oldest of about 39,704 jobs is due since 2026-11-26",
        ),
        ("1800 of 12000 attempts within ten minutes failed", "1,800 of 12,000 attempts within ten minutes failed"),
        ("1234.5 a second start and 999 come in", "1,234.5 a second start and 999 come in"),
        ("120000 dead and 4500 live rows", "120,000 dead and 4,500 live rows"),
        ("job 123456 of key a:1234 executes on worker w-2000", "job 123456 of key a:1234 executes on worker w-2000"),
        (
            "session 12345 (role r, app) since 2026-11-26 07:00:00",
            "session 12345 (role r, app) since 2026-11-26 07:00:00",
        ),
    ],
)
def test_numbers_of_things_have_their_thousands_apart_and_ids_have_not(evidence: str, shown: str) -> None:
    assert for_people({"evidence": evidence, "remedy": ""})["evidence"] == shown


# One call of each function that has a command, as a remedy writes it.
CALLS = {
    "resume": "'task', 't', 'throttle'",
    "resume_worker": "'w'",
    "set_limit": "'task', 't', max_executing => 1",
    "configure_queue": "'q', weight => 10",
    "cancel": "1",
    "cancel_many": "task => 't'",
    "delete_events": "array['e']",
    "events": "by_size => true",
    "grant_access": "'worker', 'w'",
    "revoke_access": "'worker', 'w'",
}


def test_each_function_that_a_remedy_names_has_a_command_or_none_by_intent() -> None:
    files = [
        file
        for file in bundled.directory("sql").glob("functions/operate/*.sql")
        if re.match(r"(_?why_late|_living_workers_of|_doctor)", file.stem)
    ]
    call = re.compile(r"select (?:[\w, *]+ from )?pgqueue\.(\w+)\(")
    lines = [line for file in files for line in file.read_text().splitlines()]
    # Inside of a text.
    named = {found[1] for line in lines for found in call.finditer(line) if line[: found.start()].count("'") % 2}
    # The comment on why_late() calls it.
    named -= {"why_late"}
    assert named - CALLS.keys() <= WITHOUT_COMMAND


@pytest.mark.parametrize("function", CALLS)
def test_the_command_of_a_remedy_is_one_that_can_be_typed(function: str) -> None:
    words = shlex.split(translated(f"select pgqueue.{function}({CALLS[function]});"))
    assert words[0] == "pgqueue"
    known: dict[tuple[str, ...], Any] = dict(commands())
    path = next(each for each in (tuple(words[1:2]), tuple(words[1:3])) if each in known)
    known[path].make_context(" ".join(path), words[1 + len(path) :])


def test_why_a_queue_is_paused_with_the_reason_who_did_it_and_the_command(run: Run, conn: psycopg.Connection) -> None:
    enqueue(conn, queue="mail")
    call(conn, "pause", "queue", "mail", reason="the provider is down")
    said = run("why", "mail").out
    assert said.startswith("mail: paused")
    assert "the queue has 1 job due, and is paused since" in said
    assert f" by {value(conn, 'select session_user')}" in said
    assert ": the provider is down\n" in said
    assert said.endswith("    do: pgqueue queues resume mail\n")
    [found] = run("why", "mail", "--json").json()
    assert found["remedy"] == "pgqueue queues resume mail"
    # A function of SQL answers with remedies in SQL.
    assert value(conn, "select remedy from pgqueue.why_late('mail')").startswith(
        "select pgqueue.resume('queue', 'mail'"
    )
    assert run(*shlex.split(found["remedy"])[1:]).out == "Queue mail: resumed\n"
