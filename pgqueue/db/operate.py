"""Statements of an operator: look at jobs, queues, limits and schedules, and change them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pgqueue.db.call import Call, Row, read_column, read_first, read_maybe_one, read_nothing
from pgqueue.db.json import Document, to_json


def outcome(job_id: int) -> Call[Row | None]:
    """Read (state, result, errors, attempts, finished_at) of a job, or None."""
    return Call(
        b"select state, result, errors, attempts, finished_at from pgqueue.outcome(%s::bigint)",
        (job_id,),
        read_maybe_one,
    )


def stats() -> Call[dict[str, Any]]:
    """Read the numbers of the queue."""
    return Call(b"select pgqueue.stats()", (), read_first)


def cancel(job_id: int) -> Call[str | None]:
    """Cancel a job; reads "cancelled", "requested" or None."""
    return Call(b"select pgqueue.cancel(%s::bigint)", (job_id,), read_first)


def retry(job_id: int) -> Call[bool]:
    """Run a dead, cancelled or failed job now; reads whether there was one."""
    return Call(b"select pgqueue.retry(%s::bigint)", (job_id,), read_first)


def delete(job_id: int) -> Call[bool]:
    """Delete a job that is not executing; reads whether there was one."""
    return Call(b"select pgqueue.delete(%s::bigint)", (job_id,), read_first)


# What may be done to many jobs, and by which filters.
_BULK = {
    "run": "run_now_many",
    "kill": "kill_many",
    "cancel": "cancel_many",
    "delete": "delete_many",
    "retry": "retry_many",
    "purge": "purge_queue",
}


_FILTER_TYPES = {
    "queue": "text",
    "task": "text",
    "key": "text",
    "state": "text",
    "created_after": "timestamptz",
    "created_before": "timestamptz",
    "finished_after": "timestamptz",
    "finished_before": "timestamptz",
    "job_ids": "bigint[]",
    "everything": "boolean",
    "group_id": "bigint",
}


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one bulk call did. `next_after` is where to go on; None: at the end."""

    changed: int
    passed_over: int
    left_over: int
    is_exact: bool
    next_after: object


def bulk(action: str, filters: Mapping[str, object], max_jobs: int, after: object = None) -> Call[Chunk]:
    """Run, kill, cancel, delete, retry or purge up to `max_jobs` jobs; reads how many, and where to go on."""
    given = {name: value for name, value in filters.items() if value is not None}
    named = "".join(f"{name} => %s::{_FILTER_TYPES[name]}, " for name in given)
    return Call(
        f"select changed, passed_over, left_over, is_exact, next_after from pgqueue.{_BULK[action]}"
        f"({named}max_jobs => %s::integer, after => %s::jsonb)".encode(),
        (*given.values(), max_jobs, None if after is None else to_json(after, "after")),
        lambda rows: Chunk(*rows[0]),
    )


def next_attempts(job_ids: Sequence[int]) -> Call[dict[int, datetime]]:
    """Read when failed jobs run again, by id."""
    return Call(b"select job_id, run_at from pgqueue.next_attempts(%s::bigint[])", (list(job_ids),), dict)


def explain(job_id: int) -> Call[dict[str, Any]]:
    """Read why a job is not running: state, reason, detail, until, behind."""
    return Call(b"select to_jsonb(e) from pgqueue.explain(%s::bigint) e", (job_id,), read_first)


def set_limit(
    kind: str, target: str, max_executing: int | None, rate: int | None, per: timedelta | str | None
) -> Call[bool]:
    """Limit what executes, or starts; reads whether that changed anything."""
    return Call(
        b"select pgqueue.set_limit(%s::text, %s::text, %s::integer, %s::integer, %s::interval)",
        (kind, target, max_executing, rate, per),
        read_first,
    )


def drop_limit(kind: str, target: str) -> Call[bool]:
    """Take a limit away; reads whether there was one."""
    return Call(b"select pgqueue.drop_limit(%s::text, %s::text)", (kind, target), read_first)


def pause_queue(queue: str) -> Call[bool]:
    """Hand out no more jobs of a queue; reads whether that changed anything."""
    return Call(b"select pgqueue.pause_queue(%s::text)", (queue,), read_first)


