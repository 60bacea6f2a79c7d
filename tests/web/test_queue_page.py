"""The page of a queue: what fills it, how long its jobs wait, what blocks them, and what can be done to just these."""

from __future__ import annotations

import html
import re
from collections.abc import Callable

import httpx
import psycopg
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from pgqueue.web import facets
from pgqueue.web.dying import mostly
from tests.calls import call, enqueue, enqueue_many, job, maintain, reserve, value
from tests.web.conftest import Serve
from tests.web.test_blocked_by import words

Ask = Callable[..., httpx.Response]


def fill(conn: psycopg.Connection) -> list[int]:
    ids = enqueue_many(conn, 3, "import", queue="q", limit_key="tenant:lumen", tags=["vip"])
    enqueue(conn, "send", queue="q", key="order:17")
    return ids


def test_what_waits_is_shown_by_facets_and_each_value_is_a_filter(conn: psycopg.Connection, ask: Ask) -> None:
    ids = fill(conn)
    reserve(conn, 1, "w1", queues=["q"])
    page = ask("GET", "/queue?name=q").text
    panel = page.partition("<h2>What waits</h2>")[2].partition("</section>\n</div>")[0]
    shown = words(panel)
    assert "all 3 due jobs" in shown
    assert "Task import 2 67 %" in shown
    assert "Tenant tenant:lumen 2 67 %" in shown
    assert "Worker that runs them w1 1 100 %" in shown
    [link] = [html.unescape(each) for each in re.findall(r'<a href="([^"]*tenant%3A[^"]*)"', panel)]
    listed = ask("GET", link).text
    assert all(f'href="/jobs/{each}"' in listed for each in ids[1:])
    assert "/jobs/4" not in listed


def test_just_the_jobs_of_a_value_are_moved_or_changed(conn: psycopg.Connection, ask: Ask) -> None:
    ids = fill(conn)
    page = ask("GET", "/queue?name=q").text
    [line] = {html.unescape(each) for each in re.findall(r'name="q" value="([^"]*tenant:[^"]*)"', page)}
    asked = ask("POST", "/act", action="update", scope="all", q=line)
    assert "Change: 3 jobs?" in asked.text
    # Nothing is changed before it is said what.
    again = ask("POST", "/act", action="update", scope="all", q=line, confirm="yes", count="3")
    assert "Change: 3 jobs?" in again.text
    answer = ask(
        "POST", "/act", action="update", scope="all", q=line, confirm="yes", count="3", priority="-10", queue="slow"
    )
    assert answer.status_code == 303
    assert [(job(conn, each).queue, job(conn, each).priority) for each in ids] == [("slow", -10)] * 3
    assert value(conn, "select count(*) from pgqueue.jobs where queue = 'q'") == 1


def test_a_change_of_many_jobs_goes_on_chunk_by_chunk_with_what_was_given(conn: psycopg.Connection, ask: Ask) -> None:
    enqueue_many(conn, 600, "import", queue="q")
    form = {"action": "update", "scope": "all", "q": "task:import", "confirm": "yes", "count": "600", "priority": "-5"}
    answer = ask("POST", "/act", **form)
    assert "Change: 500 jobs so far" in answer.text
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', answer.text))
    assert fields["priority"] == "-5"
    assert ask("POST", "/act", **fields).status_code == 303
    assert value(conn, "select count(*) from pgqueue.jobs where priority = -5") == 600


def test_a_task_or_a_tenant_that_floods_it_is_paused(conn: psycopg.Connection, ask: Ask) -> None:
    fill(conn)
    page = ask("GET", "/queue?name=q").text
    assert "Pause this task, in all queues" in page
    ask("POST", "/limit", do="pause", kind="limit_key", target="tenant:lumen")
    page = words(ask("GET", "/queue?name=q").text)
    assert re.search(r"limit key tenant:lumen paused [\d.]+ m?s ago by alice", page)


def test_a_queue_is_paused_for_a_time_and_with_a_reason(conn: psycopg.Connection, ask: Ask) -> None:
    fill(conn)
    form = {"name": "q", "do": "pause", "for": "a while", "reason": "the provider is down"}
    assert 'role="alert"' in ask("POST", "/queue", **form).text
    assert ask("POST", "/queue", **{**form, "for": "1 hour"}).status_code == 303
    page = ask("GET", "/queue?name=q").text
    assert re.search(r"queue q paused [\d.]+ m?s ago by alice, until .*: the provider is down", words(page))
    assert "Pause the queue" not in page
    assert 3500 < value(conn, "select extract(epoch from until - pgqueue._clock())::float from pgqueue.pauses") <= 3600


