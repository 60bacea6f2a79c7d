"""Each incident: it happens, the first screen names its cause with evidence, and the runbook's commands end it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from examples.incidents import __main__ as program
from examples.incidents.cure import carry_out, end, told_of, ways_of
from examples.incidents.scenes import INCIDENTS
from examples.incidents.stage import Stage
from pgqueue.db import observe
from pgqueue.db.call import perform
from pgqueue.testing import Clock
from tests.calls import call, enqueue, value
from tests.databases import Database
from tests.docs.pages import ROOT, blocks, read
from tests.web.conftest import ask, serve

__all__ = ["ask", "serve"]

Ask = Callable[..., httpx.Response]

PAGE = "docs/operate/monitoring.md"
NAMED = re.compile(r"# python -m examples\.incidents (\w+)\n")


@pytest.fixture
def stage(database: Database, tmp_path: Path) -> Iterator[Stage]:
    found = Stage(database.dsn, small=True, log=tmp_path / "workers.log")
    yield found
    found.close()


def runbook() -> dict[str, list[str]]:
    """The commands of the runbook, by incident."""
    entries = [block.text for block in blocks(PAGE) if block.language == "text" and NAMED.match(block.text)]
    return {NAMED.match(text)[1]: text.splitlines()[1:] for text in entries}  # type: ignore[index]


def without_numbers(commands: list[str]) -> list[str]:
    """Ids, limits and backends differ from case to case."""
    return [re.sub(r"\d+", "17", command) for command in commands]


def test_each_incident_has_its_entry_below_its_cause() -> None:
    assert runbook().keys() == INCIDENTS.keys()
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^#{2,3} |\Z)", read(PAGE), re.MULTILINE | re.DOTALL))
    for name, incident in INCIDENTS.items():
        assert f"python -m examples.incidents {name}\n" in sections[incident.cause or incident.topic]


def test_each_cause_that_sql_knows_has_its_entry(conn: psycopg.Connection) -> None:
    comment = value(conn, "select obj_description('pgqueue.why_late(text)'::regprocedure)")
    listed = re.sub(r"\(.*?\)", "", re.search(r"cause: (.*?)\. subject", comment)[1])  # type: ignore[index]
    causes = set(listed.replace(" ", "").split(",")) - {"on_time"}
    assert {incident.cause for incident in INCIDENTS.values()} - {""} <= causes
    assert causes <= set(re.findall(r"^### (\w+)$", read(PAGE), re.MULTILINE))


@pytest.mark.parametrize(("source", "cause"), [("throttle", "throttled"), ("breaker", "breaker")])
def test_what_a_throttle_or_a_breaker_prints_stands_in_its_entry_and_ends_it(
    conn: psycopg.Connection, stage: Stage, source: str, cause: str
) -> None:
    call(conn, "hello", "w")
    conn.execute(
        "insert into pgqueue.pauses (kind, target, source, until, at, by)"
        " select 'task', 'call_api', %s, clock_timestamp() + interval '1 hour', clock_timestamp(), 'w'",
        [source],
    )
    enqueue(conn, "call_api")
    [found] = perform(conn, observe.why_late("default"))
    assert found["cause"] == cause
    section = re.search(rf"^### {cause}\n.*?```text\n(.*?)```", read(PAGE), re.MULTILINE | re.DOTALL)
    assert section is not None
    [commands] = ways_of(found["remedy"])
    assert section[1].splitlines() == list(commands)
    for command in commands:
        carry_out(stage, command)
    assert value(conn, "select count(*) from pgqueue.pauses") == 0


@pytest.mark.parametrize(
    ("name", "way"), [(name, way) for name, incident in INCIDENTS.items() for way in range(incident.ways)]
)
def test_the_first_screen_names_an_incident_and_what_it_prints_ends_it(
    name: str, way: int, stage: Stage, ask: Ask, request: pytest.FixtureRequest
) -> None:
    incident = INCIDENTS[name]
    incident.happen(stage)
    if incident.after:
        clock: Clock = request.getfixturevalue("clock")
        clock.advance(f"{incident.after} 10 s")
    found = stage.until(lambda: incident.found(stage))
    assert re.search(incident.evidence, found["evidence"]), found["evidence"]
    printed = ways_of(found["remedy"])
    assert len(printed) == incident.ways
    every = [command for commands in printed for command in commands]
    assert without_numbers(every) == without_numbers(runbook()[name]), found["remedy"]
    end(incident, stage, lambda path: ask("GET", path).text, way=way)


def test_a_name_elsewhere_on_the_first_screen_is_no_cause() -> None:
    incident = INCIDENTS["slots"]
    page = """<section class="verdict late"><p class="said"><a href="/queue?name=web">web</a> is 9 min late: slots.</p>
