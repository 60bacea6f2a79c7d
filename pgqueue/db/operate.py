"""Statements of an operator: read and change jobs, queues, limits and schedules."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgqueue._options import is_age
from pgqueue._remedies import with_thousands
from pgqueue.db.call import Call, Row, as_text, read_column, read_first, read_ids, read_nothing
from pgqueue.db.json import Document, from_json, micros, read_instant, to_json


def outcome(job_id: int) -> Call[Row | None]:
    """Read a job's (state, result, errors, attempts, finished_at, uncommitted, the transaction's isolation), or None.

    Uncommitted: the connection's own transaction has enqueued or changed the job.
    """
    # As text: each driver reads jsonb in its own way.
    return Call(
        f"select state, result::text, errors::text, attempts, {micros('finished_at')}, uncommitted,"
        " current_setting('transaction_isolation') from pgqueue.outcome(%s::bigint)".encode(),
        (job_id,),
        _read_outcome,
    )


def _read_outcome(rows: list[Row]) -> Row | None:
    if not rows:
        return None
    state, result, errors, attempts, finished_at, uncommitted, isolation = rows[0]
    found = (None if each is None else from_json(as_text(each)) for each in (result, errors))
    return (as_text(state), *found, attempts, read_instant(finished_at), uncommitted, as_text(isolation))


def cancel(job_id: int) -> Call[str | None]:
    """Cancel a job; reads "cancelled", "requested" or None."""
    return Call(b"select pgqueue.cancel(%s::bigint)", (job_id,), read_first)


def retry(job_id: int) -> Call[bool]:
    """Run a dead, cancelled or failed job now; reads whether there was one."""
    return Call(b"select pgqueue.retry(%s::bigint)", (job_id,), read_first)


def delete(job_id: int) -> Call[bool]:
    """Delete a job that is not executing; reads whether there was one."""
    return Call(b"select pgqueue.delete(%s::bigint)", (job_id,), read_first)


# The bulk actions, with their filters.
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
    """The result of one bulk call. `next_after` is where to continue; None: at the end."""

    changed: int
    skipped: int
    left_over: int
    is_exact: bool
    next_after: object


def bulk(action: str, filters: Mapping[str, object], max_jobs: int, after: object = None) -> Call[Chunk]:
    """Run, kill, cancel, delete, retry or purge up to `max_jobs` jobs; reads how many, and where to continue."""
    given = {name: value for name, value in filters.items() if value is not None}
    named = "".join(
        f"{name} => {_instant(value) if kind == 'timestamptz' else f'%s::{kind}'}, "
        for name, value in given.items()
        for kind in (_FILTER_TYPES[name],)
    )
    return Call(
        f"select changed, passed_over as skipped, left_over, is_exact, next_after from pgqueue.{_BULK[action]}"
        f"({named}max_jobs => %s::integer, after => %s::jsonb)".encode(),
        (*given.values(), max_jobs, None if after is None else to_json(after, "after")),
        lambda rows: Chunk(*rows[0]),
    )


def count(action: str, filters: Mapping[str, object]) -> Call[Chunk]:
    """Count the jobs that `bulk` would find. It changes one of them, so roll the transaction back."""
    return bulk(action, filters, 1)


# The fields of a job that was never started that can be changed, with their types.
JOB_CHANGES = {"args": "jsonb", "run_at": "timestamptz", "priority": "integer", "queue": "text", "limit_key": "text"}


def update_job(job_id: int, changes: Mapping[str, object]) -> Call[bool]:
    """Change a job that was never started; reads whether there is one. An empty limit_key takes it away.

    `changes` has names of `JOB_CHANGES`; args as a dict, or as JSON text.
    """
    named, values = _changes(changes)
    return Call(f"select pgqueue.update_job(%s::bigint{named})".encode(), (job_id, *values), read_first)


def update_many(
    filter: Mapping[str, object], changes: Mapping[str, object], max_jobs: int, after: object = None
) -> Call[tuple[int, int, object]]:
    """Change up to `max_jobs` jobs that match a filter; reads how many, how many it skipped, and where to continue."""
    named, values = _changes(changes)
    return Call(
        f"select changed, passed_over, next_after from pgqueue.update_many(%s::text::jsonb{named},"
        " max_jobs => %s::integer, after => %s::jsonb)".encode(),
        (to_json(filter, "filter"), *values, max_jobs, None if after is None else to_json(after, "after")),
        lambda rows: (rows[0][0], rows[0][1], rows[0][2]),
    )


def _changes(changes: Mapping[str, object]) -> tuple[str, list[object]]:
    given = {name: value for name, value in changes.items() if value is not None}
    named = "".join(f", {name} => %s::text::{JOB_CHANGES[name]}" for name in given)
    return named, [str(to_json(value, name) if isinstance(value, dict) else value) for name, value in given.items()]


# The options of tasks and queues that an operator may set, and their types.
TASK_OPTIONS = {
    "queue": "text",
    "priority": "integer",
    "max_attempts": "integer",
    "retry_policy": "text",
    "retry_delay": "interval",
    "retry_jitter": "float8",
    "retry_cap": "interval",
    "retry_delays": "interval[]",
    "retry_queue": "text",
    "expires_in": "interval",
    "timeout": "interval",
    "max_crashes": "integer",
    "batch_size": "integer",
    "accumulate": "boolean",
    "store_result": "boolean",
    "retention_succeeded": "interval",
    "retention_cancelled": "interval",
    "retention_dead": "interval",
}
QUEUE_OPTIONS = {
    "priority": "integer",
    "weight": "integer",
    "retry_budget": "integer",
    "retention_succeeded": "interval",
    "retention_cancelled": "interval",
    "retention_dead": "interval",
    "fair_by": "text",
    "max_share": "float8",
}


def configure_task(task: str, options: Mapping[str, object], reset: Sequence[str]) -> Call[bool]:
    """Set or reset an operator's options of a task; reads whether anything changed."""
    return _configure("configure_task", TASK_OPTIONS, task, options, reset)


