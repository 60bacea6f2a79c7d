"""plpgsql_check reports no warning of our functions, save those in ALLOWED.

Skipped where the server has no such extension, as the embedded one: `make check-sql` runs it on Debian's.
"""

from __future__ import annotations

import psycopg
import pytest

from tests.databases import Database

# Every class of warnings. `stage()` first: the table that enqueue_staged() reads is one of the session.
FINDINGS = """
select p.proname::text, f.message, concat_ws(' ', f.level, 'line', f.lineno::text, f.statement, f.detail, f.query)
from (
    select p.oid, p.proname, 0 as relid
    from pg_proc p join pg_language l on l.oid = p.prolang
    where p.pronamespace = 'pgqueue'::regnamespace and l.lanname = 'plpgsql' and p.prorettype <> 'trigger'::regtype
    union all
    -- A trigger function is checked for each of its tables.
    select p.oid, p.proname, t.tgrelid
    from pg_proc p join pg_language l on l.oid = p.prolang join pg_trigger t on t.tgfoid = p.oid
    where p.pronamespace = 'pgqueue'::regnamespace and l.lanname = 'plpgsql'
) p
cross join lateral plpgsql_check_function_tb(
    p.oid, p.relid, other_warnings => true, extra_warnings => true, performance_warnings => true,
    security_warnings => true, compatibility_warnings => true
) f
order by 1, f.lineno, 2
"""

STABLE = "routine is marked as VOLATILE, should be STABLE"
IMMUTABLE = "routine is marked as STABLE, should be IMMUTABLE"
NO_RETURN = "control reached end of function without RETURN"

# Accepted warnings, by function and message.
ALLOWED = {
    # They lock rows, which PostgreSQL refuses in a function that is not volatile; plpgsql_check does not see it.
    ("_lock_outside_lanes", STABLE): "FOR UPDATE",
    ("_walk_lanes", STABLE): "FOR UPDATE",
    ("_whole_batches", STABLE): "FOR UPDATE",
    # A stable function would use the snapshot of the calling statement. The functions that claims, heads, keys and
    # limits rely on need a newer one, taken after the rows were locked.
    ("_due_queues", STABLE): "claims rely on it",
    ("_circle", STABLE): "sees the jobs that its own call has inserted",
    ("_parents_among", STABLE): "sees what was committed until a completion has locked its jobs",
    ("_steps_as_json", STABLE): "sees the steps that were stored until an end has locked its job",
    ("_ended_members", STABLE): "sees the members that ended until the group was locked",
    ("_has_members", STABLE): "sees the members that were added until the group was locked",
    # They run functions or statements that are known at run time only.
    ("_apply_grants", "text type variable is not sanitized"): "rights on objects, named as the catalog names them",
    ("_ask_retry_function", STABLE): "calls a function of the user",
    ("_finish_detaching", STABLE): "changes a table by dynamic SQL",
    ("_live_candidates", "text type variable is not sanitized"): "the conditions that stand in it",
    ("_tidy", STABLE): "deletes rows by dynamic SQL",
    ("_tidy", "text type variable is not sanitized"): "the tables and conditions that stand in it",
    ("_write_options", STABLE): "writes a row by dynamic SQL",
    ("_write_options", "text type variable is not sanitized"): "names of columns, each of them by quote_ident",
    # Called with constants, an immutable one would raise during planning, even if it is never reached.
    ("_refuse", IMMUTABLE): "raises",
    # Their ends cannot be reached.
    ("_cron_next", NO_RETURN): "RETURN alone ends its loop",
    ("_enqueue_staged_others", NO_RETURN): "the handler ends in _refuse, which raises",
    ("_read_filter", NO_RETURN): "the handler ends in _refuse, which raises",
    ("sleep_step", 'name of parameter "for" is reserved keyword'): "public, and quoted wherever it is used",
    ("_find_turns", 'composite OUT variable "draw" is not single argument'): "the draw so far, and what was found",
    ("_run_slice", 'composite OUT variable "run" is not single argument'): "the run so far, and what the slice adds",
    ("_run_step", 'composite OUT variable "run" is not single argument'): "the run so far, and whether it is cut",
    ("explain", 'unmodified OUT variable "job_id"'): "INOUT: it comes back with the answer",
    ("idle", 'name of parameter "for" is reserved keyword'): "public, and quoted wherever it is used",
}  # fmt: skip


@pytest.fixture
def checked(database: Database) -> psycopg.Connection:
    conn = database.connect()
    if conn.execute("select from pg_available_extensions where name = 'plpgsql_check'").fetchone() is None:
        pytest.skip("the server has no plpgsql_check; see make check-sql")
    try:
        conn.execute("create extension plpgsql_check")
    except psycopg.errors.InsufficientPrivilege:
        pytest.skip("only a superuser may create the extension plpgsql_check")
    conn.execute("select pgqueue.stage()")
    return conn


def findings(conn: psycopg.Connection) -> dict[tuple[str, str], str]:
    return {(name, message): details for name, message, details in conn.execute(FINDINGS.encode())}


def test_plpgsql_check_reports_nothing_of_our_functions(checked: psycopg.Connection) -> None:
    found = findings(checked)
    assert {what: details for what, details in found.items() if what not in ALLOWED} == {}


def test_every_allowed_warning_still_occurs(checked: psycopg.Connection) -> None:
    # Another release may report less.
    names = {row[0] for row in checked.execute(
        "select proname::text from pg_proc where pronamespace = 'pgqueue'::regnamespace"
    )}  # fmt: skip
    assert {name for name, _ in ALLOWED} <= names
    if checked.info.server_version // 10000 == 15:
        assert set(ALLOWED) <= set(findings(checked))


@pytest.mark.parametrize(
    ("declared", "body", "message"),
    [
        ("v bigint[] := '{}';", "return cardinality(v);", "target type is different type than source type"),
        ("", "execute 'select ' || p; return 1;", "text type variable is not sanitized"),
        ("", "return (select count(*) from pgqueue.no_such_table);", 'relation "pgqueue.no_such_table" does not exist'),
        ("", "return 1;", 'unused parameter "p"'),
    ],
    ids=["hidden cast", "injection", "no such table", "unused parameter"],
)  # fmt: skip
def test_the_check_reaches_functions_of_ours(
    checked: psycopg.Connection, declared: str, body: str, message: str
) -> None:
    checked.execute(
        "create function pgqueue._wrong(p text) returns integer language plpgsql volatile "
        f"as $$ declare {declared} begin {body} end $$".encode()
    )
    assert ("_wrong", message) in findings(checked)


def test_the_check_reaches_trigger_functions(checked: psycopg.Connection) -> None:
    checked.execute(
        """
        create function pgqueue._wrong() returns trigger language plpgsql volatile
            as $$ begin new.no_such_column := 1; return new; end $$;
        create trigger wrong before insert on pgqueue.tasks for each row execute function pgqueue._wrong()
        """
    )
    assert ("_wrong", 'record "new" has no field "no_such_column"') in findings(checked)
