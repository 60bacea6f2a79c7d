"""Statements that say what may start: limits, shares of tenants, pauses, throttles and breakers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pgqueue.db.call import Call, read_column, read_first


def set_limit(
    kind: str,
    target: str,
    max_executing: int | None,
    rate: int | None,
    per: timedelta | str | None,
    max_cost: int | None = None,
    burst: int | None = None,
) -> Call[bool]:
    """Limit how many jobs, or units of their costs, execute or start; reads whether anything changed."""
    return Call(
        b"select pgqueue.set_limit(%s::text, %s::text, max_executing => %s::integer, rate => %s::integer,"
        b" per => %s::interval, max_cost => %s::integer, burst => %s::integer)",
        (kind, target, max_executing, rate, per, max_cost, burst),
        read_first,
    )


def drop_limit(kind: str, target: str, part: str | None = None) -> Call[bool]:
    """Remove a limit, or one `part` of it (max_executing, rate, max_cost or burst); reads whether there was one."""
    return Call(b"select pgqueue.drop_limit(%s::text, %s::text, %s::text)", (kind, target, part), read_first)


def set_share(limit_key: str, weight: int | None) -> Call[bool]:
    """Set how many jobs a tenant of a fair queue starts in its turn; reads whether anything changed."""
    return Call(b"select pgqueue.set_share(%s::text, weight => %s::integer)", (limit_key, weight), read_first)


def shares() -> Call[list[dict[str, Any]]]:
    """Read the shares of tenants that are set."""
    sql = b"select pgqueue.legible(to_jsonb(s) - 'n') from pgqueue.shares s order by s.limit_key"
    return Call(sql, (), read_column)


def pause(kind: str, target: str, lasts: timedelta | str | None, reason: str | None) -> Call[bool]:
    """Pause a queue, a task or a limit_key for a time, or until it is resumed; reads whether anything changed."""
    return Call(
        # An error names the option by the comment.
        b"select pgqueue.pause(%s::text, %s::text, pgqueue._clock() + /* for => */ %s::interval, %s::text)",
        (kind, target, lasts, reason),
        read_first,
    )


def resume(kind: str, target: str, source: str = "operator") -> Call[bool]:
    """End a pause, a throttle or the pause of a breaker; reads whether anything changed."""
    return Call(b"select pgqueue.resume(%s::text, %s::text, %s::text)", (kind, target, source), read_first)


def throttle(kind: str, target: str, delay: timedelta | str, reason: str | None) -> Call[bool]:
    """Start nothing of a queue, a task or a limit_key for a time; reads whether anything changed."""
    return Call(
        b"select pgqueue.throttle(%s::text, %s::text, delay => %s::interval, reason => %s::text)",
        (kind, target, delay, reason),
        read_first,
    )


def set_breaker(
    kind: str, target: str, failures: float | None, of: int | None, pause: timedelta | str | None
) -> Call[bool]:
    """Stop a task or a limit_key where too many attempts fail; reads whether anything changed. None: as it is set, else
    0.5, 20 and 30 s."""
    return Call(
        b"select pgqueue.set_breaker(%s::text, %s::text, failures => %s::double precision, of => %s::integer,"
        b" pause => %s::interval)",
        (kind, target, failures, of, pause),
        read_first,
    )


def has_breaker(kind: str, target: str) -> Call[bool]:
    """Read whether a breaker counts for this task or limit_key: its own, or that of a prefix*."""
    return Call(
        b"select exists (select from pgqueue.breakers b, (values (%s::text, %s::text)) g (kind, target)"
        b" where b.kind = g.kind and (b.target = g.target or (b.kind = 'limit_key' and right(b.target, 1) = '*'"
        b" and starts_with(g.target, left(b.target, -1)))))",
        (kind, target),
        read_first,
    )


def remove_breaker(kind: str, target: str) -> Call[bool]:
    """Remove a breaker; reads whether there was one."""
    return Call(b"select pgqueue.remove_breaker(%s::text, %s::text)", (kind, target), read_first)


def pause_queue(queue: str, reason: str | None = None, lasts: timedelta | str | None = None) -> Call[bool]:
    """Pause a queue for a time, or until it is resumed; reads whether anything changed."""
    if reason is not None or lasts is not None:
        return pause("queue", queue, lasts, reason)
    return Call(b"select pgqueue.pause_queue(%s::text)", (queue,), read_first)


def resume_queue(queue: str) -> Call[bool]:
    """Resume a paused queue; reads whether anything changed."""
    return Call(b"select pgqueue.resume_queue(%s::text)", (queue,), read_first)
