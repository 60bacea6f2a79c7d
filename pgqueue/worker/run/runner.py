"""Run reserved jobs, a limited number at a time, and report how each ended."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Container, Sequence
from functools import partial
from typing import Any, cast

from pgqueue.app import App
from pgqueue.db import consume
from pgqueue.tasks import Task
from pgqueue.worker.hold.held import OPEN, RELEASED, End, Ending, Held, Stop, stored_ending
from pgqueue.worker.hold.jobs import Jobs
from pgqueue.worker.hold.outbox import Outbox
from pgqueue.worker.link.connection import Link
from pgqueue.worker.process.loops import uniform
from pgqueue.worker.run.handlers import Handlers
from pgqueue.worker.run.slots import Slots
from pgqueue.worker.run.taken import Running, Waiting
from pgqueue.worker.run.threads import NoThread, Outcome
from pgqueue.worker.run.throughput import Throughput
from pgqueue.worker.run.turn import Turn
from pgqueue.worker.tell.tell import Tell

log = logging.getLogger("pgqueue.worker")

# For this time in seconds a thread takes the next job by itself.
_TURN_OF_THREAD = 0.05

# How many slots are woken when jobs come, and how many each of these wakes when it has taken one and others wait. One
# slot runs quick handlers one after the other, until its turn of the loop is over; where handlers wait, all run soon.
_WOKEN, _WAKES = 16, 4


class Runner:
    """Runs at most `concurrency` handlers at a time: async ones as coroutines, sync ones in threads.

    Jobs come by `take`, ends go to the outbox. A few long-lived coroutines see them to their ends, one job after the
    other; no code of the user runs in them, see `Handlers`. `waiting` are the jobs without a slot, `busy` those whose
    handlers run.

    A job that was lost, or whose worker crashed, is first reported over `link`, and runs if its lease still holds. One
    whose worker crashed is quarantined: no two of those run at a time, so of the many jobs that a process held when it
    died, only the one that killed it can do so again and again.

    `slots` hear when one has become free or no job waits to be started any more.
    """

    def __init__(
        self,
        app: App,
        concurrency: int,
        slots: Slots,
        outbox: Outbox,
        link: Link,
        tell: Tell,
        jobs: Jobs,
    ) -> None:
        self.busy = Running()
        self.waiting = Waiting()
        self.handlers = Handlers(app, concurrency, jobs, tell)
        self._app = app
        self._concurrency = concurrency
        self._most = concurrency
        self._slots = slots
        self._outbox = outbox
        self._link = link
        self._tell = tell
        self._coroutines: set[asyncio.Task[None]] = set()
        # Coroutines that wait for a job, or for a turn of the loop.
        self._sleeping: deque[asyncio.Future[None]] = deque()
        self._quarantined: Held | None = None
        self._closed = False
        self._throughput = Throughput()
        self._turn = Turn()

    @property
    def active(self) -> int:
        """Slots in which a job runs, or is about to."""
        return len(self._coroutines) - len(self._sleeping)

    @property
    def running(self) -> int:
        """Handlers that run."""
        return len(self.busy)

    @property
    def unstarted(self) -> int:
        """Jobs taken and not yet started."""
        return len(self.waiting)

    @property
    def concurrency(self) -> int:
        """How many handlers run at a time; to be set to at most what it was made with."""
        return self._concurrency

    @concurrency.setter
    def concurrency(self, number: int) -> None:
        # Coroutines above it end after the job that they run, or the next one if they run none.
        self._concurrency = min(number, self._most)
        if len(self._coroutines) < self._concurrency:
            self._wake(self.unstarted)

    @property
    def is_busy(self) -> bool:
        """Whether more than thirty jobs were run in the last 100 ms."""
        return self._throughput.is_busy()

    def capacity(self, coming: int = 0) -> int:
        """Return how many more jobs are useful now, when `coming` ones are being claimed already.

        Free slots, and a buffer of the jobs that ended in the last 100 ms.
        """
        buffer = self._throughput.buffer()
        useful = self._concurrency + buffer
        capacity = useful - len(self.busy) - len(self.waiting) - coming
        # In batches: while there are jobs to start, wait until half of all slots are free.
        if (coming or self.waiting) and capacity < useful / 2:
            return 0
        if buffer > self._concurrency:
            # Under load by halves: while the server works on one, the other is run here.
            capacity = min(capacity, useful // 2)
        return max(capacity, 0)

    @property
    def room(self) -> int:
        """How many more jobs would start soon, if no claim under way brings some."""
        return self._concurrency + self._throughput.buffer() - len(self.busy) - len(self.waiting)

    def take(self, several: Sequence[Held]) -> None:
        """Run jobs as soon as slots are free."""
        self.waiting.extend(several)
        self._wake(len(several))

    def stop(self, held: Held, stop: Stop) -> None:
        """Ask a handler to stop. An async one is cancelled, one in a thread has to check."""
        if not held.attempt.ask_to_stop(stop):
            return
        if held.leader is not None:
            # The batch stops for all of its keys: the ones still held are given back.
            self.stop(held.leader, Stop(End.RELEASED, stop.reason))
        if held.attempt.job is not None:
            held.attempt.job.cancelled.raise_it(stop.reason)
        if held.attempt.asyncio_task is not None:
            held.attempt.asyncio_task.cancel()

    def abandon(self, held: Held, stop: Stop) -> None:
        """Report the end of a job whose handler cannot be stopped; its later outcome is ignored."""
        self.busy.discard(held)
        self._outbox.end(held, stored_ending(held.attempt) or Ending(stop.end, stop.error))

    def give_back_unstarted(self, age: float = 0.0, only: Container[int] | None = None) -> int:
        """End the jobs that were not started within `age` seconds as released; returns how many those are.

        `only`: those with these ids, and what is in a batch with one of them.
        """
        given_back = [held for leader in self.waiting.take_out(age, only) for held in (leader, *leader.members)]
        for held in given_back:
            self._outbox.give_back(held)
        return len(given_back)

    def close(self) -> None:
        """End the coroutines. Threads that still run a handler continue until the process ends."""
        self._closed = True
        self.handlers.close()
        for coroutine in self._coroutines:
            coroutine.cancel()

    def _wake(self, jobs: int, most: int = _WOKEN) -> None:
        """Have coroutines take these jobs: some now, and the other ones by those, see `_run_jobs`."""
        for _ in range(min(jobs, most)):
            if (sleeper := self._sleeper()) is not None:
                sleeper.set_result(None)
            elif len(self._coroutines) < self._concurrency:
                self._start_coroutine()
            else:
                break

    def _sleeper(self) -> asyncio.Future[None] | None:
        # One that is done belongs to a coroutine that ends.
        while self._sleeping and self._sleeping[0].done():
            self._sleeping.popleft()
        return self._sleeping.popleft() if self._sleeping else None

    def _start_coroutine(self) -> None:
        # Not by the task factory of the loop: an eager one would run it here, before it is counted.
        coroutine = asyncio.Task(self._run_jobs(), loop=asyncio.get_running_loop(), name="pgqueue-runner")
        self._coroutines.add(coroutine)
        coroutine.add_done_callback(self._replace)

    def _replace(self, coroutine: asyncio.Task[None]) -> None:
        if coroutine not in self._coroutines:
            # It was to end.
            return
        self._coroutines.discard(coroutine)
        if self._closed:
            return
        self._sleeping = deque(sleeper for sleeper in self._sleeping if not sleeper.done())
        error = None if coroutine.cancelled() else coroutine.exception()
        log.error("a slot ended before its worker (%s) and is replaced", error or "cancelled", exc_info=error)
        self._slots.freed()
        # It may have been woken for a job.
        self._wake(self.unstarted)

    async def _run_jobs(self) -> None:
        me = cast("asyncio.Task[None]", asyncio.current_task())
        # A coroutine that was woken wakes others. So while jobs wait and some sleep, one is awake.
        is_woken = True
        while not self._closed:
            if me.cancelling():
                # By a handler that cancelled all asyncio tasks: what it meets next must not be another job.
                raise asyncio.CancelledError
            if len(self._coroutines) > self._concurrency:
                # Here and not in the callback: if many end at once, enough must stay.
                self._coroutines.discard(me)
                if self.waiting:
                    # It may have been woken for a job, which is left to another one.
                    self._wake(1)
                self._slots.freed()
                return
            if not self.waiting:
                self._slots.freed()
                await self._sleep()
                is_woken = True
                continue
            now = time.monotonic()
            if self._turn.is_over(now):
                await (asyncio.sleep(0) if self._turn.take_next() else self._sleep())
                is_woken = True
                continue
            if (held := self.waiting.next()) is None:
                # A thread has taken it.
                continue
            if is_woken:
                is_woken = False
                self._wake(len(self.waiting), _WAKES)
            if not self.waiting:
                # While there were jobs to start, `capacity` may have kept free slots for a larger claim.
                self._slots.freed()
            task = self._startable(held, now)
            if task is None:
                continue
            if self._is_plain(held, task):
                await self._run_in_threads(held, task)
            else:
                await self._run_one(held, task, now)

    async def _sleep(self) -> None:
        sleeper = asyncio.get_running_loop().create_future()
        self._sleeping.append(sleeper)
        await sleeper

    def _startable(self, held: Held, now: float) -> Task[Any, Any] | None:
        """Return the task of a job that may start now; None when the job was given back instead."""
        task = self._app.tasks.get(held.row.task)
        if held.attempt.stop is not None:
            self._outbox.end(held, Ending(held.attempt.stop.end))
        elif held.attempt.deadline < now:
            # The process stood still, or no extension came through: another worker may hold it by now.
            log.debug("%s was not started within its lease and is given back", held)
            self._outbox.end(held, RELEASED)
        elif task is None:
            self._outbox.end(held, Ending(End.RELEASED, delay=10.0))
        elif self._quarantined is not None and _has_crashed(held):
            self._outbox.end(held, Ending(End.RELEASED, delay=uniform(1.0, 3.0)))
        else:
            return task
        return None

    async def _run_one(self, held: Held, task: Task[Any, Any], started: float) -> None:
        row = held.row
        self.busy.add(held)
        if _has_crashed(held):
            self._quarantined = held
        try:
            is_watched = self._quarantined is held or _was_lost(held)
            if not is_watched or await self._may_start(held):
                if is_watched:
                    started = time.monotonic()
                held.attempt.started = started
                if row.timeout is not None:
                    held.attempt.timer = asyncio.get_running_loop().call_later(
                        row.timeout.total_seconds(), self._timed_out, held
                    )
                self._outbox.end(held, await self.handlers.run(held, task))
        except BaseException as error:
            # Also its cancellation, by code of a handler that cancels all asyncio tasks.
            if self._closed:
                raise
            self._not_run(held, error)
        finally:
            if held.attempt.timer is not None:
                held.attempt.timer.cancel()
            if self._quarantined is held:
                self._quarantined = None
            self.busy.discard(held)
            now = time.monotonic()
            self._throughput.ran(now - started, now)

    def _not_run(self, held: Held, error: BaseException) -> None:
        """Give a job back after an error around its handler, not in it. Else it would be held forever."""
        if not isinstance(error, NoThread):
            # This is logged once, because it affects every sync job.
            log.error("%s could not be run and is given back", held, exc_info=error)
        self._outbox.end(held, Ending(End.RELEASED, self.handlers.describe(error), delay=10.0))

    async def _may_start(self, held: Held) -> bool:
        """Report the start of a job that was lost or crashed before: so it counts if it kills this process at once.

        All members of a batch, for they share its end.
        """
        lost = await self._link.perform(consume.started([each.pair for each in (held, *held.members)]))
        if lost or held.attempt.deadline < time.monotonic():
            self.stop(held, Stop(End.RELEASED, "its lease was lost before it started"))
        if held.attempt.stop is not None:
            self._outbox.end(held, Ending(held.attempt.stop.end))
            return False
        return True

    def _timed_out(self, held: Held) -> None:
        if held.attempt.stop is None and held.attempt.ending is OPEN:
            log.warning("%s has run for its timeout of %g s and is asked to stop", held, held.timeout)
        self.stop(held, held.overrun)

    def _is_plain(self, held: Held, task: Task[Any, Any]) -> bool:
        """Return whether a sync handler needs nothing of the event loop until it ends."""
        row = held.row
        return not (
            task.is_async
            or task.typed is not None
            or task.hooks.codec is not None
            or task.payloads_parameter is not None
            or held.payloads is not None
            or held.attempt.stop is not None
            or row.timeout is not None
            or row.losses
            or row.crashes
            or self.handlers.around is not None
            or self._tell.events.is_on
        )

    async def _run_in_threads(self, held: Held, task: Task[Any, Any]) -> None:
        # Already here: until a thread begins, its slot would count as free.
        self.busy.add(held)
        try:
            odd = await self.handlers.threads.outlast(partial(self._run_plain_jobs, held, task))
        except NoThread as error:
            self.busy.discard(held)
            self._not_run(held, error)
            return
        if odd is None:
            return
        held, task, outcome = odd
        try:
            self._outbox.end(held, await self.handlers.run(held, task, outcome))
        except BaseException as error:
            if self._closed:
                raise
            self._not_run(held, error)
        finally:
            self.busy.discard(held)
            now = time.monotonic()
            self._throughput.ran(now - (held.attempt.started or now), now)

    def _run_plain_jobs(self, held: Held, task: Task[Any, Any]) -> tuple[Held, Task[Any, Any], Outcome] | None:
        """In a thread: run a plain job, and then others that wait, while they are plain and succeed.

        So a thread and the event loop exchange one message for many jobs. Returns the job that did not simply succeed,
        with its handler's result or exception: the event loop determines how it ended.
        """
        handlers, threads = self.handlers, self.handlers.threads
        turn_ends = time.monotonic() + _TURN_OF_THREAD
        while True:
            self.busy.add(held)
            held.attempt.started = started = time.monotonic()
            ran = handlers.run_plain(held, task)
            if not isinstance(ran, Ending):
                return held, task, ran
            self.busy.discard(held)
            now = time.monotonic()
            # On the loop, where the attempt may have been abandoned meanwhile.
            threads.report(partial(self._throughput.ran, now - started, now), partial(self._outbox.end, held, ran))
            if not self.waiting or now > turn_ends or self._closed or len(self._coroutines) > self._concurrency:
                return None
            following = self.waiting.next()
            if following is None:
                return None
            known = self._app.tasks.get(following.row.task)
            if known is None or following.attempt.deadline < now or not self._is_plain(following, known):
                self.waiting.appendleft(following)
                return None
            held, task = following, known


def _has_crashed(held: Held) -> bool:
    """Return whether a job, or another one of its batch, has crashed a worker before."""
    return bool(held.row.crashes or (held.members and any(each.row.crashes for each in held.members)))


def _was_lost(held: Held) -> bool:
    """Return whether a job, or another one of its batch, was lost before."""
    return bool(held.row.losses or (held.members and any(each.row.losses for each in held.members)))
