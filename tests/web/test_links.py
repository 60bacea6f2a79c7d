"""Every link of every page leads to a page, beside an empty queue and a filled one; so does each row of a long list."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable

import httpx
import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.calls import call, enqueue, enqueue_many, reserve
from tests.web.conftest import Serve

Ask = Callable[..., httpx.Response]


def dead_links(address: str) -> list[str]:
    """Follow all links, from the first page on; return those that lead nowhere, with the page that has them."""
    found, seen, todo = [], {"/"}, [("", "/")]
    kinds: Counter[str] = Counter()
    with httpx.Client(base_url=address, timeout=30, verify=False) as client:
        while todo:
            page, link = todo.pop()
            answer = client.get(link)
            if answer.status_code >= 400:
                found.append(f"{page} links to {link}: {answer.status_code}")
            for each in re.findall(r'(?:href|hx-get|data-series)="(/[^"#]*)"', answer.text):
                to = html.unescape(each)
                # Pages of pages: a second of each kind shows what the others would.
                if to not in seen and kinds[kind_of(to)] < 2:
                    kinds[kind_of(to)] += 1
                    seen.add(to)
                    todo.append((link, to))
    assert len(seen) > 20
    return found


def kind_of(link: str) -> str:
    """What stands for all links of a kind: numbers do not matter, nor the filter whose jobs are sorted by their values.

    Each value is a narrower filter, whose page offers narrower ones: there are as many as there are sets of values.
    """
    return re.sub(r"\d+", "N", re.sub(r"\bq=[^&]*", "q=", link) if "facets=" in link else link)


def test_every_link_leads_to_a_page_beside_an_empty_queue(serve: Serve) -> None:
    assert dead_links(serve()) == []


def test_every_link_leads_to_a_page(filled: psycopg.Connection, serve: Serve) -> None:
    # Of a task that no worker has declared, in a queue and with a key that need quotes.
    enqueue(filled, "no one's *", queue='a "b", c*', key="k *", tags=["x y"])
    assert dead_links(serve()) == []


@pytest.mark.parametrize("can", [{"read"}, {"read", "args", "act"}])
def test_every_link_that_a_user_sees_leads_to_a_page(filled: psycopg.Connection, serve: Serve, can: set[str]) -> None:
    assert dead_links(serve(can=can)) == []


def test_a_task_and_a_worker_beyond_the_list_have_their_pages(conn: psycopg.Connection, ask: Ask) -> None:
    for number in range(502):
        conn.execute("insert into pgqueue.tasks (name) values (%s)", [f"task-{number:03}"])
        call(conn, "hello", f"worker-{number:03}", ["q"], Jsonb({}))
    for page, name in (("task", "task-501"), ("worker", "worker-501")):
        assert "There are more" in ask("GET", f"/{page}s").text
        answer = ask("GET", f"/{page}?name={name}")
        assert answer.status_code == 200
        assert name in answer.text


def test_a_list_says_that_it_has_more_than_it_shows(conn: psycopg.Connection, ask: Ask) -> None:
    conn.execute(
        "insert into pgqueue.breakers (kind, target, failures, of, pause)"
        " select 'task', 'task-' || n, 0.5, 20, '30 s' from generate_series(1, 501) n"
    )
    enqueue_many(conn, 201)
    reserve(conn, 201, "w")
    assert "There are more breakers" in ask("GET", "/limits").text
    text = ask("GET", "/worker?name=w").text
    assert "These are the oldest 200." in text
    assert 'state%3Aexecuting">All 201</a>' in text


def test_a_task_that_no_worker_has_declared_has_a_page_that_says_so(conn: psycopg.Connection, ask: Ask) -> None:
    enqueue(conn, "unknown")
    answer = ask("GET", "/task?name=unknown")
    assert answer.status_code == 200
    assert "No worker has declared this task" in answer.text
    assert ask("GET", "/task?name=nobody").status_code == 404


def test_what_nests_too_deep_or_has_too_many_fields_is_refused_with_words(ask: Ask) -> None:
    for deep in ("args." + ".".join("a" * 600) + ":1", "args.a:" + "[" * 600 + "]" * 600):
        answer = ask("GET", f"/jobs?q={deep}")
        assert answer.status_code == 400
        assert "nests deeper" in answer.text
    answer = ask("POST", "/act", action="cancel", id=[str(n) for n in range(2001)])
    assert answer.status_code == 413
    assert "more than 2000 fields" in answer.text
