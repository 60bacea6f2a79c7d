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
            reported, self._reported = self._reported, {}
            rows = [
                (job.id, job.reservation, *job.latest_progress) for job in reported if job.latest_progress is not None
            ]
            if rows:
                await self._link.perform(steps.progress(rows))
