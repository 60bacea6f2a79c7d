"""A worker process is killed between a step and its completion."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.calls import enqueue, job, state, table, value
from tests.databases import Database
from tests.facts import wait_until
from tests.workers import WorkerProcess, write_module

TASKS = """
import os, time
import psycopg
from pgqueue import App, Job

app = App()

def note(job, what, connection=None):
    with psycopg.connect(os.environ["PGQUEUE_DSN"], autocommit=True) as own:
        (connection or own).execute("insert into notes_of_test values (%s, %s, %s)", [job.id, what, job.reservation])

def hang_the_first_time(what):
    # The first process alone is killed here.
    if os.environ["HANGS"] == what:
        time.sleep(600)

@app.task(max_attempts=1)
def order(job: Job) -> None:
    def before():
        note(job, "before")
        return job.reservation
    def charge():
        note(job, "charge")
        hang_the_first_time("after the call")
        return job.reservation
    def pay():
        with psycopg.connect(os.environ["PGQUEUE_DSN"]) as own:
            note(job, "pay", own)
            assert job.complete_step(own, "pay", job.reservation)
            note(job, "reached pay")
            hang_the_first_time("in the transaction")
        note(job, "committed pay")
        hang_the_first_time("after the commit")
        return job.reservation
    first = job.step("before", before)
    charged = job.step("charge", charge)
    paid = job.step("pay", pay)
    note(job, f"done {first} {charged} {paid}")
"""


@pytest.fixture
def both(database: Database, conn: psycopg.Connection, tmp_path: Path) -> Iterator[list[WorkerProcess]]:
    write_module(tmp_path, TASKS)
    conn.execute("create table notes_of_test (job bigint, what text, reservation bigint)")
    workers: list[WorkerProcess] = []
    yield workers
    for worker in workers:
        worker.kill()


def count(conn: psycopg.Connection, what: str) -> int:
    found: int = value(conn, "select count(*) from notes_of_test where what = %s", what)
    return found


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("hangs", "reached", "charges", "effects"),
    [
        # Called, and not stored: it is called once more.
        ("after the call", "charge", 2, 1),
        # Its effect and the step are rolled back together.
        ("in the transaction", "reached pay", 1, 1),
        # Stored: the next attempt gets the result of the one that was killed.
        ("after the commit", "committed pay", 1, 1),
    ],
)
def test_a_worker_is_killed_between_a_step_and_its_completion(
    database: Database,
    conn: psycopg.Connection,
    tmp_path: Path,
    both: list[WorkerProcess],
    hangs: str,
    reached: str,
    charges: int,
    effects: int,
) -> None:
    # The lease of a busy process does not lapse while it lives.
    options = ("-r", "jobs:app", "--lease", "600", "--poll-interval", "0.2")
    job_id = enqueue(conn, "order")
    first = WorkerProcess(tmp_path, database.dsn, *options, environment={"HANGS": hangs})
    both.append(first)
    wait_until(lambda: count(conn, reached) == 1, timeout=30)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    # What it had sent would extend the lease after that.
    others = "datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()"
    wait_until(lambda: value(conn, f"select count(*) from pg_stat_activity where {others}") == 0)
    conn.execute("update pgqueue.jobs set lease_expires_at = clock_timestamp(), grace_given = true")
    both.append(WorkerProcess(tmp_path, database.dsn, *options, environment={"HANGS": "nowhere"}))
    wait_until(lambda: state(conn, job_id) == "succeeded", timeout=60)
    assert (count(conn, "before"), count(conn, "charge"), count(conn, "pay")) == (1, charges, effects)
    # A lost lease is no attempt.
    assert job(conn, job_id).attempts == 1
    assert [row.name for row in table(conn, "steps", job_id)] == ["before", "charge", "pay"]
    done = value(conn, "select what from notes_of_test where what like 'done %%'")
    by_first = value(conn, "select min(reservation) from notes_of_test")
    by_second = value(conn, "select max(reservation) from notes_of_test")
    charged = by_second if hangs == "after the call" else by_first
    paid = by_first if hangs == "after the commit" else by_second
    assert done == f"done {by_first} {charged} {paid}"
