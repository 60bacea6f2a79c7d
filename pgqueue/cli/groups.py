"""`pgqueue groups`: list groups of jobs, show one, and act on their members."""

from __future__ import annotations

from typing import Annotated

import typer

from pgqueue.cli import bulk, output
from pgqueue.cli.database import ask, connected
from pgqueue.cli.options import AsJson, ChunkSize, Dsn, Yes, commands
from pgqueue.cli.output import when
from pgqueue.cli.tables import Table
from pgqueue.db import groups, operate
from pgqueue.db.call import perform

app = commands("List groups of jobs, show one, and act on their members.")

GroupId = Annotated[int, typer.Argument(metavar="GROUP", help="The group's id.", show_envvar=False)]

_STATES = ("waiting", "failed", "blocked", "executing", "succeeded", "dead", "cancelled")


@app.command(name="list")
def list_groups(
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most N groups.", min=1, max=1000)] = 20,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """List groups, newest first, with the states of their members."""
    found = ask(dsn, groups.list_groups(limit))
    if as_json:
        output.print_json(found)
        return
    headings = ("id", "name", "state", "members", *_STATES, "created")
    table = Table(headings, right=frozenset({"id", "members", *_STATES}), cut=frozenset({"name"}))
    for each in found:
        state = "open" if each["is_open"] else each["state"]
        most = each["counted_to"]
        counts = (f"{each[name]}+" if most is not None and each[name] >= most else each[name] for name in _STATES)
        total = each["total"] if most is None else f"{each['total']}+"
        table.add(each["id"], each["name"], state, total, *counts, when(each["created_at"]))
    table.show()


@app.command(name="show")
def show_group(
    group_id: GroupId,
    state: Annotated[str | None, typer.Option("--state", "-s", help="Only members in this state.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most N members.", min=1, max=10000)] = 20,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Show the progress of a group, what it waits for, and its members."""
    with connected(dsn) as connection:
        found = perform(connection, groups.find_group(group_id, 1_000_000))
        if found is None:
            output.not_found(f"There is no group {group_id}")
        members = perform(connection, groups.members(group_id, state, limit))
    progress, why = found
    detail = why["detail"]
    if as_json:
        output.print_json({**progress, "detail": detail, "members": members})
        return
    output.line(f"Group {group_id} ({progress['name'] or 'no name'}): {progress['state']}; {detail}")
    output.line(", ".join(f"{progress[name]} {name}" for name in _STATES if progress[name]) or "no members")
    table = Table(("id", "task", "state", "attempts", "last error"), right=frozenset({"id", "attempts"}))
    for each in members:
        error = each["error"] or {}
        last = f"{error.get('class', '')}: {error.get('message', '')}"[:60] if error else ""
        table.add(each["id"], each["task"], each["job_state"], each["attempts"], last)
    if members:
        table.show()


@app.command(name="cancel")
def cancel_group(group_id: GroupId, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Cancel a group and its members."""
    if ask(dsn, groups.find_group(group_id)) is None:
        output.not_found(f"There is no group {group_id}")
    state = ask(dsn, operate.cancel(group_id))
    if state is None:
        output.not_found(f"Group {group_id} has ended: there is nothing to cancel")
    if as_json:
        output.print_json({"id": group_id, "state": state})
    else:
        output.line(f"Group {group_id}: {state}")


@app.command(name="retry")
def retry_group(
    group_id: GroupId,
    chunk: ChunkSize = 1000,
    yes: Yes = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Retry the dead and cancelled members of a group; the group comes back with them."""
    found = ask(dsn, groups.find_group(group_id, 1))
    if found is None:
        output.not_found(f"There is no group {group_id}")
    if not found[0]["dead"] and not found[0]["cancelled"]:
        output.not_found(f"No member of group {group_id} is dead or cancelled")
    bulk.run("retry", "retried", None, {"group_id": group_id}, False, chunk, yes, as_json, dsn)
