"""The ends of jobs that wait to be reported, and how many of them one statement takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pgqueue.worker.hold.held import Held

# Ends that one statement reports at most, and their bytes: a server takes some seconds for more.
_BATCH = 1000
_BYTES = 4_000_000

# An end of more bytes goes apart, for the others would wait for it.
LARGE = 256_000

# No new jobs while so much waits to be stored: the database is behind.
_BACKLOG = 5000
_BACKLOG_BYTES = 64_000_000


class Ends:
    """Ends in the order in which they came, small and large ones apart.

    After a batch that was too much for the server the next ones are half as large; each that is stored doubles them.
    """

    def __init__(self) -> None:
        self._small: deque[Held] = deque()
        self._large: deque[Held] = deque()
        self._bytes = 0
        self._most = _BATCH

    @property
    def has_small(self) -> bool:
        """Whether one waits that is not large."""
        return bool(self._small)

    @property
    def has_large(self) -> bool:
        """Whether a large one waits."""
        return bool(self._large)

    @property
    def are_behind(self) -> bool:
        """Whether too many wait: the worker should claim nothing."""
        return len(self._small) >= _BACKLOG or self._bytes >= _BACKLOG_BYTES

    def add(self, held: Held) -> None:
        """This one waits."""
        if held.result is None and held.error is None:
            # As most do.
            self._small.append(held)
            return
        size = held.size
        self._bytes += size
        (self._small if size <= LARGE else self._large).append(held)

    def take(self, *, large: bool = False) -> list[Held]:
        """Take the next batch."""
        waiting = self._large if large else self._small
        batch: list[Held] = []
        total = 0
        while waiting and len(batch) < self._most:
            size = waiting[0].size
            total += size
            if batch and total > _BYTES:
                break
            self._bytes -= size
            batch.append(waiting.popleft())
        return batch

    def stored(self) -> None:
        """A batch was stored."""
        if self._most < _BATCH:
            self._most = min(2 * self._most, _BATCH)

    def were_too_many(self, batch: Sequence[Held]) -> None:
        """The server did not take this batch: the next ones are half as large."""
        self._most = max(len(batch) // 2, 1)
