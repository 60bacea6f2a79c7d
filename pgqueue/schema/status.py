"""Where a database stands, asked without alembic: a worker's start cannot wait for that import."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from pgqueue.schema import bundled


@dataclass(frozen=True, slots=True)
class Status:
    """Where a database stands. `revision` and `digest` are None where nothing is installed."""

    revision: str | None
    digest: str | None
    head: str
    head_digest: str

    @property
    def current(self) -> bool:
        """True when nothing is left to migrate."""
        return self.revision == self.head and self.digest == self.head_digest


def status(dsn: str) -> Status:
    """Read where the database at `dsn` stands, changing nothing."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return read_status(connection)


def read_status(connection: psycopg.Connection[tuple[object, ...]]) -> Status:
    """Read where the database of a connection stands, in its current transaction."""
    revision = digest = None
    exists = connection.execute("select to_regclass('pgqueue.alembic_version')").fetchone()
    if exists and exists[0] is not None:
        row = connection.execute("select version_num from pgqueue.alembic_version").fetchone()
        revision = str(row[0]) if row else None
        loaded = connection.execute("select to_regprocedure('pgqueue.version()')").fetchone()
        if loaded and loaded[0] is not None:
            row = connection.execute("select digest from pgqueue.releases order by n desc limit 1").fetchone()
            digest = str(row[0]) if row else None
    return Status(revision, digest, bundled.revisions()[-1], bundled.sql_digest())
