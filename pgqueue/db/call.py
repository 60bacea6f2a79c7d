"""The one module that names `pgqueue.*`: every statement of the package, each written once.

A function here builds a `Call`: a statement, its parameters, and how to read its rows. `perform` runs it on a
synchronous connection, `perform_async` on an asynchronous one; both read plain tuples whatever row factory the
connection has, and turn the SQLSTATEs of the queue into the errors of `pgqueue.errors`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain
from typing import Any, Generic, TypeVar

import orjson
import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int8BinaryLoader
from psycopg.types.string import ByteaBinaryLoader

from pgqueue.enqueued import BatchResult, Enqueued
from pgqueue.errors import (
    DuplicateJob,
    InvalidArgument,
    LockedTooLong,
    NotBuiltYet,
    PgQueueError,
    SchemaError,
    WrongIsolation,
)

T = TypeVar("T")

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One statement, ready to run.

    `raw` asks for rows in binary format with jsonb and times as they come, for `read_json` and `read_time` to read
    when somebody wants them: of the rows of a claim most are never looked at.
    """

    text: bytes
    params: tuple[object, ...]
    read: Callable[[list[Row]], T]
    raw: bool = False


def perform(connection: psycopg.Connection[Any], call: Call[T]) -> T:
    """Run `call` in the connection's current transaction."""
    try:
        with connection.cursor(row_factory=tuple_row) as cursor:
            if call.raw:
                _read_raw(cursor)
            cursor.execute(call.text, call.params, binary=call.raw)
            return call.read(cursor.fetchall())
    except psycopg.Error as error:
        raise translated(error) from error
    except UnicodeEncodeError as error:
        raise _unwritable(error) from error


async def perform_async(connection: psycopg.AsyncConnection[Any], call: Call[T]) -> T:
    """Run `call` in the connection's current transaction."""
    try:
        async with connection.cursor(row_factory=tuple_row) as cursor:
            if call.raw:
                _read_raw(cursor)
            await cursor.execute(call.text, call.params, binary=call.raw)
            return call.read(await cursor.fetchall())
    except psycopg.Error as error:
        raise translated(error) from error
    except UnicodeEncodeError as error:
        raise _unwritable(error) from error


