"""`pgqueue queues`: act on a queue."""

from __future__ import annotations

from typing import Annotated

import typer

from pgqueue.cli import bulk
from pgqueue.cli.options import AsJson, ChunkSize, Dsn, Yes, commands

app = commands("Act on a queue.")


@app.callback()
def _queues() -> None:
    """Act on a queue."""


@app.command(name="purge")
def purge_queue(
    queue: Annotated[str, typer.Argument(metavar="NAME", help="The queue.", show_envvar=False)],
    chunk: ChunkSize = 1000,
    yes: Yes = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Delete all that waits in a queue; what executes goes on, history stays."""
    bulk.run("purge", "deleted", None, {"queue": queue}, False, chunk, yes, as_json, dsn)
