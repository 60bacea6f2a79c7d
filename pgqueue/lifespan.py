"""A worker inside of another program: a web application, or any that runs on asyncio."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from pgqueue.app import App
from pgqueue.config import WorkerConfig
from pgqueue.worker import Worker

log = logging.getLogger("pgqueue.worker")

# A crashed worker is started again this many times within this many seconds; after that the host gets its error.
_RESTARTS = 3
_WITHIN = 60.0

# Seconds before the first of these starts; they double.
_FIRST_PAUSE = 0.1

# Seconds that the host waits for the worker's start. A database that cannot be reached must not keep a web application
# from starting, or from being stopped: the worker keeps trying.
_START_WITHIN = 5.0


@dataclass(frozen=True, slots=True)
class Health:
    """`live`: its loop runs. `ready`: it reserves jobs; otherwise `reason` says why not. `status` has the numbers."""

    live: bool
    ready: bool
    reason: str
    status: dict[str, Any]


def worker_lifespan(app: App, dsn: str, **settings: Any) -> WorkerLifespan:
    """Return a worker to be run inside of this process: as the `lifespan=` of a web application, or by `async with`.

    It handles no signals, sets up no logging and ends no process. At the end of the block it reserves no more jobs,
    gives back those that have not started, and gives running ones `shutdown_timeout` to end; then their attempts have
    failed, or they are given back, as their tasks' `on_shutdown` says. If the worker cannot start, this raises. If it
    crashes, it is started again, at most three times a minute; after that, the block raises its error. An unavailable
    database is not a crash: the worker waits for it, and the block begins after 5 s without it. `settings` are those
    of `WorkerConfig`, such as concurrency=10.

    Each process of the web server has its own worker: four processes with concurrency=10 run forty jobs. For
    production, a separate process is better: `pgqueue worker`.

        api = FastAPI(lifespan=worker_lifespan(queue, dsn, concurrency=10))

        async with worker_lifespan(queue, dsn) as worker:
            ...
    """
    return WorkerLifespan(app, dsn, settings)


class WorkerLifespan:
    """Made by `worker_lifespan`. Called with the web application, as Starlette does, it returns a context manager."""

    def __init__(self, app: App, dsn: str, settings: dict[str, Any]) -> None:
        self._app = app
        self._dsn = dsn
        self._settings = settings
        self._worker = self._make()
        self._serving: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    def __call__(self, application: object = None) -> AbstractAsyncContextManager[None]:
        """Return this worker as the lifespan of a web application."""
        return self._lifespan()

    async def __aenter__(self) -> WorkerLifespan:
        """Start the worker. Raises the error that prevents the start."""
        self._stopping = asyncio.Event()
        self._worker = self._make()
        host = asyncio.current_task()
        starting = asyncio.create_task(self._worker.started.wait())
        self._serving = asyncio.create_task(self._serve(host), name="pgqueue-worker")
        try:
            await asyncio.wait([self._serving, starting], timeout=_START_WITHIN, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            self._serving.cancel()
            raise
        finally:
            starting.cancel()
        if not starting.done() and not self._serving.done():
            log.warning("the worker has not started within %g s and keeps trying", _START_WITHIN)
        if self._serving.done():
            await self._serving
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the worker. Raises its error if it has crashed too often."""
        assert self._serving is not None
        host = asyncio.current_task()
        if self._serving.done() and self._serving.exception() is not None:
            if host is not None and host.cancelling():
                # It is our own cancellation: see _serve.
                host.uncancel()
            self._serving.result()
        self._stopping.set()
        self._worker.stop()
        await self._serving

    def health(self) -> Health:
        """Return the state of the worker, for a route of the host's own."""
        status = self._worker.status()
        live = self._serving is not None and not self._serving.done()
        reason = str(status["reason"]) if live else "the worker has ended"
        return Health(live, live and bool(status["ready"]), reason, status)

    @asynccontextmanager
    async def _lifespan(self) -> AsyncIterator[None]:
        async with self:
            yield

    def _make(self) -> Worker:
        return Worker(self._app, self._dsn, WorkerConfig(**self._settings))

    async def _serve(self, host: asyncio.Task[Any] | None) -> None:
        """Run the worker; start another one when it crashes. The last error cancels the host, and waits in the task."""
        crashes: list[float] = []
        while True:
            try:
                await self._worker.run()
                return
            except Exception as error:
                now = time.monotonic()
                crashes = [*(each for each in crashes if each > now - _WITHIN), now]
                if not self._worker.started.is_set() and len(crashes) == 1:
                    raise
                if self._stopping.is_set():
                    raise
                if len(crashes) > _RESTARTS:
                    log.exception(
                        "the worker has crashed %d times in %g s and is not started again", len(crashes), _WITHIN
                    )
                    if host is not None and not host.done():
                        host.cancel()
                    raise
                log.exception("the worker crashed (%s) and is started again", type(error).__name__)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_FIRST_PAUSE * 2 ** (len(crashes) - 1)):
                        await self._stopping.wait()
                if self._stopping.is_set():
                    return
                self._worker = self._make()
