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

from pgqueue import metrics
from pgqueue.worker.tell.counts import Totals

GRAFANA = Path(__file__).parents[2] / "grafana"

_TIMES = {"sum": 1.0, "max": 0.5, "buckets": [1] * 12}


def panels(board: str) -> Iterator[dict[str, Any]]:
    yield from json.loads((GRAFANA / board).read_text())["panels"]


def expressions() -> list[str]:
    found = [target["expr"] for panel in panels("pgqueue.json") for target in panel["targets"]]
    rules = (GRAFANA / "alerts.yaml").read_text()
    return found + re.findall(r"expr: (?:>\n\s*)?(.*(?:\n\s+/.*)?)", rules)


@pytest.fixture
def served(filled: psycopg.Connection, ask: Callable[..., httpx.Response]) -> str:
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
    left_out = {"pgqueue_sample_age_seconds", "pgqueue_queue_counted_age_seconds", "pgqueue_queue_paused"} | {
        "pgqueue_pauses",
        "pgqueue_database_up",
    }
    assert {name for name in metrics.OF_DATABASE if name not in text} <= left_out


@pytest.mark.parametrize("panel", panels("pgqueue-postgres.json"), ids=lambda panel: panel["title"])
def test_every_query_of_the_board_by_sql_returns_rows(filled: psycopg.Connection, panel: dict[str, Any]) -> None:
    [query] = [target["rawSql"] for target in panel["targets"]]
    # As Grafana's source fills them in.
    query = re.sub(
        r"\$__timeFilter\((\w+)\)", r"\1 between now() - interval '1 hour' and now() + interval '1 min'", query
    )
    query = query.replace("$__unixEpochTo()", "1000").replace("$__unixEpochFrom()", "0")
    assert "$" not in query
    rows = filled.execute(query.encode()).fetchall()
    assert rows or panel["title"] == "Mean run time by task"
