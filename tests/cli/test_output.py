"""What commands print, on any stdout; and what a bulk command says when it is interrupted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import psycopg
import pytest

from pgqueue.cli import output
from tests.calls import enqueue, enqueue_many, value
from tests.cli.conftest import Run
from tests.cli.interrupted import interrupted
from tests.databases import Database

ODD = "b\u202egnp.ex\u00e9 \u2028\U0001f600"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_a_character_that_stdout_lacks_is_printed_as_an_escape(
    database: Database, conn: psycopg.Connection, run_process: Run, encoding: str
) -> None:
    job_id = enqueue(conn, ODD, {"text": ODD})
    environment = {"PGQUEUE_DSN": database.dsn, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "COLUMNS": "250"}
    for command in (["list"], ["list", "--json"], ["show", job_id], ["show", job_id, "--json"]):
        command_line = [sys.executable, "-m", "pgqueue", "jobs", *map(str, command)]
        done = subprocess.run(
            command_line, env={**os.environ, **environment}, capture_output=True, timeout=280, check=False
        )
        assert (done.returncode, done.stderr) == (0, b"")
        shown = done.stdout.decode(encoding)
        assert not {"\u202e", "\u2028"} & {*shown}
        assert "b\\u202egnp.ex" in shown
        if "--json" in command:
            found = json.loads(shown)
            assert (found if isinstance(found, dict) else found[0])["task"] == ODD


def test_an_interrupted_bulk_command_says_how_many_were_changed(database: Database, conn: psycopg.Connection) -> None:
    ids = enqueue_many(conn, 4)
    # The third deletion takes five minutes.
    conn.execute(
        f"""
        create function public.stall() returns trigger language plpgsql as $$ begin
            if (select count(*) from pgqueue.jobs) = {len(ids) - 2} then perform pg_sleep(300); end if; return old;
        end $$;
        create trigger stall before delete on pgqueue.jobs for each row execute function public.stall()
        """.encode()
    )
    code, out, err = interrupted(conn, database.dsn, "jobs", "delete", "--everything", "--yes", "--chunk", "1")
    assert (code, out) == (130, "")
    assert "2 jobs deleted before this ended" in err
    assert value(conn, "select count(*) from pgqueue.jobs") == 2


def test_a_page_of_a_job_or_a_group_takes_one_connection(
    conn: psycopg.Connection, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    connect = psycopg.connect
    monkeypatch.setattr(psycopg, "connect", lambda *given, **options: made.append(1) or connect(*given, **options))
    job_id, group_id = enqueue(conn), value(conn, "select pgqueue.open_group('g')")
    for command in (["jobs", "show", job_id], ["groups", "show", group_id]):
        made.clear()
        assert run(*command).code == 0
        assert made == [1]


@pytest.mark.parametrize(
    ("zone", "shown"), [("UTC", "2026-07-01 12:00:00 UTC"), ("CET-1CEST", "2026-07-01 14:00:00 CEST")]
)
def test_a_time_names_the_zone_of_the_reader_in_which_it_is(
    zone: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert output.when("2026-07-01T12:00:00+00:00") == shown
    finally:
        monkeypatch.undo()
        time.tzset()
