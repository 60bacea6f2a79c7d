"""A database for each test: a clone of a template in which the migrations have run, or one that was made clean.

A migrated database has 42 partitions of history, and its maintenance makes others when a test moves the clock. Each is
five files, so that cloning takes much longer. Most tests do not care: theirs have one partition for all days and
one for all months, which any clock finds in place, and are cloned in 0.02 s. Those marked `partitions` get what the
migrations made.
Cleaning takes 10 ms. So a database whose test left the schema as it found it is emptied and handed out again; one in
which anything else is new, changed or missing is dropped. Migrating each time is what tests/migrations is for.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import psycopg
from psycopg import sql

from pgqueue.testing import databases
from pgqueue.testing.databases import uri
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


class Database(databases.Database):
    """One database of a test. `kind`: of which template; None: of none."""

    def __init__(self, dsn: str, kind: str | None = None) -> None:
        super().__init__(dsn)
        self.kind = kind
        self._sessions: list[Session] = []
        self._observer: psycopg.Connection | None = None

    def session(self, **options: Any) -> Session:
        """Open a connection that lives in a thread, for tests that force an order upon two of them."""
        self._observer = self._observer or self.connect()
        # Not among `_open`: a session ends its own connection, in its thread.
        session = Session(psycopg.connect(self.dsn, autocommit=True, **options), self._observer)
        self._sessions.append(session)
        return session

    def close(self) -> None:
        while self._sessions:
            self._sessions.pop().close()
        super().close()


class Cloner(databases.Databases):
    """Makes databases, and hands those out again that a test left as it found them."""

    def __init__(self, server_dsn: str, run_id: str) -> None:
        super().__init__(server_dsn, run_id)
        self._clean: dict[str, list[str]] = {_MIGRATED: [], _UNDIVIDED: []}
        self._fresh: dict[str, _Fresh] = {}

    def empty(self) -> Database:
        """Create a database without our schema."""
        return Database(super().empty().dsn)

    def migrated(self, *, partitions: bool = False) -> Database:
        """Create a database in which the migrations have run; with their `partitions`, or with two for all times."""
        kind = _MIGRATED if partitions else _UNDIVIDED
        self.make_template()
        if self._clean[kind]:
            return Database(uri(self.server_dsn, dbname=self._clean[kind].pop()), kind)
        database = Database(self._create(self._template(kind)).dsn, kind)
        if kind not in self._fresh:
            with psycopg.connect(database.dsn, autocommit=True) as conn:
                self._fresh[kind] = _Fresh.read(conn)
        return database

    def drop(self, database: databases.Database) -> None:
        """Make the database clean for the next test, or drop it where that cannot be."""
        kind = database.kind if isinstance(database, Database) else None
        database.close()
        if kind is not None and self._fresh[kind].restore(database, self._conn):
            self._clean[kind].append(database.name)
            return
        super().drop(database)

    def close(self) -> None:
        for name in chain(*self._clean.values()):
            self._drop(name)
        super().close()

    def drop_templates(self) -> None:
        super().drop_templates()
        self._drop(self._template(_UNDIVIDED))

    def _last_template(self) -> str:
        return self._template(_UNDIVIDED)

    def _make_templates(self) -> None:
        super()._make_templates()
        migrated, undivided = (sql.Identifier(self._template(kind)) for kind in (_MIGRATED, _UNDIVIDED))
        try:
            self._conn.execute(sql.SQL("create database {} template {}").format(undivided, migrated))
            dsn = uri(self.server_dsn, dbname=self._template(_UNDIVIDED))
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

    def restore(self, database: databases.Database, server: psycopg.Connection) -> bool:
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
