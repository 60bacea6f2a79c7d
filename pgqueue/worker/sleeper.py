"""Sleep while there are no jobs, and decide when to claim again."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable
from typing import Protocol

from pgqueue.config import WorkerConfig
from pgqueue.db import consume
from pgqueue.db.call import Call
from pgqueue.worker.connection import Link
from pgqueue.worker.runner import Runner
from pgqueue.worker.state import State

# Polls after the worker has registered as idle: pauses between them that grow from first to longest, and for how long,
# in seconds. A job enqueued before the registration stood, in a transaction that commits after a poll, is found by the
# next one; most transactions are short, so the polls are close at first.
_POLLS = ((0.002, 0.008, 0.25), (0.016, 0.04, 0.75))

# A worker that runs a stream of jobs does not go idle at the first empty claim: it polls for a moment, so that the
# stream does not cost its producers a NOTIFY each.
_BUSY_PAUSE = 0.003
_BUSY_POLLS = 0.02


class Claim(Protocol):
    """Claims up to `capacity` jobs, and returns how many came."""

    async def __call__(self, capacity: int) -> int: ...


class Sleeper:
    """Registers the worker as idle, so that producers wake it, and polls at the times when a job may be due.

    The registration is written first, and only then come the polls, for jobs that were enqueued before it stood and
    are committed after. While it stands, no polls are needed. It is renewed before it ends, by the one call a second or
    less that an idle worker makes; that call also runs maintenance, and returns when the next job is due.
    """

    def __init__(
        self,
        config: WorkerConfig,
        link: Link,
        runner: Runner,
        state: State,
        *,
        capacity: Callable[[], int],
        claim: Claim,
        hello: Callable[[], Call[str]],
    ) -> None:
        self._config = config
        self._link = link
        self._runner = runner
        self._state = state
        self._capacity = capacity
        self._claim = claim
        self._hello = hello
        # Until when the registration stands, when to call idle() again, and when the next job is due: monotonic times.
        self._idle_until = 0.0
        self._call_at = 0.0
        self._due_at = math.inf
        self._woke = False

    @property
    def is_idle(self) -> bool:
        """Whether the worker calls idle(), which serves as its heartbeat and runs maintenance."""
        return time.monotonic() < self._call_at + 0.5

    async def sleep(self) -> None:
        """Return when it is time to claim again."""
        if not self._config.listen:
            # No producer can wake this worker, so it does not ask for that.
            await self._woken(self._config.poll_interval * random.uniform(0.9, 1.0))
            return
        if not self._idle_until:
            self._due_at = math.inf
            if self._runner.is_busy and await self._poll(_BUSY_PAUSE, _BUSY_PAUSE, _BUSY_POLLS):
                return
            await self._register()
            for first, longest, total in _POLLS:
                if await self._poll(first, longest, total):
                    return
        while not self._woke:
            now = time.monotonic()
            if now >= self._due_at:
                # Due already, or due by now. Should another worker take it, the next idle() returns what comes next.
                self._due_at = math.inf
                return
            if now >= self._call_at:
                await self._register()
                continue
            self._woke = await self._woken(min(self._call_at, self._due_at) - now)
            if self._state.stopping.is_set() or self._capacity() == 0:
                return
        # Woken in vain, as another worker takes the job, the next one may be due later than idle() said.
        self._woke = False
        self._call_at = 0.0

    async def wake_up(self) -> None:
        """Remove the registration: producers need not wake this worker."""
        if self._idle_until:
            self._idle_until = self._call_at = 0.0
            await self._link.perform(consume.awake(self._config.name))

    async def _register(self) -> None:
        config = self._config
        self._woke = False
        _, due_in, again_in, registered = await self._link.perform(
            consume.idle(config.name, config.queues, config.poll_interval)
        )
        now = time.monotonic()
        # As the database has it: poll_interval and a second. It must stand without a gap.
        self._idle_until = self._link.sent_at + config.poll_interval + 1.0
        # Not in step with other workers.
        self._call_at = min(now + again_in, self._idle_until - 1.0 - random.uniform(0.0, 0.1) * config.poll_interval)
        self._due_at = math.inf if due_in is None else now + max(due_in, 0.0)
        if not registered:
            # Forgotten after minutes of silence, on a laptop that was suspended.
            await self._link.perform(self._hello())

    async def _poll(self, first: float, longest: float, total: float) -> bool:
        """Claim at growing pauses for `total` seconds. True when the caller should go on claiming."""
        end = time.monotonic() + total
        pause = first
        while time.monotonic() < end and not self._state.stopping.is_set():
            self._woke |= await self._woken(min(pause, max(self._due_at - time.monotonic(), 0.0005)))
            capacity = self._capacity()
            if capacity == 0:
                return True
            claimed = await self._claim(capacity)
            if claimed:
                if claimed == capacity or self._runner.is_busy:
                    await self.wake_up()
                return True
            if self._due_at <= time.monotonic():
                # Another worker took the job that was due: ask for the next one after the polls.
                self._due_at = math.inf
                self._call_at = 0.0
            pause = min(pause * 2, longest)
        return self._state.stopping.is_set()

    async def _woken(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._state.wake.wait()
            return True
        except TimeoutError:
            return False
