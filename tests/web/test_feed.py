"""The feed of the overview: troubles one by one, successes in sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import psycopg
from psycopg.types.json import Jsonb

from pgqueue.web.feed import feed
from tests.calls import call, maintain
from tests.web.conftest import Serve
from tests.web.test_blocked_by import words

Ask = Callable[..., httpx.Response]


def trouble(at: float, task: str = "t") -> dict[str, Any]:
    return {"at": f"1970-01-01T00:{int(at) // 60:02}:{at % 60:04.1f}+00:00", "task": task}


def sample(at: float, queue: str, succeeded: int) -> tuple[Any, ...]:
    return (queue, at, 10, 0, True, {"t": {"succeeded": succeeded}})


def test_between_two_troubles_what_succeeded_is_one_line() -> None:
    samples = [sample(at, queue, 5) for at in (610, 620, 630, 640) for queue in ("a", "b", "")]
    lines = feed([trouble(625, "late"), trouble(590, "early")], samples)
    assert [(line.trouble["task"] if line.trouble else line.succeeded) for line in lines] == [20, "late", 20, "early"]
    assert [(len(line.queues), line.seconds) for line in lines if not line.trouble] == [(2, 20), (2, 20)]


def test_a_feed_is_short() -> None:
    assert len(feed([trouble(number) for number in range(100)], [])) == 12
    assert feed([], [sample(600, "a", 0)]) == []


def test_the_overview_tells_what_just_failed_and_how_much_succeeded(
    conn: psycopg.Connection, ask: Ask, serve: Serve
) -> None:
    assert "Nothing has ended within a minute" in ask("GET", "/").text
    call(conn, "hello", "w")
    told = {
        "ago": 1,
        "job_id": 17,
        "queue": "mail",
        "task": "send",
        "attempt": 3,
        "class": "TimeoutError",
        "line": "no <b>",
    }
    troubles = [{**told, "state": state} for state in ("failed", "dead", "lost", "cancelled")]
    jobs = [{"queue": "mail", "task": "send", "started": 9, "succeeded": 7}]
    call(conn, "beat", "w", Jsonb({"jobs": jobs, "troubles": troubles}))
    maintain(conn)
    page = ask("GET", "/", at=serve()).text
    shown = words(page)
    assert "7 succeeded in 1 queue, within 10 s" in shown
    for what in (
        "attempt 3, runs again",
        "after 3 attempts",
        "lost, the attempt does not count",
        "attempt 3, cancelled",
    ):
        assert f"send mail · {what} TimeoutError: no &lt;b&gt;" in shown
    assert '<a href="/jobs/17">send</a>' in page
