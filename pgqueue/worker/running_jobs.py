"""A piece of shared memory on which a worker process notes what its handlers run.

Its supervisor reads it when the process has died, however it died. Noting costs no system call.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections.abc import Sequence

_SLOT = struct.Struct("<qq")
_FREE = _SLOT.pack(0, 0)


class Board:
    """Slots for (job id, reservation). What finds no slot is not noted."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, os.fstat(fd).st_size)
        self._free = list(range(0, len(self._memory), _SLOT.size))[::-1]

    def note(self, pairs: Sequence[tuple[int, int]]) -> list[int]:
        """Note that these run; returns what `clear` takes."""
        places = []
        for pair in pairs:
            if not self._free:
                break
            place = self._free.pop()
            _SLOT.pack_into(self._memory, place, *pair)
            places.append(place)
        return places

    def clear(self, places: Sequence[int]) -> None:
        """They run no more."""
        for place in places:
            self._memory[place : place + _SLOT.size] = _FREE
            self._free.append(place)


def create(slots: int) -> int:
    """Return a file descriptor for a board, which is gone when the last process has closed it."""
    with tempfile.TemporaryFile() as file:
        file.truncate(slots * _SLOT.size)
        return os.dup(file.fileno())


def read(fd: int) -> list[tuple[int, int]]:
    """Return the pairs that stand on a board."""
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    return [(job_id, reservation) for job_id, reservation in _SLOT.iter_unpack(data) if job_id and reservation]
