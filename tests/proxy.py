"""A TCP proxy before a PostgreSQL server, which does to connections what networks do.

    with Proxy(dsn) as proxy:
        psycopg.connect(proxy.dsn)
        proxy.freeze()    # nothing is delivered any more, and no side is notified: a half-open connection
        proxy.thaw()
        proxy.strand()    # the same for ever, but new connections work: the peer came back under another roof
        proxy.drop()      # every connection is reset
        proxy.refuse()    # and no new one is taken
        proxy.accept()
        proxy.delay(0.05)                  # each way
        proxy.cut_reply_with(b"marker")    # the next reply with these bytes breaks off in the middle of them
        proxy.hold(b"marker")              # the next request with these bytes is kept back, even if its client leaves,
        proxy.deliver()                    # until now; `proxy.holds` is whether there is one

It runs in a thread of its own, so a test may block, or have its own event loop.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from psycopg.conninfo import conninfo_to_dict

from tests.databases import uri

T = TypeVar("T")

# The writer to the client and the one to the server.
Pair = tuple[asyncio.StreamWriter, asyncio.StreamWriter]


class Proxy:
    """Listens on a free port of `host`; `dsn` is the server's, through it."""

    def __init__(self, dsn: str, host: str = "127.0.0.1") -> None:
        self._upstream = conninfo_to_dict(dsn)
        self._host = host
        self._pairs: set[Pair] = set()
        self._stranded: set[Pair] = set()
        self._delay = 0.0
        self._marker: bytes | None = None
        self._held: bytes | None = None
        self.holds = False
        self.cuts = 0
        self.attempts = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._flows = self._do(self._new_event())
        self._delivered = self._do(self._new_event())
        self._server: asyncio.Server | None = None
        self._port = 0
        self.accept()
        self.dsn = uri(dsn, host=host, port=str(self._port))

    def freeze(self) -> None:
        self._loop.call_soon_threadsafe(self._flows.clear)

    def thaw(self) -> None:
        self._loop.call_soon_threadsafe(self._flows.set)

    def strand(self) -> None:
        self._do(self._call(lambda: self._stranded.update(self._pairs)))

    def delay(self, seconds: float) -> None:
        self._delay = seconds

    def cut_reply_with(self, marker: bytes) -> None:
        self._marker = marker

    def hold(self, marker: bytes) -> None:
        self._loop.call_soon_threadsafe(self._delivered.clear)
        self._held = marker

    def deliver(self) -> None:
        self._loop.call_soon_threadsafe(self._delivered.set)

    def drop(self) -> None:
        self._do(self._call(self._reset_all))

    def refuse(self) -> None:
        self._do(self._stop_listening())

    def accept(self) -> None:
        self._do(self._listen())

    def connections(self) -> int:
        return len(self._pairs)

    def close(self) -> None:
        self.refuse()
        self.drop()
        self._do(self._end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(10)

    async def _new_event(self) -> asyncio.Event:
        event = asyncio.Event()
        event.set()
        return event

    async def _call(self, function: Callable[[], None]) -> None:
        function()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, self._host, self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _end_tasks(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.attempts += 1
        await self._flows.wait()
        host, port = str(self._upstream.get("host") or ""), int(self._upstream.get("port") or 5432)
        try:
            if host.startswith("/"):
                up_reader, up_writer = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
            else:
                up_reader, up_writer = await asyncio.open_connection(host, port)
        except OSError:
            _reset(writer)
            return
        pair = (writer, up_writer)
        self._pairs.add(pair)
        try:
            await asyncio.gather(self._carry(reader, up_writer, pair), self._carry(up_reader, writer, pair, reply=True))
        finally:
            self._pairs.discard(pair)
            for each in pair:
                each.close()

    async def _carry(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        pair: Pair,
        *,
        reply: bool = False,
    ) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                await asyncio.sleep(self._delay)
                await self._flows.wait()
                if pair in self._stranded:
                    continue
                if not reply and self._held is not None and self._held in data:
                    self._held, self.holds = None, True
                    await self._delivered.wait()
                    self.holds = False
                if reply and self._marker is not None and self._marker in data:
                    target.write(data[: data.index(self._marker) + len(self._marker) // 2])
                    await target.drain()
                    self._marker = None
                    self.cuts += 1
                    break
                target.write(data)
                await target.drain()
        for each in pair:
            each.close()

    def _reset_all(self) -> None:
        for pair in list(self._pairs):
            _reset(pair[0])
            pair[1].close()


def _reset(writer: asyncio.StreamWriter) -> None:
    # No goodbye: what is read after this is "connection reset by peer".
    found = writer.get_extra_info("socket")
    with suppress(OSError):
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
