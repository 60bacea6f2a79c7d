"""The revision of a database, read without alembic: a worker's start cannot wait for that import."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg.pq import TransactionStatus

from pgqueue.config import own_dsn
from pgqueue.errors import AccessDenied
from pgqueue.schema import bundled


@dataclass(frozen=True, slots=True)
class Status:
    """The revision of a database. `revision` and `digest` are None if nothing is installed."""

    revision: str | None
    digest: str | None
    head: str
    head_digest: str

    @property
    def current(self) -> bool:
        """True when nothing is left to migrate."""
        return self.revision == self.head and self.digest == self.head_digest


def status(dsn: str) -> Status:
    """Read the revision of the database at `dsn`, changing nothing."""
    with psycopg.connect(own_dsn(dsn), autocommit=True) as connection:
        return read_status(connection)


def read_status(connection: psycopg.Connection[tuple[object, ...]]) -> Status:
    """Read the revision of the database of a connection, in its current transaction.

    Raises AccessDenied when the role may not know. Any role with a grant may, and the owner.
    """
    revision = digest = None
    # Every role may read the catalog, also one without any right on the schema.
    found = connection.execute(
        "select has_schema_privilege(n.oid, 'usage'), c.oid is not null and has_table_privilege(c.oid, 'select'), p.oid"
        " from pg_namespace n"
        " left join pg_class c on c.relnamespace = n.oid and c.relname = 'alembic_version'"
        " left join pg_proc p on p.pronamespace = n.oid and p.proname = 'version'"
        " where n.nspname = 'pgqueue' and (c.oid is not null or p.oid is not null)"
    ).fetchone()
    if found is not None:
        may_use, may_read, version = found
        if may_use is not True or (version is None and may_read is not True):
            raise _denied(connection, "use the schema pgqueue" if may_use is not True else "read its revision")
        try:
            if version is not None:
                row = connection.execute("select revision, digest from pgqueue.version()").fetchone()
                revision, digest = map(str, row) if row else (None, None)
            if may_read:
                # Alembic's own table, which only the owner can read, decides.
                row = connection.execute("select version_num from pgqueue.alembic_version").fetchone()
                revision = str(row[0]) if row else None
        except psycopg.errors.InsufficientPrivilege as error:
            raise _denied(connection, "call pgqueue.version()") from error
    return Status(revision, digest, bundled.revisions()[-1], bundled.sql_digest())


def _denied(connection: psycopg.Connection[tuple[object, ...]], what: str) -> AccessDenied:
    # A failed statement would make the transaction refuse this query.
    role = (
        connection.info.user if connection.info.transaction_status is TransactionStatus.INERROR else _role(connection)
    )
    return AccessDenied(
        f"permission denied: role {role} may not {what}",
        hint=f"as the owner of the schema: pgqueue grant worker {role} (or producer, operator, reader)",
    )


def _role(connection: psycopg.Connection[tuple[object, ...]]) -> str:
    row = connection.execute("select current_user::text").fetchone()
    return str(row[0]) if row else connection.info.user
