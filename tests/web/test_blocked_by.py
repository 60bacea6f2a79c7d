"""What blocked jobs wait for, on the pages of queues."""

from __future__ import annotations

import re

import psycopg

from tests.calls import call, enqueue, enqueue_many, maintain
from tests.facts import wait_until
from tests.sql.test_samples import block_jobs
from tests.web.test_guard import Ask

REASONS = "4 by key, 2 by limit, 3 by parents"


def sample(conn: psycopg.Connection) -> None:
    """Take a sample while a worker lives: the pages read it, and do not count."""
    call(conn, "hello", "w")
    call(conn, "beat", "w")
    maintain(conn)


def words(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def test_the_pages_of_queues_show_what_blocked_jobs_wait_for(conn: psycopg.Connection, ask: Ask) -> None:
    block_jobs(conn)
    maintain(conn)
    assert words(ask("GET", "/queues").text).count(REASONS) == 1
    assert f"Blocked 9 {REASONS}" in words(ask("GET", "/queue?name=q").text)
    assert " by key" not in words(ask("GET", "/queue?name=parents").text)


def test_a_reason_of_all_of_them_is_said_without_their_number_again(conn: psycopg.Connection, ask: Ask) -> None:
    parent = enqueue(conn, queue="parents", delay="1 h")
    enqueue_many(conn, 2, queue="q", depends_on=[parent])
    maintain(conn)
    assert "Blocked 2 by parents Dead" in words(ask("GET", "/queue?name=q").text)
    assert "2 blocked ( by parents )" in words(ask("GET", "/").text)


def test_the_reasons_are_marked_as_the_number_of_blocked_jobs_is(conn: psycopg.Connection, ask: Ask) -> None:
    block_jobs(conn)
    sample(conn)
    conn.execute("update pgqueue.samples set counted_to = 9")
    page = words(ask("GET", "/queue?name=q").text)
    assert "Blocked 9+ 4+ by key, 2+ by limit, 3+ by parents" in page
    assert "4+ behind a job of their key" in page
    assert "2+ at a limit" in page
    conn.execute("update pgqueue.samples set counted_to = null, counted_at = at - interval '3 min', is_large = true")
    # The pages keep what they have read of the samples for a second.
    wait_until(lambda: "~4 behind a job of their key" in words(ask("GET", "/queue?name=q").text))
    assert "~3 wait for jobs that they depend on" in words(ask("GET", "/queue?name=q").text)


def test_a_sample_of_before_shows_no_reasons(conn: psycopg.Connection, ask: Ask) -> None:
    block_jobs(conn)
    sample(conn)
    conn.execute("update pgqueue.samples set blocked_by_limit = null, blocked_by_parents = null")
    page = words(ask("GET", "/queue?name=q").text)
    assert "Blocked 9" in page
    assert " by key" not in page
