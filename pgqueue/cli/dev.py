"""`pgqueue dev`: the database, a worker that restarts when a file changes, and the pages, in one terminal."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from pgqueue.cli import output, ports
from pgqueue.cli.child import PATIENCE, Child, interrupted_by_signals, running
from pgqueue.cli.database import database
from pgqueue.cli.options import Dsn, LogLevel, commands
from pgqueue.config import describe_dsn
from pgqueue.errors import ConfigError
from pgqueue.schema.status import status

app = commands()


@app.command()
def dev(
    require: Annotated[
        list[str] | None,
        typer.Option("--require", "-r", help="Module with the tasks: package.module or package.module:app."),
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the pages.", min=1, max=65535)] = 8081,
    pages: Annotated[bool, typer.Option(help="Serve the pages.")] = True,
    log_level: LogLevel = "info",
    dsn: Dsn = None,
) -> None:
    """Run all that development needs in one terminal: database, worker, pages.

    Without a DSN the database is the embedded server of this directory. The worker restarts when a Python file below
    this directory changes. Ctrl-C stops everything.
    """
    if not require:
        raise ConfigError("no module with tasks was given", hint="name it: pgqueue dev -r package.module")
    if find_spec("watchfiles") is None:
        raise ConfigError("pgqueue dev needs the extra reload", hint="pip install 'pgqueue-sql[reload]'")
    serves = pages and find_spec("uvicorn") is not None
    if serves:
        ports.check_free("127.0.0.1", port)
    # Ctrl-C ends all.
    with interrupted_by_signals(), database(dsn, keep=0) as found:
        if not status(found).current:
            # A database that is not of this directory alone is not migrated without being asked for.
            raise ConfigError(f"the schema in {describe_dsn(found)} is not current", hint="run: pgqueue migrate")
        worker = ["worker", "--log-level", log_level, "--shutdown-timeout", str(PATIENCE)]
        for module in require:
            worker += ["-r", module]
        shown = [Child("worker", worker, found)]
        if serves:
            shown.append(Child("pages", ["web", "--port", str(port)], found))
        elif pages:
            output.message("No pages without the extra web: pip install 'pgqueue-sql[web]'", "yellow")
        output.message(f"Database: {describe_dsn(found)}. Ctrl-C stops everything.", "dim")
        try:
            with running(*shown):
                _restart_on_changes(shown[0])
        except KeyboardInterrupt:
            raise typer.Exit from None


def _restart_on_changes(worker: Child) -> None:
    from watchfiles import PythonFilter, watch  # noqa: PLC0415

    for changes in watch(Path(), watch_filter=PythonFilter(), raise_interrupt=True):
        names = sorted({os.path.relpath(path) for _, path in changes})
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        output.message(f"{names[0]}{more} changed: the worker restarts", "dim")
        worker.end()
        worker.start()
