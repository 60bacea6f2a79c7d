"""The timeline of a job: what its row records of earlier claims, and that the rest is not recorded."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, column, enqueue, maintain, reserve_one
from tests.web.conftest import Serve
from tests.web.test_guard import Ask

TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/tasks.py", line 8, in capture
    await gateway.capture(charge)
    ~~~~~~~~~~~~~~~^^^^^^^^^^^^^^
  File "/usr/lib/python3.13/asyncio/tasks.py", line 507, in wait_for
    return await fut
  File "/srv/shop/.venv/lib/python3.13/site-packages/httpx/_models.py", line 829, in raise_for_status
    raise HTTPError(message)
httpx.HTTPError: 502"""


def timeline(page: str) -> tuple[list[str], str]:
    """Return what happened, in order, and the sentences below."""
    part = page.partition("<summary>All times</summary>")[2].partition("</details>")[0]
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


def test_the_timeline_shows_where_attempts_failed(conn: psycopg.Connection, ask: Ask) -> None:
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
    assert below == ""
    # The same in history.
    call(conn, "complete", held.id, held.reservation)
    happened, below = timeline(ask("GET", f"/jobs/{job_id}").text)
    assert happened[-2:] == ["reserved by w3, the last of 3 claims", "succeeded"]
    assert below == ""


def bar(page: str) -> list[tuple[str, str]]:
    """Return the parts of the bar of its life: class and words."""
    part = page.partition('<svg class="life" role="img"')[2].partition("</svg>")[0]
    return re.findall(r'<rect class="([\w-]+)"[^>]*><title>([^<]*)</title>', part)


def test_the_life_of_a_job_is_a_bar_from_its_enqueue_to_now(conn: psycopg.Connection, clock: Clock, ask: Ask) -> None:
    clock.advance("-20 min")
    job_id = enqueue(conn)
    clock.advance("2 s")
    for took, retry_in in (("3 s", "30 s"), ("10 s", "1 min")):
        held = reserve_one(conn, "w1")
        clock.advance(took)
        error = {"class": "E", "message": "no answer", "traceback": TRACEBACK}
        call(conn, "fail", held.id, held.reservation, Jsonb(error), retry_in)
        clock.advance(retry_in)
    clock.back_to_real()
    page = ask("GET", f"/jobs/{job_id}").text
    parts = [
        (kind, words.partition(", ")[0], re.split(r"[. ]", words.rpartition(", ")[2])[0]) for kind, words in bar(page)
    ]
    assert [each for each in parts if each[0] != "wait"] == [
        ("attempt-failed", "attempt 1", "3"),
        ("backoff", "backs off", parts[2][2]),
        ("attempt-failed", "attempt 2", "10"),
        ("backoff", "backs off", parts[-2][2]),
        ("late", "due", "18"),
    ]
    label = re.search(r'<svg class="life" role="img" aria-label="([^"]*)"', page)
    assert label is not None
    assert label[1].startswith("waits for 2")
    assert " style=" not in page


def test_an_attempt_says_how_long_it_waited_and_ran_and_its_traceback_folds_to_the_frames_of_the_application(
    conn: psycopg.Connection, ask: Ask
) -> None:
    job_id = enqueue(conn)
    held = reserve_one(conn, "w1")
    error = {"class": "HTTPError", "message": "502", "traceback": TRACEBACK}
    call(conn, "fail", held.id, held.reservation, Jsonb(error), "30 s")
    page = ask("GET", f"/jobs/{job_id}").text
    assert "Attempt 1</strong>" in page
    assert "the queue backed off for 30 s" in page
    trace = page.partition('<div class="trace"')[2].partition("</details>")[0]
    own, folded = trace.split("<details", 1)
    assert "/srv/shop/tasks.py" in own
    assert "2 frames of Python, httpx" in folded
    assert "raise HTTPError" in folded


def test_log_lines_stand_below_their_attempt_for_those_who_may_see_args(
    conn: psycopg.Connection, serve: Serve, ask: Ask
) -> None:
    job_id = enqueue(conn)
    fail(conn, "w1")
    reserve_one(conn, "w1")
    lines = [(1, "INFO", "first <b>"), (2, "WARNING", "second"), (7, "STACK", "File tasks.py")]
    rows = [{"job_id": job_id, "attempt": attempt, "level": level, "line": line} for attempt, level, line in lines]
    call(conn, "write_log", Jsonb(rows))
    text = ask("GET", f"/jobs/{job_id}").text
    two, one = text.partition("Attempt 2</strong>")[2].partition("Attempt 1</strong>")[::2]
    assert '<span class="line">first &lt;b&gt;</span>' in one
    assert re.search(r'<span class="warning">warning</span><span class="line">second</span>', two)
    assert "Attempt 7</h3>" in text
    assert "second" not in ask("GET", f"/jobs/{job_id}", at=serve(can={"read", "act"})).text


