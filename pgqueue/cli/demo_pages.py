"""`pgqueue demo --pages`: a busy day at the shop, examples/shop/busy.py, and the pages that show it."""

from __future__ import annotations

import importlib
import itertools
import os
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from pgqueue.cli import output
from pgqueue.cli.child import PATIENCE, Child, running
from pgqueue.config import own_dsn
from pgqueue.db import operate, produce
from pgqueue.db.call import perform
from pgqueue.schema import bundled

# Each worker: its queues and slots. The second one has too few of them, on purpose.
_WORKERS = {
    "shop-1": ("-q", "mail,6", "-q", "webhooks,2", "-q", "products,1", "--concurrency", "12"),
    "shop-2": ("-q", "reports", "--concurrency", "2"),
}


_WAITING = ("waiting", "failed")


def keep_open(dsn: str, port: int) -> None:
    """Keep the shop busy, with its pages, until KeyboardInterrupt. Jobs that have not ended by then are deleted."""
    shop = importlib.import_module("shop.busy")
    examples = str(bundled.directory("examples"))
    path = os.pathsep.join([examples, *filter(None, [os.environ.get("PYTHONPATH")])])
    started = ["worker", "-r", "shop.busy:app", "--log-level", "error", "--shutdown-timeout", str(PATIENCE)]
    workers = [
        Child(name, [*started, "--name", name, *given], dsn, is_silent=True, PYTHONPATH=path)
        for name, given in _WORKERS.items()
    ]
    pages = Child("pages", ["web", "--port", str(port)], dsn)
    output.flush()
    with _connect(dsn) as connection:
        first_id = mark(connection)
    try:
        with running(*workers, pages), _connect(dsn) as connection:
            output.message(
                f"The shop stays open at http://127.0.0.1:{port}/ until Ctrl-C: mail streams, queue reports is late in"
                " half a minute, and calls of one partner die."
            )
            for second in itertools.count():
                shop.enqueue_second(connection, second)
                time.sleep(1)
    finally:
        # A new connection: the other one may have been interrupted in a statement. No signal ends this process any
        # more, so a database that is gone must not hold it.
        with suppress(psycopg.OperationalError), _connect(dsn) as connection:
            # Leave no queue late that no worker serves any more.
            delete_jobs(connection, first_id, list(shop.app.tasks), _WAITING)


def mark(connection: psycopg.Connection[Any]) -> int:
    """Return the id of a job that is enqueued and deleted: what is enqueued from now on has higher ones."""
    marker = perform(connection, produce.enqueue("shop.marker", {}, {"delay": "1 day"}))
    perform(connection, operate.delete(marker))
    return marker


def delete_jobs(
    connection: psycopg.Connection[Any], after: int, tasks: Collection[str], states: Collection[str] | None
) -> None:
    """Delete the jobs of these tasks that were enqueued after another one, and leave all others: those in some states,
    or all that do not execute, with history."""
    while True:
        rows = connection.execute(
            "select id from pgqueue.all_jobs where id > %s and task = any (%s) and state <> 'executing'"
            " and (%s::text[] is null or state::text = any (%s)) order by id limit 1000",
            (after, list(tasks), None if states is None else list(states), None if states is None else list(states)),
        ).fetchall()
        if not rows:
            return
        after = rows[-1][0]
        perform(connection, operate.bulk("delete", {"job_ids": [row[0] for row in rows]}, len(rows)))


def _connect(dsn: str) -> psycopg.Connection[Any]:
    return psycopg.connect(own_dsn(dsn, "pgqueue demo"), autocommit=True, row_factory=tuple_row, connect_timeout=5)
