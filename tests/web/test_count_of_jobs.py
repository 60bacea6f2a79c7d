"""How many jobs fit a filter, counted when that is asked for, within bounds."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import psycopg
import pytest

from pgqueue.db.observe import Page
from pgqueue.web import counting
from pgqueue.web.counting import Counted
from tests.calls import enqueue_many, maintain, reserve
from tests.web.test_guard import Ask


def said(page: str) -> str:
    found = re.search(r'<p role="status"><strong>(.*?)</p>', page)
    return "" if found is None else re.sub(r"<[^>]+>", "", found[1])


def link(page: str) -> str:
    found = re.search(r'href="([^"]*)">Count</a>', page)
    assert found is not None
    return found[1].replace("&amp;", "&")


@pytest.fixture
def jobs(conn: psycopg.Connection) -> psycopg.Connection:
    enqueue_many(conn, 130, "a", queue="mail")
    enqueue_many(conn, 20, "b", queue="mail")
    reserve(conn, 5, queues=["mail"])
    maintain(conn)
    return conn


@pytest.mark.parametrize(
    ("query", "jobs_that_match"),
    [("order=newest", "150"), ("q=task:a", "130"), ("q=task:a&order=oldest", "130"), ("q=task:a&order=due", "125")],
)
def test_jobs_are_counted_by_a_link(jobs: psycopg.Connection, ask: Ask, query: str, jobs_that_match: str) -> None:
    page = ask("GET", f"/jobs?{query}").text
    assert said(page) == ""
    assert said(ask("GET", link(page)).text).startswith(f"{jobs_that_match} jobs")


def test_counting_stops_at_its_bound_and_says_so(
    jobs: psycopg.Connection, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "MOST", 100)
    monkeypatch.setattr(counting, "AT_ONCE", 25)
    assert re.fullmatch("At least 100 jobs matched .*; counting stopped there.", said(ask("GET", "/jobs?count=1").text))
    assert said(ask("GET", "/jobs?q=task:b&count=1").text).startswith("20 jobs")


def test_counting_stops_after_its_time_and_says_so(
    jobs: psycopg.Connection, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "WITHIN", 0.0)
    monkeypatch.setattr(counting, "AT_ONCE", 25)
    assert re.fullmatch("At least 25 jobs .*; counting stopped after 0 s.", said(ask("GET", "/jobs?count=1").text))


def test_a_statement_that_is_ended_leaves_what_was_counted_before() -> None:
    class Slow:
        answers: list[Page]

        async def read(self, _: Any) -> list[Page]:
            if not self.answers:
                raise psycopg.errors.QueryCanceled
            return [self.answers.pop()]

    slow: Any = Slow()
    slow.answers = [Page([3, 2], "2", False)]
    assert asyncio.run(counting.count(slow, {}, "newest")) == Counted(2, "by its timeout")


def test_the_live_refresh_does_not_count_again(jobs: psycopg.Connection, ask: Ask) -> None:
    page = ask("GET", "/jobs?q=task:a&order=newest&count=1").text
    refreshed = re.search(r'id="live" hx-get="([^"]+)"', page)
    assert refreshed is not None
    assert refreshed[1] == "/jobs?q=task%3Aa&amp;order=newest"
    # What was counted stays beside the part that is refreshed.
    assert page.index("130 jobs") < page.index('id="live"')


def test_a_page_that_shows_all_has_no_link_to_count(jobs: psycopg.Connection, ask: Ask) -> None:
    assert ">Count</a>" not in ask("GET", "/jobs?q=task:b").text
