"""What a handler can do with its job."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any

import psycopg
import pytest

import pgqueue
from pgqueue import App, Job, current_job
from pgqueue.errors import ConfigError, InvalidArgument
from pgqueue.signals import Interrupted
from pgqueue.worker.link.connection import Link
from pgqueue.worker.link.outage import Outage
from pgqueue.worker.run.progress import Progress
from tests.calls import call, enqueue, enqueue_many, job, reserve, value
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import done, take_away, working


class _Reporting:
    """A job with progress; while that is read, something else happens."""

    def __init__(self, job_id: int, reservation: int) -> None:
        self.id, self.reservation = job_id, reservation
        self.meanwhile: Callable[[], object] = lambda: None

    @property
    def latest_progress(self) -> tuple[float, float | None, str | None]:
        self.meanwhile()
        return 1.0, None, None


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_current_job_is_the_job_whose_handler_calls_it(
    kind: str, database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    seen: dict[int, tuple[int, str, Any]] = {}

    def note(i: int) -> None:
        found = current_job()
        assert found is current_job()
        seen[i] = (found.id, found.task, found.args)

    async def asynchronous(i: int) -> None:
        await asyncio.sleep(0.01)
        await asyncio.gather(asyncio.to_thread(note, i), asyncio.sleep(0))

    def synchronous(i: int) -> None:
        note(i)

    app.task(name="t")(asynchronous if kind == "async" else synchronous)
    jobs = enqueue_many(conn, 20)
    async with working(app, database.dsn, concurrency=5):
        assert set(await done(conn, *jobs)) == {"succeeded"}
    assert seen == {i: (job_id, "t", {"i": i}) for i, job_id in enumerate(jobs)}
    with pytest.raises(RuntimeError, match="no job runs here"):
        current_job()


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_job_past_its_timeout_has_failed_and_its_handler_knows_why(
    kind: str, database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    left: list[float | None] = []

    async def asynchronous(job: Job) -> None:
        left.append(job.time_left())
        assert job.deadline is not None
        await asyncio.sleep(30)

    def synchronous(job: Job) -> None:
        left.append(job.time_left())
        assert job.cancelled.wait(120)
        job.check()

    options = {"timeout": "0.2 s", "max_attempts": 2, "retry_policy": "fixed", "retry_delay": "0", "retry_jitter": 0}
    app.task(name="t", **options)(asynchronous if kind == "async" else synchronous)
    job_id = enqueue(conn)
    async with working(app, database.dsn):
        assert await done(conn, job_id) == ["dead"]
    errors = job(conn, job_id).errors
    assert [error["class"] for error in errors] == ["Timeout", "Timeout"]
    assert "timeout of 0.2 s" in errors[0]["message"]
    # On a busy machine its time may be over when it begins.
    assert all(each is not None and each <= 0.2 for each in left)


async def test_a_jobs_own_timeout_wins_and_who_ends_in_time_is_not_disturbed(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task(timeout="20 ms")
    async def t(job: Job) -> None:
        await asyncio.sleep(0.2)
        assert not job.cancelled

    job_id = enqueue(conn, timeout="1 min")
    async with working(app, database.dsn):
        assert await done(conn, job_id) == ["succeeded"]


async def test_a_sync_handler_that_ignores_its_timeout_is_warned_of_once_and_named_overdue(
    database: Database,
    conn: psycopg.Connection,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pgqueue.worker.run.taken.Running.overdue.__defaults__", (0.1,))
    app = App()
    go = threading.Event()

    @app.task(timeout="50 ms")
    def t() -> None:
        assert go.wait(120)

    job_id = enqueue(conn)
    with caplog.at_level(logging.WARNING, "pgqueue"):
        async with working(app, database.dsn):
            await wait_until_async(lambda: any("keeps running" in record.getMessage() for record in caplog.records))
            go.set()
            # Late, and done all the same.
            assert await done(conn, job_id) == ["succeeded"]
    assert sum("keeps running" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("listen", [True, False])
async def test_cancel_reaches_a_sync_handler_through_its_job(
    listen: bool, database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    started, told = threading.Event(), threading.Event()
    reasons: list[str] = []

    @app.task
    def t(job: Job) -> None:
        started.set()
        if job.cancelled.wait(120):
            reasons.append(job.cancelled.reason)
            told.set()
        job.check()
        raise AssertionError("check() let it go on")

    job_id = enqueue(conn)
    async with working(app, database.dsn, lease=600.0 if listen else 4.5, listen=listen, poll_interval=0.2):
        await wait_until_async(started.is_set)
        assert call(conn, "cancel", job_id) == "requested"
        # Not with the next extension of the long lease, minutes later; of the short one, with that.
        await wait_until_async(told.is_set)
        assert await done(conn, job_id) == ["cancelled"]
    assert reasons == ["cancellation was requested"]


@pytest.mark.parametrize("kind", ["step", "sleep", "wait", "wait_event"])
async def test_a_handler_in_a_thread_ends_at_its_next_step_when_it_is_cancelled(
    kind: str, database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    done_steps: list[str] = []
    ends = {
        "step": lambda job: job.step("ship", done_steps.append, "ship"),
        "sleep": lambda job: job.sleep("cool down", "1 hour"),
        "wait": lambda job: job.wait([job.id]),
        "wait_event": lambda job: job.wait_event("paid"),
    }

    @app.task
    def workflow(job: Job) -> None:
        job.step("charge", done_steps.append, "charge")
        job.cancelled.wait(120)
        try:
            ends[kind](job)
        except Exception:
            done_steps.append("caught")
        done_steps.append("went on")

    job_id = enqueue(conn, "workflow")
    async with working(app, database.dsn, lease=4.5):
        await wait_until_async(lambda: done_steps == ["charge"])
        assert call(conn, "cancel", job_id) == "requested"
        assert await done(conn, job_id) == ["cancelled"]
    assert done_steps == ["charge"]


async def test_a_handler_in_a_thread_past_its_timeout_fails_at_its_next_step(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    shipped: list[str] = []

    @app.task(timeout="0.2 s", max_attempts=1)
    def workflow(job: Job) -> None:
        job.cancelled.wait(120)
        job.step("ship", shipped.append, "ship")

    job_id = enqueue(conn, "workflow")
    async with working(app, database.dsn):
        assert await done(conn, job_id) == ["dead"]
    assert job(conn, job_id).errors[0]["class"] == "Timeout"
    assert shipped == []


@pytest.mark.parametrize("where", ["its own plain function", "a middleware"])
async def test_an_async_handler_whose_timeout_passed_in_a_thread_before_it_began_fails(
    where: str, database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    shipped: list[str] = []

    async def ship() -> None:
        await asyncio.sleep(0.01)
        shipped.append("ship")

    if where == "a middleware":

        @app.middleware
        def slow(job: Job, call_next: Any) -> Any:
            job.cancelled.wait(120)
            return call_next()

        app.task(name="t", timeout="0.2 s", max_attempts=1)(ship)
    else:

        @app.task(name="t", timeout="0.2 s", max_attempts=1)
        def ships(job: Job) -> Any:
            job.cancelled.wait(120)
            return ship()

    job_id = enqueue(conn)
    async with working(app, database.dsn):
        assert await done(conn, job_id) == ["dead"]
    assert job(conn, job_id).errors[0]["class"] == "Timeout"
    assert shipped == []


async def test_a_flag_wakes_who_waits_for_it_on_the_loop_and_in_a_thread() -> None:
    from pgqueue.job import Flag  # noqa: PLC0415

    flag = Flag()
    assert not flag
    assert flag.wait(0.001) is False
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(flag, 0.001)
    in_thread = asyncio.create_task(asyncio.to_thread(flag.wait, 60))
    waiting = asyncio.ensure_future(flag)
    await asyncio.sleep(0)
    threading.Thread(target=flag.raise_it, args=("enough",)).start()
    assert await asyncio.wait_for(waiting, 60) is True
    assert await in_thread is True
    assert (bool(flag), flag.reason) == (True, "enough")
    assert await flag is True


def test_interrupted_passes_an_except_exception() -> None:
    assert not issubclass(Interrupted, Exception)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_progress_is_stored_about_once_a_second(kind: str, database: Database, conn: psycopg.Connection) -> None:
    app = App()
    go = threading.Event()

    def tell(job: Job) -> None:
        for n in range(1000):
            job.progress(n, 1000, f"step {n}")
        with pytest.raises(InvalidArgument):
            job.progress(float("nan"))

    async def asynchronous(job: Job) -> None:
        tell(job)
        await asyncio.to_thread(go.wait, 30)

    def synchronous(job: Job) -> None:
        tell(job)
        go.wait(120)

    app.task(name="t")(asynchronous if kind == "async" else synchronous)
    job_id = enqueue(conn)
    async with working(app, database.dsn):
        await wait_until_async(lambda: job(conn, job_id).progress)
        found = job(conn, job_id).progress
        assert (found["done"], found["total"], found["note"]) == (999, 1000, "step 999")
        go.set()
        await done(conn, job_id)


async def test_progress_that_a_thread_reports_while_it_is_stored_is_stored_next(
    database: Database, conn: psycopg.Connection
) -> None:
    link = Link(database.dsn, Outage(database.dsn))
    progress = Progress(link)
    enqueue_many(conn, 2)
    jobs = [_Reporting(row.id, row.reservation) for row in reserve(conn, 2, "w")]
    known = progress._reported
    # As a thread that has read the attribute, and waits for its turn.
    jobs[0].meanwhile = lambda: known.update({jobs[1]: None})  # type: ignore[dict-item]
    progress.report(jobs[0])  # type: ignore[arg-type]
    await progress.store()
    await progress.store()
    await link.close()
    assert [job(conn, each.id).progress["done"] for each in jobs] == [1.0, 1.0]


async def test_progress_in_odd_numbers_and_texts_is_stored_and_costs_no_lease(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    go = asyncio.Event()

    @app.task
    async def t(job: Job) -> None:
        job.progress(Fraction(1, 2), Decimal(2), "half\ud800\0")  # type: ignore[arg-type]
        await go.wait()

    job_id = enqueue(conn)
    async with working(app, database.dsn, lease=1.5):
        await wait_until_async(lambda: job(conn, job_id).progress)
        found = job(conn, job_id).progress
        assert (found["done"], found["total"], found["note"]) == (0.5, 2, "half?\ufffd")
        first = job(conn, job_id).lease_expires_at
        await wait_until_async(lambda: job(conn, job_id).lease_expires_at > first)
        go.set()
        assert await done(conn, job_id) == ["succeeded"]


async def test_a_job_extends_its_lease_when_it_asks(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    asked, go = threading.Event(), threading.Event()

    @app.task
    def t(job: Job) -> None:
        asked.wait(120)
        job.extend()
        go.wait(120)

    job_id = enqueue(conn)
    async with working(app, database.dsn, lease=3000.0):
        await wait_until_async(lambda: job(conn, job_id).state == "executing")
        before = job(conn, job_id).lease_expires_at
        asked.set()
        await wait_until_async(lambda: job(conn, job_id).lease_expires_at > before)
        go.set()
        await done(conn, job_id)


async def test_lines_of_the_jobs_log_name_it(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()

    @app.task
    async def t(job: Job) -> None:
        job.log.info("half of %d", 10, extra={"mine": 1})

    job_id = enqueue(conn)
    with caplog.at_level(logging.INFO, "pgqueue.job"):
        async with working(app, database.dsn):
            await done(conn, job_id)
    [record] = [record for record in caplog.records if record.name == "pgqueue.job"]
    assert record.getMessage() == f"job {job_id} (task t, attempt 1): half of 10"
    assert (record.job_id, record.task, record.attempt, record.mine) == (job_id, "t", 1, 1)  # type: ignore[attr-defined]


class Mailer:
    """An object that carries what its handlers need."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, to: str) -> None:
        self.sent.append(to)

    async def send_later(self, to: str, job: Job) -> None:
        self.sent.append(f"{to} by job {job.id}")

    def __call__(self, to: str) -> None:
        self.sent.append(f"called for {to}")


