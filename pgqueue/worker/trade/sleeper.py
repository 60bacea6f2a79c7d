"""Sleep while there are no jobs, and decide when to claim again."""

from __future__ import annotations

import asyncio
import math
import time

from pgqueue.config import WorkerConfig
from pgqueue.db import consume
from pgqueue.worker.hold.handoffs import OFFER_FOR
from pgqueue.worker.link.connection import Link
from pgqueue.worker.presence.registration import Registration
from pgqueue.worker.process import memory
from pgqueue.worker.process.loops import uniform
from pgqueue.worker.process.requests import Requests
from pgqueue.worker.run.runner import Runner
from pgqueue.worker.trade.intake import Intake
from pgqueue.worker.trade.trade import Trade

# A job enqueued before the registration stood, in a transaction that commits after, is not announced: the worker polls
# for it. Up to this many seconds after the registration, at these pauses: most transactions are short.
_POLLS = ((0.01, 0.002), (0.25, 0.008), (1.0, 0.04))

# A worker that runs a stream of jobs does not go idle at the first empty claim: it polls for a moment, so that the
# stream does not cost its producers a NOTIFY each. Each poll takes the ends along that came since the last one, so a
# short pause costs no statements.
_BUSY_PAUSE = 0.001
_BUSY_POLLS = 0.02

# A notification may hide that another job is due soon: then idle() is called again within this many seconds.
_ASK_WITHIN = 1.0


