"""The tree of commands, as typer builds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from pgqueue import cli


def top() -> dict[str, Any]:
    """The commands and groups right under `pgqueue`."""
    tree: Any = typer.main.get_command(cli.cli)
    return dict(tree.commands)


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with its path."""
    command = command or typer.main.get_command(cli.cli)
    if hasattr(command, "commands"):
        for name, each in command.commands.items():
            yield from commands(each, (*path, name))
    else:
        yield path, command
