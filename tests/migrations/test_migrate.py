"""migrate(): from nothing to head and back, all or nothing, any number at once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pgqueue.errors import AccessDenied, ConfigError, MigrationError
from pgqueue.schema import bundled
from pgqueue.schema.migrate import migrate, script, status
from pgqueue.testing import Clock
from tests.calls import call, enqueue, ids, reserve, value
from tests.catalog.dump import dump
from tests.databases import Database
from tests.facts import wait_until
from tests.migrations.made_up import add_revision


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of sql/ and migrations/ to change; migrate() uses it until `monkeypatch.undo()`."""
    for name in ("sql", "migrations"):
        shutil.copytree(bundled.directory(name), tmp_path / name)
    monkeypatch.setattr(bundled, "directory", lambda name: tmp_path / name)
    return tmp_path


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text, f"{file.name} no longer says {old!r}"
    file.write_text(text.replace(old, new))


def catalog(database: Database) -> str:
    """The schema with its comments and rights."""
    conn = database.connect()
    described = conn.execute(
        """
        select p.proname || ': ' || md5(p.prosrc) || ' ' || coalesce(obj_description(p.oid, 'pg_proc'), '')
            || ' ' || coalesce(p.proacl::text, '')
        from pg_proc p where p.pronamespace = 'pgqueue'::regnamespace
        union all
        select c.relname || ': ' || coalesce(obj_description(c.oid, 'pg_class'), '')
            || ' ' || coalesce(c.relacl::text, '')
        from pg_class c where c.relnamespace = 'pgqueue'::regnamespace
        union all
        select c.relname || '.' || a.attname || ': ' || col_description(c.oid, a.attnum)
        from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
        where c.relnamespace = 'pgqueue'::regnamespace and not c.relispartition
        order by 1
        """
    ).fetchall()
    return dump(conn) + "\n".join(str(row[0]) for row in described)


def test_a_fresh_database_is_brought_to_head(empty_database: Database) -> None:
    before = status(empty_database.dsn)
    assert (before.revision, before.digest, before.current) == (None, None, False)
    after = migrate(empty_database.dsn)
    assert after.current
    assert after == status(empty_database.dsn)
    conn = empty_database.connect()
    job_id = enqueue(conn)
    assert ids(reserve(conn)) == [job_id]


def test_migrating_again_changes_nothing(empty_database: Database) -> None:
    migrate(empty_database.dsn)
    conn = empty_database.connect()
    xmins = """
        select array_agg(oid::text || xmin::text order by oid)
        from pg_proc where pronamespace = 'pgqueue'::regnamespace
    """
    before = value(conn, xmins)
    assert migrate(empty_database.dsn).current
    assert value(conn, xmins) == before
    assert value(conn, "select count(*) from pgqueue.releases") == 1


@pytest.mark.long
def test_twenty_at_once_all_succeed_and_one_does_the_work(empty_database: Database) -> None:
    dsn = empty_database.dsn
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", "import sys; from pgqueue.schema.migrate import migrate; migrate(sys.argv[1])", dsn],
            cwd=Path(__file__).parents[2],
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda _: migrate(dsn), range(16)))
    assert all(result.current for result in results)
    assert [process.communicate(timeout=60)[1] for process in processes] == [""] * 4
    assert [process.returncode for process in processes] == [0] * 4
    assert value(empty_database.connect(), "select count(*) from pgqueue.releases") == 1