class Sleeper:
    """Registers the worker as idle, so that producers wake it, and decides when to claim.

    The registration is written first, and only then come the polls, for jobs that were enqueued before it and
    committed after. While it lasts, no other polls are needed: producers announce ready jobs, and ask the worker to
    call idle() for jobs that are due soon. It is renewed before it ends, by the one call a second or less that an idle
    worker makes; that call also runs maintenance, and returns when the next job is due. A worker that is woken
    meanwhile does not wait for that call.
    """

    def __init__(
        self,
        config: WorkerConfig,
        link: Link,
        runner: Runner,
        requests: Requests,
        trade: Trade,
        intake: Intake,
        registration: Registration,
    ) -> None:
        self._config = config
        self._link = link
        self._runner = runner
        self._requests = requests
        self._trade = trade
        self._intake = intake
        self._handoffs = intake.handoffs
        self._registration = registration
        # Monotonic times: the begin and the end of the registration; when the next job is due; and until when a busy
        # worker polls. When to call idle() again is known to the registration.
        self._idle_since = 0.0
        self._idle_until = 0.0
        self._due_at = math.inf
        self._poll_until = 0.0
        # When idle() was last answered.
        self.answered_at = 0.0
        self._waiting: asyncio.Timeout | None = None
        self._renewing: asyncio.Task[None] | None = None

    @property
    def is_registered(self) -> bool:
        """Whether producers wake this worker."""
        return time.monotonic() < self._idle_until

    async def sleep(self) -> None:
        """Return when it is time to claim."""
        if not self._config.listen:
            # No producer can wake this worker, so it does not register.
            await self._woken(self._config.poll_interval * uniform(0.9, 1.0))
            return
        if not self.is_registered and (pause := self._intake.load.pause(time.monotonic())) is not None:
            # Its notifications would make the commits of producers wait for each other.
            await self._woken(pause)
            return
        if not self.is_registered and self._runner.is_busy and await self._poll_on():
            return
        while not self._requests.stopping.is_set() and self._trade.capacity() > 0:
            if self._renewing is not None and (self._renewing.done() or not self.is_registered):
                await self._renewed()
            if self._renewing is None and time.monotonic() >= self._registration.calls_idle_at:
                await self._call_idle()
            now = time.monotonic()
            poll_at = now + self._pause(now - self._idle_since)
            call_at = self._registration.calls_idle_at if self._renewing is None else self._idle_until
            if await self._woken(min(call_at, self._due_at, poll_at) - now):
                self._registration.calls_idle_at = min(self._registration.calls_idle_at, time.monotonic() + _ASK_WITHIN)
                return
            now = time.monotonic()
            if now >= self._due_at:
                # Due by now. The next call of idle() returns the next due time, whichever worker takes this job.
                self._due_at = math.inf
                self._registration.calls_idle_at = 0.0
                return
            if now >= poll_at:
                return

    def due_changed(self) -> None:
        """Call idle() again: a job is to be due soon."""
        self._registration.calls_idle_at = 0.0
        self._look_again()

    async def pause(self) -> None:
        """Wait for a moment between two claims of a stream."""
        self._trade.claims_at = time.monotonic() + _BUSY_PAUSE
        await self._woken(_BUSY_PAUSE)

    async def wake_up(self) -> None:
        """Remove the registration: producers need not wake this worker."""
        self._poll_until = 0.0
        await self._renewed()
        if self._idle_until:
            self._idle_until = self._registration.calls_idle_at = 0.0
            await self._link.perform(consume.awake(self._config.name))
            self._handoffs.offered_until = 0.0
            self._intake.load.left_idle(time.monotonic())
            self._intake.compare_soon()

    async def close(self) -> None:
        """Cancel a call of idle() that is under way."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})
            self._renewing = None

    async def _call_idle(self) -> None:
        if not self.is_registered:
            await self._register()
            return
        self._renewing = asyncio.create_task(self._register())
        self._renewing.add_done_callback(lambda _: self._look_again())

    async def _renewed(self) -> None:
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            await renewing

    def _look_again(self) -> None:
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def _register(self) -> None:
        config = self._config
        was_registered = self.is_registered
        if self._idle_until and not was_registered:
            self._intake.compare_soon()
        offer = self._handoffs.offer(config.lease)
        lasts = config.poll_interval if offer is None else min(config.poll_interval, OFFER_FOR)
        # due_changed() counts from here on: its job may be newer than the reply.
        self._registration.calls_idle_at = math.inf
        try:
            reply = await self._link.perform(consume.idle(config.name, config.queues, lasts, memory.reported(), offer))
        except BaseException:
            # Else nothing would ever call it again.
            self._registration.calls_idle_at = 0.0
            raise
        now = time.monotonic()
        self.answered_at = now
        self._handoffs.clock_read(reply.clock, self._link.sent_at)
        # As the database has it: a second longer. It must have no gap.
        self._idle_until = self._link.sent_at + lasts + 1.0
        self._handoffs.offered_until = self._idle_until if offer is not None else 0.0
        if not was_registered:
            self._idle_since = now
        # Not in step with other workers.
        call_at = min(now + reply.again_in, self._idle_until - 1.0 - uniform(0.0, 0.1) * lasts)
        self._registration.calls_idle_at = min(self._registration.calls_idle_at, call_at)
        self._due_at = math.inf if reply.due_in is None else now + max(reply.due_in, 0.0)
        if not reply.is_registered:
            # Deregistered after minutes of silence, on a laptop that was suspended; or a pooler hid that the server has
            # been restarted or replaced.
            await self._link.perform(self._registration.hello())

    async def _poll_on(self) -> bool:
        """Wait a moment. True when a busy worker should poll once more before it goes idle."""
        now = time.monotonic()
        if not self._poll_until:
            self._poll_until = now + _BUSY_POLLS
        if now >= self._poll_until:
            self._poll_until = 0.0
            return False
        await self.pause()
        return True

    @staticmethod
    def _pause(idle_for: float) -> float:
        """Return the pause before the next poll of a worker that has been registered for so long."""
        for until, pause in _POLLS:
            if idle_for < until:
                return pause
        return math.inf

    async def _woken(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(max(seconds, 0.0)) as self._waiting:
                await self._requests.wake.wait()
            return True
        except TimeoutError:
            return False
        finally:
            self._waiting = None
