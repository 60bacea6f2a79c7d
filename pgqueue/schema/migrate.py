"""Bring the database's schema to the revision that this package needs.

Tables migrate by alembic revision; functions, views and grants are reloaded from sql/ at head. All of it happens in
one transaction under one advisory lock, so a migration that fails leaves nothing behind, and any number of them may
run at once: one does the work, the others find it done.
"""

from __future__ import annotations

import io
import logging
import random
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

try:
    import sqlalchemy
    from alembic import command, op
    from alembic.config import Config
    from alembic.util.exc import CommandError
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "migrations need the extra cli; run: pip install 'pgqueue-sql[cli]'", name=error.name
    ) from error

from pgqueue import __version__
from pgqueue.config import writing_dsn
from pgqueue.errors import ConfigError, MigrationError
from pgqueue.schema import bundled
from pgqueue.schema.status import FIRST, LAST_BEFORE, Status, read_status, status

# The result tells more than alembic's messages at level info.
logging.getLogger("alembic").setLevel(logging.WARNING)

# First key of the queue's advisory locks, as pgqueue._lock_class() has it; the second key 3 is migrating.
_LOCK = (1885827941, 3)

# A statement of a migration waits this long for a table, then the whole migration starts over: a longer wait would
# make every claim and every completion wait behind it.
_LOCK_TIMEOUT = "2s"

# A lock that was not given in time, or never would have been: a reader of two views locks them in another order.
_BLOCKED = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)

# Against what is set for the role or the database. An index may take longer; literals of sql/ have plain backslashes.
_SETTINGS = f"""set local lock_timeout = '{_LOCK_TIMEOUT}';
set local statement_timeout = 0;
set local standard_conforming_strings = on;"""


def migrate(dsn: str, *, to: str = "head", patience: float = 300.0) -> Status:
    """Migrate the database at `dsn` to revision `to` and return its status.

    At head the functions of sql/ are loaded; below it they are dropped, so that nothing runs on tables it was not
    written for, and a way down on which a job would be lost is refused; "base" removes the queue and every job in it.
    A database that a newer version has migrated, and that serves this one, is left as it is. Waits up to `patience`
    seconds for other migrations and for locks on tables. Raises MigrationError (nothing was changed) and ConfigError
    (no such revision).

        migrate("postgresql:///app")
    """
    known = bundled.revisions()
    target = known[-1] if to == "head" else to
    if target not in [*known, "base"]:
        raise ConfigError(f"there is no revision {to!r}", hint=f"known: base, {', '.join(known)}, head")
    deadline = time.monotonic() + patience
    while True:
        is_blocked = False
        try:
            with _explained(), _connect(dsn) as connection:
                if _lock(connection):
                    _move(connection, target)
                    return read_status(_driver(connection))
        except _BLOCKED:
            is_blocked = True
        if time.monotonic() > deadline:
            raise MigrationError(
                "another transaction holds a table of the queue" if is_blocked else "another migration is under way",
                hint="find long transactions in pg_stat_activity, then run pgqueue migrate again",
            )
        time.sleep(random.uniform(0.05, 0.5))


def script(*, start: str = "base") -> str:
    """Return one SQL text that brings a database from revision `start` to head; psql can run it.

    Raises ConfigError when there is no revision `start`.
    """
    known = bundled.revisions()
    if start not in [*known, "base", LAST_BEFORE]:
        raise ConfigError(f"there is no revision {start!r}", hint=f"known: base, {', '.join(known)}")
    at = FIRST if start == LAST_BEFORE else start
    tables = io.StringIO()
    if at != known[-1]:
        command.upgrade(_config(None, tables), f"{at}:head", sql=True)
    parts = [
        f"-- pgqueue {__version__}: from revision {start} to {known[-1]}. One transaction: all of it or nothing.",
        "-- psql -v ON_ERROR_STOP=1 -f this-file.sql",
        "begin;",
        _SETTINGS,
        f"do $$ begin while not pg_try_advisory_xact_lock({_LOCK[0]}, {_LOCK[1]}) loop\n"
        "    perform pg_sleep(0.2);\nend loop; end $$;",
        f"do $$ begin {_CREATE_SCHEMA} end $$;",
        _BECOME_OWNER,
        *([_take_over()] if start == LAST_BEFORE else []),
        *([] if start == "base" else [_DROP_ROUTINES]),
        # psql would print the rows that alembic's INSERT returns.
        re.sub(r"\s+RETURNING [\w.]*version_num;", ";", tables.getvalue()),
        "set local check_function_bodies = off;",
        *(file.read_text() for file in bundled.sql_files()),
        _AFTER,
        _RELEASE.as_string(None)
        .replace("%s", "{}")
        .format(*(sql.Literal(value).as_string(None) for value in _release()))
        + ";",
        "commit;",
        "",
    ]
    return "\n\n".join(parts)


def run_sql(text: str) -> None:
    """Run the SQL of a revision verbatim. For the files under migrations/.

    It goes through the driver: alembic and SQLAlchemy would read `:word` as a parameter and eat `%`.
    """
    context = op.get_context()
    if context.as_sql:
        context.impl.static_output(text)
        return
    _driver(op.get_bind()).execute(text.encode())


