"""Databases for tests: clones of one template, in which the migrations have run."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict


class Database:
    """One database, with all connections that are opened through it. `dsn` is a URI that every driver reads."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.name = str(conninfo_to_dict(dsn)["dbname"])
        self._open: list[psycopg.Connection | psycopg.AsyncConnection] = []

    def connect(self, *, autocommit: bool = True, **options: Any) -> psycopg.Connection:
        """Open a connection. `options` are those of psycopg, and of libpq."""
        conn = psycopg.connect(self.dsn, autocommit=autocommit, **options)
        self._open.append(conn)
        return conn

    async def connect_async(self, *, autocommit: bool = True, **options: Any) -> psycopg.AsyncConnection:
        """The same on the event loop."""
        conn = await psycopg.AsyncConnection.connect(self.dsn, autocommit=autocommit, **options)
        self._open.append(conn)
        return conn

    def close(self) -> None:
        """Close all connections."""
        for conn in self._open:
            # Not close(): that of an async connection needs its event loop, which is gone by now.
            conn.pgconn.finish()
        self._open.clear()


class Databases:
    """Makes databases on one server for one test run; `run_id` is the same in all processes of the run.

    The first process creates the template: it migrates an empty database, and calls `prepare` with its DSN to add to
    it, which must close its connections. Cloning it takes tenths of a second.
    """

    def __init__(self, server_dsn: str, run_id: str, prepare: Callable[[str], object] | None = None) -> None:
        self.server_dsn = server_dsn
        self._run_id = run_id
        self._prepare = prepare
        self._template_is_ready = False
        self._conn = psycopg.connect(server_dsn, autocommit=True)
        # From 15 on. The other way to copy asks for two checkpoints of the whole server: it takes as long on
        # ours, without fsync, but a server of yours may have other things to write.
        by_wal = self._conn.info.server_version >= 150000
        self._strategy = sql.SQL(" strategy wal_log") if by_wal else sql.SQL("")

    def migrated(self) -> Database:
        """Create a database in which the migrations have run."""
        self.make_template()
        return self._create(self._template("migrated"))

    def empty(self) -> Database:
        """Create a database without our schema."""
        name = self._new_name()
        self._conn.execute(sql.SQL("create database {} template template0").format(sql.Identifier(name)))
        return Database(uri(self.server_dsn, dbname=name))

    def drop(self, database: Database) -> None:
        """Close the connections to a database, and drop it."""
        database.close()
        self._drop(database.name)

    def make_template(self) -> None:
        """Make the template, unless another process of the run has made it."""
        if self._template_is_ready:
            return
        with self._alone():
            if not self._exists(self._last_template()):
                self._make_templates()
        self._template_is_ready = True

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Use the template; the last process of the run that ends its use drops it."""
        users = "hashtextextended(%s || ' users', 0)"
        self._conn.execute(f"select pg_advisory_lock_shared({users})".encode(), [self._run_id])
        try:
            yield
        finally:
            self._conn.execute(f"select pg_advisory_unlock_shared({users})".encode(), [self._run_id])
            [[last]] = self._conn.execute(f"select pg_try_advisory_lock({users})".encode(), [self._run_id]).fetchall()
            if last:
                self.drop_templates()
            self.close()

    def drop_templates(self) -> None:
        """Drop the template."""
        self._drop(self._template("migrated"))

    def close(self) -> None:
        """Close the connection to the server."""
        self._conn.close()

    def _last_template(self) -> str:
        return self._template("migrated")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one process of the run at a time in: it creates what the others, which wait here, then find."""
        self._conn.execute("select pg_advisory_lock(hashtextextended(%s, 0))", [self._run_id])
        try:
            yield
        finally:
            self._conn.execute("select pg_advisory_unlock(hashtextextended(%s, 0))", [self._run_id])

    def _make_templates(self) -> None:
        self._make_template("migrated", self._prepare)

    def _make_template(self, kind: str, prepare: Callable[[str], object] | None, options: str = "") -> None:
        # Imported here, so that tests without a schema run if this import fails.
        from pgqueue.schema.migrate import migrate  # noqa: PLC0415

        unfinished = self._template("unfinished")
        self._drop(unfinished)
        create = sql.SQL("create database {} template template0 {}")
        self._conn.execute(create.format(sql.Identifier(unfinished), sql.SQL(options)))
        try:
            dsn = uri(self.server_dsn, dbname=unfinished)
            migrate(dsn)
            if prepare is not None:
                prepare(dsn)
            names = [sql.Identifier(each) for each in (unfinished, self._template(kind))]
            self._conn.execute(sql.SQL("alter database {} rename to {}").format(*names))
        except BaseException:
            self._drop(unfinished)
            raise

    def _create(self, template: str) -> Database:
        name = self._new_name()
        names = [sql.Identifier(each) for each in (name, template)]
        self._conn.execute(sql.SQL("create database {} template {}").format(*names) + self._strategy)
        return Database(uri(self.server_dsn, dbname=name))

    def _drop(self, name: str) -> None:
        drop = sql.SQL("drop database if exists {}").format(sql.Identifier(name))
        try:
            # Force: the processes that a test has started may still hold connections.
            self._conn.execute(drop + sql.SQL(" with (force)"))
        except psycopg.errors.InsufficientPrivilege:
            # Autovacuum is in it: only a superuser's force may end that. Without force the server ends it for everyone.
            self._conn.execute(drop)

    def _exists(self, name: str) -> bool:
        return self._conn.execute("select 1 from pg_database where datname = %s", [name]).fetchone() is not None

    def _template(self, kind: str) -> str:
        return f"pgqueue_{kind}_{self._run_id}"

    def _new_name(self) -> str:
        return f"pgqueue_test_{self._run_id}_{uuid.uuid4().hex[:8]}"


def uri(dsn: str, **changes: str) -> str:
    """A DSN of any form as a URI, which asyncpg and SQLAlchemy read too, with some parts changed."""
    parts = {name: str(value) for name, value in conninfo_to_dict(dsn, **changes).items() if value is not None}
    user = quote(parts.pop("user", ""), safe="")
    password = quote(parts.pop("password", ""), safe="")
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    database = quote(parts.pop("dbname", ""), safe="")
    # A TCP host where every driver expects it; a socket's directory only fits into the query.
    host = ""
    if re.fullmatch(r"[\w.-]+", parts.get("host", "")):
        host = parts.pop("host")
        host += f":{parts.pop('port')}" if "port" in parts else ""
    query = f"?{urlencode(parts, quote_via=quote, safe='')}" if parts else ""
    return f"postgresql://{login}{host}/{database}{query}"
