"""Acting on many jobs: by filter, chunk by chunk, each chunk in a transaction of its own."""

from __future__ import annotations

from typing import Any

import psycopg
import typer

from pgqueue.cli import output
from pgqueue.cli.database import connected
from pgqueue.cli.progress import progress
from pgqueue.db import operate
from pgqueue.db.call import perform
from pgqueue.errors import ConfigError
from pgqueue.logs import printable


def filters(
    queue: str | None,
    task: str | None,
    key: str | None,
    state: str | None,
    created_after: str | None,
    created_before: str | None,
    finished_after: str | None = None,
    finished_before: str | None = None,
) -> dict[str, object]:
    """Return the filters that were given."""
    given = {
        "queue": queue,
        "task": task,
        "key": key,
        "state": state,
        "created_after": created_after,
        "created_before": created_before,
        "finished_after": finished_after,
        "finished_before": finished_before,
    }
    return {name: value for name, value in given.items() if value is not None}


def run(
    action: str,
    outcome: str,
    job_ids: list[int] | None,
    given: dict[str, object],
    everything: bool,
    chunk: int,
    yes: bool,
    as_json: bool,
    dsn: str | None,
) -> None:
    """Act on all jobs that match the filters, and print how many were changed."""
    described = printable(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in given.items()))
    if job_ids:
        given["job_ids"] = job_ids
    elif everything:
        given["everything"] = True
    elif not given:
        raise ConfigError(f"{action} what?", hint="give ids, filters such as --state failed, or --everything")
    with connected(dsn) as connection:
        if not job_ids and not yes:
            _ask(connection, action, given, described)
        changed, skipped = _run_chunks(connection, action, given, chunk)
    if as_json:
        output.print_json({"action": action, "changed": changed, "passed_over": skipped})
    else:
        noun = "job" if changed == 1 else "jobs"
        rest = f"; {skipped} skipped: locked by another transaction, or changed meanwhile" if skipped else ""
        output.line(f"{changed} {noun} {outcome}{rest}")
    if job_ids and not changed:
        raise typer.Exit(1)


def _ask(connection: psycopg.Connection[Any], action: str, given: dict[str, object], described: str) -> None:
    """Print how many jobs match, and ask."""
    with connection.transaction(force_rollback=True):
        found = perform(connection, operate.count(action, given))
    number = found.changed + found.passed_over + found.left_over
    if number == 0 and found.next_after is None:
        output.line(f"No job to {action}.")
        raise typer.Exit
    matches = f"{number:,}" if found.is_exact else f"at least {number:,}"
    which = f"job{'' if number == 1 else 's'}{f' by: {described}' if described else ', all there are'}"
    typer.confirm(f"{action.capitalize()} {matches} {which}?", abort=True, err=True)


def _run_chunks(
    connection: psycopg.Connection[Any], action: str, given: dict[str, object], chunk: int
) -> tuple[int, int]:
    changed = skipped = 0
    with progress(action) as line:
        after: object = None
        while True:
            done = perform(connection, operate.bulk(action, given, chunk, after))
            changed += done.changed
            skipped += done.passed_over
            after = done.next_after
            # A count that is not exact means only that there is more.
            line.show(changed, changed + done.left_over if done.is_exact else None)
            if after is None:
                return changed, skipped
