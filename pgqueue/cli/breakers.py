"""`pgqueue breakers`: stop for a while what fails."""

from __future__ import annotations

from typing import Annotated

import typer

from pgqueue.cli import names, output
from pgqueue.cli.completion import kinds_of_breakers
from pgqueue.cli.database import ask, connected
from pgqueue.cli.names import Create
from pgqueue.cli.options import AsJson, Dsn, commands
from pgqueue.cli.tables import Table
from pgqueue.db import limits, observe
from pgqueue.db.call import perform

app = commands("Stop tasks and limit_keys for a while where too many of their attempts fail.")

Kind = Annotated[
    str,
    typer.Argument(metavar="KIND", help="task or limit_key.", show_envvar=False, autocompletion=kinds_of_breakers),
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="The task, or the limit_key (acme*: each that begins so, by itself).", show_envvar=False
    ),
]


@app.command(name="list")
def list_breakers(as_json: AsJson = False, dsn: Dsn = None) -> None:
    """List breakers, and which of them are open or half-open."""
    found = ask(dsn, observe.stats(recent=True))["breakers"]
    if as_json:
        output.print_json(found)
        return
    table = Table(
        ("kind", "target", "failures", "pause", "state", "since", "reason"), cut=frozenset({"target", "reason"})
    )
    for each in found:
        opens = f"{100 * each['failures']:g}% of {each['of']}"
        if not each["opened"]:
            table.add(each["kind"], each["target"], opens, each["pause"], "closed", None, None)
        for opened in each["opened"]:
            state = opened["state"].replace("_", "-")
            since = output.ago(opened["since"])
            table.add(each["kind"], opened["target"], opens, each["pause"], state, since, opened["reason"])
    table.show()


@app.command(name="set")
def set_breaker(
    kind: Kind,
    target: Target,
    failures: Annotated[
        float | None, typer.Option(help="The share of failed attempts that opens it. At first: 0.5.")
    ] = None,
    of: Annotated[
        int | None, typer.Option(help="Of how many attempts, the newest ones, at least. At first: 20.")
    ] = None,
    pause: Annotated[
        str | None, typer.Option(help="How long nothing starts when it opens: '5 min'. At first: '30 s'.")
    ] = None,
    create: Create = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Set a breaker, or change it. An option that is left out keeps its value.

    While it is open nothing starts. Then one job at a time does: an attempt that succeeds closes it, one that fails
    opens it for twice as long.
    """
    with connected(dsn) as connection:
        names.require(connection, kind, target, create)
        changed = perform(connection, limits.set_breaker(kind, target, failures, of, pause))
    _say(kind, target, "set" if changed else "unchanged", changed, as_json)


@app.command(name="remove")
def remove_breaker(kind: Kind, target: Target, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Remove a breaker; what it has opened starts again."""
    if not ask(dsn, limits.remove_breaker(kind, target)):
        output.not_found(f"There is no breaker {kind} {target}")
    _say(kind, target, "removed", True, as_json)


@app.command(name="close")
def close_breaker(kind: Kind, target: Target, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Close an open breaker: all of it starts again."""
    changed = ask(dsn, limits.resume(kind, target, "breaker"))
    if not changed and not ask(dsn, limits.has_breaker(kind, target)):
        output.not_found(f"There is no breaker {kind} {target}")
    _say(kind, target, "closed" if changed else "unchanged", changed, as_json)


def _say(kind: str, target: str, state: str, changed: bool, as_json: bool) -> None:
    if as_json:
        output.print_json({"kind": kind, "target": target, "changed": changed})
    else:
        output.line(f"Breaker {kind} {target}: {state}")
