"""After a crash of a worker process: give back its jobs, pause before the next one."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence

from pgqueue.config import worker_dsn
from pgqueue.db import consume
from pgqueue.logs import how_many
from pgqueue.processes.worker_process import REPLACE_ME, WorkerProcess
from pgqueue.worker.link.connection import Link
from pgqueue.worker.link.outage import Outage

log = logging.getLogger("pgqueue.supervisor")

# A process that ends within this many seconds of its start may be in a crash loop. The first is replaced at once, the
# next ones after pauses that double.
SOON = 10.0
FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


class CrashLoop:
    """Counts the processes of one slot that crashed soon after their start, one after the other."""

    def __init__(self) -> None:
        self._crashes = 0

    def pause_after(self, worker: WorkerProcess | None) -> float:
        """Return the seconds to pause before the next process. `worker` is the one that ended; None: not started."""
        if worker is not None and (time.monotonic() - worker.began >= SOON or worker.code in (0, REPLACE_ME)):
            self._crashes = 0
            return 0.0
        self._crashes += 1
        if self._crashes == 1:
            return 0.0
        # A crash loop of a night counts beyond what a float can hold.
        pause: float = min(FIRST_PAUSE * 2 ** min(self._crashes - 2, 10), _LONGEST_PAUSE)
        log.warning(
            "crash loop: %s in a row died soon after their start; the next one starts in %g s",
            how_many(self._crashes, "worker"),
            pause,
        )
        return pause * random.uniform(0.9, 1.1)


async def give_back(dsns: Sequence[str], worker: WorkerProcess, held: list[tuple[int, int]]) -> None:
    """Have each database give back, at once, the jobs of a process that died. `held` are the ones that it ran.

    A database knows its own among them by their reservations.
    """
    await asyncio.gather(*(_give_back(dsn, worker, held) for dsn in dsns))


async def _give_back(dsn: str, worker: WorkerProcess, held: list[tuple[int, int]]) -> None:
    dsn = worker_dsn(dsn, f"pgqueue {worker.name}")
    link = Link(dsn, Outage(dsn, pooled=True))
    try:
        given_back = await link.perform(consume.crashed(worker.name, held))
    except Exception as error:
        log.error("the jobs of %s come back when their leases expire: %s", worker, error)
        return
    finally:
        await link.close()
    if given_back:
        log.warning(
            "gave back %s of %s; it ran %s",
            how_many(len(given_back), "job"),
            worker,
            [job_id for job_id, _ in held[:20]],
        )
