"""`pgqueue limits`: limit how many jobs execute or start at a time."""

from __future__ import annotations

from typing import Annotated

import typer

from pgqueue.cli import names, output
from pgqueue.cli.completion import kinds_of_limits, kinds_of_pauses, sources_of_pauses
from pgqueue.cli.database import ask, connected
from pgqueue.cli.names import Create
from pgqueue.cli.options import AsJson, Dsn, For, Reason, commands
from pgqueue.cli.tables import Table
from pgqueue.db import limits, observe
from pgqueue.db.call import perform

app = commands("Limit how many jobs execute or start at a time; pause and throttle.")

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
        help="The queue, the task, the beginning of keys, or the limit_key (acme* for all that begin with acme).",
        show_envvar=False,
    ),
]

PauseKind = Annotated[
    str,
    typer.Argument(metavar="KIND", help="queue, task or limit_key.", show_envvar=False, autocompletion=kinds_of_pauses),
]
PauseTarget = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="The queue, the task, or the limit_key (acme* for all that begin with acme).",
        show_envvar=False,
    ),
]
Delay = Annotated[str, typer.Argument(metavar="DELAY", help="For this time: '30 s'.", show_envvar=False)]


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
        if each["burst"] is not None:
            rate = f"{rate}, burst {each['burst']}"
        used = _part(each["used"], each["max_executing"])
        started = _part(each["started"], each["burst"] or each["rate"])
        most = [each["max_executing"], each["max_cost"] and f"{each['max_cost']} units"]
        at_most = ", ".join(str(number) for number in most if number is not None)
        known = (each["kind"], each["target"], at_most, rate)
        table.add(*known, each["executing"], used, started, each["waiting"])
    table.show()


def _part(used: int | None, most: int | None) -> str | None:
    return None if used is None or not most else f"{100 * used / most:.0f}%"


@app.command(name="set")
def set_limit(
    kind: LimitKind,
    target: LimitTarget,
    max_executing: Annotated[
        int | None, typer.Option("--max-executing", "-n", help="How many jobs may execute at the same time.")
    ] = None,
    rate: Annotated[
        int | None, typer.Option(help="How many jobs, or units of their costs, may start within --per.")
    ] = None,
    per: Annotated[str | None, typer.Option(help="The length of time for --rate: '1 min'.")] = None,
    burst: Annotated[
        int | None, typer.Option(help="The size of a bucket of units, which is filled at the rate.")
    ] = None,
    max_cost: Annotated[
        int | None, typer.Option("--max-cost", help="How many units of jobs may execute at the same time.")
    ] = None,
    create: Create = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Set a limit, or change it; it takes effect at once, over the whole fleet.

    A job is one unit, or as many as its cost.
    """
    with connected(dsn) as connection:
        # A key and a limit_key come with their jobs.
        names.require(connection, kind, target, create)
        changed = perform(connection, limits.set_limit(kind, target, max_executing, rate, per, max_cost, burst))
    if as_json:
        output.print_json({"kind": kind, "target": target, "changed": changed})
    else:
        output.line(f"Limit {kind} {target}: {'set' if changed else 'unchanged'}")


@app.command(name="drop")
def drop_limit(
    kind: LimitKind,
    target: LimitTarget,
    part: Annotated[
        str | None, typer.Option(help="Only this part of it: max_executing, rate, max_cost or burst.")
    ] = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Remove a limit, or a part of it; the jobs that it blocks are due again."""
    if not ask(dsn, limits.drop_limit(kind, target, part)):
        output.not_found(f"There is no limit {kind} {target}{f' with the part {part}' if part else ''}")
    if as_json:
        output.print_json({"kind": kind, "target": target, "part": part, "changed": True})
    else:
        output.line(f"Limit {kind} {target}: {f'{part} ' if part else ''}dropped")


@app.command(name="pauses")
def list_pauses(as_json: AsJson = False, dsn: Dsn = None) -> None:
    """List what is paused or throttled, by whom, and until when."""
    found = ask(dsn, observe.stats(recent=True))["pauses"]
    if as_json:
        output.print_json(found)
        return
    table = Table(("kind", "target", "source", "since", "until", "by", "reason"), cut=frozenset({"target", "reason"}))
    for each in found:
        until = "resumed" if each["until"] is None else each["until"][:19]
        table.add(
            each["kind"], each["target"], each["source"], output.ago(each["since"]), until, each["by"], each["reason"]
        )
    table.show()


@app.command(name="pause")
def pause(
    kind: PauseKind,
    target: PauseTarget,
    lasts: For = None,
    reason: Reason = None,
    create: Create = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Start no more jobs of a queue, a task or a limit_key; executing jobs continue, and producers can enqueue."""
    with connected(dsn) as connection:
        names.require(connection, kind, target, create)
        changed = perform(connection, limits.pause(kind, target, lasts, reason))
    _say(kind, target, changed, "paused", as_json)


@app.command(name="throttle")
def throttle(
    kind: PauseKind,
    target: PauseTarget,
    delay: Delay,
    reason: Reason = None,
    create: Create = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Start nothing of a queue, a task or a limit_key for a time, as a handler does after a 429."""
    with connected(dsn) as connection:
        names.require(connection, kind, target, create)
        changed = perform(connection, limits.throttle(kind, target, delay, reason))
    _say(kind, target, changed, "throttled", as_json)


@app.command(name="resume")
def resume(
    kind: PauseKind,
    target: PauseTarget,
    source: Annotated[
        str,
        typer.Option(
            help="Which pause ends: that of an operator, a throttle or a breaker.", autocompletion=sources_of_pauses
        ),
    ] = "operator",
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """End a pause or a throttle."""
    _say(kind, target, ask(dsn, limits.resume(kind, target, source)), "resumed", as_json)


def _say(kind: str, target: str, changed: bool, verb: str, as_json: bool) -> None:
    if as_json:
        output.print_json({"kind": kind, "target": target, "changed": changed})
    else:
        output.line(f"{kind} {target}: {verb if changed else 'unchanged'}")
