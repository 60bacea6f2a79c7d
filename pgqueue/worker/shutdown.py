"""End a worker: let handlers end, store how they ended, deregister."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress

from pgqueue.app import App
from pgqueue.config import WorkerConfig
from pgqueue.db import presence
from pgqueue.job import Flag
from pgqueue.logs import how_many
from pgqueue.worker.hold.held import End, Held, Holding, Stop
from pgqueue.worker.hold.outbox import Outbox
from pgqueue.worker.link.connection import Link
from pgqueue.worker.presence.identity import Identity
from pgqueue.worker.presence.registration import Registration
from pgqueue.worker.process.requests import Requests
from pgqueue.worker.run.runner import Runner
from pgqueue.worker.tell.tell import Tell
from pgqueue.worker.trade.exchange import Exchange

log = logging.getLogger("pgqueue.worker")

# Seconds that a handler has to end after its shutdown timeout is over and it was asked to end.
_GRACE = 1.0

# Seconds for each call to the database at a shutdown, and for all ends to be stored: a database that
# hangs cannot hang the shutdown.
_WITHIN = 2.0
_STORED_WITHIN = 5.0


class Shutdown:
    """The end of a worker, in order: `run` once it has started, `leave` if it has not."""

    def __init__(
        self,
        app: App,
        config: WorkerConfig,
        link: Link,
        exchange: Exchange,
        runner: Runner,
        holding: Holding,
        outbox: Outbox,
        tell: Tell,
        requests: Requests,
        registration: Registration,
        identity: Identity,
    ) -> None:
        self._app = app
        self._config = config
        self._link = link
        self._exchange = exchange
        self._runner = runner
        self._holding = holding
        self._outbox = outbox
        self._tell = tell
        self._requests = requests
        self._registration = registration
        self._identity = identity

    async def run(self, claiming: asyncio.Task[None], stopping: Flag) -> bool:
        """Let handlers end and store how. True when none was cut off and all is stored.

        `claiming` is the loop that claims, `stopping` the flag that handlers see.
        """
        await self._end_claims(claiming)
        unstarted = self._runner.give_back_unstarted()
        stopping.raise_it("the worker shuts down")
        if self._runner.running:
            log.info(
                "stopping: %s may run for at most %g s; %d that have not started are given back",
                how_many(self._runner.running, "job"),
                self._config.shutdown_timeout,
                unstarted,
            )
        cut_off = await self._end_handlers()
        try:
            async with asyncio.timeout(_STORED_WITHIN):
                await self._until(lambda: self._outbox.is_empty and not self._holding.held)
        except TimeoutError:
            left = len(self._holding.held)
            log.error(
                "the ends of %s could not be stored; each runs again when its lease lapses", how_many(left, "job")
            )
            return False
        await self._tell.close()
        await self.leave()
        log.info(
            "worker %s ends: %s succeeded, %d failed",
            self._config.name,
            how_many(self._tell.completed, "job"),
            self._tell.failures,
        )
        return not cut_off

    async def leave(self) -> None:
        """Give back what a claim that was cut off may have reserved, and deregister. Nothing runs any more."""
        self._exchange.in_flight.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(_WITHIN):
                await self._exchange.give_back_unknown(self._link, self._holding.held)
                await self._registration.report_rest()
                if self._identity.has_name:
                    await self._link.perform(presence.bye(self._config.name))

    async def _end_claims(self, claiming: asyncio.Task[None]) -> None:
        # The loop ends by itself after the statement under way; one that hangs is cut off.
        await asyncio.wait([claiming], timeout=_WITHIN)
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(_WITHIN):
                await self._until(lambda: not self._exchange.in_flight)
                if self._exchange.is_unsure:
                    await self._exchange.give_back_unknown(self._link, self._holding.held)

    async def _end_handlers(self) -> int:
        """Let handlers end, each within its time; returns how many were cut off.

        A handler whose time is over is asked to end, and cancelled if that is possible. If it continues after the grace
        period, it is abandoned: the process ends, and the job fails or is given back, as its task's on_shutdown says.
        """
        began = time.monotonic()
        asked: dict[Held, float] = {}
        while self._runner.busy:
            now = time.monotonic()
            for held in list(self._runner.busy):
                end, limit = self._terms(held)
                if held in asked:
                    if now >= asked[held] + _GRACE:
                        self._runner.abandon(held, held.attempt.stop or Stop(end))
                elif now >= began + limit:
                    asked[held] = now
                    log.warning("%s did not end within its shutdown timeout of %g s and is cut off", held, limit)
                    why = f"it did not end within its shutdown timeout of {limit:g} s"
                    self._runner.stop(held, Stop(end, why))
            self._requests.freed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self._requests.freed.wait()
        return len(asked)

    def _terms(self, held: Held) -> tuple[End, float]:
        """Return how a job ends when it is cut off, and after how many seconds."""
        options = self._app.tasks[held.row.task].options
        end = End.RELEASED if options.on_shutdown == "release" else End.FAILED
        own = math.inf if options.shutdown_timeout is None else options.shutdown_timeout
        return end, min(self._config.shutdown_timeout, own)

    async def _until(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self._requests.freed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await self._requests.freed.wait()
