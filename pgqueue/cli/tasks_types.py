"""`pgqueue tasks types`: types of arguments and results in other languages, for producers there."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from pgqueue.cli import output
from pgqueue.cli.tasks_schema import Require, Tasks, chosen
from pgqueue.cli.type_declarations import TaskTypes, go, typescript


class Language(StrEnum):
    """The languages of the types."""

    TYPESCRIPT = "typescript"
    GO = "go"


def register(to: typer.Typer) -> None:
    """Add the command to a group of commands."""
    to.command(name="types")(types)


def types(
    lang: Annotated[Language, typer.Option(help="The language.")],
    task: Tasks = None,
    require: Require = None,
    package: Annotated[str, typer.Option(help="Name of the package in Go.")] = "tasks",
) -> None:
    """Print types of the arguments and results of tasks in another language, by the annotations of their functions.

    It needs no database. A producer enqueues values of these types as JSON; a date is a text, with its format in a
    comment.
    """
    found = [TaskTypes(each.name, each.schema(), each.result_schema()) for each in chosen(task, require, "tasks types")]
    output.lines(typescript(found) if lang is Language.TYPESCRIPT else go(found, package))
