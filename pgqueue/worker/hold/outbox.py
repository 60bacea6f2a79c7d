"""The ends of jobs that wait to be reported, and how many of them one statement takes."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from pgqueue.worker.hold.held import OPEN, RELEASED, End, Ending, Held
from pgqueue.worker.process.requests import Requests

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

    After a batch that was too much for the server, the next one is half as large; each accepted batch doubles the next.
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
        return self.are_behind_with(0)

    def are_behind_with(self, others: int) -> bool:
        """Whether too many wait, with as many others elsewhere."""
        return len(self._small) + others >= _BACKLOG or self._bytes >= _BACKLOG_BYTES

    def add(self, held: Held) -> bool:
        """Add an end that waits; returns whether it is a large one."""
        ending = held.attempt.ending
        if ending.result is None and ending.error is None:
            # As most do.
            self._small.append(held)
            return False
        size = ending.size
        self._bytes += size
        is_large = size > LARGE
        (self._large if is_large else self._small).append(held)
        return is_large

    def take(self, *, large: bool = False) -> list[Held]:
        """Take the next batch."""
        waiting = self._large if large else self._small
        if not self._bytes:
            # None of them has any.
            batch = [waiting.popleft() for _ in range(min(len(waiting), self._most))]
        else:
            batch = self._take_measured(waiting)
        if batch and self._most < _BATCH:
            # Unless it turns out to be too much.
            self._most = min(2 * self._most, _BATCH)
        return batch

    def _take_measured(self, waiting: deque[Held]) -> list[Held]:
        batch: list[Held] = []
        total = 0
        while waiting and len(batch) < self._most:
            ending = waiting[0].attempt.ending
            # Most ends have none.
            size = ending.size if ending.result is not None or ending.error is not None else 0
            total += size
            if batch and total > _BYTES:
                break
            self._bytes -= size
            batch.append(waiting.popleft())
        return batch

    def were_too_many(self, batch: Sequence[Held]) -> None:
        """The server did not accept this batch, so the next ones are half as large."""
        self._most = max(len(batch) // 2, 1)


class Outbox:
    """Where ends wait to be stored. The runner and whatever gives jobs back put them in, the reporter takes them out.

    They go one of three ways, none of which waits for another; each has an event that is set when an end has come:
    small ends with what goes back, large ends, and failures on which a retry function of the database decides.
    """

    def __init__(self, requests: Requests) -> None:
        self.came = asyncio.Event()
        self.large_came = asyncio.Event()
        self.undecided_came = asyncio.Event()
        self._requests = requests
        # To be completed or failed; to be released, snoozed, or reported again after a lock; ended by their handlers.
        self._ends = Ends()
        self._returns: deque[Held] = deque()
        self._settled: deque[Held] = deque()
        self._undecided: list[Held] = []
        # Ends that another session's lock, or a refusal, keeps from being stored: they are reported again later.
        self._postponed = 0

    @property
    def is_empty(self) -> bool:
        """Whether every end is being reported or stored, or waits for a retry function to decide."""
        return not (self._ends.has_small or self._ends.has_large or self._returns or self._settled)

    @property
    def has_work(self) -> bool:
        """Whether one waits that is neither large nor undecided."""
        return bool(self._ends.has_small or self._returns or self._settled)

    @property
    def has_large(self) -> bool:
        """Whether a large one waits."""
        return self._ends.has_large

    @property
    def is_behind(self) -> bool:
        """Whether too many ends wait: the worker should claim nothing."""
        return self._ends.are_behind_with(self._postponed + len(self._returns) + len(self._undecided))

    def end(self, held: Held, ending: Ending) -> None:
        """An attempt has ended so, and with it those of its members. One that has ended before was abandoned."""
        for each in ended(held, ending):
            self.put(each)

    def correct(self, held: Held, ending: Ending) -> None:
        """An end cannot be stored as it is: it is another one."""
        held.attempt.ending = ending

    def put(self, held: Held) -> None:
        """Report the end of a job soon."""
        end = held.attempt.ending.end
        if (end is End.SUCCEEDED or end is End.FAILED) and not held.attempt.is_locked:
            if self._ends.add(held):
                self.large_came.set()
        elif end is End.SETTLED or end is End.SUSPENDED:
            self._settled.append(held)
        else:
            self._returns.append(held)
        self.came.set()
        self._requests.freed.set()

    def put_locked(self, held: Held, seconds: float) -> None:
        """Another session has locked this job's row: report its end again, after this time and with what goes back."""
        held.attempt.is_locked = True
        self.postpone(seconds, partial(self.put, held))

    def give_back(self, held: Held, seconds: float = 0.0) -> None:
        """Release a job that cannot start here, after this time."""
        held.attempt.ending = RELEASED
        if seconds:
            self.postpone(seconds, partial(self.put, held))
        else:
            self.put(held)

    def postpone(self, seconds: float, report: Callable[[], object]) -> None:
        """Report an end after this time. Until then it waits as others do: a worker that stores none claims no more."""
        self._postponed += 1
        asyncio.get_running_loop().call_later(seconds, self._report_now, report)

    def put_undecided(self, held: Held) -> None:
        """Add a failure on which the retry function of its task is to decide."""
        self._undecided.append(held)
        self.undecided_came.set()

    def take(self, *, large: bool = False) -> list[Held]:
        """Take ends for one statement."""
        return self._ends.take(large=large)

    def take_returns(self) -> list[Held]:
        """Take all that goes back."""
        taken = list(self._returns)
        self._returns.clear()
        for held in taken:
            held.attempt.is_locked = False
        return taken

    def take_settled(self) -> list[Held]:
        """Take all whose handlers have ended them."""
        taken = list(self._settled)
        self._settled.clear()
        return taken

    def take_undecided(self, most: int) -> list[Held]:
        """Take undecided failures of one task."""
        task = self._undecided[0].row.task if self._undecided else ""
        taken = [held for held in self._undecided if held.row.task == task][:most]
        self._undecided = [held for held in self._undecided if held not in taken]
        return taken

    def were_too_many(self, batch: Sequence[Held]) -> None:
        """The server did not accept this batch, so the next ones are smaller."""
        self._ends.were_too_many(batch)

    def _report_now(self, report: Callable[[], object]) -> None:
        self._postponed -= 1
        report()


def ended(held: Held, ending: Ending) -> Sequence[Held]:
    """Note how an attempt has ended; returns all that have ended with it, and none if it has ended before."""
    attempt = held.attempt
    if attempt.ending is not OPEN:
        return ()
    attempt.ending = ending
    if attempt.started is not None:
        attempt.seconds = time.monotonic() - attempt.started
    for member in held.members:
        # The result is the leader's.
        member.attempt.ending = ending if ending.result is None else replace(ending, result=None)
        member.attempt.seconds = attempt.seconds
    return (held, *held.members)
