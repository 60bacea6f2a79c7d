"""A database for each test: a clone of one template in which the migrations have run.

Cloning takes about 0.1 s, dropping 10 ms. Migrating each time is what tests/migrations is for.
"""

from __future__ import annotations

import re
import uuid
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.sessions import Session


class Database:
    """One database, with all that is opened through it. `dsn` is a URI that every driver reads."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.name = str(conninfo_to_dict(dsn)["dbname"])
        self._open: list[psycopg.Connection | psycopg.AsyncConnection] = []
        self._sessions: list[Session] = []
        self._observer: psycopg.Connection | None = None

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

    def session(self, **options: Any) -> Session:
        """Open a connection that lives in a thread, for tests that force an order upon two of them."""
        self._observer = self._observer or self.connect()
        # Not among `_open`: a session ends its own connection, in its thread.
        session = Session(psycopg.connect(self.dsn, autocommit=True, **options), self._observer)
        self._sessions.append(session)
        return session

    def close(self) -> None:
        for session in self._sessions:
            session.close()
        for conn in self._open:
            # Not close(): that of an async connection needs its event loop, which is gone by now.
            conn.pgconn.finish()


class Cloner:
    """Makes databases on one server for one test run; `run_id` is the same in all processes of the run."""

    def __init__(self, server_dsn: str, run_id: str) -> None:
        self._server_dsn = server_dsn
        self._template = f"pgqueue_template_{run_id}"
        self._run_id = run_id
        self._template_is_ready = False
        self._conn = psycopg.connect(server_dsn, autocommit=True)
        # From 15 on. The other way to copy asks for two checkpoints of the whole server: it takes as long on
        # ours, without fsync, but a server of yours may have other things to write.
        by_wal = self._conn.info.server_version >= 150000
        self._strategy = sql.SQL(" strategy wal_log") if by_wal else sql.SQL("")

    def empty(self) -> Database:
        """Create a database without our schema."""
        return self._create(sql.SQL("template template0"))

    def migrated(self) -> Database:
        """Create a database in which the migrations have run."""
        self._make_template()
        return self._create(sql.SQL("template {}").format(sql.Identifier(self._template)) + self._strategy)

    def drop(self, database: Database) -> None:
        database.close()
        # Force: the worker processes that a test has started may still hold connections.
        self._conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(database.name)))

    def close(self) -> None:
        self._conn.close()

    def drop_template(self) -> None:
        self._conn.execute(
            sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(self._template))
        )

    def _create(self, how: sql.Composable) -> Database:
        name = f"pgqueue_test_{self._run_id}_{uuid.uuid4().hex[:8]}"
        self._conn.execute(sql.SQL("create database {} ").format(sql.Identifier(name)) + how)
        return Database(uri(self._server_dsn, dbname=name))

    def _make_template(self) -> None:
        if self._template_is_ready:
            return
        # One process of the run makes it; the others wait here.
        self._conn.execute("select pg_advisory_lock(hashtextextended(%s, 0))", [self._template])
        try:
            row = self._conn.execute(
                "select 1 from pg_database where datname = %s", [self._template]
            ).fetchone()
            if row is None:
                self._migrate_template()
        finally:
            self._conn.execute("select pg_advisory_unlock(hashtextextended(%s, 0))", [self._template])
        self._template_is_ready = True

    def _migrate_template(self) -> None:
        # Here, so that the tests which need no schema run when this import fails.
        from pgqueue.migrate import migrate  # noqa: PLC0415

        self._conn.execute(
            sql.SQL("create database {} template template0").format(sql.Identifier(self._template))
        )
        try:
            migrate(uri(self._server_dsn, dbname=self._template))
        except BaseException:
            self.drop_template()
            raise


def uri(dsn: str, **changes: str) -> str:
    """A DSN of any form as a URI, which asyncpg and SQLAlchemy read too, with some parts changed."""
    parts = {
        name: str(value) for name, value in conninfo_to_dict(dsn, **changes).items() if value is not None
    }
    user = quote(parts.pop("user", ""), safe="")
    password = quote(parts.pop("password", ""), safe="")
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    database = quote(parts.pop("dbname", ""), safe="")
    # A TCP host where everybody looks for it; a socket's directory only fits into the query.
    host = ""
    if re.fullmatch(r"[\w.-]+", parts.get("host", "")):
        host = parts.pop("host")
        host += f":{parts.pop('port')}" if "port" in parts else ""
    query = f"?{urlencode(parts, quote_via=quote, safe='')}" if parts else ""
    return f"postgresql://{login}{host}/{database}{query}"
