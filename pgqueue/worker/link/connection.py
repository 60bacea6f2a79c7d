"""A worker's connection, which reconnects by itself."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.json import set_json_loads

from pgqueue import _forks
from pgqueue.db import sessions
from pgqueue.db.call import Call, perform_async
from pgqueue.db.json import from_json
from pgqueue.errors import (
    AccessDenied,
    ConfigError,
    DuplicateJob,
    InvalidArgument,
    LockTimeout,
    PgQueueError,
    SchemaError,
    UnsupportedOption,
)
from pgqueue.logs import one_line
from pgqueue.worker.link.outage import FIRST_PAUSE, LONGEST_PAUSE, Outage, Trouble

log = logging.getLogger("pgqueue.worker")

T = TypeVar("T")

# No statement of a worker takes this long; if one does, its connection is silently dead.
CALL_TIMEOUT = 30.0

# How a notice of the queue begins, among those of the server and of triggers of users.
_OURS = "pgqueue: "

# A request to the server to cancel a call that takes too long may hang like the call itself.
_CANCEL_WITHIN = 0.5

# The settings of a worker's own session, whatever its role or database sets: the server ends statements that their
# client gave up long ago, a listener may be idle forever, and `reserve` is refused above READ COMMITTED. Settings in
# the DSN (options=-c statement_timeout=5s) come later and win. Not by SET, which would reach other clients of a pooler;
# as options they make a pooler show itself, or are ignored.
_OPTIONS = " ".join(
    (
        r"-c default_transaction_isolation=read\ committed",
        f"-c statement_timeout={CALL_TIMEOUT:g}s",
        f"-c lock_timeout={CALL_TIMEOUT:g}s",
        f"-c idle_in_transaction_session_timeout={CALL_TIMEOUT:g}s",
        "-c idle_session_timeout=0",
    )
)


class Link:
    """One connection, opened when it is needed and reopened when it breaks.

    `perform` returns a result or waits: after an unreachable server, a killed backend, a failover to a read-only
    server, a full disk or a schema under migration it retries with growing pauses until it is cancelled. Errors that
    waiting cannot solve (a refused value, a locked row) are raised. A call that is not answered within `within` seconds
    counts as a broken connection, so a silently lost peer is detected.

    Behind a pooler nothing is left in the session, neither prepared statements nor settings, for behind a pooler
    each transaction may run in another one.

    With `ends_after` the server ends a call after that number of seconds, also behind a pooler.

    A call may be carried out twice when its reply was lost, so every call must be safe to repeat: the fence makes
    complete, fail and release so, and the worker gives back what a lost claim reserved: see `Exchange`.
    """

    def __init__(
        self,
        dsn: str,
        outage: Outage,
        *,
        on_connect: Callable[[Link], Awaitable[None]] | None = None,
        longest_pause: float = LONGEST_PAUSE,
        within: float = CALL_TIMEOUT,
        ends_after: float | None = None,
    ) -> None:
        # With ends_after, that of the last call: see sessions.limit_statement.
        self.session: tuple[int, int] | None = None
        self.sent_at = 0.0
        self.connects = 0
        self._dsn = dsn
        self._outage = outage
        # What the present connection was made with.
        self._prepares = False
        self._on_connect = on_connect
        self._longest_pause = longest_pause
        self._within = min(within, CALL_TIMEOUT)
        self._ends_after = ends_after
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._connected_at = 0.0
        self._begins = False
        # For each attempt: a call that hangs again and again, behind a lock or because it is too much for this server,
        # must not keep the others waiting, an extension of leases least of all.
        self._turn = asyncio.Lock()

    @property
    def is_free(self) -> bool:
        """Whether no call is under way."""
        return not self._turn.locked()

    async def perform(
        self,
        call: Call[T],
        *,
        patient: bool = True,
        within: float | None = None,
        gives_up: Callable[[BaseException], bool] | None = None,
    ) -> T:
        """Run `call` in a separate transaction. `sent_at` is then the time just before it was last sent.

        If it is not answered `within` seconds, instead of the usual ones, it is sent again on a new connection.
        Not `patient`, it waits for the server only: an error that the server reports is raised (SchemaError, a
        psycopg.Error with its SQLSTATE), and so is a DSN that the server can never accept (ConfigError).
        `gives_up` decides on an error that the call met on a connection that had just answered: it is raised.
        """
        pause = FIRST_PAUSE
        trouble: Trouble | None = None
        try:
            while True:
                answers = self._outage.answers
                async with self._turn:
                    is_sent, connects = False, self.connects
                    try:
                        await self._ensure_connected()
                        is_sent = True
                        answer = await self.perform_now(call, within)
                        self._note_answer(trouble)
                        return answer
                    except (InvalidArgument, LockTimeout):
                        raise
                    except UnsupportedOption:
                        # A migration may have outdated a plan of this session; another session makes its own.
                        await self.close()
                        if self.connects > connects:
                            raise
                        continue
                    except (psycopg.Error, PgQueueError, OSError, TimeoutError) as error:
                        await self.close()
                        if self._prepares and shows_pooler(error):
                            self._outage.note_pooler()
                            continue
                        if is_sent and gives_up is not None and gives_up(error):
                            raise
                        if not patient:
                            raise_if_lasting(error)
                        trouble = trouble or Trouble(self._outage)
                        trouble.met(error)
                        # The server may only be slow, so the next call gets more time.
                        within = None
                    except BaseException:
                        # Cancelled: the state of the connection is unknown.
                        await self.close()
                        raise
                await self._outage.pause(pause, answers)
                pause = min(pause * 2, self._longest_pause)
        except BaseException as error:
            if trouble is not None:
                trouble.__exit__(type(error))
            raise

    def _note_answer(self, trouble: Trouble | None) -> None:
        """The server is there, whatever trouble the call has met before."""
        if trouble is not None:
            trouble.over()
        elif self._outage.since is not None and not self._outage.links_down:
            # The call that met it was cancelled before it was over.
            self._outage.ends()

    async def perform_now(self, call: Call[T], within: float | None = None) -> T:
        """Run `call` once, on the connection as it is. For `on_connect`."""
        assert self._connection is not None
        self.sent_at = time.monotonic()
        within = self._within if within is None else min(within, CALL_TIMEOUT)
        return await answered(self._connection, self._perform(self._connection, call), within)

    async def close(self) -> None:
        """Close the connection; the next call makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error, OSError):
                await connection.close()

    async def _ensure_connected(self) -> None:
        if self._connected_at < self._outage.began_at or (self._prepares and self._outage.pooled):
            await self.close()
        if self._connection is None:
            await self._connect()

    async def _connect(self) -> None:
        self._connected_at = time.monotonic()
        self._prepares = not self._outage.pooled
        self._connection = await connect(self._dsn, prepare=self._prepares)
        # If that is not the session's default, each call begins a transaction of the right level.
        level = await answered(self._connection, _isolation(self._connection), self._within)
        self._begins = level != "read committed"
        await self._connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        self.connects += 1
        if self._on_connect is not None:
            await self._on_connect(self)

    async def _perform(self, connection: psycopg.AsyncConnection[Any], call: Call[T]) -> T:
        if not self._begins and self._ends_after is None:
            return await perform_async(connection, call)
        async with connection.transaction():
            if self._ends_after is not None:
                self.session = await perform_async(connection, sessions.limit_statement(self._ends_after))
            return await perform_async(connection, call)


