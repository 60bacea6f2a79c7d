"""The sparklines of the page of queues: due jobs of the last hour, from one statement, without JavaScript."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psycopg
import pytest

from pgqueue.db import samples
from pgqueue.web import render
from tests.calls import enqueue, enqueue_many, maintain, value

Ask = Callable[..., httpx.Response]


def test_each_queue_has_a_line_of_its_due_jobs(conn: psycopg.Connection, ask: Ask) -> None:
    enqueue_many(conn, 3, queue="mail")
    enqueue(conn, queue="later", delay="1 h")
    conn.execute(
        "insert into pgqueue.samples (at, span, queue, waiting, due, scheduled, failed, blocked, executing, dead)"
        " select now() - n * interval '1 s', 10, queue, 0, n, 0, 0, 0, 0, 0"
        " from generate_series(60, 3500, 10) n, unnest(array['', 'mail']) queue"
    )
    maintain(conn)
    text = ask("GET", "/queues").text
    labels = re.findall(r'aria-label="Due jobs of queue (\w+) in an hour: ([\d,]+) at most, (\d+) at last"', text)
    assert sorted(name for name, *_ in labels) == ["later", "mail"]
    highest, last = next((int(highest.replace(",", "")), int(last)) for name, highest, last in labels if name == "mail")
    # One sample of six: the highest of all may be between two.
    assert 3440 <= highest <= 3500
    assert last == 3
    line = re.search(r'Due jobs of queue mail.*?<polyline class="line" points="([^"]+)"', text)
    assert line is not None
    heights = [float(point.split(",")[1]) for point in line[1].split()]
    assert len(heights) >= 50
    # SVG counts from above: the line falls with the backlog.
    assert heights == sorted(heights)
    assert " style=" not in text


def test_a_queue_that_was_empty_at_a_time_had_nothing_due() -> None:
    rows = [("", [100.0, 110.0, 120.0], [9, 9, 9], [0.0] * 3), ("mail", [100.0, 120.0], [6, 4], [0.0] * 2)]
    found = render.sparklines(rows)
    assert list(found) == ["mail"]
    assert (found["mail"]["highest"], found["mail"]["last"]) == (6, 4)
    heights = [float(point.split(",")[1]) for point in found["mail"]["line"].split()]
    assert heights == [25.6, render.SPARK[1] - 1, 26.8]


def test_a_line_says_where_the_recorded_history_begins() -> None:
    late = [0.0] * 2
    whole = render.sparklines([("", [0.0, 3600.0], [1, 1], late), ("mail", [0.0, 3600.0], [1, 1], late)])
    assert whole["mail"]["begins"] is None
    half = render.sparklines([("", [1800.0, 3600.0], [1, 1], late), ("mail", [3600.0], [1], late[:1])])
    assert half["mail"]["begins"] == render.SPARK[0] / 2


def test_a_queue_that_was_late_says_when_and_how_much_until_it_is_late_again() -> None:
    times = [0.0, 60.0, 120.0, 180.0]
    rows = [("", times, [1] * 4, [0.0] * 4), ("mail", times, [1] * 4, [40.0, 95.0, 30.0, 0.0])]
    assert render.sparklines(rows)["mail"]["late"] == ("1970-01-01T00:02:00+00:00", 95.0)
    assert render.sparklines([rows[0], ("mail", times, [1] * 4, [0.0, 29.0, 0.0, 0.0])])["mail"]["late"] is None
    assert render.sparklines([rows[0], ("mail", times, [1] * 4, [0.0, 40.0, 0.0, 50.0])])["mail"]["late"] is None


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for each in plan.get("Plans", []):
        yield from nodes(each)


@pytest.mark.parametrize("is_analyzed", [False, True])
def test_all_lines_are_read_by_one_statement_that_reads_one_sample_of_six(
    conn: psycopg.Connection, is_analyzed: bool
) -> None:
    conn.execute(
        "insert into pgqueue.samples (at, span, queue, waiting, due, scheduled, failed, blocked, executing, dead)"
        " select now() - n * interval '10 s', 10, case q when 0 then '' else 'q' || q end, 0, 1, 0, 0, 0, 0, 0"
        " from generate_series(1, 1000) n, generate_series(0, 100) q"
    )
    conn.execute("analyze pgqueue.samples" if is_analyzed else "select 1")
    statement = b"explain (analyze, format json) " + samples.trends().text
    plan = value(conn, statement.decode())[0]["Plan"]
    read = [each for each in nodes(plan) if each.get("Relation Name") == "samples"]
    assert {each["Node Type"] for each in read} <= {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}
    # 101 rows at each of sixty times, and as many probes; 101,000 rows are there.
    assert sum(each["Actual Rows"] * each["Actual Loops"] for each in read) <= 61 * 101 + 80
    assert len(samples.trends().read(list(conn.execute(samples.trends().text).fetchall()))) == 101
