"""What a worker tells operators about its present state."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from pgqueue.config import WorkerConfig
from pgqueue.worker.hold.held import Holding
from pgqueue.worker.link.outage import Outage
from pgqueue.worker.process import memory
from pgqueue.worker.process.requests import Requests
from pgqueue.worker.run.runner import Runner
from pgqueue.worker.tell.tell import Tell
from pgqueue.worker.trade.intake import Intake
from pgqueue.worker.trade.sleeper import Sleeper
from pgqueue.worker.trade.trade import Trade


class WorkerStatus:
    """Describes a worker, and tells whether it is ready: whether it would run a job that is due."""

    def __init__(
        self,
        config: WorkerConfig,
        started: asyncio.Event,
        requests: Requests,
        outage: Outage,
        trade: Trade,
        intake: Intake,
        sleeper: Sleeper,
        runner: Runner,
        holding: Holding,
        tell: Tell,
    ) -> None:
        self._config = config
        self._started = started
        self._requests = requests
        self._outage = outage
        self._trade = trade
        self._intake = intake
        self._sleeper = sleeper
        self._runner = runner
        self._holding = holding
        self._tell = tell
        self._began = time.monotonic()

    def as_dict(self) -> dict[str, Any]:
        """Return numbers and text only, times in seconds."""
        outage = self._outage.lasts
        claimed_at = self._intake.claimed_at
        reason = self._why_not_ready()
        return {
            "worker": self._config.name,
            "pid": os.getpid(),
            "ready": not reason,
            "reason": reason[:300],
            "started": self._started.is_set(),
            "quiet": self._requests.quiet,
            "stopping": self._requests.stopping.is_set(),
            "concurrency": self._runner.concurrency,
            "running": self._runner.running,
            "free": max(self._runner.concurrency - self._runner.running, 0),
            "buffered": self._runner.unstarted,
            "held": len(self._holding.held),
            "succeeded": self._tell.completed,
            "failed": self._tell.failures,
            "last_reserve": None if claimed_at is None else round(time.monotonic() - claimed_at, 3),
            "outage": None if outage is None else round(outage, 3),
            "last_error": self._outage.error[:300] or None,
            "memory": memory.resident(),
            "memory_limit": memory.limit(self._config.max_memory),
            "uptime": round(time.monotonic() - self._began, 3),
            "claims": self._tell.counts.claims.as_dict(),
        }

    def _why_not_ready(self) -> str:
        if not self._started.is_set():
            return self._outage.error or "it has not started yet"
        if self._requests.stopping.is_set():
            return "it stops"
        if self._requests.quiet:
            return "it is quiet"
        if self._outage.lasts is not None:
            return f"the database cannot be used: {self._outage.error}"
        if self._trade.capacity() == 0:
            # It needs no claim.
            return ""
        silent = time.monotonic() - max(self._intake.claimed_at or 0.0, self._sleeper.answered_at)
        if silent > max(3 * self._config.poll_interval, 60.0):
            return f"no call of reserve or idle was answered for {silent:.0f} s"
        return ""
