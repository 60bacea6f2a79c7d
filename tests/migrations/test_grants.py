"""Who may do what, asked of the database for every function and table there is."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgqueue.schema import bundled
from pgqueue.schema.migrate import migrate
from tests.calls import call, enqueue, ids, reserve, value
from tests.databases import Database
from tests.facts import wait_until

ANYONE = {"version", "depth", "wanted", "_clock"}
PRODUCER = (
    ANYONE
    | {"enqueue", "enqueue_many", "enqueue_outcome", "enqueue_batch", "enqueue_all", "stage", "enqueue_staged"}
    | {
        "open_group",
        "close_group",
        "emit_event",
    }
)
# What a job waits for, its steps, and the members of its group.
RELATED = {"parents", "children", "members", "group_progress", "steps"}
WORKER = (
    ANYONE
    | RELATED
    | {
        "complete_step",
        "share_steps",
        "legible",
        "sleep_step",
        "suspend",
        "await_event",
        "emit_event",
        "reserve",
        "complete",
        "complete_many",
        "fail",
        "fail_many",
        "exchange",
        "extend",
        "release",
        "release_unheld",
        "held_by",
        "claim_name",
        "next_attempts",
        "snooze",
        "spent",
        "throttle",
        "throttled",
        "paused_of",
        "started",
        "crashed",
        "progress",
        "write_log",
        "hold",
        "is_wanted",
        "outcome",
        "hello",
        "beat",
        "bye",
        "idle",
        "awake",
        "worker_command",
        "maintain",
        "declare_task",
        "schedule",
        "cron_next",
    }
)
# The views effective_schedules and manual call the private ones, with the rights of their reader.
READER = (
    ANYONE
    | RELATED
    | {
        "events",
        "legible",
        "stats",
        "search",
        "search_oldest",
        "search_due",
        "groups",
        "dead_groups",
        "dead_lines",
        "retry_fates",
        "queue_facets",
        "doctor",
        "why_late",
        "job_log",
        "metrics",
        "explain",
        "cron_next",
        "outcome",
        "next_attempts",
        "_schedule_rule",
        "_executing_jobs",
        "_who_may_call",
    }
)
OPERATING = (
    {"pause", "resume"}
    | {"delete_events", "cancel", "retry", "delete", "pause_queue", "resume_queue", "release_from_parents"}
    | {
        "unschedule",
        "pause_schedule",
        "resume_schedule",
        "run_schedule_now",
        "configure_schedule",
        "quiet_worker",
        "resume_worker",
        "stop_worker",
        "kill_worker",
        "run_now_many",
        "kill_many",
        "ask_stack",
        "update_job",
        "update_many",
        "cancel_many",
        "delete_many",
        "retry_many",
        "purge_queue",
        "configure_task",
        "configure_queue",
        "set_limit",
        "set_share",
        "drop_limit",
        "set_breaker",
        "remove_breaker",
    }
)
FUNCTIONS = {
    "producer": PRODUCER,
    "worker": WORKER,
    "reader": READER,
    "operator": PRODUCER | WORKER | READER | OPERATING,
}
READABLE = ("all_jobs", "effective_tasks", "queues", "tasks", "limits", "settings", "workers", "samples", "audit")
READABLE += (
    "pauses",
    "shares",
    "breakers",
    "schedules",
    "effective_schedules",
    "schedule_history",
    "worker_status",
    "manual",
    "executing",
    "worker_memory",
    "troubles",
)
# Of lanes the queue alone: its name is known before anything is set for it.
READS = {f"{table}:SELECT" for table in (*READABLE, "lanes")}
WRITES = {f"{table}:{right}" for table in ("queues", "tasks", "limits") for right in ("INSERT", "UPDATE", "DELETE")}
TABLES: dict[str, set[str]] = {
    "producer": set(),
    "worker": set(),
    "reader": READS,
    # Of tasks all columns but retry_function, of schedules those that override the code's.
    "operator": READS | WRITES | {"settings:UPDATE", "schedules:UPDATE"},
}


@pytest.fixture
def role(conn: psycopg.Connection) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex[:12]} role"
    conn.execute(f'create role "{name}"'.encode())
    yield name
    conn.execute("reset role")
    conn.execute(f'drop owned by "{name}"'.encode())
    conn.execute(f'drop role "{name}"'.encode())


def functions(conn: psycopg.Connection, role: str) -> set[str]:
    rows = conn.execute(
        "select proname from pg_proc where pronamespace = 'pgqueue'::regnamespace"
        " and has_function_privilege(%s, oid, 'execute')",
        [role],
    )
    return {row[0] for row in rows}


def tables(conn: psycopg.Connection, role: str) -> set[str]:
    rows = conn.execute(
        "select c.relname || ':' || r.name from pg_class c,"
        " unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) r (name)"
        " where c.relnamespace = 'pgqueue'::regnamespace and c.relkind in ('r', 'p', 'v', 'S')"
        " and case when r.name in ('SELECT', 'INSERT', 'UPDATE') then has_any_column_privilege(%s, c.oid, r.name)"
        " else has_table_privilege(%s, c.oid, r.name) end",
        [role, role],
    )
    return {row[0] for row in rows}


def test_every_public_function_is_for_some_kind_of_role(conn: psycopg.Connection) -> None:
    rows = conn.execute(
        r"select proname from pg_proc where pronamespace = 'pgqueue'::regnamespace and proname not like '\_%'"
    )
    public = {row[0] for row in rows}
    assert public - FUNCTIONS["operator"] == {"grant_access", "revoke_access", "set_retry_function"}


def test_an_operator_overrides_the_operators_options_of_a_schedule(conn: psycopg.Connection, role: str) -> None:
    call(conn, "grant_access", "operator", role)
    columns = conn.execute(
        "select attname from pg_attribute where attrelid = 'pgqueue.schedules'::regclass and attnum > 0"
        " and has_column_privilege(%s, attrelid, attnum, 'update')",
        [role],
    )
    assert {row[0] for row in columns} == {"paused_at", "expression", "timezone"}


def test_a_reader_reads_of_a_lane_only_which_queue_it_is_of(conn: psycopg.Connection, role: str) -> None:
    call(conn, "grant_access", "reader", role)
    columns = conn.execute(
        "select attname from pg_attribute where attrelid = 'pgqueue.lanes'::regclass and attnum > 0"
        " and has_column_privilege(%s, attrelid, attnum, 'select')",
        [role],
    )
    assert {row[0] for row in columns} == {"queue"}


def test_a_role_without_a_grant_may_do_nothing(conn: psycopg.Connection, role: str) -> None:
    assert (functions(conn, role), tables(conn, role)) == (set(), set())
    assert value(conn, "select has_schema_privilege(%s, 'pgqueue', 'usage')", role) is False


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_role_may_do_what_its_kind_says_and_nothing_else(conn: psycopg.Connection, role: str, kind: str) -> None:
    call(conn, "grant_access", kind, role)
    call(conn, "grant_access", kind, role)
    assert functions(conn, role) == FUNCTIONS[kind]
    assert tables(conn, role) == TABLES[kind]
    assert value(conn, "select has_schema_privilege(%s, 'pgqueue', 'create')", role) is False
    assert call(conn, "revoke_access", kind, role) is True
    assert call(conn, "revoke_access", kind, role) is False
    assert (functions(conn, role), tables(conn, role)) == (set(), set())


def test_an_operator_sets_every_option_of_a_task_but_the_function_that_runs_as_the_owner(
    conn: psycopg.Connection, role: str
) -> None:
    # As a role had it from the first release.
    call(conn, "grant_access", "operator", role)
    conn.execute(f'grant insert, update on pgqueue.tasks, pgqueue.settings to "{role}"'.encode())
    conn.execute("select pgqueue._apply_grants()")
    conn.execute(f'set role "{role}"'.encode())
    conn.execute("insert into pgqueue.tasks (name, retry_policy) values ('t', 'sidekiq')")
    conn.execute("update pgqueue.tasks set retry_delays = '{1 s}', declared_queue = 'q'")
    for refused in (
        "update pgqueue.tasks set retry_function = 'public.f'",
        "insert into pgqueue.tasks (name, retry_policy, retry_function) values ('u', 'function', 'public.f')",
        "select pgqueue.set_retry_function('t', 'public.f')",
        # Nor for how long it is recorded what it does.
        "update pgqueue.settings set retention_audit = '1 day'",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(refused.encode())
    with pytest.raises(psycopg.errors.CheckViolation):
        conn.execute("update pgqueue.tasks set retry_policy = 'function'")


def test_taking_back_one_kind_leaves_the_other(conn: psycopg.Connection, role: str) -> None:
    call(conn, "grant_access", "producer", role)
    call(conn, "grant_access", "worker", role)
    assert call(conn, "revoke_access", "worker", role) is True
    assert functions(conn, role) == PRODUCER


def test_a_producer_really_enqueues_and_really_nothing_else(conn: psycopg.Connection, role: str) -> None:
    call(conn, "grant_access", "producer", role)
    conn.execute(f'set role "{role}"'.encode())
    job_id = enqueue(conn)
    for refused in (
        "select * from pgqueue.reserve('w')",
        "select * from pgqueue.jobs",
        "select * from pgqueue.all_jobs",
        "delete from pgqueue.jobs",
        "insert into pgqueue.jobs (task) values ('t')",
        "select pgqueue.cancel(1)",
        "select pgqueue._finish('{1}', '{1}', true, 'succeeded')",
        "select pgqueue.grant_access('operator', current_user)",
        "create table pgqueue.mine ()",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(refused.encode())
    conn.execute("reset role")
    assert ids(reserve(conn)) == [job_id]


def test_a_worker_really_works(conn: psycopg.Connection, role: str) -> None:
    call(conn, "grant_access", "worker", role)
    for _ in range(3):
        enqueue(conn)
    conn.execute(f'set role "{role}"'.encode())
    call(conn, "hello", "w")
    call(conn, "idle", "w")
    first, second, third = reserve(conn, 3)
    assert call(conn, "complete", first.id, first.reservation) is True
    assert call(conn, "fail", second.id, second.reservation) == "failed"
    assert call(conn, "release", [third.id], [third.reservation]) is None
    assert call(conn, "maintain") is True


@pytest.mark.parametrize("changed", ["body", "shape"])
def test_grants_survive_a_reload(
    database: Database,
    conn: psycopg.Connection,
    role: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: str,
) -> None:
    call(conn, "grant_access", "operator", role)
    for name in ("sql", "migrations"):
        shutil.copytree(bundled.directory(name), tmp_path / name)
    monkeypatch.setattr(bundled, "directory", lambda name: tmp_path / name)
    for name, old, new in {
        "body": [("functions/produce/enqueue.sql", "return v_id;", "return v_id + 0;")],
        # Both have to be dropped and created.
        "shape": [
            ("functions/operate/stats.sql", "returns jsonb", "returns json"),
            ("views/effective_tasks.sql", "    t.name,\n", "    t.name, 1 as another,\n"),
        ],
    }[changed]:
        file = tmp_path / "sql" / name
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
    assert migrate(database.dsn).current
    assert functions(conn, role) == FUNCTIONS["operator"]
    assert tables(conn, role) == TABLES["operator"]


def test_two_grants_at_once_wait_for_each_other(database: Database, others: tuple[str, str]) -> None:
    conn = database.connect()
    conn.execute("; ".join(f"create role {name}" for name in others).encode())
    first, second, third = database.session(), database.session(), database.session()
    first.run("begin")
    first.run("select pgqueue.grant_access('worker', %s)", [others[0]])
    granted = second.start("select pgqueue.grant_access('producer', %s)", [others[1]])
    wait_until(lambda: second.waits_behind(first))
    revoked = third.start("select pgqueue.revoke_access('worker', %s)", [others[0]])
    wait_until(lambda: third.waits_behind(first))
    first.run("commit")
    granted.result()
    assert revoked.result() == [(True,)]
    assert not functions(conn, others[0])
    assert "enqueue" in functions(conn, others[1])


def test_a_role_that_is_gone_stops_no_reload_and_can_be_forgotten(conn: psycopg.Connection) -> None:
    name = f"test_{uuid.uuid4().hex[:12]}"
    conn.execute(f"create role {name}".encode())
    call(conn, "grant_access", "reader", name)
    conn.execute(f"drop owned by {name}".encode())
    conn.execute(f"drop role {name}".encode())
    conn.execute("select pgqueue._apply_grants()")
    assert call(conn, "revoke_access", "reader", name) is True
    assert value(conn, "select count(*) from pgqueue.grants") == 0


def test_the_owner_of_the_queue_keeps_the_rights_it_has(conn: psycopg.Connection) -> None:
    owner = value(conn, "select current_user::text")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="owns the queue") as refused:
        call(conn, "grant_access", "operator", owner)
    assert refused.value.diag.message_hint
    assert value(conn, "select count(*) from pgqueue.grants") == 0


@pytest.fixture
def others(conn: psycopg.Connection) -> Iterator[tuple[str, str]]:
    """Two names of roles; the test makes them."""
    names = f"test_{uuid.uuid4().hex[:12]}", f"test_{uuid.uuid4().hex[:12]}"
    yield names
    for name in names:
        if value(conn, "select count(*) from pg_roles where rolname = %s", name):
            conn.execute(f"drop owned by {name}; drop role {name}".encode())


def _says(conn: psycopg.Connection, role: str) -> tuple[str, str]:
    """What doctor reports about a role, and what to do."""
    query = "select evidence, remedy from pgqueue.doctor() where topic = 'rights' and subject = %s"
    return conn.execute(query, [role]).fetchone() or ("", "")


def test_a_renamed_role_keeps_its_rights_and_a_new_one_with_its_old_name_gets_none(
    conn: psycopg.Connection, others: tuple[str, str]
) -> None:
    old, new = others
    conn.execute(f"create role {old}".encode())
    call(conn, "grant_access", "worker", old)
    conn.execute(f"alter role {old} rename to {new}".encode())
    assert f"renamed to {new}" in _says(conn, old)[0]
    conn.execute(f"create role {old}".encode())
    # As an upgrade does it with a function whose shape has changed.
    conn.execute(f"revoke all on function pgqueue.beat from {new}".encode())
    conn.execute("select pgqueue._apply_grants()")
    assert (functions(conn, new), functions(conn, old)) == (WORKER, set())
    assert (_says(conn, old), _says(conn, new)) == (("", ""), ("", ""))
    call(conn, "grant_access", "producer", old)
    assert (functions(conn, new), functions(conn, old)) == (WORKER, PRODUCER)
    assert call(conn, "revoke_access", "worker", old) is False
    assert call(conn, "revoke_access", "worker", new) is True
    assert (functions(conn, new), functions(conn, old)) == (set(), PRODUCER)


def test_a_new_role_with_the_name_of_one_that_is_gone_gets_rights_only_from_a_new_grant(
    conn: psycopg.Connection, others: tuple[str, str]
) -> None:
    name, _ = others
    conn.execute(f"create role {name}".encode())
    call(conn, "grant_access", "producer", name)
    conn.execute(f"drop owned by {name}; drop role {name}; create role {name}".encode())
    conn.execute("select pgqueue._apply_grants()")
    assert functions(conn, name) == set()
    evidence, remedy = _says(conn, name)
    assert "is another one" in evidence
    assert f"select pgqueue.grant_access('producer', '{name}');" in remedy
    call(conn, "grant_access", "producer", name)
    assert functions(conn, name) == PRODUCER
    assert _says(conn, name) == ("", "")


@pytest.mark.parametrize("kinds", [("producer", "reader"), ("worker", "worker"), ("operator", "producer")])
def test_roles_that_exchange_their_names_keep_their_rights(
    conn: psycopg.Connection, others: tuple[str, str], kinds: tuple[str, str]
) -> None:
    first, second = others
    for name, kind in zip(others, kinds, strict=True):
        conn.execute(f"create role {name}".encode())
        call(conn, "grant_access", kind, name)
    exchange = f"alter role {first} rename to {first}_; alter role {second} rename to {first}"
    conn.execute(f"{exchange}; alter role {first}_ rename to {second}".encode())
    evidence, remedy = _says(conn, first)
    assert f"was renamed to {second}: it keeps its rights" in evidence
    assert "is another one" in evidence
    assert f"select pgqueue.grant_access('{kinds[0]}', '{first}');" in remedy
    assert f"select pgqueue.revoke_access('{kinds[0]}', '{second}');" in remedy
    # As an upgrade does it with functions whose shape has changed.
    conn.execute(f"revoke all on all functions in schema pgqueue from {first}, {second}".encode())
    conn.execute("select pgqueue._apply_grants()")
    assert [functions(conn, name) for name in (second, first)] == [FUNCTIONS[kind] for kind in kinds]
    assert [_says(conn, name) for name in others] == [("", ""), ("", "")]
    # What doctor said, for someone who wants the rights to go by the names.
    if kinds[0] != kinds[1]:
        for name, before, now in ((first, *kinds), (second, *reversed(kinds))):
            call(conn, "grant_access", before, name)
            call(conn, "revoke_access", now, name)
        assert [functions(conn, name) for name in others] == [FUNCTIONS[kind] for kind in kinds]


def test_in_a_restored_dump_rights_go_by_the_names(conn: psycopg.Connection, others: tuple[str, str]) -> None:
    first, second = others
    for name, kind in ((first, "producer"), (second, "reader")):
        conn.execute(f"create role {name}".encode())
        call(conn, "grant_access", kind, name)
    # In another cluster each has another oid, and by chance it is the other one's. The table has another one as well.
    conn.execute(
        "update pgqueue.grants g set role_oid = r.oid, recorded_in = g.recorded_in::bigint + 1 from pg_roles r"
        " where r.rolname <> g.role and r.rolname = any (%s)",
        [list(others)],
    )
    conn.execute("select pgqueue._apply_grants()")
    assert (functions(conn, first), functions(conn, second)) == (PRODUCER, READER)
    assert (
        value(
            conn, "select count(*) from pgqueue.grants g join pg_roles r on r.oid = g.role_oid and r.rolname = g.role"
        )
        == 2
    )
