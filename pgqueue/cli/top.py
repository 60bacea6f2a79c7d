"""`pgqueue top`: the queue in the terminal."""

from __future__ import annotations

from contextlib import closing
from importlib.util import find_spec
from typing import Annotated, Any

import psycopg
import typer

from pgqueue import verdict
from pgqueue._filters import parse
from pgqueue.cli import bulk, output
from pgqueue.cli.database import Several, connected, databases
from pgqueue.cli.options import AsJson, Dsns, commands
from pgqueue.cli.tables import Table
from pgqueue.config import name_databases
from pgqueue.db import observe
from pgqueue.db.call import perform
from pgqueue.errors import ConfigError
from pgqueue.logs import how_many

app = commands()

_COLUMNS = ("lag", "due", "scheduled", "executing", "failed", "blocked", "dead")


@app.command()
def top(
    line: Annotated[str, typer.Option("--where", help="Filter of the jobs: 'queue:mail state:failed age:>1h'.")] = "",
    seconds: Annotated[float, typer.Option("--every", help="Seconds between two refreshes.", min=0.2)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print the numbers once and exit.")] = False,
    as_json: AsJson = False,
    dsn: Dsns = None,
) -> None:
    """Watch queues, jobs, workers, schedules and limits, and act on them.

    Keys: / filter, o order of jobs, e explain, r run now, t retry, c cancel, p pause or resume, K kill, D delete, q
    quit. It reads samples, so the cost does not depend on the backlog. With --once or --json it prints the numbers, and
    the jobs of --where. If --dsn is given more than once, it shows all these databases.
    """
    wanted = parse(line)
    if once or as_json:
        _print(wanted, line, as_json, dsn)
        return
    if find_spec("textual") is None:
        raise ConfigError("the screen needs the extra tui", hint="pip install 'pgqueue-sql[tui]', or give --once")
    # Imported here, because it takes as long as all other commands together.
    from pgqueue.top.app import Top  # noqa: PLC0415

    with databases(dsn) as found:
        names = name_databases(found) if len(found) > 1 else [""]
        Top(dict(zip(names, found, strict=True)), seconds, line).run()


def _print(wanted: dict[str, Any], line: str, as_json: bool, dsns: list[str] | None) -> None:
    def look(connection: psycopg.Connection[Any]) -> dict[str, Any]:
        stats: dict[str, Any] = perform(connection, observe.stats())
        if line:
            ids = bulk.search(connection, wanted, 100)
            stats["jobs"] = perform(connection, observe.jobs(ids))
        return stats

    if dsns is not None and len(dsns) > 1:
        with databases(dsns) as checked, closing(Several(checked)) as several:
            found, trouble = several.each(look), several.trouble
    else:
        with connected(dsns[0] if dsns else None) as connection:
            found, trouble = {"": look(connection)}, {}
    if as_json:
        each = [{**({"database": name} if name else {}), **stats} for name, stats in found.items()]
        each += [{"database": name, "error": error} for name, error in trouble.items()]
        output.print_json({"databases": each} if dsns is not None and len(dsns) > 1 else each[0])
    else:
        _print_tables(found, bool(line))
        for name, error in trouble.items():
            output.line(f"{name}: cannot be read: {error}", "red")
    if trouble:
        raise typer.Exit(1)


def _print_tables(found: dict[str, dict[str, Any]], with_jobs: bool) -> None:
    place = () if "" in found else ("database",)
    queues = Table(
        (*place, "queue", *_COLUMNS), "Queues", right=frozenset(_COLUMNS), cut=frozenset({"database", "queue"})
    )
    jobs = Table(
        (*place, "id", "task", "queue", "state", "last error"),
        "Jobs",
        cut=frozenset({"database", "task", "last error"}),
    )
    for database, stats in found.items():
        first = (database,) if place else ()
        for each in stats["queues"]:
            name = f"{each['queue']} (paused)" if each["paused_at"] else each["queue"]
            queues.add(*first, name, each["lag"], *(observe.counted(each, column) for column in _COLUMNS[1:]))
        for each in stats.get("jobs", ()):
            jobs.add(*first, each["id"], each["task"], each["queue"], each["state"], each["error_class"])
    queues.show()
    if with_jobs:
        jobs.show()
    for database, stats in found.items():
        when = output.when(stats["sampled_at"] or stats["at"])
        alive = len(verdict.living(stats))
        silent = f", {more} silent" if (more := len(stats["workers"]) - alive) else ""
        counted = f"{how_many(alive, 'worker')}{silent}; counted {when}."
        if earlier := stats["total"]["counted_at"]:
            counted += f" ~: counted earlier, at {output.when(earlier)} or since; pgqueue status counts all jobs now."
        output.line(f"{database}: {counted}" if place else counted)
