"""The progress that handlers report."""

from __future__ import annotations

import asyncio

from pgqueue.db import steps
from pgqueue.job import Job
from pgqueue.worker.link.connection import Link


class Progress:
    """Stores the newest progress of each job, about once a second."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._reported: dict[Job, None] = {}

    def report(self, job: Job) -> None:
        """Store the progress of this job soon. Also called from threads."""
        self._reported[job] = None

    async def store_forever(self) -> None:
        """Store the reported progress."""
        while True:
            await asyncio.sleep(1.0)
            await self.store()

    async def store(self) -> None:
        """Store what was reported until now."""
        rows = []
        # Taken out one by one, and then read: a thread that reports meanwhile puts its job in again.
        for job in list(self._reported):
            del self._reported[job]
            if job.latest_progress is not None:
                rows.append((job.id, job.reservation, *job.latest_progress))
        if rows:
            await self._link.perform(steps.progress(rows))
