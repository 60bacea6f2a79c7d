"""The connections on which handlers open their own transactions: one pool for threads, one for the event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
from psycopg.rows import tuple_row

from pgqueue import _forks

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool, ConnectionPool

# How long a handler waits for a connection while the server is away, in seconds.
_WAIT = 30.0

# How long close() waits for a handler that still has a connection, in seconds.
_CLOSE_WITHIN = 1.0


class Pooler(Protocol):
    """Knows whether connections lead to a pooler."""

    @property
    def pooled(self) -> bool: ...


class Pools:
    """Pools of at most `most` connections each. A pool is made when it is first needed.

    A connection comes back without an open transaction, and with the settings of psycopg that it had at first. What a
    handler SET for the session stays; SET LOCAL ends with the transaction.

    pooler   asked each time whether there is a pooler in between, because a worker may find that out late; if there
             is, nothing is prepared
    """

    def __init__(self, dsn: str, most: int, pooler: Pooler) -> None:
        self._dsn = dsn
        self._most = max(most, 1)
        self._pooler = pooler
        self._lock = threading.Lock()
        self._sync: ConnectionPool[psycopg.Connection[Any]] | None = None
        self._async: AsyncConnectionPool[psycopg.AsyncConnection[Any]] | None = None

    def take(self, *, check: bool = False) -> psycopg.Connection[Any]:
        """Take a connection for a thread; `check`: first replace all that are broken.

        Raises psycopg_pool.PoolTimeout after 30 s without one.
        """
        with self._lock:
            if self._sync is None:
                # Most workers need none: the import costs 20 ms.
                from psycopg_pool import ConnectionPool  # noqa: PLC0415

                self._sync = ConnectionPool(
                    self._dsn, reset=self._reset, configure=_forks.keep_socket, open=True, **self._sizes()
                )
            pool = self._sync
        if check:
            pool.check()
        connection = pool.getconn()
        connection.prepare_threshold = self._threshold()
        return connection

    def give_back(self, connection: psycopg.Connection[Any]) -> None:
        """Give back what `take` returned. A broken connection is dropped."""
        assert self._sync is not None
        self._sync.putconn(connection)

    async def take_async(self, *, check: bool = False) -> psycopg.AsyncConnection[Any]:
        """Take a connection for the event loop; otherwise as `take`."""
        if self._async is None:
            from psycopg_pool import AsyncConnectionPool  # noqa: PLC0415

            self._async = AsyncConnectionPool(
                self._dsn, reset=self._reset_async, configure=_keep_socket, open=False, **self._sizes()
            )
        # Does nothing where it is open.
        await self._async.open()
        if check:
            await self._async.check()
        connection = await self._async.getconn()
        connection.prepare_threshold = self._threshold()
        return connection

    async def give_back_async(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Give back what `take_async` returned. A broken connection is dropped."""
        assert self._async is not None
        await self._async.putconn(connection)

    async def close(self) -> None:
        """Close all connections that are not in use; those in use are closed when they come back."""
        if self._async is not None:
            await self._async.close(timeout=_CLOSE_WITHIN)
        if self._sync is not None:
            # asyncio's own threads may all be taken by handlers.
            closing = asyncio.ensure_future(asyncio.to_thread(self._sync.close, timeout=_CLOSE_WITHIN))
            await asyncio.wait({closing}, timeout=2 * _CLOSE_WITHIN)

    def _threshold(self) -> int | None:
        return None if self._pooler.pooled else 5

    def _sizes(self) -> dict[str, Any]:
        return {"min_size": 0, "max_size": self._most, "timeout": _WAIT, "max_idle": 60.0, "name": "pgqueue handlers"}

    # Setting these asks the server nothing.

    def _reset(self, connection: psycopg.Connection[Any]) -> None:
        connection.autocommit = False
        connection.isolation_level = connection.read_only = connection.deferrable = None
        self._reset_either(connection)

    async def _reset_async(self, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.set_autocommit(False)
        await connection.set_isolation_level(None)
        await connection.set_read_only(None)
        await connection.set_deferrable(None)
        self._reset_either(connection)

    def _reset_either(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        connection.row_factory = tuple_row


async def _keep_socket(connection: psycopg.AsyncConnection[Any]) -> None:
    _forks.keep_socket(connection)
