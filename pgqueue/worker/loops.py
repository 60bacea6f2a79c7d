"""Loops that run as long as their worker."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from pgqueue.worker.events import Events

log = logging.getLogger("pgqueue.worker")

Loop = Callable[[], Awaitable[None]]


def keep_running(name: str, loop: Loop, worker: str, events: Events) -> asyncio.Task[None]:
    """Run a loop as a task until it returns. When it raises, report that, and start it again after about a second."""

    async def run() -> None:
        while True:
            try:
                await loop()
                return
            except Exception as error:
                log.exception("the %s loop of worker %s crashed; it starts again", name, worker)
                await events.error(error, f"{name} loop")
                await asyncio.sleep(random.uniform(0.5, 1.5))

    return asyncio.create_task(run(), name=f"pgqueue-{name}")
