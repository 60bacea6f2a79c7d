"""Statements about groups, and about the jobs that a job waits for."""

from __future__ import annotations

from typing import Any

from pgqueue.db.call import Call, read_column, read_maybe_one


def list_groups(limit: int) -> Call[list[dict[str, Any]]]:
    """Read groups, newest first, with the progress of each."""
    return Call(
        b"select to_jsonb(p)"
        b" || jsonb_build_object('id', g.id, 'created_at', g.created_at, 'finished_at', g.finished_at)"
        b" from (select j.id, j.created_at, j.finished_at from pgqueue.all_jobs j where j.task = '@group'"
        b" order by j.id desc limit %s::integer) g"
        b" cross join lateral pgqueue.group_progress(g.id) p order by g.id desc",
        (limit,),
        read_column,
    )


def find_group(group_id: int) -> Call[tuple[dict[str, Any], str] | None]:
    """Read the progress of a group, and in words what it waits for; None: there is no such group."""
    return Call(
        b"select to_jsonb(p) || jsonb_build_object('id', %s::bigint), e.detail"
        b" from pgqueue.group_progress(%s::bigint) p cross join lateral pgqueue.explain(%s::bigint) e",
        (group_id, group_id, group_id),
        read_maybe_one,
    )


def members(group_id: int, state: str | None, limit: int) -> Call[list[dict[str, Any]]]:
    """Read members of a group, by id."""
    return Call(
        b"select to_jsonb(m) from pgqueue.members(%s::bigint, %s::text, max => %s::integer) m",
        (group_id, state, limit),
        read_column,
    )


def relations(job_id: int) -> Call[tuple[list[dict[str, Any]], list[dict[str, Any]]] | None]:
    """Read the parents of a job, and its steps."""
    return Call(
        b"select coalesce((select jsonb_agg(to_jsonb(p) - 'result') from pgqueue.parents(%s::bigint) p), '[]'),"
        b" coalesce((select jsonb_agg(to_jsonb(s)) from pgqueue.steps(%s::bigint) s), '[]')",
        (job_id, job_id),
        read_maybe_one,
    )
