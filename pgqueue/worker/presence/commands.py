"""Carry out an operator's commands that come through the database: quiet_worker() and the like."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from pgqueue.db import presence
from pgqueue.worker.link.connection import Link

log = logging.getLogger("pgqueue.worker")


class Commands:
    """Reads the command of this worker when `asked_now` is set, and every `seconds`.

    Acts on changes only, so that what a signal asked for afterwards holds. `do` has calls for "run", "quiet", "stop",
    and "taken": another process has the name of this one, `instance`.
    """

    def __init__(
        self, worker: str, instance: str, link: Link, seconds: float, do: Mapping[str, Callable[[], None]]
    ) -> None:
        self.asked_now = asyncio.Event()
        self._worker = worker
        self._instance = instance
        self._link = link
        self._seconds = seconds
        self._do = do
        self._obeys = "run"

    async def obey_forever(self) -> None:
        """Carry out each command, and report that first: a worker that stops deletes its row."""
        while True:
            # A command that comes while the last one is read is read too.
            self.asked_now.clear()
            wanted = await self._ask()
            if wanted != self._obeys and wanted in self._do:
                self._obeys = wanted
                if wanted != "taken":
                    await self._ask()
                    log.info("an operator's command came through the database: %s", wanted)
                self._do[wanted]()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await self.asked_now.wait()

    async def _ask(self) -> str:
        return await self._link.perform(presence.worker_command(self._worker, self._obeys, self._instance))
