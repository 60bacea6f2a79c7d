"""What a handler, or its task, decides after a failed attempt."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pgqueue import App, Cancel, Discard, Retry, Snooze, Throttled
from pgqueue.config import WorkerConfig
from pgqueue.errors import ConfigError
from pgqueue.testing import Clock
from pgqueue.worker import Worker
from tests.calls import call, enqueue, job, reserve, value
from tests.databases import Database
from tests.workers import done, working

NOON = "2030-01-01 12:00+00"


@pytest.fixture
def clock(clock: Clock) -> Clock:
    clock.set(NOON)
    return clock


async def work(app: App, database: Database) -> None:
    """Run a worker until nothing is due."""
    async with asyncio.timeout(80):
        await Worker(app, database.dsn, WorkerConfig(until_empty=True)).run()


def raising(error: BaseException, *, in_thread: bool = False, **options: Any) -> App:
    """An App whose task "t" raises this."""
    app = App()

    def synchronous() -> None:
        raise error

    async def asynchronous() -> None:
        raise error

    app.task(name="t", retry_jitter=0, **options)(synchronous if in_thread else asynchronous)
    return app


@pytest.fixture(params=["async", "in a thread"])
def in_thread(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "in a thread")


def due_in(conn: psycopg.Connection, clock: Clock, job_id: int) -> float:
    """Seconds from now until the job is due."""
    found = job(conn, job_id)
    assert found.state in ("waiting", "failed")
    delay: timedelta = found.due_at - clock.now()
    return delay.total_seconds()


async def test_snooze_puts_the_job_off_and_does_not_count(
    database: Database, conn: psycopg.Connection, clock: Clock, in_thread: bool
) -> None:
    app = raising(Snooze(timedelta(minutes=5)), in_thread=in_thread, max_attempts=1)
    job_id = enqueue(conn)
    for _ in range(3):
        await work(app, database)
        assert due_in(conn, clock, job_id) == 300
        found = job(conn, job_id)
        assert (found.state, found.attempts, found.errors) == ("waiting", 0, None)
        clock.advance("5 min")


@pytest.mark.parametrize(
    ("signal", "paused"),
    [
        (Throttled(after=300, reason="429"), "limit_key:api"),
        (Throttled(after="5 min", of="task", reason="429"), "task:t"),
    ],
)
async def test_throttled_puts_the_job_off_uncounted_and_keeps_the_others_from_starting(
    database: Database, conn: psycopg.Connection, clock: Clock, in_thread: bool, signal: Throttled, paused: str
) -> None:
    first, second = enqueue(conn, limit_key="api"), enqueue(conn, limit_key="api")
    await work(raising(signal, in_thread=in_thread), database)
    assert due_in(conn, clock, first) == 300
    assert (job(conn, first).state, job(conn, first).attempts, job(conn, first).errors) == ("waiting", 0, None)
    assert job(conn, second).attempts == 0
    assert value(conn, "select kind || ':' || target || ' ' || reason from pgqueue.pauses") == f"{paused} 429"
    assert reserve(conn, 2) == []


async def test_a_breaker_that_opens_or_closes_is_a_line_in_the_log_of_the_worker(
    database: Database, conn: psycopg.Connection, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pgqueue.worker")
    call(conn, "set_breaker", "task", "t", failures=1, of=1, pause="30 s")
    enqueue(conn)
    await work(raising(ValueError("no"), retry_policy="fixed", retry_delay="30 s"), database)
    clock.advance("31 s")
    app = App()
    app.task(name="t")(lambda: None)
    await work(app, database)
    assert [message for message in caplog.messages if "breaker" in message] == [
        "the breaker of task t is open for 00:00:30: 1 of 1 attempts failed",
        "the breaker of task t is closed: the probe succeeded",
    ]


async def test_retry_comes_back_when_it_says_and_counts(
    database: Database, conn: psycopg.Connection, clock: Clock, in_thread: bool
) -> None:
    app = raising(Retry(after="90 s", reason="no answer"), in_thread=in_thread, max_attempts=2)
    job_id = enqueue(conn)
    await work(app, database)
    assert due_in(conn, clock, job_id) == 90
    [entry] = job(conn, job_id).errors
    assert (entry["class"], entry["message"], entry["attempt"]) == ("Retry", "no answer", 1)
    assert "traceback" not in entry
    clock.advance("90 s")
    await work(app, database)
    assert (job(conn, job_id).state, job(conn, job_id).attempts) == ("dead", 2)


async def test_retry_without_a_time_leaves_it_to_the_policy(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    job_id = enqueue(conn)
    await work(raising(Retry(), retry_policy="fixed", retry_delay="7 s"), database)
    assert due_in(conn, clock, job_id) == 7


@pytest.mark.parametrize(("signal", "state"), [(Discard("why not"), "dead"), (Cancel("why not"), "cancelled")])
async def test_discard_and_cancel_end_the_job_with_their_reason(
    database: Database, conn: psycopg.Connection, in_thread: bool, signal: Exception, state: str
) -> None:
    job_id = enqueue(conn)
    await work(raising(signal, in_thread=in_thread), database)
    found = job(conn, job_id)
    assert (found.state, found.attempts) == (state, 1)
    assert [(e["class"], e["message"]) for e in found.errors] == [(type(signal).__name__, "why not")]


async def test_signals_are_no_errors_in_the_log(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pgqueue")
    for signal in (Snooze(60), Retry(60), Discard(), Cancel()):
        job_id = enqueue(conn)
        await work(raising(signal), database)
        assert f"[{job_id}]" in caplog.text
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@pytest.mark.parametrize(
    "signal", [Snooze("soon"), Retry("soon"), Snooze("-1 s"), Retry("-1 s"), Snooze("\ud800"), Throttled("soon")]
)
async def test_a_delay_that_the_database_refuses_is_a_failure_that_says_so(
    database: Database, conn: psycopg.Connection, clock: Clock, signal: Exception
) -> None:
    job_id = enqueue(conn)
    await work(raising(signal), database)
    assert due_in(conn, clock, job_id) == 30
    [entry] = job(conn, job_id).errors
    assert any(each in str(entry) for each in ("interval", "between zero and ten years", "surrogates"))


@pytest.mark.parametrize("make", [Snooze, Retry])
@pytest.mark.parametrize(
    ("delay", "error"),
    [
        (-1, ValueError),
        (timedelta(seconds=-1), ValueError),
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        (True, TypeError),
        ([], TypeError),
    ],
)
def test_a_wrong_delay_is_refused_where_it_is_raised(
    make: Callable[[Any], Exception], delay: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        make(delay)


@pytest.mark.covers("G10")
@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        (45, 45),
        (0.5, 0.5),
        (timedelta(minutes=2), 120),
        ("exponential", 7),
        ("sidekiq", 7),
        ("doubling", 7),
        ("list", 11),
        (None, 8),
        (True, 8),
    ],
)
async def test_a_rule_says_when(
    database: Database, conn: psycopg.Connection, clock: Clock, in_thread: bool, answer: Any, seconds: float
) -> None:
    app = raising(
        LookupError("x"),
        in_thread=in_thread,
        retry=lambda exc, n: answer,
        retry_policy="exponential",
        retry_delay="7 s",
        retry_delays=[timedelta(seconds=10), "11 s"],
    )
    job_id = enqueue(conn)
    # The second try: one retry so far.
    conn.execute("update pgqueue.jobs set attempts = 1")
    await work(app, database)
    expected = {"exponential": 8, "sidekiq": 8, "doubling": 14}.get(str(answer), seconds)
    assert due_in(conn, clock, job_id) == expected


@pytest.mark.covers("G10")
async def test_a_rule_gets_the_exception_and_the_retries_so_far_where_the_handler_ran(
    database: Database, conn: psycopg.Connection, clock: Clock, in_thread: bool
) -> None:
    told: list[tuple[BaseException, int, bool]] = []

    def rule(exc: BaseException, n: int) -> int | bool:
        told.append((exc, n, threading.current_thread() is threading.main_thread()))
        return n < 2 and 10

    error = KeyError("gone")
    app = raising(error, in_thread=in_thread, retry=rule)
    job_id = enqueue(conn)
    for _ in range(3):
        await work(app, database)
        clock.advance("10 s")
    assert told == [(error, n, not in_thread) for n in range(3)]
    assert (job(conn, job_id).state, job(conn, job_id).attempts) == ("dead", 3)
    assert job(conn, job_id).errors[-1]["class"] == "KeyError"


@pytest.mark.covers("G10")
async def test_a_rule_is_asked_after_a_timeout_too(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    told: list[str] = []

    def rule(exc: BaseException, n: int) -> bool:
        told.append(f"{type(exc).__name__}: {exc}")
        return False

    @app.task(timeout="50 ms", retry=rule)
    async def ruled() -> None:
        await asyncio.sleep(60)

    @app.task(timeout="50 ms", discard_on=(TimeoutError,))
    async def discarded() -> None:
        await asyncio.sleep(60)

    jobs = [enqueue(conn, "ruled"), enqueue(conn, "discarded")]
    async with working(app, database.dsn):
        assert await done(conn, *jobs) == ["dead", "dead"]
    assert told == ["TimeoutError: it ran longer than its timeout of 0.05 s"]
    assert [job(conn, each).errors[-1]["class"] for each in jobs] == ["Timeout", "Timeout"]


def _raise(exc: BaseException, n: int) -> int:
    raise RuntimeError("a broken rule")


@pytest.mark.covers("G10")
@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (_raise, "RuntimeError: a broken rule"),
        (lambda exc: 1, "TypeError"),
        (lambda exc, n: exit(), "SystemExit"),
        (lambda exc, n: [1], "it returned [1]"),
        (lambda exc, n: -1, "must not be negative"),
        (lambda exc, n: float("inf"), "finite"),
        (lambda exc, n: "polynomial", "policy is unknown"),
        (lambda exc, n: "list", "not one of this task"),
        (lambda exc, n: timedelta(days=4000), "between zero and ten years"),
    ],
)
async def test_a_rule_that_fails_leaves_it_to_the_policy_and_the_job_says_why(
    database: Database,
    conn: psycopg.Connection,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    in_thread: bool,
    rule: Any,
    why: str,
) -> None:
    job_id = enqueue(conn)
    await work(raising(LookupError("x"), in_thread=in_thread, retry=rule, retry_delay="7 s"), database)
    assert due_in(conn, clock, job_id) == 7
    [entry] = job(conn, job_id).errors
    assert (entry["class"], entry["message"]) == ("LookupError", "x")
    assert why in entry["policy_error"]
    assert why in caplog.text


@pytest.mark.covers("G10")
async def test_some_exceptions_never_retry(database: Database, conn: psycopg.Connection) -> None:
    def rule(exc: BaseException, n: int) -> int:
        raise AssertionError("not asked")

    app = raising(UnicodeError("x"), discard_on=(KeyError, ValueError), retry=rule)
    job_id = enqueue(conn)
    await work(app, database)
    assert (job(conn, job_id).state, job(conn, job_id).attempts) == ("dead", 1)
    other = enqueue(conn)
    await work(raising(TypeError("x"), discard_on=ValueError), database)
    assert job(conn, other).state == "failed"


async def test_a_job_says_for_itself_how_it_is_retried(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    app = raising(LookupError(), retry_policy="exponential")
    own = app.tasks["t"].using(retry_policy="fixed", retry_delay=timedelta(seconds=3), retry_queue="slow")
    job_id = own.enqueue(conn)
    [other] = own.enqueue_many(conn, [{}])
    await work(app, database)
    for each in (job_id, other):
        assert due_in(conn, clock, each) == 3
        assert job(conn, each).queue == "slow"


def test_a_rule_and_exceptions_that_cannot_be_used_are_refused_when_declared() -> None:
    async def asynchronous(exc: BaseException, n: int) -> int:
        return 1

    for options in ({"retry": 3}, {"retry": asynchronous}, {"discard_on": ("ValueError",)}, {"discard_on": [1]}):
        with pytest.raises(ConfigError):
            App().task(name="t", **options)(lambda: None)


async def test_what_the_code_declares_is_written_at_start(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    app = raising(
        LookupError(),
        retry_policy="list",
        retry_delays=[timedelta(microseconds=1500000), "2 s"],
        retry_cap=timedelta(minutes=1),
        retry_queue="slow",
    )
    job_id = enqueue(conn)
    await work(app, database)
    assert due_in(conn, clock, job_id) == 1.5
    assert job(conn, job_id).queue == "slow"
    assert value(conn, "select declared_retry_cap from pgqueue.tasks") == timedelta(minutes=1)


def test_an_unknown_policy_is_refused_when_declared() -> None:
    with pytest.raises(ConfigError, match="give one of fixed, exponential"):
        raising(LookupError(), retry_policy="polynomial")
