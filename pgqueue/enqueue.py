"""Enqueue jobs in the caller's own transaction: committed with it, rolled back with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from types import CoroutineType
from typing import Any, Protocol, Unpack, overload

from pgqueue import _telemetry
from pgqueue._options import Interval, JobOptions
from pgqueue.db import drivers, produce
from pgqueue.db.call import Call, T
from pgqueue.db.copy import perform_copy, perform_copy_async
from pgqueue.db.drivers import AsyncConnection, SyncConnection
from pgqueue.db.results import BatchResult, Enqueued
from pgqueue.errors import ConfigError
from pgqueue.middleware import Codec, EnqueueMiddleware, Enqueuing, around_enqueue, is_async


class Named(Protocol):
    """An object with the name of a task, such as a `Task`."""

    @property
    def name(self) -> str: ...


class Target:
    """A task as producers see it, with its App's enqueue middleware. Base of `Task`."""

    name: str

    def middleware(self) -> Sequence[EnqueueMiddleware]:
        """Return the middleware around its enqueue, outermost first."""
        return ()

    def codec(self) -> Codec | None:
        """Return the codec that writes its arguments, or None."""
        return None

    def dump(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Check arguments and convert them to JSON."""
        return dict(args)

    def check_connection(self, connection: Any) -> None:
        """Raise TypeError if jobs cannot be enqueued on this: it is not a connection."""
        drivers.check_is_connection(connection)

    def deliver(self, connection: Any, call: Call[T]) -> T | Awaitable[T]:
        """Run a statement that enqueues jobs of this task."""
        return drivers.run(connection, call)

    def declared(self) -> Mapping[str, object]:
        """Return the declared options that the database needs at enqueue, as the option `declared`, or nothing."""
        return {}


@overload
def enqueue(
    connection: SyncConnection, task: str | Named, args: Mapping[str, Any] | None = None, **options: Unpack[JobOptions]
) -> int: ...
@overload
def enqueue(
    connection: AsyncConnection, task: str | Named, args: Mapping[str, Any] | None = None, **options: Unpack[JobOptions]
) -> Awaitable[int]: ...
def enqueue(
    connection: SyncConnection | AsyncConnection,
    task: str | Named,
    args: Mapping[str, Any] | None = None,
    **options: Unpack[JobOptions],
) -> int | Awaitable[int]:
    """Enqueue one job and return its id; on an async connection, an awaitable of it.

    It runs in the connection's current transaction and commits nothing itself. The connection is one of psycopg or
    asyncpg (also out of a pool), a Connection or Session of SQLAlchemy (also an async or scoped one), or Django's
    `django.db.connection`. Given a pool of psycopg_pool or asyncpg, or an engine of SQLAlchemy, it commits at once, in
    its own transaction.

    `task` is a name or a task. Given a task, `args` are converted to JSON by its annotations, and its App's codec and
    enqueue middleware see them. By name, `args` is a mapping of what JSON holds; datetimes, dates, UUIDs and Decimals
    become text. Options, all optional: queue, priority (-100 to 100, higher first), run_at (an aware datetime) or delay
    (a timedelta, seconds, or an interval as text; so are the other intervals), expires_in, timeout, max_attempts,
    headers, tags, retention, retry_policy, retry_delay, retry_cap, retry_queue; key (jobs of one key run one at a time,
    in order), score, limit_key, cost; dedupe, dedupe_for, on_conflict and debounce_max: see `enqueue_outcome`.

    Raises InvalidArgument, UnsupportedOption, DuplicateJob, LockTimeout (a transaction holds the dedupe key),
    SchemaError (the queue is not installed), TypeError without a connection; other errors are those of the driver.

        with psycopg.connect(dsn) as connection:
            enqueue(connection, "send_email", {"to": "a@b.c"}, delay=timedelta(hours=2))
    """
    return awaited(_send(connection, task, [args or {}], options, one), "enqueue", task)


@overload
def enqueue_many(
    connection: SyncConnection,
    task: str | Named,
    args: Iterable[Mapping[str, Any]],
    *,
    spread: Interval | None = None,
    **options: Unpack[JobOptions],
) -> list[int]: ...
@overload
def enqueue_many(
    connection: AsyncConnection,
    task: str | Named,
    args: Iterable[Mapping[str, Any]],
    *,
    spread: Interval | None = None,
    **options: Unpack[JobOptions],
) -> Awaitable[list[int]]: ...
def enqueue_many(
    connection: SyncConnection | AsyncConnection,
    task: str | Named,
    args: Iterable[Mapping[str, Any]],
    *,
    spread: Interval | None = None,
    **options: Unpack[JobOptions],
) -> list[int] | Awaitable[list[int]]:
    """Enqueue one job for each of `args` in one statement, with the same options, and return their ids in order.

    All are enqueued, or none; otherwise as `enqueue`. `spread` (an interval, as delay): the jobs become due one after
    the other, evenly over that time, from their run_at on.

        enqueue_many(connection, "resize", [{"id": 1}, {"id": 2}], queue="images")
    """
    many = partial(produce.enqueue_many, spread=spread)
    return awaited(_send(connection, task, args, options, many), "enqueue_many", task)


@overload
def enqueue_outcome(
    connection: SyncConnection, task: str | Named, args: Mapping[str, Any] | None = None, **options: Unpack[JobOptions]
) -> Enqueued: ...
@overload
def enqueue_outcome(
    connection: AsyncConnection, task: str | Named, args: Mapping[str, Any] | None = None, **options: Unpack[JobOptions]
) -> Awaitable[Enqueued]: ...
def enqueue_outcome(
    connection: SyncConnection | AsyncConnection,
    task: str | Named,
    args: Mapping[str, Any] | None = None,
    **options: Unpack[JobOptions],
) -> Enqueued | Awaitable[Enqueued]:
    """Enqueue one job as `enqueue` does, and return the outcome.

    There is only one job of a task and `dedupe` key until it ends, or, with `dedupe_for`, for that time after its
    enqueue. `on_conflict`: what to do with that job if it waits and was never reserved: "skip" (nothing; the default),
    "replace" (its args, headers, run_at and priority), "merge" (these args into its own), "debounce" (defer it to this
    run_at, but at most `debounce_max` after its enqueue; by default ten times the delay), "supersede" (in any
    state: cancel it, or ask it to, and enqueue this one), "raise" (DuplicateJob,
    whatever its state).

        done = enqueue_outcome(connection, "report", {"month": 11}, dedupe="report:11", on_conflict="replace")
        done.job_id, done.outcome    # 17, "replaced"
    """
    return awaited(_send(connection, task, [args or {}], options, one_outcome), "enqueue_outcome", task)


@overload
def enqueue_batch(connection: SyncConnection, jobs: Iterable[Mapping[str, Any]]) -> list[BatchResult]: ...
@overload
def enqueue_batch(connection: AsyncConnection, jobs: Iterable[Mapping[str, Any]]) -> Awaitable[list[BatchResult]]: ...
def enqueue_batch(
    connection: SyncConnection | AsyncConnection, jobs: Iterable[Mapping[str, Any]]
) -> list[BatchResult] | Awaitable[list[BatchResult]]:
    """Enqueue jobs that each have their own options, in one statement, and return the outcome of each.

    A job is a mapping with "task" (a name or a task), "args", and the options of `enqueue`. A job that
    the queue refuses has the outcome "error" and does not affect the others; a value that cannot be written as JSON
    raises InvalidArgument, and nothing is enqueued.

        results = enqueue_batch(connection, [{"task": "a", "delay": "1 h"}, {"task": "b", "args": {"x": 1}}])
        failed = [result.error for result in results if result.error]
    """
    result: list[BatchResult] | Awaitable[list[BatchResult]]
    result = _telemetry.around_batch(
        "batch",
        (_named(job) for job in jobs),
        lambda given: drivers.run(connection, produce.enqueue_batch(given)),
    )
    return awaited(result, "enqueue_batch")


@overload
def enqueue_copy(connection: SyncConnection, jobs: Iterable[Mapping[str, Any]]) -> dict[str, int]: ...
@overload
def enqueue_copy(connection: AsyncConnection, jobs: Iterable[Mapping[str, Any]]) -> Awaitable[dict[str, int]]: ...
def enqueue_copy(
    connection: SyncConnection | AsyncConnection, jobs: Iterable[Mapping[str, Any]]
) -> dict[str, int] | Awaitable[dict[str, int]]:
    """Enqueue very many jobs, each with options of its own, by COPY, and return how many had which outcome.

    Jobs are as in `enqueue_batch`, and are read from `jobs` as they are sent: a generator of a million needs no memory.
    All or none, in the connection's current transaction; on an autocommit connection, in one of its own. The error of
    a wrong job names it, the first being 1. No trace context is added. On connections of other drivers than psycopg the
    rows go by one INSERT for a thousand jobs.

        enqueue_copy(connection, ({"task": "resize", "args": {"id": n}} for n in range(1_000_000)))
        {"inserted": 1000000}
    """
    if not drivers.is_accepted(connection):
        raise drivers.not_accepted(connection)
    rows = (_named(job) for job in jobs)
    if drivers.is_async(connection):
        return awaited(perform_copy_async(connection, rows), "enqueue_copy")
    return perform_copy(connection, rows)


def awaited(result: T, function: str, task: str | Named | None = None) -> T:
    """Return the result of a call. A coroutine gets the name of the call and of the task.

    Python's warning shows that name if the coroutine is never awaited.
    """
    if isinstance(result, CoroutineType):
        of = "" if task is None else f" of task {task if isinstance(task, str) else task.name}"
        result.__qualname__ = f"{function}{of}"
    return result


def encoded(task: Target, args: Mapping[str, Any]) -> dict[str, Any]:
    """Write arguments as a job of this task holds them, by its types and its App's codec."""
    codec = task.codec()
    dumped = task.dump(args)
    return dumped if codec is None else codec.encode(dumped)


def send(
    connection: Any,
    task: Target,
    args: Iterable[Mapping[str, Any]],
    options: Mapping[str, Any],
    statement: Callable[[str, Iterable[Mapping[str, Any]], Mapping[str, object]], Call[T]],
) -> T | Awaitable[T]:
    """Enqueue jobs of a task whose arguments are dumped already, through its App's middleware and codec."""
    middleware = task.middleware()
    codec = task.codec()
    traces = _telemetry.is_on()
    if not middleware and codec is None and not traces:
        return task.deliver(connection, statement(task.name, args, {**options, **task.declared()}))
    if not drivers.is_async(connection):
        for each in middleware:
            if is_async(each):
                raise ConfigError(
                    f"{each!r} is async middleware, and the connection of this enqueue is not async",
                    hint="write it as a plain function that returns call_next(jobs): it serves both",
                )
    jobs = Enqueuing(task.name, [dict(each) for each in args], dict(options))
    headers = jobs.options.pop("headers", None)
    if headers is not None:
        jobs.options["headers"] = dict(headers)

    def last(jobs: Enqueuing) -> T | Awaitable[T]:
        written = jobs.args if codec is None else [codec.encode(each) for each in jobs.args]
        return task.deliver(connection, statement(task.name, written, {**jobs.options, **task.declared()}))

    return around_enqueue([*middleware, _telemetry.around_enqueue] if traces else middleware, jobs, last)


def one(task: str, args: Iterable[Mapping[str, Any]], options: Mapping[str, object]) -> Call[int]:
    """The statement for a single job, for `send`."""
    [single] = args
    return produce.enqueue(task, single, options)


def one_outcome(task: str, args: Iterable[Mapping[str, Any]], options: Mapping[str, object]) -> Call[Enqueued]:
    """The statement for a single job that reads its outcome, for `send`."""
    [single] = args
    return produce.enqueue_outcome(task, single, options)


def _send(
    connection: Any,
    task: str | Named,
    args: Iterable[Mapping[str, Any]],
    options: Mapping[str, Any],
    statement: Callable[[str, Iterable[Mapping[str, Any]], Mapping[str, object]], Call[T]],
) -> T | Awaitable[T]:
    if isinstance(task, Target):
        task.check_connection(connection)
        return send(connection, task, [task.dump(each) for each in args], options, statement)
    drivers.check_is_connection(connection)
    name = _name_of(task)
    if _telemetry.is_on():
        plain = Target()
        plain.name = name
        return send(connection, plain, args, options, statement)
    return drivers.run(connection, statement(name, args, options))


def _name_of(task: str | Named) -> str:
    name = task if isinstance(task, str) else getattr(task, "name", None)
    if not isinstance(name, str):
        hint = "decorate it with @app.task, or give a name" if callable(task) else "give a name, or a task"
        raise TypeError(f"the task is {task!r}, which has no name: {hint}")
    return name


def _named(job: Mapping[str, Any]) -> Mapping[str, Any]:
    task = job.get("task")
    if isinstance(task, Target):
        return {**job, "task": task.name, "args": encoded(task, job.get("args") or {}), **task.declared()}
    return job if task is None or isinstance(task, str) else {**job, "task": _name_of(task)}
