"""Names of queues and tasks that a command is given: a name that nothing has yet may be mistyped."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any

import psycopg
import typer

from pgqueue.cli import output
from pgqueue.db import operate
from pgqueue.db.call import Call, perform
from pgqueue.errors import AccessDenied

# The kinds of names that can be looked up. The default queue is there before it has jobs.
_NAMES: dict[str, Call[list[str]]] = {"queue": operate.queue_names(), "task": operate.task_names()}

Create = Annotated[bool, typer.Option("--create", help="Go ahead although no job, worker or option has this name yet.")]


def require(connection: psycopg.Connection[Any], kind: str, name: str, create: bool = False) -> None:
    """Exit with 1 if nothing has this name, and print the nearest one, unless it is to be created."""
    if create or kind not in _NAMES:
        return
    known = perform(connection, _NAMES[kind])
    if name not in known:
        output.message(f"There is no {kind} {name} yet{_nearest(name, known)}")
        output.not_found("To go ahead with this name, repeat the command with --create")


def look_up(connection: psycopg.Connection[Any], kind: str, name: str) -> None:
    """Exit with 1 if nothing has the name that is asked about, and print the nearest one."""
    known = perform(connection, _NAMES[kind])
    if name not in known:
        output.not_found(f"There is no {kind} {name}{_nearest(name, known)}")


def doubt(connection: psycopg.Connection[Any], kind: str, name: str | None) -> str | None:
    """Return a note if nothing has this name and something has a similar one."""
    try:
        known = [] if name is None else perform(connection, _NAMES[kind])
    except AccessDenied:
        # A producer may enqueue, and not read which names there are.
        return None
    if name is None or name in known:
        return None
    nearest = _nearest(name, known)
    return f"Nothing had the {kind} {name} until now{nearest}" if nearest else None


def _nearest(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f": did you mean {near[0]}?" if near else ""
