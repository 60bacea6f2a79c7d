"""Hand-offs: jobs that enqueue() reserves for this worker, and sends to it in a notification."""

from __future__ import annotations

import secrets
import time
from datetime import timedelta

from pgqueue.db import consume
from pgqueue.worker.held import Held

# If its transaction stayed open for longer than this many seconds after the enqueue, or a clock was set, the job is
# given back and claimed.
_FRESH = 1.0


class Handoffs:
    """The channel for hand-offs, and what comes on it.

    `channel` is a random name, which only this worker and the database know. `listener` is the process id of the
    session that listens on it; None while there is none: then enqueue() hands nothing to this worker.
    """

    def __init__(self) -> None:
        self.channel = f"pgqueue_{secrets.token_hex(16)}"
        self.listener: int | None = None
        # Whether some may have been sent.
        self.were_offered = False
        # How far the clock of the database is ahead of our monotonic one, at most, in seconds.
        self._ahead = 0.0

    def offer(self, lease: float) -> consume.Handoff | None:
        """Return what to register with; None while nothing can be handed over."""
        if self.listener is None:
            return None
        self.were_offered = True
        return consume.Handoff(self.channel, self.listener, timedelta(seconds=lease))

    def clock_read(self, server_clock: float, sent_at: float) -> None:
        """The database read its clock as `server_clock`, in seconds since 1970, for a call sent at `sent_at`."""
        self._ahead = server_clock - sent_at

    def read(self, payload: str) -> tuple[Held, bool]:
        """Read a notification; returns the job, and whether it was handed over just now.

        The lease began at the enqueue, by the clock of the database. The age of that is estimated, and never too low.
        """
        now = time.monotonic()
        row, reserved_at, lease = consume.read_handoff(payload)
        age = now + self._ahead - reserved_at
        return Held(row, now - age + lease, now), 0.0 <= age <= _FRESH
