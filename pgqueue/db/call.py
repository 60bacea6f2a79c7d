"""One statement, and how it is run: `perform` on a synchronous connection, `perform_async` on an asynchronous one.

Both send and read through their own cursors: the row factory, the class of cursors and the adapters that an
application registered on its connection, or for all, are not used. The SQLSTATEs of the queue become the errors of
`pgqueue.errors`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import psycopg
from psycopg import pq
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Loader
from psycopg.dbapi20 import register_dbapi20_adapters
from psycopg.postgres import register_default_adapters, types
from psycopg.rows import tuple_row
from psycopg.types.array import register_all_arrays
from psycopg.types.json import set_json_loads
from psycopg.types.numeric import Int8BinaryLoader
from psycopg.types.string import ByteaBinaryLoader

from pgqueue.db.arrays import Texts, TextsDumper
from pgqueue.errors import (
    AccessDenied,
    DuplicateJob,
    InvalidArgument,
    LockTimeout,
    PgQueueError,
    SchemaError,
    UnsupportedOption,
    WrongIsolation,
)

T = TypeVar("T")


Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One statement, ready to run.

    Rows come in binary format, so DateStyle, IntervalStyle and other settings of the session, which a pooler may not
    let us set, change nothing. `raw` leaves jsonb and times as they come; `read_json` and `read_time` read them when
    they are needed, because most rows of a claim are never read.
    """

    text: bytes
    params: tuple[object, ...]
    read: Callable[[list[Row]], T]
    raw: bool = False


def perform(connection: psycopg.Connection[Any], call: Call[T]) -> T:
    """Run `call` in the connection's current transaction."""
    try:
        with (RawCursor if call.raw else Cursor)(connection, row_factory=tuple_row) as cursor:
            cursor.execute(call.text, call.params, binary=True)
            return call.read(cursor.fetchall())
    except psycopg.Error as error:
        raise translated(error, call) from error
    except UnicodeEncodeError as error:
        raise unwritable(error) from error


async def perform_async(connection: psycopg.AsyncConnection[Any], call: Call[T]) -> T:
    """Run `call` in the connection's current transaction."""
    try:
        async with (AsyncRawCursor if call.raw else AsyncCursor)(connection, row_factory=tuple_row) as cursor:
            await cursor.execute(call.text, call.params, binary=True)
            return call.read(await cursor.fetchall())
    except psycopg.Error as error:
        raise translated(error, call) from error
    except UnicodeEncodeError as error:
        raise unwritable(error) from error


class _Text(Loader):
    """Reads text where client_encoding is SQL_ASCII, for which psycopg returns bytes."""

    def load(self, data: Buffer) -> str:
        return bytes(data).decode(errors="backslashreplace")


class _BinaryText(_Text):
    format = pq.Format.BINARY


def _adapters(*loaders: Mapping[str, type[Loader]]) -> AdaptersMap:
    # Made at import, as psycopg makes its own.
    adapters = AdaptersMap(types=types)
    register_default_adapters(adapters)
    register_dbapi20_adapters(adapters)
    register_all_arrays(adapters)
    set_json_loads(json.loads, adapters)
    for each in loaders:
        for name, loader in each.items():
            adapters.register_loader(name, loader)
    adapters.register_dumper(Texts, TextsDumper)
    return adapters


_TEXTS = ("text", "varchar", "name", "bpchar")
_PLAIN = _adapters()
# The answers to the statements around a COPY, in copy.py, come as text.
_ASCII = _adapters(dict.fromkeys(_TEXTS, _Text), dict.fromkeys(_TEXTS, _BinaryText))
# Both loaders are compiled if psycopg is.
_RAW = _adapters({"jsonb": ByteaBinaryLoader, "timestamptz": Int8BinaryLoader})


class _Own:
    connection: Any

    @property
    def adapters(self) -> AdaptersMap:
        is_ascii = self.connection.pgconn.parameter_status(b"client_encoding") == b"SQL_ASCII"
        return _ASCII if is_ascii else _PLAIN


class _OwnRaw:
    @property
    def adapters(self) -> AdaptersMap:
        return _RAW


class Cursor(_Own, psycopg.Cursor[Row]):
    """A cursor with psycopg's own adapters, whatever the application registered."""


class AsyncCursor(_Own, psycopg.AsyncCursor[Row]):
    """See Cursor."""


class RawCursor(_OwnRaw, psycopg.Cursor[Row]):
    """See `Call.raw`."""


class AsyncRawCursor(_OwnRaw, psycopg.AsyncCursor[Row]):
    """See `Call.raw`."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The fields of an error from the server, for any driver."""

    sqlstate: str | None
    message: str
    detail: str | None
    hint: str | None
    constraint: str | None


def translated(error: psycopg.Error, call: Call[Any] | None = None) -> PgQueueError | psycopg.Error:
    """Return our error for a SQLSTATE, or the error itself. It names the argument of `call` that cannot be read."""
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
        # A value that psycopg cannot send, such as a text with a NUL, or an object that it does not know. It never can:
        # a worker that took it for a broken connection would retry forever.
        return InvalidArgument(found.message)
    if call is not None and found.sqlstate in _UNREADABLE and (unread := _unread(call, found.message)) is not None:
        name, kind = unread
        return InvalidArgument(f"{name}: {found.message}", hint=found.hint or _EXAMPLES.get(kind))
    return ours or error


