"""The page of the dead: what is behind the masks, and what became of those that were retried."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import psycopg
from psycopg.types.json import Jsonb

from pgqueue.web.dying import behind, fates
from tests.calls import call, enqueue_many, reserve
from tests.web.conftest import Serve
from tests.web.test_blocked_by import words

Ask = Callable[..., httpx.Response]

HOSTS = ["hooks.lumen.example"] * 8 + ["hooks.acme.example"] * 3


def die(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 11, "deliver", queue="webhooks")
    for host, row in zip(HOSTS, reserve(conn, 11), strict=True):
        error = {"class": "ConnectError", "message": f"no answer from {host} within 10 s"}
        call(conn, "fail", row.id, row.reservation, Jsonb(error), retry=False)


def test_a_fold_shows_what_is_behind_each_mask(conn: psycopg.Connection, ask: Ask) -> None:
    die(conn)
    page = ask("GET", "/dead").text
    assert "hooks.lumen.example" not in page
    [link] = re.findall(r'<a class="unfold" href="([^"#]*)#(group-\w+)"', page)
    page = ask("GET", link[0]).text
    assert f'id="{link[1]}"' in page
    shown = words(page)
    assert "‹host› 2 different in 11 hooks.lumen.example 8 73 % hooks.acme.example 3 27 %" in shown
    assert "‹n› 1 different in 11 10 11 100 %" in shown
    assert re.search(r"The newest All 11 \d+ [\d.]+ \w+ ago · no answer from hooks.acme.example", shown)
    # It closes where it was opened.
    assert f'href="/dead#{link[1]}"' in page


def test_after_a_bulk_retry_the_page_says_how_these_jobs_fare(conn: psycopg.Connection, ask: Ask, serve: Serve) -> None:
    die(conn)
    group = 'state:dead task:deliver class:ConnectError fingerprint:"no answer from <host> within <n> s"'
    ask("POST", "/act", action="retry", scope="all", q=group, confirm="yes", count="11")
    page = ask("GET", "/dead").text
    assert "No job is dead." in page
    assert re.search(r"Retried, and no longer dead .*11 were retried by alice", words(page))
    rows = reserve(conn, 10)
    for row in rows[:7]:
        call(conn, "complete", row.id, row.reservation)
    for row in rows[7:9]:
        error = {"class": "ConnectError", "message": "no answer from hooks.acme.example within 10 s"}
        call(conn, "fail", row.id, row.reservation, Jsonb(error), retry=False)
    page = ask("GET", "/dead", at=serve()).text
    # Within the group, which has dead jobs again.
    [article] = re.findall(r'<article class="group".*?</article>', page, re.DOTALL)
    assert "7 succeeded 1 execute 1 wait 2 died again" in words(article)
    assert 'aria-label="7 succeeded, 1 execute, 1 wait, 2 died again"' in article
    assert "Retried within a day 11 2 died again" in words(page)


def test_calls_that_follow_each_other_are_one_retry() -> None:
    row = {
        "actor": "mara", "task": "t", "class": "E", "fingerprint": "no <n>", "jobs": 500, "looked_at": 50, "waiting": 5,
        "executing": 0, "dead": 20, "cancelled": 0, "is_cut": False,
    }  # fmt: skip
    rows = [{**row, "at": f"2026-11-26T06:0{minute}:00+00:00"} for minute in (3, 2, 1)]
    rows.append({**row, "at": "2026-11-26T05:00:00+00:00", "looked_at": 500, "jobs": 500})
    last, before = fates(rows)
    assert (last.jobs, last.waiting, last.dead, last.succeeded, last.is_about) == (1500, 150, 60, 1290, True)
    assert last.at == "2026-11-26T06:01:00+00:00"
    assert (before.jobs, before.waiting, before.is_about) == (500, 5, False)
    assert fates([{**rows[0], "jobs": 1}]) == []


def test_values_of_addresses_are_counted_by_host_and_those_of_texts_without_quotes() -> None:
    lines = [
        ["GET https://ada@a.example/1 said 'no'", 3, 7, "2026-11-26T06:00:00+00:00"],
        ["GET https://a.example/2 said 'yes'", 1, 6, "2026-11-26T06:00:00+00:00"],
        ["another line", 1, 5, "2026-11-26T06:00:00+00:00"],
    ]
    found = behind("GET <url> said <text>", lines)
    assert [(mask.name, mask.different) for mask in found.masks] == [("url", 1), ("text", 2)]
    assert found.masks[0].values == [("a.example", 4, 100)]
    assert found.masks[1].values == [("no", 3, 75), ("yes", 1, 25)]
    assert [job for job, *_ in found.newest] == [7, 6, 5]
