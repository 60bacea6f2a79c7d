"""Runs the statements of `pgqueue.db` on any connection that a producer has: psycopg, SQLAlchemy, asyncpg,
Django, psycopg2.

The names in an object's MRO tell its kind: no application pays for the import of a driver that it does
not use, and none is imported here. A statement runs in the caller's transaction, through the caller's own objects, so
that SQLAlchemy and Django know that a transaction is open. It is written once, with psycopg's placeholders; asyncpg's
are made of them.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import date, timedelta
from decimal import Decimal
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus

from pgqueue.db.call import Call, Diagnosis, meaning, perform, perform_async, unwritable
from pgqueue.db.json import interval_text
from pgqueue.errors import InvalidArgument, PgQueueError

if TYPE_CHECKING:
    import psycopg_pool
    import sqlalchemy.ext.asyncio
    import sqlalchemy.orm

T = TypeVar("T")


class DjangoConnection(Protocol):
    """`django.db.connection`, or one of `django.db.connections`, on PostgreSQL."""

    vendor: Any
    in_atomic_block: Any


class Psycopg2Connection(Protocol):
    """A connection of psycopg2."""

    def get_dsn_parameters(self) -> Any: ...


class AsyncpgConnection(Protocol):
    """A connection of asyncpg."""

    def is_in_transaction(self) -> bool: ...


class AsyncpgPoolConnection(Protocol):
    """A connection of asyncpg as a pool lends it: its methods are made when it runs, and no type checker sees them."""

    _con: Any
    _holder: Any


class AsyncpgPool(Protocol):
    """A pool of asyncpg."""

    def get_max_size(self) -> int: ...


# Connections on which a call is done at once, and ones on which it returns an awaitable.
# One string each: pyright does not read an alias made of several.
SyncConnection: TypeAlias = """(
    psycopg.Connection[Any] | sqlalchemy.Connection | sqlalchemy.orm.Session | sqlalchemy.orm.scoped_session[Any]
    | DjangoConnection | Psycopg2Connection | psycopg_pool.ConnectionPool[Any] | sqlalchemy.Engine
)"""
AsyncConnection: TypeAlias = """(
    psycopg.AsyncConnection[Any] | sqlalchemy.ext.asyncio.AsyncConnection | sqlalchemy.ext.asyncio.AsyncSession
    | sqlalchemy.ext.asyncio.async_scoped_session[Any] | AsyncpgConnection | AsyncpgPoolConnection
    | psycopg_pool.AsyncConnectionPool[Any] | sqlalchemy.ext.asyncio.AsyncEngine | AsyncpgPool
)"""

_ACCEPTED = (
    "a connection of psycopg or asyncpg, a Connection or Session of SQLAlchemy (also an async or scoped one),"
    " django.db.connection, a pool of psycopg_pool or asyncpg, or an engine of SQLAlchemy"
)


# What callers may give by mistake in place of the connection.
_VALUES = (str, bytes, int, float, Mapping, list, tuple, set)


def check_is_connection(connection: Any) -> None:
    """Raise TypeError if there is no connection, or if a value of the job stands in its place."""
    if connection is None or isinstance(connection, _VALUES):
        found = "it is missing" if connection is None else f"{type(connection).__name__} is none"
        raise TypeError(
            f"the connection comes first, and {found}: give enqueue {_ACCEPTED};"
            " to enqueue outside of a transaction, a pool or an engine,"
            " or: with psycopg.connect(dsn) as connection: ...; from another driver run: select pgqueue.enqueue(...)"
        )


def run(connection: Any, call: Call[T]) -> T | Awaitable[T]:
    """Run `call` in the connection's current transaction; on an async connection, return an awaitable.

    A pool or an engine lends a connection, and `call` runs in a separate transaction.

    Raises the errors of `pgqueue.errors` with every driver, TypeError if it is not a connection, and the driver's own
    errors for anything that has nothing to do with the queue.
    """
    if isinstance(connection, psycopg.Connection):
        return perform(connection, call)
    if isinstance(connection, psycopg.AsyncConnection):
        return perform_async(connection, call)
    kind = type(connection)
    door = _door_of(kind)
    if door is None:
        raise not_accepted(connection)
    result: T | Awaitable[T] = door(connection, call)
    return result


def run_briefly(connection: Any, call: Call[T]) -> T | Awaitable[T]:
    """Run `call` as `run` does. If no transaction was open before, none is open afterwards."""
    if in_transaction(connection):
        return run(connection, call)
    if is_async(connection):
        return _run_briefly_async(connection, call)
    if is_session(connection):
        # Not the session itself: the end of its own transaction would expire what it has loaded.
        return run_briefly(_unscoped(connection).get_bind(), call)
    try:
        answer = run(connection, call)
    except BaseException:
        with suppress(Exception):
            _end_read(connection)
        raise
    _end_read(connection)
    return answer


def in_transaction(connection: Any) -> bool:
    """Return whether the caller has a transaction open on this connection; a pool or an engine has none."""
    if isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        return connection.info.transaction_status != TransactionStatus.IDLE
    if hasattr(connection, "get_transaction_status"):  # psycopg2
        return bool(connection.get_transaction_status())
    if hasattr(connection, "in_atomic_block"):  # Django
        return connection.in_atomic_block or (
            connection.connection is not None and in_transaction(connection.connection)
        )
    session = _unscoped(connection)
    for name in ("in_transaction", "is_in_transaction"):  # SQLAlchemy, asyncpg
        if hasattr(session, name):
            return bool(getattr(session, name)())
    return False


def lent(given: Any) -> Any:
    """Return a context manager that lends a connection in a separate transaction; None for what is no pool or engine.

    It is an async one for async pools and engines.
    """
    lend = _found(_LENDERS, type(given), _known_lenders)
    return None if lend is None else lend(given)


def transaction_on(connection: Any) -> Any:
    """Return a context manager that begins a transaction and ends it, on a connection that commits by itself."""
    if hasattr(connection, "in_atomic_block"):
        # Imported here: a program with such a connection has Django.
        from django.db import transaction  # noqa: PLC0415

        return transaction.atomic(using=connection.alias)
    if hasattr(connection, "exec_driver_sql"):
        return _begun_async(connection) if is_async(connection) else _begun(connection)
    return connection.transaction() if hasattr(connection, "transaction") else connection


def commits_by_itself(connection: Any) -> bool:
    """Return whether each statement is a separate transaction. A session of SQLAlchemy is asked by its connection."""
    if hasattr(connection, "in_atomic_block"):
        return not connection.in_atomic_block and bool(connection.get_autocommit())
    if hasattr(connection, "exec_driver_sql"):
        # Its isolation level is AUTOCOMMIT: SQLAlchemy speaks of a transaction that the database has not.
        pooled = getattr(connection, "sync_connection", connection).connection
        is_automatic = bool(getattr(pooled.dbapi_connection, "autocommit", False))
        return is_automatic and not in_transaction(pooled.driver_connection)
    if hasattr(connection, "is_in_transaction"):
        return not connection.is_in_transaction()
    return bool(getattr(connection, "autocommit", False)) and not in_transaction(connection)


def is_session(given: Any) -> bool:
    """Return whether this is a session of SQLAlchemy: connection() returns its connection, or an awaitable of it."""
    return hasattr(_unscoped(given), "get_bind")


def is_accepted(connection: Any) -> bool:
    """Return whether `run` takes this object."""
    return isinstance(connection, psycopg.Connection | psycopg.AsyncConnection) or (
        _door_of(type(connection)) is not None
    )


def not_accepted(given: Any) -> TypeError:
    """Return the error for an object that `run` does not take."""
    kind = type(given)
    return TypeError(
        f"this call needs {_ACCEPTED}, not {kind.__module__}.{kind.__qualname__};"
        " from another driver run: select pgqueue.enqueue(...)"
    )


def is_async(connection: Any) -> bool:
    """Return whether statements on this connection are awaited."""
    return isinstance(connection, psycopg.AsyncConnection) or iscoroutinefunction(_door_of(type(connection)))


def sqlstate_of(error: BaseException) -> str | None:
    """Return the SQLSTATE of a driver's error, or None."""
    return next((found.sqlstate for each in _origins(error) if (found := _diagnosis(each)) is not None), None)