# invalid_datetime_format, datetime_field_overflow, interval_field_overflow, invalid_text_representation,
# numeric_value_out_of_range
_UNREADABLE = ("22007", "22008", "22015", "22P02", "22003")

_EXAMPLES = {
    "interval": "give an interval, such as '5 min' or '2 days'",
    "timestamptz": "give an instant, such as '2026-12-24 18:00+01'",
    "integer": "give a whole number from -2147483648 to 2147483647",
    "bigint": "give a whole number from -9223372036854775808 to 9223372036854775807",
}

# Each type of whole numbers ends before this one.
_ENDS = {"integer": 2**31, "bigint": 2**63}

# A placeholder, its type, and the argument that it is given to: delay => %s::interval
_PLACEHOLDER = re.compile(r"(?:(\w+) => [^%,]*)?%s(?:::(\w+(?:\[\])?))?")


def _unread(call: Call[Any], message: str) -> tuple[str, str] | None:
    """Return name and type of the argument that PostgreSQL could not read."""
    for (name, written), value in zip(_PLACEHOLDER.findall(call.text.decode()), call.params, strict=False):
        kind = written.removesuffix("[]")
        for each in value if isinstance(value, list) else [value]:
            if name and isinstance(each, str) and f'"{each}"' in message:
                return name, kind
            if isinstance(each, int) and kind in _ENDS and not -_ENDS[kind] <= each < _ENDS[kind]:
                # PostgreSQL does not quote it. One without a name, such as an id, is named by its value.
                return name or str(each), kind
    return None


def unwritable(error: UnicodeEncodeError) -> InvalidArgument:
    """Return our error for a text that the connection's encoding does not have."""
    return InvalidArgument(
        f"a text cannot be sent: {error}",
        hint="give text without lone surrogates"
        if error.encoding.lower().startswith("utf")
        else "set client_encoding of the connection to UTF8",
    )


def meaning(found: Diagnosis) -> PgQueueError | None:
    """Return our error for a SQLSTATE, or None."""
    message = f"{found.message}: {found.detail.rstrip('.')}" if found.detail else found.message
    hint = found.hint
    match found.sqlstate:
        # Too long for jsonb; a value that cannot become the option's type, such as delay=True.
        case "54000" | "42846":
            return InvalidArgument(message, hint=hint)
        case "0A000":
            return UnsupportedOption(message, hint=hint)
        case "25001":
            return WrongIsolation(message, hint=hint)
        case "55P03":
            if hint is not None:
                return LockTimeout(message, hint=hint)
            return LockTimeout(
                "another transaction holds the job", hint="try again when it has ended; nothing was changed"
            )
        # Ours say what to do first; of PostgreSQL's own, most have no hint.
        case "55000" if hint:
            return PgQueueError(message, hint=hint)
        # Ours; PostgreSQL's own names a constraint.
        case "23505" if found.constraint is None:
            return DuplicateJob(message, hint=hint)
        case "3F000" | "42P01":
            return SchemaError(f"the queue is not installed here: {message}", hint="run: pgqueue migrate")
        case "42883":
            return SchemaError(
                f"the queue is not installed here, or its schema is of another version: {message}",
                hint="run: pgqueue migrate",
            )
        case "42501":
            return AccessDenied(
                f"the role has no right to do this: {message}",
                hint="as the owner of the schema: pgqueue grant producer (or worker, operator, reader) ROLE",
            )
        case str(state) if state.startswith("22"):
            return InvalidArgument(message, hint=hint)
    return None


def read_rows(rows: list[Row]) -> list[Row]:
    """Return the rows as they are."""
    return rows


def read_column(rows: list[Row]) -> list[Any]:
    """Return the first column."""
    return [row[0] for row in rows]


def read_one(rows: list[Row]) -> Any:
    """Return the only row."""
    return rows[0]


def read_maybe_one(rows: list[Row]) -> Any:
    """Return the only row, or None."""
    return rows[0] if rows else None


def read_first(rows: list[Row]) -> Any:
    """Return the only value."""
    return rows[0][0]


def read_id(rows: list[Row]) -> int:
    """Return the only value, an id, which a codec of the application may have made a text."""
    return int(rows[0][0])


def read_ids(rows: list[Row]) -> list[int]:
    """Return the first column, ids."""
    return [int(row[0]) for row in rows]


def as_text(value: Any) -> str:
    """Return a text as read, for any driver: some return bytes where client_encoding is SQL_ASCII."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def read_maybe_first(rows: list[Row]) -> Any:
    """Return the only value, or None."""
    return rows[0][0] if rows else None


def read_nothing(rows: list[Row]) -> None:
    """Return None."""


def pairs(held: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Return the ids and the reservations of pairs, as two arrays."""
    return [id for id, _ in held], [reservation for _, reservation in held]


def array(values: Sequence[T] | None) -> list[T] | None:
    """Return values as an array parameter, or None."""
    return None if values is None else list(values)
