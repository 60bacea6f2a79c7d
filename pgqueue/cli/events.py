"""`pgqueue events`: list events, and delete them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Annotated, Any

import psycopg
import typer

from pgqueue.cli import bulk, output
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


# How many events one call deletes at the most.
_MOST = 1000


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
    if names and prefix is not None:
        raise ConfigError("names and --prefix were both given", hint="give one of them")
    if prefix == "":
        raise ConfigError("--prefix is empty, and would match every event", hint="give a text, such as paid:")
    if not names and prefix is None:
        raise ConfigError("no event to delete was named", hint="give names of events, or --prefix paid:")
    if prefix and not yes:
        typer.confirm(f"Delete the events whose names begin with {printable(prefix)}?", abort=True, err=True)
    with connected(dsn) as connection:
        deleted, _ = bulk.counted("delete", "deleted", _chunks(connection, names, prefix), "event")
    if as_json:
        output.print_json({"deleted": deleted})
    else:
        output.line(f"{how_many(deleted, 'event')} deleted")
    if names and not deleted:
        raise typer.Exit(1)


def _chunks(
    connection: psycopg.Connection[Any], names: list[str] | None, prefix: str | None
) -> Iterator[tuple[int, int, None]]:
    """Delete as many events in each transaction as one call does; yield how many, as `bulk.counted` counts."""
    for few in (names[start : start + _MOST] for start in range(0, len(names), _MOST)) if names else repeat(None):
        deleted = perform(connection, steps.delete_events(few, prefix))
        yield deleted, 0, None
        if few is None and deleted < _MOST:
            return
