"""A handler starts in the turn of the event loop in which its slot takes the job; and the loop gets its turns."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio
import psycopg
import pytest

from pgqueue import App, Job
from pgqueue.worker.run.isolation import NAME
from pgqueue.worker.run.throughput import Throughput
from pgqueue.worker.run.turn import Turn
from tests.calls import call, enqueue, enqueue_many, job, value
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import done, working


class Turns:
    """Counts the turns of the event loop."""

    def __init__(self) -> None:
        self.now = 0
        self._next: asyncio.Handle | None = None

    @asynccontextmanager
    async def counted(self) -> AsyncIterator[None]:
        self._count()
        try:
            yield
        finally:
            assert self._next is not None
            self._next.cancel()

    def _count(self) -> None:
        self.now += 1
        self._next = asyncio.get_running_loop().call_soon(self._count)


@pytest.fixture
def claimed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker claims fifty jobs at a time, however few slots it has."""
    monkeypatch.setattr(Throughput, "buffer", lambda _: 100)


@pytest.mark.usefixtures("claimed_at_once")
async def test_handlers_that_never_wait_run_in_one_turn_of_the_loop(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqueue.worker.run.turn.LENGTH", 60.0)
    app, turns = App(), Turns()
    ran: list[int] = []

    @app.task
    async def t(i: int) -> None:
        ran.append(turns.now)

    jobs = enqueue_many(conn, 100)
    async with turns.counted(), working(app, database.dsn, concurrency=1):
        assert set(await done(conn, *jobs)) == {"succeeded"}
    # A turn for each claim, of which the first one asks for a single job.
    assert len(set(ran)) < 10


@pytest.mark.usefixtures("claimed_at_once")
async def test_handlers_that_never_wait_leave_the_loop_its_turns_in_however_many_slots_they_run(
    database: Database, conn: psycopg.Connection
) -> None:
    app, turns = App(), Turns()
    ran: list[int] = []

    @app.task
    async def t(i: int) -> None:
        ran.append(turns.now)
        threading.Event().wait(0.002)

    jobs = enqueue_many(conn, 100)
    async with turns.counted(), working(app, database.dsn, concurrency=10):
        assert set(await done(conn, *jobs)) == {"succeeded"}
    # Handlers start for 4 ms, which are 3 of these; between two counts the rest of one such time may lie, and one more.
    assert max(Counter(ran).values()) <= 6


@pytest.mark.usefixtures("claimed_at_once")
async def test_many_slots_are_not_woken_in_each_turn_of_handlers_that_never_wait(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App()
    asked = 0
    original = Turn.is_over

    def is_over(self: Turn, now: float) -> bool:
        nonlocal asked
        asked += 1
        return original(self, now)

    monkeypatch.setattr(Turn, "is_over", is_over)

    @app.task
    async def t(i: int) -> None:
        threading.Event().wait(0.002)

    jobs = enqueue_many(conn, 400)
    async with working(app, database.dsn, concurrency=200):
        assert set(await done(conn, *jobs)) == {"succeeded"}
    # A slot asks before each job, at the end of each turn, which has one job at least, and where it is woken in vain.
    assert asked < 10 * len(jobs)


@pytest.mark.usefixtures("claimed_at_once")
@pytest.mark.parametrize("seconds", [0.0, 0.005], ids=["quick", "longer than a turn"])
async def test_handlers_that_wait_for_each_other_run_in_all_slots(
    database: Database, conn: psycopg.Connection, seconds: float
) -> None:
    app, all_run = App(), asyncio.Event()
    running = 0

    @app.task
    async def t(i: int) -> None:
        nonlocal running
        threading.Event().wait(seconds)
        running += 1
        if running == 60:
            all_run.set()
        await all_run.wait()

    jobs = enqueue_many(conn, 60)
    async with working(app, database.dsn, concurrency=60):
        assert set(await done(conn, *jobs)) == {"succeeded"}


@pytest.mark.usefixtures("claimed_at_once")
async def test_sync_handlers_that_wait_for_each_other_run_in_all_slots(
    database: Database, conn: psycopg.Connection
) -> None:
    app, all_run = App(), threading.Barrier(40)

    @app.task
    def t(i: int) -> None:
        all_run.wait(60)

    jobs = enqueue_many(conn, 40)
    async with working(app, database.dsn, concurrency=40):
        assert set(await done(conn, *jobs)) == {"succeeded"}


async def test_leases_are_extended_beside_handlers_that_never_wait(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Throughput, "buffer", lambda _: 2000)
    app = App()
    ran = 0
    is_extended = False

    @app.task
    async def t(i: int) -> None:
        nonlocal ran
        ran += 1
        if not is_extended:
            threading.Event().wait(0.005)

    jobs = enqueue_many(conn, 1000)
    extended = "select bool_or(lease_expires_at > reserved_at + interval '3.2 s') from pgqueue.jobs"
    async with working(app, database.dsn, concurrency=1, lease=3.0):
        await wait_until_async(lambda: value(conn, extended))
        assert ran < 1000
        is_extended = True
        assert set(await done(conn, *jobs)) == {"succeeded"}


async def test_a_handler_has_a_task_before_it_first_waits(database: Database, conn: psycopg.Connection) -> None:
    app = App()

    @app.task(max_attempts=1)
    async def t() -> None:
        task = asyncio.current_task()
        assert task is not None
        assert task in asyncio.all_tasks()
        assert task.get_name() == "pgqueue-job"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        async with asyncio.TaskGroup() as group:
            child = group.create_task(asyncio.sleep(0, "of the child"))
        assert child.result() == "of the child"
        with anyio.move_on_after(0.01) as scope:
            await anyio.sleep(60)
        assert scope.cancelled_caught
        assert (asyncio.current_task(), task.cancelling()) == (task, 0)

    @app.task(max_attempts=1)
    async def raises_in_a_group() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            raise LookupError("in the body")

    async def fail() -> None:
        raise LookupError("in the group")

    async with working(app, database.dsn, concurrency=1):
        assert await done(conn, enqueue(conn)) == ["succeeded"]
        failing = enqueue(conn, "raises_in_a_group")
        assert await done(conn, failing) == ["dead"]
        assert await done(conn, enqueue(conn)) == ["succeeded"]
    assert job(conn, failing).errors[0]["class"] == "ExceptionGroup"


async def test_a_job_that_is_cancelled_before_its_handler_first_waits_ends_where_it_waits(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    ended: list[str] = []

    @app.task
    async def t(job: Job) -> None:
        assert call(conn, "cancel", job.id) == "requested"
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("where it waits")
            raise

    job_id = enqueue(conn)
    async with working(app, database.dsn, concurrency=1, lease=600.0):
        assert await done(conn, job_id) == ["cancelled"]
    assert ended == ["where it waits"]


@pytest.mark.usefixtures("claimed_at_once")
async def test_a_handler_that_cancels_all_tasks_and_never_waits_cancels_no_other_job(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()

    @app.task
    async def sweeps() -> None:
        for each in asyncio.all_tasks():
            if each.get_name() == "pgqueue-runner":
                each.cancel()

    @app.task
    async def waits() -> None:
        await asyncio.sleep(0)

    jobs = [enqueue(conn, name) for name in ("waits", "sweeps", "waits", "waits")]
    async with working(app, database.dsn, concurrency=1):
        assert await done(conn, *jobs) == ["succeeded"] * 4
    assert {(found.attempts, found.claims) for found in (job(conn, each) for each in jobs)} == {(1, 1)}
    assert "a slot ended before its worker (cancelled) and is replaced" in caplog.text


async def cancel_at_once() -> None:
    raise asyncio.CancelledError("by the handler")


async def cancel_its_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)


async def exit_at_once() -> None:
    raise SystemExit(3)


async def interrupt_at_once() -> None:
    raise KeyboardInterrupt


async def close_itself() -> None:
    raise GeneratorExit


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (cancel_at_once, "asyncio.exceptions.CancelledError"),
        (cancel_its_task, "asyncio.exceptions.CancelledError"),
        (exit_at_once, "SystemExit"),
        (interrupt_at_once, "KeyboardInterrupt"),
        (close_itself, "GeneratorExit"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
async def test_whatever_a_handler_raises_before_it_first_waits_fails_its_job_and_costs_no_slot(
    handler: Callable[[], Coroutine[None, None, None]],
    error: str,
    database: Database,
    conn: psycopg.Connection,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App()
    app.task(name="bad", max_attempts=1)(handler)

    @app.task(max_attempts=1)
    async def good() -> None:
        await asyncio.sleep(0)

    jobs = [enqueue(conn, name) for name in ("bad", "bad", "good")]
    async with working(app, database.dsn, concurrency=1):
        assert await done(conn, *jobs) == ["dead", "dead", "succeeded"]
    assert {job(conn, each).errors[0]["class"] for each in jobs[:2]} == {error}
    assert "is replaced" not in caplog.text
    assert "could not be run" not in caplog.text


class Unshown:
    """Cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


@pytest.mark.parametrize("notes", [[Unshown()], Unshown()], ids=["a note", "notes"])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_an_exception_that_cannot_be_shown_fails_its_job_and_costs_no_slot(
    kind: str, notes: Any, database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()

    def fail() -> None:
        error = ValueError("no")
        error.__notes__ = notes
        raise error

    async def fail_on_loop() -> None:
        fail()

    app.task(name="t", max_attempts=1)(fail_on_loop if kind == "async" else fail)
    job_id = enqueue(conn)
    async with working(app, database.dsn, concurrency=1):
        assert await done(conn, job_id) == ["dead"]
    [error] = job(conn, job_id).errors
    assert (error["class"], error["message"]) == ("ValueError", "no")
    assert "raise error" in error["traceback"]
    assert "is replaced" not in caplog.text


@pytest.mark.parametrize("library", ["asyncio", "uvloop"])
def test_a_handler_starts_before_its_slot_goes_on_and_keeps_its_task_on_each_loop(
    library: str, database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops = pytest.importorskip(library)
    monkeypatch.setattr("pgqueue.worker.run.turn.LENGTH", 60.0)
    monkeypatch.setattr(Throughput, "buffer", lambda _: 100)
    app = App()
    tasks: list[tuple[int, asyncio.Task[None] | None]] = []

    @app.task
    async def t(i: int) -> None:
        for _ in range(2):
            tasks.append((i, asyncio.current_task()))
            await asyncio.sleep(0)

    async def check() -> None:
        async with working(app, database.dsn, concurrency=10):
            assert set(await done(conn, *jobs)) == {"succeeded"}
        assert "call_soon" not in vars(asyncio.get_running_loop())

    jobs = enqueue_many(conn, 20)
    with asyncio.Runner(loop_factory=loops.new_event_loop) as runner:
        runner.run(check())
    assert len(tasks) == 40
    assert len(set(tasks)) == 20
    assert len({task for _, task in tasks}) == 20


async def test_what_a_finalizer_hands_to_the_loop_while_a_task_is_made_is_called(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App()
    loop = asyncio.get_running_loop()
    handed: list[int] = []
    called: list[int] = []

    @app.task
    async def t(i: int) -> None: ...

    class Task(asyncio.Task[None]):
        # As in a garbage collection, which may run wherever an object is made.
        def __init__(self, coroutine: Coroutine[Any, Any, None], **options: Any) -> None:
            # Those of jobs alone, as the worker makes tasks for itself: these do not replace the loop's call_soon.
            if options.get("name") == NAME:
                handed.append(1)
                loop.call_soon(called.append, 1)
            super().__init__(coroutine, **options)

    async with working(app, database.dsn):
        monkeypatch.setattr(asyncio, "Task", Task)
        jobs = enqueue_many(conn, 5)
        assert set(await done(conn, *jobs)) == {"succeeded"}
        monkeypatch.undo()
    assert len(handed) == 5
    assert len(called) == 5


async def test_a_loop_whose_call_soon_was_replaced_keeps_the_other_one(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    loop = asyncio.get_running_loop()
    call_soon = loop.call_soon

    def other(*args: Any, **options: Any) -> asyncio.Handle:
        return call_soon(*args, **options)

    @app.task
    async def t() -> None:
        assert vars(loop)["call_soon"] is other
        await asyncio.sleep(0)

    loop.call_soon = other  # type: ignore[method-assign]
    try:
        async with working(app, database.dsn):
            assert await done(conn, enqueue(conn)) == ["succeeded"]
        assert vars(loop)["call_soon"] is other
    finally:
        del loop.call_soon
