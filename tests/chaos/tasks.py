"""The handlers of the chaos tests: what `pgqueue worker -r tests.chaos.tasks` runs.

Each records in the file of its process what it starts and how it ends. Those with a transaction of their job leave an
effect in it.

CHAOS_RECORDS   the directory of those files
CHAOS_CLOCK     seconds by which time.time() and its kin are off in this process: the clock of another machine
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from datetime import timedelta
from typing import Any

from pgqueue import App, Job
from tests.chaos.recorder import EFFECT, Witness

app = App()
witness = Witness.of_this_process(os.environ["CHAOS_RECORDS"])

_off = float(os.environ.get("CHAOS_CLOCK", "0"))
if _off:
    # What reads the clock by datetime.now() goes past this; the worker reads it so only to show a deadline.
    _true, _true_ns = time.time, time.time_ns
    time.time = lambda: _true() + _off
    time.time_ns = lambda: _true_ns() + int(_off * 1e9)

# A fault must not make a job dead: that is an end as well, but one that hides others.
_STUBBORN: dict[str, Any] = {
    "max_attempts": 10_000,
    "max_crashes": 1_000,
    "retry_policy": "fixed",
    "retry_delay": timedelta(seconds=0.3),
}


class Refused(Exception):
    """What a handler raises on purpose."""


@app.task(**_STUBBORN)
async def plain(job: Job, token: str) -> None:
    witness.ran(job.id, job.reservation)


@app.task(**_STUBBORN)
def plain_sync(job: Job, token: str) -> None:
    witness.ran(job.id, job.reservation)


@app.task(**_STUBBORN)
async def keyed(job: Job, token: str) -> None:
    with witness.running(job.id, job.reservation):
        await asyncio.sleep(random.random() * 0.004)


@app.task(**_STUBBORN)
def keyed_sync(job: Job, token: str) -> None:
    with witness.running(job.id, job.reservation):
        time.sleep(random.random() * 0.004)


@app.task(**_STUBBORN)
async def flaky(job: Job, token: str) -> None:
    with witness.running(job.id, job.reservation):
        await asyncio.sleep(0.001)
        if random.random() < 0.3:
            raise Refused("this time not")


@app.task(**_STUBBORN)
async def slow(job: Job, token: str) -> None:
    """Longer than a lease, now and then."""
    with witness.running(job.id, job.reservation):
        await asyncio.sleep(random.choice((0.2, 0.5, 1.0, 4.0)))


@app.task(**_STUBBORN)
async def steady(job: Job, token: str) -> None:
    """Long enough to be running when something happens to its worker."""
    with witness.running(job.id, job.reservation):
        await asyncio.sleep(0.05)


@app.task(**_STUBBORN)
async def lasting(job: Job, token: str, seconds: float) -> None:
    with witness.running(job.id, job.reservation):
        await asyncio.sleep(seconds)


@app.task(**_STUBBORN)
def stubborn(job: Job, token: str) -> None:
    """Goes on when its lease is lost."""
    with witness.running(job.id, job.reservation):
        time.sleep(random.choice((0.1, 0.3, 4.0)))


@app.task(**_STUBBORN)
async def effect(job: Job, token: str) -> None:
    with witness.running(job.id, job.reservation):
        async with job.transaction() as conn:
            await conn.execute(EFFECT, _effect(job))
            await asyncio.sleep(random.random() * 0.01)
            if random.random() < 0.05:
                raise Refused("rolled back")
            witness.done(job.id, job.reservation)


@app.task(**_STUBBORN)
def effect_sync(job: Job, token: str) -> None:
    with witness.running(job.id, job.reservation), job.transaction() as conn:
        conn.execute(EFFECT, _effect(job))
        time.sleep(random.random() * 0.01)
        witness.done(job.id, job.reservation)


@app.task(**_STUBBORN)
async def limited(job: Job, token: str) -> None:
    with witness.running(job.id, job.reservation):
        await asyncio.sleep(0.01)


@app.task(**_STUBBORN)
async def slotted(job: Job, token: str) -> None:
    with witness.running(job.id, job.reservation):
        await asyncio.sleep(0.01)


@app.task(**_STUBBORN)
async def rated(job: Job, token: str) -> None:
    witness.ran(job.id, job.reservation)


@app.task(accumulate=True, batch_size=3, **_STUBBORN)
async def gathered(payloads: dict[str, list[Any]], job: Job) -> None:
    with witness.running(job.id, job.reservation):
        await asyncio.sleep(0.005)


def _effect(job: Job) -> dict[str, Any]:
    return {"job": job.id, "reservation": job.reservation, "queue": job.queue, "key": job.key}
