"""`pgqueue status`."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import typer

from pgqueue.cli import output, queue_table, worker_table
from pgqueue.cli.database import Several, connected, databases
from pgqueue.cli.options import AsJson, Dsns, commands
from pgqueue.cli.output import ago, when
from pgqueue.cli.watch import Watch, watch
from pgqueue.db import observe, operate
from pgqueue.db.call import perform
from pgqueue.logs import how_many

app = commands()


@app.command()
def status(again: Watch = False, as_json: AsJson = False, dsn: Dsns = None) -> None:
    """Show queues, workers and maintenance.

    If --dsn is given more than once, it shows all these databases, and exits with 1 if one of them cannot be read.
    """
    if dsn is not None and len(dsn) > 1:
        _several(dsn, again, as_json)
        return
    with connected(dsn[0] if dsn else None) as connection:

        def show() -> None:
            stats = perform(connection, observe.stats(recent=False))
            workers = perform(connection, operate.list_workers())
            if as_json:
                output.print_json({**stats, "worker_status": workers})
            else:
                _show(stats, workers)
                _show_unknown_tasks(perform(connection, observe.doctor()))

        watch(show, again)


def _several(dsns: list[str], again: bool, as_json: bool) -> None:
    with databases(dsns) as checked, closing(Several(checked)) as several:

        def show() -> None:
            found = several.each(
                lambda connection: (
                    perform(connection, observe.stats(recent=False)),
                    perform(connection, operate.list_workers()),
                )
            )
            if as_json:
                answers = [{"database": name, **stats, "worker_status": its} for name, (stats, its) in found.items()]
                troubles = [{"database": name, "error": error} for name, error in several.trouble.items()]
                output.print_json({"databases": [*answers, *troubles]})
            else:
                queue_table.show_several({name: stats for name, (stats, _) in found.items()})
                worker_table.show([{**each, "database": name} for name, (_, its) in found.items() for each in its])
                for name, (stats, _) in found.items():
                    _show_maintenance(stats["maintenance"], f"{name}: ")
                for name, error in several.trouble.items():
                    output.line(f"{name}: cannot be read: {error}", "red")

        watch(show, again)
        if several.trouble:
            raise typer.Exit(1)


def _show(stats: dict[str, Any], workers: list[dict[str, Any]]) -> None:
    queue_table.show(stats)
    worker_table.show(workers)
    _show_maintenance(stats["maintenance"])


def _show_unknown_tasks(findings: list[dict[str, str]]) -> None:
    for found in findings:
        if found["topic"] == "unknown_task":
            task = found["subject"]
            output.line(f"No worker has declared task {task}, and jobs of it wait: see pgqueue doctor.", "yellow")
        elif found["topic"] == "given_back":
            task = found["subject"]
            output.line(f"Workers give jobs of task {task} back without an attempt: see pgqueue doctor.", "yellow")


def _show_maintenance(maintenance: dict[str, Any], place: str = "") -> None:
    last = maintenance["last_at"]
    output.line(
        f"{place}Maintenance last ran {ago(last) if last else 'never'}; "
        f"{how_many(maintenance['rescued'], 'lapsed lease')} taken back so far, "
        f"{how_many(maintenance['overdue_partitions'], 'partition')} overdue."
    )
    for step, failure in maintenance["failures"].items():
        output.line(f"{place}Maintenance step {step} fails since {when(failure['since'])}: {failure['error']}", "red")
