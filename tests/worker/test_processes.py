"""Worker processes: killed, suspended, asked to end."""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from tests.calls import enqueue, enqueue_many, job, state, value
from tests.facts import wait_until
from tests.worker.conftest import Start
from tests.workers import write_module

# Handlers say in a file that they ran, in a way that survives the process: "<task> <job> <attempt>".
TASKS = """
    import asyncio, pathlib, threading, time
    from pgqueue import App, Job

    app = App()
    here = pathlib.Path(__file__).parent

    def say(what, job):
        with (here / "ran").open("a") as file:
            file.write(f"{what} {job.id} {job.attempt}\\n")

    def until_told(job):
        while not (here / "go").exists():
            time.sleep(0.01)

    @app.task
    async def quick(i: int, job: Job):
        say("quick", job)
        await asyncio.sleep(0.002)

    @app.task
    async def long(job: Job):
        say("began", job)
        while not (here / "go").exists():
            await asyncio.sleep(0.01)
        say("ended", job)

    @app.task
    def long_sync(job: Job):
        say("began", job)
        until_told(job)
        say("ended", job)
"""


@pytest.fixture(autouse=True)
def tasks(tmp_path: Path) -> None:
    write_module(tmp_path, TASKS)
    (tmp_path / "ran").touch()


def ran(directory: Path) -> Counter[tuple[str, int]]:
    lines = (directory / "ran").read_text().splitlines()
    return Counter((what, int(job_id)) for what, job_id, _ in (line.split() for line in lines))


def go(directory: Path) -> None:
    (directory / "go").touch()


def unfinished(conn: psycopg.Connection) -> int:
    return int(value(conn, "select count(*) from pgqueue.jobs"))


