"""How many handlers run at a time, when that is a range: `--concurrency 4:64`."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from pgqueue.errors import ConfigError

log = logging.getLogger("pgqueue.worker")

# Seconds between looks.
INTERVAL = 0.5

# Starved: the event loop runs so many seconds late, or the process uses so much of a processor. Between the two
# marks of each, things stay as they are.
_LATE, _IN_TIME = 0.1, 0.03
_BUSY, _CALM = 0.9, 0.8

# The number shrinks when less than half of it was in use for so many seconds.
_IDLE = 5.0

# One line about changes in so many seconds.
_QUIET = 10.0


def parse(text: str) -> tuple[int | None, int]:
    """Read "20" as (None, 20) and "4:64" as (4, 64). Raises ConfigError."""
    low, colon, high = text.rpartition(":")
    try:
        return (int(low) if colon else None), int(high)
    except ValueError:
        raise ConfigError(f"concurrency is {text!r}", hint="give a number, or a range as 4:64") from None


@dataclass(slots=True)
class Look:
    """What a worker saw of itself since the last look.

    jobs_wait  the last reserve came back full
    in_use     the most handlers that ran at a time
    lag        how late the event loop was, in seconds
    cpu        the part of one processor that the process used
    """

    jobs_wait: bool
    in_use: int
    lag: float
    cpu: float

    @property
    def starved(self) -> str:
        """Why more handlers would do no good; "" when they would."""
        if self.lag > _LATE:
            return f"the event loop runs {self.lag:.2f} s late"
        if self.cpu > _BUSY:
            return f"the process uses {self.cpu:.0%} of a processor"
        return ""


class Concurrency:
    """A number between `low` and `high` that follows what each `Look` says.

    It grows by half while jobs wait, all slots are taken and the handlers have what they need. It shrinks by a
    quarter when they starve, and towards what was in use when half of it was idle for some seconds.
    """

    def __init__(self, low: int, high: int, now: float | None = None) -> None:
        self.low, self.high = low, high
        self.number = low
        self._idle_since = time.monotonic() if now is None else now
        self._peak = 0
        self._told = low
        self._told_at = -_QUIET

    def follow(self, look: Look, now: float) -> int:
        """Return the number to go on with."""
        before = self.number
        why = look.starved
        self._peak = max(self._peak, look.in_use)
        if look.in_use * 2 >= self.number:
            self._idle_since, self._peak = now, look.in_use
        if why:
            self.number = max(self.low, self.number - max(1, self.number // 4))
        elif look.jobs_wait and look.in_use >= self.number and look.lag < _IN_TIME and look.cpu < _CALM:
            why = "jobs wait"
            self.number = min(self.high, self.number + max(1, self.number // 2))
        elif now - self._idle_since >= _IDLE:
            why = "it is idle"
            self.number = max(self.low, self._peak, self.number // 2)
            self._idle_since, self._peak = now, look.in_use
        if self.number != before and now - self._told_at >= _QUIET:
            log.info("concurrency %d -> %d: %s", self._told, self.number, why)
            self._told, self._told_at = self.number, now
        return self.number
