"""`pgqueue proxy`."""

from __future__ import annotations

import sys

from pgqueue.cli.database import databases
from pgqueue.cli.options import Dsns, commands
from pgqueue.schema.proxy import script

app = commands()


@app.command()
def proxy(dsn: Dsns = None) -> None:
    """Print the SQL of a PL/Proxy database before shards, for psql.

    Give --dsn for each shard, in the order of their numbers. Run it again, with one more, to add a shard.
    """
    with databases(dsn) as found:
        sys.stdout.write(script(found))
