"""Detect a handler that blocks the event loop, and name it.

While the loop is blocked, no lease is extended and no signal is handled. So a thread checks the heartbeat of the loop,
and warns when it is late.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from typing import Any, Protocol

log = logging.getLogger("pgqueue.worker")

# Seconds between heartbeats, and how late one may be.
_BEAT = 0.25
_LATE = 1.0

# The same task is named once in this time, in seconds.
_QUIET = 60.0


class NamesRunning(Protocol):
    """Knows the job whose handler runs in an asyncio task (None: it is not known which task runs)."""

    def name_running(self, current: asyncio.Task[Any] | None) -> list[str]: ...


class Watchdog:
    """Watches the running loop from `start` to `stop`.

    `runner` names the tasks that block it, as far as is known. It is asked from the watchdog's thread.
    """

    def __init__(
        self,
        runner: NamesRunning,
        late: float = _LATE,
    ) -> None:
        self._runner = runner
        self._late = late
        self._beat_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()
        self._warned: dict[str, float] = {}

    def start(self) -> None:
        """Watch the running loop, which must be that of this thread."""
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._beat()
        threading.Thread(target=self._watch, name="pgqueue-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        self._beat_at = time.monotonic()
        self._timer = self._loop.call_later(_BEAT, self._beat)

    def _watch(self) -> None:
        while True:
            began, used = time.monotonic(), time.process_time()
            if self._stopped.wait(self._late / 4):
                return
            now = time.monotonic()
            if now - began > self._late and time.process_time() - used < (now - began) / 2:
                # This thread had no turn either, and nothing computed: the whole process stood still.
                continue
            late = now - self._beat_at - _BEAT
            if late > self._late:
                self._warn(late)

    def _warn(self, late: float) -> None:
        frame = sys._current_frames().get(self._thread_id)
        if frame is None:
            return
        stack = "".join(traceback.format_stack(frame, limit=20))
        try:
            current = asyncio.current_task(self._loop)
        except RuntimeError:
            current = None
        names = ", ".join(sorted(self._runner.name_running(current))) or "no handler"
        now = time.monotonic()
        if now - self._warned.get(names, -_QUIET) < _QUIET:
            return
        self._warned[names] = now
        log.warning(
            "the event loop has been blocked for %.1f s by %s; leases cannot be extended meanwhile."
            " Make the handler a plain function, or move what blocks into asyncio.to_thread(). It is at:\n%s",
            late,
            names,
            stack.rstrip(),
        )
