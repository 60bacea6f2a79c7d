"""`pgqueue demo --pages`: a busy day at the shop, examples/shop/busy.py, and the pages that show it."""

from __future__ import annotations

import importlib
import itertools
import os
import time
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from pgqueue.cli import output
from pgqueue.cli.child import PATIENCE, Child, running
from pgqueue.config import own_dsn
from pgqueue.db import operate
from pgqueue.db.call import perform
from pgqueue.schema import bundled

# Each worker: its queues and slots. The second one has too few of them, on purpose.
_WORKERS = {
    "shop-1": ("-q", "mail,6", "-q", "webhooks,2", "-q", "products,1", "--concurrency", "12"),
    "shop-2": ("-q", "reports", "--concurrency", "2"),
}


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
            _delete_what_waits(connection, shop)


def _connect(dsn: str) -> psycopg.Connection[Any]:
    return psycopg.connect(own_dsn(dsn, "pgqueue demo"), autocommit=True, row_factory=tuple_row, connect_timeout=5)


def _delete_what_waits(connection: psycopg.Connection[Any], shop: Any) -> None:
    """Leave no queue late that no worker serves any more."""
    for task in shop.app.tasks:
        for state in ("waiting", "failed"):
            perform(connection, operate.bulk("delete", {"task": task, "state": state}, 10_000))
