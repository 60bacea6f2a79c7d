"""`pgqueue workers`: list workers."""

from __future__ import annotations

from pgqueue.cli import output, worker_table
from pgqueue.cli.database import connected
from pgqueue.cli.options import AsJson, Dsn, commands
from pgqueue.cli.watch import Watch, watch
from pgqueue.db import operate
from pgqueue.db.call import perform

app = commands("List workers.")


@app.callback()
def _workers() -> None:
    """List workers."""


@app.command(name="list")
def list_workers(again: Watch = False, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """List workers with their jobs, also dead ones that still hold jobs."""
    with connected(dsn) as connection:

        def show() -> None:
            found = perform(connection, operate.list_workers())
            if as_json:
                output.print_json(found)
            else:
                worker_table.show(found)

        watch(show, again)
