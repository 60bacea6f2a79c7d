"""Acting on many jobs: by filter, chunk by chunk, each chunk in a separate transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import psycopg
import typer

from pgqueue._filters import Filter, order_for, parse
from pgqueue.cli import output
from pgqueue.cli.database import connected
from pgqueue.cli.progress import progress
from pgqueue.db import observe, operate
from pgqueue.db.call import perform
from pgqueue.errors import ConfigError
from pgqueue.logs import how_many, printable

# How many a chunk changed, how many it skipped, and how many are left, where that is known.
_Chunk: TypeAlias = tuple[int, int, int | None]


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
    where: str | None = None,
) -> None:
    """Act on all jobs that match the filters, or the filter in `where`, and print how many were changed."""
    wanted: Filter | None = None if where is None else {"states": _STATES[action], **_filter(where)}
    if wanted and (job_ids or given or everything):
        raise ConfigError(
            "--where excludes other filters",
            hint="write all of it in --where, such as 'queue:mail state:dead id:17,18'",
        )
    described = printable(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in given.items()))
    if job_ids:
        given["job_ids"] = job_ids
    elif everything:
        given["everything"] = True
    elif not given and not wanted:
        raise ConfigError(
            f"no job to {action} was named", hint=f"give ids, filters such as {_EXAMPLES[action]}, or --everything"
        )
    known: list[int] = []
    with connected(dsn) as connection:
        if wanted and where is not None:
            if not yes:
                _ask_for_found(connection, action, wanted, where, as_json)
            run_chunks = _run_found(connection, action, wanted, chunk)
        else:
            if not job_ids and not yes:
                _ask(connection, action, given, described, as_json)
            # Read before the action: a deleted job is gone after it.
            known = perform(connection, operate.jobs_of(job_ids or []))
            run_chunks = _run_chunks(connection, action, given, chunk)
        changed, skipped = counted(action, outcome, run_chunks)
    unfit = _unfit(job_ids, known, changed + skipped)
    if as_json:
        _print_json(action, changed, skipped + unfit, job_ids, known)
    else:
        rest = f"; {skipped} skipped: locked by another transaction, or changed meanwhile" if skipped else ""
        if unfit:
            rest += f"; {unfit} skipped: not {_fitting(action, given)}"
            if action == "kill":
                rest += "; to end the process of one that executes: pgqueue workers kill --job ID"
        output.line(f"{how_many(changed, 'job')} {outcome}{rest}{_unknown(job_ids, known)}")
    if job_ids and not changed:
        raise typer.Exit(1)


def update(
    job_ids: list[int] | None,
    where: str | None,
    changes: Mapping[str, object],
    chunk: int,
    yes: bool,
    as_json: bool,
    dsn: str | None,
) -> None:
    """Change the jobs that were never started among these, or among those that match a filter; print how many."""
    if bool(job_ids) == (where is not None):
        raise ConfigError("update what?", hint="give ids, or --where 'queue:mail task:import'")
    wanted: Filter = {"ids": job_ids} if where is None else _filter(where)
    with connected(dsn) as connection:
        known = perform(connection, operate.jobs_of(job_ids or []))
        if where is not None and not yes:
            states = ["waiting", "blocked", *(["failed"] if list(changes) == ["args"] else [])]
            _ask_for_found(connection, "update", {"states": states, **wanted}, where, as_json)
        changed, skipped = counted("update", "changed", _update_chunks(connection, wanted, changes, chunk))
    skipped += _unfit(job_ids, known, changed + skipped)
    if as_json:
        _print_json("update", changed, skipped, job_ids, known)
    else:
        rest = f"; {skipped} skipped: locked, executing, attempted already, or ended" if skipped else ""
        output.line(f"{how_many(changed, 'job')} changed{rest}{_unknown(job_ids, known)}")
    if job_ids and not changed:
        raise typer.Exit(1)


def _unfit(job_ids: list[int] | None, known: list[int], counted: int) -> int:
    """Return how many of the jobs that were named are there, and were neither changed nor counted as skipped."""
    return max(0, len(set(job_ids or ()) & set(known)) - counted)


def _print_json(action: str, changed: int, skipped: int, job_ids: list[int] | None, known: list[int]) -> None:
    told: dict[str, object] = {"action": action, "changed": changed, "skipped": skipped}
    if job_ids:
        told["unknown"] = _missing(job_ids, known)
    output.print_json(told)


def _missing(job_ids: list[int] | None, known: list[int]) -> list[int]:
    return sorted(set(job_ids or ()) - set(known))


def _unknown(job_ids: list[int] | None, known: list[int]) -> str:
    """Name the jobs that there are not."""
    unknown = _missing(job_ids, known)
    ids = ", ".join(map(str, unknown[:10])) + (", ..." if unknown[10:] else "")
    return f"; there is no job {ids}, or its history has expired" if unknown else ""


def _update_chunks(
    connection: psycopg.Connection[Any], wanted: Filter, changes: Mapping[str, object], chunk: int
) -> Iterator[_Chunk]:
    after: object = None
    while True:
        changed, skipped, after = perform(connection, operate.update_many(wanted, changes, chunk, after))
        yield changed, skipped, None
        if after is None:
            return


def counted(action: str, outcome: str, chunks: Iterator[_Chunk], what: str = "job") -> tuple[int, int]:
    """Act chunk by chunk and count; if this is interrupted or fails, print how many were changed."""
    changed = skipped = 0
    try:
        with progress(action) as line:
            for more, left, total in chunks:
                changed += more
                skipped += left
                line.show(changed, None if total is None else changed + total)
    except BaseException as error:
        if changed or isinstance(error, KeyboardInterrupt):
            output.message(
                f"{how_many(changed, what)} {outcome} before this ended, and perhaps those of the chunk under way"
            )
        raise
    return changed, skipped


def _fitting(action: str, given: dict[str, object]) -> str:
    """Describe the jobs on which an action by ids acts."""
    # By their ids, cancelled ones are retried as well.
    states = ["dead", "cancelled"] if action == "retry" else _STATES[action]
    filters = {name: value for name, value in given.items() if name not in ("job_ids", "state")}
    return ", ".join([str(given.get("state") or " or ".join(states)), *(f"{n} {v}" for n, v in filters.items())])


def _ask(
    connection: psycopg.Connection[Any], action: str, given: dict[str, object], described: str, as_json: bool
) -> None:
    """Print how many jobs match, and ask."""
    with connection.transaction(force_rollback=True):
        found = perform(connection, operate.count(action, given))
    number = found.changed + found.skipped + found.left_over
    _confirm(action, number, found.is_exact, found.next_after is not None, described, as_json)


def _confirm(action: str, number: int, is_exact: bool, is_more: bool, described: str, as_json: bool) -> None:
    if number == 0 and not is_more:
        if as_json:
            # Its answer is that none was changed.
            return
        output.line(f"No job to {action}.")
        raise typer.Exit
    matches = f"{'' if is_exact else 'at least '}{how_many(number, 'job', '{:,}'.format)}"
    which = f" by: {described}" if described else ", all there are"
    typer.confirm(f"{action.capitalize()} {matches}{which}?", abort=True, err=True)


# The states that each action is for, where the filter names none.
_STATES = {
    "run": ["waiting", "failed"],
    "kill": ["waiting", "failed", "blocked"],
    "retry": ["dead"],
    "cancel": ["waiting", "failed", "blocked", "executing"],
    "delete": ["waiting", "failed", "blocked", "succeeded", "dead", "cancelled"],
}

# A filter that each action takes, for a hint.
_EXAMPLES = {
    "run": "--state failed",
    "kill": "--state failed",
    "retry": "--state dead",
    "cancel": "--state waiting",
    "delete": "--state dead",
}

# Rows of live jobs, and of history, that one search reads.
ROWS = 100_000


def _filter(where: str) -> Filter:
    wanted = parse(where)
    if not wanted:
        raise ConfigError("the filter is empty, and would match every job", hint="write --where 'state:dead', or so")
    return wanted


def _ask_for_found(connection: psycopg.Connection[Any], action: str, wanted: Filter, where: str, as_json: bool) -> None:
    found = perform(connection, observe.search("newest", wanted, None, 10_000, ROWS))
    is_more = found.next is not None
    _confirm(action, len(found.ids), not is_more, is_more, printable(where), as_json)


def _run_found(connection: psycopg.Connection[Any], action: str, wanted: Filter, chunk: int) -> Iterator[_Chunk]:
    """Search and act, in the order for the action; jobs that are enqueued meanwhile are left."""
    newest = search(connection, wanted, 1)
    if not newest:
        return
    order, wanted = order_for(action), {**wanted, "id_to": newest[0]}
    after: str | None = None
    while True:
        found = perform(connection, observe.search(order, wanted, after, chunk, ROWS))
        if found.ids:
            done = perform(connection, operate.bulk(action, {"job_ids": found.ids}, chunk))
            yield done.changed, len(found.ids) - done.changed, None
        after = found.next
        if after is None:
            return


def _run_chunks(
    connection: psycopg.Connection[Any], action: str, given: dict[str, object], chunk: int
) -> Iterator[_Chunk]:
    after: object = None
    while True:
        done = perform(connection, operate.bulk(action, given, chunk, after))
        # A count that is not exact means only that there is more.
        yield done.changed, done.skipped, done.left_over if done.is_exact else None
        after = done.next_after
        if after is None:
            return


def search(connection: psycopg.Connection[Any], wanted: Filter, most: int, order: str = "newest") -> list[int]:
    """Return the ids of the first `most` jobs that fit a filter, however many rows lie between them."""
    ids: list[int] = []
    after: str | None = None
    while len(ids) < most:
        page = perform(connection, observe.search(order, wanted, after, min(most - len(ids), 10_000), ROWS))
        ids += page.ids
        after = page.next
        if after is None:
            break
    return ids
