"""A small HTTP server that reports the status of a worker: for probes and for operators.

/live     200 as long as the process answers
/ready    200 when it reserves jobs, else 503 and the reason
/status   the whole status, as JSON
/metrics  the same for Prometheus; 501 and what to install, where prometheus-client (the extra `metrics`) is not
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from importlib.util import find_spec
from typing import Any

import orjson

from pgqueue import _forks, metrics
from pgqueue.errors import ConfigError
from pgqueue.worker.tell.counts import Entry

log = logging.getLogger("pgqueue.health")

Status = dict[str, Any]

# Seconds that a client has to ask, and requests that are answered at a time.
_PATIENCE = 5.0
_MOST = 50

_NO_METRICS = b"prometheus-client is not installed: pip install 'pgqueue-sql[metrics]'\n"


class HealthServer:
    """Serves the mapping that `status` returns, with `ready` and `reason`; and the counts of `ended`, as metrics."""

    def __init__(self, status: Callable[[], Status], ended: Callable[[], list[Entry]]) -> None:
        self._status = status
        self._ended = ended
        self._server: asyncio.Server | None = None
        self._listening: list[_Listening] = []
        self._open = 0

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which is another one for port 0. Raises ConfigError when it is taken."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=8192)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"the health endpoint cannot listen on {host}:{port} ({error.strerror or error})"
                if isinstance(error, OSError)
                else f"{port} is no port",
                hint="give another --health-port or --health-host",
            ) from error
        self._listening = [_Listening(each) for each in self._server.sockets]
        for listening in self._listening:
            _forks.keep_socket(listening)
        found = int(self._server.sockets[0].getsockname()[1])
        log.info("health at http://%s:%d/status", f"[{host}]" if ":" in host else host, found)
        return found

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            async with asyncio.timeout(_PATIENCE):
                if self._open > _MOST:
                    code, kind, body = HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", b"too many requests at a time\n"
                else:
                    code, kind, body = await self._asked(reader)
                writer.write(
                    f"HTTP/1.1 {code.value} {code.phrase}\r\nContent-Type: {kind}; charset=utf-8\r\n"
                    f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
                # The last part is still here, and goes out meanwhile.
                writer.close()
                await writer.wait_closed()
        except TimeoutError:
            # A silent client, or one that does not read its answer: the unsent part would be kept forever.
            writer.transport.abort()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            # A client that left, or speaks no HTTP.
            pass
        finally:
            self._open -= 1
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _asked(self, reader: asyncio.StreamReader) -> tuple[HTTPStatus, str, bytes]:
        head = await reader.readuntil(b"\r\n\r\n")
        method, path, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        if method not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"only GET\n"
        code, kind, body = self._answer(path.split("?")[0])
        return code, kind, b"" if method == "HEAD" else body

    def _answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        if path == "/live":
            return HTTPStatus.OK, "text/plain", b"live\n"
        status = self._status()
        if path == "/ready":
            code = HTTPStatus.OK if status["ready"] else HTTPStatus.SERVICE_UNAVAILABLE
            return code, "text/plain", f"{status['reason'] or 'ready'}\n".encode()
        if path == "/status":
            return HTTPStatus.OK, "application/json", orjson.dumps(status, default=str, option=orjson.OPT_INDENT_2)
        if path == "/metrics":
            if find_spec("prometheus_client") is None:
                return HTTPStatus.NOT_IMPLEMENTED, "text/plain", _NO_METRICS
            return (
                HTTPStatus.OK,
                "text/plain; version=0.0.4",
                metrics.as_text(metrics.of_workers(status, self._ended())),
            )
        return HTTPStatus.NOT_FOUND, "text/plain", b"there are /live, /ready, /status and /metrics\n"


class _Listening:
    """A socket that listens; asyncio's own object for it cannot be referred to weakly."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    def fileno(self) -> int:
        number: int = self._transport.fileno()
        return number
