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
        self._has_next = False

    def is_over(self, now: float) -> bool:
        """Return whether the loop should do its other work before the next handler starts; see `take_next`."""
        if self._ends_at is None:
            self._ends_at = now + LENGTH
            # Before whatever the handlers leave to be done.
            asyncio.get_running_loop().call_soon(self._end)
        return now > self._ends_at

    def take_next(self) -> bool:
        """Return whether the caller is the first that found this turn over: it goes on with `asyncio.sleep(0)`.

        The other slots sleep until they are woken: of a thousand, each would else cost a microsecond in every turn.
        """
        is_first, self._has_next = not self._has_next, True
        return is_first

    def _end(self) -> None:
        self._ends_at = None
        self._has_next = False
