"""How much WAL does a job write over its whole life? Full-page images left out.

Two sizes of args; reserved and completed by the hundred, or one by one, which is two commits more for each job.
It reads the log itself, with pg_walinspect (PostgreSQL 15 and newer; the role must be allowed to create it).
"""

from __future__ import annotations

from typing import NamedTuple, cast

import psycopg

from .harness import Bound, Connection, Report, Server

_JOBS = 5_000
_BATCH = 100
_ARGS = '{"to": "someone@example.com", "subject": "A subject of a mail", "template": "welcome", "lang": "en-GB"}'
_LONG_ARGS = _ARGS[:-1] + f', "url": "https://example.com/{"y" * 56}"}}'
_KEPT, _NOT_KEPT = "history kept", "no history"


class _Way(NamedTuple):
    """`limit`: the bound in bytes of a job, where there is one."""

    retention: str = "1 day"
    args: str = _ARGS
    batch: int = _BATCH
    limit: int | None = None


_WAYS = {
    _KEPT: _Way(limit=1500),
    _NOT_KEPT: _Way(retention="0", limit=1100),
    f"args of {len(_LONG_ARGS)} bytes": _Way(args=_LONG_ARGS),
    f"args of {len(_LONG_ARGS)} bytes, one by one": _Way(args=_LONG_ARGS, batch=1),
}
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
    found = {name: _life(server, way) for name, way in _WAYS.items()}
    totals = {way: sum(size for _, size in records.values()) for way, records in found.items()}
    first = sorted(found[_KEPT], key=lambda record: -found[_KEPT][record][1])[:_SHOWN]
    rows = [
        (
            " ".join(record).strip(),
            f"{found[_KEPT][record][0]:.2f}",
            *(f"{found[name].get(record, (0, 0))[1]:.0f}" for name in _WAYS),
        )
        for record in first
    ]
    return Report(
        f"wal: bytes of WAL for each of {_JOBS:,} jobs, enqueued one by one, reserved and completed by {_BATCH},"
        f" args of {len(_ARGS)} bytes, where nothing else is said",
        ("relation and record", "records", *_WAYS),
        [*rows, ("all", "", *(f"{total:.0f}" for total in totals.values()))],
        {way: {"bytes_per_job": total} for way, total in totals.items()},
        [
            Bound(f"bytes of WAL per job, {name}", totals[name], way.limit, is_ratio=False)
            for name, way in _WAYS.items()
            if way.limit is not None
        ],
    )


def _life(server: Server, way: _Way) -> dict[tuple[str, str], tuple[float, float]]:
    """Read for each (relation, record) how many a job writes, and how many bytes."""
    with server.database("wal") as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create extension pg_walinspect")
        connection.execute("update pgqueue.settings set retention_succeeded = %s::interval", (way.retention,))
        connection.execute("select pgqueue.maintain()")
        start = _position(connection)
        for _ in range(_JOBS):
            connection.execute("select pgqueue.enqueue('send_email', %s::jsonb)", (way.args,))
        for _ in range(0, _JOBS, way.batch):
            held = connection.execute(
                "select array_agg(id), array_agg(reservation) from pgqueue.reserve('bench', %s)", (way.batch,)
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