async def connect(dsn: str, *, prepare: bool = True) -> psycopg.AsyncConnection[Any]:
    """Connect for a worker: autocommit, JSON by orjson; with `prepare` also READ COMMITTED and timeouts."""
    options = str(conninfo_to_dict(dsn).get("options") or os.environ.get("PGOPTIONS", ""))
    if prepare:
        options = f"{_OPTIONS} {options}"
    async with asyncio.timeout(CALL_TIMEOUT):
        connection: psycopg.AsyncConnection[Any] = await psycopg.AsyncConnection.connect(
            dsn, autocommit=True, prepare_threshold=2 if prepare else None, options=options or None
        )
    connection.add_notice_handler(_log_notice)
    set_json_loads(from_json, connection)
    _forks.keep_socket(connection)
    return connection


def _log_notice(notice: psycopg.errors.Diagnostic) -> None:
    """Log what the queue itself warns of: the session whose statement opened or closed a breaker hears it."""
    message = notice.message_primary or ""
    if message.startswith(_OURS):
        # A limit_key is text of clients, and a line break in it would begin a line of its own.
        log.warning("%s", " ".join(message.removeprefix(_OURS).split()))


async def answered(connection: psycopg.AsyncConnection[Any], question: Coroutine[Any, Any, T], within: float) -> T:
    """Await a call on a connection. TimeoutError when it takes longer; then the connection is to be closed.

    psycopg, when it is cancelled, asks the server to cancel and waits for that up to 10 s, which is more than a
    lease or a shutdown can spare where the network hangs. Here it gets one second, and then its socket is shut.
    """
    asking = asyncio.create_task(question)
    # Its outcome no longer matters, but asyncio would complain.
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
    # Not closed, for a task that waits for it would wait forever.
    with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.pgconn.socket)) as shared:
        shared.shutdown(socket.SHUT_RDWR)