@pytest.mark.parametrize("where", ["tables", "a function", "the last file"])
def test_a_migration_that_fails_leaves_nothing_behind(
    empty_database: Database, sources: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    broken = {
        "tables": sources / "migrations/versions/0001_the_queue.sql",
        "a function": sources / "sql/functions/worker/idle.sql",
        "the last file": sources / "sql/grants.sql",
    }[where]
    broken.write_text(broken.read_text() + "\nselect 1 / 0;\n")
    with pytest.raises(MigrationError, match="division by zero"):
        migrate(empty_database.dsn)
    conn = empty_database.connect()
    assert value(conn, "select to_regnamespace('pgqueue')") is None
    monkeypatch.undo()
    assert migrate(empty_database.dsn).current


def test_a_reload_that_fails_leaves_the_release_before_in_place(
    database: Database, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, stood = catalog(database), status(database.dsn)
    edit(sources / "sql/functions/worker/beat.sql", "return found or", "return not found or")
    (sources / "sql/functions/worker/zzz.sql").write_text("select 1 / 0;\n")
    with pytest.raises(MigrationError):
        migrate(database.dsn)
    monkeypatch.undo()
    assert catalog(database) == before
    assert status(database.dsn) == stood


@pytest.mark.partitions
def test_the_script_makes_the_same_schema_as_migrate(empty_database: Database, database: Database) -> None:
    empty_database.connect().execute(script().encode())
    assert catalog(empty_database) == catalog(database)
    assert status(empty_database.dsn).current
    assert migrate(empty_database.dsn).current
    job_id = enqueue(empty_database.connect())
    assert ids(reserve(empty_database.connect())) == [job_id]


def test_the_script_prints_nothing(empty_database: Database) -> None:
    conn = empty_database.connect()
    for start in ("base", bundled.revisions()[-1]):
        cursor = conn.execute(script(start=start).encode())
        printed = []
        while True:
            if cursor.description is not None:
                printed.append((cursor.statusmessage, cursor.fetchall()))
            if not cursor.nextset():
                break
        assert printed == []


def test_the_script_from_head_reloads_the_functions(database: Database, sources: Path) -> None:
    edit(sources / "sql/functions/worker/beat.sql", "Heartbeat: the worker is alive.", "The worker lives.")
    database.connect().execute(script(start=bundled.revisions()[-1]).encode())
    assert status(database.dsn).current
    comment = "select obj_description('pgqueue.beat'::regproc, 'pg_proc')"
    assert value(database.connect(), comment).startswith("The worker lives.")


def test_to_base_removes_all_of_it_and_nothing_else(database: Database) -> None:
    conn = database.connect()
    conn.execute("create table public.mine (x int)")
    enqueue(conn)
    after = migrate(database.dsn, to="base")
    assert (after.revision, after.digest) == (None, None)
    assert value(conn, "select to_regnamespace('pgqueue')") is None
    assert value(conn, "select to_regclass('public.mine')") is not None
    assert migrate(database.dsn, to="base").revision is None
    assert migrate(database.dsn).current


def test_an_unknown_revision_is_refused_with_the_known_ones(empty_database: Database) -> None:
    with pytest.raises(ConfigError, match="0001"):
        migrate(empty_database.dsn, to="9999")
    with pytest.raises(ConfigError, match="0001"):
        script(start="9999")
    assert value(empty_database.connect(), "select to_regnamespace('pgqueue')") is None


def test_a_database_of_a_newer_release_that_serves_this_one_is_left_as_it_is(database: Database) -> None:
    conn = database.connect()
    conn.execute("update pgqueue.alembic_version set version_num = '9999'")
    before = catalog(database)
    assert status(database.dsn).current
    assert migrate(database.dsn).is_newer
    assert catalog(database) == before
    with pytest.raises(MigrationError, match="does not know"):
        migrate(database.dsn, to="base")


def test_a_database_of_a_newer_release_that_does_not_serve_this_one_is_refused(database: Database) -> None:
    conn = database.connect()
    conn.execute("update pgqueue.alembic_version set version_num = '9999'")
    conn.execute(
        "create or replace function pgqueue.version(out version text, out revision text, out digest text,"
        " out oldest_client text) returns setof record language sql as $$ select '9.9', '9999', 'x', '9998' $$"
    )
    assert not status(database.dsn).current
    with pytest.raises(MigrationError, match="serves programs from 9998 on") as refused:
        migrate(database.dsn)
    assert "newer version" in (refused.value.hint or "")


def test_a_newer_release_of_the_same_revision_is_left_as_it_is_and_an_older_one_is_replaced(database: Database) -> None:
    conn = database.connect()
    newest = "(select max(n) from pgqueue.releases)"
    conn.execute(f"update pgqueue.releases set digest = 'theirs', version = '99.0' where n = {newest}".encode())
    assert migrate(database.dsn).digest == "theirs"
    conn.execute(f"update pgqueue.releases set version = '0.0.1' where n = {newest}".encode())
    assert not status(database.dsn).current
    assert migrate(database.dsn).digest == bundled.sql_digest()


@pytest.fixture
def owner(empty_database: Database) -> Iterator[str]:
    """A role that may log in, and create nothing in its database."""
    conn = empty_database.connect()
    name = f"test_{empty_database.name[-8:]}"
    conn.execute(f"create role {name}; revoke create, temporary on database {empty_database.name} from public".encode())
    yield name
    conn.execute(f"drop owned by {name}; drop role {name}".encode())


@pytest.mark.parametrize("by_script", [False, True], ids=["migrate", "psql"])
def test_the_owner_of_a_schema_that_another_made_needs_no_right_to_create_one(
    empty_database: Database, owner: str, by_script: bool
) -> None:
    conn = empty_database.connect()
    conn.execute(f"create schema pgqueue authorization {owner}".encode())
    own = f"{empty_database.dsn}&options=-c%20role%3D{owner}"
    if by_script:
        conn.execute(f"set role {owner}".encode())
        conn.execute(script().encode())
        conn.execute(script(start=bundled.revisions()[-1]).encode())
        conn.execute("reset role")
    else:
        assert migrate(own).current
        conn.execute("update pgqueue.releases set digest = 'older'")
    assert migrate(own).current


@pytest.mark.parametrize("by_script", [False, True], ids=["migrate", "psql"])
def test_what_a_superuser_upgrades_stays_the_owners(
    empty_database: Database, owner: str, sources: Path, by_script: bool
) -> None:
    conn = empty_database.connect()
    if conn.info.parameter_status("is_superuser") != "on":
        pytest.skip("only a superuser may act as any owner")
    conn.execute(f"create schema pgqueue authorization {owner}".encode())
    migrate(f"{empty_database.dsn}&options=-c%20role%3D{owner}")
    # As an upgrade by a superuser left it before: what was new belonged to that role.
    conn.execute("drop function pgqueue.depth(text, integer)")
    theirs = ("function wanted(text[])", "table pauses", "table history_days", "sequence step_under_way")
    for what in (*theirs, "type rule", "type job_state"):
        kind, _, name = what.partition(" ")
        conn.execute(f"alter {kind} pgqueue.{name} owner to current_user".encode())
    edit(sources / "sql/functions/worker/beat.sql", "Heartbeat: the worker is alive.", "The worker lives.")
    if by_script:
        conn.execute(script(start=bundled.revisions()[-1]).encode())
    else:
        migrate(empty_database.dsn)
    assert status(empty_database.dsn).current
    owners = conn.execute(
        "select distinct c.relowner::regrole::text from pg_class c where c.relnamespace = 'pgqueue'::regnamespace"
        " union select p.proowner::regrole::text from pg_proc p where p.pronamespace = 'pgqueue'::regnamespace"
        " union select t.typowner::regrole::text from pg_type t where t.typnamespace = 'pgqueue'::regnamespace"
    ).fetchall()
    assert owners == [(owner,)]


@pytest.mark.partitions
def test_settings_of_the_role_do_not_change_what_is_loaded(empty_database: Database, database: Database) -> None:
    options = "-c%20standard_conforming_strings%3Doff%20-c%20statement_timeout%3D20"
    migrate(f"{empty_database.dsn}&options={options}")
    assert catalog(empty_database) == catalog(database)
    view = "select pg_get_viewdef('pgqueue.manual'::regclass)"
    assert value(empty_database.connect(), view) == value(database.connect(), view)


def test_a_routine_of_an_older_release_is_dropped(
    empty_database: Database, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sources / "sql/functions/common/old.sql").write_text(
        "create or replace function pgqueue.old() returns int language sql as 'select 1';\n"
    )
    migrate(empty_database.dsn)
    conn = empty_database.connect()
    assert call(conn, "old") == 1
    monkeypatch.undo()
    assert migrate(empty_database.dsn).current
    assert value(conn, "select to_regprocedure('pgqueue.old()')") is None


def test_an_argument_more_replaces_the_function_and_leaves_no_second_one(
    empty_database: Database, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat = sources / "sql/functions/worker/beat.sql"
    edit(beat, "memory bigint default null)", "memory bigint default null, older int default 0)")
    edit(beat, "pgqueue.beat(text, jsonb, bigint)", "pgqueue.beat(text, jsonb, bigint, int)")
    migrate(empty_database.dsn)
    monkeypatch.undo()
    migrate(empty_database.dsn)
    conn = empty_database.connect()
    assert value(conn, "select count(*) from pg_proc where proname = 'beat'") == 1
    assert call(conn, "beat", "w") is False


@pytest.mark.parametrize("change", ["name of an argument", "returned columns", "columns of a view"])
def test_a_changed_shape_is_replaced(
    empty_database: Database, sources: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    if change == "name of an argument":
        edit(sources / "sql/functions/hold/snooze.sql", "snooze(job_id bigint", "snooze(id bigint")
    elif change == "returned columns":
        edit(sources / "sql/functions/common/version.sql", "table (version text,", "table (older text,")
    else:
        edit(sources / "sql/views/effective_tasks.sql", "    t.name,\n", "    t.name, 1 as older,\n")
    migrate(empty_database.dsn)
    monkeypatch.undo()
    migrate(empty_database.dsn)
    fresh = dump(empty_database.connect())
    assert "older" not in fresh
    assert "snooze(\n    job_id bigint" in fresh


def test_a_changed_view_with_a_dependent_names_it_and_changes_nothing(
    empty_database: Database, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(sources / "sql/views/all_jobs.sql", "    j.id, j.queue,", "    j.id, 1 as older, j.queue,")
    edit(sources / "sql/views/all_jobs.sql", "    h.id, h.queue,", "    h.id, 1, h.queue,")
    migrate(empty_database.dsn)
    conn = empty_database.connect()
    conn.execute("create view public.my_dead_jobs as select * from pgqueue.all_jobs where state = 'dead'")
    before = dump(conn)
    monkeypatch.undo()
    with pytest.raises(MigrationError, match="my_dead_jobs") as refused:
        migrate(empty_database.dsn)
    assert "drop" in (refused.value.hint or "")
    assert dump(conn) == before
    conn.execute("drop view public.my_dead_jobs")
    assert migrate(empty_database.dsn).current


def test_a_changed_function_with_a_dependent_names_it_and_changes_nothing(
    empty_database: Database, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(sources / "sql/functions/operate/stats.sql", "returns jsonb", "returns json")
    edit(
        sources / "sql/functions/operate/stats.sql",
        "    return v_numbers || jsonb_build_object(",
        "    return json_build_object(",
    )
    migrate(empty_database.dsn)
    conn = empty_database.connect()
    conn.execute("create view public.my_numbers as select pgqueue.stats() as numbers")
    monkeypatch.undo()
    with pytest.raises(MigrationError, match="my_numbers"):
        migrate(empty_database.dsn)
    assert value(conn, "select pg_typeof(numbers)::text from public.my_numbers") == "json"


def test_jobs_outlive_a_reload(database: Database, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conn = database.connect()
    job_id = enqueue(conn)
    edit(sources / "sql/functions/worker/beat.sql", "Heartbeat: the worker is alive.", "The worker lives.")
    assert migrate(database.dsn).current
    assert ids(reserve(conn)) == [job_id]
    assert value(conn, "select count(*) from pgqueue.releases") == 2


def test_a_reload_brings_the_clock_back(database: Database, clock: Clock, sources: Path) -> None:
    clock.set("2030-01-01 00:00+00")
    edit(sources / "sql/functions/worker/beat.sql", "Heartbeat: the worker is alive.", "The worker lives.")
    migrate(database.dsn)
    assert abs(value(database.connect(), "select extract(epoch from pgqueue._clock() - clock_timestamp())")) < 1


def test_a_locked_table_is_waited_for_with_short_locks(database: Database) -> None:
    holder, conn = database.connect(autocommit=False), database.connect()
    enqueue(holder)
    with pytest.raises(MigrationError, match="holds a table"):
        migrate(database.dsn, to="base", patience=0)
    assert value(conn, "select to_regnamespace('pgqueue')") is not None
    with ThreadPoolExecutor(1) as pool:
        migrating = pool.submit(migrate, database.dsn, to="base")
        wait_until(
            lambda: value(
                conn,
                "select count(*) from pg_stat_activity where application_name = 'pgqueue migrate'"
                " and datname = current_database() and wait_event_type = 'Lock'",
            )
        )
        holder.rollback()
        assert migrating.result(60).revision is None


def test_a_migration_that_a_reader_of_two_views_deadlocks_starts_over(database: Database, sources: Path) -> None:
    edit(sources / "sql/functions/worker/beat.sql", "Heartbeat: the worker is alive.", "The worker lives.")
    reader, conn = database.connect(autocommit=False), database.connect()
    reader.execute("set local deadlock_timeout = '1 min'")
    reader.execute("select from pgqueue.effective_tasks")
    with ThreadPoolExecutor(1) as pool:
        migrating = pool.submit(migrate, database.dsn)
        # It has replaced all_jobs, and waits for effective_tasks.
        wait_until(
            lambda: value(
                conn,
                "select count(*) from pg_stat_activity where application_name = 'pgqueue migrate'"
                " and datname = current_database() and wait_event_type = 'Lock'",
            )
        )
        reader.execute("select from pgqueue.all_jobs")
        reader.commit()
        assert migrating.result(60).current


def test_another_migration_under_way_is_waited_for(database: Database, sources: Path) -> None:
    edit(sources / "sql/functions/worker/beat.sql", "Heartbeat: the worker is alive.", "The worker lives.")
    other = database.connect(autocommit=False)
    other.execute("select pg_advisory_xact_lock(1885827941, 3)")
    with pytest.raises(MigrationError, match="another migration is under way"):
        migrate(database.dsn, patience=0)
    other.commit()
    assert migrate(database.dsn).current


@pytest.fixture
def role(database: Database) -> Iterator[str]:
    """A role without any right."""
    conn = database.connect()
    name = f"test_{database.name[-8:]}"
    conn.execute(f"create role {name}".encode())
    yield name
    conn.execute(f"drop owned by {name}; drop role {name}".encode())


@pytest.mark.parametrize("kind", ["producer", "worker", "reader", "operator"])
def test_every_role_with_a_grant_may_ask_where_the_schema_stands(kind: str, database: Database, role: str) -> None:
    conn = database.connect()
    own = f"{database.dsn}&options=-c%20role%3D{role}"
    with pytest.raises(AccessDenied, match=f"role {role} may not use the schema pgqueue") as refused:
        status(own)
    assert f"pgqueue grant worker {role}" in (refused.value.hint or "")
    conn.execute(f"grant usage on schema pgqueue to {role}".encode())
    with pytest.raises(AccessDenied, match=r"may not call pgqueue\.version"):
        status(own)
    conn.execute("select pgqueue.grant_access(%s, %s::text::name)", [kind, role])
    assert status(own).current


def test_below_head_only_the_owner_may_ask_where_the_schema_stands(
    database: Database, role: str, sources: Path
) -> None:
    head = bundled.revisions()[-1]
    add_revision(sources / "migrations", head, "9001")
    database.connect().execute("select pgqueue.grant_access('operator', %s::text::name)", [role])
    migrate(database.dsn)
    migrate(database.dsn, to=head)
    with pytest.raises(AccessDenied, match=f"role {role} may not read its revision"):
        status(f"{database.dsn}&options=-c%20role%3D{role}")
    now = status(database.dsn)
    assert (now.revision, now.current, now.is_before) == (head, False, False)


def test_a_role_without_rights_gets_a_hint(empty_database: Database) -> None:
    conn = empty_database.connect()
    role = f"weak_{empty_database.name[-8:]}"
    conn.execute(f"create role {role}".encode())
    try:
        with pytest.raises(MigrationError, match="permission denied") as refused:
            migrate(f"{empty_database.dsn}&options=-c%20role%3D{role}")
        assert "owns" in (refused.value.hint or "")
    finally:
        conn.execute(f"drop role {role}".encode())


def test_a_failure_in_the_code_of_others_names_it(empty_database: Database) -> None:
    conn = empty_database.connect()
    if conn.info.parameter_status("is_superuser") != "on":
        pytest.skip("only a superuser may create an event trigger")
    conn.execute(
        "create table ddl_log (tag text); create function note_ddl() returns event_trigger language plpgsql as"
        " $$ begin insert into ddl_log values (tg_tag); end $$;"
        " create event trigger note_ddl on ddl_command_end execute function note_ddl()"
    )
    with pytest.raises(MigrationError, match=r"failed in note_ddl.*\"ddl_log\" does not exist") as refused:
        migrate(empty_database.dsn)
    assert "event trigger" in (refused.value.hint or "")
    assert value(conn, "select to_regnamespace('pgqueue')") is None
    conn.execute("alter function note_ddl() set search_path = public")
    assert migrate(empty_database.dsn).current
