"""What the jobs are that match a filter: their most frequent values, each of which narrows it."""

from __future__ import annotations

import html
import re
from urllib.parse import urlencode

import psycopg
import pytest

from pgqueue._filters import narrowed
from pgqueue.db import observe
from pgqueue.db.call import Call
from pgqueue.web import database as pool
from pgqueue.web import pages
from tests.calls import enqueue, enqueue_many, reserve, value
from tests.web.test_blocked_by import words
from tests.web.test_guard import Ask


@pytest.fixture
def jobs(conn: psycopg.Connection) -> psycopg.Connection:
    enqueue_many(conn, 6, "import", queue="q", limit_key="tenant:lumen", tags=["vip"])
    enqueue_many(conn, 2, "import", queue="q", limit_key="tenant:acme", key="order:17")
    enqueue_many(conn, 2, "send", queue="mail")
    reserve(conn, 3, "w1", queues=["q"])
    return conn


def panel(page: str) -> str:
    return page.partition('<section class="panel" id="facets">')[2].partition('<div id="live"')[0]


def links(page: str) -> dict[str, str]:
    """The addresses of the values in the panel, by their text."""
    found = re.findall(r'<a href="([^"]*)" title="([^"]*)"', panel(page))
    return {html.unescape(text): html.unescape(address) for address, text in found}


def test_a_link_shows_what_jobs_are_and_each_value_narrows_the_filter(jobs: psycopg.Connection, ask: Ask) -> None:
    page = ask("GET", "/jobs?q=task:i*").text
    assert panel(page) == ""
    [link] = re.findall(r'href="([^"]*)">What they are</a>', page)
    page = ask("GET", html.unescape(link)).text
    shown = words(panel(page))
    assert "What they are all 8 that match" in shown
    for text in ("import 8 100 %", "tenant:lumen 6 75 %", "order:17 2 25 %", "vip 6 75 %", "w1 3 38 %"):
        assert text in shown
    assert "send" not in shown
    # A value of the word that the filter has stands in its place.
    assert links(page)["import"] == "/jobs?q=task%3Aimport"
    narrow = links(page)["tenant:acme"]
    assert narrow == "/jobs?q=task%3Ai%2A+tenant%3Atenant%3Aacme"
    assert "2 jobs, newest first" in words(ask("GET", narrow).text)


def test_the_live_refresh_does_not_look_again(jobs: psycopg.Connection, ask: Ask) -> None:
    page = ask("GET", "/jobs?q=task:import&facets=1").text
    [live] = re.findall(r'<div id="live" hx-get="([^"]*)"', page)
    assert "facets" not in live


def test_just_the_jobs_of_a_value_are_acted_on(jobs: psycopg.Connection, ask: Ask) -> None:
    page = ask("GET", "/jobs?q=queue:q&order=due&facets=1").text
    [line] = {html.unescape(each) for each in re.findall(r'name="q" value="([^"]*tenant:acme[^"]*)"', panel(page))}
    # The jobs that the order has, and no others.
    assert line == "queue:q state:waiting,failed tenant:tenant:acme"
    form = {"action": "cancel", "scope": "all", "q": line}
    asked = ask("POST", "/act", **form).text
    [count] = re.findall(r'name="count" value="(\d+)"', asked)
    ask("POST", "/act", **form, confirm="yes", count=count)
    left = "select count(*) from pgqueue.jobs where limit_key = %s and state in ('waiting', 'failed')"
    assert value(jobs, left, "tenant:acme") == 0
    assert value(jobs, left, "tenant:lumen") > 0
    assert "Pause this tenant, in all queues" in page


@pytest.mark.parametrize("line", ["", "state:executing,waiting"])
def test_beside_the_due_jobs_no_others_are_acted_on(jobs: psycopg.Connection, ask: Ask, line: str) -> None:
    page = panel(ask("GET", f"/jobs?q={line}&order=due&facets=1").text)
    lines = {html.unescape(each) for each in re.findall(r'name="q" value="([^"]*)"', page)}
    states = "state:waiting,failed" if not line else "state:waiting"
    # Three are executing, on a worker.
    assert lines == {
        f"{states} {word}"
        for word in (
            "task:import", "task:send", "queue:q", "queue:mail", "tenant:tenant:lumen", "tenant:tenant:acme",
            "key:order:17", "tag:vip",
        )
    }  # fmt: skip