async def _run_briefly_async(connection: Any, call: Call[T]) -> T:
    if is_session(connection):
        briefly: T = await _unscoped(connection).run_sync(run_briefly, call)
        return briefly
    try:
        answer = await cast(Awaitable[T], run(connection, call))
    except BaseException:
        with suppress(Exception):
            if in_transaction(connection):
                await connection.rollback()
        raise
    if in_transaction(connection):
        await connection.rollback()
    return answer


def _end_read(connection: Any) -> None:
    if in_transaction(connection):
        connection.rollback()


def _unscoped(connection: Any) -> Any:
    # A scoped session of SQLAlchemy does not have all that a session has.
    return connection() if hasattr(connection, "session_factory") else connection


def _door_of(kind: type) -> Callable[[Any, Call[Any]], Any] | None:
    return _found(_DOORS, kind, _known)


def _found(kinds: Mapping[tuple[str, str], T], kind: type, known: dict[type, T | None]) -> T | None:
    if kind not in known:
        names = ((each.__module__.partition(".")[0], each.__name__) for each in kind.__mro__)
        known[kind] = next((kinds[name] for name in names if name in kinds), None)
    return known[kind]


def _by_cursor(connection: Any, call: Call[T], **given: Any) -> T:
    try:
        with connection.cursor(**given) as cursor:
            cursor.execute(call.text.decode(), _sent(call))
            return call.read(cursor.fetchall())
    except Exception as error:
        ours = _translated(error)
        if ours is None:
            raise
        raise ours from error


