"""`pgqueue status`."""

from __future__ import annotations

from typing import Any

from pgqueue.cli import output, queue_table, worker_table
from pgqueue.cli.database import connected
from pgqueue.cli.options import AsJson, Dsn, commands
from pgqueue.cli.output import ago, when
from pgqueue.cli.watch import Watch, watch
from pgqueue.db import operate
from pgqueue.db.call import perform

app = commands()


@app.command()
def status(again: Watch = False, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Show queues, workers and maintenance."""
    with connected(dsn) as connection:

        def show() -> None:
            stats = perform(connection, operate.stats())
            workers = perform(connection, operate.list_workers())
            if as_json:
                output.print_json({**stats, "worker_status": workers})
            else:
                _show(stats, workers)

        watch(show, again)


def _show(stats: dict[str, Any], workers: list[dict[str, Any]]) -> None:
    queue_table.show(stats)
    worker_table.show(workers)
    maintenance = stats["housekeeping"]
    last = maintenance["last_at"]
    output.line(
        f"Maintenance last ran {ago(last) if last else 'never'}; "
        f"{maintenance['rescued']} jobs rescued, {maintenance['overdue_partitions']} partitions overdue."
    )
    for step, failure in maintenance["failures"].items():
        output.line(f"Maintenance step {step} fails since {when(failure['since'])}: {failure['error']}", "red")
