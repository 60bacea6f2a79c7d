"""`pgqueue events`: list events, and delete them."""

from __future__ import annotations

from typing import Annotated

import typer

from pgqueue.cli import output
from pgqueue.cli.database import ask, connected
from pgqueue.cli.options import AsJson, Dsn, Yes, commands
from pgqueue.cli.output import when
from pgqueue.cli.tables import Table
from pgqueue.db import steps
from pgqueue.db.call import perform
from pgqueue.errors import ConfigError
from pgqueue.logs import how_many, printable

app = commands("List events, the largest first or by name, and delete them.")

Prefix = Annotated[str | None, typer.Option("--prefix", "-p", help="Only events whose names begin with this.")]


@app.command(name="list")
def list_events(
    prefix: Prefix = None,
    by_size: Annotated[bool, typer.Option("--by-size", help="The largest first.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most N events.", min=1, max=10000)] = 20,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """List the events that are kept, with the bytes of their payloads."""
    found = ask(dsn, steps.list_events(prefix, limit, by_size=by_size))
    if as_json:
        output.print_json(found)
        return
    table = Table(("name", "bytes", "emitted", "kept until"), right=frozenset({"bytes"}), cut=frozenset({"name"}))
    for each in found:
        table.add(each["name"], each["bytes"], when(each["emitted_at"]), when(each["kept_until"]))
    table.show()


@app.command(name="delete")
def delete_events(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Names of events.", show_envvar=False)
    ] = None,
    prefix: Prefix = None,
    yes: Yes = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Delete events before they expire; an event that has not reached all waiting jobs remains."""
    if bool(names) == (prefix is not None) or prefix == "":
        raise ConfigError(
            "delete which events?", hint="give names of events, or --prefix paid:, not both and not empty"
        )
    if prefix and not yes:
        typer.confirm(f"Delete the events whose names begin with {printable(prefix)}?", abort=True, err=True)
    deleted = 0
    with connected(dsn) as connection:
        while True:
            more = perform(connection, steps.delete_events(names or None, prefix))
            deleted += more
            if names or more < 1000:
                break
    if as_json:
        output.print_json({"deleted": deleted})
    else:
        output.line(f"{how_many(deleted, 'event')} deleted")
    if names and not deleted:
        raise typer.Exit(1)
