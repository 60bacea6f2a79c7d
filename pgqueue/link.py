"""A worker's connection that mends itself."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.json import set_json_loads

from pgqueue import queries
from pgqueue.config import describe_dsn
from pgqueue.errors import ConfigError, InvalidArgument, LockedTooLong, NotBuiltYet, PgQueueError
from pgqueue.queries import Call, T

log = logging.getLogger("pgqueue.worker")

# Pauses between tries to reach the server grow from here to there, in seconds, each with a random part.
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 30.0

# No statement of a worker takes long; one that does hangs on a connection that is dead without saying so.
CALL_TIMEOUT = 30.0


class Outage:
    """What all links of a worker know about the server being away, so that one line is logged and not four.

    `refused_at` is the monotonic time at which the server's own machine last refused a connection: proof that no
    server ran there, and so nobody could take a lease.
    """

    def __init__(self, dsn: str) -> None:
        self.refused_at: float | None = None
        self._place = describe_dsn(dsn)
        self._since: float | None = None
        self._links_down = 0
        self._answers = asyncio.Event()

    def begins(self, error: BaseException) -> None:
        """A link went down."""
        self._links_down += 1
        if self._since is None:
            self._since = time.monotonic()
            log.warning("cannot use %s (%s); trying again until it answers", self._place, one_line(error))

    def ends(self) -> None:
        """A link is up again, so the others need not wait out their pauses."""
        self._answers.set()
        self._answers.clear()
        self._links_down -= 1
        if self._links_down == 0 and self._since is not None:
            log.info("%s answers again after %.1f s", self._place, time.monotonic() - self._since)
            self._since = None

    async def pause(self, seconds: float) -> None:
        """Wait for up to so many seconds, with a random part, or until another link is up again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds * random.uniform(0.5, 1.0)):
                await self._answers.wait()


class Link:
    """One connection, made when it is needed and made again when it breaks.

    `perform` returns a result or waits: an unreachable server, a killed backend, a failover to a read-only server,
    a full disk, a schema under migration make it try again with growing pauses until it is cancelled. What can
    never succeed by waiting (a refused value, a locked row) is raised.

    A call may be carried out twice when its reply was lost, so every call must be safe to repeat: the fence makes
    complete, fail and release so, and `on_connect` gives back what a lost `reserve` claimed.
    """

    def __init__(
        self,
        dsn: str,
        outage: Outage,
        *,
        prepare: bool = True,
        on_connect: Callable[[Link], Awaitable[None]] | None = None,
        longest_pause: float = LONGEST_PAUSE,
    ) -> None:
        self.sent_at = 0.0
        self._dsn = dsn
        self._outage = outage
        self._prepare = prepare
        self._on_connect = on_connect
        self._longest_pause = longest_pause
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._turn = asyncio.Lock()

    async def perform(self, call: Call[T], *, patient: bool = True) -> T:
        """Run `call` in a transaction of its own. `sent_at` is then the time just before it was last sent.

        Not `patient`, it waits for the server only: what the server answers is raised (SchemaError, a psycopg.Error
        with its SQLSTATE), and so is a DSN that the server can never accept (ConfigError).
        """
        async with self._turn:
            pause = FIRST_PAUSE
            down = False
            while True:
                try:
                    if self._connection is None:
                        self._connection = await connect(self._dsn, prepare=self._prepare)
                        if self._on_connect is not None:
                            await self._on_connect(self)
                    result = await self.perform_now(call)
                except (InvalidArgument, LockedTooLong, NotBuiltYet):
                    if down:
                        self._outage.ends()
                    raise
                except (psycopg.Error, PgQueueError, OSError, TimeoutError) as error:
                    if not patient:
                        raise_if_lasting(error)
                    if not down:
                        down = True
                        self._outage.begins(error)
                    await self.close()
                    if await refused(self._dsn):
                        self._outage.refused_at = time.monotonic()
                    await self._outage.pause(pause)
                    pause = min(pause * 2, self._longest_pause)
                else:
                    if down:
                        self._outage.ends()
                    return result

    async def perform_now(self, call: Call[T]) -> T:
        """Run `call` once, on the connection as it is. For `on_connect`."""
        assert self._connection is not None
        self.sent_at = time.monotonic()
        async with asyncio.timeout(CALL_TIMEOUT):
            return await queries.perform_async(self._connection, call)

    async def close(self) -> None:
        """Close the connection; the next call makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error, OSError):
                await connection.close()


async def connect(dsn: str, *, prepare: bool = True) -> psycopg.AsyncConnection[Any]:
    """Connect for a worker: autocommit, READ COMMITTED whatever the role's default is, JSON by orjson."""
    async with asyncio.timeout(CALL_TIMEOUT):
        connection: psycopg.AsyncConnection[Any] = await psycopg.AsyncConnection.connect(
            dsn, autocommit=True, prepare_threshold=2 if prepare else None
        )
    try:
        set_json_loads(queries.from_json, connection)
        cursor = await connection.execute("show default_transaction_isolation")
        row = await cursor.fetchone()
        if row is not None and row[0] != "read committed":
            await connection.execute("set default_transaction_isolation to 'read committed'")
    except BaseException:
        await connection.close()
        raise
    return connection


async def refused(dsn: str) -> bool:
    """Tell whether every host of the DSN refuses connections right now: then no server runs there."""
    # What the DSN leaves open, libpq takes from PGHOST and PGPORT.
    parts = {
        option.keyword.decode(): option.val.decode()
        for option in psycopg.pq.Conninfo.get_defaults()
        if option.val is not None
    } | conninfo_to_dict(dsn)
    hosts = str(parts.get("hostaddr") or parts.get("host") or "").split(",")
    ports = str(parts.get("port") or "5432").split(",")
    for index, host in enumerate(hosts):
        port = ports[index] if index < len(ports) else ports[0]
        if not host or host.startswith("@"):
            return False
        try:
            async with asyncio.timeout(1.0):
                if host.startswith("/"):
                    _, writer = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
                else:
                    _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            return False
        except (ConnectionRefusedError, FileNotFoundError):
            continue
        except (OSError, TimeoutError, ValueError):
            return False
    return True


def raise_if_lasting(error: BaseException) -> None:
    """Raise what waiting cannot mend: an answer of the server, or a database, role or password that it refuses."""
    if isinstance(error, PgQueueError) or (isinstance(error, psycopg.Error) and error.sqlstate is not None):
        if getattr(error, "sqlstate", None) in _PASSING:
            return
        raise error
    # libpq does not tell the SQLSTATE of a refused connection, so this reads its text, in English. Where the
    # server speaks another language the worker keeps trying, and its log says why.
    if re.search(r"FATAL: .*(does not exist|authentication failed|no pg_hba\.conf entry)", str(error)):
        raise ConfigError(one_line(error), hint="correct the DSN, or create what it names") from error


# Shutting down, starting up, too many connections, out of memory or disk, cancelled by a timeout or a person.
_PASSING = frozenset({"57P01", "57P02", "57P03", "53000", "53100", "53200", "53300", "57014", "40001", "40P01"})


def one_line(error: BaseException) -> str:
    """Return an error as one line for a log."""
    text = " ".join(str(error).split())
    return text or type(error).__name__