# "if not exists" asks for the right to create one even where there is one, which a DBA may have made.
_CREATE_SCHEMA = "if to_regnamespace('pgqueue') is null then create schema pgqueue; end if;"

# What a superuser, or a member of the owner, makes is the owner's, as all else is: functions run with the rights of
# their owner, who has none on tables of others. What an upgrade of before has left to another role becomes the owner's.
_BECOME_OWNER = """
do $$
declare
    v_owner regrole := (
        select c.relowner
        from pg_class c
        where c.relnamespace = to_regnamespace('pgqueue') and c.relname = 'alembic_version'
    );
    v_alter text;
begin
    if v_owner <> (select r.oid from pg_roles r where r.rolname = current_user) then
        for v_alter in
            select format('alter table %s owner to %s', c.oid::regclass, v_owner)
            from pg_class c
            where c.relnamespace = to_regnamespace('pgqueue') and c.relowner <> v_owner
                -- The sequence of a column goes with its table.
                and (c.relkind in ('r', 'p', 'v') or (c.relkind = 'S' and not exists (
                    select
                    from pg_depend d
                    where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype in ('a', 'i')
                )))
            union all
            select format('alter type %s owner to %s', t.oid::regtype, v_owner)
            from pg_type t
            left join pg_class c on c.oid = t.typrelid
            where t.typnamespace = to_regnamespace('pgqueue') and t.typowner <> v_owner
                and (t.typtype = 'e' or c.relkind = 'c')
            union all
            select format('alter routine %s owner to %s', p.oid::regprocedure, v_owner)
            from pg_proc p
            where p.pronamespace = to_regnamespace('pgqueue') and p.proowner <> v_owner
        loop
            execute v_alter;
        end loop;
        execute format('set local role %s', v_owner);
    end if;
end
$$;
"""

# Its function cannot be dropped before it.
_DROP_TRIGGER = "drop trigger if exists jobs_hand_off on pgqueue.jobs;"

# Without a database it is unknown which signatures exist: psql drops them all, never with CASCADE.
_DROP_ROUTINES = f"""
{_DROP_TRIGGER}
do $$
declare
    v_drop text;
begin
    for v_drop in
        select format('drop view pgqueue.%I', c.relname)
        from pg_class c
        where c.relnamespace = 'pgqueue'::regnamespace and c.relkind = 'v'
        union all
        select format('drop routine %s', p.oid::regprocedure)
        from pg_proc p
        where p.pronamespace = 'pgqueue'::regnamespace
    loop
        execute v_drop;
    end loop;
end
$$;
"""

# All partitions of history, so that maintenance has none to make while jobs wait.
_AFTER = "do $$ begin perform pgqueue._make_partitions(); end $$;"

_RELEASE = sql.SQL("insert into pgqueue.releases (revision, digest, version) values (%s, %s, %s)")


def _release() -> tuple[str, str, str]:
    return bundled.revisions()[-1], bundled.sql_digest(), __version__


def _take_over() -> str:
    return (bundled.directory("migrations") / f"from_{LAST_BEFORE}.sql").read_text()


@contextmanager
def _connect(dsn: str) -> Iterator[sqlalchemy.Connection]:
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://",
        # Nothing prepared: a pooler would keep it for others.
        creator=lambda: psycopg.connect(writing_dsn(dsn, "pgqueue migrate"), prepare_threshold=None),
        poolclass=sqlalchemy.NullPool,
        isolation_level="READ COMMITTED",
    )
    with engine.connect() as connection, connection.begin():
        yield connection


@contextmanager
def _explained() -> Iterator[None]:
    """Raise errors as MigrationError. Those of the connection, and of a lock not given, pass as the driver's."""
    try:
        yield
    except sqlalchemy.exc.DBAPIError as error:
        cause = error.orig
        if isinstance(cause, _BLOCKED):
            raise cause from None
        if isinstance(cause, psycopg.OperationalError) and cause.sqlstate is None:
            # There is no connection.
            raise cause from None
        raise _failed(cause or error) from error
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        raise _failed(error) from error
    except CommandError as error:
        raise MigrationError(
            f"the database is at a revision that this version of pgqueue does not know ({error})",
            hint="install the version of pgqueue that migrated it, or a newer one",
        ) from error


def _driver(connection: sqlalchemy.Connection) -> psycopg.Connection[tuple[object, ...]]:
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver


