"""`pgqueue top`: what it shows, and what its keys do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from textual.pilot import Pilot
from textual.widgets import DataTable, Label, Static

from pgqueue.db import observe
from pgqueue.db.call import Call, perform, read_column
from pgqueue.testing import Clock
from pgqueue.top import app as screen
from pgqueue.top.app import Top
from tests.calls import call, enqueue, enqueue_many, maintain, reserve, reserve_one, state, value
from tests.cli.conftest import run
from tests.databases import Database, uri

__all__ = ["run"]


@pytest.fixture
def filled(conn: psycopg.Connection) -> psycopg.Connection:
    enqueue_many(conn, 3, "send_email", queue="mail")
    call(conn, "hello", "w1", None, Jsonb({"host": "web-1"}))
    call(conn, "schedule", "nightly", "0 3 * * *", "report")
    call(conn, "set_limit", "queue", "mail", max_executing=5)
    dead = reserve_one(conn)
    call(conn, "fail", dead.id, dead.reservation, Jsonb({"class": "KeyError", "message": "[red]x[/red]"}), retry=False)
    enqueue(conn, "later", queue="mail", delay="1 h")
    maintain(conn)
    return conn


@asynccontextmanager
async def running(database: Database, line: str = "", **options: str) -> AsyncIterator[Pilot[None]]:
    async with Top({"": uri(database.dsn, **options)}, 0.2, line).run_test(size=(200, 50)) as pilot:
        yield pilot


def cells(pilot: Pilot[None], tab: str) -> list[list[str]]:
    table = pilot.app.query_one(f"#{tab}-table", DataTable)
    return [[str(cell) for cell in table.get_row_at(index)] for index in range(table.row_count)]


async def until(pilot: Pilot[None], fact: Callable[[], Any]) -> None:
    async with asyncio.timeout(80):
        while not fact():
            await pilot.pause(0.05)


async def show(pilot: Pilot[None], tab: str) -> None:
    pilot.app.query_one("#tabs").active = tab  # type: ignore[attr-defined]
    await until(pilot, lambda: cells(pilot, tab))
    pilot.app.query_one(f"#{tab}-table", DataTable).focus()
    # A table that gets the focus shows its tab: not after the next one was chosen.
    await pilot.pause()


def said(pilot: Pilot[None]) -> str:
    return str(pilot.app.query_one("#said", Static).render())


async def test_every_tab_shows_what_there_is(filled: psycopg.Connection, database: Database) -> None:
    async with running(database) as pilot:
        for tab, expected in {
            "queues": "mail", "jobs": "KeyError: [red]x[/red]", "workers": "w1", "schedules": "nightly",
            "limits": "mail",
        }.items():  # fmt: skip
            await show(pilot, tab)
            assert any(expected in cell for row in cells(pilot, tab) for cell in row), tab


async def test_the_first_screen_says_who_is_late_and_why_with_the_whole_command_on_a_small_terminal(
    conn: psycopg.Connection, database: Database, clock: Clock
) -> None:
    clock.advance("-10 min")
    enqueue(conn, queue="a-queue-with-quite-a-long-name-of-its-own-for-webhooks")
    clock.back_to_real()
    maintain(conn)
    async with Top({"": uri(database.dsn)}, 0.2).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: cells(pilot, "overview"))
        [first, *_] = cells(pilot, "overview")
        assert (first[0], first[2], first[3]) == (
            "critical",
            "a-queue-with-quite-a-long-name-of-its-own-for-webhooks",
            "1",
        )
        assert first[7] == "no worker serves it"
        sentence = pilot.app.query_one("#verdict", Static)
        assert re.fullmatch(rf"{first[2]} is 1\d min late: no worker serves it\.", str(sentence.render()))
        await until(pilot, lambda: sentence.region.height == 2)
        remedy = pilot.app.query_one("#remedy", Static)
        await until(pilot, lambda: remedy.has_class("shown"))
        assert str(remedy.render()).endswith("--queue a-queue-with-quite-a-long-name-of-its-own-for-webhooks")
        assert remedy.region.bottom <= 24
        await show(pilot, "queues")
        assert not remedy.has_class("shown")
        assert not sentence.has_class("shown")


async def test_a_long_finding_is_whole_with_its_command_on_a_small_terminal(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = b"select jsonb_build_object('severity', 'warning', 'topic', 'old_snapshot', 'subject', 'session 17',"
    found += b" 'evidence', repeat('a long text ', 28), 'remedy', 'select pg_terminate_backend(17); and set"
    found += b" idle_in_transaction_session_timeout')"
    monkeypatch.setattr(observe, "doctor", lambda: Call(found, (), read_column))
    async with Top({"": uri(database.dsn)}, 0.2).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: cells(pilot, "overview"))
        remedy = pilot.app.query_one("#remedy", Static)
        # Five lines of evidence, and two of what to do.
        await until(pilot, lambda: remedy.region.height > 6)
        assert str(remedy.render()).endswith("idle_in_transaction_session_timeout")
        assert remedy.region.bottom <= 24


async def test_a_command_is_whole_below_evidence_that_has_no_room_on_a_small_terminal(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "pgqueue limits set limit_key 'tenant:acme' --max-executing 2 --rate 200 --per 01:00:00 --burst 400"
    found = b"select jsonb_build_object('severity', 'critical', 'topic', 'old_snapshot', 'subject', 'session 17',"
    found += b" 'evidence', repeat('a long text ', 90), 'remedy', $$if that is wanted: "
    found += command.encode() + b"; or a separate worker: pgqueue worker -r MODULE --queue webhooks-of-customers$$)"
    monkeypatch.setattr(observe, "doctor", lambda: Call(found, (), read_column))
    app = Top({"": uri(database.dsn)}, 0.2)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: cells(pilot, "overview"))
        remedy = app.query_one("#remedy", Static)
        await until(pilot, lambda: remedy.region.height > 6)
        # As it stands on the screen, line by line.
        lines = [remedy.render_line(y).text.strip() for y in range(remedy.region.height)]
        shown = " ".join(lines)
        assert remedy.region.bottom <= 23
        assert command in shown
        assert shown.endswith("pgqueue worker -r MODULE --queue webhooks-of-customers")
        assert "a long text a …" in shown or "text …" in shown
        # Rows stand above it.
        assert app.query_one("#overview-table").region.height >= 4
        await pilot.resize_terminal(160, 40)
        await until(pilot, lambda: "…" not in str(remedy.render()) or str(remedy.render()).count("a long") > 40)


async def test_a_worker_that_is_silent_is_not_alive(
    conn: psycopg.Connection, database: Database, clock: Clock, run: Any
) -> None:
    call(conn, "hello", "w1")
    enqueue(conn)
    clock.advance("40 s")
    call(conn, "hello", "w2")
    maintain(conn)
    async with running(database) as pilot:
        numbers = pilot.app.query_one("#numbers", Static)
        await until(pilot, lambda: "workers 1, 1 silent" in str(numbers.render()))
        clock.advance("40 s")
        await until(pilot, lambda: "workers 0, 2 silent" in str(numbers.render()))
        sentence = pilot.app.query_one("#verdict", Static)
        await until(pilot, lambda: "no worker" in str(sentence.render()))
    assert "0 workers, 2 silent" in run("top", "--once").out


async def test_jobs_that_a_worker_holds_beyond_its_slots_do_not_execute(
    conn: psycopg.Connection, database: Database
) -> None:
    call(conn, "hello", "w", None, Jsonb({"concurrency": 2}))
    enqueue_many(conn, 5)
    reserve(conn, 5)
    async with running(database) as pilot:
        await show(pilot, "workers")
        assert [row[5] for row in cells(pilot, "workers")] == ["2, 3 more held"]


async def test_a_long_list_says_that_there_are_more(conn: psycopg.Connection, database: Database) -> None:
    for number in range(501):
        call(conn, "schedule", f"schedule-{number}", "0 3 * * *", "report")
        call(conn, "hello", f"worker-{number}", None, Jsonb({}))
    async with running(database) as pilot:
        for tab in ("workers", "schedules"):
            await show(pilot, tab)
            assert cells(pilot, tab)[-1][:2] == ["", "the first 500; there are more"]
            # It is nothing to act on.
            pilot.app.query_one(f"#{tab}-table", DataTable).move_cursor(row=500)
            await pilot.press("p", "S")
            assert not isinstance(pilot.app.screen, screen.Ask)
    assert value(conn, "select count(*) from pgqueue.audit where via = 'pgqueue top'") == 0


async def test_a_filter_is_typed(filled: psycopg.Connection, database: Database) -> None:
    async with running(database) as pilot:
        await show(pilot, "jobs")
        await pilot.press("slash", *"state:dead", "enter")
        await until(pilot, lambda: [row[3] for row in cells(pilot, "jobs")] == ["dead"])
        await pilot.press("slash", *" colour:red", "enter")
        await until(pilot, lambda: "there is no word" in said(pilot))


async def test_jobs_are_listed_in_each_order(filled: psycopg.Connection, database: Database) -> None:
    async with running(database) as pilot:
        await show(pilot, "jobs")
        for order, where in (("due_at, id", "state in ('waiting', 'failed')"), ("id", "true"), ("id desc", "true")):
            statement = f"select id::text from pgqueue.all_jobs where {where} order by {order}"
            expected = [row[0] for row in filled.execute(statement.encode())]
            await pilot.press("o")
            await until(pilot, lambda expected=expected: [row[0] for row in cells(pilot, "jobs")] == expected)


async def test_keys_act_on_the_job_under_the_cursor(filled: psycopg.Connection, database: Database) -> None:
    dead = value(filled, "select id from pgqueue.history")
    async with running(database, "state:dead") as pilot:
        await show(pilot, "jobs")
        await pilot.press("e")
        await until(pilot, lambda: "finished" in said(pilot))
        await pilot.press("t")
        await until(pilot, lambda: value(filled, "select count(*) from pgqueue.jobs where id = %s", dead) == 1)
        assert value(filled, "select via from pgqueue.audit order by n desc limit 1") == "pgqueue top"


async def test_the_job_under_the_cursor_stays_there_when_others_come_and_go(
    conn: psycopg.Connection, database: Database
) -> None:
    [first, chosen, last] = enqueue_many(conn, 3, "send_email")
    async with running(database) as pilot:
        await show(pilot, "jobs")
        await pilot.press("down")
        assert cells(pilot, "jobs")[1][0] == str(chosen)
        newer = enqueue_many(conn, 2, "other")
        await until(pilot, lambda: len(cells(pilot, "jobs")) == 5)
        assert pilot.app.query_one("#jobs-table", DataTable).cursor_row == 3
        # It says which one.
        await pilot.press("c")
        await until(pilot, lambda: isinstance(pilot.app.screen, screen.Ask))
        assert f"cancel job {chosen} of send_email?" in str(pilot.app.screen.query_one(Label).render())
        await pilot.press("y")
        await until(pilot, lambda: f"cancel job {chosen}: changed" in said(pilot))
        assert [state(conn, each) for each in (first, last, *newer)] == ["waiting"] * 4


async def test_a_key_does_nothing_once_the_chosen_job_is_listed_no_more(
    conn: psycopg.Connection, database: Database
) -> None:
    [older, chosen] = enqueue_many(conn, 2, "later", delay="1 h")
    async with running(database, "task:later") as pilot:
        await show(pilot, "jobs")
        call(conn, "delete", chosen)
        await until(pilot, lambda: len(cells(pilot, "jobs")) == 1)
        await pilot.press("r")
        await until(pilot, lambda: f"job {chosen} is listed no more, nothing was done; job {older}" in said(pilot))
        assert value(conn, "select run_at > now() from pgqueue.jobs") is True
        await pilot.press("r")
        await until(pilot, lambda: f"run job {older}: changed" in said(pilot))


async def test_what_cannot_be_undone_is_asked_about(filled: psycopg.Connection, database: Database) -> None:
    async with running(database, "task:later") as pilot:
        await show(pilot, "jobs")
        await pilot.press("D")
        await pilot.pause()
        await pilot.press("n")
        await pilot.pause()
        assert value(filled, "select count(*) from pgqueue.jobs where task = 'later'") == 1
        await pilot.press("D")
        await pilot.pause()
        await pilot.press("y")
        await until(pilot, lambda: value(filled, "select count(*) from pgqueue.jobs where task = 'later'") == 0)


async def test_a_queue_is_paused_and_resumed(filled: psycopg.Connection, database: Database) -> None:
    async with running(database) as pilot:
        await show(pilot, "queues")
        for state in (True, False):
            await pilot.press("p")
            await until(pilot, lambda s=state: value(filled, "select exists (select from pgqueue.pauses)") is s)
            await until(pilot, lambda s=state: bool(cells(pilot, "queues")[0][-1]) is s)


async def test_what_is_paused_stands_among_the_limits_and_is_paused_and_resumed_there(
    filled: psycopg.Connection, database: Database
) -> None:
    call(filled, "throttle", "limit_key", "api", "1 hour")
    async with running(database) as pilot:
        await show(pilot, "limits")
        await until(pilot, lambda: [row[1] for row in cells(pilot, "limits")] == ["mail", "api"])
        assert cells(pilot, "limits")[1][-1].startswith("throttle until ")
        assert cells(pilot, "limits")[0][-1] == ""
        for state in ("operator until resumed", ""):
            await pilot.press("p")
            await until(pilot, lambda s=state: cells(pilot, "limits")[0][-1] == s)
        await pilot.press("down", "p")
        await until(pilot, lambda: len(cells(pilot, "limits")) == 1)


async def test_a_worker_is_made_quiet_resumed_and_stopped(filled: psycopg.Connection, database: Database) -> None:
    async with running(database) as pilot:
        await show(pilot, "workers")
        for command in ("quiet", None):
            await pilot.press("p")
            await until(pilot, lambda c=command: value(filled, "select command from pgqueue.workers") == c)
            await until(pilot, lambda c=command: cells(pilot, "workers")[0][2] == (c or ""))
        await pilot.press("S")
        await pilot.pause()
        await pilot.press("n")
        await pilot.pause()
        assert value(filled, "select command from pgqueue.workers") is None
        await pilot.press("S")
        await pilot.pause()
        await pilot.press("y")
        await until(pilot, lambda: value(filled, "select command from pgqueue.workers") == "stop")
        await pilot.press("p")
        await until(pilot, lambda: "asked already" in said(pilot))


async def test_a_reader_looks_and_is_refused_what_acts(filled: psycopg.Connection, database: Database) -> None:
    filled.execute(f"create role top_reader_{database.name} login".encode())
    try:
        call(filled, "grant_access", "reader", f"top_reader_{database.name}")
        async with running(database, options=f"-c role=top_reader_{database.name}") as pilot:
            await show(pilot, "queues")
            await pilot.press("p")
            await until(pilot, lambda: "permission denied" in said(pilot))
    finally:
        filled.execute(f"drop owned by top_reader_{database.name}; drop role top_reader_{database.name}".encode())


async def test_a_database_that_is_away_is_reported(database: Database) -> None:
    async with Top({"": "postgresql://127.0.0.1:1/x"}, 0.2).run_test() as pilot:
        await until(pilot, lambda: "cannot be read" in said(pilot))


def test_once_prints_and_ends(filled: psycopg.Connection, run: Any) -> None:
    assert "mail" in run("top", "--once").out
    found = run("top", "--once", "--json", "--where", "state:dead").json()
    assert [job["state"] for job in found["jobs"]] == ["dead"]
    assert run("top", "--once", "--where", "colour:red").code == 2


def test_what_reads_much_is_read_less_often_than_the_screen(
    database: Database, filled: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, asked = 1000.0, []
    monkeypatch.setattr(screen, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(
        screen, "perform", lambda connection, call: asked.append(call.text) or perform(connection, call)
    )
    top = Top({"": database.dsn})

    def look() -> list[bytes]:
        asked.clear()
        top._shared("", 10.0, observe.why_late)
        top._shared("", 60.0, observe.doctor)
        return [*asked]

    why, doctor = observe.why_late().text, observe.doctor().text
    assert look() == [why, doctor]
    now += 9
    assert look() == []
    now += 50
    assert look() == [why]
    now += 2
    assert look() == [doctor]
    top.on_unmount()
