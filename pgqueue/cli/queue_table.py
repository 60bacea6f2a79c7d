"""Queues as a table of numbers that add up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pgqueue.cli import output
from pgqueue.cli.output import lasting
from pgqueue.cli.tables import Table

_NUMBERS = ("ready", "later", "blocked", "executing", "live", "failed", "dead", "lag")


def show(stats: Mapping[str, Any]) -> None:
    """Print the numbers of each queue and of all queues, with a legend."""
    table = Table(("queue", *_NUMBERS), "Queues", right=frozenset(_NUMBERS), cut=frozenset({"queue"}))
    for each in [*stats["queues"], {"queue": "total", **stats["total"]}]:
        name = f"{each['queue']} (paused)" if each.get("paused_at") else each["queue"]
        table.add(name, *numbers(each))
    table.show()
    output.line("live = ready + later + blocked + executing. failed: those of ready and later", "dim")
    output.line("that will be retried. dead: in history. lag: of the oldest ready job.", "dim")


def show_several(databases: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the numbers of each queue of several databases, and of each database."""
    columns = ("lag", *(name for name in _NUMBERS if name != "lag"))
    cut = frozenset({"database", "queue"})
    table = Table(("database", "queue", *columns), "Queues", right=frozenset(columns), cut=cut)
    for database, stats in databases.items():
        for each in [*stats["queues"], {"queue": "total", **stats["total"]}]:
            name = f"{each['queue']} (paused)" if each.get("paused_at") else each["queue"]
            *counts, lag = numbers(each)
            table.add(database, name, lag, *counts)
    table.show()


def numbers(queue: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the numbers of one queue, from those of stats()."""
    later = queue["scheduled"]
    ready = queue["waiting"] + queue["failed"] - later
    live = ready + later + queue["blocked"] + queue["executing"]
    return (
        ready,
        later,
        queue["blocked"],
        queue["executing"],
        live,
        queue["failed"],
        queue["dead"],
        lasting(queue["lag"]) if queue["lag"] else "",
    )