@pytest.mark.covers("A7")
async def test_a_handler_is_a_method_of_an_object_or_an_object_that_is_called(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    mailer = Mailer()
    app.task(mailer.send)
    app.task(timeout="1 min")(mailer.send_later)
    app.task(name="call")(mailer)
    with pytest.raises(ConfigError, match="name"):
        app.task(Mailer())
    jobs = [enqueue(conn, task, {"to": "Ada"}) for task in ("send", "send_later", "call")]
    async with working(app, database.dsn, concurrency=1):
        assert set(await done(conn, *jobs)) == {"succeeded"}
    assert mailer.sent == ["Ada", f"Ada by job {jobs[1]}", "called for Ada"]


async def test_generators_are_refused_where_they_are_declared_and_where_they_are_returned(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    def generator() -> Any:
        yield 1

    async def async_generator() -> Any:
        yield 1

    for each in (generator, async_generator):
        with pytest.raises(ConfigError, match="generator"):
            app.task(each)
    app.task(name="t")(lambda: generator())
    job_id = enqueue(conn, max_attempts=1)
    async with working(app, database.dsn):
        assert await done(conn, job_id) == ["dead"]
    assert "generator" in job(conn, job_id).errors[0]["message"]


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_result_is_stored_where_the_task_or_the_job_asks_for_it(
    kind: str, database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    def declare(name: str, function: Any, **options: Any) -> None:
        async def asynchronous(job: Job) -> Any:
            return function(job)

        def synchronous(job: Job) -> Any:
            return function(job)

        app.task(name=name, max_attempts=1, **options)(asynchronous if kind == "async" else synchronous)

    def asking(job: Job) -> object:
        job.store_result()
        return {"asked": True}

    declare("stored", lambda job: {"n": [1, None, "ü"]}, store_result=True)
    declare("nothing", lambda job: None, store_result=True)
    declare("ignored", lambda job: object())
    declare("asking", asking)
    declare("broken", lambda job: object(), store_result=True)
    declare("nul", lambda job: "a\0b", store_result=True)
    declare("backslash", lambda job: "\\u0000", store_result=True)
    names = ("stored", "nothing", "ignored", "asking", "broken", "nul", "backslash")
    jobs = {name: enqueue(conn, name) for name in names}
    async with working(app, database.dsn):
        states = dict(zip(names, await done(conn, *jobs.values()), strict=True))
    assert {name for name in names if states[name] == "dead"} == {"broken", "nul"}
    results = {name: job(conn, jobs[name]).result for name in names if states[name] == "succeeded"}
    assert results == {
        "stored": {"n": [1, None, "ü"]},
        "nothing": None,
        "ignored": None,
        "asking": {"asked": True},
        "backslash": "\\u0000",
    }
    assert "result cannot be written as JSON" in job(conn, jobs["broken"]).errors[0]["message"]
    assert "NUL" in job(conn, jobs["nul"]).errors[0]["message"]


async def test_an_operator_has_results_stored_of_a_task_that_does_not_ask(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task
    async def t() -> int:
        return 7

    async with working(app, database.dsn):
        await done(conn, enqueue(conn))
        conn.execute("update pgqueue.tasks set store_result = true where name = 't'")
        job_id = enqueue(conn)
        connection = await database.connect_async()
        outcome = await pgqueue.wait(connection, job_id, timeout=60)
    assert (outcome.state, outcome.result, outcome.succeeded, outcome.attempts) == ("succeeded", 7, True, 1)


async def test_a_handler_that_blocks_the_loop_is_named_with_its_stack(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    go = asyncio.Event()

    def warnings() -> list[str]:
        return [each.getMessage() for each in caplog.records if "by task blocking;" in each.getMessage()]

    @app.task
    async def blocking() -> None:
        until = time.monotonic() + 60
        while not warnings() and time.monotonic() < until:
            threading.Event().wait(0.1)

    @app.task
    async def innocent() -> None:
        await go.wait()

    with caplog.at_level(logging.WARNING, "pgqueue"):
        async with working(app, database.dsn):
            other = enqueue(conn, "innocent")
            await wait_until_async(lambda: job(conn, other).state == "executing")
            blocks = enqueue(conn, "blocking")
            await done(conn, blocks)
            go.set()
            await done(conn, other)
    [warning] = warnings()
    assert "event loop has been blocked" in warning
    assert ", in blocking\n" in warning


async def test_suspects_run_one_at_a_time_in_a_process(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    together: list[int] = []
    running = 0

    @app.task
    async def t() -> None:
        nonlocal running
        running += 1
        together.append(running)
        await asyncio.sleep(0.05)
        running -= 1

    jobs = [enqueue(conn) for _ in range(3)]
    conn.execute("update pgqueue.jobs set crashed_on = '{w}', losses = 1")
    async with working(app, database.dsn, poll_interval=0.3):
        assert await done(conn, *jobs) == ["succeeded"] * 3
    assert together == [1, 1, 1]
    assert value(conn, "select count(*) from pgqueue.history where attempts = 1") == 3


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_what_a_handler_says_that_it_has_spent_is_taken_from_the_bucket(
    kind: str, database: Database, conn: psycopg.Connection
) -> None:
    # A unit comes in a minute.
    call(conn, "set_limit", "task", "t", rate=1, per="1 min", burst=100)
    app = App()
    held: list[bool] = []

    async def asynchronous(units: int, job: Job) -> None:
        held.append(await job.spent(units))

    def synchronous(units: int, job: Job) -> None:
        held.append(job.spent(units))

    app.task(name="t")(asynchronous if kind == "async" else synchronous)
    cheaper = enqueue(conn, args={"units": 30}, cost=90)
    async with working(app, database.dsn):
        assert await done(conn, cheaper) == ["succeeded"]
        # Of the 100 units 70 are left, and so it starts; then none are.
        dearer = enqueue(conn, args={"units": 180}, cost=60)
        assert await done(conn, dearer) == ["succeeded"]
        after = enqueue(conn, args={"units": 0}, cost=1)
        await wait_until_async(lambda: job(conn, after).state == "blocked")
    assert held == [True, True]


async def test_what_a_handler_has_spent_counts_for_nothing_when_its_reservation_is_over(
    database: Database, conn: psycopg.Connection
) -> None:
    call(conn, "set_limit", "task", "t", rate=1, per="1 min", burst=100)
    app = App()
    began, go = asyncio.Event(), asyncio.Event()
    held: list[bool] = []

    @app.task
    async def t(job: Job) -> None:
        began.set()
        while not held:
            # The worker may learn of it first: then it cancels the handler once.
            with suppress(asyncio.CancelledError):
                await go.wait()
                held.append(await job.spent(1000))

    job_id = enqueue(conn, cost=5)
    async with working(app, database.dsn):
        await wait_until_async(began.is_set)
        take_away(conn, job_id)
        go.set()
        await wait_until_async(lambda: held == [False])
    assert value(conn, "select count(*) from pgqueue.limit_levels where is_spent") == 0
