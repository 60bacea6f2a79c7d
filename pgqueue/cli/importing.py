"""`pgqueue import`: move the waiting jobs of another queue in the same database here."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import psycopg
import typer

from pgqueue.cli import output
from pgqueue.cli.database import connected
from pgqueue.cli.options import Dsn, commands
from pgqueue.db import produce
from pgqueue.db.call import perform
from pgqueue.db.results import BatchResult
from pgqueue.db.sources import GRAPHILE_WORKER, PGMQ, PGQUEUER, PROCRASTINATE, Reader, Source
from pgqueue.errors import ConfigError, InvalidArgument
from pgqueue.logs import how_many

app = commands("Move the waiting jobs of another queue here.")

Rename = Annotated[
    list[str] | None,
    typer.Option(
        "--task", help="Give a task another name here: app.tasks.send=send_email. Repeatable.", metavar="OLD=NEW"
    ),
]
Queue = Annotated[str | None, typer.Option("--queue", "-q", help="Put all jobs into this queue.")]
Schema = Annotated[str | None, typer.Option(help="The schema of its tables; default: the usual one.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; show what would be moved.")]
Leave = Annotated[bool, typer.Option("--leave-refused", help="Leave jobs that are refused here, and move the others.")]


@app.callback()
def _import() -> None:
    """Move the waiting jobs of another queue in the same database here, in one transaction.

    Stop its producers and workers first. Running and finished jobs stay there. If a job is refused here, nothing is
    moved, except with --leave-refused.
    """


@app.command()
def procrastinate(
    task: Rename = None,
    queue: Queue = None,
    schema: Schema = None,
    dry_run: DryRun = False,
    leave_refused: Leave = False,
    dsn: Dsn = None,
) -> None:
    """Jobs of procrastinate that are `todo`. A lock becomes the key, a queueing lock the dedupe key."""
    _move(PROCRASTINATE, [None], task, queue, schema, dry_run, leave_refused, dsn)


@app.command()
def pgqueuer(
    task: Rename = None,
    queue: Queue = None,
    schema: Schema = None,
    dry_run: DryRun = False,
    leave_refused: Leave = False,
    dsn: Dsn = None,
) -> None:
    """Jobs of PgQueuer that are `queued`. The entrypoint becomes the task; a payload of JSON its arguments."""
    _move(PGQUEUER, [None], task, queue, schema, dry_run, leave_refused, dsn)


@app.command(name="graphile-worker")
def graphile_worker(
    task: Rename = None,
    queue: Queue = None,
    schema: Schema = None,
    dry_run: DryRun = False,
    leave_refused: Leave = False,
    dsn: Dsn = None,
) -> None:
    """Jobs of graphile-worker that are not locked. A named queue becomes the key, a job key the dedupe key."""
    _move(GRAPHILE_WORKER, [None], task, queue, schema, dry_run, leave_refused, dsn)


@app.command()
def pgmq(
    queues: Annotated[list[str], typer.Argument(metavar="QUEUE...", help="Queues of pgmq.", show_envvar=False)],
    task: Rename = None,
    queue: Queue = None,
    schema: Schema = None,
    dry_run: DryRun = False,
    leave_refused: Leave = False,
    dsn: Dsn = None,
) -> None:
    """Unread messages of pgmq's queues. The name of the queue becomes the task."""
    _move(PGMQ, queues, task, queue, schema, dry_run, leave_refused, dsn)


def _move(
    source: Source,
    parts: list[str] | list[None],
    renamed: list[str] | None,
    queue: str | None,
    schema: str | None,
    dry_run: bool,
    leave_refused: bool,
    dsn: str | None,
) -> None:
    names = _names(renamed or [])
    moved: Counter[tuple[str, str]] = Counter()
    refused: list[str] = []
    others = 0
    with connected(dsn) as connection, connection.transaction(force_rollback=dry_run):
        for part in parts:
            reader = Reader(connection, source, schema, part)
            if not reader.exists():
                raise ConfigError(
                    f"there is no table {reader.table} of {source.name} in this database",
                    hint="name its --schema, or the database by --dsn",
                )
            reader.count()
            refused += _move_part(connection, reader, names, queue, moved)
            others += reader.others()
        if refused and not leave_refused:
            raise ConfigError(
                f"nothing was moved, because {how_many(len(refused), 'job')} would be refused here:"
                f" {'; '.join(refused[:5])}",
                hint="correct them, or leave them where they are by --leave-refused",
            )
    for (name, outcome), jobs in sorted(moved.items()):
        output.line(f"{jobs:>10}  {name}  {outcome}")
    verb = "would be moved" if dry_run else "moved"
    output.message(
        f"{how_many(sum(moved.values()), 'job')} {verb}; {len(refused)} refused and left;"
        f" {others} running or locked there, and left"
    )


def _move_part(
    connection: psycopg.Connection[object],
    reader: Reader,
    names: dict[str, str],
    queue: str | None,
    moved: Counter[tuple[str, str]],
) -> list[str]:
    refused = []
    while rows := reader.next():
        jobs = []
        for _, job in rows:
            job["task"] = names.get(job["task"], job["task"])
            jobs.append(job if queue is None else {**job, "queue": queue})
        results = _enqueued(connection, jobs)
        gone = []
        for (old, job), result in zip(rows, results, strict=True):
            if result.error is not None:
                refused.append(f"job {old} ({job['task']}): {result.error['message']}")
                continue
            gone.append(old)
            moved[job["task"], result.outcome] += 1
        reader.delete(gone)
    return refused


def _enqueued(connection: psycopg.Connection[object], jobs: list[dict[str, object]]) -> list[BatchResult]:
    """Enqueue jobs; one whose arguments PostgreSQL cannot read, such as a text with \\u0000, is refused alone."""
    try:
        with connection.transaction():
            return perform(connection, produce.enqueue_batch(jobs))
    except InvalidArgument as error:
        if len(jobs) == 1:
            return [BatchResult(None, "error", {"message": error.message})]
        half = len(jobs) // 2
        return _enqueued(connection, jobs[:half]) + _enqueued(connection, jobs[half:])


def _names(renamed: list[str]) -> dict[str, str]:
    names = {}
    for each in renamed:
        old, equals, new = each.partition("=")
        if not equals or not old or not new:
            raise ConfigError(f"--task {each} renames nothing", hint="give it as OLD=NEW")
        names[old] = new
    return names
