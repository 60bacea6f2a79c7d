"""What a worker does with jobs: it runs them and reports how each ended."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue import App, Job, Throttled
from pgqueue.config import WorkerConfig
from pgqueue.testing import Clock
from pgqueue.worker import Worker
from pgqueue.worker.hold.held import Held
from pgqueue.worker.link.connection import Link
from pgqueue.worker.presence.orders import Orders
from pgqueue.worker.run.runner import Runner
from pgqueue.worker.run.throughput import Throughput
from pgqueue.worker.trade.exchange import Exchange, Reply
from tests.calls import call, enqueue, enqueue_many, job, value
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import NEVER, done, take_away, working


@pytest.mark.covers("G1", "G8")
async def test_async_and_sync_handlers_get_their_arguments_and_the_job(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    seen: list[tuple[str, str, Job]] = []

    @app.task
    async def asynchronous(name: str, job: Job) -> None:
        seen.append((threading.current_thread().name, name, job))

    @app.task
    def synchronous(job: Job, name: str = "nobody") -> None:
        seen.append((threading.current_thread().name, name, job))

    first = enqueue(conn, "asynchronous", {"name": "Ada"}, headers=Jsonb({"trace": "1"}))
    second = enqueue(conn, "synchronous", priority=-5)
    async with working(app, database.dsn) as worker:
        assert await done(conn, first, second) == ["succeeded", "succeeded"]
    assert job(conn, first).reserved_by == worker.config.name
    (thread, name, found), (other_thread, other_name, other) = sorted(seen, key=lambda each: each[2].id)
    assert (name, found.id, found.task, found.args) == ("Ada", first, "asynchronous", {"name": "Ada"})
    assert (found.headers, found.queue, found.attempt, found.max_attempts) == ({"trace": "1"}, "default", 1, 11)
    assert found.run_at.tzinfo is not None
    assert (other_name, other.id, other.priority) == ("nobody", second, -5)
    assert thread == threading.current_thread().name != other_thread


@pytest.fixture
def refused_threads(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of threads that the system does not start, as at a limit of a container."""
    names: set[str] = set()
    start = threading.Thread.start

    def start_or_refuse(thread: threading.Thread) -> None:
        if thread.name in names:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)
    return names


