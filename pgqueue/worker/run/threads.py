"""Threads that run calls for the event loop, and exchange one message with it for many calls."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger("pgqueue.worker")

# The result or exception of a call.
Outcome = tuple[object, BaseException | None]


class NoThread(Exception):
    """There is no thread, and the system starts none."""


class Threads:
    """At most `most` threads of one event loop, made when they are needed, that share one queue of calls.

    A call that is handed over costs an append. One thread at a time is woken; it wakes another one when it finds more
    than it can take, so quick calls are made by one of them, and slow ones by many. Results go back to the loop the
    same way: one message covers all results since the last one. A ThreadPoolExecutor reports every end by itself, with
    a lock, a condition and a system call.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # The one that first asks for a call.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] = deque()
        self._reports: deque[Callable[[], None]] = deque()
        self._is_called = False
        # Each permit wakes a thread to read the queue.
        self._wake = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._is_waking = False
        self._closed = False
        # Why the system did not start another thread, the last time that it was asked.
        self._refused = ""

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Have a thread make this call, which must not raise: see `contained`.

        Raises NoThread when the system gives this process no thread at all. While it has some, calls wait for those.
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = self._loop.create_future()
        self._calls.append((future, call))
        if not self._is_waking:
            self._wake_one()
            if not self._threads:
                self._calls.clear()
                raise NoThread(f"no thread can be started: {self._refused}")
        return future

    async def outlast(self, call: Callable[[], T]) -> T:
        """Have a thread make this call, and await its result, also when code of a handler cancels all asyncio tasks.

        The thread continues.
        """
        result = self.run(call)
        while True:
            try:
                return await asyncio.shield(result)
            except asyncio.CancelledError:
                if self._closed or result.cancelled():
                    raise

    def report(self, *reports: Callable[[], None]) -> None:
        """From a thread: have the loop make these calls soon."""
        self._reports.extend(reports)
        # In this order: the reader lowers the flag before it empties the queue.
        if not self._is_called:
            self._is_called = True
            # A closed loop waits for no result.
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._hear)

    def close(self) -> None:
        """Start nothing more. Threads that still run a call continue until it returns, or the process ends."""
        self._closed = True
        self._calls.clear()
        with self._lock:
            for _ in range(self._idle):
                self._wake.release()
            self._idle = 0

    def _wake_one(self) -> None:
        with self._lock:
            if self._is_waking:
                return
            if self._idle:
                self._idle -= 1
                self._is_waking = True
                self._wake.release()
            elif self._threads < self._most:
                self._start_one()

    def _start_one(self) -> None:
        self._threads += 1
        self._is_waking = True
        try:
            # A daemon: a handler that does not return keeps no process alive.
            threading.Thread(target=self._work, name=f"pgqueue_{self._threads}", daemon=True).start()
            self._refused = ""
        except RuntimeError as error:
            # A limit of the system. A thread that is there takes the call when it is free; the next call tries again.
            self._threads -= 1
            self._is_waking = False
            if not self._refused:
                # Once until another one starts, and not for each job.
                log.warning(
                    "the system starts no other thread (%s): %d run the sync handlers; with none, jobs are given back",
                    error,
                    self._threads,
                )
            self._refused = str(error)

    def _work(self) -> None:
        while not self._closed:
            try:
                future, call = self._calls.popleft()
            except IndexError:
                with self._lock:
                    self._is_waking = False
                    if self._calls or self._closed:
                        # The call came just now, when no thread was idle.
                        continue
                    self._idle += 1
                self._wake.acquire()
                continue
            self._is_waking = False
            if self._calls:
                self._wake_one()
            if not future.cancelled():
                self.report(_Ended(future, call()))
            del future, call

    def _hear(self) -> None:
        self._is_called = False
        while self._reports:
            self._reports.popleft()()


class _Ended:
    """Gives a future its result."""

    __slots__ = ("_future", "_result")

    def __init__(self, future: asyncio.Future[Any], result: object) -> None:
        self._future = future
        self._result = result

    def __call__(self) -> None:
        if not self._future.done():
            self._future.set_result(self._result)


def contained(call: Callable[[], object]) -> Outcome:
    """Make a call and return its result or exception: SystemExit in a thread would end it, and no future can hold
    StopIteration."""
    try:
        return call(), None
    except BaseException as error:
        return None, error
