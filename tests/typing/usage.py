"""Typed use of the package, checked by mypy in strict mode and by pyright, and never run.

An ignored error is a claim as well: mypy reports an ignore that hides nothing, and pyright must report an error on
each of these lines and on no other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any, Unpack, assert_type

import psycopg
import psycopg_pool
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from psycopg.rows import DictRow

import pgqueue
from pgqueue import App, Job, PgQueueError
from pgqueue._options import JobOptions
from pgqueue.config import WorkerConfig
from pgqueue.db.results import BatchResult, Enqueued
from pgqueue.errors import InvalidArgument
from pgqueue.hooks import Dead
from pgqueue.middleware import Enqueuing
from pgqueue.tasks import Task
from pgqueue.wait import Outcome
from pgqueue.worker import Worker

Sync = psycopg.Connection[Any]
Async = psycopg.AsyncConnection[Any]

app = App()


@app.task
def add(a: int, b: int = 1) -> int:
    return a + b


@app.task(name="mail.send", queue="mail", max_attempts=5, retry_delay=timedelta(seconds=1))
async def send(to: str, job: Job) -> str:
    return f"{to} {job.attempt}"


@app.task
def resize(job: Job, path: str, *, width: int = 100) -> None: ...


@app.task(accumulate=True, batch_size=10)
def count(payloads: dict[str, list[Any]]) -> None: ...


def producers_give_the_functions_arguments(sync: Sync, job: Job) -> None:
    add.enqueue(sync, a=1)
    add.enqueue(sync, 1, c=2)  # type: ignore[call-overload]
    add.enqueue(sync, "one")  # type: ignore[call-overload]
    add.using(queue="q").enqueue(sync, 1, c=2)  # type: ignore[call-overload]
    add.using(queue="q").job(1, c=2)  # type: ignore[call-arg]


def a_job_parameter_that_comes_first_is_not_for_producers(sync: Sync, job: Job) -> None:
    resize.enqueue(sync, "a.png", width=5)
    resize.enqueue(sync, job, "a.png")  # type: ignore[call-overload]
    resize(job, "a.png")
    resize("a.png")  # type: ignore[arg-type, call-arg]


def payloads_of_an_accumulating_task_are_free(sync: Sync) -> None:
    count.using(key="k").enqueue(sync, amount=5)


def options_are_checked_by_name_and_type(sync: Sync, **options: Unpack[JobOptions]) -> None:
    add.using(**options)
    add.using(dely="1 min")  # type: ignore[call-arg]
    add.using(priority="high")  # type: ignore[arg-type]
    pgqueue.enqueue(sync, "add", {"a": 1}, **options)
    pgqueue.enqueue(sync, "add", {"a": 1}, qeue="q")  # type: ignore[call-overload]
    app.task(max_atempts=5)  # type: ignore[call-overload]
    app.task(retry_policy="expo")  # type: ignore[call-overload]
    app.schedule(evry="1 h")  # type: ignore[call-arg]


def tasks_keep_their_functions_types() -> None:
    assert_type(add(1, b=2), int)
    assert_type(add.name, str)
    assert_type(add.function(1), int)
    add("one")  # type: ignore[arg-type]
    add(1, c=2)  # type: ignore[call-arg]
    add.nonsense  # type: ignore[attr-defined]  # noqa: B018


async def async_tasks_are_awaited(job: Job) -> None:
    started: Coroutine[Any, Any, str] = send("a@b.c", job)
    assert_type(await started, str)


def a_task_can_be_passed_on() -> None:
    def run(task: Task[[int, int], int]) -> Callable[[int, int], int]:
        return task.function

    run(add)
    run(send)  # type: ignore[arg-type]
    assert_type(app.tasks, dict[str, Task[Any, Any]])


def members_of_a_group_are_checked_as_calls_are(sync: Sync) -> None:
    with app.group(sync) as group:
        group.enqueue(add, 1, b=2)
        group.enqueue(add.using(priority=5), 1)
        group.enqueue_many(add, [{"a": 1}])
        group.enqueue_many(add.using(queue="q"), [{"a": 1}])
        group.enqueue(add, "one")  # type: ignore[arg-type]
        group.enqueue(add.using(queue="q"), 1, c=2)  # type: ignore[call-arg]
    group.then(add.using(run_if="finished"), 1)
    group.then(resize, "a.png")


def on_a_sync_connection_ids_come_at_once(sync: Sync, rows: psycopg.Connection[DictRow]) -> None:
    assert_type(add.enqueue(sync, 1, b=2), int)
    assert_type(add.enqueue(rows, 1), int)
    assert_type(add.using(queue="q").enqueue(sync, 1), int)
    assert_type(add.enqueue_many(sync, [{"a": 1}]), list[int])
    assert_type(pgqueue.enqueue(sync, "add", {"a": 1}, delay=timedelta(seconds=1)), int)
    assert_type(pgqueue.enqueue(sync, add, priority=1), int)
    assert_type(pgqueue.enqueue_many(sync, "add", ({"a": n} for n in range(3)), spread="1 h"), list[int])
    assert_type(pgqueue.enqueue_outcome(sync, add, {"a": 1}, dedupe="d"), Enqueued)
    assert_type(add.using(dedupe="d").enqueue_outcome(sync, 1).job_id, int)
    assert_type(pgqueue.enqueue_batch(sync, [add.using(key="k").job(1), {"task": add}]), list[BatchResult])
    assert_type(pgqueue.enqueue_copy(sync, ({"task": add, "args": {"a": n}} for n in range(3))), dict[str, int])


async def on_an_async_connection_ids_are_awaited(on: Async, rows: psycopg.AsyncConnection[DictRow]) -> None:
    assert_type(add.enqueue(on, 1, b=2), Awaitable[int])
    assert_type(await add.enqueue(rows, 1), int)
    assert_type(await add.using(queue="q").enqueue(on, 1), int)
    assert_type(await add.enqueue_many(on, [{"a": 1}]), list[int])
    assert_type(pgqueue.enqueue(on, send, {"to": "a"}), Awaitable[int])
    assert_type(pgqueue.enqueue_outcome(on, send, {"to": "a"}), Awaitable[Enqueued])
    assert_type(await add.using(dedupe="d").enqueue_outcome(on, 1), Enqueued)
    assert_type((await pgqueue.enqueue_batch(on, [{"task": "t"}]))[0].error, dict[str, Any] | None)
    assert_type(await pgqueue.enqueue_many(on, send, [{"to": "a"}]), list[int])
    assert_type(await pgqueue.enqueue_copy(on, [{"task": "t"}]), dict[str, int])
    wrong: int = pgqueue.enqueue(on, send, {"to": "a"})  # type: ignore[assignment]
    del wrong


def what_else_is_at_hand_is_typed_as_well(
    connection: sqlalchemy.Connection,
    session: sqlalchemy.orm.Session,
    on: sqlalchemy.ext.asyncio.AsyncConnection,
    async_session: sqlalchemy.ext.asyncio.AsyncSession,
) -> None:
    assert_type(pgqueue.enqueue(connection, "add"), int)
    assert_type(add.enqueue(session, 1), int)
    assert_type(pgqueue.enqueue_many(on, "add", [{}]), Awaitable[list[int]])
    assert_type(add.using(dedupe="d").enqueue_outcome(async_session, 1), Awaitable[Enqueued])
    assert_type(pgqueue.wait(session, 1), Outcome)
    assert_type(pgqueue.wait(async_session, 1), Awaitable[Outcome])
    assert_type(pgqueue.enqueue_copy(session, []), dict[str, int])


async def a_pool_or_engine_serves_as_well(
    pool: psycopg_pool.ConnectionPool,
    async_pool: psycopg_pool.AsyncConnectionPool,
    engine: sqlalchemy.Engine,
    async_engine: sqlalchemy.ext.asyncio.AsyncEngine,
) -> None:
    assert_type(pgqueue.enqueue(pool, "add"), int)
    assert_type(add.enqueue(engine, 1), int)
    assert_type(await pgqueue.enqueue(async_pool, "add"), int)
    assert_type(await add.enqueue(async_engine, 1), int)


def hooks_and_middleware_keep_their_types() -> None:
    @app.middleware
    async def around(job: Job, call_next: Callable[[], Awaitable[Any]]) -> Any:
        return await call_next()

    @app.enqueue_middleware
    def enqueued(jobs: Enqueuing, call_next: Callable[[Enqueuing], Any]) -> Any:
        assert_type(jobs.headers, dict[str, Any])
        return call_next(jobs)

    @app.on_dead
    def died(dead: Dead) -> None:
        assert_type(dead.job, Job)

    def called(hook: Callable[[Dead], None]) -> None: ...

    called(died)
    app.on_event(5)  # type: ignore[type-var]
    App(codec=object())  # type: ignore[arg-type]


def wrong_things_are_errors(sync: Sync) -> None:
    pgqueue.enqueue("postgresql://", "add")  # type: ignore[call-overload]
    pgqueue.enqueue(sync, 5)  # type: ignore[call-overload]
    pgqueue.enqueue(sync, "add", [1, 2])  # type: ignore[call-overload]
    pgqueue.enqueue(sync)  # type: ignore[call-overload]
    pgqueue.enqueue_many(sync, "add", {"a": 1})  # type: ignore[dict-item]
    add.enqueue()  # type: ignore[call-overload]
    add.enqueue(1, 2)  # type: ignore[call-overload]
    app.task(5)  # type: ignore[call-overload]


def a_job_is_what_it_says_and_read_only(job: Job) -> None:
    assert_type(job.id, int)
    assert_type(job.args, dict[str, Any])
    assert_type(job.headers, dict[str, Any] | None)
    assert_type(job.run_at, datetime)
    job.attempt = 2  # type: ignore[misc]
    assert_type(job.deadline, datetime | None)
    assert_type(job.cancelled.wait(1), bool)
    assert_type(pgqueue.current_job(), Job)


async def a_jobs_end_is_waited_for(sync: Sync, on: Async) -> None:
    assert_type(pgqueue.wait(sync, 1, timeout=1), Outcome)
    assert_type(await pgqueue.wait(on, 1), Outcome)
    pgqueue.wait(1, 1)  # type: ignore[call-overload]


def errors_have_hints(error: InvalidArgument) -> PgQueueError:
    assert_type(error.hint, str | None)
    return error


async def a_worker_says_whether_all_ended() -> bool:
    worker = Worker(app, "", WorkerConfig(queues=("a",), concurrency=5))
    WorkerConfig(concurrency="many")  # type: ignore[arg-type]
    return assert_type(await worker.run(), bool)
