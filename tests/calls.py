"""Calls of the queue's functions, as any client makes them: SQL text and parameters, nothing else.

call(conn, "enqueue", "send_email", Jsonb({"to": "a@b.c"}), delay="2 hours")   # the one value
table(conn, "reserve", "w", 10)                                                # rows, as objects
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

Row = Any


def call(conn: psycopg.Connection, function: str, *args: Any, **named: Any) -> Any:
    """Call a function of the schema and return the first value of its first row (None without rows)."""
    row = conn.execute(_query(function, args, named), [*args, *named.values()]).fetchone()
    return row[0] if row else None


def column(conn: psycopg.Connection, function: str, *args: Any, **named: Any) -> list[Any]:
    """Call a set-returning function and return the first column."""
    return [row[0] for row in conn.execute(_query(function, args, named), [*args, *named.values()])]


def table(conn: psycopg.Connection, function: str, *args: Any, **named: Any) -> list[Row]:
    """Call a set-returning function and return its rows."""
    with conn.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute(_query(function, args, named), [*args, *named.values()]).fetchall()


def value(conn: psycopg.Connection, query: str, *params: Any) -> Any:
    """Run a query and return the first value of its first row (None without rows)."""
    row = conn.execute(query.encode(), params or None).fetchone()
    return row[0] if row else None


def within(conn: psycopg.Connection, function: str, call: str, *arguments: object) -> None:
    """Calls a private function with the settings of the one that calls it."""
    with conn.transaction():
        conn.execute(
            "select set_config(split_part(s, '=', 1), split_part(s, '=', 2), true)"
            " from pg_proc p cross join lateral unnest(p.proconfig) s where p.oid = %s::regproc",
            [f"pgqueue.{function}"],
        )
        conn.execute(f"select {call}".encode(), arguments)


def enqueue(conn: psycopg.Connection, task: str = "t", args: Any = None, **options: Any) -> int:
    """Enqueue one job and return its id."""
    job_id: int = call(conn, "enqueue", task, Jsonb(args or {}), **options)
    return job_id


def enqueue_many(conn: psycopg.Connection, count: int, task: str = "t", **options: Any) -> list[int]:
    """Enqueue `count` jobs with args {"i": 0}, {"i": 1}, ... and return their ids."""
    return column(conn, "enqueue_many", task, [Jsonb({"i": i}) for i in range(count)], **options)


def reserve(conn: psycopg.Connection, max_jobs: int = 1, worker: str = "w", **options: Any) -> list[Row]:
    """Reserve up to `max_jobs` and return the rows."""
    return table(conn, "reserve", worker, max_jobs, **options)


def reserve_one(conn: psycopg.Connection, worker: str = "w", **options: Any) -> Row:
    """Reserve one job, which must be there."""
    [job] = reserve(conn, 1, worker, **options)
    return job


def ids(rows: list[Row]) -> list[int]:
    return [row.id for row in rows]


def pairs(rows: list[Row]) -> tuple[list[int], list[int]]:
    """What extend, release and complete_many take: ids, and their reservations."""
    return [row.id for row in rows], [row.reservation for row in rows]


def job(conn: psycopg.Connection, job_id: int) -> Row:
    """The job as all_jobs shows it; None if it is nowhere."""
    with conn.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute("select * from pgqueue.all_jobs where id = %s", [job_id]).fetchone()


def state(conn: psycopg.Connection, job_id: int) -> str | None:
    found = job(conn, job_id)
    return found.state if found else None


def maintain(conn: psycopg.Connection) -> Row:
    """Run maintain until each step that is due had its turn, which on a busy machine may take another run.

    A server runs a step that took long more rarely; a test does not, for its clock may stand. Returns the row of the
    first.
    """
    [row] = table(conn, "maintain")
    while value(conn, "select exists (select from pgqueue._last_steps() l where l.missed_since is not null)"):
        table(conn, "maintain")
    conn.execute(
        """
        insert into pgqueue.maintenance_steps overriding user value
        select s.*
        from pgqueue._last_steps() l
        join pgqueue._maintenance_steps() m on m.step = l.step
        cross join jsonb_populate_record(l, jsonb_build_object('next_at', l.at + m.every)) s
        where l.failures = 0 and l.next_at > l.at + m.every
        """
    )
    return row


def stay_idle(conn: psycopg.Connection, worker: str) -> None:
    """Let a worker be idle for an hour longer, unless the clock of the test stands: its 5 s race a busy machine."""
    conn.execute(
        "update pgqueue.idle_workers set until = until + interval '1 hour'"
        " where worker = %s and pgqueue._clock() between clock_timestamp() - interval '1 min' and clock_timestamp()",
        [worker],
    )


def steps(conn: psycopg.Connection) -> dict[str, Row]:
    """What each step of maintain left for its next run, by the name of the step."""
    with conn.cursor(row_factory=namedtuple_row) as cursor:
        return {row.step: row for row in cursor.execute("select * from pgqueue._last_steps()").fetchall()}


def stats(conn: psycopg.Connection) -> SimpleNamespace:
    return SimpleNamespace(**call(conn, "stats"))


def _query(function: str, args: tuple[Any, ...], named: dict[str, Any]) -> sql.Composed:
    arguments = [sql.SQL("%s")] * len(args)
    arguments += [sql.SQL("{} => %s").format(sql.Identifier(name)) for name in named]
    return sql.SQL("select * from pgqueue.{}({})").format(sql.Identifier(function), sql.SQL(", ").join(arguments))
