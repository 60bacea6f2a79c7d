"""`pgqueue top`: the queue in the terminal."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Any

import typer

from pgqueue.cli import output
from pgqueue.cli.database import connected, database
from pgqueue.cli.options import AsJson, Dsn, commands
from pgqueue.cli.tables import Table
from pgqueue.db import observe
from pgqueue.db.call import perform
from pgqueue.errors import ConfigError
from pgqueue.search import parse

app = commands()

_COLUMNS = ("lag", "due", "scheduled", "executing", "failed", "blocked", "dead")


@app.command()
def top(
    line: Annotated[str, typer.Option("--where", help="Filter of the jobs: 'queue:mail state:failed age:>1h'.")] = "",
    seconds: Annotated[float, typer.Option("--every", help="Seconds between two readings.", min=0.2)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print the numbers once, and end.")] = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Watch queues, jobs, workers, schedules and limits, and act on them.

    Keys: / filter, e explain, r run now, t retry, c cancel, p pause or resume, K kill, D delete, q quit. It reads
    samples: the cost does not depend on the backlog. With --once or --json it prints them, and the jobs of --where.
    """
    wanted = parse(line)
    if once or as_json:
        _print(wanted, line, as_json, dsn)
        return
    if find_spec("textual") is None:
        raise ConfigError("the screen needs the extra tui", hint="pip install 'pgqueue-sql[tui]', or give --once")
    # Imported here: it takes as long as all other commands together.
    from pgqueue.top.app import Top  # noqa: PLC0415

    with database(dsn) as found:
        Top(found, seconds, line).run()


def _print(wanted: dict[str, Any], line: str, as_json: bool, dsn: str | None) -> None:
    with connected(dsn) as connection:
        stats = perform(connection, observe.stats())
        jobs: list[dict[str, Any]] = []
        if line:
            jobs = perform(connection, observe.jobs(perform(connection, observe.search(wanted, None, 100)).ids))
    if as_json:
        output.print_json({**stats, **({"jobs": jobs} if line else {})})
        return
    table = Table(("queue", *_COLUMNS), "Queues", right=frozenset(_COLUMNS), cut=frozenset({"queue"}))
    for each in stats["queues"]:
        name = f"{each['queue']} (paused)" if each["paused_at"] else each["queue"]
        table.add(name, *(each[column] for column in _COLUMNS))
    table.show()
    if line:
        found = Table(("id", "task", "queue", "state", "last error"), "Jobs", cut=frozenset({"task", "last error"}))
        for each in jobs:
            found.add(each["id"], each["task"], each["queue"], each["state"], each["error_class"])
        found.show()
    output.line(f"{len(stats['workers'])} workers; counted {output.when(stats['sampled_at']) or 'never'}.")
