"""How long handlers may keep the event loop to themselves."""

from __future__ import annotations

import asyncio

# Seconds. Quick handlers run one after the other for this time: their ends are then reported together, and together
# with the next claim.
LENGTH = 0.004


class Turn:
    """What handlers have of one turn of the event loop: `LENGTH`, for all slots together.

    A handler that never waits gives nothing else a turn: no claim, no extension of leases, no other handler.
    """

    def __init__(self) -> None:
        self._ends_at: float | None = None

    def is_over(self, now: float) -> bool:
        """Return whether the loop should do its other work before the next handler starts; see `asyncio.sleep(0)`."""
        if self._ends_at is None:
            self._ends_at = now + LENGTH
            # Before whatever the handlers leave to be done.
            asyncio.get_running_loop().call_soon(self._end)
        return now > self._ends_at

    def _end(self) -> None:
        self._ends_at = None