def test_who_may_not_act_sees_facets_without_actions(conn: psycopg.Connection, ask: Ask, serve: Serve) -> None:
    fill(conn)
    page = ask("GET", "/queue?name=q", at=serve(can={"read"})).text
    assert "tenant:lumen" in page
    assert "Pause this" not in page
    assert ask("POST", "/act", action="update", id="1", priority="1", at=serve(can={"read"})).status_code == 403


def test_how_long_jobs_wait_stands_beside_how_long_they_usually_do(
    conn: psycopg.Connection, ask: Ask, clock: Clock
) -> None:
    clock.advance("-10 min")
    enqueue_many(conn, 4, queue="q")
    clock.back_to_real()
    times = {"sum": 1, "max": 1, "buckets": [90, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]}
    conn.execute(
        "insert into pgqueue.samples"
        " (at, span, queue, waiting, due, scheduled, failed, blocked, executing, dead, ended)"
        " values (pgqueue._clock() - interval '1 h', 600, 'q', 0, 0, 0, 0, 0, 0, 0, %s)",
        [Jsonb({"t": {"started": 100, "wait": times}})],
    )
    page = ask("GET", "/queue?name=q").text
    assert "of the due jobs most, 100 %, waited up to 1 h; of those that started within a day most, 100 %," in page
    assert "waited up to 4 ms" in page


def test_a_histogram_has_a_bar_for_each_bucket_and_words_for_each_end() -> None:
    bars = facets.histogram([0] * 11 + [3], [1, 1, 2] + [0] * 9)
    assert [bar.label for bar in bars][:2] == ["4 ms", "16 ms"]
    assert (bars[0].usual, bars[1].usual, bars[-1].now) == (50, 50, 100)
    assert facets.in_words(bars).startswith("of the due jobs most, 100 %, waited more than 1 h; ")
    assert facets.in_words(facets.histogram([0] * 12, ())) == "no job is due, and none started within a day"


def test_blocked_jobs_are_shown_by_what_blocks_them(conn: psycopg.Connection, ask: Ask) -> None:
    call(conn, "set_limit", "limit_key", "tenant:*", max_executing=1)
    enqueue_many(conn, 4, queue="q", key="order:17")
    enqueue_many(conn, 3, queue="q", limit_key="tenant:lumen")
    reserve(conn, 10, queues=["q"])
    maintain(conn)
    page = ask("GET", "/queue?name=q").text
    shown = words(page.partition("Blocked, and by what")[2].partition("</section>")[0])
    assert "3 behind a job of their key order:17 3" in shown
    assert "2 at a limit limit_key:tenant:lumen 2" in shown


def test_the_numbers_say_when_the_next_scheduled_job_comes_and_how_many_died_within_a_day(
    conn: psycopg.Connection, ask: Ask
) -> None:
    enqueue(conn, "send", queue="q", delay="3 hours")
    enqueue(conn, "send", queue="q", delay="4 hours", priority=5)
    enqueue(conn, "send", queue="quiet", delay="1 hour")
    # A retry to come is one of those that are scheduled.
    held = enqueue(conn, "send", queue="q")
    [row] = reserve(conn, 1, queues=["q"])
    call(conn, "fail", held, row.reservation, retry_in="90 min")
    enqueue_many(conn, 2, "send", queue="q")
    for row in reserve(conn, 2, queues=["q"]):
        call(conn, "fail", row.id, row.reservation, Jsonb({"class": "CardDeclined", "message": "no"}), retry=False)
    call(conn, "hello", "w1")
    call(conn, "beat", "w1", Jsonb({"jobs": [{"queue": "q", "task": "send", "dead": 2}]}))
    maintain(conn)
    shown = words(ask("GET", "/queue?name=q").text)
    assert re.search(r"Scheduled 3 next in (90|89) min", shown)
    assert "Dead 2 2 within a day, most of CardDeclined" in shown
    assert "Dead 0 0 within a day" in words(ask("GET", "/queue?name=quiet").text)


