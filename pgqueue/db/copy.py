"""Enqueue with COPY, in the connection's current transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from datetime import datetime
from itertools import chain
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from pgqueue.db.call import AsyncCursor, Cursor, translated, unwritable
from pgqueue.db.json import to_json
from pgqueue.db.produce import OPTION_TYPES
from pgqueue.errors import InvalidArgument, PgQueueError


def perform_copy(connection: psycopg.Connection[Any], jobs: Iterable[Mapping[str, object]]) -> dict[str, int]:
    """Copy jobs into the queue in the connection's current transaction; read how many had which outcome."""
    rows = _staged(jobs)
    first = next(rows, None)
    if first is None:
        return {}
    try:
        # Staged rows live as long as their transaction.
        with (
            connection.transaction() if _is_alone(connection) else nullcontext(),
            Cursor(connection, row_factory=tuple_row) as cursor,
        ):
            cursor.execute(_STAGE)
            with cursor.copy(_COPY) as copy:
                for row in chain([first], rows):
                    copy.write_row(row)
            cursor.execute(_ENQUEUE_STAGED)
            return dict(cursor.fetchall())
    except psycopg.Error as error:
        raise _copy_error(error) from error
    except UnicodeEncodeError as error:
        raise unwritable(error) from error


async def perform_copy_async(
    connection: psycopg.AsyncConnection[Any], jobs: Iterable[Mapping[str, object]]
) -> dict[str, int]:
    """Copy jobs into the queue in the connection's current transaction; read how many had which outcome."""
    rows = _staged(jobs)
    first = next(rows, None)
    if first is None:
        return {}
    try:
        async with (
            connection.transaction() if _is_alone(connection) else nullcontext(),
            AsyncCursor(connection, row_factory=tuple_row) as cursor,
        ):
            await cursor.execute(_STAGE)
            async with cursor.copy(_COPY) as copy:
                for row in chain([first], rows):
                    await copy.write_row(row)
            await cursor.execute(_ENQUEUE_STAGED)
            return dict(await cursor.fetchall())
    except psycopg.Error as error:
        raise _copy_error(error) from error
    except UnicodeEncodeError as error:
        raise unwritable(error) from error


_STAGE = b"select pgqueue.stage()"


_ENQUEUE_STAGED = b"select outcome, jobs from pgqueue.enqueue_staged()"


_COPY = f"copy pg_temp.pgqueue_staged (task, args, {', '.join(OPTION_TYPES)}) from stdin".encode()


def _is_alone(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE


def _copy_error(error: psycopg.Error) -> PgQueueError | psycopg.Error:
    # Errors of COPY itself: their context names the line, which is the row.
    if isinstance(error, psycopg.DataError) and error.diag.context and not error.diag.message_hint:
        return InvalidArgument(
            f"{error.diag.message_primary}: {error.diag.context}",
            hint="a line is a job, the first being 1; nothing was enqueued",
        )
    return translated(error)


def _staged(jobs: Iterable[Mapping[str, object]]) -> Iterator[tuple[object, ...]]:
    for number, job in enumerate(jobs, 1):
        what = f"job {number} of the load"
        unknown = job.keys() - OPTION_TYPES.keys() - {"task", "args"}
        if unknown:
            raise InvalidArgument(
                f"there is no option {min(unknown)!r}, in {what}", hint="name options as the arguments of enqueue()"
            )
        args = job.get("args")
        yield (
            job.get("task"),
            None if args is None else to_json(args, f"args of {what}"),
            *(_option_of_row(name, job.get(name), what) for name in OPTION_TYPES),
        )


def _option_of_row(name: str, value: object, what: str) -> object:
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, datetime) and value.tzinfo is None:
        raise InvalidArgument(
            f"{name} of {what} has no time zone: {value}", hint="give an aware datetime, such as datetime.now(UTC)"
        )
    if name in ("headers", "declared"):
        return to_json(value, f"{name} of {what}")
    if name in ("tags", "depends_on") and isinstance(value, Iterable):
        return list(value)
    return value
