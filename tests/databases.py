"""A database for each test: a clone of a template in which the migrations have run, or one that was made clean.

A migrated database has 42 partitions of history, and its maintenance makes others when a test moves the clock. Each is
five files, so that cloning takes much longer. Most tests do not care: theirs have one partition for all days and
one for all months, which any clock finds in place, and are cloned in 0.02 s. There a function also waits for a lock for
a minute instead of 5 s: a test that holds a lock does not race that timeout. Tests marked `partitions` get what the
migrations made, and tests/races/conftest.py lets those of races wait as long.
Cleaning takes 10 ms. So a database whose test left the schema as it found it is emptied and handed out again; one in
which anything else is new, changed or missing is dropped. Migrating each time is what tests/migrations is for.
A new backend reads the catalogs and compiles each function that it calls: 40 ms of a core for one job that is enqueued,
reserved and completed. So the first two connections of a test go on to the next test in its database, as a pooler would
hand them on: after DISCARD ALL, under a new psycopg.Connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import PGconn, PipelineStatus, TransactionStatus

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
    (select string_agg(concat_ws(' ', k.oid, k.conname), ',' order by k.oid)
        from pg_constraint k join pg_class c on c.oid = k.conrelid where c.oid >= 16384 and not c.relispartition),
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
_ELSEWHERE = "elsewhere"


# Connections that a database keeps for its next test.
_KEPT = 2


class Database(databases.Database):
    """One database of a test. `kind`: of which template; None: of none. `kept`: what it has of the test before."""

    def __init__(self, dsn: str, kind: str | None = None, kept: Sequence[PGconn] = ()) -> None:
        super().__init__(dsn)
        self.kind = kind
        self._kept = list(kept)
        self._plain: list[psycopg.Connection] = []
        self._sessions: list[Session] = []
        self._observer: psycopg.Connection | None = None

    def connect(self, *, autocommit: bool = True, **options: Any) -> psycopg.Connection:
        if options:
            return super().connect(autocommit=autocommit, **options)
        if not self._kept:
            conn = super().connect(autocommit=autocommit)
        else:
            conn = psycopg.Connection(self._kept.pop(0))
            conn.autocommit = autocommit
            self._open.append(conn)
        self._plain.append(conn)
        return conn

    def detach(self) -> list[PGconn]:
        """Take from the test the connections that may go on to the next one."""
        self._close_sessions()
        for conn in self._plain:
            idle = not conn.closed and conn.info.transaction_status == TransactionStatus.IDLE
            if idle and conn.info.pipeline_status == PipelineStatus.OFF and len(self._kept) < _KEPT:
                self._open.remove(conn)
                # A thread that the test forgot gets an error, and not the connection of another test.
                self._kept.append(_detached(conn))
        kept, self._kept = self._kept, []
        return kept

    def session(self, **options: Any) -> Session:
        """Open a connection that lives in a thread, for tests that force an order upon two of them."""
        self._observer = self._observer or self.connect()
        # Not among `_open`: a session ends its own connection, in its thread.
        session = Session(psycopg.connect(self.dsn, autocommit=True, **options), self._observer)
        self._sessions.append(session)
        return session

    def close(self) -> None:
        self._close_sessions()
        super().close()

    def _close_sessions(self) -> None:
        while self._sessions:
            self._sessions.pop().close()


class Cloner(databases.Databases):
    """Makes databases, and hands those out again that a test left as it found them."""

    def __init__(self, server_dsn: str, run_id: str) -> None:
        super().__init__(server_dsn, run_id)
        self._clean: dict[str, list[tuple[str, list[PGconn]]]] = {_MIGRATED: [], _UNDIVIDED: [], _ELSEWHERE: []}
        self._fresh: dict[str, _Fresh] = {}

    def empty(self) -> Database:
        """Create a database without our schema."""
        return Database(super().empty().dsn)

    def migrated(self, *, partitions: bool = False) -> Database:
        """Create a database in which the migrations have run; with their `partitions`, or with two for all times."""
        self.make_template()
        return self._clone(_MIGRATED if partitions else _UNDIVIDED)

    def elsewhere(self) -> Database:
        """Create a database as other people have it: of a Turkish locale, and published for a replica of all tables."""
        with self._alone():
            if not self._exists(self._template(_ELSEWHERE)):
                self._make_template(_ELSEWHERE, _publish_all, self._turkish())
        return self._clone(_ELSEWHERE)

    def _turkish(self) -> str:
        """The options of a database in which upper('i') is not I; "" where the server is built without ICU."""
        has_icu = self._conn.execute("select from pg_collation where collname = 'und-x-icu'").fetchone()
        if has_icu is None or self._conn.info.server_version < 150000:
            return ""
        return "encoding 'UTF8' locale_provider icu icu_locale 'tr-TR'"

    def _clone(self, kind: str) -> Database:
        if self._clean[kind]:
            name, kept = self._clean[kind].pop()
            return Database(uri(self.server_dsn, dbname=name), kind, kept)
        database = Database(self._create(self._template(kind)).dsn, kind)
        if kind not in self._fresh:
            with psycopg.connect(database.dsn, autocommit=True) as conn:
                self._fresh[kind] = _Fresh.read(conn)
        return database

    def drop(self, database: databases.Database) -> None:
        """Make the database clean for the next test, or drop it where that cannot be."""
        if not isinstance(database, Database) or database.kind is None:
            super().drop(database)
            return
        kept = database.detach()
        database.close()
        if self._fresh[database.kind].restore(database, self._conn, kept):
            self._clean[database.kind].append((database.name, kept))
            return
        _finish(kept)
        super().drop(database)

    def close(self) -> None:
        for name, kept in chain(*self._clean.values()):
            _finish(kept)
            self._drop(name)
        super().close()

    def drop_templates(self) -> None:
        super().drop_templates()
        self._drop(self._template(_UNDIVIDED))
        self._drop(self._template(_ELSEWHERE))

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
                wait_for_locks(conn)
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
            conn.execute(f"alter table pgqueue.history_all_{each} replica identity full".encode())
            conn.execute(f"comment on table pgqueue.history_all_{each} is 'Private: history of all times.'".encode())
    # Each clone copies what the catalogs have left. Those of the whole server are left out: while this waits for a
    # session that reads one of them, nobody else can connect.
    own = conn.execute("""
        select string_agg(format('%I.%I', relnamespace::regnamespace, relname), ', ') from pg_class
        where relkind = 'r' and not relisshared
    """).fetchone()
    conn.execute(f"vacuum (full) {own[0]}".encode())


def wait_for_locks(conn: psycopg.Connection) -> None:
    """Let functions that wait 5 s for a lock wait for a minute.

    A test that holds a lock until it sees who waits for it does not race the product on a busy machine.
    """
    conn.execute("""
        do $$
        declare
            v_function regprocedure;
        begin
            for v_function in
                select p.oid from pg_proc p
                where p.pronamespace = 'pgqueue'::regnamespace and 'lock_timeout=5s' = any (p.proconfig)
            loop
                execute format('alter function %s set lock_timeout = %L', v_function, '60s');
            end loop;
        end
        $$
    """)


def _publish_all(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        _leave_two_partitions(conn)
        wait_for_locks(conn)
        # Only a superuser may.
        if conn.info.parameter_status("is_superuser") == "on":
            conn.execute("create publication everything for all tables")


@dataclass(frozen=True, slots=True)
class _Table:
    """`shown`: an expression that differs from `fresh` once anything was written; `numbered`: sets its sequence."""

    shown: str
    fresh: str
    rows: list[bytes]
    numbered: str | None


@dataclass(frozen=True, slots=True)
class _Fresh:
    """The state of a database in which nothing has happened yet."""

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
            numbered = None
            if rows and sequence is not None:
                numbered = _one(
                    conn, f"select format('setval(%L, %s, %L)', '{sequence}', last_value, is_called) from {sequence}"
                )
            tables[name] = _Table(shown, _one(conn, f"select {shown}"), rows, numbered)
        partitions = frozenset(oid for oid, _ in conn.execute(_PARTITIONS.encode()))
        return cls(_one(conn, _SCHEMA), _one(conn, _CLOCK), tables, partitions)

    def restore(self, database: databases.Database, server: psycopg.Connection, kept: list[PGconn]) -> bool:
        """Whether this database is as fresh as ever now; if not, it must be dropped. `kept` loses what is broken."""
        try:
            # A process that a test has started may still be connected. It is waited for: its locks must be gone.
            server.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = %s and pid <> all (%s)",
                [database.name, [each.backend_pid for each in kept]],
            )
            for each in list(kept):
                if not _discard(each):
                    kept.remove(each)
                    each.finish()
            if not kept:
                kept.append(_detached(psycopg.connect(database.dsn)))
            with _lent(kept[0]) as conn:
                conn.execute("set lock_timeout = 1000")
                self._restore(conn)
                same = _one(conn, _SCHEMA) == self.schema
                conn.execute("discard all")
            return same
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
        if used:
            conn.execute(f"truncate {', '.join(used)} restart identity".encode())
        for name, table in used.items():
            if table.rows:
                with conn.cursor() as cursor, cursor.copy(f"copy {name} from stdin".encode()) as copy:
                    for line in table.rows:
                        copy.write(line)
            if table.numbered:
                conn.execute(f"select {table.numbered}".encode())
        # The one sequence that no column owns: maintain() in a session that the test ended leaves its step in it.
        conn.execute("select setval('pgqueue.step_under_way', 0) from pgqueue.step_under_way where last_value <> 0")


def _discard(kept: PGconn) -> bool:
    """Whether this connection forgot all that its session was told."""
    try:
        with _lent(kept) as conn:
            conn.execute("discard all")
    except psycopg.Error:
        return False
    while kept.notifies() is not None:
        pass
    return True


@contextmanager
def _lent(kept: PGconn) -> Iterator[psycopg.Connection]:
    conn = psycopg.Connection(kept)
    try:
        conn.autocommit = True
        yield conn
    finally:
        _detached(conn)


def _detached(conn: psycopg.Connection) -> PGconn:
    """What is below a connection, which is closed from now on."""
    kept, conn.pgconn = conn.pgconn, PGconn.connect_start(b"host=/nowhere")
    conn.pgconn.finish()
    return kept


def _finish(kept: list[PGconn]) -> None:
    for each in kept:
        each.finish()


def _one(conn: psycopg.Connection, question: str) -> str:
    [[answer]] = conn.execute(question.encode()).fetchall()
    return str(answer)
