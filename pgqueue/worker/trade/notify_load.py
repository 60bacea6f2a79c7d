"""Whether jobs come so fast that a worker should poll and not be idle, for commits with a notification take turns.

NOTIFY's lock exists once in a cluster and is held while a commit is flushed. A notification carries the time of its
commit, so its delay is the time that its commit took, the wait for the lock included. The rate times the delay is how
many commits are in that path on average (Little's law). A single one, however fast it commits, delays no other. So a
worker leaves "idle" only if others wait: with commits of 10 ms at about a hundred per second, with commits of a
millisecond at about a thousand.

Where no commit waits, jobs are handed off up to some thousand a second: each starts as it is committed. Above that, and
where jobs are announced and not handed off, polls are cheaper: each finds several.
"""

from __future__ import annotations

from collections import deque

# If more commits than this wait, the worker leaves idle; it stays awake while more than this would wait if all
# notified.
_LEAVE = 1.5
_STAY = 1.0

# Below this delay, in seconds, claims find no jobs for which it would pay, save at a rate above this, in a second.
_LONG = 0.003
_FAST = 300

# Seconds over which notifications are averaged, and how many are needed; over which the jobs that come are counted.
_WINDOW = 1.0
_ENOUGH = 6
_STREAM = 0.5

# The shortest delay of the last seconds is about the time of one commit: it is kept for this long, in slices.
_SHORTEST_OF = 10.0
_SLICE = 0.5

_LONGEST_PAUSE = 0.05

# In a tenth of a second: more claimed jobs than this are a stream, for which polls cost less than a notification each;
# and more jobs than this are too many to be handed off one by one, which takes the worker and the server half a
# millisecond each.
_SPAN = 0.1
_STREAM_OF = 30
_MOST = 130

# A worker that left idle polls for this time, in seconds, while jobs stream in, before it tries to be idle again; where
# it had claimed them, for the longer one.
_AWAKE_FOR = 1.0
_CLAIMS_FOR = 10.0


class _Recent:
    """The sum of what came within the last seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._came: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, number: int, now: float) -> None:
        self._came.append((now, number))
        self._sum += number
        self.sum(now)

    def sum(self, now: float) -> int:
        while self._came and self._came[0][0] <= now - self._seconds:
            self._sum -= self._came.popleft()[1]
        return self._sum


class NotifyLoad:
    """What notifications show about the commits that sent them. Times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._heard: deque[tuple[float, float]] = deque()
        self._delays = 0.0
        self._claimed = _Recent(_SPAN)
        self._handed = _Recent(_SPAN)
        self._stream = _Recent(_STREAM)
        self._shortest: deque[tuple[float, float]] = deque()
        self._awake_until = 0.0

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
        rate = (count - 1) / max(now - self._heard[0][0], 0.02)
        return rate * mean > _LEAVE and (mean > _LONG or rate > _FAST)

    def came(self, jobs: int, now: float, *, handed: bool = False) -> None:
        """Jobs came, by a claim, or `handed` off."""
        (self._handed if handed else self._claimed).add(jobs, now)
        self._stream.add(jobs, now)

    def left_idle(self, now: float) -> None:
        """The worker is not idle any more."""
        # What is announced, and not handed off, would end that again at once.
        is_claimed = self._claimed.sum(now) > _STREAM_OF
        self._awake_until = now + (_CLAIMS_FOR if is_claimed else _AWAKE_FOR)

    def outruns_handoffs(self, now: float) -> bool:
        """Return whether more jobs are handed off than should be, one by one."""
        return self._handed.sum(now) > _MOST

    def hands_off_alone(self, now: float) -> bool:
        """Return whether a stream of jobs is handed off, and none is claimed."""
        return self._handed.sum(now) > _STREAM_OF and not self._claimed.sum(now)

    def polls_on(self, now: float, is_idle: bool) -> bool:
        """Return whether a worker that runs a stream of jobs, and has just claimed some, should not be idle."""
        claimed = self._claimed.sum(now)
        if is_idle:
            return claimed > _STREAM_OF
        return now < self._awake_until or claimed > _MOST or self.pause(now) is not None

    def pause(self, now: float) -> float | None:
        """Return how long to wait before the next claim; None: the worker may be idle."""
        commit = min((delay for _, delay in self._shortest), default=0.0)
        if commit < _LONG:
            return None
        rate = self._stream.sum(now) / _STREAM
        return min(max(commit / 2, _LONG), _LONGEST_PAUSE) if rate * commit > _STAY else None
