"""Run maintenance while the worker is busy, and log the steps of it that keep failing."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping

from pgqueue.db import consume
from pgqueue.worker.link.connection import Link
from pgqueue.worker.presence.registration import Registration

log = logging.getLogger("pgqueue.worker")

# An idle worker still calls maintain() this often: it alone makes and drops tables, and reports steps that fail.
_FULL_RUN_EVERY = 60.0

# No run of maintenance is needed when the last one is younger than this, in seconds.
_MAX_AGE = 0.8
_FULL_RUN_MAX_AGE = 0.1

# A step that keeps failing is logged this often, in seconds.
_SAY_AGAIN = 600.0


class Maintenance:
    """The worker's share of maintenance."""

    def __init__(self, link: Link, registration: Registration) -> None:
        self._link = link
        self._registration = registration
        # The steps that keep failing: the error that was logged, and when.
        self._failing: dict[str, tuple[str, float]] = {}

    async def maintain_forever(self) -> None:
        """Run maintenance about once a second, except while idle() does so."""
        full_run_at = -math.inf
        while True:
            # idle() makes and drops no tables: that takes tens of milliseconds, on the connection that claims.
            if self._registration.is_idle and time.monotonic() < full_run_at + _FULL_RUN_EVERY:
                await asyncio.sleep(0.5)
                continue
            # Right after a run of idle() there is no need for another, except for those steps.
            max_age = _FULL_RUN_MAX_AGE if self._registration.is_idle else _MAX_AGE
            ran, *_, pause, failing = await self._link.perform(consume.maintain(max_age=max_age))
            if ran:
                full_run_at = time.monotonic()
                self.report(failing or {})
            await asyncio.sleep(pause)

    def report(self, failing: Mapping[str, str]) -> None:
        """Log the steps that keep failing: at first, with another error, and every ten minutes; and those that work."""
        now = time.monotonic()
        for step in self._failing.keys() - failing.keys():
            del self._failing[step]
            log.info("maintenance step %s works again.", step)
        for step, error in failing.items():
            logged, at = self._failing.get(step, ("", -math.inf))
            if error != logged or now >= at + _SAY_AGAIN:
                self._failing[step] = error, now
                log.error("maintenance step %s keeps failing: %s; see pgqueue doctor.", step, error)