def resume_queue(queue: str) -> Call[bool]:
    """Hand out jobs of a paused queue again; reads whether that changed anything."""
    return Call(b"select pgqueue.resume_queue(%s::text)", (queue,), read_first)


def configure_queue(queue: str, priority: int | None, weight: int | None, reset: Sequence[str]) -> Call[bool]:
    """Set or take back options of a queue; reads whether that changed anything."""
    return Call(
        b"select pgqueue.configure_queue(%s::text, %s::integer, %s::integer, reset => %s::text[])",
        (queue, priority, weight, list(reset)),
        read_first,
    )


def reset_task(task: str, options: Sequence[str]) -> Call[bool]:
    """Take back what an operator set for a task; reads whether that changed anything."""
    return Call(b"select pgqueue.configure_task(%s::text, reset => %s::text[])", (task, list(options)), read_first)


def list_schedules() -> Call[list[dict[str, Any]]]:
    """Read all schedules, the next one due first."""
    return Call(
        b"select to_jsonb(s) from pgqueue.effective_schedules s order by s.next_at nulls last, s.name", (), read_column
    )


def find_schedule(name: str, runs: int) -> Call[Document | None]:
    """Read one schedule and what became of its last runs, newest first."""
    return Call(
        b"select (select jsonb_object_agg(c.key, c.value::text) from jsonb_each("
        b"to_jsonb(s) || jsonb_build_object('args', d.args, 'runs', coalesce(("
        b"select jsonb_agg(to_jsonb(r) order by r.n desc) from ("
        b"select h.* from pgqueue.schedule_history h where h.schedule = s.name order by h.n desc limit %s::integer"
        b") r), '[]'))) c)"
        b" from pgqueue.effective_schedules s join pgqueue.schedules d on d.name = s.name where s.name = %s::text",
        (runs, name),
        _maybe_document,
    )


def pause_schedule(name: str) -> Call[bool]:
    """Let a schedule enqueue nothing; reads whether that changed anything."""
    return Call(b"select pgqueue.pause_schedule(%s::text)", (name,), read_first)


def resume_schedule(name: str) -> Call[bool]:
    """Let a paused schedule go on from now; reads whether that changed anything."""
    return Call(b"select pgqueue.resume_schedule(%s::text)", (name,), read_first)


def run_schedule_now(name: str) -> Call[int | None]:
    """Enqueue one job of a schedule; reads its id, or None where there is no such schedule."""
    return Call(b"select pgqueue.run_schedule_now(%s::text)", (name,), read_first)


def unschedule(name: str) -> Call[bool]:
    """Remove a schedule; reads whether there was one."""
    return Call(b"select pgqueue.unschedule(%s::text)", (name,), read_first)


def grant_access(kind: str, role: str) -> Call[None]:
    """Let a role use the queue."""
    return Call(b"select pgqueue.grant_access(%s::text, %s::name)", (kind, role), read_nothing)


def revoke_access(kind: str, role: str) -> Call[bool]:
    """Take back what grant_access gave; reads whether there was anything."""
    return Call(b"select pgqueue.revoke_access(%s::text, %s::name)", (kind, role), read_first)


def find_job(job_id: int) -> Call[Document | None]:
    """Read everything about one job."""
    return Call(_JOB + b" where j.id = %s::bigint", (job_id,), _maybe_document)


def list_jobs(queue: str | None, task: str | None, state: str | None, limit: int) -> Call[list[Document]]:
    """Read jobs, newest first."""
    clauses = []
    params: list[object] = []
    for column, value in (("queue", queue), ("task", task), ("state::text", state)):
        if value is not None:
            clauses.append(f"j.{column} = %s::text")
            params.append(value)
    where = f" where {' and '.join(clauses)}" if clauses else ""
    return Call(
        _JOB + f"{where} order by j.id desc limit %s::integer".encode(),
        (*params, limit),
        lambda rows: [Document(row[0]) for row in rows],
    )


_JOB = b"select (select jsonb_object_agg(c.key, c.value::text) from jsonb_each(to_jsonb(j)) c) from pgqueue.all_jobs j"


def _maybe_document(rows: list[Row]) -> Document | None:
    return Document(rows[0][0]) if rows else None
