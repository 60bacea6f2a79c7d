"""A worker's connection that mends itself."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import random
import re
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import lru_cache
from typing import Any, Self, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.json import set_json_loads

from pgqueue import queries
from pgqueue.config import describe_dsn
from pgqueue.errors import ConfigError, InvalidArgument, LockedTooLong, NotBuiltYet, PgQueueError
from pgqueue.queries import Call

log = logging.getLogger("pgqueue.worker")

T = TypeVar("T")

# Pauses between tries to reach the server grow from here to there, in seconds, each with a random part.
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 30.0

# No statement of a worker takes long; one that does hangs on a connection that is dead without saying so.
CALL_TIMEOUT = 30.0

# The server is asked to cancel what takes too long, and may be as frozen as the call itself.
_CANCEL_WITHIN = 0.5

# While an outage lasts, one line in so many seconds.
_REMIND = 60.0

# How a session of a worker's own begins, whatever its role or database says: the server ends what its client gave up
# long ago, a listener may be idle for ever, and `reserve` is refused above READ COMMITTED. What the DSN says
# (options=-c statement_timeout=5s) comes after these and wins. Not SET later, for that would reach other clients
# where a pooler stands between; as options it makes the pooler show itself, or is ignored.
_OPTIONS = " ".join(
    (
        r"-c default_transaction_isolation=read\ committed",
        f"-c statement_timeout={CALL_TIMEOUT:g}s",
        f"-c lock_timeout={CALL_TIMEOUT:g}s",
        f"-c idle_in_transaction_session_timeout={CALL_TIMEOUT:g}s",
        "-c idle_session_timeout=0",
    )
)


class Outage:
    """What all links of a worker know about the server being away, so that one line is logged and not four.

    `began_at` is the monotonic time at which the last one began: connections made before that are not trusted any
    more, for they may be dead without having noticed. `refused_at` is the time at which the server's own machine
    last refused a connection: proof that no server ran there, and so nobody could take a lease. A pooler's refusal
    proves nothing, so with `pooled` it stays None.
    """

    def __init__(self, dsn: str, *, pooled: bool = False) -> None:
        self.began_at = 0.0
        self.refused_at: float | None = None
        self.pooled = pooled
        self._dsn = dsn
        self.error = ""
        self._place = describe_dsn(dsn)
        self._since: float | None = None
        self._told_at = 0.0
        self.links_down = 0
        self.answers = asyncio.Event()

    @property
    def lasts(self) -> float | None:
        """For how many seconds the server has been away; None: it is there. `error` says why it last was."""
        return None if self._since is None else time.monotonic() - self._since

    def begins(self, error: BaseException) -> None:
        """A link went down, or is still down."""
        self.error = one_line(error)
        now = time.monotonic()
        if self._since is None:
            self.began_at = self._since = self._told_at = now
            log.warning("cannot use %s (%s); trying again until it answers", self._place, one_line(error))
        elif now - self._told_at >= _REMIND:
            self._told_at = now
            log.warning("still cannot use %s after %.0f s (%s)", self._place, now - self._since, one_line(error))

    def ends(self) -> None:
        """No link is down any more."""
        if self._since is not None:
            log.info("%s answers again after %.1f s", self._place, time.monotonic() - self._since)
            self._since = None

    def is_pooled(self) -> None:
        """A link found that a pooler stands between."""
        if not self.pooled:
            self.pooled = True
            log.warning("%s is behind a pooler: going on as with --no-prepare", self._place)

    async def pause(self, seconds: float) -> None:
        """Wait for up to so many seconds, with a random part, or until another link is up again."""
        if not self.pooled and await refused(self._dsn):
            self.refused_at = time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds * random.uniform(0.5, 1.0)):
                await self.answers.wait()


class Trouble:
    """One link's part in an outage: it has `met` an error, any number of times, until it is `over`.

    As a context manager it is over at the end, unless the link was cancelled: then nobody knows.
    """

    def __init__(self, outage: Outage) -> None:
        self._outage = outage
        self._down = False

    def met(self, error: BaseException) -> None:
        """The link could not be used."""
        if not self._down:
            self._down = True
            self._outage.links_down += 1
        self._outage.begins(error)

    def over(self) -> None:
        """The link is up again, so the others need not wait out their pauses."""
        if self._down:
            self._leave()
            self._outage.answers.set()
            self._outage.answers.clear()
            if self._outage.links_down == 0:
                self._outage.ends()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            self.over()
        elif self._down:
            self._leave()

    def _leave(self) -> None:
        self._down = False
        self._outage.links_down -= 1


class Link:
    """One connection, made when it is needed and made again when it breaks.

    `perform` returns a result or waits: an unreachable server, a killed backend, a failover to a read-only server,
    a full disk, a schema under migration make it try again with growing pauses until it is cancelled. What can
    never succeed by waiting (a refused value, a locked row) is raised. A call that is not answered within `within`
    seconds counts as a broken connection: so a peer that vanished without a word is noticed, and left.

    Without `prepare` nothing is left in the session, neither prepared statements nor settings, for behind a pooler
    each transaction may run in another one.

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
        within: float = CALL_TIMEOUT,
    ) -> None:
        self.sent_at = 0.0
        self._dsn = dsn
        self._outage = outage
        self._prepare = prepare
        self._on_connect = on_connect
        self._longest_pause = longest_pause
        self._within = min(within, CALL_TIMEOUT)
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._connected_at = 0.0
        self._begins = False
        self._turn = asyncio.Lock()

    async def perform(self, call: Call[T], *, patient: bool = True) -> T:
        """Run `call` in a transaction of its own. `sent_at` is then the time just before it was last sent.

        Not `patient`, it waits for the server only: what the server answers is raised (SchemaError, a psycopg.Error
        with its SQLSTATE), and so is a DSN that the server can never accept (ConfigError).
        """
        pause = FIRST_PAUSE
        with Trouble(self._outage) as trouble:
            while True:
                # Each try is a turn of its own: a call that hangs again and again, behind a lock or because it is too
                # much for this server, must not keep the others waiting, an extension of leases least of all.
                async with self._turn:
                    try:
                        if self._connected_at < self._outage.began_at:
                            await self.close()
                        if self._connection is None:
                            await self._connect()
                        return await self.perform_now(call)
                    except (InvalidArgument, LockedTooLong):
                        raise
                    except NotBuiltYet:
                        # It may be a plan of this session that a migration has outdated.
                        await self.close()
                        raise
                    except (psycopg.Error, PgQueueError, OSError, TimeoutError) as error:
                        await self.close()
                        if self._prepare and shows_pooler(error):
                            self._prepare = False
                            self._outage.is_pooled()
                            continue
                        if not patient:
                            raise_if_lasting(error)
                        trouble.met(error)
                    except BaseException:
                        # Cancelled: what the connection is in the middle of, nobody knows.
                        await self.close()
                        raise
                await self._outage.pause(pause)
                pause = min(pause * 2, self._longest_pause)

    async def perform_now(self, call: Call[T]) -> T:
        """Run `call` once, on the connection as it is. For `on_connect`."""
        assert self._connection is not None
        self.sent_at = time.monotonic()
        return await answered(self._connection, self._perform(self._connection, call), self._within)

    async def close(self) -> None:
        """Close the connection; the next call makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error, OSError):
                await connection.close()

    async def _connect(self) -> None:
        self._connected_at = time.monotonic()
        self._connection = await connect(self._dsn, prepare=self._prepare)
        # Where that is not the session's default, each call begins a transaction of the right level.
        level = await answered(self._connection, _isolation(self._connection), self._within)
        self._begins = level != "read committed"
        await self._connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        if self._on_connect is not None:
            await self._on_connect(self)

    async def _perform(self, connection: psycopg.AsyncConnection[Any], call: Call[T]) -> T:
        if not self._begins:
            return await queries.perform_async(connection, call)
        async with connection.transaction():
            return await queries.perform_async(connection, call)


async def connect(dsn: str, *, prepare: bool = True) -> psycopg.AsyncConnection[Any]:
    """Connect for a worker: autocommit, JSON by orjson; with `prepare` also READ COMMITTED and timeouts."""
    options = str(conninfo_to_dict(dsn).get("options") or os.environ.get("PGOPTIONS", ""))
    if prepare:
        options = f"{_OPTIONS} {options}"
    async with asyncio.timeout(CALL_TIMEOUT):
        connection: psycopg.AsyncConnection[Any] = await psycopg.AsyncConnection.connect(
            dsn, autocommit=True, prepare_threshold=2 if prepare else None, options=options or None
        )
    set_json_loads(queries.from_json, connection)
    return connection


async def answered(connection: psycopg.AsyncConnection[Any], question: Coroutine[Any, Any, T], within: float) -> T:
    """Await what is asked of a connection. TimeoutError when it takes longer; then the connection is to be closed.

    psycopg, when it is cancelled, asks the server to cancel and waits for that up to 10 s, which is more than a
    lease or a shutdown can spare where the network hangs. Here it gets one, and then its socket is shut.
    """
    asking = asyncio.create_task(question)
    # Not of interest any more once we have left, but asyncio would complain.
    asking.add_done_callback(lambda task: task.cancelled() or task.exception())
    try:
        await asyncio.wait({asking}, timeout=within)
        if asking.done():
            return asking.result()
        raise TimeoutError(f"no answer within {within:g} s")
    finally:
        if not asking.done():
            try:
                with suppress(psycopg.Error, OSError, TimeoutError):
                    async with asyncio.timeout(_CANCEL_WITHIN):
                        await connection.cancel_safe(timeout=_CANCEL_WITHIN)
                    await asyncio.wait({asking}, timeout=_CANCEL_WITHIN)
            finally:
                _cut(connection)
                await asyncio.wait({asking}, timeout=_CANCEL_WITHIN)


def _cut(connection: psycopg.AsyncConnection[Any]) -> None:
    # Not closed, for whoever waits for it would wait for ever.
    with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.pgconn.socket)) as shared:
        shared.shutdown(socket.SHUT_RDWR)


async def _isolation(connection: psycopg.AsyncConnection[Any]) -> str:
    cursor = await connection.execute("show default_transaction_isolation")
    row = await cursor.fetchone()
    return str(row[0]) if row is not None else ""


async def refused(dsn: str) -> bool:
    """Tell whether every host of the DSN refuses connections right now: then no server runs there."""
    given = conninfo_to_dict(dsn)
    if given.get("service"):
        # Where that is, libpq does not tell.
        return False
    # What the DSN leaves open, libpq takes from PGHOST and PGPORT, and from what it was built with.
    parts = {
        option.keyword.decode(): option.val.decode()
        for option in psycopg.pq.Conninfo.get_defaults()
        if option.val is not None
    } | given
    hosts = str(parts.get("hostaddr") or parts.get("host") or "").split(",")
    ports = str(parts.get("port") or "5432").split(",")
    for index, host in enumerate(hosts):
        port = ports[index] if index < len(ports) else ports[0]
        try:
            async with asyncio.timeout(1.0):
                if not await _host_refuses(host or _default_host(), int(port or 5432)):
                    return False
        except (OSError, TimeoutError, ValueError):
            return False
    return True


async def _host_refuses(host: str, port: int) -> bool:
    if host.startswith("/"):
        return await _refuses(asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}"))
    if host.startswith("@"):
        return await _refuses(asyncio.open_unix_connection(f"\0{host[1:]}/.s.PGSQL.{port}"))
    # Each address by itself: of several that refuse, asyncio makes one OSError that says nothing.
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for address in {str(each[4][0]) for each in found}:
        try:
            if not await _refuses(asyncio.open_connection(address, port)):
                return False
        except OSError as error:
            # A machine without IPv6 whose localhost has it: nobody can be reached there.
            if error.errno != errno.EADDRNOTAVAIL or not ipaddress.ip_address(address).is_loopback:
                raise
    return True


async def _refuses(opening: Coroutine[Any, Any, tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> bool:
    try:
        _, writer = await opening
    except (ConnectionRefusedError, FileNotFoundError):
        return True
    writer.close()
    return False


@lru_cache(maxsize=1)
def _default_host() -> str:
    """The directory, compiled into libpq, of the socket that it uses where nothing names a host."""
    # Connecting to a socket that is not there ends at once, and the connection then knows where it looked.
    return psycopg.pq.PGconn.connect_start(b"host='' hostaddr='' port=1").host.decode()


def raise_if_lasting(error: BaseException) -> None:
    """Raise what waiting cannot mend: an answer of the server, or a database, role or password that it refuses."""
    if isinstance(error, PgQueueError) or (isinstance(error, psycopg.Error) and error.sqlstate is not None):
        if _PASSING.match(getattr(error, "sqlstate", None) or ""):
            return
        raise error
    # libpq does not tell the SQLSTATE of a refused connection, so this reads its text, in English. Where the
    # server speaks another language the worker keeps trying, and its log says why.
    if re.search(r"FATAL: .*(does not exist|authentication failed|no pg_hba\.conf entry)", str(error)):
        raise ConfigError(one_line(error), hint="correct the DSN, or create what it names") from error


# Trouble with the connection or a pooler, too many connections, out of memory or disk, a deadlock, shutting down,
# starting up, cancelled by a timeout or a person, idle for too long, a server that only reads.
_PASSING = re.compile(r"08|53|40|57P0[1235]|57014|25P0[34]|25006")


def shows_pooler(error: BaseException) -> bool:
    """Tell whether an error is what a pooler in transaction mode makes of prepared statements, or of options."""
    if getattr(error, "sqlstate", None) in ("26000", "42P05"):
        return True
    # Refused while connecting, so again there is only the text; poolers do not translate theirs.
    return isinstance(error, psycopg.OperationalError) and "unsupported startup parameter" in str(error)


def one_line(error: BaseException) -> str:
    """Return an error as one line for a log."""
    text = " ".join(str(error).split())
    return text or type(error).__name__
