"""Statements that bound a session, and end one."""

from __future__ import annotations

from pgqueue.db.call import Call, read_nothing


def limit_statement(seconds: float) -> Call[tuple[int, int]]:
    """Bound each further statement of this transaction; reads its session: process id, and begin in microseconds."""
    return Call(
        b"select pg_backend_pid(), (extract(epoch from now()) * 1000000)::bigint,"
        b" set_config('statement_timeout', %s::text, true)",
        (f"{seconds:g}s",),
        lambda rows: (rows[0][0], rows[0][1]),
    )


def end_session(process_id: int, began: int) -> Call[None]:
    """End the session that has this transaction open, if it still has."""
    return Call(
        b"select pg_terminate_backend(a.pid) from pg_stat_activity a"
        b" where a.pid = %s::integer and (extract(epoch from a.xact_start) * 1000000)::bigint = %s::bigint",
        (process_id, began),
        read_nothing,
    )
