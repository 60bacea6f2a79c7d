"""How many commits wait for NOTIFY's lock, which exists once in a cluster and is held while they are flushed.

A notification carries the time of its commit, so its delay is the time that its commit took, the wait for the lock
included. The rate times the delay is how many commits are in that path on average (Little's law). A single one, however
fast it commits, delays no other. So a worker leaves "idle" only if others wait: with commits of 10 ms at about a
hundred per second, and not on a disk that commits in a millisecond.
"""

from __future__ import annotations

from collections import deque

# If more commits than this wait, the worker leaves idle; it stays awake while more than this would wait if all
# notified.
_LEAVE = 1.5
_STAY = 1.0

# Below this delay, in seconds, claims find no jobs for which it would pay.
_LONG = 0.003

# Seconds over which notifications are averaged, and how many are needed; over which the jobs that come are counted.
_WINDOW = 1.0
_ENOUGH = 6
_STREAM = 0.5

# The shortest delay of the last seconds is about the time of one commit: it is kept for this long, in slices.
_SHORTEST_OF = 10.0
_SLICE = 0.5

_LONGEST_PAUSE = 0.05


class NotifyLoad:
    """What notifications show about the commits that sent them. Times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._heard: deque[tuple[float, float]] = deque()
        self._delays = 0.0
        self._jobs: deque[tuple[float, int]] = deque()
        self._shortest: deque[tuple[float, float]] = deque()

    def heard(self, delay: float, now: float) -> bool:
        """A notification came `delay` seconds after its commit began; True when the worker should not be idle."""
        self._heard.append((now, delay))
        self._delays += delay
        while self._heard[0][0] < now - _WINDOW:
            self._delays -= self._heard.popleft()[1]
        if not self._shortest or now > self._shortest[-1][0] + _SLICE:
            self._shortest.append((now, delay))
            while self._shortest[0][0] < now - _SHORTEST_OF:
                self._shortest.popleft()
        elif delay < self._shortest[-1][1]:
            self._shortest[-1] = self._shortest[-1][0], delay
        count = len(self._heard)
        if count < _ENOUGH:
            return False
        mean = self._delays / count
        seconds = max(now - self._heard[0][0], 0.02)
        return mean > _LONG and (count - 1) / seconds * mean > _LEAVE

    def came(self, jobs: int, now: float) -> None:
        """Jobs came, by a claim or a hand-off."""
        self._jobs.append((now, jobs))
        while self._jobs[0][0] < now - _STREAM:
            self._jobs.popleft()

    def pause(self, now: float) -> float | None:
        """Return how long to wait before the next claim; None: the worker may be idle."""
        commit = min((delay for _, delay in self._shortest), default=0.0)
        if commit < _LONG:
            return None
        rate = sum(jobs for at, jobs in self._jobs if at > now - _STREAM) / _STREAM
        return min(max(commit / 2, _LONG), _LONGEST_PAUSE) if rate * commit > _STAY else None