def _read_raw(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> None:
    # Both are compiled, where psycopg is.
    cursor.adapters.register_loader("jsonb", ByteaBinaryLoader)
    cursor.adapters.register_loader("timestamptz", Int8BinaryLoader)


def read_json(raw: bytes | None) -> Any:
    """Read jsonb of a raw row: a byte that says 1, and the text. See `from_json`."""
    return None if raw is None else from_json(raw[1:])


def read_time(raw: int) -> datetime:
    """Read a timestamptz of a raw row: microseconds since 2000."""
    return _EPOCH + timedelta(microseconds=raw)


_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the server says with an error, whatever the driver."""

    sqlstate: str | None
    message: str
    detail: str | None
    hint: str | None
    constraint: str | None


def translated(error: psycopg.Error) -> PgQueueError | psycopg.Error:
    """Return the error of ours that a SQLSTATE stands for, or the error itself."""
    diag = error.diag
    found = Diagnosis(
        error.sqlstate,
        diag.message_primary or str(error),
        diag.message_detail,
        diag.message_hint,
        diag.constraint_name,
    )
    ours = meaning(found)
    if ours is None and (
        isinstance(error, psycopg.DataError) or (isinstance(error, psycopg.ProgrammingError) and found.sqlstate is None)
    ):
        # What psycopg itself cannot send, such as a text with a NUL, or an object that it does not know. It never can:
        # a worker that took it for trouble with its connection would try for ever.
        return InvalidArgument(found.message)
    return ours or error


def _unwritable(error: UnicodeEncodeError) -> InvalidArgument:
    return InvalidArgument(f"a text cannot be sent: {error}", hint="give text without lone surrogates")


def meaning(found: Diagnosis) -> PgQueueError | None:
    """Return the error of ours that a SQLSTATE stands for, or None."""
    message = f"{found.message}: {found.detail.rstrip('.')}" if found.detail else found.message
    hint = found.hint
    match found.sqlstate:
        # Too long for jsonb; a value that cannot become the option's type, such as delay=5.
        case "54000" | "42846":
            return InvalidArgument(message, hint=hint)
        case "0A000":
            return NotBuiltYet(message, hint=hint)
        case "25001":
            return WrongIsolation(message, hint=hint)
        case "55P03":
            if hint is not None:
                return LockedTooLong(message, hint=hint)
            return LockedTooLong(
                "another transaction holds the job", hint="try again when it has ended; nothing was changed"
            )
        # Ours; PostgreSQL's own names a constraint.
        case "23505" if found.constraint is None:
            return DuplicateJob(message, hint=hint)
        case "3F000" | "42883" | "42P01":
            return SchemaError(f"the queue is not installed here: {message}", hint="run: pgqueue migrate")
        case str(state) if state.startswith("22"):
            return InvalidArgument(message, hint=hint)
    return None


def to_json(value: object, what: str) -> str:
    """Write `value` as JSON text. Raises InvalidArgument, naming `what`, for what JSON cannot hold."""
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:
        raise InvalidArgument(
            f"{what} cannot be written as JSON: {error}",
            hint="use str, int (64 bit), float, bool, None, list, dict with str keys, datetime, UUID, Enum, dataclass",
        ) from error


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for JSON that PostgreSQL can hold and this process cannot: a number beyond a float, nesting beyond 1000.

    A value, and not an exception: one job's args must not make the whole reply of `reserve` unreadable, for then
    every worker would claim that job again and again, and lose all that it claimed with it.
    """

    reason: str


def from_json(text: bytes | str) -> Any:
    """Read JSON, or return `Unreadable`."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return Unreadable(str(error))


class Document(Mapping[str, Any]):
    """One row as JSON; each column is read when it is asked for, and what Python cannot read of it is its text.

    PostgreSQL holds numbers of more digits and nests deeper than any parser here goes. What one client has enqueued so
    must not keep the others' jobs from being shown.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts

    def __getitem__(self, name: str) -> Any:
        text = self.texts[name]
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    def __len__(self) -> int:
        return len(self.texts)


# Characters of JSON that a result may have: a job's row in history is no file store.
_MAX_RESULT = 16_000_000

# Producing

# The options of enqueue and the types they are cast to; an unknown one is the caller's TypeError.
_OPTION_TYPES = {
    "queue": "text",
    "priority": "integer",
    "run_at": "timestamptz",
    "delay": "interval",
    "expires_in": "interval",
    "timeout": "interval",
    "max_attempts": "integer",
    "key": "text",
    "score": "numeric",
    "dedupe": "text",
    "dedupe_for": "interval",
    "on_conflict": "text",
    "depends_on": "bigint[]",
    "headers": "jsonb",
    "tags": "text[]",
    "retention": "interval",
    "retry_policy": "text",
    "retry_delay": "interval",
    "retry_queue": "text",
    "limit_key": "text",
    "debounce_max": "interval",
}


def enqueue(task: str, args: Mapping[str, Any], options: Mapping[str, object]) -> Call[int]:
    """One job; reads its id."""
    names, values = _options(options)
    return Call(_enqueue_text("enqueue", "jsonb", names), (task, to_json(args, "args"), *values), _first)


def enqueue_many(task: str, args: Iterable[Mapping[str, Any]], options: Mapping[str, object]) -> Call[list[int]]:
    """One job for each of `args`; reads their ids in order."""
    names, values = _options(options)
    texts = [to_json(each, "args") for each in args]
    return Call(_enqueue_text("enqueue_many", "jsonb[]", names), (task, texts, *values), _column)


def enqueue_outcome(
    task: str, args: Mapping[str, Any] | orjson.Fragment, options: Mapping[str, object]
) -> Call[Enqueued]:
    """One job; reads its id and what became of it."""
    names, values = _options(options)
    return Call(
        _enqueue_text("enqueue_outcome", "jsonb", names, "job_id, outcome from "),
        (task, to_json(args, "args"), *values),
        lambda rows: Enqueued(*rows[0]),
    )


def enqueue_batch(jobs: Iterable[Mapping[str, object]]) -> Call[list[BatchResult]]:
    """Jobs with options of their own; reads what became of each."""
    return Call(
        b"select job_id, outcome, error from pgqueue.enqueue_batch(%s::jsonb[]) order by ord",
        ([_batch_job(number, job) for number, job in enumerate(jobs)],),
        lambda rows: [BatchResult(job_id, outcome, _loaded(error)) for job_id, outcome, error in rows],
    )


def perform_copy(connection: psycopg.Connection[Any], jobs: Iterable[Mapping[str, object]]) -> dict[str, int]:
    """Copy jobs into the queue in the connection's current transaction; read how many came to which outcome."""
    rows = _staged(jobs)
    first = next(rows, None)
    if first is None:
        return {}
    try:
        # What is staged lives as long as its transaction.
        with (
            connection.transaction() if _is_alone(connection) else nullcontext(),
            connection.cursor(row_factory=tuple_row) as cursor,
        ):
            cursor.execute(_STAGE)
            with cursor.copy(_COPY) as copy:
                for row in chain([first], rows):
                    copy.write_row(row)
            cursor.execute(_ENQUEUE_STAGED)
            return dict(cursor.fetchall())
    except psycopg.Error as error:
        raise _copy_error(error) from error


async def perform_copy_async(
    connection: psycopg.AsyncConnection[Any], jobs: Iterable[Mapping[str, object]]
) -> dict[str, int]:
    """Copy jobs into the queue in the connection's current transaction; read how many came to which outcome."""
    rows = _staged(jobs)
    first = next(rows, None)
    if first is None:
        return {}
    try:
        async with (
            connection.transaction() if _is_alone(connection) else nullcontext(),
            connection.cursor(row_factory=tuple_row) as cursor,
        ):
            await cursor.execute(_STAGE)
            async with cursor.copy(_COPY) as copy:
                for row in chain([first], rows):
                    await copy.write_row(row)
            await cursor.execute(_ENQUEUE_STAGED)
            return dict(await cursor.fetchall())
    except psycopg.Error as error:
        raise _copy_error(error) from error


_STAGE = b"select pgqueue.stage()"
_ENQUEUE_STAGED = b"select outcome, jobs from pgqueue.enqueue_staged()"
_COPY = f"copy pg_temp.pgqueue_staged (task, args, {', '.join(_OPTION_TYPES)}) from stdin".encode()


def _is_alone(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE


def _copy_error(error: psycopg.Error) -> PgQueueError | psycopg.Error:
    # What COPY itself refuses: its context names the line, which is the row.
    if isinstance(error, psycopg.DataError) and error.diag.context and not error.diag.message_hint:
        return InvalidArgument(
            f"{error.diag.message_primary}: {error.diag.context}",
            hint="a line is a job, the first being 1; nothing was enqueued",
        )
    return translated(error)


def _staged(jobs: Iterable[Mapping[str, object]]) -> Iterator[tuple[object, ...]]:
    for number, job in enumerate(jobs, 1):
        what = f"job {number} of the load"
        unknown = job.keys() - _OPTION_TYPES.keys() - {"task", "args"}
        if unknown:
            raise InvalidArgument(
                f"there is no option {min(unknown)!r}, in {what}", hint="name options as the arguments of enqueue()"
            )
        args = job.get("args")
        yield (
            job.get("task"),
            None if args is None else to_json(args, f"args of {what}"),
            *(_option_of_row(name, job.get(name), what) for name in _OPTION_TYPES),
        )


def _option_of_row(name: str, value: object, what: str) -> object:
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, datetime) and value.tzinfo is None:
        raise InvalidArgument(
            f"{name} of {what} has no time zone: {value}", hint="give an aware datetime, such as datetime.now(UTC)"
        )
    if name == "headers":
        return to_json(value, f"{name} of {what}")
    if name in ("tags", "depends_on") and isinstance(value, Iterable):
        return list(value)
    return value


def _batch_job(number: int, job: Mapping[str, object]) -> str:
    options: dict[str, object] = {}
    for name, value in job.items():
        if isinstance(value, datetime) and value.tzinfo is None:
            raise InvalidArgument(
                f"{name} of job {number} of the batch has no time zone: {value}",
                hint="give an aware datetime, such as datetime.now(UTC)",
            )
        options[name] = _interval_text(value) if isinstance(value, timedelta) else value
    return to_json(options, f"job {number} of the batch")


@lru_cache(maxsize=256)
def _enqueue_text(function: str, args_type: str, names: tuple[str, ...], columns: str = "") -> bytes:
    options = "".join(f", {name} => %s::{_OPTION_TYPES[name]}" for name in names)
    return f"select {columns}pgqueue.{function}(%s::text, %s::{args_type}{options})".encode()


def _options(options: Mapping[str, object]) -> tuple[tuple[str, ...], list[object]]:
    names: list[str] = []
    values: list[object] = []
    for name, value in options.items():
        if name not in _OPTION_TYPES:
            raise TypeError(f"enqueue() has no option {name!r}; it has {', '.join(_OPTION_TYPES)}")
        if value is None:
            continue
        if isinstance(value, datetime) and value.tzinfo is None:
            raise InvalidArgument(
                f"{name} has no time zone: {value}", hint="give an aware datetime, such as datetime.now(UTC)"
            )
        if name == "headers":
            value = to_json(value, name)
        elif name in ("tags", "depends_on") and not isinstance(value, str) and isinstance(value, Iterable):
            value = list(value)
        names.append(name)
        values.append(value)
    return tuple(names), values


# Consuming


# What a worker reads of a job that it claimed: the fields of `Job`, save for timeout, then what else it needs.
_CLAIMED = (
    b"id, task, args, headers, queue, key, priority, attempt, max_attempts, reservation, run_at,"
    b" created_at, lease_expires_at, leader, timeout, losses, crashes, store_result, outcome, note"
)
OUTCOME, NOTE = 18, 19


@dataclass(frozen=True, slots=True)
class Claim:
    """What a worker asks for: the arguments of `reserve`."""

    worker: str
    queues: Sequence[str] | None
    weights: Sequence[int] | None
    lease: float
    strategy: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed try, with what `fail` takes."""

    job_id: int
    reservation: int
    error: Mapping[str, object]
    retry_in: timedelta | str | None = None
    retry: bool = True
    policy: str | None = None
    cancel: bool = False


def exchange(
    claim: Claim,
    max_jobs: int,
    completed: Sequence[tuple[int, int]] = (),
    results: Sequence[str | None] | None = None,
    failed: Sequence[Failure] = (),
) -> Call[list[Row]]:
    """End jobs and claim others; reads raw rows of the columns above, `OUTCOME` says what each of them is."""
    params: tuple[object, ...] = (
        claim.worker,
        max_jobs,
        _array(claim.queues),
        _array(claim.weights),
        timedelta(seconds=claim.lease),
        claim.strategy,
        *_pair_texts(completed),
        None if results is None else list(results),
    )
    text = (
        b"select " + _CLAIMED + b" from pgqueue.exchange(%s::text, %s::integer, %s::text[], %s::integer[],"
        b" %s::interval, %s::text, %s::bigint[], %s::bigint[], %s::text[]::jsonb[]"
    )
    if failed:
        text += (
            b", %s::bigint[], %s::bigint[], %s::text[]::jsonb[], %s::text[]::interval[], %s::boolean[], %s::text[],"
            b" %s::boolean[]"
        )
        params += (
            *_pair_texts([(each.job_id, each.reservation) for each in failed]),
            [_error_text(each.error) for each in failed],
            [None if each.retry_in is None else _interval_text(each.retry_in) for each in failed],
            [each.retry for each in failed],
            [each.policy for each in failed],
            [each.cancel for each in failed],
        )
    return Call(text + b")", params, _rows, raw=True)


def complete(job_id: int, reservation: int, result: object = None) -> Call[bool]:
    """Complete one job in the connection's transaction; reads whether it was still held."""
    text = None if result is None else to_result(result)
    params = (job_id, reservation, text)
    return Call(b"select pgqueue.complete(%s::bigint, %s::bigint, %s::text::jsonb)", params, _first)


def to_result(value: object) -> str:
    """Write a result as JSON text that PostgreSQL can hold. Raises InvalidArgument for what it cannot."""
    text = to_json(value, "result")
    if len(text) > _MAX_RESULT:
        raise InvalidArgument(
            f"result has {len(text)} characters of JSON", hint=f"return at most {_MAX_RESULT}, or a reference to it"
        )
    if re.search(r"(?<!\\)(?:\\\\)*\\u0000", text):
        raise InvalidArgument("result holds a NUL character", hint="PostgreSQL cannot store it as JSON: remove it")
    return text


def fail(failure: Failure) -> Call[str | None]:
    """Report a failed try; reads the new state, or None when the lease is lost."""
    return Call(
        b"select pgqueue.fail(%s::bigint, %s::bigint, %s::jsonb, %s::interval, %s::boolean, %s::text, %s::boolean)",
        (
            failure.job_id,
            failure.reservation,
            _error_text(failure.error),
            failure.retry_in,
            failure.retry,
            failure.policy,
            failure.cancel,
        ),
        _first,
    )


def _error_text(error: Mapping[str, object]) -> str:
    # PostgreSQL's jsonb has no \u0000; in the message of an error it carries nothing.
    return to_json(error, "error").replace("\\u0000", "\\ufffd")


def snooze(job_id: int, reservation: int, delay: timedelta | str) -> Call[bool]:
    """Put a job off, uncounted; reads whether it was still held."""
    return Call(b"select pgqueue.snooze(%s::bigint, %s::bigint, %s::interval)", (job_id, reservation, delay), _first)


def extend(held: Sequence[tuple[int, int]], lease: float, started: Sequence[bool]) -> Call[list[Row]]:
    """Extend leases, and say whose handlers run; reads (id, lease_expires_at, cancel_requested) of those still held."""
    ids, reservations = _pairs(held)
    return Call(
        b"select job_id, lease_expires_at, cancel_requested"
        b" from pgqueue.extend(%s::bigint[], %s::bigint[], %s::interval, %s::boolean[])",
        (ids, reservations, timedelta(seconds=lease), list(started)),
        _rows,
    )


def started(held: Sequence[tuple[int, int]]) -> Call[list[int]]:
    """Say that the handlers of these jobs are about to run; reads the ids that were not held."""
    ids, reservations = _pairs(held)
    return Call(b"select pgqueue.started(%s::bigint[], %s::bigint[])", (ids, reservations), _column)


def crashed(worker: str, held: Sequence[tuple[int, int]]) -> Call[list[int]]:
    """Say that a worker process died while it ran `held`; reads the ids of all that was booked on it."""
    ids, reservations = _pairs(held)
    return Call(b"select pgqueue.crashed(%s::text, %s::bigint[], %s::bigint[])", (worker, ids, reservations), _column)


def progress(told: Sequence[tuple[int, int, float, float | None, str | None]]) -> Call[list[bool]]:
    """Say how far jobs have come, as (id, reservation, done, total, note); reads which are still held."""
    columns = [list(column) for column in zip(*told, strict=True)]
    return Call(
        b"select pgqueue.progress(w.id, w.reservation, w.done, w.total, w.note)"
        b" from unnest(%s::bigint[], %s::bigint[], %s::float8[], %s::float8[], %s::text[])"
        b" w (id, reservation, done, total, note)",
        tuple(columns),
        _column,
    )


def hold(job_id: int, reservation: int) -> Call[bool]:
    """Lock a job for this transaction; reads whether it is still held."""
    return Call(b"select pgqueue.hold(%s::bigint, %s::bigint)", (job_id, reservation), _first)


def outcome(job_id: int) -> Call[Row | None]:
    """Read (state, result, errors, attempts, finished_at) of a job, or None."""
    return Call(
        b"select state, result, errors, attempts, finished_at from pgqueue.outcome(%s::bigint)", (job_id,), _maybe_one
    )


def is_wanted(worker: str, queues: Sequence[str]) -> Call[bool]:
    """Ask whether another worker that serves one of these queues is asleep."""
    return Call(b"select pgqueue.is_wanted(%s::text, %s::text[])", (worker, list(queues)), _first)


def release(held: Sequence[tuple[int, int]], delay: float = 0.0) -> Call[list[int]]:
    """Give jobs back, uncounted; reads the ids that were not held."""
    ids, reservations = _pairs(held)
    return Call(
        b"select pgqueue.release(%s::bigint[], %s::bigint[], %s::interval)",
        (ids, reservations, timedelta(seconds=delay)),
        _column,
    )


def release_unheld(worker: str, held: Sequence[tuple[int, int]]) -> Call[list[int]]:
    """Give back what is booked on the worker and not in `held`; reads those ids."""
    ids, reservations = _pairs(held)
    return Call(
        b"select pgqueue.release_unheld(%s::text, %s::bigint[], %s::bigint[])", (worker, ids, reservations), _column
    )


def hello(worker: str, queues: Sequence[str] | None, info: Mapping[str, object]) -> Call[str]:
    """Register the worker; reads its channel."""
    return Call(
        b"select pgqueue.hello(%s::text, %s::text[], %s::jsonb)",
        (worker, _array(queues), to_json(info, "info")),
        _first,
    )


def beat(worker: str) -> Call[bool]:
    """Say that the worker lives; reads whether it is registered."""
    return Call(b"select pgqueue.beat(%s::text)", (worker,), _first)


def bye(worker: str) -> Call[None]:
    """The worker ends."""
    return Call(b"select pgqueue.bye(%s::text)", (worker,), _nothing)


def idle(worker: str, queues: Sequence[str] | None, seconds: float) -> Call[tuple[str, float | None, float, bool]]:
    """Write that the worker sleeps, and keep house; reads its channel, seconds to the next due time, and to the next
    call, and whether the worker is registered."""
    return Call(
        b"select channel, extract(epoch from next_due - pgqueue._clock())::float8,"
        b" extract(epoch from call_again_in)::float8, registered"
        b" from pgqueue.idle(%s::text, %s::text[], %s::interval)",
        (worker, _array(queues), timedelta(seconds=seconds)),
        _one,
    )


def awake(worker: str) -> Call[None]:
    """The worker is busy; producers need not wake it."""
    return Call(b"select pgqueue.awake(%s::text)", (worker,), _nothing)


def maintain(max_age: float = 0.0) -> Call[tuple[bool, int, int, int, float]]:
    """Keep house; reads (ran, rescued, prolonged, expired, seconds to the next call)."""
    return Call(
        b"select ran, rescued, prolonged, expired, extract(epoch from call_again_in)::float8"
        b" from pgqueue.maintain(%s::interval)",
        (timedelta(seconds=max_age),),
        _one,
    )


def declare_task(name: str, options: Mapping[str, object]) -> Call[bool]:
    """Write what the code says of a task; reads whether anything changed."""
    delays = options.get("retry_delays")
    if isinstance(delays, Iterable) and not isinstance(delays, str):
        # An array has elements of one type: texts, should there be one.
        options = {**options, "retry_delays": [_interval_text(delay) for delay in delays]}
    return Call(
        b"select pgqueue.declare_task(%s::text, %s::text, %s::integer, %s::integer, %s::text, %s::interval,"
        b" %s::float8, %s::interval, %s::interval, %s::interval, %s::interval, %s::interval, %s::interval[], %s::text,"
        b" %s::boolean, %s::integer, %s::interval, %s::integer, %s::boolean)",
        (
            name,
            *(
                options.get(option)
                for option in (
                    "queue",
                    "priority",
                    "max_attempts",
                    "retry_policy",
                    "retry_delay",
                    "retry_jitter",
                    "expires_in",
                    "retention_succeeded",
                    "retention_cancelled",
                    "retention_dead",
                    "retry_cap",
                    "retry_delays",
                    "retry_queue",
                    "accumulate",
                    "batch_size",
                    "timeout",
                    "max_crashes",
                    "store_result",
                )
            ),
        ),
        _first,
    )


# The options of schedule and the types they are cast to; an unknown one is the caller's TypeError.
_SCHEDULE_TYPES = {
    "every": "interval",
    "timezone": "text",
    "catch_up": "text",
    "catch_up_cap": "integer",
    "overlap": "text",
    "jitter": "interval",
    "queue": "text",
    "priority": "integer",
    "max_attempts": "integer",
    "expires_in": "interval",
    "headers": "jsonb",
    "tags": "text[]",
    "retention": "interval",
}


def check_schedule_options(options: Mapping[str, object]) -> None:
    """Raise TypeError for an option that schedule does not have."""
    for name in options:
        if name not in _SCHEDULE_TYPES:
            raise TypeError(f"a schedule has no option {name!r}; it has {', '.join(_SCHEDULE_TYPES)}")


def schedule(
    name: str, expression: str | None, task: str, args: Mapping[str, Any], options: Mapping[str, object]
) -> Call[datetime | None]:
    """Declare a schedule; reads when it is due next. Only a change is written."""
    check_schedule_options(options)
    given = {option: value for option, value in options.items() if value is not None}
    if "headers" in given:
        given["headers"] = to_json(given["headers"], "headers")
    if "tags" in given and isinstance(given["tags"], Iterable):
        given["tags"] = list(given["tags"])
    named = "".join(f", {option} => %s::{_SCHEDULE_TYPES[option]}" for option in given)
    return Call(
        f"select pgqueue.schedule(%s::text, %s::text, %s::text, %s::jsonb{named})".encode(),
        (name, expression, task, to_json(args, "args"), *given.values()),
        _first,
    )


def announce(channel: str, payload: str) -> Call[None]:
    """Notify a channel, as enqueue does."""
    return Call(b"select pg_catalog.pg_notify(%s::text, %s::text)", (channel, payload), _nothing)


def version() -> Call[tuple[str, str, str] | None]:
    """Read (version, revision, digest) of what is installed."""
    return Call(b"select version, revision, digest from pgqueue.version()", (), _maybe_one)


# Operating


def stats() -> Call[dict[str, Any]]:
    """Read the numbers of the queue."""
    return Call(b"select pgqueue.stats()", (), _first)


def cancel(job_id: int) -> Call[str | None]:
    """Cancel a job; reads "cancelled", "requested" or None."""
    return Call(b"select pgqueue.cancel(%s::bigint)", (job_id,), _first)


def retry(job_id: int) -> Call[bool]:
    """Run a dead, cancelled or failed job now; reads whether there was one."""
    return Call(b"select pgqueue.retry(%s::bigint)", (job_id,), _first)


def delete(job_id: int) -> Call[bool]:
    """Delete a job that is not executing; reads whether there was one."""
    return Call(b"select pgqueue.delete(%s::bigint)", (job_id,), _first)


# What may be done to many jobs, and by which filters.
_BULK = {
    "run": "run_now_many",
    "kill": "kill_many",
    "cancel": "cancel_many",
    "delete": "delete_many",
    "retry": "retry_many",
    "purge": "purge_queue",
}
_FILTER_TYPES = {
    "queue": "text",
    "task": "text",
    "key": "text",
    "state": "text",
    "created_after": "timestamptz",
    "created_before": "timestamptz",
    "finished_after": "timestamptz",
    "finished_before": "timestamptz",
    "job_ids": "bigint[]",
    "everything": "boolean",
}


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one bulk call did. `next_after` is where to go on; None: at the end."""

    changed: int
    passed_over: int
    left_over: int
    is_exact: bool
    next_after: object


def bulk(action: str, filters: Mapping[str, object], max_jobs: int, after: object = None) -> Call[Chunk]:
    """Run, kill, cancel, delete, retry or purge up to `max_jobs` jobs; reads how many, and where to go on."""
    given = {name: value for name, value in filters.items() if value is not None}
    named = "".join(f"{name} => %s::{_FILTER_TYPES[name]}, " for name in given)
    return Call(
        f"select changed, passed_over, left_over, is_exact, next_after from pgqueue.{_BULK[action]}"
        f"({named}max_jobs => %s::integer, after => %s::jsonb)".encode(),
        (*given.values(), max_jobs, None if after is None else to_json(after, "after")),
        lambda rows: Chunk(*rows[0]),
    )


def explain(job_id: int) -> Call[dict[str, Any]]:
    """Read why a job is not running: state, reason, detail, until, behind."""
    return Call(b"select to_jsonb(e) from pgqueue.explain(%s::bigint) e", (job_id,), _first)


def set_limit(
    kind: str, target: str, max_executing: int | None, rate: int | None, per: timedelta | str | None
) -> Call[bool]:
    """Limit what executes, or starts; reads whether that changed anything."""
    return Call(
        b"select pgqueue.set_limit(%s::text, %s::text, %s::integer, %s::integer, %s::interval)",
        (kind, target, max_executing, rate, per),
        _first,
    )


def drop_limit(kind: str, target: str) -> Call[bool]:
    """Take a limit away; reads whether there was one."""
    return Call(b"select pgqueue.drop_limit(%s::text, %s::text)", (kind, target), _first)


def pause_queue(queue: str) -> Call[bool]:
    """Hand out no more jobs of a queue; reads whether that changed anything."""
    return Call(b"select pgqueue.pause_queue(%s::text)", (queue,), _first)


def resume_queue(queue: str) -> Call[bool]:
    """Hand out jobs of a paused queue again; reads whether that changed anything."""
    return Call(b"select pgqueue.resume_queue(%s::text)", (queue,), _first)


def list_schedules() -> Call[list[dict[str, Any]]]:
    """Read all schedules, the next one due first."""
    return Call(
        b"select to_jsonb(s) from pgqueue.effective_schedules s order by s.next_at nulls last, s.name", (), _column
    )


def find_schedule(name: str, runs: int) -> Call[Document | None]:
    """Read one schedule and what became of its last runs, newest first."""
    return Call(
        b"select (select jsonb_object_agg(c.key, c.value::text) from jsonb_each("
        b"to_jsonb(s) || jsonb_build_object('args', d.args, 'runs', coalesce(("
        b"select jsonb_agg(to_jsonb(r) order by r.n desc) from ("
        b"select h.* from pgqueue.schedule_history h where h.schedule = s.name order by h.n desc limit %s::integer"
        b") r), '[]'))) c)"
        b" from pgqueue.effective_schedules s join pgqueue.schedules d on d.name = s.name where s.name = %s::text",
        (runs, name),
        _maybe_document,
    )


def pause_schedule(name: str) -> Call[bool]:
    """Let a schedule enqueue nothing; reads whether that changed anything."""
    return Call(b"select pgqueue.pause_schedule(%s::text)", (name,), _first)


def resume_schedule(name: str) -> Call[bool]:
    """Let a paused schedule go on from now; reads whether that changed anything."""
    return Call(b"select pgqueue.resume_schedule(%s::text)", (name,), _first)


def run_schedule_now(name: str) -> Call[int | None]:
    """Enqueue one job of a schedule; reads its id, or None where there is no such schedule."""
    return Call(b"select pgqueue.run_schedule_now(%s::text)", (name,), _first)


def unschedule(name: str) -> Call[bool]:
    """Remove a schedule; reads whether there was one."""
    return Call(b"select pgqueue.unschedule(%s::text)", (name,), _first)


def grant_access(kind: str, role: str) -> Call[None]:
    """Let a role use the queue."""
    return Call(b"select pgqueue.grant_access(%s::text, %s::name)", (kind, role), _nothing)


def revoke_access(kind: str, role: str) -> Call[bool]:
    """Take back what grant_access gave; reads whether there was anything."""
    return Call(b"select pgqueue.revoke_access(%s::text, %s::name)", (kind, role), _first)


def find_job(job_id: int) -> Call[Document | None]:
    """Read everything about one job."""
    return Call(_JOB + b" where j.id = %s::bigint", (job_id,), _maybe_document)


def list_jobs(queue: str | None, task: str | None, state: str | None, limit: int) -> Call[list[Document]]:
    """Read jobs, newest first."""
    clauses = []
    params: list[object] = []
    for column, value in (("queue", queue), ("task", task), ("state::text", state)):
        if value is not None:
            clauses.append(f"j.{column} = %s::text")
            params.append(value)
    where = f" where {' and '.join(clauses)}" if clauses else ""
    return Call(
        _JOB + f"{where} order by j.id desc limit %s::integer".encode(),
        (*params, limit),
        lambda rows: [Document(row[0]) for row in rows],
    )


_JOB = b"select (select jsonb_object_agg(c.key, c.value::text) from jsonb_each(to_jsonb(j)) c) from pgqueue.all_jobs j"


# Reading


def _rows(rows: list[Row]) -> list[Row]:
    return rows


def _column(rows: list[Row]) -> list[Any]:
    return [row[0] for row in rows]


def _one(rows: list[Row]) -> Any:
    return rows[0]


def _maybe_one(rows: list[Row]) -> Any:
    return rows[0] if rows else None


def _first(rows: list[Row]) -> Any:
    return rows[0][0]


def _maybe_first(rows: list[Row]) -> Any:
    return rows[0][0] if rows else None


def _maybe_document(rows: list[Row]) -> Document | None:
    return Document(rows[0][0]) if rows else None


def _nothing(rows: list[Row]) -> None:
    return None


def _loaded(value: Any) -> Any:
    # Some drivers, and Django, leave jsonb as it is written.
    return from_json(value) if isinstance(value, str) else value


def _pairs(held: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [id for id, _ in held], [reservation for _, reservation in held]


def _pair_texts(held: Sequence[tuple[int, int]]) -> tuple[str, str]:
    # Written by hand, as psycopg writes lists of a thousand numbers one by one.
    ids = ",".join([str(pair[0]) for pair in held])
    return f"{{{ids}}}", "{" + ",".join([str(pair[1]) for pair in held]) + "}"


def _interval_text(value: object) -> str:
    return f"{value // timedelta(microseconds=1)} us" if isinstance(value, timedelta) else str(value)


def _array(values: Sequence[T] | None) -> list[T] | None:
    return None if values is None else list(values)
