"""`pgqueue tasks schema`: JSON Schemas of the arguments of tasks, for producers in other languages."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from pgqueue.cli import output
from pgqueue.cli.modules import load
from pgqueue.errors import ConfigError
from pgqueue.tasks import Task


def register(to: typer.Typer) -> None:
    """Add the command to a group of commands."""
    to.command(name="schema")(schema)


Tasks = Annotated[
    list[str] | None, typer.Argument(metavar="[TASK]...", help="Only these; default: all.", show_envvar=False)
]
Require = Annotated[
    list[str] | None,
    typer.Option("--require", "-r", help="Module with the tasks: package.module or package.module:app. Repeatable."),
]


def schema(task: Tasks = None, require: Require = None) -> None:
    """Print the JSON schemas of the arguments of tasks: one object, a schema for each task, by its annotations.

    It needs no database. An accumulating task has the schema of one payload. "format" says which text a type is:
    date-time, date, time, duration (ISO 8601), uuid, base64url.
    """
    schemas = {each.name: each.schema() for each in chosen(task, require, "tasks schema")}
    output.line(json.dumps(schemas, indent=2, ensure_ascii=False))


def chosen(names: list[str] | None, require: list[str] | None, command: str) -> list[Task[Any, Any]]:
    """Return the named tasks of the modules, or all, in the order of their names."""
    app = load(require or [], command)
    for name in names or ():
        if name not in app.tasks:
            raise ConfigError(f"there is no task {name!r}", hint=f"known: {', '.join(sorted(app.tasks)) or 'none'}")
    return [each for name, each in sorted(app.tasks.items()) if not names or name in names]
