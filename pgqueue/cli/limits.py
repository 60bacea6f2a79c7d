"""`pgqueue limits`: limit how many jobs execute or start at a time."""

from __future__ import annotations

from typing import Annotated

import typer

from pgqueue.cli import names, output
from pgqueue.cli.completion import kinds_of_limits
from pgqueue.cli.database import ask, connected
from pgqueue.cli.names import Create
from pgqueue.cli.options import AsJson, Dsn, commands
from pgqueue.cli.tables import Table
from pgqueue.db import observe, operate
from pgqueue.db.call import perform

app = commands("Limit how many jobs execute or start at a time.")

LimitKind = Annotated[
    str,
    typer.Argument(
        metavar="KIND", help="queue, task, key or limit_key.", show_envvar=False, autocompletion=kinds_of_limits
    ),
]
LimitTarget = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="The queue, the task, the beginning of keys, or the limit_key (acme*: each that begins so).",
        show_envvar=False,
    ),
]


@app.command(name="list")
def list_limits(as_json: AsJson = False, dsn: Dsn = None) -> None:
    """List limits, with the jobs that execute and wait under each."""
    found = ask(dsn, observe.stats(recent=False))["limits"]
    if as_json:
        output.print_json(found)
        return
    headings = ("kind", "target", "at most", "rate", "executing", "used", "started", "blocked")
    right = frozenset({"at most", "executing", "used", "started", "blocked"})
    table = Table(headings, right=right, cut=frozenset({"target"}))
    for each in found:
        rate = None if each["rate"] is None else f"{each['rate']} per {each['per']}"
        used = _part(each["used"], each["max_executing"])
        started = _part(each["started"], each["rate"])
        known = (each["kind"], each["target"], each["max_executing"], rate)
        table.add(*known, each["executing"], used, started, each["parked"])
    table.show()


def _part(used: int | None, most: int | None) -> str | None:
    return None if used is None or not most else f"{100 * used / most:.0f}%"


@app.command(name="set")
def set_limit(
    kind: LimitKind,
    target: LimitTarget,
    max_executing: Annotated[int | None, typer.Option("--max-executing", "-n", help="At most N at a time.")] = None,
    rate: Annotated[int | None, typer.Option(help="At most N starts ...")] = None,
    per: Annotated[str | None, typer.Option(help="... in any stretch of time as long as this: '1 min'.")] = None,
    create: Create = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Set a limit, or change it; it takes effect at once, over the whole fleet."""
    with connected(dsn) as connection:
        # A key and a limit_key come with their jobs.
        names.require(connection, kind, target, create)
        changed = perform(connection, operate.set_limit(kind, target, max_executing, rate, per))
    if as_json:
        output.print_json({"kind": kind, "target": target, "changed": changed})
    else:
        output.line(f"Limit {kind} {target}: {'set' if changed else 'unchanged'}")


@app.command(name="drop")
def drop_limit(
    kind: LimitKind,
    target: LimitTarget,
    part: Annotated[str | None, typer.Option(help="Only this part of it: max_executing or rate.")] = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Remove a limit, or a part of it; the jobs that it blocks are due again."""
    if not ask(dsn, operate.drop_limit(kind, target, part)):
        output.not_found(f"There is no limit {kind} {target}{f' with the part {part}' if part else ''}")
    if as_json:
        output.print_json({"kind": kind, "target": target, "part": part, "changed": True})
    else:
        output.line(f"Limit {kind} {target}: {f'{part} ' if part else ''}dropped")