def configure_queue(queue: str, options: Mapping[str, object], reset: Sequence[str]) -> Call[bool]:
    """Set or reset options of a queue; reads whether anything changed."""
    return _configure("configure_queue", QUEUE_OPTIONS, queue, options, reset)


def _configure(
    function: str, types: Mapping[str, str], name: str, options: Mapping[str, object], reset: Sequence[str]
) -> Call[bool]:
    given = {option: value for option, value in options.items() if value is not None}
    named = "".join(f", {option} => %s::{types[option]}" for option in given)
    return Call(
        f"select pgqueue.{function}(%s::text{named}, reset => %s::text[])".encode(),
        (name, *given.values(), list(reset)),
        read_first,
    )


def list_tasks() -> Call[list[dict[str, Any]]]:
    """Read the options that hold for each task, and in `set` the names of those that an operator has set."""
    return Call(
        b"select pgqueue.legible(to_jsonb(e))"
        b" || jsonb_build_object('set', (select coalesce(jsonb_agg(o.key order by o.key), '[]')"
        b" from jsonb_each(to_jsonb(t)) o where o.key !~ '^declared_' and o.key <> 'name' and o.value <> 'null'))"
        b" from pgqueue.effective_tasks e join pgqueue.tasks t on t.name = e.name order by e.name",
        (),
        read_column,
    )


def unknown_tasks(names: Collection[str]) -> Call[list[str]]:
    """Read which of these tasks no worker has declared; none where no task was ever declared."""
    return Call(
        b"select n.name from unnest(%s::text[]) n (name) where exists (select from pgqueue.effective_tasks)"
        b" and not exists (select from pgqueue.effective_tasks e where e.name = n.name) order by n.name",
        (list(names),),
        read_column,
    )


def queue_names() -> Call[list[str]]:
    """Read the names of queues: those that have jobs, options, a limit, a task or a worker, and the default one."""
    return Call(
        b"select q.name from pgqueue.queues q union select l.queue from pgqueue.lanes l"
        b" union select n.name from pgqueue.effective_tasks t, unnest(array[t.queue, t.retry_queue]) n (name)"
        b" where n.name is not null"
        b" union select n.name from pgqueue.worker_status w, unnest(w.queues) n (name)"
        b" union select l.target from pgqueue.limits l where l.kind = 'queue'"
        b" union select p.target from pgqueue.pauses p where p.kind = 'queue'"
        b" union select 'default'",
        (),
        read_column,
    )


