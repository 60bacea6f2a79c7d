"""An event trigger of others that fails: partitions cannot be made, and everybody hears why."""

from __future__ import annotations

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import maintain, stats, steps, table, value
from tests.databases import Database

# An audit of DDL that does not qualify its table: with another search_path it is not found.
AUDIT = """
    create table public.ddl_log (tag text);
    create function public.note_ddl() returns event_trigger language plpgsql as
    $$ begin insert into ddl_log values (tg_tag); end $$;
    create event trigger note_ddl on {} execute function public.note_ddl();
"""
SAID = 'relation "ddl_log" does not exist (in '


@pytest.fixture
def conn(database: Database) -> psycopg.Connection:
    conn = database.connect()
    if conn.info.parameter_status("is_superuser") != "on":
        pytest.skip("only a superuser may create an event trigger")
    return conn


@pytest.mark.partitions
def test_the_error_of_an_event_trigger_stands_until_partitions_are_made(conn: psycopg.Connection, clock: Clock) -> None:
    conn.execute(AUDIT.format("ddl_command_end when tag in ('CREATE TABLE')").encode())
    gone = value(conn, "select max(relation::text) from pgqueue._partitions()")
    near = value(conn, "select relation::text from pgqueue._partitions() order by upper limit 1")
    conn.execute(f"set search_path = public; drop table {gone}, {near}".encode())
    # What migrate calls: no worker has run since.
    conn.execute("select pgqueue._make_partitions()")
    for _ in range(4):
        found = {row.topic: row for row in table(conn, "doctor")}
        assert SAID in found["partitions"].evidence
        assert SAID in found["maintenance"].evidence
        assert SAID in stats(conn).maintenance["failures"]["partitions"]["error"]
        clock.advance("10 s")
        maintain(conn)
    assert found["maintenance"].severity == "critical"
    clock.advance("1 min")
    assert SAID in maintain(conn).failing["partitions"]
    conn.execute("alter function public.note_ddl() set search_path = public")
    clock.advance("5 min")
    assert maintain(conn).failing == {}
    assert steps(conn)["partitions"].error is None
    assert {row.topic for row in table(conn, "doctor")} & {"partitions", "maintenance"} == set()


@pytest.mark.partitions
def test_a_lock_that_a_drop_meets_does_not_hide_the_error_of_before(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    conn.execute(AUDIT.format("sql_drop").encode())
    clock.advance("2 days")
    maintain(conn)
    assert SAID in steps(conn)["drop"].error
    reader = database.connect(autocommit=False)
    reader.execute("select count(*) from pgqueue.history")
    clock.advance("1 hour")
    maintain(conn)
    assert SAID in steps(conn)["drop"].error
    assert steps(conn)["drop"].failures == 2
    reader.commit()
    conn.execute("drop event trigger note_ddl")
    clock.advance("1 hour")
    maintain(conn)
    assert steps(conn)["drop"].error is None
