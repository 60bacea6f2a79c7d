"""Watch the jobs that this worker holds: jobs that others could start, and timeouts that passed."""

from __future__ import annotations

import asyncio
import logging

from pgqueue import logs
from pgqueue.config import WorkerConfig
from pgqueue.db import consume
from pgqueue.worker.hold.held import Cause, End, Held, Stop
from pgqueue.worker.link.connection import Link
from pgqueue.worker.presence.orders import Orders
from pgqueue.worker.run.runner import Runner

log = logging.getLogger("pgqueue.worker")

# A job that was reserved this many seconds ago and not started is given back while another worker is idle.
_HELD_BACK = 2.0


class OverdueJobs:
    """Two loops over the jobs of a runner."""

    def __init__(self, config: WorkerConfig, runner: Runner, link: Link, orders: Orders) -> None:
        self._config = config
        self._runner = runner
        self._link = link
        self._orders = orders

    async def share_forever(self) -> None:
        """Give back jobs that wait for a slot here while another worker is idle."""
        while True:
            await asyncio.sleep(_HELD_BACK / 2)
            waiting = {held.row.queue for held in self._runner.waiting.of_age(_HELD_BACK)}
            if not waiting:
                continue
            if await self._link.perform(consume.is_wanted(self._config.name, sorted(waiting))):
                self._runner.give_back_unstarted(_HELD_BACK)

    async def watch_timeouts_forever(self) -> None:
        """Report handlers that continue after their timeout.

        Under a supervisor such a job fails and this process is to be replaced; else the handler keeps its slot.
        """
        known: set[Held] = set()
        while True:
            await asyncio.sleep(1.0)
            # Code of a handler may have configured logging.
            logs.switch_on()
            overdue = self._runner.busy.overdue()
            known.intersection_update(overdue)
            for held in overdue:
                if held in known:
                    continue
                known.add(held)
                if not self._config.supervised:
                    log.warning(
                        "%s did not stop at its timeout and keeps running; it occupies a slot until it ends", held
                    )
                    continue
                log.error("%s did not stop at its timeout: this process ends and is to be replaced", held)
                reason = f"it ran longer than its timeout of {held.timeout:g} s and did not stop"
                self._runner.abandon(held, Stop(End.FAILED, f"{reason}: its process was replaced", Cause.TIMEOUT))
                self._orders.end_to_be_replaced()
