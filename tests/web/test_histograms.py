"""Histograms of how long jobs of a queue wait and run, in /metrics of the pages."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import httpx
import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue import metrics
from pgqueue.db import samples
from pgqueue.web import database as pool
from pgqueue.web.database import PageDatabase
from tests.databases import Database

# Half a second is in the sixth of the buckets, up to a second.
HALF = 5


def sample(conn: psycopg.Connection, queue: str, jobs: int, ago: str = "0 s") -> None:
    """Add a sample in which jobs of two tasks had waited, and run, for half a second each."""
    conn.execute(
        "insert into pgqueue.samples"
        " (at, span, queue, waiting, due, scheduled, failed, blocked, executing, dead, ended)"
        " values (pgqueue._clock() - %s::interval, 10, %s, 0, 0, 0, 0, 0, 0, 0, %s)",
        [ago, queue, Jsonb({"one": entry(jobs - 1), "other": entry(1), "started only": {"started": 3}})],
    )


def entry(jobs: int) -> dict[str, object]:
    times = {"sum": 0.5 * jobs, "max": 0.5, "buckets": [jobs if bucket == HALF else 0 for bucket in range(12)]}
    return {"started": jobs, "succeeded": jobs, "wait": times, "run": times}


def counted(times: metrics.QueueTimes) -> dict[str, int]:
    return {queue: found["buckets"][HALF] for queue, found in times.of("wait")}


def test_the_pages_serve_histograms_of_queues(conn: psycopg.Connection, ask: Callable[..., httpx.Response]) -> None:
    sample(conn, "mail", 3)
    sample(conn, "", 3)
    # Before the pages are first asked, ten minutes count.
    sample(conn, "mail", 4, ago="9 min")
    sample(conn, "mail", 5, ago="11 min")
    text = ask("GET", "/metrics").text
    for kind in ("wait", "run"):
        assert f'pgqueue_queue_{kind}_seconds_bucket{{le="0.25",queue="mail"}} 0.0' in text
        assert f'pgqueue_queue_{kind}_seconds_bucket{{le="1.0",queue="mail"}} 7.0' in text
        assert f'pgqueue_queue_{kind}_seconds_count{{queue="mail"}} 7.0' in text
        assert f'pgqueue_queue_{kind}_seconds_sum{{queue="mail"}} 3.5' in text
    assert '_seconds_count{queue=""}' not in text


async def test_each_sample_counts_once_however_often_the_pages_are_asked(
    conn: psycopg.Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: now))
    pages = PageDatabase(database.dsn)
    try:
        assert counted(await pages.times_of_queues()) == {}
        now += 11
        sample(conn, "mail", 3)
        assert counted(await pages.times_of_queues()) == {"mail": 3}
        sample(conn, "mail", 4)
        sample(conn, "reports", 2)
        # One answer serves for ten seconds.
        assert counted(await pages.times_of_queues()) == {"mail": 3}
        now += 11
        assert counted(await pages.times_of_queues()) == {"mail": 7, "reports": 2}
        # An action forgets the answers, and no sample counts again.
        pages.forget()
        assert counted(await pages.times_of_queues()) == {"mail": 7, "reports": 2}
    finally:
        await pages.close()


async def test_of_many_samples_the_newest_count_also_where_the_pages_are_first_asked(
    conn: psycopg.Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "_MOST", 2)
    for number, queue in enumerate(("a", "b", "c")):
        sample(conn, queue, 3, ago=f"{60 - number} s")
    pages = PageDatabase(database.dsn)
    try:
        assert counted(await pages.times_of_queues()) == {"b": 3, "c": 3}
        sample(conn, "d", 4)
        pages.forget()
        assert counted(await pages.times_of_queues()) == {"b": 3, "c": 3, "d": 4}
    finally:
        await pages.close()


async def test_samples_count_on_where_a_restored_database_numbers_them_from_lower_on(
    conn: psycopg.Connection, database: Database
) -> None:
    pages = PageDatabase(database.dsn)
    try:
        for _ in range(3):
            sample(conn, "mail", 1)
        assert counted(await pages.times_of_queues()) == {"mail": 3}
        conn.execute("truncate pgqueue.samples restart identity")
        # From the dump: it has been counted.
        sample(conn, "mail", 1)
        pages.forget()
        assert counted(await pages.times_of_queues()) == {"mail": 3}
        sample(conn, "mail", 4)
        pages.forget()
        assert counted(await pages.times_of_queues()) == {"mail": 7}
    finally:
        await pages.close()


def test_the_pages_serve_how_attempts_ended_by_task(
    conn: psycopg.Connection, ask: Callable[..., httpx.Response]
) -> None:
    sample(conn, "mail", 3)
    sample(conn, "", 3)
    conn.execute("update pgqueue.samples set ended = ended || %s where queue = 'mail'", [Jsonb({"odd": {"dead": 2}})])
    text = ask("GET", "/metrics").text
    for task, outcome, attempts in (("one", "succeeded", 2), ("other", "succeeded", 1), ("odd", "dead", 2)):
        labels = f'outcome="{outcome}",queue="mail",task="{task}"'
        assert f"pgqueue_queue_attempts_total{{{labels}}} {attempts}.0" in text
    assert 'pgqueue_queue_attempts_total{outcome="started"' not in text
    assert "started only" not in text


def test_histograms_of_several_databases_name_theirs() -> None:
    times = metrics.QueueTimes()
    times.add([(1, "mail", {"t": entry(2)})])
    text = metrics.as_text(metrics.of_times({"crm": metrics.QueueTimes(), "shop": times})).decode()
    assert 'pgqueue_queue_wait_seconds_count{database="shop",queue="mail"} 2.0' in text
    assert "crm" not in text


def test_of_thousands_of_queues_those_with_most_jobs_have_a_histogram() -> None:
    times = metrics.QueueTimes()
    times.add((n, f"q{n:04}", {"t": entry(n)}) for n in range(1, 1001))
    assert [queue for queue, _ in times.of("run")] == [f"q{n:04}" for n in range(501, 1001)]
    assert times.last == 1000


def test_of_thousands_of_tasks_those_with_most_attempts_are_counted() -> None:
    times = metrics.QueueTimes()
    times.add([(1, "mail", {f"t{n:04}": {"succeeded": n} for n in range(1, 3001)})])
    assert [task for _, task, _ in times.ends()] == [f"t{n:04}" for n in range(1001, 3001)]
