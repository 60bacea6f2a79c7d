"""`pgqueue status`."""

from __future__ import annotations

from typing import Any

from pgqueue.cli import output
from pgqueue.cli.database import ask
from pgqueue.cli.options import AsJson, Dsn, commands
from pgqueue.cli.output import when
from pgqueue.cli.tables import Table
from pgqueue.db import operate

app = commands()


@app.command()
def status(as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Show queues, workers and maintenance."""
    stats = ask(dsn, operate.stats())
    if as_json:
        output.print_json(stats)
        return
    _queues(stats).show()
    if stats["workers"]:
        _workers(stats["workers"]).show()
    else:
        output.line("No worker is registered.")
    maintenance = stats["housekeeping"]
    output.line(
        f"Maintenance last ran {when(maintenance['last_at']) or 'never'}; "
        f"{maintenance['rescued']} jobs rescued, {maintenance['overdue_partitions']} partitions overdue."
    )
    for step, failure in maintenance["failures"].items():
        output.line(f"Maintenance step {step} fails since {when(failure['since'])}: {failure['error']}", "red")


def _queues(stats: dict[str, Any]) -> Table:
    columns = ("waiting", "scheduled", "failed", "blocked", "executing", "dead", "lag")
    table = Table(("queue", *columns), "Queues", right=frozenset(columns), cut=frozenset({"queue"}))
    for each in [*stats["queues"], {"queue": "total", **stats["total"]}]:
        name = f"{each['queue']} (paused)" if each.get("paused_at") else each["queue"]
        table.add(name, *(f"{each[column]:.1f} s" if column == "lag" else each[column] for column in columns))
    return table


def _workers(workers: list[dict[str, Any]]) -> Table:
    headings = ("worker", "queues", "version", "started", "last heartbeat")
    table = Table(headings, "Workers", cut=frozenset({"worker", "queues"}))
    for each in workers:
        served = ", ".join(each["queues"]) if each["queues"] else "all"
        # A client in another language may register with any JSON.
        info = each["info"] if isinstance(each["info"], dict) else {}
        table.add(each["worker"], served, info.get("version"), when(each["started_at"]), when(each["last_beat_at"]))
    return table
