"""`pgqueue shares`: how many jobs a tenant of a fair queue starts in its turn."""

from __future__ import annotations

from typing import Annotated

import typer

from pgqueue.cli import output
from pgqueue.cli.database import ask
from pgqueue.cli.options import AsJson, Dsn, commands
from pgqueue.cli.tables import Table
from pgqueue.db import limits

app = commands("Say how many jobs a tenant of a fair queue starts in its turn.")

Tenant = Annotated[
    str,
    typer.Argument(metavar="LIMIT_KEY", help="The tenant (acme*: each that begins so).", show_envvar=False),
]


@app.command(name="list")
def list_shares(as_json: AsJson = False, dsn: Dsn = None) -> None:
    """List the shares that are set; all other tenants have 1."""
    found = ask(dsn, limits.shares())
    if as_json:
        output.print_json(found)
        return
    table = Table(("limit_key", "weight"), right=frozenset({"weight"}), cut=frozenset({"limit_key"}))
    for each in found:
        table.add(each["limit_key"], each["weight"])
    table.show()


@app.command(name="set")
def set_share(
    limit_key: Tenant,
    weight: Annotated[int, typer.Argument(metavar="WEIGHT", help="Jobs in its turn, 1 to 1000.", show_envvar=False)],
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Set the share of a tenant; it binds from the next claim on."""
    _change(limit_key, weight, "set", as_json, dsn)


@app.command(name="drop")
def drop_share(limit_key: Tenant, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Take the share of a tenant back."""
    _change(limit_key, None, "dropped", as_json, dsn)


def _change(limit_key: str, weight: int | None, verb: str, as_json: bool, dsn: str | None) -> None:
    changed = ask(dsn, limits.set_share(limit_key, weight))
    if weight is None and not changed:
        output.not_found(f"There is no share of {limit_key}")
    if as_json:
        output.print_json({"limit_key": limit_key, "weight": weight, "changed": changed})
    else:
        output.line(f"Share of {limit_key}: {verb if changed else 'unchanged'}")
