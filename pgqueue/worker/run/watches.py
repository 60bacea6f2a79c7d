"""Loops that watch the held jobs: progress to store, timeouts that passed, jobs that others could start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pgqueue import logs
from pgqueue.db import consume, steps
from pgqueue.job import Job
from pgqueue.worker.hold.held import End, Held
from pgqueue.worker.link.connection import Link
from pgqueue.worker.run.runner import Runner

log = logging.getLogger("pgqueue.worker")

# A job that was reserved this many seconds ago and not started is given back while another worker is idle.
_HELD_BACK = 2.0


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


async def share_forever(runner: Runner, link: Link, name: str) -> None:
    """Give back jobs that wait for a slot here while another worker is idle."""
    while True:
        await asyncio.sleep(_HELD_BACK / 2)
        waiting = {held.row.queue for held in runner.held_back(_HELD_BACK)}
        if not waiting:
            continue
        if await link.perform(consume.is_wanted(name, sorted(waiting))):
            runner.give_back_unstarted(_HELD_BACK)


async def watch_timeouts_forever(runner: Runner, replace_me: Callable[[], None] | None) -> None:
    """Report handlers that go on after their timeout.

    With `replace_me` such a job fails and this process is to be replaced; without, the handler keeps its slot.
    """
    known: set[Held] = set()
    while True:
        await asyncio.sleep(1.0)
        # Code of a handler may have configured logging.
        logs.switch_on()
        overdue = runner.overdue()
        known.intersection_update(overdue)
        for held in overdue:
            if held in known:
                continue
            known.add(held)
            if replace_me is None:
                log.warning("%s did not stop at its timeout and goes on; it keeps a slot until it ends", held)
                continue
            log.error("%s did not stop at its timeout: this process ends and is to be replaced", held)
            reason = f"it ran longer than its timeout of {held.timeout:g} s and did not stop"
            runner.abandon(held, End.FAILED, f"{reason}: its process was replaced", "Timeout")
            replace_me()
