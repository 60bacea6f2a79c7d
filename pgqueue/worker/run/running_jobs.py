"""A table in shared memory of the jobs whose handlers run in a worker process.

Its supervisor reads it when the process has ended, in whatever way. A record costs no system call.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections.abc import Sequence

_SLOT = struct.Struct("<qq")
_FREE = _SLOT.pack(0, 0)


class RunningJobs:
    """Slots for (job id, reservation). A job for which no slot is free is not recorded."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, os.fstat(fd).st_size)
        self._free = list(range(0, len(self._memory), _SLOT.size))[::-1]

    def record(self, pairs: Sequence[tuple[int, int]]) -> list[int]:
        """Record that these jobs run; returns the positions for `clear`."""
        positions = []
        for pair in pairs:
            try:
                position = self._free.pop()
            except IndexError:
                # Not looked at before: another thread may take the last one in between.
                break
            _SLOT.pack_into(self._memory, position, *pair)
            positions.append(position)
        return positions

    def clear(self, positions: Sequence[int]) -> None:
        """Remove the records at these positions."""
        for position in positions:
            self._memory[position : position + _SLOT.size] = _FREE
            self._free.append(position)


def create(slots: int) -> int:
    """Return a file descriptor for a table, which ends when the last process has closed it."""
    with tempfile.TemporaryFile() as file:
        file.truncate(slots * _SLOT.size)
        return os.dup(file.fileno())


def read(fd: int) -> list[tuple[int, int]]:
    """Return the pairs in a table."""
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    return [(job_id, reservation) for job_id, reservation in _SLOT.iter_unpack(data) if job_id and reservation]