def _config(connection: sqlalchemy.Connection | None, output: io.StringIO | None = None) -> Config:
    config = Config(output_buffer=output) if output else Config()
    # A percent sign in the path would be read as an interpolation.
    config.set_main_option("script_location", str(bundled.directory("migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _lock(connection: sqlalchemy.Connection) -> bool:
    # Try and sleep: a session that waits in the server for a lock holds a snapshot, and a later migration that creates
    # an index concurrently would wait for that snapshot while holding the lock.
    driver = _driver(connection)
    driver.execute(_SETTINGS.encode())
    row = driver.execute("select pg_try_advisory_xact_lock(%s, %s)", _LOCK).fetchone()
    return row is not None and row[0] is True


def _move(connection: sqlalchemy.Connection, target: str) -> None:
    driver = _driver(connection)
    before = read_status(driver)
    head = bundled.revisions()[-1]
    if target == head and before.current:
        return
    if (target == head and before.is_newer) or before.is_too_old:
        problem, hint = before.refusal("the database") or ("", "")
        raise MigrationError(problem, hint=hint)
    if before.revision is None and target == "base":
        return
    driver.execute(f"do $$ begin {_CREATE_SCHEMA} end $$".encode())
    if target != "base":
        driver.execute(_BECOME_OWNER.encode())
    at = before.revision
    if before.is_before:
        driver.execute(_take_over().encode())
        at = FIRST
    if target != head:
        _drop_routines(driver)
    if target == "base" or (at is not None and at > target):
        command.downgrade(_config(connection), target)
    else:
        command.upgrade(_config(connection), target)
    if target == head:
        _reload(driver)
    elif target == "base":
        driver.execute("drop table pgqueue.alembic_version")
        driver.execute("drop schema pgqueue")


def _reload(driver: psycopg.Connection[tuple[object, ...]]) -> None:
    driver.execute("set local check_function_bodies = off")
    before = _routines(driver)
    *code, grants = bundled.sql_files()
    for file in code:
        _load(driver, file.read_text())
    # A routine whose row was not written now no longer has a file: it belongs to an older release. Asked before the
    # grants, which write every row.
    for oid, xmin in _routines(driver).items():
        if before.get(oid) == xmin:
            _drop(driver, "routine", f"{oid}::regprocedure")
    _load(driver, grants.read_text())
    driver.execute(_AFTER.encode())
    driver.execute(_RELEASE, _release())


def _load(driver: psycopg.Connection[tuple[object, ...]], text: str) -> None:
    try:
        with driver.transaction():
            driver.execute(text.encode())
    except (psycopg.errors.InvalidFunctionDefinition, psycopg.errors.InvalidTableDefinition):
        # The signature changed: names of parameters, a return type or the columns of a view.
        for kind, name in re.findall(r"create or replace (function|view) pgqueue\.(\w+)", text):
            if kind == "view":
                _drop(driver, "view", f"to_regclass('pgqueue.{name}')")
            else:
                rows = driver.execute(
                    "select oid from pg_proc where pronamespace = 'pgqueue'::regnamespace and proname = %s", (name,)
                ).fetchall()
                for (oid,) in rows:
                    _drop(driver, "routine", f"{oid}::regprocedure")
        driver.execute(text.encode())


def _drop(driver: psycopg.Connection[tuple[object, ...]], kind: str, identity: str) -> None:
    row = driver.execute(f"select ({identity})::text".encode()).fetchone()
    if row is None or row[0] is None:
        return
    try:
        # Never CASCADE: objects that depend on it are the user's.
        driver.execute(f"drop {kind} {row[0]}".encode())
    except psycopg.errors.DependentObjectsStillExist as error:
        raise MigrationError(
            f"{kind} {row[0]} changes its shape, and other objects depend on it: {error.diag.message_detail}",
            hint="drop those objects, run pgqueue migrate, and create them again",
        ) from error


def _drop_routines(driver: psycopg.Connection[tuple[object, ...]]) -> None:
    if driver.execute("select to_regclass('pgqueue.jobs')").fetchone() != (None,):
        driver.execute(_DROP_TRIGGER.encode())
    views = driver.execute(
        "select relname from pg_class where relnamespace = 'pgqueue'::regnamespace and relkind = 'v'"
    ).fetchall()
    for (name,) in views:
        _drop(driver, "view", f"to_regclass('pgqueue.{name}')")
    for oid in _routines(driver):
        _drop(driver, "routine", f"{oid}::regprocedure")


def _routines(driver: psycopg.Connection[tuple[object, ...]]) -> dict[object, object]:
    rows = driver.execute(
        "select oid, xmin::text from pg_proc where pronamespace = 'pgqueue'::regnamespace order by oid"
    ).fetchall()
    return {row[0]: row[1] for row in rows}


def _failed(error: BaseException) -> MigrationError:
    if isinstance(error, psycopg.errors.RaiseException) and error.diag.message_hint:
        # A revision refuses, and says why.
        what = f"{error.diag.message_primary}: {error.diag.message_detail}"
        return MigrationError(f"nothing was changed: {what}", hint=error.diag.message_hint)
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return MigrationError(
            f"the role may not do this: {error.diag.message_primary}",
            hint="migrate as the role that owns the schema pgqueue, or that may create it",
        )
    context = error.diag.context if isinstance(error, psycopg.Error) else None
    where = re.search(r"function ((?!pgqueue\.)[^\s(]+)\(", context or "")
    if where is None:
        return MigrationError(f"the migration failed and nothing was changed: {error}")
    return MigrationError(
        f"the migration failed in {where[1]}, which is not of the queue, and nothing was changed: {error}",
        hint="if it is an event trigger's function: qualify the names in it, or alter function ... set search_path",
    )


__all__ = ["Status", "migrate", "run_sql", "script", "status"]
