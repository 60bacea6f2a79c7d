"""Statements about groups, and about the jobs that a job waits for."""

from __future__ import annotations

from typing import Any

from pgqueue.db.call import Call, read_column, read_maybe_one

_NUMBERS = (
    b"select pgqueue.legible(to_jsonb(g)) from pgqueue.groups(%s::bigint, %s::bigint, %s::integer, %s::integer) g"
)

# Members of a group that a list counts in each state.
_COUNTED = 1000


def list_groups(limit: int, before: int | None = None) -> Call[list[dict[str, Any]]]:
    """Read groups, newest first, with how many members each has in each state: counted up to 1,000 of a state."""
    return Call(_NUMBERS, (None, before, limit, _COUNTED), read_column)


def find_group(group_id: int, count_to: int = _COUNTED) -> Call[tuple[dict[str, Any], dict[str, Any]] | None]:
    """Read the numbers of a group, and what it waits for: reason, detail, behind; None: there is no such group."""
    return Call(
        b"select pgqueue.legible(to_jsonb(g)), pgqueue.legible(to_jsonb(e))"
        b" from pgqueue.groups(%s::bigint, count_to => %s::integer) g"
        b" cross join lateral pgqueue.explain(g.id) e",
        (group_id, count_to),
        read_maybe_one,
    )


def relatives_of_group(group_id: int, limit: int) -> Call[list[dict[str, Any]]]:
    """Read members of a group for a list, by id, with what each depends on."""
    return Call(
        b"select pgqueue.legible(to_jsonb(x)) from ("
        b"select j.id, j.task, j.queue, j.state, j.attempts, j.depends_on, j.run_if,"
        b" j.created_at, j.due_at, j.reserved_at, j.finished_at, j.blocked_on,"
        b" j.errors -> -1 ->> 'class' as error_class, left(j.errors -> -1 ->> 'message', 300) as error"
        b" from pgqueue.members(%s::bigint, max => %s::integer) m"
        b" cross join lateral (select a.* from pgqueue.all_jobs a where a.id = m.id limit 1) j order by j.id) x",
        (group_id, limit),
        read_column,
    )


def members(group_id: int, state: str | None, limit: int) -> Call[list[dict[str, Any]]]:
    """Read members of a group, by id."""
    return Call(
        b"select pgqueue.legible(to_jsonb(m)) from pgqueue.members(%s::bigint, %s::text, max => %s::integer) m",
        (group_id, state, limit),
        read_column,
    )


def relations(job_id: int) -> Call[tuple[list[dict[str, Any]], list[dict[str, Any]]] | None]:
    """Read the parents of a job, and its steps; without results, which Python may be unable to read."""
    return Call(
        b"select pgqueue.legible(coalesce((select jsonb_agg(to_jsonb(p) - 'result')"
        b" from pgqueue.parents(%s::bigint) p), '[]')),"
        b" pgqueue.legible(coalesce((select jsonb_agg(to_jsonb(s) - 'result')"
        b" from pgqueue.steps(%s::bigint) s), '[]'))",
        (job_id, job_id),
        read_maybe_one,
    )


def children(job_id: int, limit: int) -> Call[list[dict[str, Any]]]:
    """Read the jobs that wait for a job, or did not run because of it, by id."""
    return Call(
        b"select pgqueue.legible(to_jsonb(c)) from pgqueue.children(%s::bigint, %s::integer) c",
        (job_id, limit),
        read_column,
    )
