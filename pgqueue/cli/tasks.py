"""`pgqueue tasks`: list tasks, and override the options that their code declares."""

from __future__ import annotations

from typing import Annotated

import typer

from pgqueue.cli import names, output, tasks_schema, tasks_types
from pgqueue.cli.completion import queues, tasks
from pgqueue.cli.database import ask, connected
from pgqueue.cli.names import Create
from pgqueue.cli.options import AsJson, Dsn, Reset, commands
from pgqueue.cli.tables import Table
from pgqueue.db import operate
from pgqueue.db.call import perform

app = commands("List tasks, and override the options that their code declares.")
tasks_schema.register(app)
tasks_types.register(app)

TaskName = Annotated[str, typer.Argument(metavar="NAME", help="The task.", show_envvar=False, autocompletion=tasks)]
Retention = Annotated[str | None, typer.Option(help="How long history keeps its jobs of this state: '7 days'.")]


@app.command(name="list")
def list_tasks(as_json: AsJson = False, dsn: Dsn = None) -> None:
    """List tasks with their effective options, and which of them an operator has set."""
    found = ask(dsn, operate.list_tasks())
    if as_json:
        output.print_json(found)
        return
    headings = ("task", "queue", "prio", "attempts", "retry", "delay", "timeout", "set here")
    right = frozenset({"prio", "attempts"})
    table = Table(headings, right=right, cut=frozenset({"task", "queue", "set here"}))
    for each in found:
        retry = (each["retry_policy"], each["retry_delay"])
        about = (each["queue"], each["priority"], each["max_attempts"], *retry, each["timeout"])
        table.add(each["name"], *about, ", ".join(each["set"]))
    table.show()


@app.command(name="set")
def set_task(
    task: TaskName,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", help="Queue of jobs without one.", autocompletion=queues)
    ] = None,
    priority: Annotated[int | None, typer.Option(help="Priority of jobs without one: -100 to 100.")] = None,
    max_attempts: Annotated[int | None, typer.Option(help="Attempts before a job is dead.")] = None,
    retry_policy: Annotated[str | None, typer.Option(help="fixed, exponential, sidekiq, doubling or list.")] = None,
    retry_delay: Annotated[str | None, typer.Option(help="Delay of the policy: '5 min'.")] = None,
    retry_delays: Annotated[
        str | None, typer.Option(help="Delays of the policy list, one after the other: '10 s, 1 min, 1 hour'.")
    ] = None,
    retry_jitter: Annotated[float | None, typer.Option(help="Random share of a delay, 0 to 1.")] = None,
    retry_cap: Annotated[str | None, typer.Option(help="Longest delay before jitter: '1 hour'.")] = None,
    retry_queue: Annotated[str | None, typer.Option(help="Queue of a job that failed.")] = None,
    expires_in: Annotated[str | None, typer.Option(help="How long after its time a job may start: '1 day'.")] = None,
    timeout: Annotated[str | None, typer.Option(help="How long one attempt may take: '5 min'.")] = None,
    max_crashes: Annotated[
        int | None, typer.Option(help="How many workers may die while they run a job before it is dead.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="How many keys one call of an accumulating task gets.")] = None,
    store_result: Annotated[
        bool | None, typer.Option("--store-result/--no-store-result", help="Whether history keeps the result.")
    ] = None,
    retention_succeeded: Retention = None,
    retention_cancelled: Retention = None,
    retention_dead: Retention = None,
    reset: Reset = None,
    create: Create = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Set options of a task, from now on; they override those in code. An option that is left out keeps its value."""
    options: dict[str, object] = {
        "queue": queue,
        "priority": priority,
        "max_attempts": max_attempts,
        "retry_policy": retry_policy,
        "retry_delay": retry_delay,
        "retry_delays": None if retry_delays is None else [each.strip() for each in retry_delays.split(",")],
        "retry_jitter": retry_jitter,
        "retry_cap": retry_cap,
        "retry_queue": retry_queue,
        "expires_in": expires_in,
        "timeout": timeout,
        "max_crashes": max_crashes,
        "batch_size": batch_size,
        "store_result": store_result,
        "retention_succeeded": retention_succeeded,
        "retention_cancelled": retention_cancelled,
        "retention_dead": retention_dead,
    }
    reset_names = [name.replace("-", "_") for name in reset or ()]
    with connected(dsn) as connection:
        names.require(connection, "task", task, create)
        changed = perform(connection, operate.configure_task(task, options, reset_names))
    if as_json:
        output.print_json({"task": task, "changed": changed})
    else:
        output.line(f"Task {task}: {'set' if changed else 'unchanged'}")
