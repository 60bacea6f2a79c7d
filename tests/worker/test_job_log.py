"""The log of a worker's jobs: one line each, and a summary a second under load."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from pgqueue import App
from pgqueue.db.call import Call
from pgqueue.db.consume import JobRow
from pgqueue.logs import _Coloured
from pgqueue.worker.hold.held import End, Ending, Held
from pgqueue.worker.link.connection import Link
from pgqueue.worker.tell import job_log
from pgqueue.worker.tell.job_log import MOST, JobLog
from pgqueue.worker.tell.tell import Counts, Tell
from tests.calls import call, enqueue, enqueue_many, maintain, reserve_one, value
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import done, working


def ended(job_id: int, task: str = "send_email", seconds: float = 0.2134) -> Held:
    row = JobRow(
        id=job_id,
        task=task,
        args=b"",
        headers=None,
        queue="mail",
        key=None,
        priority=0,
        attempt=2,
        max_attempts=11,
        reservation=1 << 20,
        run_at=0,
        created_at=0,
        lease_expires_at=0,
        leader=None,
        timeout=None,
        losses=0,
        crashes=0,
        store_result=False,
        outcome="reserved",
        note=None,
    )
    held = Held(row, deadline=0.0)
    held.attempt.seconds = seconds
    return held


def failed(job_id: int) -> Held:
    held = ended(job_id)
    error: dict[str, object] = {"class": "OSError", "message": "no\nroute", "traceback": "Traceback\n  line\nOSError"}
    held.attempt.ending = Ending(End.FAILED, error)
    return held


def answering(*runs: datetime) -> Callable[[Call[Any]], Awaitable[Any]]:
    async def ask(_: Call[Any]) -> Any:
        return {number: (at, []) for number, at in enumerate(runs, start=1)}

    return ask


async def unreachable(_: Call[Any]) -> Any:
    raise psycopg.OperationalError("gone")


def log_with(perform: Callable[[Call[Any]], Awaitable[Any]]) -> JobLog:
    """The log of a worker whose database answers so."""
    return JobLog(cast("Link", SimpleNamespace(perform=perform)))


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "pgqueue.jobs"]


@pytest.fixture(autouse=True)
def level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pgqueue.jobs")


async def test_a_success_is_one_line_with_the_task_the_id_and_the_time(caplog: pytest.LogCaptureFixture) -> None:
    log_with(unreachable).succeeded([ended(17)])
    assert messages(caplog) == ["send_email[17] succeeded in 0.213 s"]
    [record] = caplog.records
    assert (record.job_id, record.queue, record.attempt, record.seconds) == (17, "mail", 2, 0.2134)  # type: ignore[attr-defined]


async def test_a_dead_job_has_its_traceback_below_its_line(caplog: pytest.LogCaptureFixture) -> None:
    lines = log_with(unreachable)
    lines.failed(failed(17), "dead")
    await lines.close()
    assert messages(caplog) == ["send_email[17] is dead after attempt 2 of 11 in 0.213 s: OSError: no route"]
    assert caplog.records[0].levelno == logging.ERROR
    assert caplog.text.endswith("OSError: no route\nTraceback\n  line\nOSError\n")


async def test_a_failed_attempt_says_when_the_job_runs_again(caplog: pytest.LogCaptureFixture) -> None:
    at = datetime(2030, 1, 1, 12, 0, 30, tzinfo=UTC)
    lines = log_with(answering(at))
    lines.failed(failed(1), "failed")
    await lines.close()
    local = at.astimezone().strftime("%H:%M:%S %Z")
    assert messages(caplog) == [
        f"send_email[1] failed attempt 2 of 11 in 0.213 s; runs again at {local}: OSError: no route"
    ]
    assert caplog.records[0].levelno == logging.WARNING
    assert caplog.records[0].runs_again_at == "2030-01-01T12:00:30.000+00:00"  # type: ignore[attr-defined]


async def test_a_failed_attempt_is_logged_when_the_database_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    lines = log_with(unreachable)
    lines.failed(failed(1), "failed")
    await lines.close()
    assert messages(caplog) == ["send_email[1] failed attempt 2 of 11 in 0.213 s: OSError: no route"]


@pytest.mark.parametrize("end", ["succeeded", "dead", "failed", "snoozed"])
async def test_the_line_of_an_attempt_stands_before_that_of_the_next(
    end: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = asyncio.Event()

    async def ask(_: Call[Any]) -> Any:
        await answer.wait()
        return {1: (datetime(2030, 1, 1, tzinfo=UTC) if end == "failed" else None, [])}

    lines = log_with(ask)
    lines.failed(failed(1), "failed")
    await asyncio.sleep(0)
    if end == "succeeded":
        lines.succeeded([ended(2), ended(1)])
    elif end == "snoozed":
        lines.snoozed(ended(1), "5 s")
    else:
        lines.failed(failed(1), end)
    answer.set()
    await lines.close()
    first, *rest = messages(caplog)
    assert first == "send_email[1] failed attempt 2 of 11 in 0.213 s: OSError: no route"
    assert len(rest) == (2 if end == "succeeded" else 1)
    # The next failure has its own time.
    assert ("runs again at" in rest[-1]) == (end == "failed")


async def test_what_a_handler_asked_for_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    asked = failed(1)
    asked.attempt.ending = replace(asked.attempt.ending, signalled=True)
    lines = log_with(answering(datetime.now(UTC)))
    lines.failed(asked, "failed")
    lines.failed(asked, "cancelled")
    lines.snoozed(asked, "5 min")
    await lines.close()
    assert len(messages(caplog)) == 3
    assert {record.levelno for record in caplog.records} == {logging.INFO}


async def test_the_start_of_a_job_is_logged_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    tell = Tell(Counts(30.0), SimpleNamespace(is_on=False), log_with(unreachable))  # type: ignore[arg-type]
    tell.started(ended(17))
    assert messages(caplog) == []
    caplog.set_level(logging.DEBUG, "pgqueue.jobs")
    tell.started(ended(17))
    assert messages(caplog) == ["send_email[17] starts attempt 2 of 11"]


async def test_many_ends_in_a_second_are_one_summary_for_each_task(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_log, "_WINDOW", 0.05)
    lines = log_with(unreachable)
    lines.succeeded([ended(n) for n in range(MOST + 1)])
    lines.succeeded([ended(n, task="resize") for n in range(10)])
    for job_id in (7, 3, 5):
        lines.failed(failed(job_id), "failed")
    assert messages(caplog) == []
    await wait_until_async(lambda: len(messages(caplog)) == 3)
    assert messages(caplog) == [
        "resize: 10 succeeded in 213.4 ms each",
        f"send_email: {MOST + 1} succeeded in 213.4 ms each; 3 failed, the last one: OSError: no route",
        "send_email: failed: 3, 5, 7",
    ]
    assert caplog.records[2].failed_ids == [3, 5, 7]  # type: ignore[attr-defined]
    # The next second is quiet, and then each end has its line again.
    await wait_until_async(lambda: lines._timer is None)
    lines.succeeded([ended(17)])
    assert messages(caplog)[3:] == ["send_email[17] succeeded in 0.213 s"]


async def test_no_failure_is_summed_without_its_id(caplog: pytest.LogCaptureFixture) -> None:
    lines = log_with(unreachable)
    lines.succeeded([ended(n) for n in range(MOST + 1)])
    ids = list(range(1, 3 * job_log._IDS + 8))
    for job_id in ids:
        lines.failed(failed(job_id), "dead" if job_id % 2 else "failed")
    await lines.close()
    found = [each for message in messages(caplog) for each in re.findall(r"\d+", message.partition(": failed: ")[2])]
    assert sorted(map(int, found)) == ids
    assert max(len(message) for message in messages(caplog)) < 7 * job_log._IDS


async def test_the_line_of_an_attempt_names_the_options_that_an_operator_has_set(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_log, "_PATIENCE", 60.0)
    app = App()

    @app.task(max_attempts=5, retry_policy="fixed", retry_delay="1 hour")
    async def fails() -> None:
        raise ValueError("not today")

    @app.task(max_attempts=1)
    async def fails_by_the_code() -> None:
        raise ValueError("not today")

    call(conn, "configure_task", "fails", max_attempts=2, retry_delay="30 s", priority=3)
    again, dead = enqueue(conn, "fails"), enqueue(conn, "fails", max_attempts=1)
    plain = enqueue(conn, "fails_by_the_code")
    async with working(app, database.dsn):
        await wait_until_async(lambda: len([each for each in messages(caplog) if "not today" in each]) == 3)
    lines: dict[int, Any] = {vars(each)["job_id"]: each for each in caplog.records if "not today" in each.getMessage()}
    first = lines[again].getMessage()
    assert "failed attempt 1 of 2 in" in first
    assert first.endswith("; set by an operator: max_attempts, retry_delay: ValueError: not today")
    assert lines[again].set_by_operator == ["max_attempts", "retry_delay"]
    # Of this one the job itself says how many attempts it has.
    assert lines[dead].getMessage().endswith("; set by an operator: retry_delay: ValueError: not today")
    assert "operator" not in lines[plain].getMessage()


async def test_ends_are_summed_until_a_second_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    lines = log_with(unreachable)

    def end_the_second() -> None:
        assert lines._timer is not None
        lines._timer.cancel()
        lines._end_window()

    for _ in range(2):
        lines.succeeded([ended(n) for n in range(MOST + 1)])
        end_the_second()
    # Few, in the second after one in which there were many.
    lines.succeeded([ended(1)])
    end_the_second()
    lines.succeeded([ended(2)])
    many = f"send_email: {MOST + 1} succeeded in 213.4 ms each"
    assert messages(caplog) == [
        many, many, "send_email: 1 succeeded in 213.4 ms each", "send_email[2] succeeded in 0.213 s"
    ]  # fmt: skip
    end_the_second()


async def test_the_last_summary_is_written_when_the_worker_ends(caplog: pytest.LogCaptureFixture) -> None:
    lines = log_with(unreachable)
    lines.succeeded([ended(n) for n in range(200)])
    await lines.close()
    assert messages(caplog) == ["send_email: 200 succeeded in 213.4 ms each"]


async def test_a_failure_is_written_when_the_worker_ends_though_a_handler_has_cancelled_all_tasks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def never(_: Call[Any]) -> Any:
        await asyncio.Event().wait()

    lines = log_with(never)
    lines.failed(failed(17), "failed")
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await wait_until_async(lambda: lines._asking is None)
    await lines.close()
    assert [message.partition(" ")[0] for message in messages(caplog)] == ["send_email[17]"]


async def test_no_line_is_made_where_the_log_is_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "pgqueue.jobs")
    lines = log_with(unreachable)
    lines.succeeded([ended(1)])
    lines.failed(failed(1), "failed")
    assert (lines._timer, lines._asking) == (None, None)


async def test_a_worker_logs_how_each_of_its_jobs_ended(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_log, "_PATIENCE", 60.0)
    app = App()

    @app.task
    async def fine() -> None: ...

    @app.task
    def fine_in_a_thread() -> None: ...

    @app.task(max_attempts=2, retry_delay="30 s", retry_policy="fixed")
    async def fails() -> None:
        raise ValueError("not today")

    first, second, third = (enqueue(conn, name) for name in ("fine", "fine_in_a_thread", "fails"))
    async with working(app, database.dsn):
        await done(conn, first, second)
        await wait_until_async(lambda: any("runs again" in message for message in messages(caplog)))
    assert any(re.fullmatch(rf"fine\[{first}\] succeeded in \d+\.\d\d\d s", each) for each in messages(caplog))
    assert any(each.startswith(f"fine_in_a_thread[{second}] succeeded in") for each in messages(caplog))
    [line] = [each for each in messages(caplog) if each.startswith(f"fails[{third}]")]
    due = value(conn, "select ready_at from pgqueue.jobs where id = %s", third)
    assert re.search(r"failed attempt 1 of 2 in \d+\.\d\d\d s;", line)
    assert f"runs again at {due.astimezone():%H:%M:%S %Z}: ValueError: not today" in line


async def test_a_drain_writes_a_handful_of_lines(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()

    @app.task
    async def quick(i: int) -> None: ...

    enqueue_many(conn, 2000, "quick")
    async with working(app, database.dsn, until_empty=True):
        await wait_until_async(lambda: value(conn, "select count(*) from pgqueue.jobs") == 0, 30)
    assert (
        sum(int(re.findall(r"quick: (\d+) succeeded", each)[0]) for each in messages(caplog) if ": " in each)
        + sum(each.startswith("quick[") for each in messages(caplog))
        == 2000
    )
    assert len(messages(caplog)) < 100


@pytest.mark.covers("G11")
def test_next_attempts_are_asked_of_failed_and_dead_jobs_only(conn: psycopg.Connection) -> None:
    waiting, job_id, dead = enqueue(conn, delay="1 h"), enqueue(conn), enqueue(conn)
    call(conn, "configure_task", "t", timeout="1 min")
    for retry in (True, False):
        held = reserve_one(conn)
        call(conn, "fail", held.id, held.reservation, retry=retry, retry_in="1 h" if retry else None)
    maintain(conn)
    asked = "select * from pgqueue.next_attempts(%s) order by job_id"
    rows = conn.execute(asked, [[waiting, job_id, dead, 4711]]).fetchall()
    due = value(conn, "select ready_at from pgqueue.jobs where id = %s", job_id)
    assert rows == [(job_id, due, ["timeout"]), (dead, None, ["timeout"])]


def test_a_terminal_gets_colours_and_long_lines_as_they_are() -> None:
    record = logging.LogRecord("x", logging.WARNING, __file__, 1, "w" * 500, (), None)
    line = _Coloured("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S").format(record)
    assert "\n" not in line
    assert line.endswith(f"\x1b[33mWARNING\x1b[0m {'w' * 500}")


def test_no_text_of_a_job_reaches_a_terminal_as_a_command() -> None:
    record = logging.LogRecord("x", logging.WARNING, __file__, 1, "\x1b[2J", (), None)
    assert "\x1b[2J" not in _Coloured("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S").format(record)


async def test_close_waits_for_nothing_where_nothing_was_logged() -> None:
    async with asyncio.timeout(60):
        await log_with(unreachable).close()


async def test_each_attempt_starts_once(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()

    @app.task
    def succeeds() -> None: ...

    @app.task(max_attempts=1)
    def fails() -> None:
        raise ValueError("no")

    @app.task(timeout="1 min")
    def is_watched() -> int:
        return 1

    @app.task
    async def on_the_loop() -> None: ...

    caplog.set_level(logging.DEBUG, "pgqueue.jobs")
    names = ["fails", "is_watched", "on_the_loop", "succeeds"]
    async with working(app, database.dsn):
        await done(conn, *[enqueue(conn, name) for name in names])
    starts = sorted(each.partition("[")[0] for each in messages(caplog) if "starts attempt" in each)
    assert starts == names