def _by_psycopg2(connection: Any, call: Call[T]) -> T:
    # Tuples, also where the connection's own cursors give dicts. Its module is there, for the connection is.
    return _by_cursor(connection, call, cursor_factory=sys.modules["psycopg2.extensions"].cursor)


def _by_django(connection: Any, call: Call[T]) -> T:
    if connection.vendor != "postgresql":
        raise _not_postgres(connection.vendor)
    return _by_cursor(connection, call)


def _by_sqlalchemy(connection: Any, call: Call[T]) -> T:
    text, params = _of_dialect(connection.dialect, call)
    try:
        return call.read([tuple(row) for row in connection.exec_driver_sql(text, params)])
    except Exception as error:
        ours = _translated(error)
        if ours is None:
            raise
        raise ours from error


def _by_session(session: Any, call: Call[T]) -> T:
    return _by_sqlalchemy(session.connection(), call)


async def _by_async_sqlalchemy(connection: Any, call: Call[T]) -> T:
    text, params = _of_dialect(connection.dialect, call)
    try:
        return call.read([tuple(row) for row in await connection.exec_driver_sql(text, params)])
    except Exception as error:
        ours = _translated(error)
        if ours is None:
            raise
        raise ours from error


async def _by_async_session(session: Any, call: Call[T]) -> T:
    return await _by_async_sqlalchemy(await session.connection(), call)


async def _by_asyncpg(connection: Any, call: Call[T]) -> T:
    params = _sent(call)
    text = _numbered(call, params)
    try:
        return call.read([tuple(row) for row in await connection.fetch(text, *params)])
    except Exception as error:
        ours = _translated(error)
        if ours is None:
            raise
        raise ours from error


def _by_lender(lender: Any, call: Call[T]) -> T:
    with lent(lender) as connection:
        return cast(T, run(connection, call))


async def _by_async_lender(lender: Any, call: Call[T]) -> T:
    async with lent(lender) as connection:
        return await cast(Awaitable[T], run(connection, call))


@asynccontextmanager
async def _lent_by_asyncpg(pool: Any) -> AsyncIterator[Any]:
    async with pool.acquire() as connection, connection.transaction():
        yield connection


@contextmanager
def _begun(connection: Any) -> Iterator[None]:
    connection.exec_driver_sql("begin")
    try:
        yield
    except BaseException:
        connection.exec_driver_sql("rollback")
        raise
    connection.exec_driver_sql("commit")


@asynccontextmanager
async def _begun_async(connection: Any) -> AsyncIterator[None]:
    await connection.exec_driver_sql("begin")
    try:
        yield
    except BaseException:
        await connection.exec_driver_sql("rollback")
        raise
    await connection.exec_driver_sql("commit")


def _lent_by_pool(pool: Any) -> Any:
    return pool.connection()


def _lent_by_engine(engine: Any) -> Any:
    return engine.begin()


_DOORS: dict[tuple[str, str], Callable[[Any, Call[Any]], Any]] = {
    ("sqlalchemy", "Connection"): _by_sqlalchemy,
    ("sqlalchemy", "Session"): _by_session,
    ("sqlalchemy", "scoped_session"): _by_session,
    ("sqlalchemy", "AsyncConnection"): _by_async_sqlalchemy,
    ("sqlalchemy", "AsyncSession"): _by_async_session,
    ("sqlalchemy", "async_scoped_session"): _by_async_session,
    ("asyncpg", "Connection"): _by_asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _by_asyncpg,
    ("django", "ConnectionProxy"): _by_django,
    ("django", "BaseDatabaseWrapper"): _by_django,
    ("psycopg2", "connection"): _by_psycopg2,
    ("psycopg_pool", "ConnectionPool"): _by_lender,
    ("psycopg_pool", "AsyncConnectionPool"): _by_async_lender,
    ("sqlalchemy", "Engine"): _by_lender,
    ("sqlalchemy", "AsyncEngine"): _by_async_lender,
    ("asyncpg", "Pool"): _by_async_lender,
}

