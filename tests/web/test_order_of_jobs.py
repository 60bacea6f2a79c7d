"""The page of jobs in each order: newest first, due first, oldest first, page after page."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.calls import call, enqueue, enqueue_many, reserve, value

Ask = Callable[..., httpx.Response]


@pytest.fixture
def jobs(conn: psycopg.Connection) -> psycopg.Connection:
    for minutes in (40, 10, 30, 20):
        enqueue_many(conn, 30, queue=f"q{minutes}", delay=f"{minutes} min")
    enqueue_many(conn, 20, queue="now", priority=7)
    for row in reserve(conn, 6, queues=["now"]):
        if row.id % 2:
            call(conn, "complete", row.id, row.reservation)
        else:
            call(conn, "fail", row.id, row.reservation, Jsonb({}), retry=False)
    reserve(conn, 2, queues=["now"])
    return conn


@pytest.mark.parametrize(
    ("order", "where", "by"),
    [
        ("newest", "true", "id desc"),
        ("oldest", "true", "id"),
        ("due", "state in ('waiting', 'failed')", "due_at, id"),
    ],
)
def test_the_pages_of_an_order_list_every_job_once(
    jobs: psycopg.Connection, ask: Ask, order: str, where: str, by: str
) -> None:
    statement = f"select id from pgqueue.all_jobs where {where} order by {by}"
    expected = [row[0] for row in jobs.execute(statement.encode())]
    seen: list[int] = []
    path: str | None = f"/jobs?order={order}"
    pages = 0
    while path:
        text = ask("GET", path).text
        seen += [int(each) for each in re.findall(r'<tr id="job-(\d+)"', text)]
        assert f'<option value="{order}" selected>' in text
        link = re.search(r'rel="next" href="([^"]+)"', text)
        path = link[1].replace("&amp;", "&") if link else None
        pages += 1
    assert seen == expected
    assert pages == -(-len(expected) // 50)


def test_all_that_match_are_those_that_the_order_shows(conn: psycopg.Connection, ask: Ask) -> None:
    enqueue_many(conn, 3, queue="mail")
    held = reserve(conn, 1)
    call(conn, "fail", held[0].id, held[0].reservation, Jsonb({}), retry=False)
    text = ask("GET", "/jobs?q=queue:mail&order=due").text
    assert '<input type="hidden" name="q" value="queue:mail state:waiting,failed">' in text
    preview = ask("POST", "/act", action="delete", scope="all", q="queue:mail state:waiting,failed")
    assert "Delete: 2 jobs?" in preview.text
    # Of dead jobs none is due: there is nothing to act on.
    text = ask("GET", "/jobs?q=state:dead,waiting&order=due").text
    assert "all that match" not in text
    assert "all that match" in ask("GET", "/jobs?q=state:dead,waiting").text
    assert value(conn, "select count(*) from pgqueue.all_jobs") == 3


def test_a_job_that_starts_meanwhile_keeps_no_other_from_the_next_page(conn: psycopg.Connection, ask: Ask) -> None:
    ids = [enqueue(conn, delay=f"{minute} min") for minute in range(1, 61)]
    text = ask("GET", "/jobs?order=due").text
    [link] = re.findall(r'rel="next" href="([^"]+)"', text)
    # The last one of the page, where the next one goes on.
    call(conn, "delete", ids[49])
    text = ask("GET", link.replace("&amp;", "&")).text
    assert [int(each) for each in re.findall(r'<tr id="job-(\d+)"', text)] == ids[50:]


def test_a_filter_that_no_job_fits_is_left_with_one_click(ask: Ask) -> None:
    assert 'No job fits. <a href="/jobs">Show all</a>' in ask("GET", "/jobs?q=state:dead").text
    assert "Show all" not in ask("GET", "/jobs").text
