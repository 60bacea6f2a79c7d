"""How much WAL does a job write over its whole life? 100 bytes of args, full-page images left out.

It reads the log itself, with pg_walinspect (PostgreSQL 15 and newer; the role must be allowed to create it).
"""

from __future__ import annotations

from typing import cast

import psycopg

from .harness import Bound, Connection, Report, Server

_JOBS = 5_000
_BATCH = 100
_ARGS = '{"to": "someone@example.com", "subject": "A subject of a mail", "template": "welcome", "lang": "en-GB"}'
_KEPT, _NOT_KEPT = "history kept", "no history"
# Of the retention and of the bound in bytes.
_WAYS = {_KEPT: ("1 day", 1500), _NOT_KEPT: ("0", 1100)}
_SHOWN = 12

_RECORDS = """
with records as (
    select
        w.resource_manager || ' ' || w.record_type as record,
        coalesce(
            (
                select string_agg(distinct c.relname, ', ')
                from regexp_matches(w.block_ref, 'rel [0-9]+/[0-9]+/([0-9]+)', 'g') m
                join pg_class c on pg_relation_filenode(c.oid) = m[1]::oid
            ),
            ''
        ) as relation,
        w.record_length - w.fpi_length as bytes
    from pg_get_wal_records_info(%s, %s) w
)
select regexp_replace(r.relation, '_[0-9]{8}', ''), r.record, count(*), sum(r.bytes)::bigint
from records r
group by 1, 2
"""


def run(server: Server) -> Report:
    found = {way: _life(server, retention) for way, (retention, _) in _WAYS.items()}
    totals = {way: sum(size for _, size in records.values()) for way, records in found.items()}
    first = sorted(found[_KEPT], key=lambda record: -found[_KEPT][record][1])[:_SHOWN]
    rows = [
        (
            " ".join(record).strip(),
            f"{found[_KEPT][record][0]:.2f}",
            *(f"{found[way].get(record, (0, 0))[1]:.0f}" for way in _WAYS),
        )
        for record in first
    ]
    return Report(
        f"wal: bytes of WAL for each of {_JOBS:,} jobs, enqueued one by one, reserved and completed by {_BATCH}",
        ("relation and record", "records", *_WAYS),
        [*rows, ("all", "", *(f"{total:.0f}" for total in totals.values()))],
        {way: {"bytes_per_job": total} for way, total in totals.items()},
        [
            Bound(f"bytes of WAL per job, {way}", totals[way], limit, is_ratio=False)
            for way, (_, limit) in _WAYS.items()
        ],
    )


def _life(server: Server, retention: str) -> dict[tuple[str, str], tuple[float, float]]:
    """Read for each (relation, record) how many a job writes, and how many bytes."""
    with server.database("wal") as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create extension pg_walinspect")
        connection.execute("update pgqueue.settings set retention_succeeded = %s::interval", (retention,))
        connection.execute("select pgqueue.maintain()")
        start = _position(connection)
        for _ in range(_JOBS):
            connection.execute("select pgqueue.enqueue('send_email', %s::jsonb)", (_ARGS,))
        for _ in range(0, _JOBS, _BATCH):
            held = connection.execute(
                "select array_agg(id), array_agg(reservation) from pgqueue.reserve('bench', %s)", (_BATCH,)
            ).fetchone()
            connection.execute("select count(*) from pgqueue.complete_many(%s::bigint[], %s::bigint[])", held)
        records = connection.execute(_RECORDS, (start, _position(connection))).fetchall()
    return {
        (str(relation), str(record)): (cast(int, n) / _JOBS, cast(int, size) / _JOBS)
        for relation, record, n, size in records
    }


def _position(connection: Connection) -> object:
    [position] = connection.execute("select pg_current_wal_flush_lsn()").fetchone() or [None]
    return position
