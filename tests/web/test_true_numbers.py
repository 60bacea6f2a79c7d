"""Every number shows whether it is of now: ~ and the age of a count of before, which a click or a command replaces."""

from __future__ import annotations

import re

import httpx
import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.db import observe
from pgqueue.web import User, dead_groups
from pgqueue.web.app import Options
from pgqueue.web.several import dashboards
from tests.calls import call, enqueue_many, maintain, reserve
from tests.cli.conftest import Run
from tests.databases import Database
from tests.web.conftest import Serve, run
from tests.web.test_blocked_by import words
from tests.web.test_guard import Ask

__all__ = ["run"]


@pytest.fixture
def large(conn: psycopg.Connection) -> psycopg.Connection:
    """A queue that was counted three minutes ago, and has other jobs now."""
    call(conn, "hello", "w")
    enqueue_many(conn, 7, queue="mail")
    maintain(conn)
    conn.execute(
        "update pgqueue.samples set waiting = 12000, due = 12000, is_large = true, is_ready_kept = true,"
        " counted_at = at - interval '3 min'"
    )
    return conn


def test_a_number_of_before_has_a_mark_its_age_and_a_link_that_counts_now(large: psycopg.Connection, ask: Ask) -> None:
    for page in ("/", "/queues", "/queue?name=mail"):
        text = ask("GET", page).text
        assert "~12,000" in text, page
        assert re.search(r"~ counted <time[^>]*>3[\d.]* min ago</time>", text), page
        assert 'href="/queue?name=mail&amp;exact=1">count now</a>' in text, page


def test_the_points_of_a_plot_say_which_were_counted_before(large: psycopg.Connection, ask: Ask) -> None:
    assert ask("GET", "/series?queue=mail").json()["exact"] == [False]
    large.execute("update pgqueue.samples set counted_at = null")
    assert ask("GET", "/series?queue=mail&range=1+h").json()["exact"] == [True]


def test_a_click_counts_the_queue_exactly_and_the_live_refresh_does_not_count_again(
    large: psycopg.Connection, ask: Ask
) -> None:
    text = ask("GET", "/queue?name=mail&exact=1").text
    said = re.search(r'<p role="status">(.*?)</p>', text)
    assert said is not None
    assert re.sub("<[^>]+>", "", said[1]).startswith("Counted now: 7 due, 0 scheduled, 7 waiting, 0 executing")
    refreshed = re.search(r'id="live" hx-get="([^"]+)"', text)
    assert refreshed is not None
    assert refreshed[1] == "/queue?name=mail"
    assert "Counted now" not in ask("GET", "/queue?name=mail").text


def test_a_number_of_the_last_sample_has_neither_mark_nor_link(conn: psycopg.Connection, ask: Ask) -> None:
    call(conn, "hello", "w")
    enqueue_many(conn, 7, queue="mail")
    maintain(conn)
    for page in ("/", "/queues", "/queue?name=mail"):
        text = ask("GET", page).text
        assert "count now" not in text
        assert "~7" not in text


def test_only_a_number_that_is_of_before_has_the_mark(large: psycopg.Connection, ask: Ask, run: Run) -> None:
    """Where all queues together have too many dead jobs, their ready jobs are counted in each sample all the same."""
    large.execute("update pgqueue.samples set due = 7, waiting = 7, blocked = 5, dead = 3, is_ready_kept = false")
    text = ask("GET", "/queues").text
    cells = {
        label: re.sub("<[^>]+>", "", found).split()[0]
        for label, found in re.findall(r'data-label="(Due|To be retried|Blocked|Dead)">(.*?)</td>', text)
    }
    assert cells == {"Due": "7", "To be retried": "0", "Blocked": "~5", "Dead": "~3"}
    assert "~7" not in ask("GET", "/").text
    row = next(line for line in run("top", "--once").out.splitlines() if line.startswith("mail"))
    assert row.split()[2:] == ["7", "0", "0", "0", "~5", "~3"]


