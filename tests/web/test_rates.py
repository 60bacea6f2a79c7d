"""What started and ended per second: on the overview, in plots, and of each task."""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from pgqueue.web.render import rate
from tests.calls import call, maintain
from tests.web.test_guard import Ask


def report(conn: psycopg.Connection, **counts: Any) -> None:
    call(conn, "hello", "w")
    call(conn, "beat", "w", Jsonb({"jobs": [{"queue": "mail", "task": "t", **counts}]}))
    maintain(conn)


def card(page: str, name: str) -> str:
    found = re.search(rf"<dt>{re.escape(name)}</dt><dd[^>]*>(.*?)</dd>", page)
    assert found is not None, name
    return re.sub(r"<[^>]+>", "", found[1])


def test_the_overview_shows_what_started_and_ended_per_second(conn: psycopg.Connection, ask: Ask) -> None:
    report(conn, started=80, succeeded=60, failed=10, dead=10)
    page = ask("GET", "/").text
    assert [card(page, name) for name in ("Started", "Succeeded")] == ["8.0 / s", "6.0 / s"]
    assert "failed 2.0 / s" in page
    assert '[["started",' in page
    found = ask("GET", "/series?queue=mail").json()
    # On a busy machine, maintenance may have taken another sample since.
    assert [found[name][0] for name in ("started", "succeeded", "failed", "dead")] == [8, 6, 1, 1]


def test_workers_that_do_not_count_starts_are_not_shown_as_ones_that_start_nothing(
    conn: psycopg.Connection, ask: Ask
) -> None:
    report(conn, succeeded=60)
    page = ask("GET", "/").text
    assert (card(page, "Started"), card(page, "Succeeded")) == ("– / s", "6.0 / s")
    assert ask("GET", "/series?queue=mail").json()["started"][0] is None


def test_nothing_started_where_nothing_was_reported(conn: psycopg.Connection, ask: Ask) -> None:
    maintain(conn)
    assert card(ask("GET", "/").text, "Started") == "0 / s"
    assert ask("GET", "/series").json()["started"][0] == 0


def test_a_task_has_a_rate_of_the_last_ten_minutes(conn: psycopg.Connection, ask: Ask, clock: Clock) -> None:
    # The pages go by the time of the server.
    clock.advance("-30 min")
    report(conn, succeeded=9000)
    clock.back_to_real()
    report(conn, started=7000, succeeded=2500, failed=300, dead=150, cancelled=50, snoozed=4000)
    row = re.search(r"<tr>.*?</tr>", ask("GET", "/tasks").text[1:].partition("<tbody>")[2], re.DOTALL)
    assert row is not None
    cells = dict(re.findall(r'data-label="([^"]+)">([^<]*)<', row[0]))
    assert (cells["Ended / s"], cells["Succeeded"]) == ("5.0", "11,500")


def test_a_rare_task_has_a_rate_all_the_same(conn: psycopg.Connection, ask: Ask) -> None:
    call(conn, "declare_task", "t")
    report(conn, succeeded=3)
    assert card(ask("GET", "/task?name=t").text, "Ended") == "0.005 / s"
    assert [rate(each) for each in (0, 0.00028, 0.999, 4.25, 12345.6)] == ["0", "0.00028", "1", "4.2", "12,346"]
