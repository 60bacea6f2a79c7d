"""Exceptions by which a handler decides on its job. None of them is an error of the worker.

    raise Snooze(timedelta(minutes=5))        # too early: run again later; this attempt does not count
    raise Retry(after=30, reason="no answer")  # this attempt failed: retry in 30 s
    raise Discard("no such customer")         # it can never succeed: dead at once
    raise Cancel("the order was withdrawn")   # not needed any more: ends as cancelled
    raise Throttled(after=30, reason="429")    # nothing of its limit_key, or of its task, starts for 30 s

Delays are a timedelta, seconds, or an interval as PostgreSQL reads it ("5 min").
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, TypeAlias

Delay: TypeAlias = timedelta | float | str


class Signal(Exception):
    """Base of what a handler may raise to decide on its job."""


class Snooze(Signal):
    """Run the job again after `delay`. The attempt does not count and stores no error. Raises ValueError below zero."""

    def __init__(self, delay: Delay) -> None:
        super().__init__(f"for {delay}")
        self.delay = as_interval(delay)


class Retry(Signal):
    """The attempt failed: retry after `after`, or by the retry policy; dead when out of attempts.

    Raises ValueError for a delay below zero.
    """

    def __init__(self, after: Delay | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.after = None if after is None else as_interval(after)


class Discard(Signal):
    """The job can never succeed: it is dead at once."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


class Cancel(Signal):
    """The job is no longer needed: it ends as cancelled."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


class Throttled(Signal):
    """The handler was told to come back later: start nothing of the job's limit_key, or of its task, for `after`.

    The job is given back, and the attempt does not count; if the job has only been throttled for 24 hours, the attempt
    fails. `of` is "limit_key" or "task"; default: "limit_key", if the job has one. `after` is at most
    `pgqueue.settings.throttle_most` (1 hour). Raises ValueError below zero.

        raise Throttled(after=float(response.headers["Retry-After"]), reason="429")
    """

    def __init__(self, after: Delay, of: Literal["task", "limit_key"] | None = None, reason: str = "") -> None:
        super().__init__(reason)
        if of not in (None, "task", "limit_key"):
            raise ValueError(f'of must be "task" or "limit_key": {of!r}')
        self.after = as_interval(after)
        self.of = of


class Interrupted(BaseException):
    """Raised by `Job.check()`, and at each step, when the attempt must end. Let it pass. It is not an Exception, so
    `except Exception` in a handler does not catch it."""


def as_interval(delay: Delay) -> timedelta | str:
    """Return a delay as an interval. Raises TypeError, and ValueError for a negative or infinite delay."""
    if isinstance(delay, str):
        return delay
    if isinstance(delay, bool) or not isinstance(delay, int | float | timedelta):
        raise TypeError(f"a delay is a timedelta, seconds, or an interval as text, not {delay!r}")
    try:
        interval = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
    except OverflowError as error:
        raise ValueError(f"a delay must be a finite number of seconds: {delay}") from error
    if interval < timedelta(0):
        raise ValueError(f"a delay must not be negative: {delay}")
    return interval


class Suspended(BaseException):
    """Raised by `Job.sleep`, `Job.wait` and `Job.wait_event` when the job has been given back until later. Let it pass.
    It is not an Exception, so `except Exception` in a handler does not catch it."""
