"""How many handlers run at a time, when that is a range: `--concurrency 4:64`."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from pgqueue.errors import ConfigError
from pgqueue.worker.run.slots import Slots

log = logging.getLogger("pgqueue.worker")

# Seconds between samples.
INTERVAL = 0.5

# Starved: the event loop runs this many seconds late, or the process uses this part of a processor. Between the two
# marks of each, the number stays.
_LATE, _IN_TIME = 0.1, 0.03
_BUSY, _CALM = 0.9, 0.8

# The number shrinks when less than half of it was in use for this long, in seconds.
_IDLE = 5.0

# Changes are logged at most once in this time, in seconds.
_QUIET = 10.0


def parse(text: str) -> tuple[int | None, int]:
    """Read "20" as (None, 20) and "4:64" as (4, 64). Raises ConfigError."""
    low, colon, high = text.rpartition(":")
    try:
        return (int(low) if colon else None), int(high)
    except ValueError:
        raise ConfigError(f"concurrency is {text!r}", hint="give a number, or a range as 4:64") from None


@dataclass(slots=True)
class Sample:
    """A worker's measurements of itself since the last sample.

    jobs_wait  whether the last reserve returned as many jobs as it asked for
    in_use     the most handlers that ran at the same time
    lag        how late the event loop was, in seconds
    cpu        the part of one processor that the process used
    """

    jobs_wait: bool
    in_use: int
    lag: float
    cpu: float

    @property
    def starved(self) -> str:
        """Why more handlers would not help; "" if they would."""
        if self.lag > _LATE:
            return f"the event loop runs {self.lag:.2f} s late"
        if self.cpu > _BUSY:
            return f"the process uses {self.cpu:.0%} of a processor"
        return ""


class Concurrency:
    """A number between `low` and `high` that follows each `Sample`.

    It grows by half while jobs wait, all slots are taken and the handlers do not starve. It shrinks by a quarter
    when they do, and towards the number in use when half of it was idle for some seconds.
    """

    def __init__(self, low: int, high: int, now: float | None = None) -> None:
        self.low, self.high = low, high
        self.number = low
        self._idle_since = time.monotonic() if now is None else now
        self._peak = 0
        self._logged = low
        self._logged_at = -_QUIET

    def follow(self, sample: Sample, now: float) -> int:
        """Return the number to continue with."""
        before = self.number
        why = sample.starved
        self._peak = max(self._peak, sample.in_use)
        if sample.in_use * 2 >= self.number:
            self._idle_since, self._peak = now, sample.in_use
        if why:
            self.number = max(self.low, self.number - max(1, self.number // 4))
        elif sample.jobs_wait and sample.in_use >= self.number and sample.lag < _IN_TIME and sample.cpu < _CALM:
            why = "jobs wait"
            self.number = min(self.high, self.number + max(1, self.number // 2))
        elif now - self._idle_since >= _IDLE:
            why = "it is idle"
            self.number = max(self.low, self._peak, self.number // 2)
            self._idle_since, self._peak = now, sample.in_use
        if self.number != before and now - self._logged_at >= _QUIET:
            log.info("concurrency %d -> %d: %s", self._logged, self.number, why)
            self._logged, self._logged_at = self.number, now
        return self.number


async def adapt_forever(slots: Slots, low: int, high: int) -> None:
    """Set the number of slots between `low` and `high`, by a sample every half second."""
    wanted = Concurrency(low, high)
    slots.concurrency = low
    sampled, spent = time.monotonic(), time.process_time()
    while True:
        in_use = 0
        lag = 0.0
        for _ in range(5):
            before = time.monotonic()
            await asyncio.sleep(INTERVAL / 5)
            lag = max(lag, time.monotonic() - before - INTERVAL / 5)
            in_use = max(in_use, slots.running)
        now, used = time.monotonic(), time.process_time()
        sample = Sample(slots.wanted, in_use, lag, (used - spent) / (now - sampled))
        sampled, spent = now, used
        number = wanted.follow(sample, now)
        if number != slots.concurrency:
            slots.concurrency = number
            slots.freed()
