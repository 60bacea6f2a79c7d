"""What a worker counts of the starts and ends of its jobs: for samples, with its heartbeats, and for /metrics."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgqueue import App
from pgqueue.db.call import Call
from pgqueue.db.consume import JobRow
from pgqueue.job import Job
from pgqueue.worker.hold.held import Held
from pgqueue.worker.tell.counts import BOUNDS, MOST, MOST_QUEUES, TROUBLES, Times, Totals
from pgqueue.worker.tell.tell import Counts
from tests.calls import call, enqueue, enqueue_many, job, value
from tests.databases import Database
from tests.facts import wait_until, wait_until_async
from tests.worker.conftest import Start
from tests.worker.test_health import get
from tests.workers import done, working, write_module


def held(task: str = "t", seconds: float = 0.1, waited: float = 2.0, claims: int = 1) -> Held:
    row = JobRow(
        *(1, task, b"", None, "mail", None, 0, 1, 11, claims << 20, 0, 0, round((waited + 30) * 1_000_000)),
        *(None, None, 0, 0, False, "reserved", None),
    )
    found = Held(row, 0.0, 0.0)
    found.attempt.seconds = seconds
    return found


def test_outcomes_and_times_are_summed_by_queue_and_task() -> None:
    counts = Counts(30.0)
    counts.succeeded([held(), held(seconds=0.5)])
    counts.ended(held(), "failed")
    counts.ended(held("other"), "dead")
    first, second = counts.take("beat")
    assert (first["queue"], first["task"], first["succeeded"], first["failed"]) == ("mail", "t", 2, 1)
    assert first["run"]["sum"] == 0.7
    assert first["run"]["max"] == 0.5
    assert sum(first["run"]["buckets"]) == 3
    assert first["wait"]["max"] == 2.0
    assert second["dead"] == 1
    assert counts.take("beat") == []


def test_a_large_batch_is_counted_exactly_and_its_times_by_some_that_stand_for_all() -> None:
    counts = Counts(30.0)
    counts.succeeded([held("a") for _ in range(600)] + [held("b") for _ in range(400)])
    found = {entry["task"]: entry for entry in counts.take("beat")}
    assert (found["a"]["succeeded"], found["b"]["succeeded"]) == (600, 400)
    assert 900 < sum(sum(each["run"]["buckets"]) for each in found.values()) < 1100


def test_each_reader_gets_everything_once_and_what_failed_to_be_sent_again() -> None:
    counts = Counts(30.0)
    counts.follow("supervisor")
    counts.succeeded([held()])
    taken = counts.take("beat")
    counts.put_back("beat", taken)
    counts.succeeded([held()])
    assert [entry["succeeded"] for entry in counts.take("beat")] == [2]
    assert [entry["succeeded"] for entry in counts.take("supervisor")] == [2]
    assert [entry["succeeded"] for entry in counts.entries()] == [2]


def test_starts_are_counted_before_the_end_and_from_any_thread() -> None:
    counts = Counts(30.0)
    batch = held("batch")
    batch.members = [held("batch"), held("batch")]
    threads = [threading.Thread(target=lambda: [counts.started(held()) for _ in range(500)]) for _ in range(8)]
    for each in threads:
        each.start()
    counts.started(batch)
    for each in threads:
        each.join()
    assert {entry["task"]: entry["started"] for entry in counts.take("beat")} == {"t": 4000, "batch": 3}
    counts.succeeded([held()])
    [entry] = counts.take("beat")
    assert (entry["started"], entry["succeeded"]) == (0, 1)


def test_a_job_that_comes_back_has_not_waited_since_its_first_time() -> None:
    counts = Counts(30.0)
    counts.ended(held(waited=5000, claims=2), "succeeded")
    assert "wait" not in counts.take("beat")[0]


def test_the_tasks_beyond_the_most_count_as_other() -> None:
    totals = Totals()
    for number in range(MOST + 50):
        totals.tally("q", f"t{number}").counts["succeeded"] += 1
    found = {entry["task"]: entry["succeeded"] for entry in totals.entries()}
    assert found["other"] == 50


def test_a_process_that_meets_ever_new_queues_counts_so_many_of_them_apart() -> None:
    totals = Totals()
    for number in range(MOST_QUEUES + 50):
        totals.tally(f"q{number}", "t").counts["succeeded"] += 1
    found = {entry["queue"]: entry["succeeded"] for entry in totals.entries()}
    assert (len(found), found["other"]) == (MOST_QUEUES + 1, 50)


async def test_the_counts_of_more_queues_than_a_heartbeat_takes_go_with_several(database: Database) -> None:
    # By itself it sends one a minute.
    async with working(App(), database.dsn, lease=600.0) as worker:
        ended = [held() for _ in range(2100)]
        for number, each in enumerate(ended):
            each.row = each.row._replace(queue=f"q{number}")
        worker.counts.succeeded(ended)
        await worker._registration.report()
        assert worker.counts.take("beat") == []


async def test_a_report_whose_answer_was_lost_is_sent_again_as_it_was(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, Any]] = []
    async with working(App(), database.dsn, lease=600.0) as worker:
        link = worker._registration._link
        perform = link.perform

        async def perform_and_lose_the_first_answer(call: Call[Any], **options: Any) -> Any:
            answer = await perform(call, **options)
            if b"pgqueue.beat" in call.text and call.params[1] is not None:
                sent.append(json.loads(str(call.params[1])))
                if len(sent) == 1:
                    raise asyncio.CancelledError
            return answer

        monkeypatch.setattr(link, "perform", perform_and_lose_the_first_answer)
        worker.counts.succeeded([held()])
        with pytest.raises(asyncio.CancelledError):
            await worker._registration.report()
        worker.counts.succeeded([held(), held()])
        await worker._registration.report_rest()
        monkeypatch.undo()
    first, again, new = sent
    assert first == again
    assert first["id"] != new["id"]
    assert [entry["succeeded"] for report in (again, new) for entry in report["jobs"]] == [1, 2]


async def test_a_report_that_is_refused_does_not_stand_in_the_way_of_later_ones(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(App(), database.dsn, lease=600.0, name="w") as worker:
        worker.counts.succeeded([held("t" * 3_000)])
        await worker._registration.report()
        assert "a heartbeat with the counts of jobs was refused" in caplog.text
        conn.execute("truncate pgqueue.heartbeats")
        worker.counts.succeeded([held()])
        await worker._registration.report()
        # Its own heartbeat may have come as well.
        assert value(conn, "select count(*) from pgqueue.heartbeats") >= 1
        assert worker.counts.take("beat") == []


def test_buckets_hold_values_up_to_their_bound() -> None:
    times = Times()
    for bound in (*BOUNDS, 10_000.0):
        times.add(bound)
    assert times.buckets == [1] * 12


def test_the_last_troubles_are_kept_for_the_next_heartbeat() -> None:
    counts = Counts(30.0)
    for number in range(TROUBLES + 5):
        counts.failed(held(f"t{number}"), "failed", {"class": "ValueError", "message": f"no {number}\nat all"})
    taken = counts.take_troubles()
    assert [each.row.task for each in taken] == [f"t{number}" for number in range(5, TROUBLES + 5)]
    assert counts.take_troubles() == []
    told = taken[-1].as_dict()
    assert (told["task"], told["class"], told["line"], told["state"]) == ("t24", "ValueError", "no 24", "failed")
    assert told["ago"] >= 0
    counts.failed(held("new"), "lost", None)
    assert [each.row.task for each in counts.take_troubles()] == ["new"]
    assert [entry["task"] for entry in counts.take("beat")][-1] == "new"


TASKS = """
    from pgqueue import App

    app = App()

    @app.task
    async def ok(i):
        pass

    @app.task
    async def fails():
        raise ValueError

    @app.task
    def in_a_thread(i):
        pass

    @app.task
    def fails_in_a_thread(i):
        raise ValueError
