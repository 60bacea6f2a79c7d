"""`pgqueue migrate`. The only module of the command line that imports alembic at once."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pgqueue.cli import output
from pgqueue.cli.database import database
from pgqueue.cli.options import AsJson, Dsn, commands
from pgqueue.config import describe_dsn
from pgqueue.errors import ConfigError
from pgqueue.schema import bundled
from pgqueue.schema import migrate as migrations
from pgqueue.schema.proxy import set_shard

app = commands()


@app.command()
def migrate(
    to: Annotated[
        str,
        typer.Option(
            help="The target revision. head: the newest. A number below head drops all functions, to go back to an"
            " older pgqueue. base removes the queue with all jobs."
        ),
    ] = "head",
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL instead of running it, for psql.")] = False,
    start: Annotated[str, typer.Option("--from", help="With --sql: the revision that the database is at.")] = "base",
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Change nothing; exit with 1 if a migration is needed. A newer schema that serves this pgqueue: 0.",
        ),
    ] = False,
    shard: Annotated[
        int | None,
        typer.Option(help="The number of this shard behind PL/Proxy, from 0. It cannot be changed later."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --to: do not ask before going below head.")] = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Create or upgrade the schema pgqueue.

    Below head no function of the queue exists: nothing can enqueue or run jobs until the pgqueue that belongs to that
    revision has run its own `pgqueue migrate`. So --to asks first, on a database that holds a queue.
    """
    if shard is not None and (sql or check or to == "base"):
        raise ConfigError("--shard does not go with --sql, --check or --to base", hint="give --shard alone")
    if check and to != "head":
        raise ConfigError("--check and --to were both given", hint="--check asks whether a database is at head")
    if sql:
        _print_script(to, start, check, as_json)
        return
    if start != "base":
        raise ConfigError("--from was given without --sql", hint="a database knows where it is: leave --from out")
    with database(dsn, migrated=False) as found:
        if to != "head" and not yes:
            _confirm(found, to)
        now = migrations.status(found) if check else migrations.migrate(found, to=to)
        if shard is not None:
            set_shard(found, shard)
        _print_status(found, now, as_json)
        if check and not now.current:
            raise typer.Exit(1)


def _confirm(dsn: str, to: str) -> None:
    """Print what stops working below head, and ask."""
    at = migrations.status(dsn).revision
    if at is None or to not in (*bundled.revisions(), "base") or to == bundled.revisions()[-1]:
        # There is nothing to lose, or nothing to do.
        return
    output.message(f"{describe_dsn(dsn)} is at revision {at}.")
    if to == "base":
        typer.confirm("This removes the queue with all its jobs and history. Continue?", abort=True, err=True)
        return
    output.message(
        f"At revision {to} it has no functions and views: every enqueue fails, and every worker stops working, until\n"
        f"the pgqueue that belongs to revision {to} has run its own `pgqueue migrate`. Jobs and history stay."
    )
    removed = ", ".join(file.stem for file in bundled.revision_files() if to < file.stem.split("_")[0] <= at)
    if removed:
        output.message(f"What these revisions have added is removed: {removed}.")
    typer.confirm("Continue?", abort=True, err=True)


def _print_status(dsn: str, now: migrations.Status, as_json: bool) -> None:
    if as_json:
        output.print_json(
            {
                "revision": now.revision,
                "head": now.head,
                "current": now.current,
                "digest": now.digest,
                "newer": now.is_newer,
                "oldest_client": now.oldest_client,
            }
        )
        return
    at = "no schema" if now.revision is None else f"revision {now.revision}"
    verdict = "current" if now.current else f"not current: this pgqueue needs revision {now.head} and its functions"
    if now.is_too_old:
        verdict = ": ".join(now.refusal("this database") or ())
    if now.is_newer:
        verdict = f"newer than this pgqueue ({now.head}), and serves those from {now.oldest_client} on"
    output.line(f"{describe_dsn(dsn)}: {at} ({verdict})")


def _print_script(to: str, start: str, check: bool, as_json: bool) -> None:
    for option, is_given in (("--to", to != "head"), ("--check", check), ("--json", as_json)):
        if is_given:
            raise ConfigError(
                f"--sql and {option} were both given", hint="--sql prints what leads to head; with it goes --from"
            )
    sys.stdout.write(migrations.script(start=start))
