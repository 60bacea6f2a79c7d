"""A worker's connection that mends itself."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import random
import re
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

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
_CANCEL_WITHIN = 1.0

# While an outage lasts, one line in so many seconds.
_REMIND = 60.0

# What a session of a worker's own is set to, whatever its role or database says. The server ends what its client
# gave up long ago; a listener may be idle for ever; `reserve` is refused above READ COMMITTED. What the DSN says
# (options=-c statement_timeout=5s) stays, save for the isolation. Nothing here is needed behind a pooler.
_SETTINGS = {
    "default_transaction_isolation": "read committed",
    "statement_timeout": f"{CALL_TIMEOUT:g}s",
    "lock_timeout": f"{CALL_TIMEOUT:g}s",
    "idle_in_transaction_session_timeout": f"{CALL_TIMEOUT:g}s",
    "idle_session_timeout": "0",
}
_SETTLE = (
    b"select pg_catalog.set_config(s.name, w.value, false)"
    b" from unnest(%s::text[], %s::text[]) as w(name, value) join pg_catalog.pg_settings s on s.name = w.name"
    b" where s.source <> 'client' or s.name = 'default_transaction_isolation'"
)


class Outage:
    """What all links of a worker know about the server being away, so that one line is logged and not four.

    `refused_at` is the monotonic time at which the server's own machine last refused a connection: proof that no
    server ran there, and so nobody could take a lease. A pooler's refusal proves nothing, so with `pooled` it
    stays None.
    """

    def __init__(self, dsn: str, *, pooled: bool = False) -> None:
        self.refused_at: float | None = None
        self._dsn = dsn
        self.error = ""
        self._pooled = pooled
        self._place = describe_dsn(dsn)
        self._since: float | None = None
        self._told_at = 0.0
        self._links_down = 0
        self._answers = asyncio.Event()

    @property
    def lasts(self) -> float | None:
        """For how many seconds the server has been away; None: it is there. `error` says why it last was."""
        return None if self._since is None else time.monotonic() - self._since

    def begins(self, error: BaseException) -> None:
        """A link went down."""
        self.error = one_line(error)
        self._links_down += 1
        if self._since is None:
            self._since = self._told_at = time.monotonic()
            log.warning("cannot use %s (%s); trying again until it answers", self._place, one_line(error))

    def goes_on(self, error: BaseException) -> None:
        """A link that is down has failed once more."""
        now = time.monotonic()
        if self._since is not None and now - self._told_at >= _REMIND:
            self._told_at = now
            log.warning("still cannot use %s after %.0f s (%s)", self._place, now - self._since, one_line(error))

    def ends(self) -> None:
        """A link is up again, so the others need not wait out their pauses."""
        self._answers.set()
        self._answers.clear()
        self.leaves()
        if self._links_down == 0 and self._since is not None:
            log.info("%s answers again after %.1f s", self._place, time.monotonic() - self._since)
            self._since = None

    def leaves(self) -> None:
        """A link that was down is not needed any more."""
        self._links_down -= 1

    async def pause(self, seconds: float) -> None:
        """Wait for up to so many seconds, with a random part, or until another link is up again."""
        if not self._pooled and await refused(self._dsn):
            self.refused_at = time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds * random.uniform(0.5, 1.0)):
                await self._answers.wait()


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
        self._begins = False
        self._turn = asyncio.Lock()

    async def perform(self, call: Call[T], *, patient: bool = True, within: float | None = None) -> T:
        """Run `call` in a transaction of its own. `sent_at` is then the time just before it was last sent.

        Not `patient`, it waits for the server only: what the server answers is raised (SchemaError, a psycopg.Error
        with its SQLSTATE), and so is a DSN that the server can never accept (ConfigError). `within` says how long
        this one call may take.
        """
        async with self._turn:
            pause = FIRST_PAUSE
            down = False
            while True:
                try:
                    if self._connection is None:
                        await self._connect()
                    result = await self.perform_now(call, within=within)
                except (InvalidArgument, LockedTooLong, NotBuiltYet) as refusal:
                    if isinstance(refusal, NotBuiltYet):
                        # It may be a plan of this session that a migration has outdated.
                        await self.close()
                    if down:
                        self._outage.ends()
                    raise
                except (psycopg.Error, PgQueueError, OSError, TimeoutError) as error:
                    await self.close()
                    if getattr(error, "sqlstate", None) in _LOST_PREPARED and self._prepare:
                        log.warning(
                            "%s loses prepared statements, as a pooler in transaction mode does; going on without"
                            " them (--no-prepare)",
                            describe_dsn(self._dsn),
                        )
                        self._prepare = False
                        continue
                    try:
                        if not patient:
                            raise_if_lasting(error)
                    except BaseException:
                        if down:
                            self._outage.leaves()
                        raise
                    if not down:
                        down = True
                        self._outage.begins(error)
                    else:
                        self._outage.goes_on(error)
                    try:
                        await self._outage.pause(pause)
                    except BaseException:
                        self._outage.leaves()
                        raise
                    pause = min(pause * 2, self._longest_pause)
                except BaseException:
                    # Cancelled: what the connection is in the middle of, nobody knows.
                    await self.close()
                    if down:
                        self._outage.leaves()
                    raise
                else:
                    if down:
                        self._outage.ends()
                    return result

    async def perform_now(self, call: Call[T], *, within: float | None = None) -> T:
        """Run `call` once, on the connection as it is. For `on_connect`."""
        assert self._connection is not None
        self.sent_at = time.monotonic()
        return await answered(self._perform(self._connection, call), within or self._within)

    async def close(self) -> None:
        """Close the connection; the next call makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error, OSError):
                await connection.close()

    async def _connect(self) -> None:
        self._connection = await connect(self._dsn, prepare=self._prepare)
        self._begins = False
        if not self._prepare:
            # Not to be set in a session that is shared: then each call begins a transaction of the right level.
            level = await answered(_isolation(self._connection), self._within)
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
    """Connect for a worker: autocommit, JSON by orjson; with `prepare`, READ COMMITTED and with timeouts."""
    async with asyncio.timeout(CALL_TIMEOUT):
        connection: psycopg.AsyncConnection[Any] = await psycopg.AsyncConnection.connect(
            dsn, autocommit=True, prepare_threshold=2 if prepare else None
        )
    try:
        set_json_loads(queries.from_json, connection)
        if prepare:
            settings = [list(_SETTINGS), list(_SETTINGS.values())]
            await answered(connection.execute(_SETTLE, settings, prepare=False), CALL_TIMEOUT)
    except BaseException:
        await connection.close()
        raise
    return connection


async def answered(question: Coroutine[Any, Any, T], within: float) -> T:
    """Await what is asked of a connection. TimeoutError when it takes longer; then the connection is to be closed.

    psycopg, when it is cancelled, asks the server to cancel and waits for that up to 10 s, which is more than a
    lease or a shutdown can spare where the network hangs: it gets one second.
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
                asking.cancel()
                await asyncio.wait({asking}, timeout=_CANCEL_WITHIN)
            finally:
                asking.cancel()
                await asyncio.sleep(0)


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
    for *_, address in found:
        try:
            if not await _refuses(asyncio.open_connection(address[0], port)):
                return False
        except OSError as error:
            # A machine without IPv6 whose localhost has it: nobody can be reached there.
            if error.errno != errno.EADDRNOTAVAIL or not ipaddress.ip_address(address[0]).is_loopback:
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

# No such prepared statement, or another one of that name.
_LOST_PREPARED = ("26000", "42P05")


def one_line(error: BaseException) -> str:
    """Return an error as one line for a log."""
    text = " ".join(str(error).split())
    return text or type(error).__name__
