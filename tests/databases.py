"""A database for each test: a clone of one template in which the migrations have run, or one that was made clean.

Cloning takes about 0.1 s of both cores and cleaning 10 ms. So a database whose test left the schema as it found it is
emptied and handed out again; one in which anything else is new, changed or missing is dropped. Migrating each time is
what tests/migrations is for.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.sessions import Session

# Everything that a test may have made, changed or dropped, save rows. Statistics too: plans go by them.
_SCHEMA = """
select md5(concat_ws(' ',
    (select string_agg(
        concat_ws(' ', c.oid, c.relname, c.relnamespace, c.relkind, c.relowner, c.relacl, c.reloptions, c.relnatts),
        ',' order by c.oid
    ) from pg_class c where c.oid >= 16384 and c.relnamespace <> 'pg_toast'::regnamespace and not c.relispartition),
    (select string_agg(
        concat_ws(' ', a.attrelid, a.attname, a.atttypid, a.attnotnull, a.atthasdef), ',' order by a.attrelid, a.attnum
    ) from pg_attribute a join pg_class c on c.oid = a.attrelid
        where c.oid >= 16384 and c.relkind in ('r', 'p', 'v') and not c.relispartition and a.attnum > 0),
    (select string_agg(
        concat_ws(' ', p.oid, p.proname, p.prosrc, p.proacl, p.proconfig, p.proowner), ',' order by p.oid
    ) from pg_proc p where p.oid >= 16384 and p.proname <> '_clock'),
    (select string_agg(concat_ws(' ', n.oid, n.nspname, n.nspacl), ',' order by n.oid)
        from pg_namespace n where n.nspname !~ '^pg_(toast_)?temp'),
    (select string_agg(concat_ws(' ', t.oid, t.typname, t.typnamespace), ',' order by t.oid)
        from pg_type t where t.oid >= 16384 and t.typtype in ('e', 'd', 'r')),
    (select string_agg(concat_ws(' ', t.oid, t.tgname, t.tgenabled), ',' order by t.oid)
        from pg_trigger t where not t.tgisinternal),
    (select string_agg(concat_ws(' ', e.extname, e.extversion), ',' order by e.extname) from pg_extension e),
    (select string_agg(concat_ws(' ', d.setrole, d.setconfig), ',' order by d.setrole)
        from pg_db_role_setting d join pg_database b on b.oid = d.setdatabase where b.datname = current_database()),
    -- Which partitions there are is a matter of the clock, which tests move.
    (select string_agg(concat_ws(' ', c.oid, c.relname), ',' order by c.oid)
        from pg_class c where c.relispartition and c.relkind = 'r'),
    (select count(*) from pg_statistic s where s.starelid >= 16384),
    (select count(*) from pg_prepared_xacts x where x.database = current_database()),
    (select datacl from pg_database where datname = current_database())
))
"""
_CLOCK = "select pg_get_functiondef('pgqueue._clock'::regproc)"
_TABLES = """
select format('%I.%I', n.nspname, c.relname), pg_get_serial_sequence(format('%I.%I', n.nspname, c.relname), a.attname)
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
left join pg_attribute a on a.attrelid = c.oid and a.attidentity <> ''
where n.nspname = 'pgqueue' and c.relkind in ('r', 'p') and not c.relispartition
order by 1
"""


class Database:
    """One database, with all that is opened through it. `dsn` is a URI that every driver reads."""

    def __init__(self, dsn: str, *, migrated: bool = False) -> None:
        self.dsn = dsn
        self.migrated = migrated
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
        self._clean: list[str] = []
        self._fresh: _Fresh | None = None
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
        if self._clean:
            return Database(uri(self._server_dsn, dbname=self._clean.pop()), migrated=True)
        database = self._create(sql.SQL("template {}").format(sql.Identifier(self._template)) + self._strategy)
        database.migrated = True
        if self._fresh is None:
            with psycopg.connect(database.dsn, autocommit=True) as conn:
                self._fresh = _Fresh.read(conn)
        return database

    def drop(self, database: Database) -> None:
        """Make the database clean for the next test, or drop it where that cannot be."""
        database.close()
        if database.migrated and self._fresh is not None and self._fresh.restore(database, self._conn):
            self._clean.append(database.name)
            return
        # Force: the worker processes that a test has started may still hold connections.
        self._conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(database.name)))

    def close(self) -> None:
        for name in self._clean:
            self._conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))
        self._conn.close()

    def drop_template(self) -> None:
        self._conn.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(self._template)))

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
            row = self._conn.execute("select 1 from pg_database where datname = %s", [self._template]).fetchone()
            if row is None:
                self._migrate_template()
        finally:
            self._conn.execute("select pg_advisory_unlock(hashtextextended(%s, 0))", [self._template])
        self._template_is_ready = True

    def _migrate_template(self) -> None:
        # Here, so that the tests which need no schema run when this import fails.
        from pgqueue.migrate import migrate  # noqa: PLC0415

        self._conn.execute(sql.SQL("create database {} template template0").format(sql.Identifier(self._template)))
        try:
            migrate(uri(self._server_dsn, dbname=self._template))
        except BaseException:
            self.drop_template()
            raise


@dataclass(frozen=True, slots=True)
class _Table:
    """`shown`: an expression that differs from `fresh` once anything was written; `numbered`: its rows have numbers."""

    shown: str
    fresh: str
    rows: list[bytes]
    numbered: bool


@dataclass(frozen=True, slots=True)
class _Fresh:
    """What a database looks like in which nothing has happened yet."""

    schema: str
    clock: str
    tables: dict[str, _Table]

    @classmethod
    def read(cls, conn: psycopg.Connection) -> _Fresh:
        tables = {}
        for name, sequence in conn.execute(_TABLES.encode()).fetchall():
            with conn.cursor() as cursor, cursor.copy(f"copy (select * from {name}) to stdout".encode()) as copy:
                rows = [bytes(line) for line in copy]
            # One more than there were is enough to see that something came.
            shown = f"(select string_agg(r::text, ' ') from (select t from {name} t limit {len(rows) + 1}) r)"
            if sequence is not None:
                shown = f"concat({shown}, (select (s.last_value, s.is_called)::text from {sequence} s))"
            numbered = bool(rows) and sequence is not None
            tables[name] = _Table(shown, _one(conn, f"select {shown}"), rows, numbered)
        return cls(_one(conn, _SCHEMA), _one(conn, _CLOCK), tables)

    def restore(self, database: Database, server: psycopg.Connection) -> bool:
        """Whether this database is as fresh as ever now; if not, nobody may use it."""
        try:
            # A process that a test has started may still be connected. It is waited for: its locks must be gone.
            server.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = %s", [database.name]
            )
            with psycopg.connect(database.dsn, autocommit=True, options="-c lock_timeout=1000") as conn:
                self._restore(conn)
                return _one(conn, _SCHEMA) == self.schema
        except psycopg.Error:
            return False

    def _restore(self, conn: psycopg.Connection) -> None:
        if _one(conn, _CLOCK) != self.clock:
            conn.execute("drop schema if exists pgqueue_testing cascade")
            conn.execute(self.clock.encode())
        shown = conn.execute(f"select {', '.join(table.shown for table in self.tables.values())}".encode()).fetchone()
        used = {
            name: table
            for (name, table), now in zip(self.tables.items(), shown or (), strict=True)
            if str(now) != table.fresh
        }
        if any(table.numbered for table in used.values()):
            raise psycopg.DataError("a table that is not empty at first has new rows, or other ones")
        if used:
            conn.execute(f"truncate {', '.join(used)} restart identity".encode())
        for name, table in used.items():
            if table.rows:
                with conn.cursor() as cursor, cursor.copy(f"copy {name} from stdin".encode()) as copy:
                    for line in table.rows:
                        copy.write(line)


def _one(conn: psycopg.Connection, question: str) -> str:
    [[answer]] = conn.execute(question.encode()).fetchall()
    return str(answer)


def uri(dsn: str, **changes: str) -> str:
    """A DSN of any form as a URI, which asyncpg and SQLAlchemy read too, with some parts changed."""
    parts = {name: str(value) for name, value in conninfo_to_dict(dsn, **changes).items() if value is not None}
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