def task_names() -> Call[list[str]]:
    """Read the names of tasks: those that a worker has declared, or that have options or a limit."""
    return Call(
        b"select t.name from pgqueue.effective_tasks t"
        b" union select l.target from pgqueue.limits l where l.kind = 'task'",
        (),
        read_column,
    )


def list_workers() -> Call[list[dict[str, Any]]]:
    """Read all workers with their jobs, also dead ones that still hold jobs."""
    return Call(b"select pgqueue.legible(to_jsonb(w)) from pgqueue.worker_status w order by w.worker", (), read_column)


def read_manual(name: str | None) -> Call[list[dict[str, Any]]]:
    """Read what the functions of the queue do: of one, or of all."""
    return Call(
        b"select to_jsonb(m) from pgqueue.manual m where %s::text is null or m.name = %s::text order by m.name",
        (name, name),
        read_column,
    )


def next_attempts(job_ids: Sequence[int]) -> Call[dict[int, tuple[datetime | None, list[str]]]]:
    """Read when failed jobs run again, None for dead ones, and which options an operator has set, by id."""
    return Call(
        b"select job_id, run_at, overrides from pgqueue.next_attempts(%s::bigint[])",
        (list(job_ids),),
        lambda rows: {int(job_id): (run_at, list(overrides)) for job_id, run_at, overrides in rows},
    )


def ask_stack(job_id: int) -> Call[str | None]:
    """Ask for the stack of a job's handler; reads the worker that was asked. The answer comes as log lines."""
    return Call(b"select pgqueue.ask_stack(%s::bigint)", (job_id,), read_first)


def explain(job_id: int) -> Call[dict[str, Any]]:
    """Read why a job is not running: state, reason, detail, until, behind."""
    return Call(b"select pgqueue.legible(to_jsonb(e)) from pgqueue.explain(%s::bigint) e", (job_id,), _read_explained)


def _read_explained(rows: list[Row]) -> dict[str, Any]:
    found: dict[str, Any] = read_first(rows)
    return {**found, "detail": with_thousands(str(found["detail"]))}


def quiet_worker(worker: str) -> Call[bool]:
    """Let a worker reserve no more jobs; reads whether there is one that was not asked yet."""
    return Call(b"select pgqueue.quiet_worker(%s::text)", (worker,), read_first)


def resume_worker(worker: str) -> Call[bool]:
    """Let a quiet worker reserve jobs again; reads whether there is one that was asked to be quiet."""
    return Call(b"select pgqueue.resume_worker(%s::text)", (worker,), read_first)


def stop_worker(worker: str) -> Call[bool]:
    """Let a worker end; reads whether there is one that was not asked yet."""
    return Call(b"select pgqueue.stop_worker(%s::text)", (worker,), read_first)


def kill_worker(worker: str | None = None, job_id: int | None = None) -> Call[str | None]:
    """End the process of a worker, or of the one that executes a job; reads its name, None: none was asked now."""
    return Call(b"select pgqueue.kill_worker(%s::text, %s::bigint)", (worker, job_id), read_first)


def reset_task(task: str, options: Sequence[str]) -> Call[bool]:
    """Reset all options that an operator set for a task; reads whether anything changed."""
    return Call(b"select pgqueue.configure_task(%s::text, reset => %s::text[])", (task, list(options)), read_first)


def list_schedules() -> Call[list[dict[str, Any]]]:
    """Read all schedules, the next one due first."""
    return Call(
        b"select pgqueue.legible(to_jsonb(s)) from pgqueue.effective_schedules s order by s.next_at nulls last, s.name",
        (),
        read_column,
    )


def find_schedule(name: str, runs: int) -> Call[Document | None]:
    """Read one schedule and the outcome of its last runs, newest first."""
    return Call(
        b"select (select jsonb_object_agg(c.key, pgqueue.legible(c.value)::text) from jsonb_each("
        b"to_jsonb(s) || jsonb_build_object('args', d.args, 'runs', coalesce(("
        b"select jsonb_agg(to_jsonb(r) order by r.n desc) from ("
        b"select h.* from pgqueue.schedule_history h where h.schedule = s.name order by h.n desc limit %s::integer"
        b") r), '[]'))) c)"
        b" from pgqueue.effective_schedules s join pgqueue.schedules d on d.name = s.name where s.name = %s::text",
        (runs, name),
        _maybe_document,
    )


