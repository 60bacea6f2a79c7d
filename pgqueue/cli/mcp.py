"""`pgqueue mcp`: tools for coding agents."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from pgqueue._redaction import REDACT
from pgqueue.cli.database import database, with_person
from pgqueue.cli.options import Dsn, commands
from pgqueue.errors import ConfigError

app = commands()


@app.command()
def mcp(
    allow_actions: Annotated[
        bool,
        typer.Option("--allow-actions", help="Also offer tools that retry, run and cancel jobs, and pause queues."),
    ] = False,
    hide_args: Annotated[bool, typer.Option("--hide-args", help="Hide args, headers and results.")] = False,
    redact: Annotated[
        list[str] | None,
        typer.Option(help="Pattern of another field whose value is hidden, as those of secrets are. Repeatable."),
    ] = None,
    dsn: Dsn = None,
) -> None:
    """Serve tools for coding agents over stdin and stdout.

    An agent's program starts it, by the Model Context Protocol: status, doctor, search_jobs, show_job, explain_job and
    dead_jobs. Without --allow-actions it only reads. It takes no SQL. The audit records what an agent changes, with mcp
    as the actor.
    """
    # Versions before 2 lack it.
    if find_spec("mcp_types") is None:
        raise ConfigError("the tools need the extra mcp", hint="pip install 'pgqueue-sql[mcp]'")
    # Imported here, so that the help works without it.
    from pgqueue.mcp.server import Options, build  # noqa: PLC0415

    options = Options(with_person("mcp"), allow_actions, hide_args, (*REDACT, *(redact or ())))
    with database(dsn) as found:
        build(found, options).run("stdio")