<p class="because">Due: 9 jobs. Also late: <a href="/queue?name=mail">mail</a>.</p>
<code>pgqueue jobs cancel --task review_case</code></section>
<div class="row" id="queue-1"><a href="/queue?name=web">web</a> slots of review_case</div>
<div class="row" id="queue-2"><a href="/queue?name=mail">mail</a> <div class="why">Late</div></div></section>
<section>mail: review_case takes slots</section>"""
    assert told_of(incident, page) == ["mail Late"]
    said = page.replace(">web</a> is", ">mail</a> is", 1)
    assert told_of(incident, said)[0] == "mail is 9 min late: slots. Due: 9 jobs. Also late: mail ."


def test_the_program_lists_the_incidents_and_asks_for_a_database() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "examples.incidents", *arguments],
            cwd=ROOT,
            env={"PATH": ""},
            capture_output=True,
            text=True,
            check=False,
        )

    assert [line.split()[0] for line in run().stdout.splitlines()] == list(INCIDENTS)
    assert len(INCIDENTS) == 14
    assert "give --dsn" in run("slots").stderr


def test_a_database_in_use_is_refused(database: Database, stage: Stage) -> None:
    stage.conn.execute("select pgqueue.enqueue('t')")
    done = subprocess.run(
        [sys.executable, "-m", "examples.incidents", "slots", "--dsn", database.dsn],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "give one for practice alone" in done.stderr


def test_all_of_them_are_played_in_databases_of_their_own_and_timed(
    database: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "INCIDENTS", {name: INCIDENTS[name] for name in ("left_paused", "queue_limit")})
    monkeypatch.setattr(sys, "argv", ["incidents", "all", "--small", "--dsn", database.dsn])
    # This process keeps its own.
    monkeypatch.setattr(program, "_ENDING", ())
    assert program.main() == 0
    timed = re.findall(
        r"^(\w+): [\d.]+ s from opening the page to the cause, [\d.]+ s to the cure$", capsys.readouterr().out, re.M
    )
    assert timed == ["left_paused", "queue_limit"]
    left = database.connect().execute("select datname from pg_database where datname like 'incident\\_%'").fetchall()
    assert left == []


@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_program_leaves_no_worker_behind(
    ends: signal.Signals, database: Database, conn: psycopg.Connection
) -> None:
    command = [sys.executable, "-m", "examples.incidents", "key", "--small", "--dsn", database.dsn]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            assert any("It stands until Ctrl-C" in line for line in program.stdout)
            pid = value(conn, "select (info ->> 'pid')::integer from pgqueue.workers")
            os.kill(pid, 0)
            program.send_signal(ends)
            assert program.wait(60) == 0
        finally:
            program.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("remedy", "ways"),
    [
        (
            "pgqueue jobs explain 17; if it does not end: pgqueue jobs cancel 17",
            [("pgqueue jobs explain 17", "pgqueue jobs cancel 17")],
        ),
        (
            "raise it, if what it protects allows that: pgqueue limits set queue mail --max-executing 2",
            [("pgqueue limits set queue mail --max-executing 2",)],
        ),
        (
            "select pg_terminate_backend(17); and set idle_in_transaction_session_timeout",
            [("select pg_terminate_backend(17);",)],
        ),
        (
            "pgqueue queues set mail --weight 10; or a separate worker: pgqueue worker -r MODULE --queue mail",
            [("pgqueue queues set mail --weight 10",), ("pgqueue worker -r MODULE --queue mail",)],
        ),
        ("wait", []),
    ],
)
def test_commands_are_read_from_a_remedy_as_printed(remedy: str, ways: list[tuple[str, ...]]) -> None:
    assert ways_of(remedy) == ways
