"""End a process even if code of the user still runs in it."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

log = logging.getLogger("pgqueue.worker")

# Seconds to write the last line of the log and what is buffered: a log that hangs must not keep the process alive.
_FLUSHED_WITHIN = 1.0


async def within(seconds: float, work: Coroutine[Any, Any, object]) -> bool:
    """Await something for this time at most, and return whether it has ended.

    After that it is cancelled and left behind: unlike asyncio.timeout(), this does not wait for code that catches its
    cancellation.
    """
    task = asyncio.create_task(work, name="pgqueue-end")
    try:
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            task.result()
        return task.done()
    finally:
        task.cancel()


def end_now(code: int, why: str = "") -> None:
    """End this process at once, even if threads still run in it."""

    def flush() -> None:
        if why:
            log.warning("%s", why)
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()

    with suppress(RuntimeError):
        flushing = threading.Thread(target=flush, daemon=True)
        flushing.start()
        flushing.join(_FLUSHED_WITHIN)
    os._exit(code)


def end_after(seconds: float, code: int, why: str) -> threading.Timer:
    """End this process after this time, unless it has ended by then or the timer is cancelled."""
    guard = threading.Timer(seconds, end_now, (code, why))
    guard.daemon = True
    guard.start()
    return guard
