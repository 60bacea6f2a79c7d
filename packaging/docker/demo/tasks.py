"""The tasks of the demonstration."""

import asyncio
import random

from pgqueue import App

app = App()


@app.task(queue="mail", max_attempts=3, retry_policy="fixed", retry_delay="5 s")
async def send(to: str) -> None:
    await asyncio.sleep(random.uniform(0.05, 0.5))
    if random.random() < 0.1:
        raise ConnectionError(f"the mail server does not take a mail to {to}")


@app.schedule(every="30 s")
@app.task(queue="reports")
async def report() -> None:
    await asyncio.sleep(1)