def test_the_newest_log_lines_of_each_attempt_are_shown_however_many_there_are(
    conn: psycopg.Connection, ask: Ask
) -> None:
    job_id = enqueue(conn)
    conn.execute(
        "insert into pgqueue.job_logs (job_id, attempt, written_at, at, level, line)"
        " select %s, a, now(), now(), 'INFO', format('line %%s of %%s', n, a)"
        " from generate_series(1, 11) a, generate_series(1, 1000) n where a < 11 or n < 3 order by a, n",
        [job_id],
    )
    text = ask("GET", f"/jobs/{job_id}").text
    shown = re.findall(r'<span class="line">line (\d+) of (\d+)</span>', text)
    assert [int(n) for n, attempt in shown if attempt == "10"] == list(range(701, 1001))
    assert [n for n, attempt in shown if attempt == "11"] == ["1", "2"]
    assert text.count(f"The newest 300 lines. All: <code>pgqueue jobs logs {job_id}</code>") == 10


def test_a_stack_is_asked_for_by_those_who_may_see_the_answer(conn: psycopg.Connection, serve: Serve, ask: Ask) -> None:
    job_id = enqueue(conn)
    reserve_one(conn, "w1")
    assert "Ask for its stack" in ask("GET", f"/jobs/{job_id}").text
    text = ask("GET", f"/jobs/{job_id}", at=serve(can={"read", "act"})).text
    assert "Cancel</button>" in text
    assert "Ask for its stack" not in text


def test_a_traceback_of_another_language_stands_as_it_is(conn: psycopg.Connection, ask: Ask) -> None:
    job_id = enqueue(conn)
    held = reserve_one(conn, "w1")
    error = {"class": "Error", "message": "no", "traceback": "Error: no\n    at <anonymous>:1:7"}
    call(conn, "fail", held.id, held.reservation, Jsonb(error))
    assert "Error: no\n    at &lt;anonymous&gt;:1:7</pre>" in ask("GET", f"/jobs/{job_id}").text


@pytest.mark.parametrize(
    "error",
    [{"at": 7}, {"reserved_at": [], "at": "soon"}, {"message": {}}, {"traceback": 7, "worker": 9, "attempt": "x"}, 5],
)
def test_errors_of_any_form_break_no_page(conn: psycopg.Connection, ask: Ask, error: Any) -> None:
    job_id = enqueue(conn)
    conn.execute("update pgqueue.jobs set errors = %s where id = %s", [Jsonb([error]), job_id])
    assert ask("GET", f"/jobs/{job_id}").status_code == 200


def test_an_attempt_of_before_its_claim_was_recorded_is_drawn_with_its_wait(conn: psycopg.Connection, ask: Ask) -> None:
    job_id = enqueue(conn)
    fail(conn, "w1")
    conn.execute(
        "update pgqueue.jobs set created_at = now() - interval '1 h', run_at = now() - interval '1 h',"
        " errors = jsonb_build_array((errors -> 0) - 'reserved_at' - 'retry_at') where id = %s",
        [job_id],
    )
    assert bar(ask("GET", f"/jobs/{job_id}").text)[0][0] == "attempt-failed"


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
        "Only the last of the claims that ended without an error is recorded. Its lease was lost 2 times;"
        " when is not recorded. Workers that died while they ran it: a."
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


def test_an_attempt_that_goes_on_has_not_ended_just_now(conn: psycopg.Connection, ask: Ask) -> None:
    job_id = enqueue(conn, "t")
    reserve_one(conn)
    summary = ask("GET", f"/jobs/{job_id}").text.partition('id="attempt-1-1"')[2].partition("</summary>")[0]
    assert re.search(r'<span class="n when">([^<]*)</span>', summary)[1] == "runs"  # type: ignore[index]
    assert "ago" not in summary


def test_the_legend_names_what_is_drawn_and_nothing_else(conn: psycopg.Connection, ask: Ask, clock: Clock) -> None:
    clock.advance("-10 min")
    job_id = enqueue(conn, "t", max_attempts=2)
    fail(conn, "w1")
    clock.advance("5 min")
    fail(conn, "w1")
    clock.back_to_real()
    heading = ask("GET", f"/jobs/{job_id}").text.partition("<h2>Timeline</h2>")[2].partition("</header>")[0]
    shown = re.findall(r'<rect class="([\w-]+)"[^>]*/></svg>([^<]*)</span>', heading)
    assert dict(shown) == {"wait": "waits", "attempt-failed": "attempt, failed", "attempt-dead": "attempt, dead"}
    assert len(shown) == 3


def test_the_state_of_a_job_is_not_said_twice_on_top(conn: psycopg.Connection, ask: Ask) -> None:
    job_id = enqueue(conn, "t")
    reserve_one(conn, "w1")
    said = (
        ask("GET", f"/jobs/{job_id}")
        .text.partition('aria-label="Why it is in this state"')[2]
        .partition("</section>")[0]
    )
    assert "Worker w1 holds it since" in said
    assert "Executing" not in said
