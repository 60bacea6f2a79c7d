"""`pgqueue grant`."""

from __future__ import annotations

from typing import Annotated

import typer

from pgqueue.cli import output
from pgqueue.cli.completion import kinds_of_roles
from pgqueue.cli.database import ask, connected
from pgqueue.cli.options import AsJson, Dsn, commands
from pgqueue.db import operate
from pgqueue.db.call import perform

app = commands()


@app.command()
def grant(
    kind: Annotated[str, typer.Argument(help="producer, worker, operator or reader.", autocompletion=kinds_of_roles)],
    role: Annotated[str, typer.Argument(help="The role.")],
    revoke: Annotated[bool, typer.Option("--revoke", help="Take it back.")] = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Let a role use the queue.

    The grant survives migrations.
    """
    if revoke:
        changed = bool(ask(dsn, operate.revoke_access(kind, role)))
    else:
        with connected(dsn) as connection:
            # Read before, for granting again gives no answer.
            changed = not perform(connection, operate.has_access(kind, role))
            perform(connection, operate.grant_access(kind, role))
    if as_json:
        output.print_json({"role": role, "kind": kind, "granted": not revoke, "changed": changed})
    else:
        output.line(f"{role} is {'no longer' if revoke else 'now'} {'an' if kind == 'operator' else 'a'} {kind}.")
