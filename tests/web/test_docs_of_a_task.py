"""What code declares about a task for the people who run it: a link to its docs, and who answers for it."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import psycopg
import pytest

from pgqueue import App
from pgqueue.errors import ConfigError
from tests.calls import call, enqueue, maintain, value
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import working

Ask = Callable[..., httpx.Response]

RUNBOOK = "https://wiki.example.com/runbooks/charge?a=1&b=2"


async def test_the_pages_of_a_task_and_of_its_jobs_link_to_its_docs(
    conn: psycopg.Connection, database: Database, ask: Ask
) -> None:
    app = App()
    app.task(name="charge", docs=RUNBOOK, owner="payments <team>")(lambda: None)
    app.task(name="plain")(lambda: None)
    async with working(app, database.dsn):
        await wait_until_async(lambda: value(conn, "select count(*) from pgqueue.tasks") == 2)
    link = '<a rel="noreferrer external" href="https://wiki.example.com/runbooks/charge?a=1&amp;b=2">docs</a>'
    for page in ("/task?name=charge", f"/jobs/{enqueue(conn, 'charge')}"):
        text = ask("GET", page).text
        assert link in text, page
        assert "payments &lt;team&gt;" in text, page
    for page in ("/task?name=plain", f"/jobs/{enqueue(conn, 'plain')}", f"/jobs/{enqueue(conn, 'unknown')}"):
        text = ask("GET", page).text
        assert ">docs</a>" not in text
        assert "<dt>Owner" not in text
    maintain(conn)
    assert 'pgqueue_task_info{owner="payments <team>",queue="default",task="charge"} 1.0' in ask("GET", "/metrics").text


def test_a_link_leads_nowhere_but_to_an_address(conn: psycopg.Connection) -> None:
    for odd in (
        "javascript:alert(1)",
        "wiki",
        "http://a b",
        "https://",
        "https://x\nhttps://y",
        "https://" + 2000 * "x",
    ):
        with pytest.raises(psycopg.Error, match="option of task 't' is out of range"):
            call(conn, "declare_task", "t", docs=odd)
        with pytest.raises(ConfigError, match="docs is"):
            App().task(name="t", docs=odd)(lambda: None)
        # Not even by a role that may write to the table.
        with pytest.raises(psycopg.errors.CheckViolation):
            conn.execute("insert into pgqueue.tasks (name, declared_docs) values ('t', %s)", [odd])
    with pytest.raises(ConfigError, match="owner is"):
        App().task(name="t", owner="")(lambda: None)


def test_a_declaration_that_changes_its_docs_is_written(conn: psycopg.Connection) -> None:
    assert call(conn, "declare_task", "t", docs="https://a.example", owner="one") is True
    assert call(conn, "declare_task", "t", docs="https://a.example", owner="one") is False
    assert call(conn, "declare_task", "t", docs="https://b.example", owner="one") is True
    assert call(conn, "declare_task", "t", docs="https://b.example", owner="two") is True
    assert conn.execute("select docs, owner from pgqueue.effective_tasks").fetchall() == [("https://b.example", "two")]
