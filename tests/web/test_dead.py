"""The page of the dead: what is behind the masks, and what became of those that were retried."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import psycopg
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from pgqueue.web.dying import behind, fates
from pgqueue.web.render import brief_number
from tests.calls import call, enqueue_many, reserve
from tests.facts import wait_until
from tests.web.conftest import Serve
from tests.web.test_blocked_by import words

Ask = Callable[..., httpx.Response]

HOSTS = ["hooks.lumen.example"] * 8 + ["hooks.acme.example"] * 3


def die(
    conn: psycopg.Connection,
    jobs: int = 11,
    task: str = "deliver",
    kind: str = "ConnectError",
    line: str = "no answer from {} within 10 s",
) -> None:
    enqueue_many(conn, jobs, task, queue="webhooks")
    for host, row in zip(HOSTS, reserve(conn, jobs), strict=False):
        call(conn, "fail", row.id, row.reservation, Jsonb({"class": kind, "message": line.format(host)}), retry=False)


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


def test_a_text_and_a_time_choose_the_groups_that_are_shown(conn: psycopg.Connection, ask: Ask, clock: Clock) -> None:
    for ago, jobs in (("30 hours", 3), ("2 hours", 2)):
        clock.advance(f"-{ago}")
        die(conn, jobs, "charge", "CardRefused", "card {} was refused")
        clock.back_to_real()
    die(conn)

    def shown(address: str) -> tuple[str, list[str]]:
        found = words(ask("GET", address).text)
        heading, _, groups = found.partition("By what they died of")
        [count] = re.findall(r"\d+ in \d+ groups?(?:, of \d+)?", heading)
        return count, list(dict.fromkeys(re.findall(r"CardRefused|ConnectError", groups)))

    assert shown("/dead") == ("16 in 2 groups", ["ConnectError", "CardRefused"])
    assert shown("/dead?find=CARD") == ("5 in 1 group, of 2", ["CardRefused"])
    assert shown("/dead?find=deliver&since=1+h") == ("11 in 1 group, of 2", ["ConnectError"])
    assert shown("/dead?since=1+h")[1] == ["ConnectError"]
    assert shown("/dead?since=1+d")[1] == ["ConnectError", "CardRefused"]
    # Its buttons act on all of them.
    assert "5 jobs 2 within 1 d" in words(ask("GET", "/dead?since=1+d").text)
    assert "None of 2 groups fits. Show all" in words(ask("GET", "/dead?find=nonsense").text)
    # What was chosen stays where a group is opened, and is a part of each choice.
    page = ask("GET", "/dead?find=deliver&since=1+h&queue=webhooks").text
    assert re.search(r'class="unfold" href="/dead\?open=\w+&amp;queue=webhooks&amp;find=deliver&amp;since=1\+h#', page)
    assert 'href="/dead?queue=webhooks&amp;find=deliver">ever</a>' in page
    assert 'aria-current="true">1 h</a>' in page
    assert 'name="find" value="deliver"' in page


def test_the_navigation_says_how_many_are_dead(conn: psycopg.Connection, ask: Ask, serve: Serve) -> None:
    assert 'class="badge"' not in ask("GET", "/jobs").text
    die(conn)
    address, shown = serve(), '<span id="badge"><span class="badge" title="11 dead jobs are kept">11</span></span>'
    # A page does not wait long for it, and the next one has it.
    wait_until(lambda: shown in ask("GET", "/jobs", at=address).text)


def test_numbers_of_a_badge_are_short_and_never_more_than_there_are() -> None:
    found = [brief_number(each) for each in (7, 999, 1683, 9999, 17_400, 999_999, 1_250_000)]
    assert found == ["7", "999", "1.6k", "9.9k", "17k", "999k", "1.2M"]


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
