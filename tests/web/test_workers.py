"""The page of workers: memory, and processes under their supervisor."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.db import observe
from pgqueue.db.call import perform
from pgqueue.testing import Clock
from pgqueue.web import capacity, series
from tests.calls import call, enqueue, enqueue_many, maintain, reserve, reserve_one, table, value
from tests.web.test_blocked_by import words

Ask = Callable[..., httpx.Response]


def register(conn: psycopg.Connection, worker: str, memory: int, **info: object) -> None:
    call(conn, "hello", worker, None, Jsonb({"host": "web-1", "pid": 17, "memory": memory << 20, **info}))


def test_processes_stand_under_their_supervisor_with_what_they_hold(conn: psycopg.Connection, ask: Ask) -> None:
    register(conn, "a:1", 80, supervisor={"name": "a", "pid": 4000})
    register(conn, "b:1", 70, supervisor={"name": "b", "pid": 5000}, host="web-2")
    register(conn, "a:2", 120, supervisor={"name": "a", "pid": 4000})
    register(conn, "alone", 50)
    text = " ".join(re.sub(r"<[^>]+>", " ", ask("GET", "/workers").text).split())
    # Each name also stands on the buttons of its row.
    order = [
        "Without a supervisor", " alone ", "Supervisor a pid 4000 on web-1, 2 processes, 200 MiB", " a:1 ", "80 MiB",
        " a:2 ", "120 MiB", "Supervisor b pid 5000 on web-2, 1 process, 70 MiB", " b:1 ",
    ]  # fmt: skip
    places = [text.find(each) for each in order]
    assert -1 not in places
    assert places == sorted(places)


def test_workers_without_any_supervisor_stand_under_no_heading(conn: psycopg.Connection, ask: Ask) -> None:
    register(conn, "alone", 50)
    # A client in another language may register with any JSON.
    call(conn, "hello", "odd", None, Jsonb({"supervisor": ["x"], "clock_ahead": {}}))
    call(conn, "hello", "odder", None, Jsonb([1]))
    text = ask("GET", "/workers").text
    assert "upervisor" not in text
    assert "50 MiB" in text
    for name in ("odd", "odder"):
        assert ask("GET", f"/worker?name={name}").status_code == 200


def test_the_page_of_a_worker_shows_its_memory_its_supervisor_and_its_clock(conn: psycopg.Connection, ask: Ask) -> None:
    register(conn, "a:1", 80, supervisor={"name": "a", "pid": 4000}, clock=0)
    text = ask("GET", "/worker?name=a:1").text
    assert "80 MiB" in text
    assert "a, pid 4000" in text
    assert re.search(r"\d+\.\d s behind the server", text)


def test_what_a_worker_says_of_itself_has_names_and_units(conn: psycopg.Connection, ask: Ask) -> None:
    register(conn, "w", 80, heartbeat=10, concurrency=12, listen=True, my_own="x")
    text = words(ask("GET", "/worker?name=w").text)
    assert re.search(r"Heartbeat \d+ s ago , each 10 s Started \d+ s ago Memory 80 MiB", text)
    for fact in ("Process (pid) 17", "Slots 12", "Woken by notifications yes", "My own x"):
        assert fact in text
    # Nor does odd JSON break it.
    register(conn, "odd", 80, heartbeat="often", listen=[1], concurrency={"a": 1})
    assert "Heartbeat often" in words(ask("GET", "/worker?name=odd").text)


def test_a_job_that_was_asked_to_cancel_offers_to_kill_its_process(conn: psycopg.Connection, ask: Ask) -> None:
    register(conn, "w", 50)
    job_id = enqueue(conn)
    reserve(conn, 1, "w")
    kill = '<input type="hidden" name="name" value="w"><button class="danger" name="do" value="kill"'
    assert kill not in ask("GET", f"/jobs/{job_id}").text
    call(conn, "cancel", job_id)
    assert kill in ask("GET", f"/jobs/{job_id}").text
    assert "Its process ends at once" in ask("POST", "/worker", name="w", do="kill").text


def test_a_process_is_killed_for_a_job_only_while_it_executes_that_job(conn: psycopg.Connection, ask: Ask) -> None:
    register(conn, "w", 50)
    ended, other = enqueue(conn), enqueue(conn)
    row, _ = reserve(conn, 2, "w")
    call(conn, "cancel", ended)
    form = {"name": "w", "do": "kill", "job": ended}
    assert f'<input type="hidden" name="job" value="{ended}">' in ask("GET", f"/jobs/{ended}").text
    assert f'<input type="hidden" name="job" value="{ended}">' in ask("POST", "/worker", **form).text
    # It ends while the operator reads the question. The other one runs on.
    assert call(conn, "complete", row.id, row.reservation)
    command = "select command from pgqueue.workers where name = 'w'"
    assert "nothing+was+sent" in ask("POST", "/worker", **form, confirm="yes").headers["location"]
    assert value(conn, command) is None
    answer = ask("POST", "/worker", **{**form, "job": other}, confirm="yes")
    assert answer.headers["location"].startswith(f"/jobs/{other}?said=w%3A")
    assert value(conn, command) == "kill"
    assert ask("POST", "/worker", **{**form, "job": "x"}, confirm="yes").status_code == 400


def test_a_worker_shows_its_slots_by_task_and_age(conn: psycopg.Connection, ask: Ask, clock: Clock) -> None:
    register(conn, "w", 80, concurrency=4)
    clock.advance("-20 min")
    old = enqueue(conn, "review_case")
    reserve(conn, 1, "w", lease="1 h")
    clock.back_to_real()
    new = enqueue(conn, "send_email")
    reserve(conn, 1, "w")
    text = ask("GET", "/workers").text
    cells = re.findall(r'<a class="cell task-\d ?(\w*)" href="/jobs/(\d+)" title="([^"]*) for [^"]*"><b>(\w\w)', text)
    # None of its task ended within a day, and it runs for more than ten minutes.
    assert cells == [("over", str(old), "review_case", "RC"), ("", str(new), "send_email", "SE")]
    assert text.count('class="cell free"') == 2
    assert "1 far too long, 2 of 4 slots free" in text
    assert " style=" not in text


@pytest.mark.parametrize("bucket", range(12))
def test_a_page_and_why_late_agree_on_which_job_runs_far_too_long(
    conn: psycopg.Connection, clock: Clock, bucket: int
) -> None:
    clock.set("2030-01-01 12:00+00")
    conn.execute(
        "insert into pgqueue.samples"
        " (at, span, queue, waiting, due, scheduled, failed, blocked, executing, dead, ended)"
        " select pgqueue._clock() - n * make_interval(secs => s), s, 'mail', 0, 0, 0, 0, 0, 0, 0,"
        # Another task ran before, and this one took other times in the spans that are not asked for.
        " case when n %% 2 = 1 and n < most then jsonb_build_object('other', '{\"started\": 1}'::jsonb) else"
        "  jsonb_build_object('t', jsonb_build_object('run', jsonb_build_object('sum', 1, 'max', 1, 'buckets',"
        "   (select jsonb_agg(case when b = case when n > 50 then 11 - %(bucket)s else %(bucket)s end then 7 + n %% 5"
        "     when b = 5 then 1 else 0 end order by b) from generate_series(0, 11) b)"
        "  ))) end"
        " from (values (10, 59), (600, 142)) v (s, most), generate_series(1, most) n",
        {"bucket": bucket},
    )
    usual = perform(conn, series.usual())["t"]
    register(conn, "w", 80, concurrency=2)
    enqueue(conn, "t", queue="mail")
    job = reserve_one(conn, lease="1 day")
    call(conn, "started", [job.id], [job.reservation])
    for age in (max(10 * usual, 60) - 0.01, max(10 * usual, 60) + 0.01):
        conn.execute("update pgqueue.jobs set reserved_at = pgqueue._clock() - %s * interval '1 s'", [age])
        [found] = table(conn, "_slots_for", "mail", value(conn, "select pgqueue._clock()"))
        assert found.overlong == capacity.is_over(age, usual)
        if found.overlong:
            assert found.usual.total_seconds() == pytest.approx(usual, rel=1e-5, abs=1e-5)


def test_jobs_that_run_as_one_batch_take_one_slot(conn: psycopg.Connection, ask: Ask) -> None:
    call(conn, "declare_task", "index", accumulate=True)
    enqueue_many(conn, 5, "index", key="k")
    register(conn, "w", 80, concurrency=4)
    assert {job.leader for job in reserve(conn, 1, "w")} != {None}
    assert [len(row[4]) for row in perform(conn, observe.executing())] == [1]
    assert "3 of 4 slots free" in ask("GET", "/workers").text


@pytest.mark.parametrize(
    ("task", "code"), [("review_case", "RC"), ("report", "RE"), ("a.b.c", "AB"), ("été", "T"), ("", "?"), ("<b>", "B")]
)
def test_a_task_has_two_letters_and_always_the_same_hue(task: str, code: str) -> None:
    assert capacity.code_of(task) == code
    assert capacity.hue_of(task) == capacity.hue_of(task)
    assert 1 <= capacity.hue_of(task) <= 6


def test_a_queue_shows_what_runs_of_it_the_oldest_first(conn: psycopg.Connection, ask: Ask, clock: Clock) -> None:
    register(conn, "w", 80, concurrency=4)
    clock.advance("-20 min")
    first = enqueue(conn, "review_case", queue="mail", key="case:7")
    reserve(conn, 1, "w", lease="1 h")
    clock.back_to_real()
    second = enqueue(conn, "send_email", queue="mail")
    reserve(conn, 1, "w")
    maintain(conn)
    text = ask("GET", "/queue?name=mail").text
    part = text.partition("Running, the oldest first")[2].partition("</section>")[0]
    assert re.findall(r'class="id" href="/jobs/(\d+)"', part) == [str(first), str(second)]
    assert re.findall(r'aria-label="runs for (\d+)', part)[0] == "20"
    assert "case:7" in part
    assert "of 4 slots, 1 far too long" in text


def test_the_memory_of_a_worker_stands_beside_its_limit(conn: psycopg.Connection, ask: Ask) -> None:
    for name, held in (("calm", 100), ("late", 820), ("over", 960)):
        register(conn, name, held, memory_limit=1000 << 20)
    text = ask("GET", "/workers").text
    assert "<dd>100 MiB of 1,000 MiB</dd>" in text
    assert '<dd class="warn">820 MiB of 1,000 MiB</dd>' in text
    assert '<dd class="bad">960 MiB of 1,000 MiB</dd>' in text
    assert "960 MiB of 1,000 MiB" in ask("GET", "/worker?name=over").text


def test_the_memory_of_a_worker_is_drawn_over_an_hour(conn: psycopg.Connection, ask: Ask, clock: Clock) -> None:
    clock.advance("-30 min")
    register(conn, "w", 80)
    for megabytes in (100, 400):
        clock.advance("10 min")
        call(conn, "beat", "w", None, megabytes << 20)
        maintain(conn)
    clock.back_to_real()
    text = ask("GET", "/workers").text
    assert 'aria-label="Memory in an hour: 400 MiB now, 400 MiB at most"' in text
    points = re.findall(r'<polyline class="line" points="([^"]*)"', text)[-1].split()
    heights = [float(each.split(",")[1]) for each in points]
    assert heights == sorted(heights, reverse=True)
    assert len(heights) == 3


def test_memory_near_its_limit_is_coloured_and_said(conn: psycopg.Connection, ask: Ask, clock: Clock) -> None:
    clock.advance("-20 min")
    register(conn, "w", 80, memory_limit=500 << 20)
    register(conn, "odd", 80, memory_limit="much")
    for megabytes in (100, 420):
        clock.advance("10 min")
        for worker in ("w", "odd"):
            call(conn, "beat", worker, None, megabytes << 20)
        maintain(conn)
    clock.back_to_real()
    text = ask("GET", "/workers").text
    assert "memory at 84 % of its limit" in text
    assert text.count('class="memory late"') == 1
    assert text.count('class="limit"') == 1
    assert "420 MiB at most, its limit is 500 MiB" in text
    one = ask("GET", "/worker?name=w").text
    assert one.count('class="memory late"') == 1
    assert "near its limit" in one


def test_queues_without_a_worker_are_counted_and_a_worker_says_where_it_is_the_only_one(
    conn: psycopg.Connection, ask: Ask
) -> None:
    for queue in ("mail", "orphan"):
        enqueue(conn, queue=queue)
    for worker, queues in (("a", ["mail", "shared"]), ("b", ["shared"])):
        call(conn, "hello", worker, queues, Jsonb({"host": "web-1", "pid": 17}))
        call(conn, "beat", worker)
    maintain(conn)
    text = ask("GET", "/workers").text
    assert re.search(r"<dt>Queues without a worker</dt><dd[^>]*>1</dd><dd>orphan</dd>", text)
    assert text.count("as the only one") == 1


def test_workers_and_jobs_lead_to_the_jobs_of_a_worker(conn: psycopg.Connection, ask: Ask) -> None:
    register(conn, "web-1:1, blue", 80)
    ids = enqueue_many(conn, 3, "send", queue="mail")
    reserve(conn, 2, "web-1:1, blue")
    for page in ("/workers", "/worker?name=web-1%3A1%2C+blue", f"/jobs/{ids[0]}"):
        [link] = set(re.findall(r'href="(/jobs\?q=worker[^"]*)">[Ii]ts jobs<', ask("GET", page).text))
        listed = ask("GET", link).text
        assert [f'href="/jobs/{each}"' in listed for each in ids] == [True, True, False], page


def test_a_worker_shows_what_it_holds_by_age_and_each_is_cancelled_after_a_question(
    conn: psycopg.Connection, ask: Ask, clock: Clock
) -> None:
    clock.advance("-30 min")
    register(conn, "w", 80, pid=4085)
    enqueue(conn, "review", queue="cases", key="case:7")
    held = reserve_one(conn, "w", lease="1 min")
    clock.back_to_real()
    enqueue(conn, "send", queue="mail")
    reserve_one(conn, "w", lease="10 min")
    text = ask("GET", "/worker?name=w").text
    shown = " ".join(re.sub(r"<[^>]+>", " ", text).split())
    assert re.search(r"review attempt 1 cases · case:7 30 min 29 min ago Cancel… \d+ send attempt 1 mail", shown)
    assert 'class="by n leased bad"' in text
    assert "Process (pid) 4085" in shown
    assert f'aria-label="Cancel job {held.id}"' in text
    assert "Cancel: 1 job?" in ask("POST", "/act", action="cancel", id=str(held.id), ask="yes").text
