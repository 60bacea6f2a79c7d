"""`pgqueue doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from pgqueue.cli import output
from pgqueue.cli.database import connected
from pgqueue.cli.options import AsJson, Dsn, commands
from pgqueue.db import consume, observe
from pgqueue.db.call import perform
from pgqueue.schema.status import problems

app = commands()

SEVERITIES = ("critical", "warning", "info")


@app.command()
def doctor(
    fail_on: Annotated[
        str, typer.Option("--fail-on", help="Exit with 1 at this severity or worse: critical, warning, info, never.")
    ] = "warning",
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """List problems, each with the command that solves it.

    Exits with 1 when it finds something of the severity --fail-on or worse.
    """
    if fail_on not in (*SEVERITIES, "never"):
        raise typer.BadParameter("give critical, warning, info or never", param_hint="--fail-on")
    with connected(dsn) as connection:
        findings = [*problems(perform(connection, consume.version())), *perform(connection, observe.doctor())]
    if as_json:
        output.print_json(findings)
    else:
        _show(findings)
    if any(_is_as_bad(each["severity"], fail_on) for each in findings):
        raise typer.Exit(1)


def _is_as_bad(severity: str, least: str) -> bool:
    return least != "never" and SEVERITIES.index(severity) <= SEVERITIES.index(least)


def _show(findings: list[dict[str, str]]) -> None:
    if not findings:
        output.line("No problem was found.")
    for each in findings:
        output.line(f"{each['severity']}: {each['topic']}: {each['subject']}", output.COLOURS[each["severity"]])
        output.line(f"    {each['evidence']}")
        output.line(f"    do: {each['remedy']}")