@pytest.mark.long
@pytest.mark.covers("G9", "D2", "D3", "D4", "L13")
def test_a_worker_killed_in_the_middle_of_a_thousand_jobs_loses_none(
    conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    killed, other = (start_worker("-r", "jobs", "-c", "10", "--lease", "6", "--name", name) for name in "ab")
    killed.started()
    other.started()
    jobs = enqueue_many(conn, 1000, "quick")
    wait_until(
        lambda: (
            value(conn, "select count(*) from pgqueue.history where reserved_by = 'a'") > 100
            and value(conn, "select count(*) from pgqueue.jobs where reserved_by = 'a' and state = 'executing'") > 0
        )
    )
    killed.send(signal.SIGKILL)
    killed.wait()
    in_flight = value(conn, "select count(*) from pgqueue.jobs where reserved_by = 'a' and state = 'executing'")
    wait_until(lambda: unfinished(conn) == 0, timeout=30)
    assert value(conn, "select count(*) from pgqueue.history where state = 'succeeded'") == 1000
    counts = ran(tmp_path)
    assert {job_id for _, job_id in counts} == set(jobs)
    # Only what was in flight ran a second time, and no try was counted for it.
    assert in_flight > 0
    assert sum(counts.values()) - 1000 <= in_flight
    assert value(conn, "select max(attempts) from pgqueue.history") == 1


@pytest.mark.covers("G9", "D2", "D3")
@pytest.mark.parametrize("task", ["long", "long_sync"])
def test_a_stopped_worker_that_wakes_after_its_lease_was_taken_changes_nothing(
    task: str, conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    stopped = start_worker("-r", "jobs", "--lease", "4", "--name", "stopped").started()
    job_id = enqueue(conn, task)
    wait_until(lambda: ran(tmp_path)["began", job_id] == 1)
    # Not in the middle of a transaction: that would hold the row, and a held row counts as held.
    wait_until(
        lambda: value(
            conn,
            "select bool_and(state = 'idle') from pg_stat_activity"
            " where datname = current_database() and application_name like 'pgqueue %%'",
        )
    )
    stopped.send(signal.SIGSTOP)
    other = start_worker("-r", "jobs", "--lease", "60", "--name", "other").started()
    wait_until(lambda: ran(tmp_path)["began", job_id] == 2, timeout=20)
    held = job(conn, job_id)
    assert (held.state, held.reserved_by, held.losses) == ("executing", "other", 1)
    stopped.send(signal.SIGCONT)
    wait_until(lambda: "is lost" in stopped.log())
    if task == "long_sync":
        # A thread runs on to its end, and its worker reports it in vain.
        go(tmp_path)
        wait_until(lambda: "reservation was over" in stopped.log())
    else:
        stopped.send(signal.SIGTERM)
        assert stopped.wait() == 0
        now = job(conn, job_id)
        assert (now.state, now.reserved_by, now.reservation) == ("executing", "other", held.reservation)
        go(tmp_path)
    wait_until(lambda: state(conn, job_id) == "succeeded")
    done = job(conn, job_id)
    assert (done.reserved_by, done.attempts, done.errors) == ("other", 1, None)
    other.send(signal.SIGTERM)
    assert other.wait() == 0


@pytest.mark.covers("L15", "A11")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("task", ["long", "long_sync"])
def test_the_first_signal_lets_running_jobs_end_and_gives_unstarted_ones_back(
    task: str, number: signal.Signals, conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    # Quick jobs first: a worker that starts many reserves more than it has slots for.
    worker = start_worker("-r", "jobs", "-c", "2").started()
    enqueue_many(conn, 400, "quick", priority=1)
    running = [enqueue(conn, task) for _ in range(50)]
    wait_until(lambda: sum(count for (what, _), count in ran(tmp_path).items() if what == "began") == 2, timeout=20)
    worker.send(number)
    wait_until(lambda: f"{number.name}: reserving no more jobs" in worker.log())
    # Given back, though the running ones go on.
    wait_until(lambda: value(conn, "select count(*) from pgqueue.jobs where state = 'executing'") == 2)
    assert worker.is_alive()
    go(tmp_path)
    assert worker.wait() == 0
    began = {job_id for (what, job_id) in ran(tmp_path) if what == "began"}
    assert began < set(running)
    assert [state(conn, job_id) for job_id in began] == ["succeeded"] * 2
    left = conn.execute("select distinct state::text, attempts from pgqueue.jobs").fetchall()
    assert left == [("waiting", 0)]
    assert value(conn, "select count(*) from pgqueue.jobs") == 48
    assert value(conn, "select count(*) from pgqueue.workers") == 0


@pytest.mark.covers("A11")
@pytest.mark.parametrize("task", ["long", "long_sync"])
def test_what_outlasts_the_shutdown_timeout_is_cut_off_and_has_failed(
    task: str, conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    worker = start_worker("-r", "jobs", "--shutdown-timeout", "0.3").started()
    job_id = enqueue(conn, task)
    wait_until(lambda: ran(tmp_path)["began", job_id] == 1)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 1
    found = job(conn, job_id)
    assert (found.state, found.attempts) == ("failed", 1)
    assert found.errors[0]["class"] == "Interrupted"
    assert "shutdown timeout" in found.errors[0]["message"]
    assert ran(tmp_path)["ended", job_id] == 0


@pytest.mark.covers("L15")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("task", ["long", "long_sync"])
def test_the_second_signal_ends_the_worker_at_once(
    task: str, number: signal.Signals, conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    worker = start_worker("-r", "jobs").started()
    job_id = enqueue(conn, task)
    wait_until(lambda: ran(tmp_path)["began", job_id] == 1)
    worker.send(signal.SIGTERM)
    wait_until(lambda: "reserving no more jobs" in worker.log())
    worker.send(number)
    assert worker.wait() == 128 + number
    # Left to its lease.
    assert state(conn, job_id) == "executing"


def test_a_worker_in_its_sleep_ends_promptly(conn: psycopg.Connection, start_worker: Start) -> None:
    worker = start_worker("-r", "jobs", "--poll-interval", "600").started()
    wait_until(lambda: value(conn, "select count(*) from pgqueue.idle_workers") > 0)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert value(conn, "select count(*) from pgqueue.workers") == 0


@pytest.mark.covers("A10")
def test_an_unreachable_server_is_one_line_and_the_worker_keeps_trying_until_it_is_stopped(start_worker: Start) -> None:
    # Nothing listens on port 1.
    worker = start_worker("-r", "jobs", dsn="postgresql://postgres@127.0.0.1:1/app")
    wait_until(lambda: "trying again" in worker.log(), timeout=20)
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > 1.5)
    assert worker.is_alive()
    assert len(worker.log().splitlines()) == 1
    assert "app on 127.0.0.1" in worker.log()
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


def test_the_log_has_one_line_for_each_change_and_none_for_an_empty_poll(
    conn: psycopg.Connection, start_worker: Start
) -> None:
    worker = start_worker("-r", "jobs", "-q", "default", "-q", "other,3", "--poll-interval", "0.1", "--no-listen")
    worker.started()
    assert "queues default (weight 1), other (weight 3)" in worker.log()
    job_id = enqueue(conn, "quick", {"j": 1}, max_attempts=1)
    wait_until(lambda: state(conn, job_id) == "dead")
    wait_until(lambda: "is dead" in worker.log())
    wait_until(lambda: worker.log().rstrip().endswith("'j'"))
    lines = len(worker.log().splitlines())
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > 1)
    assert len(worker.log().splitlines()) == lines
    [line] = [line for line in worker.log().splitlines() if "is dead" in line]
    for part in (f"quick[{job_id}]", "attempt 1 of 1", " s: TypeError: "):
        assert part in line


STUBBORN = """
    import asyncio, atexit, threading, time
    import pgqueue.worker.operator_signals
    from pgqueue import App

    app = App()

    async def goes_on() -> None:
        while True:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                print("it was cancelled", flush=True)

    @app.task
    async def handler() -> None:
        print("it runs", flush=True)
        await goes_on()

    kept = []

    @app.task
    async def background() -> None:
        kept.append(asyncio.create_task(goes_on()))

    @app.task
    async def generator() -> None:
        async def pages():
            try:
                yield 1
            finally:
                await goes_on()
        kept.append(pages())
        await anext(kept[0])

    @app.task
    async def blocks() -> None:
        # Seconds beyond the shutdown timeout.
        pgqueue.worker.operator_signals._GRACE = 1.0
        print("it runs", flush=True)
        while True:
            time.sleep(0.1)

    @app.task
    async def executor() -> None:
        for _ in range(64):
            kept.append(asyncio.create_task(asyncio.to_thread(time.sleep, 600)))

    @app.task
    async def at_exit() -> None:
        atexit.register(time.sleep, 600)

    @app.on_stop
    async def stop() -> None:
        if "hook" in kept:
            await goes_on()

    @app.task
    async def hook() -> None:
        kept.append("hook")
"""


@pytest.mark.parametrize("name", ["handler", "background", "generator", "blocks", "executor", "at_exit", "hook"])
def test_whatever_a_handler_leaves_behind_the_worker_ends(
    name: str, tmp_path: Path, conn: psycopg.Connection, start_worker: Start
) -> None:
    write_module(tmp_path, STUBBORN)
    worker = start_worker("-r", "jobs", "--shutdown-timeout", "1").started()
    job_id = enqueue(conn, name)
    is_cut_off = name in ("handler", "blocks")
    # Not only reserved: a job that has not started is given back.
    wait_until(lambda: "it runs" in worker.log() if is_cut_off else state(conn, job_id) == "succeeded")
    worker.send(signal.SIGTERM)
    assert worker.wait(60) == (1 if is_cut_off else 0)
