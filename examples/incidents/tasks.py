"""The tasks of a shop on a bad day: python -m pgqueue worker -r examples.incidents.tasks"""

from __future__ import annotations

import asyncio
import os
import time
import uuid

from pgqueue import App, Job
from pgqueue.worker.process import memory

app = App()

# Set where the fix of `charge` is deployed.
FIXED = "INCIDENTS_FIXED"


class CardRefused(Exception):
    """The provider refused a charge."""


@app.task(queue="mail")
async def send_email(to: str, takes: float = 0.0) -> None:
    """An email, which takes a while."""
    await asyncio.sleep(takes)


@app.task(queue="webhooks")
async def call_webhook(order: int, takes: float = 0.5) -> None:
    """A request to another shop."""
    await asyncio.sleep(takes)


@app.task(queue="reports")
async def make_report(month: int) -> None:
    """A report that takes minutes."""
    await asyncio.sleep(240)


@app.task(queue="stock")
async def sync_stock(item: int) -> None:
    """A call of an interface that allows a limited number an hour."""


@app.task(queue="payments", max_attempts=1)
async def charge(order: int) -> None:
    """It fails for each order, and each message is another one."""
    if FIXED not in os.environ:
        raise CardRefused(f"order {order} of 'customer-{order % 97}' was refused: request {uuid.uuid4()}")


@app.task(queue="reviews")
async def review_case(case: int) -> None:
    """It waits for an answer that does not come. It ends when it is cancelled."""
    await asyncio.Event().wait()


@app.task(queue="fraud")
async def check_account(step: int) -> None:
    """The first one of its account waits for an answer that does not come."""
    if step == 0:
        await asyncio.Event().wait()


@app.task(queue="mail")
def crunch(batch: int) -> None:
    """A sync handler that never looks at job.cancelled."""
    while True:
        time.sleep(0.05)


@app.task(queue="imports")
def grow(job: Job, to: int, seconds: float) -> None:
    """It reads a file into memory until its process holds that number of bytes, and continues with what it read."""
    began, held, hoard = time.monotonic(), memory.resident(), []
    job.log("it reads a file of %d MiB", (to - held) >> 20)
    while (now := memory.resident()) < to:
        # Evenly over the time.
        if now - held < (to - held) * (time.monotonic() - began) / seconds:
            hoard.append(bytearray(b"x") * (2 << 20))
        else:
            time.sleep(0.05)
    while True:
        time.sleep(0.05)
