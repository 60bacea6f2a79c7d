"""`pgqueue why`."""

from __future__ import annotations

from typing import Annotated, Any

import psycopg
import typer

from pgqueue.cli import names, output
from pgqueue.cli.completion import queues
from pgqueue.cli.database import connected
from pgqueue.cli.options import AsJson, Dsn, commands
from pgqueue.db import observe
from pgqueue.db.call import perform

app = commands()

# Queues with due jobs that are asked about where none is late.
_QUEUES = 20


@app.command()
def why(
    queue: Annotated[
        str | None,
        typer.Argument(
            metavar="QUEUE", help="The queue.", show_envvar=False, autocompletion=queues, show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Say why the jobs of a queue wait, and what to do.

    It prints the cause, its evidence, and a command that removes it. Without a queue, it does so for each queue that is
    late: its oldest due job by 30 s, or a blocked one by 5 min.
    """
    with connected(dsn) as connection:
        found = perform(connection, observe.why_late(queue))
        # If there is a cause, the queue has jobs, so it exists.
        if queue is not None and all(each["cause"] == "on_time" for each in found):
            names.look_up(connection, "queue", queue)
        waiting = [] if found or as_json else _waiting(connection)
    if as_json:
        output.print_json(found)
        return
    if not found:
        output.line("No queue is late by 30 s or more, and none is stuck for 5 min or more.")
        found = waiting
    for each in found:
        late = "" if each["lag"] < 1 or each["cause"] == "on_time" else f", late by {output.lasting(each['lag'])}"
        stuck = "" if each["stuck_for"] < 1 else f", stuck for {output.lasting(each['stuck_for'])}"
        output.line(f"{each['queue_name']}: {each['cause']}{late}{stuck}", output.COLOURS[each["severity"]])
        output.line(f"    {each['evidence']}")
        if each["cause"] != "on_time":
            output.line(f"    do: {each['remedy']}")


def _waiting(connection: psycopg.Connection[Any]) -> list[dict[str, Any]]:
    """Return why jobs wait that are not late yet: no worker serves their queue, it is paused, and the like."""
    due = [each["queue"] for each in perform(connection, observe.stats())["queues"] if each["due"]]
    found = [each for queue in due[:_QUEUES] for each in perform(connection, observe.why_late(queue))]
    return [each for each in found if each["cause"] != "on_time"]
