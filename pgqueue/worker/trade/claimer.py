"""Claim jobs while there is capacity for them."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress

import psycopg

from pgqueue.config import WorkerConfig
from pgqueue.db import consume
from pgqueue.worker.hold.held import Holding
from pgqueue.worker.link.links import Links
from pgqueue.worker.process.requests import Requests
from pgqueue.worker.run.runner import Runner
from pgqueue.worker.trade.exchange import Exchange
from pgqueue.worker.trade.intake import Intake
from pgqueue.worker.trade.sleeper import Sleeper
from pgqueue.worker.trade.trade import Trade

# With until_empty the worker stops after claims in a row that find nothing, with these pauses after them, in seconds.
# The second is longer than the 0.2 s after which the database looks again at a child whose row another session had
# locked: the last claim looks at each that was locked when the one before it looked.
_EMPTY_PAUSES = (0.05, 0.25, 0.05)

# A claim defers the next job of a key, by a second at most, while another session, maybe the one that stores this
# worker's ends, has locked the row of the job ahead. So a worker that is about to stop waits once for a job that is
# due within this time.
_DEFERRED = 1.1


class Claimer:
    """Claims with `claim_forever`."""

    def __init__(
        self,
        config: WorkerConfig,
        links: Links,
        exchange: Exchange,
        trade: Trade,
        intake: Intake,
        sleeper: Sleeper,
        runner: Runner,
        holding: Holding,
        requests: Requests,
    ) -> None:
        self.waits_for_capacity = False
        self._empty_claims = 0
        self._has_waited = False
        self._config = config
        self._links = links
        self._exchange = exchange
        self._trade = trade
        self._intake = intake
        self._sleeper = sleeper
        self._runner = runner
        self._holding = holding
        self._requests = requests

    async def claim_forever(self) -> None:
        """Claim jobs until the worker stops; sleep while there are none."""
        try:
            await self._claim_forever()
            # Else producers would hand jobs to a worker that stops.
            await self._sleeper.wake_up()
            if self._intake.handoffs.were_offered:
                # A commit that chose this worker may wait for NOTIFY's lock, and is then before this claim.
                with suppress(psycopg.Error):
                    await self._links.first.perform(consume.announce("pgqueue_last", ""))
        finally:
            await self._sleeper.close()

    async def _claim_forever(self) -> None:
        while not self._requests.stopping.is_set():
            await self._give_back_unknown()
            if self._requests.quiet:
                # A quiet worker would not claim when it is woken.
                await self._sleeper.wake_up()
                if self._requests.retiring and not self._holding.held:
                    self._requests.stop()
            if self._intake.leaves_idle:
                self._intake.leaves_idle = False
                await self._sleeper.wake_up()
            capacity = self._trade.capacity()
            if capacity == 0:
                await self._wait_for_capacity()
                continue
            # Read before the claim: one already under way did not see a job enqueued just before the end of another.
            nothing_held = not self._holding.held and not self._exchange.in_flight
            claimed = await self.claim(capacity)
            if claimed == 0:
                if self._config.until_empty:
                    await self._stop_if_empty(nothing_held)
                else:
                    await self._sleeper.sleep()
                continue
            self._empty_claims = 0
            self._has_waited = False
            if claimed == capacity:
                await self._sleeper.wake_up()
            elif self._polls_on():
                await self._sleeper.wake_up()
                await self._sleeper.pause()
            elif self._sleeper.is_registered or self._runner.is_busy:
                # No other job was due, and producers announce new ones, or will when it is idle again.
                await self._sleeper.sleep()

    def _polls_on(self) -> bool:
        """Whether to poll on after a claim that brought jobs, for a stream of them."""
        is_never_idle = not self._config.listen or self._config.until_empty
        return self._runner.is_busy and (
            is_never_idle or self._intake.load.polls_on(time.monotonic(), self._sleeper.is_registered)
        )

    async def claim(self, capacity: int, *, patient: bool = True) -> int:
        """Claim up to `capacity` single jobs or batches; returns how many came."""
        self._requests.wake.clear()
        await self._give_back_unknown()
        return await self._trade.claim(self._links.free(), capacity, patient=patient)

    async def _give_back_unknown(self) -> None:
        # No claim begins meanwhile: this loop is here, and no claim goes along with ends while `is_unsure`.
        if self._exchange.is_unsure and not self._exchange.in_flight:
            await self._exchange.give_back_unknown(self._links.first, self._holding.held, may_ask_less=True)

    async def _wait_for_capacity(self) -> None:
        self._requests.freed.clear()
        must_give_back = self._exchange.is_unsure and not self._exchange.in_flight
        if self._trade.capacity() == 0 and not self._requests.stopping.is_set() and not must_give_back:
            self.waits_for_capacity = True
            try:
                await self._requests.freed.wait()
            finally:
                self.waits_for_capacity = False

    async def _stop_if_empty(self, nothing_held: bool) -> None:
        """Stop after some claims in a row that find nothing, with maintenance between them.

        An end may release a child, and the end of its group another one, each in a later transaction. A claim that is
        woken does not count: a job came, or it has not looked at all queues yet, of more than 64.
        """
        if nothing_held and not await self._is_woken(_EMPTY_PAUSES[self._empty_claims]):
            if self._empty_claims < len(_EMPTY_PAUSES) - 1:
                self._empty_claims += 1
                await self._links.first.perform(consume.maintain())
            else:
                due_in = math.inf if self._has_waited else await self._due_in()
                # A producer may have chosen this worker while it asked: then the job is its own to claim.
                if due_in > _DEFERRED and not self._requests.wake.is_set():
                    self._requests.stop()
                    return
                self._has_waited = True
                await self._is_woken(min(due_in, _DEFERRED))
        await self._wait_for_end()

    async def _is_woken(self, pause: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._requests.wake.wait(), max(pause, 0.0))
            return True
        return False

    async def _due_in(self) -> float:
        """Return in how many seconds the next job is due."""
        name, queues = self._config.name, self._config.queues
        reply = await self._links.first.perform(consume.idle(name, queues, _DEFERRED))
        await self._links.first.perform(consume.awake(name))
        return math.inf if reply.due_in is None else reply.due_in

    async def _wait_for_end(self) -> None:
        self._requests.freed.clear()
        if self._holding.held and not self._exchange.is_unsure and not self._requests.stopping.is_set():
            # Other jobs come or become due meanwhile, and a worker that is never idle is not told.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._requests.freed.wait(), self._config.poll_interval)
