"""Enqueue jobs in the caller's own transaction: committed with it, rolled back with it."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Protocol, overload

import psycopg

from pgqueue import queries
from pgqueue.enqueued import BatchResult, Enqueued
from pgqueue.queries import Call, T


class Named(Protocol):
    """Whatever carries a task's name: a `Task`, for one."""

    @property
    def name(self) -> str: ...


@overload
def enqueue(
    connection: psycopg.Connection[Any], task: str | Named, args: Mapping[str, Any] | None = None, **options: Any
) -> int: ...
@overload
def enqueue(
    connection: psycopg.AsyncConnection[Any], task: str | Named, args: Mapping[str, Any] | None = None, **options: Any
) -> Awaitable[int]: ...
def enqueue(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
    task: str | Named,
    args: Mapping[str, Any] | None = None,
    **options: Any,
) -> int | Awaitable[int]:
    """Enqueue one job and return its id; on an async connection, an awaitable of it.

    It runs in the connection's current transaction and commits nothing itself. `task` is a name or a task, `args`
    a mapping that JSON can hold. Options, all optional: queue, priority (-100 to 100, higher first), run_at (an
    aware datetime) or delay (a timedelta, or an interval as text), expires_in, timeout, max_attempts, headers,
    tags, retention, retry_policy, retry_delay, retry_queue; key (jobs of one key run one at a time, in order), score,
    limit_key; dedupe, dedupe_for, on_conflict and debounce_max, for which see `enqueue_outcome`. Raises
    InvalidArgument, NotBuiltYet, DuplicateJob, LockedTooLong (a transaction holds the dedupe key), SchemaError (the
    queue is not installed).

        with psycopg.connect(dsn) as connection:
            enqueue(connection, "send_email", {"to": "a@b.c"}, delay=timedelta(hours=2))
    """
    return _run(connection, queries.enqueue(_name(task), args or {}, options))


@overload
def enqueue_many(
    connection: psycopg.Connection[Any], task: str | Named, args: Iterable[Mapping[str, Any]], **options: Any
) -> list[int]: ...
@overload
def enqueue_many(
    connection: psycopg.AsyncConnection[Any], task: str | Named, args: Iterable[Mapping[str, Any]], **options: Any
) -> Awaitable[list[int]]: ...
def enqueue_many(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
    task: str | Named,
    args: Iterable[Mapping[str, Any]],
    **options: Any,
) -> list[int] | Awaitable[list[int]]:
    """Enqueue one job for each of `args` in one statement, with the same options, and return their ids in order.

    All or none; otherwise as `enqueue`.

        enqueue_many(connection, "resize", [{"id": 1}, {"id": 2}], queue="images")
    """
    return _run(connection, queries.enqueue_many(_name(task), args, options))


@overload
def enqueue_outcome(
    connection: psycopg.Connection[Any], task: str | Named, args: Mapping[str, Any] | None = None, **options: Any
) -> Enqueued: ...
@overload
def enqueue_outcome(
    connection: psycopg.AsyncConnection[Any], task: str | Named, args: Mapping[str, Any] | None = None, **options: Any
) -> Awaitable[Enqueued]: ...
def enqueue_outcome(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
    task: str | Named,
    args: Mapping[str, Any] | None = None,
    **options: Any,
) -> Enqueued | Awaitable[Enqueued]:
    """Enqueue one job as `enqueue` does, and say what became of it.

    Of one task and `dedupe` there is one job while it lives, or, with `dedupe_for`, for so long from its enqueue on.
    `on_conflict` says what becomes of that one, if it waits and was never reserved: "skip" (nothing; the default),
    "replace" (its args, headers, run_at and priority), "merge" (these args into its own), "debounce" (its run_at moves
    out to this one's, at most `debounce_max` after its enqueue; by default ten times the delay), "raise" (DuplicateJob,
    whatever its state).

        done = enqueue_outcome(connection, "report", {"month": 11}, dedupe="report:11", on_conflict="replace")
        done.job_id, done.outcome    # 17, "replaced"
    """
    return _run(connection, queries.enqueue_outcome(_name(task), args or {}, options))


@overload
def enqueue_batch(connection: psycopg.Connection[Any], jobs: Iterable[Mapping[str, Any]]) -> list[BatchResult]: ...
@overload
def enqueue_batch(
    connection: psycopg.AsyncConnection[Any], jobs: Iterable[Mapping[str, Any]]
) -> Awaitable[list[BatchResult]]: ...
def enqueue_batch(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], jobs: Iterable[Mapping[str, Any]]
) -> list[BatchResult] | Awaitable[list[BatchResult]]:
    """Enqueue jobs that each have options of their own, in one statement, and say of each what became of it.

    A job is a mapping with "task" (a name or a task), "args", and the options of `enqueue`. One that the queue refuses
    has the outcome "error" and spoils none of the others; what cannot be written as JSON raises InvalidArgument, and
    nothing is enqueued.

        results = enqueue_batch(connection, [{"task": "a", "delay": "1 h"}, {"task": "b", "args": {"x": 1}}])
        failed = [result.error for result in results if result.error]
    """
    return _run(connection, queries.enqueue_batch(_named(job) for job in jobs))


def _named(job: Mapping[str, Any]) -> Mapping[str, Any]:
    task = job.get("task")
    return job if task is None or isinstance(task, str) or not hasattr(task, "name") else {**job, "task": task.name}


def _name(task: str | Named) -> str:
    return task if isinstance(task, str) else task.name


def _run(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], call: Call[T]) -> T | Awaitable[T]:
    if isinstance(connection, psycopg.Connection):
        return queries.perform(connection, call)
    if isinstance(connection, psycopg.AsyncConnection):
        return queries.perform_async(connection, call)
    raise TypeError(
        f"enqueue needs a psycopg Connection or AsyncConnection, not {type(connection).__qualname__};"
        " from another driver, run: select pgqueue.enqueue(...)"
    )
