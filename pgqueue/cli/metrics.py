"""`pgqueue metrics`."""

from __future__ import annotations

import re
import sys
from contextlib import closing
from typing import Annotated

import typer

from pgqueue import metrics as families
from pgqueue.cli import output
from pgqueue.cli.database import Several, ask, databases
from pgqueue.cli.options import Dsns, commands
from pgqueue.db import observe
from pgqueue.db.call import perform
from pgqueue.errors import ConfigError

app = commands()

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


@app.command()
def metrics(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: name, labels and value.")] = False,
    dsn: Dsns = None,
) -> None:
    """Print the metrics of the database in the format of Prometheus.

    For the textfile collector, or a cron job; `pgqueue web` serves them at /metrics. If --dsn is given more than once,
    they are those of all these databases, with the label `database`.
    """
    if dsn is not None and len(dsn) > 1:
        with databases(dsn) as checked, closing(Several(checked)) as several:
            found = several.each(lambda connection: perform(connection, observe.metrics()))
            rows = families.of_several(found, several.trouble)
    else:
        rows = ask(dsn[0] if dsn else None, observe.metrics())
    if as_json:
        output.print_json([{"name": name, "labels": labels, "value": value} for name, labels, value in rows])
        return
    if not families.is_available():
        raise ConfigError(
            "prometheus-client is not installed", hint="pip install 'pgqueue-sql[metrics]', or give --json"
        )
    # The name of a queue may hold control characters.
    sys.stdout.write(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", families.as_text(families.of_database(rows)).decode()))
