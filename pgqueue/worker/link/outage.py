"""The shared state of a worker's connections during an outage of the server."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import re
import socket
import time
from collections.abc import Coroutine
from contextlib import suppress
from functools import lru_cache
from typing import Any, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pgqueue.config import describe_dsn
from pgqueue.logs import one_line
from pgqueue.worker.process.loops import uniform

log = logging.getLogger("pgqueue.worker")

# Pauses between attempts to reach the server grow from the first to the longest, in seconds, each with a random part.
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 30.0

# libpq does not give the SQLSTATE (53300) of a refused connection, so this reads its text, in English.
_HAS_NO_ROOM = re.compile(r"too many (clients|connections)|connection slots are reserved")

# While an outage lasts, it is logged once in this time, in seconds.
_REMIND = 60.0


class Outage:
    """The outage state that all links of a worker share, so that one line is logged and not four.

    `since` is the monotonic time at which the server went away; None: it is there. `began_at` is that at which the last
    outage began: connections made before that are not trusted any more, for they may be silently dead. A server without
    capacity for another connection does not begin an outage: the connections that it has are alive, and would not be
    accepted again. `refused_at` is the time at which the server's own machine last refused a connection: proof that no
    server ran there, so no lease could be given away. A pooler's refusal proves nothing: with `pooled` it stays None.
    """

    def __init__(self, dsn: str, *, pooled: bool = False) -> None:
        self.began_at = 0.0
        self.refused_at: float | None = None
        self.pooled = pooled
        self._dsn = dsn
        self.error = ""
        self._place = describe_dsn(dsn)
        self.since: float | None = None
        self._is_cut_off = False
        self._logged_at = 0.0
        self.links_down = 0
        self.answers = asyncio.Event()

    @property
    def lasts(self) -> float | None:
        """For how many seconds the server has been away; None: it is there. `error` is the last reason."""
        return None if self.since is None else time.monotonic() - self.since

    def begins(self, error: BaseException) -> None:
        """A link went down, or is still down."""
        self.error = one_line(error)
        now = time.monotonic()
        if not self._is_cut_off and not _HAS_NO_ROOM.search(self.error):
            self._is_cut_off, self.began_at = True, now
        if self.since is None:
            self.since = self._logged_at = now
            log.warning("cannot use %s (%s); trying again until it answers", self._place, one_line(error))
        elif now - self._logged_at >= _REMIND:
            self._logged_at = now
            log.warning("still cannot use %s after %.0f s (%s)", self._place, now - self.since, one_line(error))

    def ends(self) -> None:
        """No link is down any more."""
        if self.since is not None:
            log.info("%s answers again after %.1f s", self._place, time.monotonic() - self.since)
            self.since, self._is_cut_off = None, False

    def note_pooler(self) -> None:
        """A link found that there is a pooler in between."""
        if not self.pooled:
            self.pooled = True
            log.warning("%s is behind a pooler: continuing as with --no-prepare", self._place)

    def answered(self) -> None:
        """A link is up again: those that wait, and those whose attempt is still under way, try again at once."""
        self.answers.set()
        self.answers = asyncio.Event()

    async def pause(self, seconds: float, answers: asyncio.Event) -> None:
        """Wait for up to `seconds`, with a random part, or until another link is up again.

        `answers` is that of the outage from before the attempt that failed: a link that came up meanwhile counts.
        """
        if not self.pooled and await refused(self._dsn):
            self.refused_at = time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds * uniform(0.5, 1.0)):
                await answers.wait()


class Trouble:
    """One link's part in an outage: it has `met` an error, any number of times, until it is `over`.

    As a context manager it is over at the end, unless the link was cancelled: then the outcome is unknown.
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
            self._outage.answered()
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


async def refused(dsn: str) -> bool:
    """Return whether every host of the DSN refuses connections now: then no server runs there."""
    given = conninfo_to_dict(dsn)
    if given.get("service"):
        # libpq does not report its address.
        return False
    # Parts missing in the DSN come from PGHOST and PGPORT, and from libpq's defaults.
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
    # Each address by itself: asyncio makes one OSError without a reason of several refusals.
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for address in {str(each[4][0]) for each in found}:
        try:
            if not await _refuses(asyncio.open_connection(address, port)):
                return False
        except OSError as error:
            # A machine without IPv6 whose localhost has it: no server can be reached there.
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
    # Connecting to a socket that is not there ends at once, and the connection then knows the path that it tried.
    return psycopg.pq.PGconn.connect_start(b"host='' hostaddr='' port=1").host.decode()
