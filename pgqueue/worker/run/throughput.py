"""How fast jobs end here, and how many more to claim for that."""

from __future__ import annotations

import time

# Over this time, in seconds, jobs are counted: they determine the size of the buffer.
_SPAN = 0.1
# With 1,000 a worker drains 11 percent less: larger claims cost the server less for each job, and it has work on both
# connections. 3,000 are no faster.
_MOST = 2000

# More jobs than this in one span: a stream, and not single ones. Then polls cost less than a NOTIFY for each job, and
# commits with a NOTIFY, which wait for each other, are spared.
_BUSY = 30


class Throughput:
    """Counts the jobs of the last 100 ms. Most of the time it only adds one to a number."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._now = 0
        self._before = 0
        self._ran = 0
        self._mean = 0.0

    def ran(self, seconds: float, now: float) -> None:
        """Count a job that ran for `seconds` and ended `now`."""
        if now - self._since >= _SPAN:
            self._roll(now)
        self._now += 1
        self._ran += 1
        # The first few count in full, because ten slow jobs would look like quick ones.
        self._mean += (seconds - self._mean) / min(self._ran, 16)

    def buffer(self) -> int:
        """Return how many jobs to hold beyond the free slots: none for handlers over 100 ms on average."""
        return 0 if self._mean > _SPAN else min(self.last(), _MOST)

    def is_busy(self) -> bool:
        """Return whether more than thirty jobs were run in the last 100 ms."""
        return self.last() > _BUSY

    def last(self) -> int:
        """Return the jobs of the last 100 ms, to within one such span."""
        self._roll(time.monotonic())
        return max(self._now, self._before)

    def _roll(self, now: float) -> None:
        passed = now - self._since
        if passed >= _SPAN:
            self._before = self._now if passed < 2 * _SPAN else 0
            self._now = 0
            self._since = now
