"""The boards and the alert rules: every metric that they name is served, and every query of SQL runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue import metrics
from pgqueue.testing import Clock
from pgqueue.worker.tell.counts import Totals
from tests.calls import call, enqueue_many, maintain

GRAFANA = Path(__file__).parents[2] / "grafana"

_TIMES = {"sum": 1.0, "max": 0.5, "buckets": [1] * 12}


def panels(board: str) -> Iterator[dict[str, Any]]:
    yield from json.loads((GRAFANA / board).read_text())["panels"]


def expressions() -> list[str]:
    found = [target["expr"] for panel in panels("pgqueue.json") for target in panel["targets"]]
    rules = (GRAFANA / "alerts.yaml").read_text()
    return found + re.findall(r"expr: (?:>\n\s*)?(.*(?:\n\s+/.*)?)", rules)


@pytest.fixture
def busy(filled: psycopg.Connection) -> psycopg.Connection:
    """A worker that reports its memory, a tenant whose jobs wait, a large queue, and a breaker that is open."""
    enqueue_many(filled, 3, "report", queue="reports", limit_key="tenant:a")
    call(filled, "beat", "w1", memory=2**20)
    call(filled, "throttle", "task", "report", "1 min")
    filled.execute(
        "insert into pgqueue.pauses (kind, target, source, until, at, reason, by, half_open_at)"
        " select 'task', 'load', 'breaker', 'infinity', now.at, 'E', 'w1', now.at + interval '1 min'"
        " from (select pgqueue._clock() as at) now"
    )
    filled.execute(
        "update pgqueue.samples set counted_at = at - interval '3 min', counted_to = 10, ended = %s"
        " where queue = 'mail'",
        [Jsonb({"send_email": {"succeeded": 5, "dead": 9, "run": _TIMES, "wait": _TIMES}})],
    )
    return filled


@pytest.fixture
def served(busy: psycopg.Connection, ask: Callable[..., httpx.Response]) -> str:
    """What the pages and a worker serve, as one text."""
    ended = Totals()
    ended.add(
        [
            {
                "queue": "mail",
                "task": "t",
                "succeeded": 1,
                "failed": 1,
                "dead": 1,
                "lost": 1,
                "run": _TIMES,
                "wait": _TIMES,
            }
        ]
    )
    status = {"worker": "w", "running": 1, "free": 2, "claims": _TIMES}
    return ask("GET", "/metrics").text + metrics.as_text(metrics.of_workers(status, ended.entries())).decode()


def test_every_metric_that_a_board_or_a_rule_names_is_served_with_its_labels(served: str) -> None:
    samples = re.findall(r"^(\w+)(?:\{(.*)\})? ", served, re.MULTILINE)
    labels: dict[str, set[str]] = {}
    for name, text in samples:
        labels.setdefault(name, set()).update(re.findall(r'(\w+)="', text))
    assert len(expressions()) > 20
    for expression in expressions():
        named = re.findall(r"(pgqueue_\w+)(?:\{([^}]*)\})?", expression)
        assert named, expression
        for name, matchers in named:
            assert name in labels, expression
            assert set(re.findall(r'(\w+)=~?"', matchers)) <= labels[name], expression
        grouped = {
            each for group in re.findall(r"(?:by|on) \(([^)]*)\)", expression) for each in re.findall(r"\w+", group)
        }
        assert grouped <= {"le"} | set().union(*(labels[name] for name, _ in named)), expression


def test_every_metric_of_the_database_is_on_the_board() -> None:
    text = " ".join(expressions())
    left_out = {"pgqueue_sample_age_seconds", "pgqueue_database_up"}
    assert {name for name in metrics.OF_DATABASE if name not in text} <= left_out


@pytest.mark.parametrize("panel", panels("pgqueue-postgres.json"), ids=lambda panel: panel["title"])
def test_every_query_of_the_board_by_sql_returns_rows(busy: psycopg.Connection, panel: dict[str, Any]) -> None:
    [query] = [target["rawSql"] for target in panel["targets"]]
    # As Grafana's source fills them in.
    query = re.sub(
        r"\$__timeFilter\((\w+)\)", r"\1 between now() - interval '1 hour' and now() + interval '1 min'", query
    )
    query = query.replace("$__unixEpochTo()", "1000").replace("$__unixEpochFrom()", "0")
    assert "$" not in query
    rows = busy.execute(query.encode()).fetchall()
    # Nothing is late, and no run was reported.
    assert rows or panel["title"] in ("Mean run time by task", "Who is late, and why")


@pytest.mark.parametrize("board", ["pgqueue.json", "pgqueue-postgres.json"])
def test_the_first_screen_of_a_board_is_that_of_the_overview(board: str) -> None:
    first = [panel["title"].partition(":")[0] for panel in panels(board) if panel["gridPos"]["y"] < 33]
    assert first[:6] == [
        "Who is late, and why",
        "Slots of all workers",
        "Queues, the ones that need it most first",
        "In and out per second",
        "Wait",
        "What jobs die of",
    ]


def test_the_first_screen_of_a_board_needs_no_scrape_of_workers() -> None:
    named = {
        re.sub(r"_(bucket|count|sum)$", "", name)
        for panel in panels("pgqueue.json")
        if panel["gridPos"]["y"] < 33
        for target in panel["targets"]
        for name in re.findall(r"pgqueue_\w+", target["expr"])
    }
    assert len(named) > 8
    assert named <= metrics.OF_DATABASE.keys()


def test_no_panels_of_a_board_lie_on_each_other() -> None:
    for board in ("pgqueue.json", "pgqueue-postgres.json"):
        taken = [
            (column, row)
            for panel in panels(board)
            for place in [panel["gridPos"]]
            for column in range(place["x"], place["x"] + place["w"])
            for row in range(place["y"], place["y"] + place["h"])
        ]
        assert len(taken) == len(set(taken)), board


def test_the_board_by_sql_says_who_is_late_and_why_with_the_command_that_mends_it(
    conn: psycopg.Connection, clock: Clock
) -> None:
    enqueue_many(conn, 2, queue="mail")
    clock.advance("10 min")
    [query] = [
        target["rawSql"]
        for panel in panels("pgqueue-postgres.json")
        if panel["title"] == "Who is late, and why"
        for target in panel["targets"]
    ]
    [row] = conn.execute(query.encode()).fetchall()
    assert row[1:4] == ("mail", "no_worker", 600)
    assert row[5] == "pgqueue worker -r MODULE --queue mail"


def test_the_board_by_sql_has_percentiles_of_waits_from_the_buckets_of_samples(conn: psycopg.Connection) -> None:
    call(conn, "hello", "w")
    wait = {"sum": 60.0, "max": 9.0, "buckets": [90, 0, 0, 0, 0, 6, 0, 4, 0, 0, 0, 0]}
    call(conn, "beat", "w", Jsonb({"jobs": [{"queue": "a", "task": "t", "started": 100, "wait": wait}]}))
    maintain(conn)
    [query] = [
        target["rawSql"]
        for panel in panels("pgqueue-postgres.json")
        if panel["title"].startswith("Wait: p50")
        for target in panel["targets"]
    ]
    query = (
        re.sub(r"\$__timeFilter\(\w+\)", "true", query)
        .replace("$__unixEpochTo()", "9")
        .replace("$__unixEpochFrom()", "0")
    )
    [row] = conn.execute(query.encode()).fetchall()
    assert row[1:] == (0.001, 1, 16, None)


def test_the_chart_has_the_same_rules_and_the_same_board() -> None:
    copies = list((GRAFANA.parent / "packaging" / "helm" / "pgqueue" / "files").iterdir())
    assert copies != []
    for path in copies:
        assert path.read_text() == (GRAFANA / path.name).read_text(), "copy it from grafana/"
