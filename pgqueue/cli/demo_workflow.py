"""The workflow of `pgqueue demo`: an order of examples/workflows, which waits for an event from outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from pgqueue.db import operate, produce, steps
from pgqueue.db.call import perform

# Waits until a question is answered with true.
Await = Callable[[psycopg.Connection[Any], str, tuple[object, ...]], None]


def run_order(connection: psycopg.Connection[Any], number: int, wait: Await) -> dict[str, Any]:
    """Enqueue an order, see it wait for its parcel, say that the parcel is packed, and return what it did."""
    job_id = perform(connection, produce.enqueue("workflows.order", {"number": number}, {}))
    wait(connection, "select e.reason = 'event' from pgqueue.explain(%s) e", (job_id,))
    waited = perform(connection, operate.explain(job_id))["detail"]
    perform(connection, steps.emit_event(f"packed:{number}", {"parcel": number}, None))
    wait(connection, "select exists (select from pgqueue.history h where h.id = %s)", (job_id,))
    done = connection.execute("select s.name from pgqueue.steps(%s) s order by s.at", (job_id,)).fetchall()
    return {
        "job_id": job_id,
        "state": perform(connection, operate.explain(job_id))["state"],
        "waited": waited,
        "steps": [row[0] for row in done],
    }


def in_words(order: dict[str, Any]) -> str:
    """Return what an order did, in a line."""
    return (
        f"Job {order['job_id']}, a workflow, {order['state']} in the steps {', '.join(order['steps'])}. "
        f"While it held no worker, explain() gave the reason: {order['waited']}."
    )