def test_the_error_of_jobs_that_died_within_a_day_is_named_if_most_died_of_it(
    conn: psycopg.Connection, ask: Ask
) -> None:
    enqueue_many(conn, 3, "send", queue="q")
    for number, row in enumerate(reserve(conn, 3, queues=["q"])):
        call(conn, "fail", row.id, row.reservation, Jsonb({"class": f"E{number}", "message": "no"}), retry=False)
    call(conn, "hello", "w1")
    call(conn, "beat", "w1", Jsonb({"jobs": [{"queue": "q", "task": "send", "dead": 3}]}))
    maintain(conn)
    shown = words(ask("GET", "/queue?name=q").text)
    assert "Dead 3 3 within a day" in shown
    assert "within a day, most of" not in shown
    # Those that were retried are not among the dead.
    groups = [{"class": "E", "trend": [0] * 23 + [2]}, {"class": None, "trend": [1]}, {"class": "E", "trend": [1]}]
    assert [mostly(groups, jobs) for jobs in (4, 5, 6, 40)] == ["E", "E", None, None]
    assert mostly([{"class": None, "trend": [1]}], 1) == "no class"
    assert mostly([], 1) is None


def test_a_running_job_is_cancelled_from_its_row_after_a_question(
    conn: psycopg.Connection, ask: Ask, serve: Serve
) -> None:
    [first, *_] = enqueue_many(conn, 2, "send", queue="q")
    reserve(conn, 2, "w1", queues=["q"])
    for page in ("/queue?name=q", "/task?name=send"):
        row = ask("GET", page).text.partition(f'aria-label="Cancel job {first}"')[0].rpartition("<form")[2]
        fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', row))
        asked = ask("POST", "/act", action="cancel", **fields)
        assert "Cancel: 1 job?" in asked.text, page
        assert not job(conn, first).cancel_requested_at
    again = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', asked.text))
    assert ask("POST", "/act", **again).status_code == 303
    assert job(conn, first).cancel_requested_at
    assert "Cancel job" not in ask("GET", "/queue?name=q", at=serve(can={"read"})).text


def test_the_options_say_who_set_each_of_them_and_the_limit(conn: psycopg.Connection, ask: Ask) -> None:
    enqueue(conn, queue="q")
    call(conn, "set_share", "tenant:1", 3)
    call(conn, "configure_queue", "other", weight=9)
    with conn.transaction():
        conn.execute("select set_config('pgqueue.actor', 'mara', true)")
        call(conn, "configure_queue", "q", priority=10, weight=3, fair_by="limit_key", max_share=0.5)
    ask("POST", "/queue", name="q", do="configure", priority="10", weight="")
    page = words(ask("GET", "/queue?name=q").text)
    assert re.search(r"Priority 10 set by mara [\d.]+ m?s ago Weight 1 \(default\) set by alice [\d.]+ m?s ago", page)
    assert re.search(r"Fair by limit_key set by mara [\d.]+ m?s ago Max share 0\.5\d* set by mara", page)
    assert "Retry budget no limit (default) Retention" in page
    assert "The limit was" not in page
    ask("POST", "/limit", do="set", kind="queue", target="q", max_executing="4")
    assert "The limit was set by alice" in words(ask("GET", "/queue?name=q").text)
    ask("POST", "/limit", do="drop", kind="queue", target="q", confirm="yes")
    assert "The limit was dropped by alice" in words(ask("GET", "/queue?name=q").text)


def test_the_tenants_of_a_queue_have_their_lag_their_part_of_its_jobs_and_their_share(
    conn: psycopg.Connection, ask: Ask, clock: Clock
) -> None:
    enqueue(conn, queue="plain")
    clock.advance("-10 min")
    enqueue_many(conn, 3, queue="q", limit_key="tenant:lumen")
    clock.back_to_real()
    enqueue(conn, queue="q", limit_key="tenant:acme")
    enqueue(conn, queue="other", limit_key="tenant:acme", priority=3)
    call(conn, "set_share", "tenant:*", 2)
    call(conn, "set_share", "tenant:lumen", 5)

    def shown() -> str:
        return words(ask("GET", "/queue?name=q").text.partition('id="tenants"')[2].partition("</section>")[0])

    page = shown()
    assert 'id="tenants"' not in ask("GET", "/queue?name=plain").text
    assert "not fair: the oldest job of all starts first" in page
    assert re.search(r"tenant:lumen 10 min very late 3 75 % 0 tenant:acme [\d.]+ m?s on time 1 25 % 0$", page)
    call(conn, "configure_queue", "q", fair_by="limit_key", max_share=0.5)
    # What was read is forgotten after a change.
    ask("POST", "/queue", name="plain", do="pause")
    page = shown()
    assert "each starts jobs in its turn, as many as its share; one has at most 50 % of a worker's slots" in page
    assert re.search(r"tenant:lumen 10 min very late 3 75 % 0 5 tenant:acme [\d.]+ m?s on time 1 25 % 0 2$", page)
    assert '<td class="n" data-label="Share">2</td>' in ask("GET", "/tenants").text
