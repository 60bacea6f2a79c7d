"""The timeline of a job: what its row records of earlier claims, and that the rest is not recorded."""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, column, enqueue, maintain, reserve_one
from tests.web.test_guard import Ask


def timeline(page: str) -> tuple[list[str], str]:
    """Return what happened, in order, and the sentences below."""
    part = page.partition("<h2>Timeline</h2>")[2].partition("</section>")[0]
    happened = [re.sub(r"<time.*?</time>|<[^>]+>", "", each).strip() for each in re.findall(r"<li>(.*?)</li>", part)]
    below = re.search(r'</ol>\s*<p class="muted">(.*?)</p>', part)
    return happened, "" if below is None else below[1]


def fail(conn: psycopg.Connection, worker: str, kind: str = "E", **options: Any) -> None:
    held = reserve_one(conn, worker)
    call(conn, "fail", held.id, held.reservation, Jsonb({"class": kind}), "0 s", **options)


def test_a_job_that_was_reserved_once_has_nothing_unrecorded(conn: psycopg.Connection, ask: Ask) -> None:
    job_id = enqueue(conn)
    assert timeline(ask("GET", f"/jobs/{job_id}").text)[1] == ""
    reserve_one(conn, "w1")
    happened, below = timeline(ask("GET", f"/jobs/{job_id}").text)
    assert happened[-1] == "reserved by w1"
    assert below == ""


def test_the_timeline_shows_where_attempts_failed_and_that_their_claims_are_not_recorded(
    conn: psycopg.Connection, ask: Ask
) -> None:
    job_id = enqueue(conn)
    fail(conn, "w1", "KeyError")
    fail(conn, "w2", "<b>")
    held = reserve_one(conn, "w3")
    happened, below = timeline(ask("GET", f"/jobs/{job_id}").text)
    assert [each for each in happened if "attempt" in each or "reserved" in each] == [
        "attempt 1 failed on w1: KeyError",
        "attempt 2 failed on w2: &lt;b&gt;",
        "reserved by w3, the last of 3 claims",
    ]
    assert below == "Of earlier claims only the errors are recorded."
    # The same in history.
    call(conn, "complete", held.id, held.reservation)
    happened, below = timeline(ask("GET", f"/jobs/{job_id}").text)
    assert happened[-2:] == ["reserved by w3, the last of 3 claims", "succeeded"]
    assert below == "Of earlier claims only the errors are recorded."


def test_lost_leases_and_crashes_are_told_without_a_time(conn: psycopg.Connection, clock: Clock, ask: Ask) -> None:
    clock.set("2030-01-01 12:00+00")
    maintain(conn)
    job_id = enqueue(conn)
    for worker in ("a", "b"):
        call(conn, "hello", worker)
        held = reserve_one(conn, worker)
        if worker == "a":
            column(conn, "started", [held.id], [held.reservation])
        for _ in range(9):
            clock.advance("4 s")
            maintain(conn)
    happened, below = timeline(ask("GET", f"/jobs/{job_id}").text)
    assert "reserved by b, the last of 2 claims" in happened
    assert below == (
        "Of earlier claims only the errors are recorded. Its lease was lost 2 times; when is not recorded."
        " Workers that died while they ran it: a."
    )


def test_errors_that_are_no_longer_kept_are_told(conn: psycopg.Connection, ask: Ask) -> None:
    job_id = enqueue(conn, max_attempts=20)
    for _ in range(11):
        fail(conn, "w1")
    happened, below = timeline(ask("GET", f"/jobs/{job_id}").text)
    assert next(each for each in happened if "attempt" in each) == "attempt 2 failed on w1: E"
    assert below.endswith("Errors before the last 10 are not kept.")


def test_an_error_of_the_queue_is_no_attempt_of_the_worker_before(conn: psycopg.Connection, ask: Ask) -> None:
    job_id = enqueue(conn)
    fail(conn, "w1")
    call(conn, "kill_many", job_ids=[job_id])
    happened, _ = timeline(ask("GET", f"/jobs/{job_id}").text)
    assert [each for each in happened if "E" in each or "Killed" in each] == [
        "attempt 1 failed on w1: E",
        "ended: Killed",
    ]
