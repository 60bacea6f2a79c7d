"""A database for each test: a clone of a template in which the migrations have run, or one that was made clean.

A migrated database has 78 partitions of history, and its maintenance makes others when a test moves the clock. Each is
five files, so that cloning takes 0.24 s of a core. Most tests do not care: theirs have one partition for all days and
one for all months, which any clock finds in place, and are cloned in 0.02 s. Those marked `partitions` get what the
migrations made.
Cleaning takes 10 ms. So a database whose test left the schema as it found it is emptied and handed out again; one in
which anything else is new, changed or missing is dropped. Migrating each time is what tests/migrations is for.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from itertools import chain
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
    -- Maintenance makes and drops partitions where a test moves the clock.
    (select string_agg(concat_ws(' ', c.oid, c.relname), ',' order by c.oid)
        from pg_class c where c.relispartition and c.relkind = 'r'),
    (select count(*) from pg_statistic s where s.starelid >= 16384),
    (select count(*) from pg_prepared_xacts x where x.database = current_database()),
    (select datacl from pg_database where datname = current_database())
))
"""
_CLOCK = "select pg_get_functiondef('pgqueue._clock'::regproc)"
_PARTITIONS = """
select c.oid, format('%I.%I', n.nspname, c.relname)
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'pgqueue' and c.relispartition and c.relkind = 'r'
"""
_TABLES = """
select format('%I.%I', n.nspname, c.relname), pg_get_serial_sequence(format('%I.%I', n.nspname, c.relname), a.attname)
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
left join pg_attribute a on a.attrelid = c.oid and a.attidentity <> ''
where n.nspname = 'pgqueue' and c.relkind in ('r', 'p') and not c.relispartition
order by 1
"""


# The templates.
_MIGRATED = "migrated"
_UNDIVIDED = "undivided"


class Database:
    """One database, with all that is opened through it. `dsn` is a URI that every driver reads."""

    def __init__(self, dsn: str, kind: str | None = None) -> None:
        self.dsn = dsn
        # Of which template; None: of none.
        self.kind = kind
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
        self._run_id = run_id
        self._templates_are_ready = False
        self._clean: dict[str, list[str]] = {_MIGRATED: [], _UNDIVIDED: []}
        self._fresh: dict[str, _Fresh] = {}
        self._conn = psycopg.connect(server_dsn, autocommit=True)
        # From 15 on. The other way to copy asks for two checkpoints of the whole server: it takes as long on
        # ours, without fsync, but a server of yours may have other things to write.
        by_wal = self._conn.info.server_version >= 150000
        self._strategy = sql.SQL(" strategy wal_log") if by_wal else sql.SQL("")

    def empty(self) -> Database:
        """Create a database without our schema."""
        return self._create(sql.SQL("template template0"))

    def migrated(self, *, partitions: bool = False) -> Database:
        """Create a database in which the migrations have run; with their `partitions`, or with two for all times."""
        kind = _MIGRATED if partitions else _UNDIVIDED
        self._make_templates()
        if self._clean[kind]:
            return Database(uri(self._server_dsn, dbname=self._clean[kind].pop()), kind)
        database = self._create(sql.SQL("template {}").format(self._template(kind)) + self._strategy)
        database.kind = kind
        if kind not in self._fresh:
            with psycopg.connect(database.dsn, autocommit=True) as conn:
                self._fresh[kind] = _Fresh.read(conn)
        return database

    def drop(self, database: Database) -> None:
        """Make the database clean for the next test, or drop it where that cannot be."""
        database.close()
        if database.kind is not None and self._fresh[database.kind].restore(database, self._conn):
            self._clean[database.kind].append(database.name)
            return
        # Force: the worker processes that a test has started may still hold connections.
        self._conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(database.name)))

    def close(self) -> None:
        for name in chain(*self._clean.values()):
            self._conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))
        self._conn.close()

    def drop_templates(self) -> None:
        for kind in (_MIGRATED, _UNDIVIDED):
            self._conn.execute(sql.SQL("drop database if exists {} with (force)").format(self._template(kind)))

    def _template(self, kind: str) -> sql.Identifier:
        return sql.Identifier(f"pgqueue_{kind}_{self._run_id}")

    def _create(self, how: sql.Composable) -> Database:
        name = f"pgqueue_test_{self._run_id}_{uuid.uuid4().hex[:8]}"
        self._conn.execute(sql.SQL("create database {} ").format(sql.Identifier(name)) + how)
        return Database(uri(self._server_dsn, dbname=name))

    def _make_templates(self) -> None:
        if self._templates_are_ready:
            return
        # One process of the run makes them; the others wait here.
        self._conn.execute("select pg_advisory_lock(hashtextextended(%s, 0))", [self._run_id])
        try:
            name = self._template(_UNDIVIDED).as_string().strip('"')
            if self._conn.execute("select 1 from pg_database where datname = %s", [name]).fetchone() is None:
                self._migrate_templates()
        finally:
            self._conn.execute("select pg_advisory_unlock(hashtextextended(%s, 0))", [self._run_id])
        self._templates_are_ready = True

    def _migrate_templates(self) -> None:
        # Here, so that the tests which need no schema run when this import fails.
        from pgqueue.schema.migrate import migrate  # noqa: PLC0415

        migrated, undivided = (self._template(kind) for kind in (_MIGRATED, _UNDIVIDED))
        self._conn.execute(sql.SQL("create database {} template template0").format(migrated))
        try:
            migrate(uri(self._server_dsn, dbname=migrated.as_string().strip('"')))
            self._conn.execute(sql.SQL("create database {} template {}").format(undivided, migrated))
            dsn = uri(self._server_dsn, dbname=undivided.as_string().strip('"'))
            with psycopg.connect(dsn, autocommit=True) as conn:
                _leave_two_partitions(conn)
        except BaseException:
            self.drop_templates()
            raise


def _leave_two_partitions(conn: psycopg.Connection) -> None:
    with conn.transaction():
        divided = [name for _, name in conn.execute(_PARTITIONS.encode())]
        conn.execute(f"drop table {', '.join(divided)}".encode())
        for each in ("days", "months"):
            conn.execute(
                f"create table pgqueue.history_all_{each} partition of pgqueue.history_{each}"
                " for values from (minvalue) to (maxvalue)".encode()
            )
            conn.execute(f"comment on table pgqueue.history_all_{each} is 'Private: history of all times.'".encode())
    # Each clone copies what the catalogs have left.
    conn.execute("vacuum (full)")


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
    partitions: frozenset[int]

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
        partitions = frozenset(oid for oid, _ in conn.execute(_PARTITIONS.encode()))
        return cls(_one(conn, _SCHEMA), _one(conn, _CLOCK), tables, partitions)

    def restore(self, database: Database, server: psycopg.Connection) -> bool:
        """Whether this database is as fresh as ever now; if not, it must be dropped."""
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
        added = [name for oid, name in conn.execute(_PARTITIONS.encode()) if oid not in self.partitions]
        if added:
            conn.execute(f"drop table {', '.join(added)}".encode())
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
    # A TCP host where every driver expects it; a socket's directory only fits into the query.
    host = ""
    if re.fullmatch(r"[\w.-]+", parts.get("host", "")):
        host = parts.pop("host")
        host += f":{parts.pop('port')}" if "port" in parts else ""
    query = f"?{urlencode(parts, quote_via=quote, safe='')}" if parts else ""
    return f"postgresql://{login}{host}/{database}{query}"