def pause_schedule(name: str) -> Call[bool]:
    """Pause a schedule; reads whether anything changed."""
    return Call(b"select pgqueue.pause_schedule(%s::text)", (name,), read_first)


def resume_schedule(name: str) -> Call[bool]:
    """Resume a paused schedule from now; reads whether anything changed."""
    return Call(b"select pgqueue.resume_schedule(%s::text)", (name,), read_first)


def configure_schedule(name: str, expression: str | None, timezone: str | None, reset: Sequence[str]) -> Call[bool]:
    """Set or reset an operator's expression and time zone of a schedule; reads whether anything changed."""
    return Call(
        b"select pgqueue.configure_schedule(%s::text, %s::text, %s::text, %s::text[])",
        (name, expression, timezone, list(reset)),
        read_first,
    )


def run_schedule_now(name: str) -> Call[int | None]:
    """Enqueue one job of a schedule; reads its id, or None where there is no such schedule."""
    return Call(b"select pgqueue.run_schedule_now(%s::text)", (name,), read_first)


def unschedule(name: str) -> Call[bool]:
    """Remove a schedule; reads whether there was one."""
    return Call(b"select pgqueue.unschedule(%s::text)", (name,), read_first)


def grant_access(kind: str, role: str) -> Call[None]:
    """Let a role use the queue."""
    return Call(b"select pgqueue.grant_access(%s::text, %s::name)", (kind, role), read_nothing)


def has_access(kind: str, role: str) -> Call[bool]:
    """Read whether a role has what grant_access gives, under its present name. For the owner of the schema alone."""
    return Call(
        b"select exists (select from pgqueue._roles_of_grants() g where g.kind = %s::text and g.now_name = %s::name)",
        (kind, role),
        read_first,
    )


def revoke_access(kind: str, role: str) -> Call[bool]:
    """Take back what grant_access gave; reads whether there was anything."""
    return Call(b"select pgqueue.revoke_access(%s::text, %s::name)", (kind, role), read_first)


# How a listing is narrowed, by the name of the filter.
_ONLY = {
    "queue": "j.queue = %s::text",
    "task": "j.task = %s::text",
    "state": "j.state::text = %s::text",
    "key": "j.key = %s::text",
    "tag": "j.tags @> array[%s::text]",
    "ids": "j.id = any (%s::bigint[])",
    "worker": "j.reserved_by = %s::text",
    "error": "exists (select from jsonb_array_elements(j.errors) e"
    " where strpos(lower(concat_ws(': ', e ->> 'class', e ->> 'message') collate \"C\"),"
    ' lower(%s::text collate "C")) > 0)',
    # An error names the option by the comment.
    "since": "j.created_at >= /* since => */ ",
    "until": "j.created_at < /* until => */ ",
}


def list_jobs(only: Mapping[str, object], limit: int) -> Call[list[Document]]:
    """Read jobs, newest first. `only`: queue, task, state, key, tag, ids, worker, error (a part of the text of one),
    since and until (an instant, or how long ago: "2 hours")."""
    given = {name: value for name, value in only.items() if value is not None}
    clauses = [_ONLY[name] + (_instant(value) if name in ("since", "until") else "") for name, value in given.items()]
    where = f" where {' and '.join(clauses)}" if clauses else ""
    return Call(
        _JOB + f"{where} order by j.id desc limit %s::integer".encode(),
        (*given.values(), limit),
        lambda rows: [Document(row[0]) for row in rows],
    )


def jobs_of(job_ids: Sequence[int]) -> Call[list[int]]:
    """Read which of these jobs exist."""
    return Call(b"select j.id from pgqueue.all_jobs j where j.id = any (%s::bigint[])", (list(job_ids),), read_ids)


def _instant(value: object) -> str:
    """Write a placeholder for an instant, or for how long ago it was: "2 hours", "2 hours ago"."""
    if not is_age(str(value)):
        return "%s::timestamptz"
    # "ago" makes an interval negative.
    sign = "+" if str(value).rstrip().lower().endswith("ago") else "-"
    return f"pgqueue._clock() {sign} %s::interval"


_JOB = (
    b"select (select jsonb_object_agg(c.key, pgqueue.legible(c.value)::text) from jsonb_each(to_jsonb(j)) c)"
    b" from pgqueue.all_jobs j"
)


def _maybe_document(rows: list[Row]) -> Document | None:
    return Document(rows[0][0]) if rows else None