@pytest.mark.parametrize("allowed", [None, "1 minute"])
async def test_a_sync_job_for_which_no_thread_can_be_started_is_given_back_and_runs_later(
    allowed: str | None,
    database: Database,
    conn: psycopg.Connection,
    refused_threads: set[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App()

    @app.task
    def t() -> None: ...

    refused_threads.add("pgqueue_1")
    jobs = [enqueue(conn, timeout=allowed) for _ in range(3)]
    async with working(app, database.dsn, concurrency=2):
        await wait_until_async(lambda: all(job(conn, each).claims == 1 for each in jobs))
        await wait_until_async(lambda: all(job(conn, each).state == "waiting" for each in jobs))
        refused_threads.clear()
        Clock(conn).advance("11 s")
        assert await done(conn, *jobs) == ["succeeded"] * 3
    assert [(job(conn, each).attempts, job(conn, each).errors) for each in jobs] == [(1, None)] * 3
    assert caplog.text.count("the system starts no other thread") == 1
    assert "could not be run" not in caplog.text


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_job_whose_end_cannot_be_determined_is_given_back_and_costs_no_slot(
    kind: str,
    database: Database,
    conn: psycopg.Connection,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = App()

    def fails() -> None:
        raise ValueError("no")

    async def fails_on_loop() -> None:
        fails()

    app.task(name="t", max_attempts=1)(fails_on_loop if kind == "async" else fails)

    async def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a bug")

    async with working(app, database.dsn, concurrency=1) as worker:
        monkeypatch.setattr(worker.handlers, "run", broken)
        job_id = enqueue(conn)
        await wait_until_async(lambda: job(conn, job_id).claims == 1 and job(conn, job_id).state == "waiting")
        monkeypatch.undo()
        Clock(conn).advance("11 s")
        assert await done(conn, job_id) == ["dead"]
    assert "could not be run and is given back" in caplog.text
    assert "is replaced" not in caplog.text


async def test_sync_jobs_share_the_threads_that_there_are(
    database: Database, conn: psycopg.Connection, refused_threads: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    go = threading.Event()
    names: set[str] = set()

    @app.task
    def t() -> None:
        names.add(threading.current_thread().name)
        assert go.wait(120)

    refused_threads.add("pgqueue_2")
    async with working(app, database.dsn, concurrency=3):
        jobs = [enqueue(conn) for _ in range(2)]
        await wait_until_async(lambda: "the system starts no other thread" in caplog.text)
        go.set()
        assert await done(conn, *jobs) == ["succeeded"] * 2
        assert names == {"pgqueue_1"}
        refused_threads.clear()
        go.clear()
        jobs = [enqueue(conn) for _ in range(2)]
        await wait_until_async(lambda: names == {"pgqueue_1", "pgqueue_2"})
        go.set()
        assert await done(conn, *jobs) == ["succeeded"] * 2


@pytest.mark.covers("G9", "D2")
@pytest.mark.parametrize("allowed", [None, "1 minute"])
async def test_a_sync_job_that_is_lost_while_it_waits_for_a_thread_does_not_start(
    allowed: str | None,
    database: Database,
    conn: psycopg.Connection,
    refused_threads: set[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App()
    go = threading.Event()
    ran: list[int] = []

    @app.task
    def t(job: Job) -> None:
        ran.append(job.id)
        assert go.wait(120)

    refused_threads.add("pgqueue_2")
    async with working(app, database.dsn, concurrency=2, lease=3.0) as worker:
        first = enqueue(conn)
        await wait_until_async(lambda: ran == [first])
        second = enqueue(conn, timeout=allowed)
        await wait_until_async(lambda: "the system starts no other thread" in caplog.text)
        taken = take_away(conn, second)
        await wait_until_async(lambda: f"job {second} (task t, queue default, attempt 1) is lost" in caplog.text)
        go.set()
        await wait_until_async(lambda: worker.status()["running"] == 0)
        assert ran == [first]
        assert call(conn, "complete", second, taken) is True


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_no_more_handlers_run_at_once_than_concurrency_allows(
    kind: str, database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    lock = threading.Lock()
    together: list[int] = []
    running = 0

    def enter() -> None:
        nonlocal running
        with lock:
            running += 1
            together.append(running)

    def leave() -> None:
        nonlocal running
        with lock:
            running -= 1

    async def asynchronous(i: int) -> None:
        enter()
        await asyncio.sleep(0.02)
        leave()

    def synchronous(i: int) -> None:
        enter()
        threading.Event().wait(0.02)
        leave()

    app.task(name="t")(asynchronous if kind == "async" else synchronous)
    jobs = enqueue_many(conn, 30)
    async with working(app, database.dsn, concurrency=3):
        assert set(await done(conn, *jobs)) == {"succeeded"}
    assert len(together) == 30
    assert max(together) == 3


@pytest.mark.covers("G8", "G11")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_failing_job_is_retried_until_it_is_dead_with_every_error_kept(
    kind: str, database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    def break_down(job: Job) -> None:
        raise LookupError(f"no answer, try {job.attempt}\0")

    async def break_down_async(job: Job) -> None:
        break_down(job)

    options = {"max_attempts": 3, "retry_policy": "fixed", "retry_delay": "20 ms", "retry_jitter": 0}
    app.task(name="t", **options)(break_down_async if kind == "async" else break_down)
    job_id = enqueue(conn)
    async with working(app, database.dsn):
        assert await done(conn, job_id) == ["dead"]
    found = job(conn, job_id)
    assert found.attempts == 3
    assert [error["attempt"] for error in found.errors] == [1, 2, 3]
    assert [error["message"] for error in found.errors] == [f"no answer, try {i}\ufffd" for i in (1, 2, 3)]
    assert {error["class"] for error in found.errors} == {"LookupError"}
    assert all("in break_down\n" in error["traceback"] for error in found.errors)
    # The reader wants the handler's own lines, not ours.
    assert all("runner.py" not in error["traceback"] for error in found.errors)


def exit_now() -> None:
    raise SystemExit(3)


def interrupt() -> None:
    raise KeyboardInterrupt


def stop_iteration() -> None:
    raise StopIteration


def cancel_itself() -> None:
    raise asyncio.CancelledError("by the handler")


async def await_a_cancelled_task() -> None:
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    await task


async def exit_on_the_loop() -> None:
    raise SystemExit(3)


async def interrupt_the_loop() -> None:
    raise KeyboardInterrupt


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def fail_without_words() -> None:
    raise Unspeakable


def fail_with_half_a_character() -> None:
    raise ValueError("half: \udc80")


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (exit_now, "SystemExit"),
        (interrupt, "KeyboardInterrupt"),
        (stop_iteration, "RuntimeError"),
        (cancel_itself, "asyncio.exceptions.CancelledError"),
        (await_a_cancelled_task, "asyncio.exceptions.CancelledError"),
        (exit_on_the_loop, "SystemExit"),
        (interrupt_the_loop, "KeyboardInterrupt"),
        (fail_without_words, "tests.worker.test_running.Unspeakable"),
        (fail_with_half_a_character, "ValueError"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
async def test_whatever_a_handler_raises_fails_its_job_and_the_worker_goes_on(
    handler: Callable[[], object], error: str, database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    app.task(name="bad", max_attempts=1)(handler)

    @app.task
    async def good() -> None: ...

    # With one slot, a runner that were lost to the bad job would leave none for the good one.
    bad = enqueue(conn, "bad")
    async with working(app, database.dsn, concurrency=1):
        assert await done(conn, bad) == ["dead"]
        assert await done(conn, enqueue(conn, "good")) == ["succeeded"]
    assert job(conn, bad).errors[0]["class"] == error


async def test_a_handler_that_swallows_its_cancellation_leaves_nothing_to_the_next_one(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    started = asyncio.Event()
    pending: list[int] = []

    @app.task
    async def stubborn() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return

    @app.task(max_attempts=1)
    async def grouped() -> None:
        current = asyncio.current_task()
        assert current is not None
        pending.append(current.cancelling())
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            await asyncio.sleep(60)

    async def fail() -> None:
        raise LookupError("in the group")

    first = enqueue(conn, "stubborn")
    async with working(app, database.dsn, concurrency=1):
        await wait_until_async(started.is_set)
        assert call(conn, "cancel", first) == "requested"
        assert await done(conn, first) == ["succeeded"]
        second = enqueue(conn, "grouped")
        assert await done(conn, second) == ["dead"]
    assert job(conn, second).errors[0]["class"] == "ExceptionGroup"
    assert pending == [0]


async def test_arguments_that_do_not_fit_fail_the_job_with_a_clear_error(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task(max_attempts=1)
    async def greet(name: str) -> None: ...

    wrong = enqueue(conn, "greet", {"nmae": "Ada"})
    async with working(app, database.dsn):
        assert await done(conn, wrong) == ["dead"]
    [error] = job(conn, wrong).errors
    assert error["class"] == "TypeError"
    assert "nmae" in error["message"]


@pytest.mark.covers("A1")
@pytest.mark.parametrize("args", ['{"n": 1e5000}', '{"n": ' + "[" * 1100 + "]" * 1100 + "}"], ids=["number", "depth"])
async def test_arguments_that_python_cannot_read_fail_their_own_job_and_no_other(
    args: str, database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task(max_attempts=1)
    async def good(n: object = None) -> None: ...

    bad = value(conn, "select pgqueue.enqueue('good', %s::jsonb)", args)
    others = [enqueue(conn, "good") for _ in range(3)]
    async with working(app, database.dsn):
        assert await done(conn, bad, *others) == ["dead", "succeeded", "succeeded", "succeeded"]
        assert await done(conn, enqueue(conn, "good")) == ["succeeded"]
    message = value(conn, "select errors[0] ->> 'message' from pgqueue.history where id = %s", bad)
    assert message.startswith("args cannot be read here")


@pytest.mark.covers("A7")
async def test_a_handler_may_be_an_object_that_carries_its_services(
    database: Database, conn: psycopg.Connection
) -> None:
    class Mailer:
        def __init__(self) -> None:
            self.sent: list[tuple[str, int]] = []

        async def __call__(self, to: str, job: Job) -> None:
            await asyncio.sleep(0)
            self.sent.append((to, job.id))

    app = App()
    mailer = Mailer()
    app.task(name="mail")(mailer)
    job_id = enqueue(conn, "mail", {"to": "a@b.c"})
    async with working(app, database.dsn):
        assert await done(conn, job_id) == ["succeeded"]
    assert mailer.sent == [("a@b.c", job_id)]


async def test_a_function_that_returns_an_awaitable_is_awaited(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    seen: list[int] = []

    async def inner(n: int) -> None:
        await asyncio.sleep(0)
        seen.append(n)

    @app.task
    def outer(n: int) -> Awaitable[None]:
        return inner(n)

    job_id = enqueue(conn, "outer", {"n": 5})
    async with working(app, database.dsn):
        assert await done(conn, job_id) == ["succeeded"]
    assert seen == [5]


@pytest.mark.covers("G13", "A8")
async def test_a_job_of_an_unknown_task_goes_back_with_a_delay_and_is_not_failed(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()

    @app.task
    async def known() -> None: ...

    unknown = enqueue(conn, "unknown")
    with caplog.at_level(logging.WARNING, "pgqueue"):
        async with working(app, database.dsn):
            await wait_until_async(lambda: (found := job(conn, unknown)).state == "waiting" and found.reserved_at)
            assert await done(conn, enqueue(conn, "known")) == ["succeeded"]
    found = job(conn, unknown)
    assert (found.attempts, found.errors) == (0, None)
    delay = value(conn, "select extract(epoch from ready_at - reserved_at) from pgqueue.jobs where id = %s", unknown)
    assert 9 < delay < 12
    [warning] = [each.getMessage() for each in caplog.records if "no such task" in each.getMessage()]
    assert f"job {unknown} (task unknown" in warning


@pytest.mark.covers("G13")
async def test_a_renamed_function_runs_the_jobs_of_its_task_name(database: Database, conn: psycopg.Connection) -> None:
    before, after = App(), App()
    seen: list[str] = []

    @before.task(name="mail.send")
    async def send(to: str) -> None: ...

    @after.task(name="mail.send")
    async def deliver_somewhere_else(to: str) -> None:
        seen.append(to)

    job_id = send.enqueue(conn, "a@b.c")
    async with working(after, database.dsn):
        assert await done(conn, job_id) == ["succeeded"]
    assert seen == ["a@b.c"]


@pytest.mark.covers("A6")
async def test_cancelling_a_running_async_job_stops_it_at_once(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    started, stopped = asyncio.Event(), asyncio.Event()

    @app.task
    async def long() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    job_id = enqueue(conn, "long")
    # Leases are extended every 200 s here: it is the NOTIFY that brings the word.
    async with working(app, database.dsn, lease=600.0):
        await wait_until_async(started.is_set)
        assert call(conn, "cancel", job_id) == "requested"
        assert await done(conn, job_id) == ["cancelled"]
        assert stopped.is_set()


async def test_a_job_of_a_paused_queue_is_not_run_until_it_is_resumed(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task
    async def t() -> None: ...

    call(conn, "pause_queue", "quiet")
    paused = enqueue(conn, queue="quiet")
    async with working(app, database.dsn, poll_interval=1.0):
        assert await done(conn, enqueue(conn, queue="loud")) == ["succeeded"]
        assert job(conn, paused).state == "waiting"
        call(conn, "resume_queue", "quiet")
        assert await done(conn, paused) == ["succeeded"]


@pytest.mark.parametrize(("kind", "target"), [("task", "slow"), ("queue", "default"), ("limit_key", "a*")])
async def test_what_a_worker_has_not_started_goes_back_when_it_is_paused(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, kind: str, target: str
) -> None:
    monkeypatch.setattr(Throughput, "buffer", lambda self: 10)
    app = App()
    go = asyncio.Event()

    @app.task
    async def slow(i: int) -> None:
        await go.wait()

    first, *others = enqueue_many(conn, 5, "slow", limit_key="api")
    executing = "select count(*) from pgqueue.jobs where state = 'executing'"
    async with working(app, database.dsn, concurrency=1) as worker:
        await wait_until_async(lambda: worker.status()["buffered"] == 4)
        call(conn, "pause", kind, target)
        await wait_until_async(lambda: value(conn, executing) == 1)
        go.set()
        assert await done(conn, first) == ["succeeded"]
        assert {job(conn, each).attempts for each in others} == {0}
        call(conn, "resume", kind, target)
        assert await done(conn, *others) == ["succeeded"] * 4


@pytest.mark.parametrize(
    "stop",
    [
        lambda conn: call(conn, "throttle", "task", "slow", "1 hour"),
        lambda conn: call(conn, "throttle", "limit_key", "api", "1 hour"),
        lambda conn: call(conn, "set_limit", "task", "slow", 1),
        lambda conn: call(conn, "set_limit", "queue", "default", 1),
        lambda conn: call(conn, "set_limit", "limit_key", "ap*", 1),
    ],
    ids=["throttled task", "throttled limit_key", "limited task", "limited queue", "limited prefix"],
)
async def test_what_a_worker_has_not_started_goes_back_when_it_is_throttled_or_limited(
    database: Database, conn: psycopg.Connection, held_back: Worker, stop: Callable[[psycopg.Connection], object]
) -> None:
    stop(conn)
    await wait_until_async(lambda: held_back.status()["buffered"] == 0)
    await wait_until_async(lambda: value(conn, EXECUTING) == 1)


async def test_what_a_worker_has_not_started_is_claimed_again_under_a_rate_that_is_set(
    database: Database, conn: psycopg.Connection, held_back: Worker
) -> None:
    call(conn, "set_limit", "task", "slow", rate=1, per="1 hour")
    # The one that runs began before.
    await wait_until_async(lambda: value(conn, "select count(*) from pgqueue.jobs where state = 'blocked'") == 3)
    assert value(conn, EXECUTING) == 2


EXECUTING = "select count(*) from pgqueue.jobs where state = 'executing'"


@pytest.fixture
async def held_back(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Worker]:
    """A worker of one slot in which a job runs, for as long as the test does, and which holds four more."""
    monkeypatch.setattr(Throughput, "buffer", lambda self: 10)
    app = App()
    go = asyncio.Event()

    @app.task
    async def slow(i: int) -> None:
        await go.wait()

    enqueue_many(conn, 5, "slow", limit_key="api")
    async with working(app, database.dsn, concurrency=1) as worker:
        await wait_until_async(lambda: worker.status()["buffered"] == 4)
        yield worker
        go.set()


@pytest.mark.parametrize("listen", [True, False])
async def test_what_waits_behind_a_job_that_is_throttled_goes_back_and_does_not_start(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, listen: bool
) -> None:
    monkeypatch.setattr(Throughput, "buffer", lambda self: 10)
    app = App()
    go, other = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow(i: int) -> None:
        if i == 0:
            await go.wait()
            raise Throttled(after=3600)
        # It has the slot before the other's end is stored.
        await other.wait()

    _, second, *others = enqueue_many(conn, 5, "slow", limit_key="api")
    # A heartbeat comes each minute: it is not what tells.
    async with working(app, database.dsn, concurrency=1, lease=600.0, listen=listen) as worker:
        await wait_until_async(lambda: worker.status()["buffered"] == 4)
        go.set()
        await wait_until_async(lambda: worker.status()["buffered"] == 0)
        other.set()
        assert await done(conn, second) == ["succeeded"]
        assert {job(conn, each).attempts for each in others} == {0}


async def test_a_storm_of_throttled_handlers_asks_the_database_no_more_often(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # After one question, which may be that of the start, no other comes for as long as the test lasts.
    monkeypatch.setattr("pgqueue.worker.presence.orders._APART", NEVER)
    app = App()
    asked: list[str] = []
    original = Orders._ask

    async def ask(self: Orders) -> str:
        asked.append("a command")
        return await original(self)

    monkeypatch.setattr(Orders, "_ask", ask)

    @app.task
    async def call_api(i: int) -> None:
        raise Throttled(after=3600)

    conn.execute(
        "select pgqueue.enqueue('call_api', jsonb_build_object('i', n), limit_key => 'tenant:' || n)"
        " from generate_series(1, 60) n"
    )
    throttled = "select count(*) = 60 from pgqueue.jobs where throttled_since is not null"
    async with working(app, database.dsn, concurrency=20, lease=600.0):
        await wait_until_async(lambda: value(conn, throttled))
        assert len(asked) == 1


async def test_an_open_breaker_reaches_what_waits_in_a_worker(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Throughput, "buffer", lambda self: 10)
    call(conn, "set_breaker", "task", "slow", of=1, pause="1 hour")
    app = App()
    go, other = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow(i: int) -> None:
        if i == 0:
            await go.wait()
            raise ConnectionError("the provider is down")
        await other.wait()

    first, second, *others = enqueue_many(conn, 5, "slow")
    async with working(app, database.dsn, concurrency=1) as worker:
        await wait_until_async(lambda: worker.status()["buffered"] == 4)
        go.set()
        await wait_until_async(lambda: worker.status()["buffered"] == 0)
        other.set()
        # What was reserved before it opened counts for nothing.
        assert await done(conn, second) == ["succeeded"]
        assert {job(conn, each).attempts for each in others} == {0}
        assert job(conn, first).attempts == 1


@pytest.mark.covers("G4")
async def test_a_worker_serves_the_queues_it_was_given_and_no_other(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task
    async def t() -> None: ...

    elsewhere = enqueue(conn, queue="c", priority=100)
    mine = [enqueue(conn, queue=queue) for queue in ("a", "b")]
    async with working(app, database.dsn, queues=("a", "b"), strategy="strict"):
        assert await done(conn, *mine) == ["succeeded", "succeeded"]
    assert job(conn, elsewhere).reserved_at is None


async def test_until_empty_ends_when_nothing_is_due_and_leaves_the_future_alone(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task
    async def t(i: int = 0) -> None:
        if i < 3:
            # A job that a job brings counts as well.
            enqueue(conn, args={"i": i + 1})

    first, later = enqueue(conn), enqueue(conn, delay="1 hour")
    async with working(app, database.dsn, until_empty=True) as worker:
        assert await done(conn, first) == ["succeeded"]
        await wait_until_async(lambda: worker.completed == 4)
        await wait_until_async(lambda: value(conn, "select count(*) from pgqueue.workers") == 0)
    assert job(conn, later).state == "waiting"
    assert value(conn, "select count(*) from pgqueue.jobs") == 1


async def test_until_empty_looks_at_all_of_a_thousand_queues(database: Database, conn: psycopg.Connection) -> None:
    app = App()

    @app.task
    async def t() -> None: ...

    conn.execute("select count(pgqueue.enqueue('t', queue => 'q' || n)) from generate_series(1, 1000) n")
    await asyncio.wait_for(Worker(app, database.dsn, WorkerConfig(until_empty=True)).run(), 120)
    assert value(conn, "select count(*) from pgqueue.jobs") == 0
    # Their lanes are still registered, and a claim looks at 64 of them: the one with a job comes late.
    last = value(conn, "select queue from pgqueue.lanes order by turn desc limit 1")
    enqueue(conn, queue=last)
    await asyncio.wait_for(Worker(app, database.dsn, WorkerConfig(until_empty=True)).run(), 120)
    assert value(conn, "select count(*) from pgqueue.jobs") == 0


async def test_until_empty_waits_for_a_job_deferred_because_the_one_ahead_of_it_was_locked(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task
    async def t() -> None: ...

    ahead, behind = enqueue(conn, key="k"), enqueue(conn, key="k")
    [[_, reservation]] = conn.execute("select id, reservation from pgqueue.reserve('other')").fetchall()
    holder = database.session()
    # As the session does that stores an end.
    holder.run("begin")
    holder.run("select from pgqueue.jobs where id = %s for update", [ahead])
    working = asyncio.create_task(Worker(app, database.dsn, WorkerConfig(until_empty=True)).run())
    await wait_until_async(
        lambda: value(conn, "select ready_at > run_at + '0.5 s' from pgqueue.jobs where id = %s", behind)
    )
    holder.run("select pgqueue.complete(%s, %s)", [ahead, reservation])
    holder.run("commit")
    await asyncio.wait_for(working, 60)
    assert job(conn, behind).state == "succeeded"


async def test_a_job_past_its_expiry_is_cancelled_and_not_run(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    app = App()
    ran: list[int] = []

    @app.task
    async def t(job: Job) -> None:
        ran.append(job.id)

    late, plain = enqueue(conn, expires_in="1 minute"), enqueue(conn)
    clock.advance("2 minutes")
    async with working(app, database.dsn):
        assert await done(conn, late, plain) == ["cancelled", "succeeded"]
    assert ran == [plain]


async def test_a_completion_behind_a_lock_keeps_no_other_waiting_and_is_stored_later(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    go = asyncio.Event()

    @app.task
    async def t() -> None:
        await go.wait()

    locked, free = enqueue(conn), enqueue(conn)
    async with working(app, database.dsn):
        await wait_until_async(lambda: value(conn, "select count(*) from pgqueue.jobs where state = 'executing'") == 2)
        holder = database.session()
        holder.run("begin")
        holder.run("select 1 from pgqueue.jobs where id = %s for update", [locked])
        go.set()
        # The first batch waits 5 s for the lock and is then stored one by one.
        assert await done(conn, free) == ["succeeded"]
        assert job(conn, locked).state == "executing"
        holder.run("commit")
        assert await done(conn, locked) == ["succeeded"]


async def test_a_job_that_is_locked_when_it_is_given_back_is_given_back_after_the_lock(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    told, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def t() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.set()
            await go.wait()
            raise

    job_id = enqueue(conn)
    async with working(app, database.dsn):
        await wait_until_async(lambda: job(conn, job_id).state == "executing")
        call(conn, "cancel", job_id)
        await wait_until_async(told.is_set)
        holder = database.session()
        holder.run("begin")
        holder.run("select 1 from pgqueue.jobs where id = %s for update", [job_id])
        go.set()
        await wait_until_async(lambda: "is locked by another transaction" in caplog.text)
        assert job(conn, job_id).state == "executing"
        holder.run("commit")
        assert await done(conn, job_id) == ["cancelled"]


@pytest.mark.covers("D6")
async def test_a_handler_that_completes_in_its_own_transaction_commits_effects_and_end_together(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    conn.execute("create table effects (job_id bigint, attempt integer)")

    @app.task(max_attempts=2, retry_policy="fixed", retry_delay="10 ms")
    async def t(job: Job) -> None:
        own = await database.connect_async(autocommit=False)
        await own.execute("insert into effects values (%s, %s)", [job.id, job.attempt])
        await own.execute("select pgqueue.complete(%s, %s, %s)", [job.id, job.reservation, Jsonb({"n": job.attempt})])
        if job.attempt == 1:
            await own.rollback()
            raise ConnectionError("after the writes, before the commit")
        await own.commit()

    job_id = enqueue(conn)
    async with working(app, database.dsn):
        assert await done(conn, job_id) == ["succeeded"]
    assert conn.execute("select * from effects").fetchall() == [(job_id, 2)]
    # What the worker reported afterwards, that it succeeded without a result, changed nothing.
    assert job(conn, job_id).result == {"n": 2}


async def test_two_workers_share_the_work_and_run_nothing_twice(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    ran: list[int] = []

    @app.task
    async def t(i: int) -> None:
        await asyncio.sleep(0.001)
        ran.append(i)

    jobs = enqueue_many(conn, 500)
    async with working(app, database.dsn, name="a", concurrency=5), working(app, database.dsn, name="b", concurrency=5):
        await done(conn, *jobs, timeout=30)
    assert sorted(ran) == list(range(500))
    workers: dict[str, int] = dict(
        conn.execute("select reserved_by, count(*) from pgqueue.all_jobs group by 1").fetchall()
    )
    assert set(workers) == {"a", "b"}


async def test_while_jobs_stream_in_their_ends_are_reported_along_with_the_next_claim(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App()

    @app.task
    async def t() -> None:
        pass

    along: list[bool] = []
    perform = Exchange.perform

    async def note(self: Exchange, link: Link, max_jobs: int, batch: list[Held], **how: Any) -> Reply:
        along.extend([max_jobs > 0] * len(batch))
        return await perform(self, link, max_jobs, batch, **how)

    monkeypatch.setattr(Exchange, "perform", note)
    # Thirty jobs in 100 ms are more than a busy machine runs for sure.
    monkeypatch.setattr(Runner, "is_busy", property(lambda _: True))
    for name in ("_STREAM_OF", "_MOST"):
        monkeypatch.setattr(f"pgqueue.worker.trade.notify_load.{name}", -1)
    async with working(app, database.dsn):
        # A process that stands still just then reports an end by itself.
        for _ in range(40):
            await done(conn, enqueue(conn, "t"))
            if along.count(True) >= 3:
                break
    assert along.count(True) >= 3
