"""Whether the schema could be spread by `queue`, as Citus would: what each table is, and what makes it unique there."""

from __future__ import annotations

import re

import psycopg

from tests.docs.pages import read

# As docs/operate/many-databases.md has it: how each table would be declared.
BY_QUEUE = "distributed by queue"
WITH_JOB = "beside its job"
REFERENCE = "a reference table"
OF_SHARD = "of each shard itself"

# Unique indexes without the queue, of tables that would be distributed, and why each is right on a shard that has a
# queue of its own.
PER_SHARD = {
    "jobs_pkey": "ids are of a shard's own range: id >> 44 is the shard",
    "dedupe_keys_pkey": "a dedupe key goes to the shard of its key, else of its own hash",
    "dependencies_pkey": "parent and child are on one shard: a child goes where its parents are",
    "traces_pkey": "a trace is on the shard of its job, where its children are",
    "steps_pkey": "a step is on the shard of its job",
    "event_waits_pkey": "a wait is on the shard of its job",
    "notes_pkey": "numbers of a shard's own sequence",
    "key_notes_pkey": "numbers of a shard's own sequence",
    "retry_bookings_pkey": "numbers of a shard's own sequence",
}

_TABLES = """
select t.relname::text, i.relname::text,
    array(select a.attname::text from pg_attribute a where a.attrelid = t.oid and a.attnum = any(x.indkey::int2[]))
from pg_class t
left join pg_index x on x.indrelid = t.oid and x.indisunique
left join pg_class i on i.oid = x.indexrelid
where t.relnamespace = 'pgqueue'::regnamespace and t.relkind in ('r', 'p') and not t.relispartition
"""


def declared() -> dict[str, str]:
    """Each table by the page's list, with how it would be declared."""
    rows = re.findall(
        rf"^\| ({BY_QUEUE}|{WITH_JOB}|{REFERENCE}|{OF_SHARD}) \| (.*?) \|", read("docs/operate/many-databases.md"), re.M
    )
    return {table: kind for kind, tables in rows for table in re.findall(r"`(\w+)`", tables)}


def test_the_page_says_of_every_table_how_it_would_be_declared(conn: psycopg.Connection) -> None:
    found = {table for table, *_ in conn.execute(_TABLES.encode()).fetchall()}
    assert declared().keys() == found - {"alembic_version"}


def test_each_unique_index_of_what_would_be_distributed_holds_the_queue_or_is_per_shard(
    conn: psycopg.Connection,
) -> None:
    kinds = declared()
    without = {
        index
        for table, index, columns in conn.execute(_TABLES.encode()).fetchall()
        if kinds.get(table) in (BY_QUEUE, WITH_JOB) and index is not None and "queue" not in columns
    }
    assert without == PER_SHARD.keys()


def test_one_key_runs_once_at_a_time_by_an_index_that_holds_the_queue(conn: psycopg.Connection) -> None:
    rows = conn.execute(
        "select indexdef from pg_indexes where schemaname = 'pgqueue' and tablename = 'jobs'"
        " and indexdef like 'CREATE UNIQUE%key%'"
    ).fetchall()
    assert rows
    assert all("queue" in definition for (definition,) in rows)
