"""`pgqueue demo --pages`: a busy day at the shop, examples/shop/busy.py, and the pages that show it."""

from __future__ import annotations

import importlib
import itertools
import os
import time
from importlib.util import find_spec
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from pgqueue.cli import output, ports
from pgqueue.cli.child import PATIENCE, Child, running
from pgqueue.config import own_dsn
from pgqueue.db import operate
from pgqueue.db.call import perform
from pgqueue.errors import ConfigError
from pgqueue.schema import bundled

# Each worker: its queues and slots. The second one has too few of them, on purpose.
_WORKERS = {
    "shop-1": ("-q", "mail,6", "-q", "webhooks,2", "-q", "products,1", "--concurrency", "12"),
    "shop-2": ("-q", "reports", "--concurrency", "2"),
}


def check(port: int) -> None:
    """Raise ConfigError where the pages cannot be served."""
    if any(find_spec(name) is None for name in ("starlette", "jinja2", "uvicorn", "psycopg_pool")):
        raise ConfigError("the pages need the extra web", hint="pip install 'pgqueue-sql[web]'")
    ports.check_free("127.0.0.1", port)


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
    with psycopg.connect(own_dsn(dsn, "pgqueue demo"), autocommit=True, row_factory=tuple_row) as connection:
        try:
            with running(*workers, pages):
                output.message(
                    f"The shop stays open at http://127.0.0.1:{port}/ until Ctrl-C: mail streams, queue reports is late"
                    " in half a minute, and calls of one partner die."
                )
                for second in itertools.count():
                    shop.enqueue_second(connection, second)
                    time.sleep(1)
        finally:
            _delete_what_waits(connection, shop)


def _delete_what_waits(connection: psycopg.Connection[Any], shop: Any) -> None:
    """Leave no queue late that no worker serves any more."""
    for task in shop.app.tasks:
        for state in ("waiting", "failed"):
            perform(connection, operate.bulk("delete", {"task": task, "state": state}, 10_000))
