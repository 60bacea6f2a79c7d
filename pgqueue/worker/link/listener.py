"""Listen for NOTIFY on a separate connection, which reconnects by itself."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

import psycopg
from psycopg import sql

from pgqueue.config import WorkerConfig, describe_dsn
from pgqueue.db import consume
from pgqueue.errors import ConfigError
from pgqueue.worker.hold.handoffs import Handoffs
from pgqueue.worker.link.connection import Link, answered, connect, raise_if_lasting, shows_pooler
from pgqueue.worker.link.outage import FIRST_PAUSE, LONGEST_PAUSE, Outage, Trouble

# Producers above READ COMMITTED cannot see idle workers: they notify all of them here, with the queue as payload. So
# does a pause, with an empty one.
COMMON_CHANNEL = "pgqueue"

# While jobs may be handed to this worker: seconds between questions over this connection, and for an answer. So a
# connection whose path is dead is offered for less than 2 s.
_ASK_EVERY = 1.0
_ANSWERS_WITHIN = 0.8

# Seconds after the commit within which a notification that this worker sent to itself must arrive.
_ECHO_WITHIN = 5.0

_HINT = "listen in the same database and not through a pooler: --listen-dsn, or --no-listen"


class Hearer(Protocol):
    """Acts on notifications; see `Hearing`."""

    @property
    def channel(self) -> str: ...
    def woken(self) -> None: ...
    def committed(self, at: float) -> None: ...
    def due_soon(self) -> None: ...
    def handed_off(self, payload: str) -> None: ...
    def cancel_asked(self) -> None: ...
    def command_asked(self) -> None: ...
    def withdrawn(self) -> None: ...
    def replaced(self) -> None: ...


class Listener:
    """Tells `hearer` of each notification, and after each (re)connect that a job may be ready or due.

    After each connect it sends itself a notification over the worker's main connection: if that does not arrive, the
    connections lead to different databases, to another server (a former primary), or to a pooler that gives the
    session of a LISTEN to another client. Such a connection is closed and reopened, like a broken one.
    Every `pulse` seconds, and every second while jobs may be handed over, it listens once more, which does nothing but
    show within that time that the server lives.
    """

    def __init__(
        self, dsn: str, config: WorkerConfig, outage: Outage, link: Link, handoffs: Handoffs, hearer: Hearer
    ) -> None:
        self._dsn = dsn
        self._outage = outage
        self._queues = config.queues
        self._link = link
        self._handoffs = handoffs
        self._hearer = hearer
        self._pulse = min(config.lease / 3, 60.0)

    async def listen_forever(self) -> None:
        """Listen on the worker's channel and the common one."""
        pause = FIRST_PAUSE
        with Trouble(self._outage) as trouble:
            while True:
                answers = self._outage.answers
                try:
                    async with self._listening() as (connection, process_id):
                        # Jobs may have been announced while this worker did not listen.
                        self._hearer.woken()
                        self._hearer.due_soon()
                        await self._hear_echo(connection)
                        self._offer_handoffs(process_id)
                        self._hearer.replaced()
                        trouble.over()
                        pause = FIRST_PAUSE
                        await self._hear_forever(connection, process_id)
                except (psycopg.Error, ConfigError, OSError, TimeoutError) as error:
                    trouble.met(error)
                finally:
                    self._handoffs.listener = None
                await self._outage.pause(pause, answers)
                pause = min(pause * 2, LONGEST_PAUSE)

    async def check(self) -> None:
        """Raise ConfigError if notifications do not arrive here; nothing if the server cannot be reached now."""
        try:
            async with self._listening() as (connection, _):
                await self._hear_echo(connection)
        except (psycopg.Error, OSError, TimeoutError) as error:
            raise_if_lasting(error)

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[tuple[psycopg.AsyncConnection[Any], int]]:
        try:
            connection = await connect(self._dsn)
        except psycopg.Error as error:
            if not shows_pooler(error):
                raise
            raise ConfigError(f"{describe_dsn(self._dsn)} leads to a pooler", hint=_HINT) from error
        try:
            # Not of libpq, which a pooler may have told another one.
            asking = connection.execute("select pg_backend_pid()")
            row = await (await answered(connection, asking, max(self._pulse, 1.0))).fetchone()
            # The secret one first: the last statement of a session is shown to others.
            for name in (self._handoffs.channel, self._hearer.channel, COMMON_CHANNEL):
                await self._listen(connection, name)
            yield connection, row[0] if row is not None else 0
        finally:
            with suppress(psycopg.Error, OSError):
                await connection.close()

    def _offer_handoffs(self, process_id: int) -> None:
        """Let the next registration as idle offer this connection for hand-offs."""
        self._handoffs.listener = process_id
        self._hearer.due_soon()

    async def _hear_forever(self, connection: psycopg.AsyncConnection[Any], process_id: int) -> None:
        answered_at = time.monotonic()
        while True:
            await self._hear(connection, min(self._pulse, _ASK_EVERY))
            if not self._handoffs.are_offered and time.monotonic() < answered_at + self._pulse:
                continue
            asking = asyncio.create_task(self._listen(connection, COMMON_CHANNEL))
            try:
                await asyncio.wait({asking}, timeout=_ANSWERS_WITHIN)
                if not asking.done():
                    self._handoffs.listener = None
                    self._hearer.withdrawn()
                await asking
            finally:
                asking.cancel()
            answered_at = time.monotonic()
            if self._handoffs.listener is None:
                self._offer_handoffs(process_id)

    async def _listen(self, connection: psycopg.AsyncConnection[Any], channel: str) -> None:
        listening = connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        await answered(connection, listening, max(self._pulse, 1.0))

    async def _hear_echo(self, connection: psycopg.AsyncConnection[Any]) -> None:
        token = f"echo {secrets.token_hex(4)}"
        # Concurrently with listening, for the worker's own connection may have to wait for its server.
        announcing = asyncio.ensure_future(self._link.perform(consume.announce(self._hearer.channel, token)))
        try:
            deadline = float("inf")
            while not await self._hear(connection, 0.1, token):
                if announcing.done() and deadline == float("inf"):
                    await announcing
                    deadline = time.monotonic() + _ECHO_WITHIN
                if time.monotonic() > deadline:
                    raise ConfigError(
                        f"notifications sent over the worker's connection do not arrive in {describe_dsn(self._dsn)}",
                        hint=_HINT,
                    )
        finally:
            announcing.cancel()
            await asyncio.gather(announcing, return_exceptions=True)

    async def _hear(self, connection: psycopg.AsyncConnection[Any], seconds: float, token: str | None = None) -> bool:
        """Act on the notifications of `seconds`; True when `token` was among them."""
        heard = False
        # To the end: notifications that came with the token would be lost with the generator.
        async for each in connection.notifies(timeout=seconds):
            if each.payload == token:
                heard = True
            elif each.channel == self._handoffs.channel:
                self._hearer.handed_off(each.payload)
            elif each.channel == COMMON_CHANNEL:
                if not each.payload:
                    # A queue, task or limit_key was paused or throttled.
                    self._hearer.command_asked()
                elif self._queues is None or each.payload in self._queues:
                    # A job is ready, or will be soon: its producer cannot see which workers are idle until when.
                    self._hearer.woken()
                    self._hearer.due_soon()
            elif each.payload == "cancel":
                self._hearer.cancel_asked()
            elif each.payload == "command":
                self._hearer.command_asked()
            elif not each.payload.startswith("echo "):
                self._announced(*each.payload.split(" "))
        return heard

    def _announced(self, word: str, committed_at: str = "", *_: str) -> None:
        if word == "due":
            self._hearer.due_soon()
        else:
            self._hearer.woken()
        if committed_at.isdecimal():
            self._hearer.committed(int(committed_at) / 1_000_000)