def test_what_the_filter_has_is_not_offered_again_and_narrowing_ends(jobs: psycopg.Connection, ask: Ask) -> None:
    address, steps = "/jobs", 0
    while found := links(ask("GET", f"{address}{'&' if '?' in address else '?'}facets=1").text):
        address, steps = next(iter(found.values())), steps + 1
        assert steps < 6
    assert "No value narrows this filter." in ask("GET", f"{address}&facets=1").text
    # The first value of each step: of those jobs that wait or run.
    assert address == "/jobs?q=task%3Aimport+queue%3Aq+tenant%3Atenant%3Alumen+tag%3Avip+worker%3Aw1"
    assert "3 jobs, newest first" in words(ask("GET", address).text)


def test_beside_a_tag_of_the_filter_no_other_tag_is_offered_for_its_jobs_would_be_others(
    conn: psycopg.Connection, ask: Ask
) -> None:
    enqueue(conn, tags=["vip", "eu"])
    enqueue_many(conn, 5, tags=["eu"])
    assert "eu" in links(ask("GET", "/jobs?q=task:t&facets=1").text)
    assert links(ask("GET", "/jobs?q=tag:vip&facets=1").text).keys() == {"t", "default"}


def test_values_that_need_quotes_narrow_to_their_jobs(conn: psycopg.Connection, ask: Ask) -> None:
    odd = ["a b", 'say "no", twice', "star*", "back\\slash", "a:b,c", "<i>&amp;</i>", "line\nfeed", "ünï %"]
    for text in odd:
        enqueue(conn, text, queue=text, key=text, tags=[text])
    # One that ends in a star is only of an earlier release.
    conn.execute("update pgqueue.jobs set limit_key = task")
    enqueue(conn, "stars", queue="stars", key="stars", limit_key="stars", tags=["stars"])
    wanted = {"task", "queue", "tenant", "key", "tag"}
    for text in odd:
        for word in wanted:
            narrow = narrowed("", word, text)
            assert narrow is not None
            page = ask("GET", f"/jobs?{urlencode({'q': narrow})}").text
            assert "1 job, newest first" in words(page)
            assert narrowed(narrow, word, text) is None
    shown = panel(ask("GET", f"/jobs?{urlencode({'q': narrowed('', 'queue', '<i>&amp;</i>'), 'facets': 1})}").text)
    assert "&lt;i&gt;&amp;amp;&lt;/i&gt;" in shown
    assert "<i>" not in shown


def test_a_live_refresh_does_not_look_again_where_looking_took_too_long(
    jobs: psycopg.Connection, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_READS", pool._READS.replace(b"'5s'", b"'500ms'"))
    monkeypatch.setattr(observe, "facets", lambda _: Call(b"select pg_sleep(60)", (), list))
    page = ask("GET", "/jobs?q=task:import&facets=1").text
    assert "what they are" in page
    assert panel(page) == ""
    [live] = re.findall(r'<div id="live" hx-get="([^"]*)"', page)
    assert "facets" not in live


def test_of_many_jobs_the_first_ones_are_looked_at(
    jobs: psycopg.Connection, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "SAMPLE", 4)
    assert "What they are the first 4 that match" in words(panel(ask("GET", "/jobs?facets=1").text))


@pytest.mark.parametrize(
    ("line", "narrow"),
    [
        ("", "task:send"),
        ("task:i*,s* state:dead", "state:dead task:send"),
        ('line:"no task:x" task:a task:b', 'line:"no task:x" task:send'),
        ("17", "17 task:send"),
    ],
)
def test_a_value_replaces_what_a_filter_says_of_its_word(line: str, narrow: str) -> None:
    assert narrowed(line, "task", "send") == narrow
