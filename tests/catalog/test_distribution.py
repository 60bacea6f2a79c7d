"""Whether the schema could be spread by `queue`, as Citus would: each unique index holds it, or is per shard."""

from __future__ import annotations

import psycopg

# Unique indexes without the column, and why each is right on a shard that has a queue of its own.
PER_SHARD = {
    "jobs_pkey": "ids are of a shard's own range: id >> 44 is the shard",
    "history_pkey": "ids are of a shard's own range",
    "dedupe_keys_pkey": "a dedupe key goes to the shard of its key, else of its own hash",
}

# Tables whose rows are of one job, and so on its shard; or of the shard itself: its workers, its maintenance.
_UNIQUE = """
select t.relname::text, i.relname::text,
    array(select a.attname::text from pg_attribute a where a.attrelid = t.oid and a.attnum = any(x.indkey::int2[]))
from pg_index x
join pg_class i on i.oid = x.indexrelid
join pg_class t on t.oid = x.indrelid
where t.relnamespace = 'pgqueue'::regnamespace and x.indisunique and not t.relispartition
    and t.relname in ('jobs', 'history', 'dedupe_keys', 'queues', 'lanes', 'heads', 'idle_workers', 'samples')
"""


def test_each_unique_index_of_what_would_be_distributed_holds_the_queue_or_is_per_shard(
    conn: psycopg.Connection,
) -> None:
    found = conn.execute(_UNIQUE.encode()).fetchall()
    assert {"jobs"} <= {table for table, _, _ in found}
    without = {index for _, index, columns in found if not {"queue", "name"} & set(columns)}
    assert without <= PER_SHARD.keys() | _by_sequence(conn)
    # Whatever is said here is so.
    assert PER_SHARD.keys() - {"history_pkey"} <= {index for _, index, _ in found}


def _by_sequence(conn: psycopg.Connection) -> set[str]:
    """Unique indexes on numbers that a sequence of the shard gives, which no other shard reads."""
    rows = conn.execute(
        """
        select i.relname::text
        from pg_index x
        join pg_class i on i.oid = x.indexrelid
        join pg_class t on t.oid = x.indrelid
        join pg_attribute a on a.attrelid = t.oid and a.attnum = x.indkey[0]
        where t.relnamespace = 'pgqueue'::regnamespace and x.indisunique and x.indnatts = 1 and a.attidentity <> ''
            and t.relname <> 'jobs'
        """
    ).fetchall()
    return {name for (name,) in rows}


def test_one_key_runs_once_at_a_time_by_an_index_that_holds_the_queue(conn: psycopg.Connection) -> None:
    rows = conn.execute(
        "select indexdef from pg_indexes where schemaname = 'pgqueue' and tablename = 'jobs'"
        " and indexdef like 'CREATE UNIQUE%key%'"
    ).fetchall()
    assert rows
    assert all("queue" in definition for (definition,) in rows)
