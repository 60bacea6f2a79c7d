"""`pgqueue queues`: list queues, and act on one."""

from __future__ import annotations

from typing import Annotated

import typer

from pgqueue.cli import bulk, names, output, queue_table
from pgqueue.cli.completion import queues
from pgqueue.cli.database import ask, connected
from pgqueue.cli.names import Create
from pgqueue.cli.options import AsJson, ChunkSize, Dsn, For, Reason, Reset, Yes, commands
from pgqueue.cli.tables import Table
from pgqueue.db import limits, observe, operate
from pgqueue.db.call import Call, perform

app = commands("List queues, and act on one.")

QueueName = Annotated[str, typer.Argument(metavar="NAME", help="The queue.", show_envvar=False, autocompletion=queues)]
Retention = Annotated[str | None, typer.Option(help="How long history keeps its jobs of this state: '7 days'.")]


@app.command(name="list")
def list_queues(as_json: AsJson = False, dsn: Dsn = None) -> None:
    """List queues with their options and numbers."""
    with connected(dsn) as connection:
        stats = perform(connection, observe.stats(recent=False))
        options = {each["name"]: each for each in perform(connection, observe.queues())}
    rows = [{**options.get(each["queue"], {}), **each} for each in stats["queues"]]
    if as_json:
        output.print_json(rows)
        return
    right = frozenset({"prio", "weight", "ready", "later", "blocked", "executing", "dead"})
    headings = ("queue", "prio", "weight", "ready", "later", "blocked", "executing", "dead", "paused")
    table = Table(headings, right=right, cut=frozenset({"queue"}))
    for each in rows:
        ready, later, blocked, executing, _, _, dead, _ = queue_table.numbers(each)
        paused = output.ago(each["paused_at"]) if each["paused_at"] else None
        counts = (ready, later, blocked, executing, dead)
        table.add(each["queue"], each.get("priority"), each.get("weight"), *counts, paused)
    table.show()


@app.command(name="pause")
def pause_queue(
    queue: QueueName,
    lasts: For = None,
    reason: Reason = None,
    create: Create = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Start no more jobs of a queue; executing jobs continue, and producers can enqueue."""
    _change(queue, limits.pause_queue(queue, reason, lasts), "paused", create, as_json, dsn)


@app.command(name="resume")
def resume_queue(queue: QueueName, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Start jobs of a paused queue again."""
    with connected(dsn) as connection:
        names.look_up(connection, "queue", queue)
        changed = perform(connection, limits.resume_queue(queue))
    _say(queue, changed, "resumed", as_json)


@app.command(name="set")
def set_queue(
    queue: QueueName,
    priority: Annotated[int | None, typer.Option(help="Priority of jobs without one: -100 to 100.")] = None,
    weight: Annotated[int | None, typer.Option(help="Its share in claims of workers without weights.")] = None,
    retry_budget: Annotated[int | None, typer.Option(help="How many retries may start in one second.")] = None,
    retention_succeeded: Retention = None,
    retention_cancelled: Retention = None,
    retention_dead: Retention = None,
    fair_by: Annotated[
        str | None, typer.Option(help="limit_key: tenants, the values of limit_key, take turns among its jobs.")
    ] = None,
    max_share: Annotated[
        float | None, typer.Option(help="The part of a worker's slots that one tenant may have: 0.9 for nine of ten.")
    ] = None,
    reset: Reset = None,
    create: Create = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Set options of a queue, from now on. An option that is left out keeps its value."""
    options: dict[str, object] = {
        "priority": priority,
        "weight": weight,
        "retry_budget": retry_budget,
        "retention_succeeded": retention_succeeded,
        "retention_cancelled": retention_cancelled,
        "retention_dead": retention_dead,
        "fair_by": fair_by,
        "max_share": max_share,
    }
    reset_names = [name.replace("-", "_") for name in reset or ()]
    _change(queue, operate.configure_queue(queue, options, reset_names), "set", create, as_json, dsn)


@app.command(name="purge")
def purge_queue(
    queue: QueueName, chunk: ChunkSize = 1000, yes: Yes = False, as_json: AsJson = False, dsn: Dsn = None
) -> None:
    """Delete the waiting jobs of a queue; executing ones continue, history stays."""
    if queue not in ask(dsn, operate.queue_names()):
        output.not_found(f"There is no queue {queue}")
    bulk.run("purge", "deleted", None, {"queue": queue}, False, chunk, yes, as_json, dsn)


def _change(queue: str, call: Call[bool], verb: str, create: bool, as_json: bool, dsn: str | None) -> None:
    with connected(dsn) as connection:
        names.require(connection, "queue", queue, create)
        changed = perform(connection, call)
    _say(queue, changed, verb, as_json)


def _say(queue: str, changed: bool, verb: str, as_json: bool) -> None:
    if as_json:
        output.print_json({"queue": queue, "changed": changed})
    else:
        output.line(f"Queue {queue}: {verb if changed else 'unchanged'}")
