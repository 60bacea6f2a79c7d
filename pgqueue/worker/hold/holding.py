"""The jobs that this worker holds."""

from __future__ import annotations

import asyncio
import time

from pgqueue.worker.hold.held import Held


class Holding:
    """The jobs of this worker by (id, reservation), from their claim until their end is stored.

    `extend_now` asks for their leases to be extended at once.
    """

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], Held] = {}
        self.extend_now = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_at = 0.0

    def add(self, held: Held) -> None:
        """Keep this job's lease from now on."""
        self.held[held.pair] = held

    def remove(self, held: Held) -> None:
        """The job is finished, or lost: forget it."""
        self.held.pop(held.pair, None)

    def start(self) -> None:
        """Note the running loop, on which leases are extended."""
        self._loop = asyncio.get_running_loop()

    def extend_soon(self) -> None:
        """Extend all leases, from any thread; at most once a second, for a handler may ask in each step of a loop."""
        now = time.monotonic()
        if self._loop is not None and now - self._asked_at >= 1.0:
            self._asked_at = now
            self._loop.call_soon_threadsafe(self.extend_now.set)
