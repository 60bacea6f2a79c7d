"""The overview: one sentence on top, the queues in the order of need, and capacity drawn as slots."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue import verdict
from pgqueue.db import observe, samples
from pgqueue.db.call import Call, read_column
from pgqueue.testing import Clock
from pgqueue.web import series
from pgqueue.web.database import _READS
from tests.calls import call, enqueue, enqueue_many, maintain, reserve, value
from tests.facts import wait_until
from tests.web.test_blocked_by import words
from tests.web.test_sparklines import nodes

Ask = Callable[..., httpx.Response]


def said(page: str) -> str:
    """Return the sentence on top."""
    [found] = re.findall(r'<p class="said">(.*?)</p>', page)
    return " ".join(re.sub(r"<[^>]+>", "", found).split())


def rows(page: str) -> dict[str, str]:
    """Return the HTML of each row of the queues by its name, in order."""
    parts = page.split('<div class="row"')[1:]
    return {re.findall(r'<a class="t"[^>]*>([^<]*)', part)[0]: part.partition("</section>")[0] for part in parts}


def register(conn: psycopg.Connection, worker: str, queues: list[str] | None, concurrency: object) -> None:
    call(conn, "hello", worker, queues, Jsonb({"concurrency": concurrency}))


def test_it_says_in_one_line_that_all_is_well(
    conn: psycopg.Connection, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server of the tests does not sync its disks, which the doctor finds.
    monkeypatch.setattr(observe, "doctor", lambda: Call(b"select 1 where false", (), read_column))
    register(conn, "w", ["mail"], 4)
    enqueue(conn, queue="mail")
    maintain(conn)
    page = ask("GET", "/").text
    assert said(page).startswith("Everything is on time")
    assert 'class="verdict ok"' in page


def test_a_warning_of_the_doctor_does_not_hide_that_all_is_on_time(
    conn: psycopg.Connection, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = b"select jsonb_build_object('severity', 'warning', 'topic', 'schedule', 'subject', 'nightly',"
    found += b" 'evidence', 'one run was left out', 'remedy', 'pgqueue schedules show nightly')"
    monkeypatch.setattr(observe, "doctor", lambda: Call(found, (), read_column))
    maintain(conn)
    page = ask("GET", "/").text
    assert said(page) == "Everything is on time: no job waits."
    assert '<a href="/health">1 finding</a>: schedule, nightly' in page
    # The answer first: what was found, and what to do.
    assert "<strong>schedule, nightly</strong>: one run was left out" in page
    assert 'data-copy="pgqueue schedules show nightly"' in page


def test_without_a_worker_the_pages_count_what_waits_and_do_not_say_that_none_does(
    conn: psycopg.Connection, ask: Ask, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe, "doctor", lambda: Call(b"select 1 where false", (), read_column))
    clock.advance("-10 s")
    maintain(conn)
    enqueue(conn, queue="mail")
    clock.back_to_real()
    page = ask("GET", "/").text
    assert said(page) == "1 job waits, and no worker is alive: start one."
    assert 'data-copy="pgqueue worker -r MODULE"' in page
    assert '<div class="n count">1</div>' in rows(page)["mail"]
    assert "none waits" not in page


def test_what_is_late_without_a_sample_is_late_in_every_part_of_the_pages(
    conn: psycopg.Connection, ask: Ask, clock: Clock
) -> None:
    clock.advance("-6 min")
    maintain(conn)
    enqueue(conn, queue="mail")
    clock.back_to_real()
    page = ask("GET", "/").text
    assert re.match(r"mail is 6(\.\d)? min late: no worker serves it", said(page))
    assert 'class="lag critical"' in rows(page)["mail"]
    assert '<div class="n count">1</div>' in rows(page)["mail"]
    assert "none waits" not in page
    assert 'class="lag critical"' in ask("GET", "/queues").text


def test_numbers_of_no_sample_are_counted_up_to_a_bound(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 10_001, queue="mail")
    found = call(conn, "stats", recent=None)
    [mail] = found["queues"]
    assert found["sampled_at"] is None
    assert (mail["due"], mail["counted_to"]) == (10_000, 10_000)
    register(conn, "w", ["mail"], 4)
    call(conn, "beat", "w")
    maintain(conn)
    assert call(conn, "stats", recent=None)["sampled_at"] is not None


def test_numbers_of_a_sample_say_when_it_was_taken(conn: psycopg.Connection, ask: Ask, clock: Clock) -> None:
    # The clock of the queue stays behind that of the server, by which a page says how long ago something was.
    clock.advance("-50 s")
    register(conn, "w", ["mail"], 4)
    call(conn, "beat", "w")
    enqueue(conn, queue="mail")
    maintain(conn)
    for page in ("/", "/queues", "/queue?name=mail"):
        shown = re.sub(r"<[^>]+>", "", ask("GET", page).text)
        # What is read once a minute says so too, below.
        [(count, unit), *_] = re.findall(r"as of ([\d.]+) (s|min) ago", shown)
        assert unit == "min" or float(count) >= 50, page


def test_it_names_the_queue_that_is_late_the_cause_and_the_command(
    conn: psycopg.Connection, ask: Ask, clock: Clock
) -> None:
    clock.advance("-40 min")
    enqueue(conn, queue="mail")
    clock.back_to_real()
    register(conn, "w", ["other"], 4)
    maintain(conn)
    page = ask("GET", "/").text
    assert said(page) == "mail is 40 min late: no worker serves it."
    assert 'class="verdict critical"' in page
    assert re.search(r'data-copy="pgqueue worker [^"]*--queue mail"', page)
    # By colour, shape and word.
    assert re.search(r'class="lag critical" title="very late".*#l-critical.*40 min', rows(page)["mail"])
    # A mark is where the history begins, or since when jobs hold the slots.
    assert 'class="begins" x1=""' not in page


def test_the_list_of_queues_names_the_cause_of_each_that_is_late(
    conn: psycopg.Connection, ask: Ask, clock: Clock
) -> None:
    clock.advance("-40 min")
    enqueue(conn, queue="mail")
    enqueue(conn, queue="held")
    clock.back_to_real()
    call(conn, "pause_queue", "held")
    enqueue(conn, queue="other")
    maintain(conn)
    page = ask("GET", "/queues").text
    # A paused queue says that it is.
    assert re.findall(r'href="/queue\?name=(\w+)">\w+</a> <small class="muted">([^<]*)</small>', page) == [
        ("mail", "no worker serves it")
    ]


def test_the_number_beside_the_sentence_says_where_it_was_counted_before(
    conn: psycopg.Connection, ask: Ask, clock: Clock
) -> None:
    clock.advance("-40 min")
    enqueue(conn, queue="mail")
    clock.back_to_real()
    register(conn, "w", ["other"], 4)
    call(conn, "beat", "w")
    maintain(conn)
    conn.execute(
        "update pgqueue.samples set counted_at = at - interval '3 min', is_ready_kept = true where queue = 'mail'"
    )
    assert "<span>due jobs of mail, last hour</span><b>~1</b>" in ask("GET", "/").text


def test_what_else_is_wrong_stands_below_the_sentence(
    conn: psycopg.Connection, ask: Ask, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = b"select jsonb_build_object('severity', 'warning', 'topic', 'old_snapshot', 'subject', 'session 17',"
    found += b" 'evidence', 'a report holds back vacuum', 'remedy', 'select pg_terminate_backend(17);')"
    monkeypatch.setattr(observe, "doctor", lambda: Call(found, (), read_column))
    clock.advance("-40 min")
    enqueue(conn, queue="mail")
    clock.back_to_real()
    maintain(conn)
    page = ask("GET", "/").text
    assert said(page).startswith("mail is 40 min late")
    assert "<strong>old snapshot, session 17</strong>: a report holds back vacuum" in page


def test_beside_free_slots_a_late_queue_is_not_said_to_lack_workers(
    conn: psycopg.Connection, ask: Ask, clock: Clock
) -> None:
    call(conn, "declare_task", "t")
    clock.advance("-10 min")
    enqueue(conn, queue="mail")
    clock.back_to_real()
    register(conn, "w", ["mail"], 4)
    maintain(conn)
    page = ask("GET", "/").text
    assert said(page) == "mail is 10 min late: its workers do not keep up."
    assert re.search(r"executing jobs take 0 of 4 slots of (worker )?w", page)


def test_the_sentence_has_the_age_that_the_table_has_though_the_cause_was_asked_for_before() -> None:
    row = {"queue_name": "mail", "severity": "warning", "cause": "workers", "subject": "mail", "evidence": "e"}
    asked = [{**row, "remedy": "r", "lag": 280.0, "stuck_for": 0.0}]
    numbers = {"queue": "mail", "paused_at": None, "lag": 320.0, "stuck_for": 0.0, "due": 9}
    reached = verdict.reach(asked, (), [numbers])
    assert (reached.lag, reached.level) == (verdict.age(numbers), "critical") == (320.0, "critical")
    # No sample has it yet.
    assert verdict.reach(asked, (), []).lag == 280.0


def test_findings_that_the_causes_of_late_queues_name_are_not_counted_again() -> None:
    late = [
        {"cause": "workers", "subject": "mail"},
        {"cause": "database", "subject": "session 17"},
        {"cause": "unknown_task", "subject": "send"},
        {"cause": "no_worker", "subject": "a"},
        {"cause": "limit", "subject": "task:t"},
    ]
    told = [("lag", "mail"), ("old_snapshot", "session 17"), ("given_back", "send"), ("no_worker", "2 queues")]
    left = [("limit", "task:u"), ("starved", "2 queues"), ("memory", "w"), ("schedule", "mail")]
    findings = [{"topic": topic, "subject": subject} for topic, subject in [*told, ("limit", "task:t"), *left]]
    assert [(each["topic"], each["subject"]) for each in verdict.beside(late, findings)] == left


def test_what_is_late_stands_before_what_is_busy_and_quiet_queues_fold(
    conn: psycopg.Connection, ask: Ask, clock: Clock
) -> None:
    clock.advance("-10 min")
    enqueue(conn, queue="late")
    clock.back_to_real()
    enqueue_many(conn, 20, queue="busy")
    for number in range(8):
        enqueue(conn, queue=f"quiet-{number}")
    maintain(conn)
    page = ask("GET", "/").text
    names = list(rows(page))
    assert names[0] == "late"
    assert len(names) == 5
    assert "<strong>5 quiet queues</strong>, on time: 5 due" in page


def test_capacity_is_drawn_as_slots_and_shows_what_other_queues_take(conn: psycopg.Connection, ask: Ask) -> None:
    register(conn, "w", ["a", "b"], 4)
    enqueue_many(conn, 5, queue="a")
    enqueue(conn, queue="b")
    reserve(conn, 3, "w", queues=["a"])
    maintain(conn)
    found = rows(ask("GET", "/").text)
    assert 'aria-label="3 of 4 slots run"' in found["a"]
    assert [found["a"].count(f'class="{each}"') for each in ("own", "taken", "free")] == [3, 0, 1]
    assert 'aria-label="0 of 4 slots run; 3 are taken by other queues"' in found["b"]
    assert [found["b"].count(f'class="{each}"') for each in ("own", "taken", "free")] == [0, 3, 1]


def test_jobs_that_are_held_beyond_the_slots_of_a_worker_run_in_none(conn: psycopg.Connection, ask: Ask) -> None:
    register(conn, "w", ["a"], 12)
    register(conn, "free", ["a"], 4)
    enqueue_many(conn, 20, queue="a")
    reserve(conn, 20, "w")
    maintain(conn)
    page = ask("GET", "/").text
    assert re.search(r"<dt>Executing</dt><dd>12 <small>of 16 slots</small></dd><dd>8 more held, none far", page)
    assert 'aria-label="12 of 16 slots run; 8 more jobs are held, fetched ahead or in a batch"' in rows(page)["a"]
    assert '<span class="n ">12 of 12, 8 more held</span>' in page
    page = ask("GET", "/workers").text
    assert "0 of 12 slots free, 8 more jobs held" in page
    assert "4 of 4 slots free<" in page
    assert page.count('<a class="cell') == 12
    assert page.count('class="cell free"') == 4
    assert re.search(r"<dt>Slots in use</dt><dd>12 <small>of 16</small></dd><dd>8 more jobs held</dd>", page)
    assert "12 of 16 slots, 8 more held" in ask("GET", "/queue?name=a").text


@pytest.mark.parametrize("concurrency", ["many", None, -1, 10**12, True])
def test_a_worker_that_says_nonsense_of_its_slots_breaks_no_page(
    conn: psycopg.Connection, ask: Ask, concurrency: object
) -> None:
    register(conn, "w", None, concurrency)
    enqueue_many(conn, 2, queue="a")
    reserve(conn, 2, "w")
    maintain(conn)
    assert ask("GET", "/").text.count("2 of 2 slots run") >= 1


def test_what_runs_ten_times_longer_than_usual_is_far_too_long(
    conn: psycopg.Connection, ask: Ask, clock: Clock
) -> None:
    register(conn, "w", ["a"], 4)
    run = {"sum": 100.0, "max": 1.0, "buckets": [0, 0, 0, 0, 0, 100, 0, 0, 0, 0, 0, 0]}
    jobs = [{"queue": "a", "task": task, "succeeded": 100, "run": run} for task in ("slow", "fresh")]
    call(conn, "beat", "w", Jsonb({"jobs": jobs}))
    maintain(conn)
    enqueue(conn, "fresh", queue="a")
    clock.advance("-10 min")
    enqueue(conn, "slow", queue="a")
    reserve(conn, 1, "w", lease="1 h")
    clock.back_to_real()
    reserve(conn, 1, "w")
    maintain(conn)
    assert 'aria-label="2 of 4 slots run, 1 of them far too long"' in rows(ask("GET", "/").text)["a"]


def test_the_oldest_job_that_waits_stands_beside_the_percentiles_of_starts(
    conn: psycopg.Connection, ask: Ask, clock: Clock
) -> None:
    clock.advance("-40 min")
    enqueue(conn, queue="a")
    clock.back_to_real()
    register(conn, "w", ["a"], 4)
    wait = {"sum": 1.0, "max": 0.02, "buckets": [0, 0, 0, 100, 0, 0, 0, 0, 0, 0, 0, 0]}
    call(conn, "beat", "w", Jsonb({"jobs": [{"queue": "a", "task": "t", "started": 100, "wait": wait}]}))
    maintain(conn)
    found = ask("GET", "/series").json()
    assert 0.016 < found["p50"][-1] < found["p95"][-1] < found["p99"][-1] <= 0.064
    assert 2400 <= found["oldest"][-1] < 2500


def test_what_was_enqueued_is_what_there_is_more_and_what_left(conn: psycopg.Connection, ask: Ask) -> None:
    ended, now = Jsonb({"t": {"started": 40, "succeeded": 30, "dead": 10}}), value(conn, "select now()")
    for ago, waiting, gone in ((30, 10, None), (20, 30, ended)):
        conn.execute(
            "insert into pgqueue.samples"
            " (at, span, queue, waiting, due, scheduled, failed, blocked, executing, dead, ended)"
            " select %s - %s * interval '1 s', 10, q, %s, 0, 0, 0, 0, 0, 0, %s from unnest(array['', 'a']) q",
            [now, ago, waiting, gone],
        )
    assert ask("GET", "/series?queue=a").json()["enqueued"] == [None, pytest.approx(6.0, rel=0.01)]
    assert "<span>in</span><b>6.0</b><span>out</span><b>2.0</b>" in rows(ask("GET", "/").text)["a"]


@pytest.mark.parametrize(
    ("buckets", "part", "least", "most"),
    [
        ([0] * 12, 0.5, None, None),
        ([0, 0, 0, 0, 0, 8] + [0] * 6, 0.5, 0.4, 0.6),
        ([4] + [0] * 10 + [4], 1, 3600, 14400),
    ],
)
def test_a_percentile_lies_within_its_bucket(buckets: list[float], part: float, least: Any, most: Any) -> None:
    found = series.percentile(buckets, part)
    assert found is None if least is None else found is not None and least <= found <= most


@pytest.mark.parametrize(
    ("statement", "most"),
    [
        # 101 rows at each of six times, and those of a quarter of an hour and of ten minutes.
        (samples.lately(60), 7 * 101),
        (samples.died(86_400), 91 * 101),
        (samples.runs_of_a_day(), 61 * 101),
    ],
    ids=["rates", "dead today", "usual runs"],
)
def test_what_the_overview_reads_of_samples_does_not_grow_with_their_number(
    conn: psycopg.Connection, statement: Call[Any], most: int
) -> None:
    conn.execute(
        "insert into pgqueue.samples (at, span, queue, waiting, due, scheduled, failed, blocked, executing, dead)"
        " select now() - n * interval '10 s', 10, case q when 0 then '' else 'q' || q end, 0, 1, 0, 0, 0, 0, 0"
        " from generate_series(1, 1000) n, generate_series(0, 100) q"
    )
    conn.execute("analyze pgqueue.samples")
    with conn.transaction():
        conn.execute(_READS)
        explained = conn.execute(b"explain (analyze, format json) " + statement.text, statement.params).fetchone()
    assert explained is not None
    read = [each for each in nodes(explained[0][0]["Plan"]) if each.get("Relation Name") == "samples"]
    assert read
    assert all(each["Node Type"] != "Seq Scan" for each in read)
    rows = sum((each["Actual Rows"] + each.get("Rows Removed by Filter", 0)) * each["Actual Loops"] for each in read)
    assert rows <= most


def test_what_jobs_die_of_is_masked_with_marks_and_has_a_trend(conn: psycopg.Connection, ask: Ask) -> None:
    for number in (17, 4711):
        enqueue(conn, "import", queue="a")
        [row] = reserve(conn, 1, "w")
        error = {"class": "ValueError", "message": f"row {number} <b>"}
        call(conn, "fail", row.id, row.reservation, Jsonb(error), retry=False)
    maintain(conn)
    for page in ("/", "/dead"):
        text = ask("GET", page).text
        assert 'row <span class="mask">‹n›</span> &lt;b&gt;' in text
        assert "ValueError: deaths in each hour of the last day, 2 at most" in text


def test_what_died_within_a_day_stands_beside_what_usually_dies(conn: psycopg.Connection, ask: Ask) -> None:
    for ago, dead in (("1 h", 2), ("30 hours", 1)):
        conn.execute(
            "insert into pgqueue.samples"
            " (at, span, queue, waiting, due, scheduled, failed, blocked, executing, dead, ended)"
            " select pgqueue._clock() - %s::interval - n * interval '10 min', 600, '', 0, 0, 0, 0, 0, 0, 0,"
            " jsonb_build_object('t', jsonb_build_object('dead', %s::integer)) from generate_series(1, %s) n",
            [ago, dead, 3 if dead == 2 else 288],
        )
    page = ask("GET", "/").text
    assert "Died within a day 6 usually 144" in words(page)
    assert "<dd>6</dd><dd>usually 144</dd>" in page


def test_a_paused_queue_says_since_when_by_whom_and_why_and_the_due_jobs_say_that_its_own_are_among_them(
    conn: psycopg.Connection, ask: Ask
) -> None:
    register(conn, "w", ["mail", "news"], 4)
    enqueue_many(conn, 3, queue="mail")
    enqueue_many(conn, 5, queue="news")
    maintain(conn)
    assert "Due 8 0 to be retried" in words(ask("GET", "/").text)
    ask("POST", "/limit", do="pause", kind="queue", target="news", reason="the letter has a typo")
    page = ask("GET", "/").text
    assert re.search(r"Paused [\d.]+ m?s ago by alice: the letter has a typo; 5 due", words(rows(page)["news"]))
    assert "Due 8 5 of them paused" in words(page)
    said = r"paused [\d.]+ m?s ago by alice: the letter has a typo"
    assert re.search(said, words(ask("GET", "/queue?name=news").text))
    assert re.search(said, words(ask("GET", "/queues").text))


def test_a_queue_that_was_late_says_when_it_was(conn: psycopg.Connection, ask: Ask) -> None:
    register(conn, "w", ["mail"], 4)
    enqueue(conn, queue="mail")
    conn.execute(
        "insert into pgqueue.samples"
        " (at, span, queue, waiting, due, scheduled, failed, blocked, executing, dead, oldest_due_at)"
        " select now() - n * interval '1 min', 10, q, 1, 1, 0, 0, 0, 0, 0,"
        " now() - n * interval '1 min' - case when n between 12 and 20 then n * interval '10 s' else '0' end"
        " from generate_series(1, 30) n, unnest(array['', 'mail']) q"
    )
    maintain(conn)
    said = r"last late 12 min ago, 3\.3 min at most"
    assert re.search(
        f"On time; {said}", words(rows(ask("GET", "/").text)["mail"]).replace(" ,", ",").replace(" ;", ";")
    )
    for page in ("/queue?name=mail", "/queues"):
        assert re.search(said, words(ask("GET", page).text).replace(" ,", ",")), page


def test_a_plot_says_where_the_recorded_history_begins(conn: psycopg.Connection, ask: Ask, clock: Clock) -> None:
    nothing = ask("GET", "/series?range=7+d").json()
    assert nothing["begins"] == nothing["to"]
    register(conn, "w", ["mail"], 4)
    clock.advance("-20 min")
    maintain(conn)
    clock.back_to_real()
    maintain(conn)
    assert ask("GET", "/series?range=15+min").json()["begins"] is None
    hour = ask("GET", "/series?range=1+h").json()
    assert 1190 < hour["to"] - hour["begins"] < 1260


def test_the_sentence_shows_since_when_jobs_hold_the_slots(conn: psycopg.Connection, ask: Ask, clock: Clock) -> None:
    clock.advance("-40 min")
    register(conn, "w", ["payments"], 2)
    enqueue_many(conn, 2, "review_case", queue="payments")
    held = reserve(conn, 2, "w", queues=["payments"], lease="1 day")
    call(conn, "started", [row.id for row in held], [row.reservation for row in held])
    maintain(conn)
    enqueue_many(conn, 3, "capture", queue="payments")
    clock.back_to_real()
    call(conn, "beat", "w")
    maintain(conn)
    page = ask("GET", "/").text
    assert said(page).startswith("payments is 40 min late: review_case takes its slots")
    figure = page.partition("<figure>")[2].partition("</figure>")[0]
    assert "1 h ago 2 review_case since 40 min now" in words(figure)
    assert '<line class="begins" x1="40' in figure or '<line class="begins" x1="39.' in figure
    assert "served by w only" in words(ask("GET", "/queue?name=payments").text)


def test_the_number_of_executing_jobs_says_where_more_may_run(
    conn: psycopg.Connection, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(conn, "w", None, 4)
    enqueue_many(conn, 3)
    reserve(conn, 3, "w")
    monkeypatch.setattr(observe, "MOST_EXECUTING", 2)
    assert "Executing 2+ of 4 slots" in words(ask("GET", "/").text)


def test_the_due_jobs_of_quiet_queues_are_of_before_only_where_due_jobs_are(conn: psycopg.Connection, ask: Ask) -> None:
    register(conn, "w", None, 4)
    for number in range(8):
        enqueue(conn, queue=f"q{number}")
    maintain(conn)
    conn.execute("update pgqueue.samples set is_large = true, counted_at = at - interval '3 min'")
    assert re.search(r"3 quiet queues , on time: 3 due, the oldest", words(ask("GET", "/").text))
    conn.execute("update pgqueue.samples set is_ready_kept = true")
    wait_until(lambda: "on time: ~3 due, the oldest" in words(ask("GET", "/").text))
    assert re.search(r"~3 due, the oldest for [\d.]+ m?s ~ counted 3(\.\d)? min ago", words(ask("GET", "/").text))


def test_jobs_that_were_not_counted_to_the_end_are_at_least_as_many() -> None:
    mail = {"queue": "mail", "paused_at": None, "lag": 3, "stuck_for": 0, "due": 10_000, "counted_to": 10_000}
    assert verdict.reach([], [], [mail], 0).words.startswith("at least 10,000 jobs wait, and no worker is alive")
    assert verdict.reach([], [], [{**mail, "due": 9_000}], 0).words.startswith("9,000 jobs wait")
