"""Statements of a job that reports progress or continues where it stopped, and of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeAlias

from pgqueue.db.call import Call, Row, T, pairs, read_column, read_first
from pgqueue.db.json import from_json, interval_text, to_json

# The first jobs of the other keys of a call, with their reservations.
Others: TypeAlias = Sequence[tuple[int, int]]


def steps(job_id: int, reservation: int) -> Call[dict[str, Any] | None]:
    """Read the results of a job's steps by name; None: the job is no longer held.

    For a job that has ended, history keeps the names without the results.
    """
    return Call(
        b"select h.held, s.name, s.result::text from (select pgqueue.hold(%s::bigint, %s::bigint)) h (held)"
        b" left join lateral pgqueue.steps(%s::bigint) s on h.held",
        (job_id, reservation, job_id),
        _by_name,
    )


def complete_step(job_id: int, reservation: int, name: str, result: str, others: Others = ()) -> Call[bool]:
    """Store the result of a step, JSON text; reads whether the job is still held."""
    call: Call[bool] = Call(
        b"select pgqueue.complete_step(%s::bigint, %s::bigint, %s::text, %s::text::jsonb) as held",
        (job_id, reservation, name, result),
        read_first,
    )
    return _shared(call, job_id, name, others, b"case when s.held then false end")


def sleep_step(
    job_id: int, reservation: int, name: str, delay: timedelta | float | str, others: Others = ()
) -> Call[bool | None]:
    """Sleep as a step; reads whether the time is over, None when the job is no longer held."""
    call: Call[bool | None] = Call(
        b"select pgqueue.sleep_step(%s::bigint, %s::bigint, %s::text, %s::interval) as over",
        (job_id, reservation, name, interval_text(delay)),
        read_first,
    )
    return _shared(call, job_id, name, others, b"not s.over")


def suspend(job_id: int, reservation: int, jobs: Sequence[int], others: Others = ()) -> Call[str | None]:
    """Wait for jobs; reads ready, suspended, or None when the job is no longer held."""
    call: Call[str | None] = Call(
        b"select pgqueue.suspend(%s::bigint, %s::bigint, depends_on => %s::bigint[]) as state",
        (job_id, reservation, list(jobs)),
        read_first,
    )
    return _shared(call, job_id, None, others, b"s.state = 'suspended'")


def await_event(
    job_id: int, reservation: int, step: str, event: str, timeout: timedelta | float | str | None, others: Others = ()
) -> Call[tuple[bool | None, Any] | None]:
    """Wait for an event; reads (arrived, payload), with arrived None when suspended; None: not held any more."""
    call: Call[tuple[bool | None, Any] | None] = Call(
        b"select arrived, payload::text"
        b" from pgqueue.await_event(%s::bigint, %s::bigint, %s::text, %s::text, %s::interval)",
        (job_id, reservation, step, event, None if timeout is None else interval_text(timeout)),
        lambda rows: (rows[0][0], _read(rows[0][1])) if rows else None,
    )
    return _shared(call, job_id, step, others, b"s.arrived is null")


def _shared(call: Call[T], job_id: int, name: str | None, others: Others, suspended: bytes) -> Call[T]:
    """Give the other keys of a batch the step of the first one; `suspended` is null if its lease is lost."""
    if not others:
        return call
    text = (
        b"select s.*, case when u.yes is not null then"
        b" pgqueue.share_steps(%s::bigint, %s::text, %s::bigint[], %s::bigint[], u.yes)::text end"
        b" from (" + call.text + b") s cross join lateral (select " + suspended + b" offset 0) u (yes)"
    )
    return replace(call, text=text, params=(job_id, name, *pairs(others), *call.params))


def outcomes(jobs: Sequence[int]) -> Call[dict[int, tuple[str | None, Any]]]:
    """Read the states and results of jobs by id; state None: history does not keep the job."""
    return Call(
        b"select w.id, o.state, o.result::text from unnest(%s::bigint[]) w (id)"
        b" left join lateral pgqueue.outcome(w.id) o on true",
        (list(jobs),),
        lambda rows: {row[0]: (row[1], _read(row[2])) for row in rows},
    )


def progress(reports: Sequence[tuple[int, int, float, float | None, str | None]]) -> Call[list[bool]]:
    """Store progress as (id, reservation, done, total, note); reads which jobs are still held."""
    names = ("id", "reservation", "done", "total", "note")
    rows = [dict(zip(names, report, strict=True)) for report in reports]
    # Not arrays: with array_nulls = off they have no nulls.
    return Call(
        b"select pgqueue.progress(w.id, w.reservation, w.done, w.total, w.note)"
        b" from jsonb_to_recordset(%s::text::jsonb)"
        b" w (id bigint, reservation bigint, done float8, total float8, note text)",
        (to_json(rows, "progress"),),
        read_column,
    )


def write_log(lines: Sequence[Mapping[str, object]]) -> Call[int]:
    """Store log lines of jobs: job_id, attempt, at, level, line; reads how many."""
    return Call(b"select pgqueue.write_log(%s::text::jsonb)", (to_json(lines, "lines"),), read_first)


def emit_event(name: str, payload: object, keep_for: timedelta | float | str | None) -> Call[bool]:
    """Emit an event; reads False when it had been emitted."""
    values: tuple[object, ...] = (name, to_json(payload, "payload"))
    if keep_for is None:
        return Call(b"select pgqueue.emit_event(%s::text, %s::text::jsonb)", values, read_first)
    return Call(
        b"select pgqueue.emit_event(%s::text, %s::text::jsonb, %s::interval)",
        (*values, interval_text(keep_for)),
        read_first,
    )


def list_events(prefix: str | None, limit: int, *, by_size: bool) -> Call[list[dict[str, Any]]]:
    """Read events for a list: name, bytes, emitted_at, kept_until."""
    return Call(
        b"select to_jsonb(e) from pgqueue.events(%s::text, %s::integer, by_size => %s::boolean) e",
        (prefix, limit, by_size),
        read_column,
    )


def delete_events(names: Sequence[str] | None, prefix: str | None) -> Call[int]:
    """Delete events by name or by prefix, up to 1,000; reads how many."""
    return Call(
        b"select pgqueue.delete_events(%s::text[], %s::text)",
        (None if names is None else list(names), prefix),
        read_first,
    )


def _by_name(rows: list[Row]) -> dict[str, Any] | None:
    if not rows[0][0]:
        return None
    return {name: _read(result) for _, name, result in rows if name is not None}


def _read(text: str | None) -> Any:
    # As text, because a JSON string that a driver has read cannot be told from one that it has not read.
    return None if text is None else from_json(text)
