"""Statements of a job that goes on where it stopped, and of events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pgqueue.db.call import Call, Row, read_first
from pgqueue.db.json import from_json, interval_text, to_json


def steps(job_id: int, reservation: int) -> Call[dict[str, Any] | None]:
    """Read the results of a job's steps by name; None: the job is not held any more.

    For a job that has ended, history keeps the names without the results.
    """
    return Call(
        b"select h.held, s.name, s.result::text from (select pgqueue.hold(%s::bigint, %s::bigint)) h (held)"
        b" left join lateral pgqueue.steps(%s::bigint) s on h.held",
        (job_id, reservation, job_id),
        _by_name,
    )


def complete_step(job_id: int, reservation: int, name: str, result: str) -> Call[bool]:
    """Store the result of a step, JSON text; reads whether the job is still held."""
    return Call(
        b"select pgqueue.complete_step(%s::bigint, %s::bigint, %s::text, %s::text::jsonb)",
        (job_id, reservation, name, result),
        read_first,
    )


def sleep_step(job_id: int, reservation: int, name: str, delay: timedelta | str) -> Call[bool | None]:
    """Sleep as a step; reads whether the time is over, None when the job is not held any more."""
    return Call(
        b"select pgqueue.sleep_step(%s::bigint, %s::bigint, %s::text, %s::interval)",
        (job_id, reservation, name, interval_text(delay)),
        read_first,
    )


def suspend(job_id: int, reservation: int, jobs: Sequence[int]) -> Call[str | None]:
    """Wait for jobs; reads ready, suspended, or None when the job is not held any more."""
    return Call(
        b"select pgqueue.suspend(%s::bigint, %s::bigint, depends_on => %s::bigint[])",
        (job_id, reservation, list(jobs)),
        read_first,
    )


def await_event(
    job_id: int, reservation: int, step: str, event: str, timeout: timedelta | str | None
) -> Call[tuple[bool | None, Any] | None]:
    """Wait for an event; reads (arrived, payload), with arrived None when suspended; None: not held any more."""
    return Call(
        b"select arrived, payload::text"
        b" from pgqueue.await_event(%s::bigint, %s::bigint, %s::text, %s::text, %s::interval)",
        (job_id, reservation, step, event, None if timeout is None else interval_text(timeout)),
        lambda rows: (rows[0][0], _read(rows[0][1])) if rows else None,
    )


def outcomes(jobs: Sequence[int]) -> Call[dict[int, tuple[str | None, Any]]]:
    """Read the state and the result of jobs, by id; state None: history keeps nothing of it."""
    return Call(
        b"select w.id, o.state, o.result::text from unnest(%s::bigint[]) w (id)"
        b" left join lateral pgqueue.outcome(w.id) o on true",
        (list(jobs),),
        lambda rows: {row[0]: (row[1], _read(row[2])) for row in rows},
    )


def emit_event(name: str, payload: object, keep_for: timedelta | str | None) -> Call[bool]:
    """Emit an event; reads False when it had been emitted."""
    values: tuple[object, ...] = (name, to_json(payload, "payload"))
    if keep_for is None:
        return Call(b"select pgqueue.emit_event(%s::text, %s::text::jsonb)", values, read_first)
    return Call(
        b"select pgqueue.emit_event(%s::text, %s::text::jsonb, %s::interval)",
        (*values, interval_text(keep_for)),
        read_first,
    )


def _by_name(rows: list[Row]) -> dict[str, Any] | None:
    if not rows[0][0]:
        return None
    return {name: _read(result) for _, name, result in rows if name is not None}


def _read(text: str | None) -> Any:
    # As text: of a JSON string, a driver's own reading cannot be told from what it has not read.
    return None if text is None else from_json(text)
