"""What `\\df+ pgqueue.*` and `\\d+ pgqueue.*` show: the manual of a psql user, and the habits of the house."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg

from pgqueue.schema import bundled


def names(conn: psycopg.Connection, query: str) -> list[str]:
    return [row[0] for row in conn.execute(query.encode()).fetchall()]


def test_each_public_function_says_what_it_does_and_private_ones_leave_that_to_their_files(
    conn: psycopg.Connection,
) -> None:
    assert (
        names(
            conn,
            r"""
        select p.proname::text from pg_proc p
        where p.pronamespace = 'pgqueue'::regnamespace
            and (p.proname not like '\_%') <> (coalesce(length(obj_description(p.oid, 'pg_proc')), 0) >= 10)
        """,
        )
        == []
    )


def test_the_lines_of_a_comment_after_its_first_are_about_an_argument_each(conn: psycopg.Connection) -> None:
    rows = conn.execute("select name, arguments, what_it_does from pgqueue.manual").fetchall()
    about = [
        (name, arguments, line.partition(": ")[0]) for name, arguments, what in rows for line in what.split("\n")[1:]
    ]
    assert len(about) > 25
    assert [(name, word) for name, arguments, word in about if not re.search(rf"(^|, ){word} ", arguments)] == []


def test_every_table_view_and_type_has_a_comment(conn: psycopg.Connection) -> None:
    assert (
        names(
            conn,
            """
        select c.relname::text from pg_class c
        where c.relnamespace = 'pgqueue'::regnamespace and c.relkind in ('r', 'p', 'v')
            and obj_description(c.oid, 'pg_class') is null
            and c.relname <> 'alembic_version'
        union all
        select t.typname::text from pg_type t
        where t.typnamespace = 'pgqueue'::regnamespace and t.typtype = 'e'
            and obj_description(t.oid, 'pg_type') is null
        union all
        select 'the schema' where obj_description('pgqueue'::regnamespace, 'pg_namespace') is null
        """,
        )
        == []
    )


def test_every_column_says_what_it_holds(conn: psycopg.Connection) -> None:
    assert (
        names(
            conn,
            """
        select c.relname || '.' || a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid
        where c.relnamespace = 'pgqueue'::regnamespace and c.relkind in ('r', 'p', 'v')
            and a.attnum > 0 and not a.attisdropped and not c.relispartition
            and c.relname <> 'alembic_version'
            and col_description(c.oid, a.attnum) is null
        """,
        )
        == []
    )


def test_what_runs_with_its_owners_rights_is_public(conn: psycopg.Connection) -> None:
    assert (
        names(
            conn,
            r"""
        select p.proname::text from pg_proc p
        where p.pronamespace = 'pgqueue'::regnamespace
            and p.prosecdef <> (
                p.proname not like '\_%' and p.proname not in ('grant_access', 'revoke_access', 'set_retry_function')
                -- A deferred trigger; and what views read, for these call functions with the rights of their readers.
                or p.proname in ('_hand_off', '_executing_jobs')
            )
        """,
        )
        == []
    )


def test_what_a_parallel_worker_may_run_starts_no_subtransaction(conn: psycopg.Connection) -> None:
    # Before PostgreSQL 18 the leader must not either: "cannot start subtransactions during a parallel operation".
    assert (
        names(
            conn,
            r"""
        select p.proname::text from pg_proc p
        where p.pronamespace = 'pgqueue'::regnamespace
            and p.proparallel <> 'u'
            and regexp_replace(p.prosrc, '--[^\n]*', '', 'g') ~ '\mexception\s+when\M'
        """,
        )
        == []
    )


def test_no_function_is_marked_safer_than_one_that_it_calls(conn: psycopg.Connection) -> None:
    rows = conn.execute(
        "select p.proname::text, p.proparallel::text, p.prosrc from pg_proc p"
        " where p.pronamespace = 'pgqueue'::regnamespace"
    ).fetchall()
    order = "sru"  # safe, restricted, unsafe
    marks = {name: order.index(mark) for name, mark, _ in rows}
    wrong = []
    for name, _, text in rows:
        # Without comments and texts: the hint of an error may name any function.
        code = re.sub(r"--[^\n]*|'(?:[^']|'')*'", "", text)
        wrong += [
            f"{name} calls {called}"
            for called in set(re.findall(r"pgqueue\.(\w+)\(", code))
            if marks.get(called, 0) > marks[name]
        ]
    assert wrong == []


def test_no_lock_outlives_its_transaction(conn: psycopg.Connection) -> None:
    """A lock of session level is left by a cancel between two statements, for as long as the session lives."""
    found = names(
        conn,
        r"""
        select p.proname::text from pg_proc p
        where p.pronamespace = 'pgqueue'::regnamespace
            and p.prosrc ~* '\mpg_(try_)?advisory_(unlock|lock)'
        """,
    )
    assert found == []
    session_lock = re.compile(r"pg_(try_)?advisory_(unlock|lock)", re.IGNORECASE)
    code = [*bundled.directory("migrations").rglob("*.py"), *bundled.directory("migrations").rglob("*.sql")]
    code += Path(bundled.__file__).parent.rglob("*.py")
    assert [file.name for file in code if session_lock.search(file.read_text())] == []


def test_no_function_refuses_what_is_not_supported(conn: psycopg.Connection) -> None:
    """All that the contract names is built. Only the proxy of a sharded queue has limits of that kind."""
    found = names(
        conn,
        r"""
        select p.proname::text from pg_proc p
        where p.pronamespace = 'pgqueue'::regnamespace and p.prosrc ~* '0A000|feature_not_supported'
        """,
    )
    assert found == []


def test_upper_and_lower_case_are_those_of_no_database(conn: psycopg.Connection) -> None:
    """In a Turkish one lower('MON-FRI') is not mon-fri. The bounds of a range have the names of functions too.

    Nor does a regular expression with the flag i fit there, which is an argument or stands in the expression.
    """
    flag = r"'[bcegmnpqstwx]{0,2}i[bcegmnpqstwx]?'|\(\?[a-z]*i"
    found = [
        f"{name}: {line.strip()}"
        for name, text in conn.execute(
            "select proname::text, prosrc from pg_proc where pronamespace = 'pgqueue'::regnamespace"
        )
        for line in text.splitlines()
        if (
            re.search(
                r"\b(lower|upper|initcap)\((?!g\.gap)|\bilike\b|~\*|\bcasefold\(", re.sub(r"--.*|'[^']*'", "", line)
            )
            or re.search(flag, re.sub(r"--.*", "", line))
        )
        and 'collate "C"' not in line.replace("pg_catalog.", "")
    ]
    assert found == []


def test_no_function_is_overloaded(conn: psycopg.Connection) -> None:
    assert (
        names(
            conn,
            """
        select proname::text from pg_proc where pronamespace = 'pgqueue'::regnamespace
        group by proname having count(*) > 1
        """,
        )
        == []
    )


def test_nothing_is_granted_to_public(conn: psycopg.Connection) -> None:
    assert (
        names(
            conn,
            """
        select p.oid::regprocedure::text
        from pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
        where p.pronamespace = 'pgqueue'::regnamespace and a.grantee = 0
        union all
        select c.relname::text
        from pg_class c, aclexplode(c.relacl) a
        where c.relnamespace = 'pgqueue'::regnamespace and a.grantee = 0
        union all
        select n.nspname::text
        from pg_namespace n, aclexplode(n.nspacl) a
        where n.nspname = 'pgqueue' and a.grantee = 0
        union all
        select t.typname::text
        from pg_type t, aclexplode(coalesce(t.typacl, acldefault('T', t.typowner))) a
        where t.typnamespace = 'pgqueue'::regnamespace and t.typtype = 'e' and a.grantee = 0
        """,
        )
        == []
    )


def test_each_public_function_has_a_file_of_its_name(conn: psycopg.Connection) -> None:
    public = names(
        conn,
        r"select proname::text from pg_proc where pronamespace = 'pgqueue'::regnamespace and proname not like '\_%'",
    )
    files = [file.stem for file in bundled.directory("sql").glob("functions/*/[!_]*.sql")]
    assert sorted(files) == sorted(public)


def test_each_file_creates_the_one_public_function_of_its_name_and_private_ones() -> None:
    for file in bundled.directory("sql").glob("functions/*/*.sql"):
        created = re.findall(r"^create or replace function pgqueue\.(\w+)", file.read_text(), re.MULTILINE)
        public = [name for name in created if not name.startswith("_")]
        assert public == ([] if file.stem.startswith("_") else [file.stem]), file.name
        assert created[0] == file.stem or file.stem.startswith("_"), file.name


def test_each_file_opens_with_what_it_is_for() -> None:
    for file in bundled.sql_files():
        assert file.read_text().startswith("-- "), file.name


def test_the_queue_is_installed_once_and_knows_its_version(conn: psycopg.Connection) -> None:
    row = conn.execute("select revision, digest from pgqueue.version()").fetchone()
    assert row == (bundled.revisions()[-1], bundled.sql_digest())


def test_the_newest_revision_pins_the_digest_of_sql() -> None:
    [newest] = bundled.directory("migrations").glob(f"versions/{bundled.revisions()[-1]}_*.py")
    pinned = re.search(r'^SQL_DIGEST = "(\w*)"', newest.read_text(), re.MULTILINE)
    assert pinned is not None
    assert pinned[1] == bundled.sql_digest(), "sql/ changed: run make digest"


def test_the_revision_that_a_files_name_begins_with_is_the_one_inside() -> None:
    head = None
    for file in sorted(Path(bundled.directory("migrations") / "versions").glob("[0-9]*.py")):
        text = file.read_text()
        assert f'revision = "{file.name.split("_")[0]}"' in text
        down = "None" if head is None else f'"{head}"'
        assert f"down_revision = {down}" in text
        head = file.name.split("_")[0]
    assert head == bundled.revisions()[-1]


def test_alembics_head_is_the_newest_file(conn: psycopg.Connection) -> None:
    rows = conn.execute("select version_num from pgqueue.alembic_version").fetchall()
    assert rows == [(bundled.revisions()[-1],)]