_LENDERS: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("psycopg_pool", "ConnectionPool"): _lent_by_pool,
    ("psycopg_pool", "AsyncConnectionPool"): _lent_by_pool,
    ("sqlalchemy", "Engine"): _lent_by_engine,
    ("sqlalchemy", "AsyncEngine"): _lent_by_engine,
    ("asyncpg", "Pool"): _lent_by_asyncpg,
}

# By type, as they are met.
_known: dict[type, Callable[[Any, Call[Any]], Any] | None] = {}
_known_lenders: dict[type, Callable[[Any], Any] | None] = {}


def _of_dialect(dialect: Any, call: Call[Any]) -> tuple[str, tuple[object, ...]]:
    if dialect.name != "postgresql":
        raise _not_postgres(dialect.name)
    # That of asyncpg; psycopg and psycopg2 have "pyformat".
    params = _sent(call)
    return (_numbered(call, params) if dialect.paramstyle == "numeric_dollar" else call.text.decode()), params


def _not_postgres(found: str) -> InvalidArgument:
    return InvalidArgument(f"this is a connection to {found}", hint="enqueue through one to the queue's PostgreSQL")


def _sent(call: Call[Any]) -> tuple[Any, ...]:
    return tuple(_as_text(value) for value in call.params)


def _as_text(value: Any) -> Any:
    """Write a number or a time as text: an application may have its own codec or adapter for its type."""
    if isinstance(value, list):
        return [_as_text(each) for each in value]
    if isinstance(value, timedelta):
        return interval_text(value)
    return str(value) if isinstance(value, Decimal | date | UUID) else value


def _numbered(call: Call[Any], params: tuple[Any, ...]) -> str:
    """Write `$n` for `%s`, each first cast to the type as which its Python value is sent.

    asyncpg asks the server for the type of each parameter and takes only that type, or applies the user's codec for it:
    a text for an interval would be refused, a text for jsonb would be encoded again.
    """
    first, *rest = call.text.decode().split("%s")
    types = (_sent_as(value) for value in params)
    numbered = zip(types, rest, strict=True)
    return first + "".join(f"${number}::{kind}{part}" for number, (kind, part) in enumerate(numbered, 1))


def _sent_as(value: object) -> str:
    if isinstance(value, list):
        return f"{_sent_as(value[0]) if value else 'text'}[]"
    for kind, name in _SENT_AS:
        if isinstance(value, kind):
            return name
    raise InvalidArgument(
        f"{type(value).__qualname__} cannot be the value of an option",
        hint="give text, a number, a time or an interval",
    )


# In this order: a bool is an int.
_SENT_AS: Sequence[tuple[type, str]] = (
    (type(None), "text"),
    (str, "text"),
    (bool, "boolean"),
    (int, "bigint"),
    (float, "float8"),
)


def _translated(error: Exception) -> PgQueueError | None:
    """Return our error for a driver's error, or None: it is the caller's."""
    for origin in _origins(error):
        found = _diagnosis(origin)
        if found is not None:
            return meaning(found)
    if isinstance(error, UnicodeEncodeError):
        return unwritable(error)
    if any(kind.__name__ == "DataError" for kind in type(error).__mro__) or isinstance(error, ValueError):
        # The driver cannot send it: a number out of range, a text with a NUL. SQLAlchemy adds the statement and all
        # parameters, and the arguments of a job are no part of a message.
        reason = getattr(error, "orig", None) or error
        return InvalidArgument(str(reason), hint="give a value that the option can have")
    return None


def _origins(error: BaseException) -> Iterator[BaseException]:
    # SQLAlchemy has the driver's error in `orig`, Django in `__cause__`, SQLAlchemy's asyncpg in one after the other.
    found: BaseException | None = error
    for _ in range(5):
        if found is None:
            return
        yield found
        original = getattr(found, "orig", None)
        found = original if isinstance(original, BaseException) else found.__cause__


def _diagnosis(error: Any) -> Diagnosis | None:
    sqlstate = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    diag = getattr(error, "diag", None)
    if sqlstate is None:
        # That of pg8000 has the fields as the server sends them, each by its letter.
        sent = error.args[0] if isinstance(error, Exception) and error.args else None
        if not isinstance(sent, dict) or "C" not in sent:
            return None
        return Diagnosis(sent["C"], sent.get("M", ""), sent.get("D"), sent.get("H"), sent.get("n"))
    if diag is not None:
        return Diagnosis(
            sqlstate, diag.message_primary or "", diag.message_detail, diag.message_hint, diag.constraint_name
        )
    if not hasattr(error, "constraint_name"):
        # SQLAlchemy's own around asyncpg's, which comes next.
        return None
    message = str(error.args[0]) if error.args else ""
    return Diagnosis(sqlstate, message, error.detail, error.hint, error.constraint_name)
