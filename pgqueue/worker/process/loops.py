"""Loops that run as long as their worker."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from pgqueue.errors import LockTimeout
from pgqueue.logs import one_line

log = logging.getLogger("pgqueue.worker")

# For pauses that must differ between workers: the module's own generator is seeded by some applications.
uniform = random.SystemRandom().uniform

Loop = Callable[[], Awaitable[None]]


def keep_running(
    name: str,
    loop: Loop,
    worker: str,
    is_over: Callable[[], bool],
    on_error: Callable[[Exception, str], object] = lambda error, where: None,
) -> asyncio.Task[None]:
    """Run a loop as a task until it returns. When it raises, report that, and start it again after about a second.

    So is one that is cancelled before `is_over`, as by code of a handler that cancels all asyncio tasks.
    """

    async def run() -> None:
        pause = 0.0
        while True:
            try:
                if pause:
                    await asyncio.sleep(pause)
                await loop()
                return
            except asyncio.CancelledError:
                if is_over():
                    raise
                log.error("the %s loop of worker %s was cancelled by code outside; it starts again", name, worker)
            except LockTimeout as error:
                # A migration has locked a table for a while: the wait is expected.
                log.warning(
                    "the %s loop of worker %s waited too long and starts again: %s", name, worker, one_line(error)
                )
            except Exception as error:
                log.exception("the %s loop of worker %s crashed; it starts again", name, worker)
                on_error(error, f"{name} loop")
            pause = uniform(0.5, 1.5)

    return asyncio.create_task(run(), name=f"pgqueue-{name}")
