"""The sentence on top of schedules, limits and groups: what is wrong, or that all is well."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from pgqueue.web import sentences
from tests.calls import call, enqueue_many, maintain, reserve, value
from tests.web.conftest import Serve
from tests.web.test_blocked_by import words

Ask = Callable[..., httpx.Response]


def said(ask: Ask, page: str, at: str | None = None) -> tuple[str, str]:
    """How bad it is, and the sentence with what stands behind it."""
    text = ask("GET", page, at=at).text
    [(level, part)] = re.findall(r'<section class="verdict (\w+)" aria-label="State">(.*?)</section>', text, re.DOTALL)
    return level, words(part).replace(" .", ".").replace(" ,", ",").replace(" :", ":")


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("/schedules", "There is no schedule."),
        ("/limits", "Nothing is limited: each queue runs as many jobs as its workers have slots."),
        ("/groups", "There is no group yet."),
    ],
)
def test_a_page_that_has_nothing_says_so_in_one_line(ask: Ask, page: str, sentence: str) -> None:
    level, text = said(ask, page)
    assert level == "ok"
    assert text.startswith(sentence)


def test_the_schedules_are_on_time_or_the_worst_is_named(
    conn: psycopg.Connection, clock: Clock, ask: Ask, serve: Serve
) -> None:
    clock.advance("-1 h")
    call(conn, "schedule", "rarely", "0 0 1 1 *", "report")
    call(conn, "schedule", "often", every="10 min", task="report")
    call(conn, "schedule", "never", every="1 h", task="report")
    call(conn, "pause_schedule", "never")
    maintain(conn)
    clock.back_to_real()
    level, text = said(ask, "/schedules")
    assert level == "late"
    assert re.match(r"often is \d+ min late\. Maintenance enqueues", text)
    maintain(conn)
    # Another server: one reads schedules every two seconds.
    level, text = said(ask, "/schedules", serve())
    assert level == "ok"
    assert re.fullmatch(r"Each schedule is on time: the next is often, in [\d.]+ (s|min)\. 1 paused: never\.", text)
    for row in reserve(conn, 10):
        call(conn, "fail", row.id, row.reservation, Jsonb({"class": "E"}), retry=False)
    assert said(ask, "/schedules", serve()) == (
        "late",
        "The last job of often is dead. It runs again at its next time.",
    )


def test_a_schedule_that_cannot_run_or_whose_last_job_died_is_named_although_five_hundred_are_on_time(
    conn: psycopg.Connection, ask: Ask, serve: Serve
) -> None:
    for number in range(501):
        call(conn, "schedule", f"nightly-{number:03}", "0 3 * * *", "report")
    maintain(conn)
    level, text = said(ask, "/schedules")
    assert level == "ok"
    assert text.startswith("Each of the first 500 schedules is on time: the next is nightly-000, in ")
    assert "There are more schedules" in ask("GET", "/schedules").text
    died = value(conn, "select pgqueue.run_schedule_now('nightly-500')")
    call(conn, "kill_many", job_ids=[died])
    assert said(ask, "/schedules", serve())[1].startswith("The last job of nightly-500 is dead.")
    conn.execute(
        "insert into pgqueue.schedule_runs (schedule, at, decided_at, outcome)"
        " values ('nightly-499', now(), now(), 'overlap')"
    )
    call(conn, "delete", died)
    assert said(ask, "/schedules", serve())[1].startswith("The last run of nightly-499 was left out.")
    conn.execute(
        "insert into pgqueue.schedule_runs (schedule, decided_at, outcome, rule, error)"
        " select s.name, now(), 'error', pgqueue._schedule_rule(s), 'no zone' from pgqueue.schedules s"
        " where s.name = 'nightly-500'"
    )
    level, text = said(ask, "/schedules", serve())
    assert (level, text.partition(".")[0]) == ("critical", "nightly-500 cannot run")


def test_the_next_runs_stand_on_an_axis_of_the_time_to_come(conn: psycopg.Connection, ask: Ask) -> None:
    call(conn, "schedule", "often", every="10 min", task="report")
    maintain(conn)
    page = ask("GET", "/schedules").text
    assert page.count("<circle class=") == 3
    [next_one] = re.findall(r'<circle class="next" cx="([\d.]+)%"', page)
    others = re.findall(r'<circle class="" cx="([\d.]+)%"', page)
    assert all(float(next_one) < float(each) for each in others)
    assert [name for name, _ in sentences.axis()] == ["1 min", "10 min", "1 h", "1 d", "7 d", "31 d"]
    # A year is at its end, what is due at its beginning.
    row = {"next_at": "2026-01-01T00:00:00+00:00", "later": ["2026-01-01T00:10:00+00:00", "2027-01-01T00:00:00+00:00"]}
    now = 1_767_225_660.0
    first, second, third = sentences.places(row, now)
    assert (first, third) == (2.0, 96.0)
    assert first < second < third


def test_a_limit_for_which_jobs_wait_is_named_with_what_is_taken(conn: psycopg.Connection, ask: Ask) -> None:
    call(conn, "set_limit", "queue", "mail", max_executing=2)
    call(conn, "set_limit", "queue", "sms", max_executing=8)
    enqueue_many(conn, 1, queue="sms")
    reserve(conn, 1)
    maintain(conn)
    assert said(ask, "/limits") == ("ok", "No job waits for a limit. The fullest is sms: 1 of 8 execute.")
    assert "sms queue has capacity 1 of 8 execute" in words(ask("GET", "/limits").text)


def test_jobs_that_wait_for_a_limit_and_an_open_breaker_are_what_is_wrong(
    conn: psycopg.Connection, clock: Clock, ask: Ask
) -> None:
    call(conn, "set_limit", "limit_key", "tenant:a", max_executing=2)
    enqueue_many(conn, 5, queue="mail", limit_key="tenant:a")
    reserve(conn, 5)
    maintain(conn)
    call(conn, "pause_queue", "sms")
    level, text = said(ask, "/limits")
    assert (level, text) == ("late", "tenant:a is at the limit: 3 jobs wait for it. 2 of 2 execute. Paused: queue sms.")
    shown = words(ask("GET", "/limits").text)
    assert "tenant:a limit key at the limit 2 of 2 execute" in shown


def test_an_open_breaker_is_named_although_five_hundred_are_closed(conn: psycopg.Connection, ask: Ask) -> None:
    conn.execute(
        "insert into pgqueue.breakers select 'task', 't' || n, 0.5, 20, '30 s' from generate_series(100, 600) n;"
        "insert into pgqueue.pauses (kind, target, source, until, at, by)"
        " values ('task', 't600', 'breaker', 'infinity', now(), '')"
    )
    assert said(ask, "/limits") == (
        "late", "The breaker of t600 is open. Its jobs wait for 30 s after too many attempts failed."
    )  # fmt: skip


def test_a_group_with_dead_members_is_named_and_else_what_is_under_way(conn: psycopg.Connection, ask: Ask) -> None:
    group = call(conn, "open_group", "import")
    enqueue_many(conn, 4, group_id=group)
    held = reserve(conn, 2)
    call(conn, "complete", held[0].id, held[0].reservation)
    assert said(ask, "/groups") == ("ok", "1 group is under way: import. 1 of 4 members have ended.")
    call(conn, "fail", held[1].id, held[1].reservation, Jsonb({"class": "E"}), retry=False)
    level, text = said(ask, "/groups")
    assert (level, text) == (
        "late", "import has 1 dead member, and has not ended. 2 of 4 members have ended."
    )  # fmt: skip
    assert "2 waiting" in words(ask("GET", "/groups").text)


def test_a_page_of_groups_says_nothing_of_the_groups_on_other_pages(conn: psycopg.Connection, ask: Ask) -> None:
    oldest = call(conn, "open_group", "import")
    enqueue_many(conn, 1, group_id=oldest)
    for _ in range(50):
        group = call(conn, "open_group", "ended")
        enqueue_many(conn, 1, group_id=group)
        call(conn, "cancel", group)
    maintain(conn)
    assert said(ask, "/groups") == ("ok", "No group on this page is under way.")
    assert said(ask, f"/groups?before={oldest + 1}") == (
        "ok", "1 group on this page is under way: import. 0 of 1 members have ended."
    )  # fmt: skip
    assert said(ask, "/groups?before=1") == ("ok", "No group on this page is under way.")


def test_a_forgotten_group_is_not_under_way(conn: psycopg.Connection, ask: Ask) -> None:
    group = call(conn, "open_group", "import")
    enqueue_many(conn, 2, group_id=group)
    call(conn, "close_group", group)
    for row in reserve(conn, 2):
        call(conn, "fail", row.id, row.reservation, Jsonb({"class": "E"}), retry=False)
    maintain(conn)
    assert call(conn, "delete", group)
    assert said(ask, "/groups") == ("ok", "No group is under way.")


def test_the_page_of_a_schedule_has_the_axis_and_its_actions_in_its_heading(conn: psycopg.Connection, ask: Ask) -> None:
    call(conn, "schedule", "often", every="10 min", task="report")
    maintain(conn)
    page = ask("GET", "/schedule?name=often").text
    heading = page.partition('<div class="heading">')[2].partition("\n</div>")[0]
    assert "Schedule often Pause… Run now… Remove…" in words(heading)
    assert page.count('<circle class="next"') == 1
    assert page.count("<circle class=") == 3


def test_the_numbers_of_a_group_that_was_not_counted_to_its_end_say_so() -> None:
    row = {"id": 7, "name": "import", "state": "blocked", "finished_at": None, "dead": 1000, "succeeded": 0}
    found = sentences.of_groups([{**row, "cancelled": 0, "total": 1000, "counted_to": 1000}], are_all=True)
    assert (found.end, found.because) == (
        " has 1,000+ dead members, and has not ended.", "1,000+ of 1,000+ members have ended."
    )  # fmt: skip
