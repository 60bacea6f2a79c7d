"""Hand-offs: jobs that are reserved for this worker when they are enqueued, and sent to it in a notification."""

from __future__ import annotations

import secrets
import time
from datetime import timedelta

from pgqueue.db import consume
from pgqueue.worker.hold.held import Held

# An offer lasts this long at most, in seconds, as idle() has it.
OFFER_FOR = 5.0


class Handoffs:
    """The channel for hand-offs, and what comes on it.

    `channel` is a random name, which only this worker and the database know. `listener` is the process id of the
    session that listens on it; None while there is none: then nothing is handed to this worker.
    """

    def __init__(self) -> None:
        self.channel = f"pgqueue_{secrets.token_hex(16)}"
        self.listener: int | None = None
        # Whether jobs may have been sent.
        self.were_offered = False
        # The monotonic time until which jobs may be sent.
        self.offered_until = 0.0
        # How far the clock of the database is ahead of our monotonic one, at most, in seconds.
        self._ahead = 0.0

    @property
    def are_offered(self) -> bool:
        """Whether jobs may be sent now."""
        return time.monotonic() < self.offered_until

    def offer(self, lease: float) -> consume.Handoff | None:
        """Return what to register with; None while nothing can be handed over."""
        if self.listener is None:
            return None
        self.were_offered = True
        return consume.Handoff(self.channel, self.listener, timedelta(seconds=lease))

    def clock_read(self, server_clock: float, sent_at: float) -> None:
        """A call sent at `sent_at` came when the clock of the database was `server_clock`, in seconds since 1970."""
        self._ahead = server_clock - sent_at

    def age(self, at: float, now: float) -> float:
        """Return how long ago the clock of the database showed `at`: estimated, and never too low."""
        return max(now + self._ahead - at, 0.0)

    def read(self, payload: str) -> tuple[Held, float]:
        """Read a notification; returns the job, and when its commit began, by the database. Its lease began then."""
        now = time.monotonic()
        row, reserved_at, lease = consume.read_handoff(payload)
        return Held(row, now - self.age(reserved_at, now) + lease, now), reserved_at
