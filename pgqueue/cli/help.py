"""`pgqueue help`: the manual of the SQL functions."""

from __future__ import annotations

import re
import textwrap
from typing import Annotated, Any

import typer

from pgqueue.cli import output
from pgqueue.cli.completion import functions
from pgqueue.cli.database import ask
from pgqueue.cli.options import AsJson, Dsn, commands
from pgqueue.cli.tables import Table
from pgqueue.db import operate

app = commands()

# The default of a filter of a bulk call, which no job has: left out, any job fits.
_ANY = re.compile(r" DEFAULT (repeat\('\*'::text, 600\)|'\{?-9223372036854775808\}?'::bigint(\[\])?)$")


@app.command(name="help")
def help_on(
    function: Annotated[
        str | None, typer.Argument(help="A function of the queue; without, all.", autocompletion=functions)
    ] = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Explain an SQL function of the queue.

    It shows the view pgqueue.manual. For the commands of this program: pgqueue COMMAND --help.
    """
    name = None if function is None else function.removeprefix("pgqueue.").removesuffix("()")
    found = ask(dsn, operate.read_manual(name))
    if not found and name is not None:
        output.not_found(f"There is no function {name}: pgqueue help lists them; commands have --help")
    if as_json:
        output.print_json(found)
    elif name is None:
        table = Table(("function", "what it does"), cut=frozenset({"what it does"}))
        for each in found:
            table.add(each["name"], each["what_it_does"].split("\n")[0])
        table.show()
    else:
        for each in found:
            _show(each)


def arguments_of(signature: str) -> list[str]:
    """Return the arguments of a function as the catalog writes them, those of filters with no default but `any`."""
    # At the commas that stand in no brackets or quotes.
    parts = re.findall(r"(?:[^,('\"]|\([^)]*\)|'(?:[^']|'')*'|\"[^\"]*\")+", signature)
    return [_ANY.sub(" DEFAULT any", part.strip()) for part in parts]


def _show(function: dict[str, Any]) -> None:
    # What an argument is stands on its own line, after its name.
    purpose, *rest = function["what_it_does"].split("\n")
    explained = dict(each.partition(": ")[::2] for each in rest)
    output.line(f"pgqueue.{function['name']}", "bold")
    for each in arguments_of(function["arguments"]):
        output.line(f"    {each}")
        if more := explained.get(each.split(" ")[0]):
            output.lines(textwrap.fill(more, 79, initial_indent=" " * 8, subsequent_indent=" " * 8))
    output.line(f"returns {function['returns']}")
    output.line("")
    output.lines(textwrap.fill(purpose, 79))
    if function["example"]:
        output.line("")
        output.line(f"Example: {function['example']}")
    output.line(f"Who may: {', '.join([*function['who_may'], 'the owner'])}")
