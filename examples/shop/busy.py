"""A busy day at the shop, for its pages: mail streams, reports fall behind, and one partner does not answer."""

from __future__ import annotations

import asyncio
import random

import psycopg

from pgqueue import App, Job

app = App()

# Partners, and how many of ten calls are for each. The last one does not answer.
PARTNERS = {"hooks.acme.example": 6, "hooks.lumen.example": 3, "hooks.kiosk.example": 1}

# Reports that are asked for at once, and seconds until they are again. Two workers' slots make two in a second.
REPORTS, REPORTS_EVERY = 400, 240


def enqueue_second(connection: psycopg.Connection, second: int) -> None:
    """Enqueue the jobs of one second of the day."""
    send_mail.enqueue_many(connection, [{"to": f"customer-{second}-{n}@example.org"} for n in range(_about(12))])
    for _ in range(_about(2)):
        [host] = random.choices(list(PARTNERS), list(PARTNERS.values()))
        call_partner.enqueue(connection, host, random.randrange(10_000, 99_999))
    if second % REPORTS_EVERY == 0:
        make_report.enqueue_many(connection, [{"customer": n} for n in range(REPORTS)])
    if second % 60 == 0:
        load_products.enqueue(connection, 5_200)


def _about(number: int) -> int:
    return random.randint(number // 2, number + number // 2)


@app.task(name="mail.send", queue="mail", retention_succeeded="10 min")
async def send_mail(to: str) -> None:
    """Send a mail, in a tenth of a second or so."""
    await asyncio.sleep(random.expovariate(10))


@app.task(
    name="webhooks.call", queue="webhooks", max_attempts=2, retry_policy="fixed", retry_delay=2,
    retention_succeeded="10 min",
)  # fmt: skip
async def call_partner(host: str, order: int) -> None:
    """Tell a partner of an order."""
    await asyncio.sleep(random.uniform(0.1, 0.5))
    if host == list(PARTNERS)[-1]:
        raise ConnectionError(f"order {order}: no answer from {host} within 10 s")


@app.task(name="reports.make", queue="reports", retention_succeeded="10 min")
async def make_report(customer: int) -> None:
    """Make a report, in a second."""
    await asyncio.sleep(1)


@app.task(name="products.load", queue="products", on_shutdown="release", retention_succeeded="10 min")
async def load_products(job: Job, rows: int) -> None:
    """Load products, and say how far it has come."""
    for done in range(0, rows, 130):
        job.progress(done, rows, "rows of products.csv")
        await asyncio.sleep(1)
