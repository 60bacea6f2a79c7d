"""The revision of a database, read without alembic: a worker's start cannot wait for that import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from pgqueue import __version__
from pgqueue.config import own_dsn
from pgqueue.errors import AccessDenied
from pgqueue.schema import bundled

# A row of pgqueue.version(): version, revision, digest, oldest client.
Installed = tuple[str | None, str | None, str | None, str | None]

# Before the first release there were 21 revisions, which 0001 now makes at once. A database at the last of them has the
# same tables and is taken over. A program of this commit brings an older one there.
LAST_BEFORE, FIRST = "0021", "0001"
LAST_COMMIT = "dc22b14"

# The value that version() returned until then; before that it returned none.
_OLDEST_BEFORE = ("0008", None)


@dataclass(frozen=True, slots=True)
class Status:
    """What a database has, and what this package needs. All but `head` and `head_digest` are None if it has nothing.

    `version` is the pgqueue that loaded the functions; `oldest_client` the revision of the oldest one that they serve.
    `is_before` is true when `revision` counts the revisions of before the first release.
    """

    revision: str | None
    digest: str | None
    head: str
    head_digest: str
    version: str | None = None
    oldest_client: str | None = None
    is_before: bool = False

    @classmethod
    def of(cls, installed: Installed | None, *, is_before: bool | None = None) -> Status:
        """Return the status of a database in which pgqueue.version() returned this, or is missing."""
        version, revision, digest, oldest_client = installed or (None, None, None, None)
        if is_before is None:
            is_before = revision is not None and oldest_client in _OLDEST_BEFORE
        return cls(revision, digest, bundled.revisions()[-1], bundled.sql_digest(), version, oldest_client, is_before)

    @property
    def current(self) -> bool:
        """True when nothing is left to migrate: this package's schema, or a newer one that serves this package."""
        if self.is_newer:
            return self.oldest_client is not None and self.oldest_client <= self.head
        return not self.is_before and self.revision == self.head and self.digest == self.head_digest

    @property
    def is_newer(self) -> bool:
        """True when a newer pgqueue has migrated the database."""
        if self.is_before:
            return False
        if self.revision is None or self.revision != self.head:
            return self.revision is not None and self.revision > self.head
        return self.digest != self.head_digest and _release(self.version) > _release(__version__)

    @property
    def is_too_old(self) -> bool:
        """True when this package cannot upgrade the database: it is of before the first release."""
        return self.is_before and self.revision != LAST_BEFORE

    def refusal(self, place: str) -> tuple[str, str] | None:
        """Return why this package cannot use the database `place`, and what to do; None: it can."""
        if self.current:
            return None
        if self.is_before:
            return (
                f"the schema in {place} is at revision {self.revision} of before the first release",
                f"with the program of commit {LAST_COMMIT} run pgqueue migrate, then again with this one"
                if self.is_too_old
                else "run: pgqueue migrate",
            )
        if self.is_newer:
            return (
                f"the schema in {place} is at {self.revision} and serves programs from {self.oldest_client} on; this"
                f" one is of {self.head}",
                "install a newer version of pgqueue",
            )
        if self.revision == self.head:
            return f"the functions in {place} are older than this program ({self.version})", "run: pgqueue migrate"
        return (
            f"the schema in {place} is older than this program (it is at {self.revision}, needed is {self.head})",
            "run: pgqueue migrate",
        )


def problems(installed: Installed | None) -> list[dict[str, str]]:
    """Return why a database is unusable for this package, as a list with one finding of `pgqueue doctor`, or none."""
    refusal = Status.of(installed).refusal("this database")
    if refusal is None:
        return []
    evidence, remedy = refusal
    return [
        {
            "severity": "critical",
            "topic": "schema",
            "subject": "pgqueue",
            "evidence": evidence,
            "remedy": remedy.removeprefix("run: "),
        }
    ]


def status(dsn: str) -> Status:
    """Read the revision of the database at `dsn`, changing nothing."""
    with psycopg.connect(own_dsn(dsn), autocommit=True) as connection:
        return read_status(connection)


def read_status(connection: psycopg.Connection[tuple[Any, ...]]) -> Status:
    """Read the revision of the database of a connection, in its current transaction.

    Raises AccessDenied if the role may not read it. Every role with a grant may, and the owner.
    """
    installed: Installed = (None, None, None, None)
    is_before = None
    # Every role may read the catalog, also one without any right on the schema.
    found = connection.execute(
        "select has_schema_privilege(n.oid, 'usage'), c.oid is not null and has_table_privilege(c.oid, 'select')"
        ", p.oid, not exists (select from pg_class t where t.relnamespace = n.oid and t.relname = 'traces')"
        " from pg_namespace n"
        " left join pg_class c on c.relnamespace = n.oid and c.relname = 'alembic_version'"
        " left join pg_proc p on p.pronamespace = n.oid and p.proname = 'version'"
        " where n.nspname = 'pgqueue' and (c.oid is not null or p.oid is not null)"
    ).fetchone()
    if found is not None:
        may_use, may_read, version, lacks_traces = found
        if may_use is not True or (version is None and may_read is not True):
            raise _denied(connection, "use the schema pgqueue" if may_use is not True else "read its revision")
        try:
            if version is not None:
                # An older schema has no oldest_client.
                row = connection.execute("select to_jsonb(v) from pgqueue.version() v").fetchone()
                known: dict[str, str] = row[0] if row else {}
                installed = (
                    known.get("version"), known.get("revision"), known.get("digest"), known.get("oldest_client")
                )  # fmt: skip
            if may_read:
                # Alembic's own table, which only the owner can read, decides.
                row = connection.execute("select version_num from pgqueue.alembic_version").fetchone()
                installed = installed[0], str(row[0]) if row else None, installed[2], installed[3]
                if version is None:
                    # Below head there are no functions. The last revision of before the first release made this table.
                    is_before = row is not None and (lacks_traces or row[0] == LAST_BEFORE)
        except psycopg.errors.InsufficientPrivilege as error:
            raise _denied(connection, "call pgqueue.version()") from error
    return Status.of(installed, is_before=is_before)


def _release(version: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in (version or "").split(".") if part.isdigit())


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
