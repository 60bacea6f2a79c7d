"""Every number shows whether it is of now: ~ and the age of a count of before, which a click or a command replaces."""

from __future__ import annotations

import re

import psycopg
import pytest

from tests.calls import call, enqueue_many, maintain
from tests.cli.conftest import Run
from tests.web.conftest import run
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
        for label, found in re.findall(r'data-label="(Due|Failed|Blocked|Dead)">(.*?)</td>', text)
    }
    assert cells == {"Due": "7", "Failed": "0", "Blocked": "~5", "Dead": "~3"}
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
