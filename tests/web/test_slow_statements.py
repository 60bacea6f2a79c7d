"""A page whose statement runs into the timeout shows what it has, and says what it lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import psycopg
import pytest

from pgqueue.db import groups, observe, operate, samples
from pgqueue.db.call import Call
from pgqueue.web import database as pool
from tests.calls import value
from tests.databases import Database
from tests.web.conftest import Serve

Ask = Callable[..., httpx.Response]


def slow(*_: Any) -> Call[Any]:
    """End as a statement does that takes too long."""
    return Call(b"select pg_cancel_backend(pg_backend_pid()), pg_sleep(60)", (), list)


@pytest.mark.parametrize(
    ("page", "module", "name", "lacks", "shown", "untrue"),
    [
        ("/", observe, "doctor", "problems that the doctor finds", "TimeoutError", "No problem"),
        ("/", observe, "dead_groups", "the errors of dead jobs", "reports", "No job is dead"),
        ("/queues", observe, "why_late", "why jobs are late", "reports", "no worker serves it"),
        ("/queues", samples, "trends", "the trends", "reports", "at last"),
        ("/queue?name=mail", observe, "dead_groups", "the errors of dead jobs", "Purge", "No job of it is dead"),
        ("/health", observe, "doctor", "problems that the doctor finds", "Maintenance", "No problem was found"),
        ("/health", observe, "metrics", "the numbers of the server", "Maintenance", "0.0 %"),
        ("/dead", samples, "usual_deaths", "how many usually die", "By what they died of", "usually none"),
        ("/dead", observe, "dead_kept", "how long they are kept", "By what they died of", "the oldest leaves"),
        ("/jobs/KEYED", operate, "explain", "why it is in this state", "Timeline", "Others of its state"),
        ("/jobs/KEYED", observe, "search", "others of its key", "Timeline", "Others of its key"),
        ("/jobs/KEYED", groups, "children", "what it waits for and what waits for it", "Others of its key", "Steps"),
    ],
)
def test_a_page_shows_what_it_has(
    filled: psycopg.Connection,
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
    page: str,
    module: Any,
    name: str,
    lacks: str,
    shown: str,
    untrue: str,
) -> None:
    monkeypatch.setattr(module, name, slow)
    job = value(filled, "select min(id) from pgqueue.jobs where key = 'order:17'")
    answer = ask("GET", page.replace("KEYED", str(job)))
    assert answer.status_code == 200
    assert f"The database took too long. This page shows what it has, and lacks: {lacks}." in answer.text
    assert shown in answer.text
    assert untrue not in answer.text


def test_every_page_is_whole_where_nothing_is_slow(filled: psycopg.Connection, ask: Ask) -> None:
    for page in ("/", "/queues", "/queue?name=mail", "/health"):
        assert "took too long" not in ask("GET", page).text


def test_a_table_that_is_locked_costs_the_page_one_part(
    filled: psycopg.Connection, database: Database, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_READS", pool._READS.replace(b"'5s'", b"'3s'"))
    assert b"'3s'" in pool._READS
    job = value(filled, "select min(id) from pgqueue.jobs where key = 'order:17'")
    with database.connect(autocommit=False) as holder:
        holder.execute("lock table pgqueue.dependencies in access exclusive mode")
        answer = ask("GET", f"/jobs/{job}")
    assert answer.status_code == 200
    assert "lacks: what it waits for and what waits for it." in answer.text
    assert "Others of its key" in answer.text


def test_a_page_that_has_nothing_to_show_says_so(
    filled: psycopg.Connection, serve: Serve, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe, "search", slow)
    answer = ask("GET", "/jobs?q=state:dead", at=serve())
    assert answer.status_code == 504
    assert "The database took too long" in answer.text
    assert "Ask for less" in answer.text