async def _isolation(connection: psycopg.AsyncConnection[Any]) -> str:
    cursor = await connection.execute("show default_transaction_isolation")
    row = await cursor.fetchone()
    return str(row[0]) if row is not None else ""


def raise_if_lasting(error: BaseException) -> None:
    """Raise an error that waiting cannot solve: an error from the server, or a refused database, role or password."""
    if isinstance(error, PgQueueError) or (isinstance(error, psycopg.Error) and error.sqlstate is not None):
        if _PASSING.match(getattr(error, "sqlstate", None) or ""):
            return
        raise error
    # libpq does not give the SQLSTATE of a refused connection, so this reads its text, in English. Where the server
    # speaks another language the worker keeps trying, and its log shows why.
    if re.search(r"FATAL: .*(does not exist|authentication failed|no pg_hba\.conf entry)", str(error)):
        raise ConfigError(one_line(error), hint="correct the DSN, or create what it names") from error


# Trouble with the connection or a pooler, too many connections, out of memory or disk, a deadlock, shutting down,
# starting up, cancelled by a timeout or a person, idle for too long, a read-only server.
_PASSING = re.compile(r"08|53|40|57P0[1235]|57014|25P0[34]|25006")


def is_too_much(error: BaseException) -> bool:
    """Return whether a call may have been too much for this server: no answer in time, cancelled, out of memory."""
    return isinstance(error, TimeoutError) or getattr(error, "sqlstate", None) in ("57014", "53200")


def is_refusal(error: BaseException) -> bool:
    """Return whether the server refused a call for a reason that does not pass by itself, such as a user's trigger."""
    if isinstance(error, AccessDenied | DuplicateJob | SchemaError) or type(error) is PgQueueError:
        # Inside of our functions, as such a trigger does; else the schema is not there, or the role has no rights.
        cause = error.__cause__
        return isinstance(cause, psycopg.Error) and bool(cause.diag.context)
    return isinstance(error, psycopg.Error) and error.sqlstate is not None and not _PASSING.match(error.sqlstate)


def is_cut_off(error: BaseException) -> bool:
    """Return whether the connection broke during a call, with no error of the server."""
    return isinstance(error, psycopg.OperationalError) and error.sqlstate is None


def shows_pooler(error: BaseException) -> bool:
    """Return whether an error comes from a pooler in transaction mode, by prepared statements or options."""
    if getattr(error, "sqlstate", None) in ("26000", "42P05"):
        return True
    # Refused while connecting, so again there is only the text; poolers do not translate theirs.
    return isinstance(error, psycopg.OperationalError) and "unsupported startup parameter" in str(error)
