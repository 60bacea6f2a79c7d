"""The page of the dead: what is behind the masks, and what became of those that were retried."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import httpx
import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.db import observe
from pgqueue.db.call import Call
from pgqueue.testing import Clock
from pgqueue.web.dying import behind, beside_usual, fates
from pgqueue.web.render import brief_number, fits, instant, pace
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
    assert "‹host› 2 values in 11 jobs hooks.lumen.example 8 73 % hooks.acme.example 3 27 %" in shown
    assert "‹n› 1 value in 11 jobs 10 11 100 %" in shown
    assert re.search(r"The newest All 11 \d+ [\d.]+ \w+ ago · no answer from hooks.acme.example", shown)
    # It closes where it was opened.
    assert f'href="/dead#{link[1]}"' in page


def test_after_a_bulk_retry_the_page_says_how_these_jobs_fare(conn: psycopg.Connection, ask: Ask, serve: Serve) -> None:
    die(conn)
    group = 'state:dead task:deliver class:ConnectError fingerprint:"no answer from <host> within <n> s"'
    ask("POST", "/act", action="retry", scope="all", q=group, confirm="yes", count="11")
    page = ask("GET", "/dead").text
    assert "No job is dead." in page
    # None is red before one has died.
    assert re.search(r'<li class="muted">(?:(?!</li>).)*<strong>0</strong> died again', page)
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
    # Each number leads to these jobs.
    ids = {"succeeded": [row.id for row in rows[:7]], "dead": [row.id for row in rows[7:9]], "executing": [rows[9].id]}
    links = re.findall(r'href="(/jobs\?q=retried[^"]*)"', article)
    assert len(links) == 5
    for link in links:
        state = link.rpartition("state%3A")[2]
        listed = {int(each) for each in re.findall(r'href="/jobs/(\d+)"', ask("GET", link).text)}
        if state in ids:
            assert listed == set(ids[state]), link
        elif state.startswith("waiting"):
            assert len(listed) == 1, link
        else:
            assert listed >= set().union(*ids.values()), link
            assert len(listed) == 11, link


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


def test_a_group_says_that_it_is_new_or_how_many_usually_die_in_a_day(
    conn: psycopg.Connection, ask: Ask, clock: Clock
) -> None:
    for days in (4, 3, 2):
        clock.advance(f"-{days} days")
        die(conn, 3, "charge", "CardRefused", "card {} was refused")
        clock.back_to_real()
    die(conn, 11, "charge", "CardRefused", "card {} was refused")
    die(conn, 2)
    found = dict(re.findall(r"(CardRefused|ConnectError) : (.*?) Retry all", words(ask("GET", "/dead").text)))
    # Eleven beside three a day are many; both grow.
    assert "11 within a day, usually 3 growing, 0.18 / min" in found["CardRefused"]
    assert re.search(r"new, [\d.]+ m?s old growing, 2.0 / min", found["ConnectError"])


@pytest.mark.parametrize(
    ("first", "jobs", "trend", "said"),
    [
        (40, 30, [1] * 24, [("24 within a day, usually 6", "warn")]),
        (240, 90, [0] * 24, [("0 within a day, usually 10", "")]),
        (2400, 3, [0] * 24, [("0 within a day, usually less than 1", "")]),
        (2400, 24, [1] * 24, [("24 within a day, usually none", "warn")]),
        (6, 24, [0] * 18 + [4] * 6, [("new, 6.0 h old", "warn")]),
    ],
)
def test_how_a_group_grows_is_told_by_its_hours_and_its_days(
    first: int, jobs: int, trend: list[int], said: list[tuple[str, str]]
) -> None:
    now = 1_800_000_000.0
    group = {
        "first_at": instant(now - 3600 * first), "last_at": instant(now - 1800), "jobs": jobs, "trend": trend,
    }  # fmt: skip
    assert pace(group, now) == said


def test_a_group_is_not_called_new_where_older_jobs_of_it_may_not_have_been_read(
    conn: psycopg.Connection, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    for queue in ("q", "r"):
        enqueue_many(conn, 1, queue=queue)
    now = time.time()
    group = {
        "task": "charge", "class": "CardRefused", "line": "no", "fingerprint": "no", "queues": ["q"], "jobs": 9_999,
        "first_at": instant(now - 3 * 3600), "last_at": instant(now - 3600), "last_id": 1, "trend": [0] * 24,
    }  # fmt: skip
    monkeypatch.setattr(observe, "dead_groups", lambda _: Call(b"select 1", (), lambda _: [group]))
    for address in ("/dead", "/queue?name=q"):
        assert "new, 3.0 h old" in words(ask("GET", address).text)
    group["jobs"] = 10_000
    for address in ("/dead?queue=r", "/queue?name=r"):
        page = words(ask("GET", address).text)
        assert "10,000+ within 3.0 h" in page
        assert "new, 3" not in page
    assert "New within a day – Still growing" in words(ask("GET", "/dead?queue=r").text)


def test_what_died_within_an_hour_and_a_day_stands_beside_the_usual(conn: psycopg.Connection, ask: Ask) -> None:
    # One died in each ten minutes of a week.
    conn.execute(
        "insert into pgqueue.samples"
        " (at, span, queue, waiting, due, scheduled, failed, blocked, executing, dead, ended)"
        " select now() - n * interval '10 min' - interval '5 s', span, '', 0, 0, 0, 0, 0, 0, 0, %s"
        " from generate_series(1, 1008) n, (values (10), (600)) v (span)",
        [Jsonb({"t": {"dead": 1}})],
    )
    page = words(ask("GET", "/dead").text)
    assert "Died within an hour 5 usually 6" in page
    assert "Died within a day 143 usually 144" in page


def test_what_died_more_than_an_hour_ago_did_not_die_within_an_hour(conn: psycopg.Connection, ask: Ask) -> None:
    # A hundred died 65 minutes ago, in the ten minutes that ended 57 minutes ago; and two within the hour.
    conn.execute(
        "insert into pgqueue.samples"
        " (at, span, queue, waiting, due, scheduled, failed, blocked, executing, dead, ended)"
        " select now() - ago::interval, span, '', 0, 0, 0, 0, 0, 0, 0,"
        " jsonb_build_object('t', jsonb_build_object('dead', dead))"
        " from (values ('65 min', 10, 100), ('58 min', 10, 2), ('57 min', 600, 102)) v (ago, span, dead)"
    )
    page = words(ask("GET", "/dead").text)
    assert "Died within an hour 2 in all queues" in page
    assert "Died within a day 102 in all queues" in page


@pytest.mark.parametrize(
    ("jobs", "usual", "said"),
    [
        (0, None, ("in all queues", "")),
        (1, None, ("in all queues", "bad")),
        (0, 3.2, ("usually 3", "")),
        (3, 3.2, ("usually 3", "")),
        (6, 3.2, ("usually 3", "")),
        (7, 3.2, ("usually 3", "warn")),
        (1592, 1591.0, ("usually 1,591", "")),
        (442, 3.2, ("usually 3", "bad")),
        (3, 0.0, ("usually none", "warn")),
    ],
)
def test_deaths_are_bad_where_they_are_far_more_than_usual(
    jobs: int, usual: float | None, said: tuple[str, str]
) -> None:
    found = beside_usual(jobs, usual, of_all=False)
    assert (found.words, found.tone) == said


def test_the_page_says_for_how_long_the_dead_are_kept(
    conn: psycopg.Connection, ask: Ask, clock: Clock, serve: Serve
) -> None:
    assert "Kept 0 for 90 d " in words(ask("GET", "/dead").text)
    clock.advance("-30 days")
    die(conn, 1)
    clock.back_to_real()
    call(conn, "configure_queue", "webhooks", retention_dead="10 days")
    die(conn, 2)
    # Another server, which has no answer of before.
    address = serve()
    assert "Kept 3 for 90 d; the oldest leaves in 60 d " in words(ask("GET", "/dead", at=address).text)
    assert "Kept 3 for 10 d; the oldest leaves in 60 d " in words(ask("GET", "/dead?queue=webhooks", at=address).text)
    assert "Kept 0 for 90 d " in words(ask("GET", "/dead?queue=mail", at=address).text)


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
    rows = [{**row, "n": minute, "at": f"2026-11-26T06:0{minute}:00+00:00"} for minute in (3, 2, 1)]
    rows.append({**row, "n": 0, "at": "2026-11-26T05:00:00+00:00", "looked_at": 500, "jobs": 500})
    last, before = fates(rows)
    assert (last.jobs, last.waiting, last.dead, last.succeeded, last.is_about) == (1500, 150, 60, 1290, True)
    assert (last.at, last.filter) == ("2026-11-26T06:01:00+00:00", "retried:3,2,1")
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


@pytest.mark.parametrize(
    ("fingerprint", "line", "is_one"),
    [
        ("no answer", "no answer", True),
        ("no answer", "no answer at all", False),
        ("no <n> of <id>", "no 17 of a-1\nand a second line", True),
        ("no <n> of <id>", "no 17 of ", False),
        ("no <n> of <id>", "no  of a-1", False),
        ("<n> of <n> here", "1 of 2 here", True),
        ("<n> of <n> here", "1 of 2 there and here", True),
        ("<n> of <n> here", "1 of 2 here or there", False),
        ("<n><text>", "1", False),
        ("no <n>", "no " + "1" * 300, True),
    ],
)
def test_a_line_fits_a_fingerprint(fingerprint: str, line: str, is_one: bool) -> None:
    assert fits(fingerprint, line) is is_one


def test_a_line_of_many_masks_that_does_not_fit_is_found_at_once() -> None:
    numbers, masks = ", ".join(map(str, range(40))), ", ".join(["<n>"] * 40)
    begun = time.thread_time()
    assert fits(f"missing: {masks} of", f"missing: {numbers} of")
    assert not fits(f"missing: {masks} of batch", f"missing: {numbers} of all")
    assert time.thread_time() - begun < 1
