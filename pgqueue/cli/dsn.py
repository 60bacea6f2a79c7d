"""`pgqueue dsn`."""

from __future__ import annotations

import psycopg
from psycopg.conninfo import make_conninfo

from pgqueue import embedded
from pgqueue.cli import output
from pgqueue.cli.options import AsJson, Dsn, commands
from pgqueue.config import find_dsn

app = commands()


@app.command()
def dsn(as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Print the DSN that all commands use.

    It contains the password, if there is one. The embedded server has the same DSN each time that it runs.
    """
    found = find_dsn(dsn)
    if found is None:
        found, is_running = embedded.dsn_of()
        if not is_running:
            output.message("The embedded server does not run now: start it with pgqueue server", "dim")
    elif not found:
        found = _by_variables()
    if as_json:
        output.print_json({"dsn": found})
    else:
        output.line(found)


def _by_variables() -> str:
    """Return the libpq variables as a DSN."""
    known = psycopg.pq.Conninfo.get_defaults()
    given = {
        each.keyword.decode(): each.val.decode() for each in known if each.val is not None and _is_named(each.keyword)
    }
    return make_conninfo(**given)


def _is_named(keyword: bytes) -> bool:
    return keyword in (b"service", b"host", b"hostaddr", b"port", b"user", b"password", b"dbname")
