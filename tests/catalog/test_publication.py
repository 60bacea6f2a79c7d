"""A publication for all tables lets no row without a key or a replica identity be updated or deleted.

Change data capture and logical upgrades make one. The main paths run under it in tests/sql: see `Cloner.elsewhere`.
"""

from __future__ import annotations

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, enqueue, ids, maintain, reserve, reserve_one, state, steps, value
from tests.catalog.test_catalog import names

WITHOUT_IDENTITY = """
    select c.relname::text
    from pg_class c
    where c.relnamespace = 'pgqueue'::regnamespace
        and c.relkind in ('r', 'p')
        and c.relpersistence = 'p'
        and c.relreplident <> 'f'
        and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)
"""


@pytest.mark.partitions
def test_every_row_of_every_table_has_an_identity(conn: psycopg.Connection) -> None:
    assert names(conn, WITHOUT_IDENTITY) == []


@pytest.mark.partitions
def test_a_partition_that_is_made_or_attached_later_has_one_too(conn: psycopg.Connection, clock: Clock) -> None:
    gone, detached = names(
        conn, "select relation::text from pgqueue._partitions() where parent = 'pgqueue.history_days'::regclass limit 2"
    )
    conn.execute(f"drop table {gone}".encode())
    conn.execute(f"alter table pgqueue.history_days detach partition {detached}".encode())
    # As it was made by a release before this one.
    conn.execute(f"alter table {detached} replica identity default".encode())
    conn.execute("delete from pgqueue.maintenance_steps where step = 'partitions'")
    maintain(conn)
    assert steps(conn)["partitions"].error is None
    assert (
        value(
            conn, "select count(*) from pgqueue._partitions() where relation = any (%s::regclass[])", [gone, detached]
        )
        == 2
    )
    assert names(conn, WITHOUT_IDENTITY) == []


def test_under_a_publication_a_lost_job_comes_back_and_an_ended_one_is_retried_and_deleted(
    conn: psycopg.Connection, clock: Clock
) -> None:
    if conn.info.parameter_status("is_superuser") != "on":
        pytest.skip("only a superuser may publish all tables")
    conn.execute("create publication everything for all tables")
    ended = enqueue(conn, "ended", max_attempts=1)
    for _ in range(2):
        held = reserve_one(conn)
        call(conn, "fail", held.id, held.reservation, Jsonb({"message": "no"}))
        assert state(conn, ended) == "dead"
        call(conn, "retry", ended)
    held = reserve_one(conn)
    call(conn, "fail", held.id, held.reservation, Jsonb({"message": "no"}))
    assert call(conn, "delete", ended)
    call(conn, "set_limit", "queue", "default", rate=100, per="1 s")
    lost = enqueue(conn, "lost", queue="default")
    assert ids(reserve(conn, lease="1 s")) == [lost]
    # Every table of ours has rows to change by then: lanes, starts under a rate, promises.
    conn.execute("insert into pgqueue.lease_promises values (%s, 0, pgqueue._clock(), '1 s')", [lost])
    for _ in range(4):
        clock.advance("2 hours")
        maintain(conn)
    assert {name: step.error for name, step in steps(conn).items() if step.error} == {}
    assert ids(reserve(conn)) == [lost]
    assert value(conn, "select count(*) from pgqueue.lease_promises") == 0
