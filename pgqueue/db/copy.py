"""Enqueue very many jobs, in the connection's current transaction: with COPY on psycopg, with INSERTs elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Iterable, Iterator, Mapping
from contextlib import nullcontext
from datetime import timedelta
from itertools import chain, islice
from typing import Any, cast

import orjson
import psycopg
from psycopg.rows import tuple_row

from pgqueue.db import drivers
from pgqueue.db.arrays import elements
from pgqueue.db.call import AsyncCursor, Call, Cursor, Row, as_text, read_nothing, translated, unwritable
from pgqueue.db.json import args_to_json, as_interval, check_value, interval_text, to_json
from pgqueue.db.produce import OPTION_TYPES
from pgqueue.errors import InvalidArgument, PgQueueError


def perform_copy(connection: Any, jobs: Iterable[Mapping[str, object]]) -> dict[str, int]:
    """Copy jobs into the queue in the connection's current transaction; read how many had which outcome."""
    rows = _staged(jobs)
    first = next(rows, None)
    if first is None:
        return {}
    # Staged rows live as long as their transaction.
    own = connection.connection() if drivers.is_session(connection) else connection
    with drivers.lent(connection) or nullcontext(own) as mine, _own_transaction(mine):
        if isinstance(mine, psycopg.Connection):
            return _copy(mine, chain([first], rows))
        plan = _inserting(chain([first], rows))
        wanted = next(plan)
        try:
            while True:
                try:
                    answer = drivers.run(mine, wanted)
                except InvalidArgument as error:
                    wanted = plan.throw(error)
                else:
                    wanted = plan.send(answer)
        except StopIteration as end:
            return cast("dict[str, int]", end.value)


async def perform_copy_async(connection: Any, jobs: Iterable[Mapping[str, object]]) -> dict[str, int]:
    """Copy jobs into the queue in the connection's current transaction; read how many had which outcome."""
    rows = _staged(jobs)
    first = next(rows, None)
    if first is None:
        return {}
    own = await connection.connection() if drivers.is_session(connection) else connection
    async with drivers.lent(connection) or nullcontext(own) as mine, _own_transaction(mine):
        if isinstance(mine, psycopg.AsyncConnection):
            return await _copy_async(mine, chain([first], rows))
        plan = _inserting(chain([first], rows))
        wanted = next(plan)
        try:
            while True:
                try:
                    answer = await cast("Awaitable[Any]", drivers.run(mine, wanted))
                except InvalidArgument as error:
                    wanted = plan.throw(error)
                else:
                    wanted = plan.send(answer)
        except StopIteration as end:
            return cast("dict[str, int]", end.value)


def _own_transaction(connection: Any) -> Any:
    return drivers.transaction_on(connection) if drivers.commits_by_itself(connection) else nullcontext()


def _copy(connection: psycopg.Connection[Any], rows: Iterable[tuple[object, ...]]) -> dict[str, int]:
    try:
        with Cursor(connection, row_factory=tuple_row) as cursor:
            cursor.execute(_STAGE)
            with cursor.copy(_COPY) as copy:
                for row in rows:
                    copy.write_row(row)
            cursor.execute(_ENQUEUE_STAGED)
            return dict(cursor.fetchall())
    except psycopg.Error as error:
        raise _copy_error(error) from error
    except UnicodeEncodeError as error:
        raise unwritable(error) from error


async def _copy_async(connection: psycopg.AsyncConnection[Any], rows: Iterable[tuple[object, ...]]) -> dict[str, int]:
    try:
        async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
            await cursor.execute(_STAGE)
            async with cursor.copy(_COPY) as copy:
                for row in rows:
                    await copy.write_row(row)
            await cursor.execute(_ENQUEUE_STAGED)
            return dict(await cursor.fetchall())
    except psycopg.Error as error:
        raise _copy_error(error) from error
    except UnicodeEncodeError as error:
        raise unwritable(error) from error


def _inserting(rows: Iterator[tuple[object, ...]]) -> Generator[Call[Any], Any, dict[str, int]]:
    """Plan the statements of a load without COPY, which other drivers have in their own forms."""
    yield Call(_STAGE, (), read_nothing)
    sent = 0
    while some := list(islice(rows, _JOBS_IN_ONE)):
        jobs = [_as_object(row) for row in some]
        try:
            yield Call(_INSERT, (to_json(jobs, "the load"),), read_nothing)
        except InvalidArgument as error:
            among = f"{error.message}, in one of the jobs {sent + 1} to {sent + len(some)} of the load"
            raise InvalidArgument(among, hint=error.hint) from error
        sent += len(some)
    counts: dict[str, int] = yield Call(_ENQUEUE_STAGED, (), _read_counts)
    return counts


def _as_object(row: tuple[object, ...]) -> dict[str, object]:
    written = {name: value for name, value in zip(_COLUMNS, row, strict=True) if value is not None}
    for name, value in written.items():
        if name in _WRITTEN:
            written[name] = orjson.Fragment(cast(str, value))
        elif isinstance(value, timedelta):
            written[name] = interval_text(value)
    return written


def _read_counts(rows: list[Row]) -> dict[str, int]:
    return {as_text(outcome): int(jobs) for outcome, jobs in rows}


# Jobs in one INSERT.
_JOBS_IN_ONE = 1000

_COLUMNS = ("task", "args", *OPTION_TYPES)

# JSON texts in a row of `_staged`.
_WRITTEN = ("args", "headers", "declared")


_STAGE = b"select pgqueue.stage()"


_ENQUEUE_STAGED = b"select outcome, jobs from pgqueue.enqueue_staged()"


_COPY = f"copy pg_temp.pgqueue_staged ({', '.join(_COLUMNS)}) from stdin".encode()


_INSERT = (
    f"with inserted as (insert into pg_temp.pgqueue_staged ({', '.join(_COLUMNS)}) select {', '.join(_COLUMNS)}"
    " from jsonb_populate_recordset(null::pgqueue.job_options, %s::jsonb) returning 1) select count(*) from inserted"
).encode()


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
            None if args is None else args_to_json(args, f"args of {what}"),
            *(_option_of_row(name, job.get(name), what) for name in OPTION_TYPES),
        )


def _option_of_row(name: str, value: object, what: str) -> object:
    if value is None or isinstance(value, str):
        return value
    check_value(f"{name} of {what}", value, OPTION_TYPES[name])
    if OPTION_TYPES[name] == "interval":
        return as_interval(f"{name} of {what}", value)
    if name in ("headers", "declared"):
        return to_json(value, f"{name} of {what}")
    if name in ("tags", "depends_on") and isinstance(value, Iterable):
        return elements(f"{name} of {what}", value)
    return value
