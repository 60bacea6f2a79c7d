"""Waiting jobs of other queues in PostgreSQL: read and locked, then deleted once they are enqueued here."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import orjson
import psycopg
from psycopg import sql
from psycopg.rows import dict_row


@dataclass(frozen=True, slots=True)
class Source:
    """Another queue.

    schema   where its tables are by default
    table    the table of its jobs, which must exist; for pgmq, one for each queue
    waiting  selects and locks its waiting jobs, in the order of their ids, those after %(after)s, at most %(most)s:
             id, task, payload, and options of enqueue
    live     counts the jobs that wait or run; those that are not read run there, or another session has locked them
    """

    name: str
    schema: str
    table: str
    waiting: str
    live: str


PROCRASTINATE = Source(
    "procrastinate",
    "public",
    "procrastinate_jobs",
    # Jobs of one `lock` run one at a time, in order. A higher priority runs first, as here.
    """
    select j.id, j.task_name as task, j.args::text as payload, j.queue_name as queue,
        nullif(least(greatest(j.priority, -100), 100), 0) as priority, j.scheduled_at as run_at, j.lock as key,
        j.queueing_lock as dedupe, null::integer as max_attempts, null::jsonb as headers
    from {table} j
    where j.status = 'todo' and j.id > %(after)s
    order by j.id limit %(most)s for update of j skip locked
    """,
    "select count(*) from {table} j where j.status in ('todo', 'doing')",
)

PGQUEUER = Source(
    "pgqueuer",
    "public",
    "pgqueuer",
    """
    select j.id, j.entrypoint as task, j.payload, null::text as queue,
        nullif(least(greatest(j.priority, -100), 100), 0) as priority,
        case when j.execute_after > now() then j.execute_after end as run_at, null::text as key,
        j.dedupe_key as dedupe, null::integer as max_attempts, j.headers::text as headers
    from {table} j
    where j.status = 'queued' and j.id > %(after)s
    order by j.id limit %(most)s for update of j skip locked
    """,
    "select count(*) from {table} j where j.status in ('queued', 'picked')",
)

GRAPHILE_WORKER = Source(
    "graphile-worker",
    "graphile_worker",
    "_private_jobs",
    # A named queue runs one job at a time, and becomes a key here. There a lower priority runs first, here a higher
    # one.
    """
    select j.id, t.identifier as task, j.payload::text as payload, null::text as queue,
        nullif(least(greatest(-j.priority, -100), 100), 0) as priority,
        case when j.run_at > now() then j.run_at end as run_at, q.queue_name as key, j.key as dedupe,
        j.max_attempts - j.attempts as max_attempts, null::jsonb as headers
    from {table} j
    join {schema}._private_tasks t on t.id = j.task_id
    left join {schema}._private_job_queues q on q.id = j.job_queue_id
    where j.locked_at is null and j.attempts < j.max_attempts and j.id > %(after)s
    order by j.id limit %(most)s for update of j skip locked
    """,
    "select count(*) from {table} j where j.locked_at is not null or j.attempts < j.max_attempts",
)

PGMQ = Source(
    "pgmq",
    "pgmq",
    "",
    # A read message is invisible while a consumer works on it; an unread one, because it was sent with a delay.
    """
    select j.msg_id as id, %(queue)s::text as task, j.message::text as payload, null::text as queue,
        null::integer as priority, case when j.vt > now() then j.vt end as run_at, null::text as key,
        null::text as dedupe,
        null::integer as max_attempts, j.headers::text as headers
    from {table} j
    where (j.vt <= now() or j.read_ct = 0) and j.msg_id > %(after)s
    order by j.msg_id limit %(most)s for update of j skip locked
    """,
    "select count(*) from {table} j",
)


class Reader:
    """Reads the waiting jobs of one table of a source, in the connection's transaction."""

    def __init__(
        self, connection: psycopg.Connection[Any], source: Source, schema: str | None = None, queue: str | None = None
    ) -> None:
        self._connection = connection
        self._source = source
        self._queue = queue
        self._schema = schema or source.schema
        self.table = source.table or f"q_{queue}"
        self._id = "msg_id" if source is PGMQ else "id"
        self._after = 0
        self._live = 0
        self._read = 0

    def exists(self) -> bool:
        """Return whether the table exists."""
        row = self._connection.execute(
            "select to_regclass(format('%%I.%%I', %s::text, %s::text)) is not null", [self._schema, self.table]
        ).fetchone()
        return bool(row and row[0])

    def count(self) -> None:
        """Count the jobs that wait or run, before the first are read."""
        row = self._connection.execute(self._written(self._source.live)).fetchone()
        self._live = int(row[0]) if row else 0

    def others(self) -> int:
        """Return how many of the counted jobs were not read: they run now, or another session has locked them."""
        # More have come since.
        return max(self._live - self._read, 0)

    def next(self, most: int = 1000) -> list[tuple[int, dict[str, Any]]]:
        """Lock and return the next waiting jobs: the id of each there, and the job for `enqueue_batch`."""
        with self._connection.cursor(row_factory=dict_row) as cursor:
            given = {"after": self._after, "most": most, "queue": self._queue}
            # Binary: no style of the session changes how a time is read.
            rows = cursor.execute(self._written(self._source.waiting), given, binary=True).fetchall()
        if rows:
            self._after = rows[-1]["id"]
            self._read += len(rows)
        return [(row.pop("id"), _job(row)) for row in rows]

    def delete(self, ids: list[int]) -> None:
        """Delete jobs that were moved."""
        text = sql.SQL("delete from {} where {} = any(%s)").format(self._table(), sql.Identifier(self._id))
        self._connection.execute(text, [ids])

    def _table(self) -> sql.Composable:
        return sql.Identifier(self._schema, self.table)

    def _written(self, text: str) -> sql.Composed:
        schema = sql.Identifier(self._schema)
        return sql.SQL(text).format(table=self._table(), schema=schema)


def _job(row: Mapping[str, Any]) -> dict[str, Any]:
    options = {name: value for name, value in row.items() if name != "payload" and value is not None}
    if "headers" in options:
        options["headers"] = orjson.Fragment(options["headers"])
    return {**options, "args": _args(row["payload"])}


def _args(payload: str | bytes | None) -> object:
    """Return a payload as arguments: an object as it is, anything else as the argument `payload`.

    JSON stays the text that it is: Python would round numbers of more than 17 digits.
    """
    if isinstance(payload, bytes):
        # JSON has no zero byte, and PostgreSQL's texts neither.
        if b"\0" in payload:
            return {"payload_base64": base64.b64encode(payload).decode()}
        try:
            payload = payload.decode()
            # A payload that PostgreSQL does not accept as JSON is a text.
            json.loads(payload, parse_constant=_refuse)
        except UnicodeDecodeError:
            return {"payload_base64": base64.b64encode(cast(bytes, payload)).decode()}
        except (ValueError, RecursionError):
            return {"payload": payload}
    if payload is None or payload.strip() == "null":
        return {}
    return orjson.Fragment(payload if payload.lstrip().startswith("{") else f'{{"payload": {payload}}}')


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