def test_a_count_that_stopped_says_at_least(large: psycopg.Connection, ask: Ask) -> None:
    large.execute("update pgqueue.samples set waiting = 10000, due = 10000, counted_to = 10000, counted_at = at")
    text = ask("GET", "/queue?name=mail").text
    assert "10,000+" in text
    assert "+ means at least" in text
    assert "count now</a>" in text


def test_the_terminal_marks_it_with_its_age_and_status_counts_exactly(large: psycopg.Connection, run: Run) -> None:
    top = run("top", "--once").out
    assert "~12000" in top
    assert re.search(r"~: counted earlier, at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d .* or since", top)
    assert run("top", "--json").json()["queues"][0]["counted_at"] is not None
    for command in (["status", "--json"], ["queues", "list", "--json"]):
        found = run(*command).json()
        [queue] = found["queues"] if isinstance(found, dict) else found
        assert (queue["due"], queue["counted_at"], queue["counted_to"]) == (7, None, None)


def test_the_waiting_jobs_of_a_limit_say_where_counting_stopped(conn: psycopg.Connection, ask: Ask) -> None:
    call(conn, "set_limit", "queue", "mail", max_executing=0)
    enqueue_many(conn, 1200, queue="mail")
    assert '<td class="n" data-label="Waiting">1,000+</td>' in ask("GET", "/limits").text
    [exact] = call(conn, "stats")["limits"]
    assert (exact["waiting"], exact["counted_to"]) == (1200, None)


def kill(conn: psycopg.Connection, jobs: int) -> list[int]:
    enqueue_many(conn, jobs, "send", queue="mail")
    for row in reserve(conn, jobs, queues=["mail"]):
        call(conn, "fail", row.id, row.reservation, Jsonb({"class": "TimeoutError", "message": "no"}), retry=False)
    return [id for (id,) in conn.execute("select id from pgqueue.all_jobs where state = 'dead' order by id")]


@pytest.mark.parametrize("is_cut", [False, True])
def test_the_dead_by_their_error_say_as_of_when_and_where_there_may_be_more(
    conn: psycopg.Connection, ask: Ask, monkeypatch: pytest.MonkeyPatch, is_cut: bool
) -> None:
    first, *_ = kill(conn, 3)
    if is_cut:
        monkeypatch.setattr(dead_groups, "_READ", 3)
    mark = "+" if is_cut else ""
    for page, said in {
        "/": f" 3{mark} send ",
        "/task?name=send": f" 3{mark} mail ",
        "/queue?name=mail": f" 3{mark} jobs",
        "/dead": f"3{mark} in 1 group",
        f"/jobs/{first}": f"The same error in 3{mark} dead jobs",
    }.items():
        text = ask("GET", page).text
        assert said in words(text), page
        # Once for the numbers of the queues, where the page has them.
        assert re.search(
            r"as of <time[^>]*>[\d.]+ m?s ago</time>" + (r", \+ means at least" if is_cut else "<"), text
        ), page


def test_the_most_frequent_values_say_where_there_are_more_jobs(
    conn: psycopg.Connection, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue_many(conn, 6, "send", queue="mail", limit_key="tenant:lumen")
    assert "Tenant tenant:lumen 6 100 %" in words(ask("GET", "/queue?name=mail").text)
    monkeypatch.setattr(observe, "MOST_FACETED", 5)
    # What was read is forgotten after a change.
    ask("POST", "/limit", do="set", kind="queue", target="mail", max_executing="40")
    page = words(ask("GET", "/queue?name=mail").text)
    assert "Tenant tenant:lumen 5+ 100 %" in page
    assert re.search(r"What waits the first 5 due jobs as of [\d.]+ m?s ago , \+ means at least", page)
    assert '<td class="n" data-label="Due">5+</td>' in ask("GET", "/tenants").text


def test_the_numbers_of_several_databases_say_how_exact_they_are(
    large: psycopg.Connection, database: Database, serve: Serve
) -> None:
    call(large, "beat", "w")
    app = dashboards({"shop": database.dsn}, Options(authorize=lambda request: User("alice")))
    page = httpx.get(serve(wrap=lambda _: app) + "/", timeout=30).text
    assert "~12,000" in page
    assert re.search(r"~ counted <time[^>]*>3[\d.]* min ago</time>", page)
