"""Access to a test's own connection: run a statement, run a script, open a savepoint.

For every connection each method is a coroutine. On a connection that is not async it never suspends, so a caller
without an event loop can step through it: see `stepped`.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, TypeVar, cast

import psycopg

from pgqueue.db import drivers
from pgqueue.db.call import Call

T = TypeVar("T")


class Access:
    """Access to one connection. `connection` is the caller's object."""

    is_async = False

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def run(self, call: Call[T]) -> T:
        """Run one statement in the connection's current transaction."""
        return cast(T, drivers.run(self.connection, call))

    async def script(self, text: str) -> None:
        """Run several statements without parameters."""
        raise NotImplementedError

    def block(self) -> Any:
        """Return a context manager: a savepoint, or a transaction where none is open. Async on an async connection."""
        raise NotImplementedError

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Keep the changes of the block, or undo all of them on an exception."""
        with self.block():
            yield


class _PsycopgAccess(Access):
    async def script(self, text: str) -> None:
        self.connection.execute(text.encode())

    def block(self) -> AbstractContextManager[Any]:
        return cast(AbstractContextManager[Any], self.connection.transaction())


class _SQLAlchemyAccess(Access):
    async def script(self, text: str) -> None:
        is_session = hasattr(self.connection, "connection") and callable(self.connection.connection)
        connection = self.connection.connection() if is_session else self.connection
        with connection.connection.cursor() as cursor:
            cursor.execute(text)

    def block(self) -> AbstractContextManager[Any]:
        begin = _begins(self.connection)
        return cast(AbstractContextManager[Any], begin or self.connection.begin_nested())


class _DjangoAccess(Access):
    async def script(self, text: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(text)

    def block(self) -> AbstractContextManager[Any]:
        # Imported here: a program with such a connection has Django.
        from django.db import transaction  # noqa: PLC0415

        block: Any = transaction.atomic(using=self.connection.alias)
        # Django's own mark of the blocks of a TestCase: atomic(durable=True) in a handler does not count them.
        block._from_testcase = True
        return cast(AbstractContextManager[Any], block)


class _Psycopg2Access(Access):
    async def script(self, text: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(text)

    def block(self) -> AbstractContextManager[Any]:
        return cast(AbstractContextManager[Any], _begins(self.connection) or _savepoint(self.connection))


class _AwaitedAccess(Access):
    is_async = True

    async def run(self, call: Call[T]) -> T:
        return await cast(Awaitable[T], drivers.run(self.connection, call))

    async def script(self, text: str) -> None:
        await self.connection.execute(text)

    def block(self) -> Any:
        return self.connection.transaction()

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        async with self.block():
            yield


class _AwaitedSQLAlchemyAccess(_AwaitedAccess):
    async def script(self, text: str) -> None:
        connection = self.connection
        if hasattr(connection, "get_bind"):
            connection = await connection.connection()
        raw = await connection.get_raw_connection()
        await raw.driver_connection.execute(text)

    def block(self) -> Any:
        return _begins(self.connection) or self.connection.begin_nested()


_KINDS: dict[tuple[str, str], Callable[[Any], Access]] = {
    ("sqlalchemy", "Connection"): _SQLAlchemyAccess,
    ("sqlalchemy", "Session"): _SQLAlchemyAccess,
    ("sqlalchemy", "scoped_session"): _SQLAlchemyAccess,
    ("sqlalchemy", "AsyncConnection"): _AwaitedSQLAlchemyAccess,
    ("sqlalchemy", "AsyncSession"): _AwaitedSQLAlchemyAccess,
    ("sqlalchemy", "async_scoped_session"): _AwaitedSQLAlchemyAccess,
    ("asyncpg", "Connection"): _AwaitedAccess,
    ("asyncpg", "PoolConnectionProxy"): _AwaitedAccess,
    ("django", "BaseDatabaseWrapper"): _DjangoAccess,
    ("psycopg2", "connection"): _Psycopg2Access,
}


def access_to(connection: Any) -> Access:
    """Return the access to a connection. Raises TypeError for another object, such as a pool."""
    if isinstance(connection, psycopg.Connection):
        return _PsycopgAccess(connection)
    if isinstance(connection, psycopg.AsyncConnection):
        return _AwaitedAccess(connection)
    if type(connection).__name__ == "ConnectionProxy" and "django.db" in sys.modules:
        # `django.db.connection` is a proxy for that of the thread.
        connection = sys.modules["django.db"].connections[connection._alias]
    for kind in type(connection).__mro__:
        make = _KINDS.get((kind.__module__.partition(".")[0], kind.__name__))
        if make is not None:
            return make(connection)
    raise TypeError(
        f"this needs one connection, in whose transaction the test runs, not {type(connection).__qualname__};"
        " give one of psycopg, psycopg2 or asyncpg, a Connection or Session of SQLAlchemy, or django.db.connection"
    )


def stepped(steps: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, without an event loop."""
    try:
        steps.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    steps.close()
    raise RuntimeError("this cannot be awaited without an event loop")


def _begins(connection: Any) -> Any:
    """Return what begins a transaction on a connection that commits by itself, where a savepoint cannot be; or None."""
    commits = not drivers.is_session(connection) and drivers.commits_by_itself(connection)
    return drivers.transaction_on(connection) if commits else None


@contextmanager
def _savepoint(connection: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute("savepoint pgqueue_testing")
        try:
            yield
        except BaseException:
            cursor.execute("rollback to savepoint pgqueue_testing; release savepoint pgqueue_testing")
            raise
        cursor.execute("release savepoint pgqueue_testing")
