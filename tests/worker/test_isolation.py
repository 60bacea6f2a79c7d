"""What a handler leaves on its context, task, loop and thread ends with its job."""

from __future__ import annotations

import asyncio
import decimal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar

import psycopg
import pytest

from pgqueue import App, current_job
from tests.calls import enqueue, job
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import done, working

tenant: ContextVar[str] = ContextVar("tenant")


async def pass_on(_job: object, call_next: Callable[[], Awaitable[object]]) -> object:
    return await call_next()


def pass_on_in_thread(_job: object, call_next: Callable[[], object]) -> object:
    return call_next()


@pytest.mark.parametrize("middleware", [None, pass_on, pass_on_in_thread], ids=["plain", "async", "sync"])
async def test_each_job_starts_in_the_context_that_the_worker_started_with(
    middleware: Callable[..., object] | None, database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    if middleware is not None:
        app.middleware(middleware)
    seen: list[tuple[str, int]] = []

    def see_and_change() -> None:
        seen.append((tenant.get(), decimal.getcontext().prec))
        tenant.set(f"that of job {current_job().id}")
        # In place: a copy of the context shares this object.
        decimal.getcontext().prec = 3

    @app.task
    async def asynchronous() -> None:
        see_and_change()

    @app.task(max_attempts=1)
    async def failing() -> None:
        see_and_change()
        raise ValueError

    app.task(name="synchronous")(see_and_change)
    tenant.set("nobody")
    with decimal.localcontext(prec=17):
        async with working(app, database.dsn, concurrency=1):
            for _ in range(2):
                for name in ("asynchronous", "failing", "synchronous"):
                    await done(conn, enqueue(conn, name))
        assert decimal.getcontext().prec == 17
    assert seen == [("nobody", 17)] * 6


async def test_hooks_and_the_error_formatter_see_the_context_of_their_job_and_of_no_other(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    before: list[str] = []

    @app.on_event
    def bind(event: object) -> None:
        if getattr(event, "kind", "") == "started":
            before.append(tenant.get())
            tenant.set("hook")

    app.error_formatter = lambda error: {"class": "Formatted", "message": tenant.get()}

    @app.task(max_attempts=1)
    async def failing() -> None:
        tenant.set(f"{tenant.get()}, handler")
        raise ValueError

    tenant.set("nobody")
    async with working(app, database.dsn, concurrency=1):
        jobs = [enqueue(conn, "failing"), enqueue(conn, "failing")]
        await done(conn, *jobs)
    assert before == ["nobody", "nobody"]
    assert [job(conn, each).errors[0]["message"] for each in jobs] == ["hook, handler"] * 2


async def test_each_async_job_has_an_asyncio_task_of_its_own(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    tasks: list[object] = []
    ended: list[object] = []

    @app.task
    async def note() -> None:
        current = asyncio.current_task()
        assert current is not None
        tasks.append(current)
        current.add_done_callback(ended.append)

    async with working(app, database.dsn, concurrency=1):
        await done(conn, *[enqueue(conn, "note") for _ in range(3)])
        assert len(set(tasks)) == 3
        assert ended == tasks


def cancel_now(_after: Callable[[], object]) -> None:
    current = asyncio.current_task()
    assert current is not None
    current.cancel()
    asyncio.get_running_loop().call_soon(_after)


def cancel_later(after: Callable[[], object]) -> None:
    current = asyncio.current_task()
    assert current is not None
    loop = asyncio.get_running_loop()
    loop.call_later(0.2, current.cancel)
    loop.call_later(0.2, after)


kept: list[AsyncIterator[int]] = []


async def leave_a_timeout_open(after: Callable[[], object]) -> None:
    async def pages() -> AsyncIterator[int]:
        async with asyncio.timeout(0.2):
            asyncio.get_running_loop().call_later(0.25, after)
            for number in range(3):
                yield number

    stream = pages()
    kept.append(stream)
    async for _ in stream:
        break


@pytest.mark.parametrize("leave", [cancel_now, cancel_later, leave_a_timeout_open])
async def test_a_cancellation_that_a_handler_leaves_behind_meets_no_other_job(
    leave: Callable[[Callable[[], object]], object], database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    over = asyncio.Event()

    @app.task
    async def leaves() -> None:
        result = leave(over.set)
        if result is not None:
            assert asyncio.iscoroutine(result)
            await result

    @app.task(max_attempts=1)
    async def stays_until_it_is_over() -> None:
        await over.wait()
        await asyncio.sleep(0)

    async with working(app, database.dsn, concurrency=1):
        first, second = enqueue(conn, "leaves"), enqueue(conn, "stays_until_it_is_over")
        assert await done(conn, first, second) == ["succeeded", "succeeded"]
        assert await done(conn, enqueue(conn, "stays_until_it_is_over")) == ["succeeded"]


async def test_slots_that_end_are_replaced_and_logged(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    together = threading.Barrier(3)
    held = threading.Event()

    @app.task
    async def sweep() -> None:
        for each in asyncio.all_tasks():
            if each is not asyncio.current_task() and each.get_name() == "pgqueue-runner":
                each.cancel()

    @app.task
    def waits() -> None:
        held.wait(120)

    @app.task
    def meets() -> None:
        # Only if three run at a time.
        together.wait(120)

    async with working(app, database.dsn, concurrency=3) as worker:
        # All three have run a job, and one of them waits for the next.
        assert await done(conn, *[enqueue(conn, "meets") for _ in range(3)]) == ["succeeded"] * 3
        in_thread = enqueue(conn, "waits")
        await wait_until_async(lambda: worker.status()["running"] == 1)
        assert await done(conn, enqueue(conn, "sweep")) == ["succeeded"]
        held.set()
        assert await done(conn, in_thread) == ["succeeded"]
        assert await done(conn, *[enqueue(conn, "meets") for _ in range(3)]) == ["succeeded"] * 3
    assert "a slot ended before its worker (cancelled) and is replaced" in caplog.text


async def test_loops_of_the_worker_that_a_handler_cancels_are_logged_and_started_again(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    loops = ("claiming", "finishing", "leases", "lease clock", "heartbeat", "commands", "listening", "timeouts")

    @app.task
    async def sweep() -> None:
        for each in asyncio.all_tasks():
            if each.get_name().removeprefix("pgqueue-") in loops:
                each.cancel()

    @app.task
    async def quick() -> None: ...

    async with working(app, database.dsn):
        assert await done(conn, enqueue(conn, "sweep"), timeout=60) == ["succeeded"]
        assert await done(conn, *[enqueue(conn, "quick") for _ in range(3)], timeout=60) == ["succeeded"] * 3
        for loop in loops:
            assert f"the {loop} loop of worker" in caplog.text


async def test_what_a_handler_sets_on_the_loop_ends_with_its_job(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    loop = asyncio.get_running_loop()

    @app.task
    async def silences() -> None:
        loop.set_exception_handler(lambda _loop, _context: None)
        loop.set_task_factory(asyncio.Task)  # type: ignore[arg-type]

    async with working(app, database.dsn, concurrency=1):
        await done(conn, enqueue(conn, "silences"))
        assert loop.get_exception_handler() is None
        assert loop.get_task_factory() is None


async def test_an_event_loop_that_a_sync_handler_leaves_on_its_thread_ends_with_its_job(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    ran: list[str] = []
    left: list[asyncio.AbstractEventLoop] = []

    @app.task
    def leaves() -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        # It would run on in the next job.
        loop.call_soon(ran.append, "the rest of another job")
        left.append(loop)

    @app.task
    def follows() -> None:
        try:
            asyncio.get_event_loop().run_until_complete(asyncio.sleep(0))
        except RuntimeError:
            ran.append("no loop")

    async with working(app, database.dsn, concurrency=1):
        await done(conn, enqueue(conn, "leaves"))
        await done(conn, enqueue(conn, "follows"))
    assert ran == ["no loop"]
    left[0].close()
