"""Enqueue jobs in the caller's own transaction: committed with it, rolled back with it."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Protocol, overload

import psycopg

from pgqueue import queries
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
    aware datetime) or delay (a timedelta, or an interval as text), expires_in, timeout, max_attempts, headers, tags,
    retention, retry_policy, retry_delay, retry_queue. Raises InvalidArgument, NotBuiltYet, SchemaError (the queue is
    not installed).

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