"""


def test_a_worker_reports_what_ended_and_serves_it(
    start_worker: Start, conn: psycopg.Connection, tmp_path: Path
) -> None:
    write_module(tmp_path, TASKS)
    enqueue_many(conn, 40, "ok")
    enqueue(conn, "fails", max_attempts=1)
    enqueue_many(conn, 30, "in_a_thread")
    enqueue_many(conn, 3, "fails_in_a_thread", max_attempts=1)
    worker = start_worker("-r", "jobs", "--name", "w", "--health-port", "0").started()
    wait_until(lambda: value(conn, "select count(*) from pgqueue.jobs") == 0, timeout=60)
    code, text = get(worker, "/metrics")
    assert code == 200
    assert re.search(r'^pgqueue_jobs_total\{outcome="succeeded",queue="default",task="ok"\} 40\.0$', text, re.MULTILINE)
    assert re.search(r'^pgqueue_job_run_seconds_count\{queue="default",task="ok"\} ', text, re.MULTILINE)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    troubles = conn.execute(
        "select queue, task, attempt, state, class, line from pgqueue.troubles where worker is null"
    ).fetchall()
    assert sorted(troubles) == [
        ("default", "fails", 1, "dead", "ValueError", ""),
        *[("default", "fails_in_a_thread", 1, "dead", "ValueError", "")] * 3,
    ]
    # What it had not reported yet, it reports as it leaves.
    found = {
        (task, name): number
        for task, name, number in conn.execute(
            "select e.task, c.name, sum((e.counts ->> c.name)::numeric) from ("
            "select e.key as task, e.value as counts from pgqueue.samples s cross join jsonb_each(s.ended) e"
            " where s.queue <> '' union all select e ->> 'task', e from pgqueue.worker_reports w"
            " cross join jsonb_array_elements(w.report -> 'jobs') e"
            ") e cross join unnest('{started,succeeded,dead}'::text[]) c (name) where e.counts ? c.name group by 1, 2"
        )
    }
    assert {key: number for key, number in found.items() if number} == {
        ("ok", "started"): 40,
        ("ok", "succeeded"): 40,
        ("fails", "started"): 1,
        ("fails", "dead"): 1,
        ("in_a_thread", "started"): 30,
        ("in_a_thread", "succeeded"): 30,
        ("fails_in_a_thread", "started"): 3,
        ("fails_in_a_thread", "dead"): 3,
    }


async def test_a_cancel_on_request_and_a_sleep_are_counted(database: Database) -> None:
    conn, app = database.connect(), App()
    began = asyncio.Event()

    @app.task
    async def hangs() -> None:
        began.set()
        await asyncio.Event().wait()

    @app.task
    async def sleeps(job: Job) -> None:
        await job.sleep("nap", "1 day")

    async with working(app, database.dsn) as worker:
        asked, asleep = enqueue(conn, "hangs"), enqueue(conn, "sleeps")
        await began.wait()
        call(conn, "cancel", asked)
        assert await done(conn, asked) == ["cancelled"]
        await wait_until_async(lambda: job(conn, asleep).state == "waiting")
        counted: dict[tuple[str, str], int] = {}

        def count() -> bool:
            for entry in worker.counts.entries():
                counted.update({(entry["task"], name): entry.get(name, 0) for name in ("cancelled", "snoozed")})
            return (counted["hangs", "cancelled"], counted["sleeps", "snoozed"]) == (1, 1)

        await wait_until_async(count)
