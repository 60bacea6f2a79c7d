"""Keep the worker registered."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from dataclasses import dataclass

from pgqueue.config import WorkerConfig
from pgqueue.db import presence
from pgqueue.db.call import Call
from pgqueue.errors import InvalidArgument
from pgqueue.worker.link.connection import Link
from pgqueue.worker.presence.identity import Identity
from pgqueue.worker.process import memory
from pgqueue.worker.tell.counts import Entry, FailedAttempt
from pgqueue.worker.tell.tell import Counts

log = logging.getLogger("pgqueue.worker")

# Entries that beat() takes at a time.
_MOST = 1000


@dataclass(frozen=True, slots=True)
class Report:
    """What goes with one heartbeat. It keeps its `id` when it is sent again, for it may have arrived."""

    id: int
    counted: list[Entry]
    troubles: list[FailedAttempt]


class Registration:
    """The worker's row in pgqueue.workers. `channel` is its own channel for NOTIFY; "" before `register`.

    `calls_idle_at` is the monotonic time of the next call of idle(), which serves as a heartbeat and runs maintenance;
    the sleeper writes it.
    """

    def __init__(self, config: WorkerConfig, identity: Identity, link: Link, counts: Counts) -> None:
        self.channel = ""
        self.calls_idle_at = 0.0
        self._config = config
        self._identity = identity
        self._link = link
        self._counts = counts
        self._unanswered: deque[Report] = deque()
        self._is_leaving = False

    @property
    def is_idle(self) -> bool:
        """Whether the worker calls idle()."""
        return time.monotonic() < self.calls_idle_at + 0.5

    def hello(self) -> Call[str]:
        """Return the statement that registers the worker."""
        info = {**self._identity.info(), "memory": memory.reported()}
        return presence.hello(self._config.name, self._config.queues, info)

    async def register(self, link: Link) -> None:
        """Register over a connection that was just made, unless another process has taken the name meanwhile."""
        if not await self._identity.is_taken(link.perform_now):
            self.channel = await link.perform_now(self.hello())

    async def beat_forever(self) -> None:
        """Send heartbeats with what jobs did; none while idle() serves as one and nothing was counted."""
        while True:
            # At least once a minute, however long the lease: a worker that is silent for five minutes is deregistered.
            await asyncio.sleep(self._identity.heartbeat)
            await self.report()

    async def report_rest(self) -> None:
        """Send the counts since the last heartbeat, if there are any, before the worker deregisters."""
        self._is_leaving = True
        counted = self._counts.take("beat")
        if counted or self._unanswered:
            await self._send(counted)

    async def report(self) -> None:
        """Send a heartbeat with the counts since the last one."""
        counted = self._counts.take("beat")
        if self.is_idle and not counted and not self._unanswered:
            return
        if not await self._send(counted) and not self._is_leaving:
            # Deregistered after minutes of silence, on a laptop that was suspended; or a pooler hid that the server has
            # been restarted or replaced.
            await self._link.perform(self.hello())

    async def _send(self, counted: list[Entry]) -> bool:
        """Send these counts; False: the worker is not registered. What does not arrive goes with the next heartbeat."""
        troubles = self._counts.take_troubles()
        for start in range(0, max(len(counted), 1), _MOST):
            some = counted[start : start + _MOST]
            self._unanswered.append(Report(secrets.randbelow(10**12), some, [] if start else troubles))
        while self._unanswered:
            oldest = self._unanswered[0]
            try:
                if not await self._link.perform(self._beat(oldest)):
                    return False
            except InvalidArgument as error:
                # Nothing would be heard of this worker any more if each heartbeat began with it.
                log.error("a heartbeat with the counts of jobs was refused, and these are not counted: %s", error)
            # Another heartbeat may have sent it as well, which counts once.
            if self._unanswered and self._unanswered[0] is oldest:
                self._unanswered.popleft()
        return True

    def _beat(self, report: Report) -> Call[bool]:
        told = [each.as_dict() for each in report.troubles]
        return presence.beat(self._config.name, report.counted, memory.reported(), told, report.id)
