"""Three workflows: a saga, a fan-out, a graph.

`order` charges, waits for the parcel service to say that the parcel is packed, and ships; without an answer within two
days, it refunds. Killed at any moment, it continues where it stopped.
`import_rows` enqueues a member of a group for each page of ten thousand rows, and one report when all have ended.
`nightly` builds the graph of a night: two exports, a report of both, an alarm if anything fails.

    pgqueue worker -r examples.workflows.app
    pgqueue enqueue workflows.order '{"number": 17}'
    psql -c "select pgqueue.emit_event('packed:17', '{\"parcel\": 5}')"
    pgqueue enqueue workflows.import_rows '{"rows": 10000}'
    pgqueue enqueue workflows.nightly
    pgqueue groups list
"""

from __future__ import annotations

import logging
from typing import Any

from pgqueue import App, Job
from pgqueue.errors import EventTimeout

app = App()
log = logging.getLogger("workflows")

_PAGE = 100


@app.task(name="workflows.order", max_attempts=5)
def order(job: Job, number: int) -> None:
    """Charge, wait, ship; or give the money back."""
    payment = job.step("charge", charge, number, idempotency_key=f"{job.id}:charge")
    try:
        packed = job.wait_event(f"packed:{number}", timeout="2 days")
    except EventTimeout:
        job.step("refund", refund, payment["id"])
        return
    job.step("ship", ship, packed["parcel"])


def charge(number: int, idempotency_key: str) -> dict[str, Any]:
    """Stands for a payment provider, which charges once for each key."""
    log.info("order %s: charged (%s)", number, idempotency_key)
    return {"id": 1000 + number}


def refund(payment: int) -> None:
    """Stands for the way back."""
    log.info("payment %s: refunded", payment)


def ship(parcel: int) -> None:
    """Stands for a parcel service."""
    log.info("parcel %s: shipped", parcel)


@app.task(name="workflows.import_rows")
def import_rows(job: Job, rows: int) -> None:
    """Fan out: the group, its members and its report are committed together, and with the end of this job."""
    with job.transaction() as connection, app.group(connection, f"import of {rows} rows") as group:
        group.enqueue_many(import_page, [{"first": first} for first in range(0, rows, _PAGE)])
        group.then(report_import.using(run_if="finished"), group.id)


@app.task(name="workflows.import_page")
def import_page(first: int) -> None:
    """Import a page of rows."""


@app.task(name="workflows.report_import")
def report_import(group: int) -> None:
    """Report once, whatever became of the pages."""
    log.info("import %s has ended: select * from pgqueue.group_progress(%s)", group, group)


@app.task(name="workflows.nightly")
def nightly(job: Job) -> None:
    """Build the graph of a night."""
    with job.transaction() as connection:
        orders = export.enqueue(connection, "orders")
        customers = export.enqueue(connection, "customers")
        report = report_night.using(depends_on=[orders, customers]).enqueue(connection)
        alarm.using(depends_on=[orders, customers, report], run_if="failed").enqueue(connection)


@app.task(name="workflows.export", max_attempts=3)
def export(table: str) -> None:
    """Export a table."""
    log.info("exported %s", table)


@app.task(name="workflows.report_night")
def report_night() -> None:
    """Report on both exports."""
    log.info("the night went well")


@app.task(name="workflows.alarm")
def alarm() -> None:
    """Page the operator on call."""
    log.info("something failed this night")
