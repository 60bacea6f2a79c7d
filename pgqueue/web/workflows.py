"""The pages of groups, and the relatives of a job."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from pgqueue.db import groups, observe, operate
from pgqueue.web import sentences
from pgqueue.web.context import Context
from pgqueue.web.graph import HEIGHT, WIDTH, lay_out

# Groups on a page, and jobs in a graph or a list of relatives.
PAGE = 50
SHOWN = 200

STATES = ("succeeded", "executing", "waiting", "blocked", "failed", "cancelled", "dead")


async def all_groups(context: Context) -> Response:
    """Groups, newest first, with the states of their members."""
    before = context.whole("before")
    [rows] = await context.database.read(groups.list_groups(PAGE, before))
    is_full = len(rows) == PAGE
    return context.page(
        "groups.html",
        sentence=sentences.of_groups(rows, are_all=before is None and not is_full),
        groups=[{**each, "parts": _parts(each)} for each in rows],
        is_full=is_full,
        now=context.now(),
    )


async def group(context: Context) -> Response:
    """One group: its progress, what it waits for, its members, and how they depend on each other."""
    group_id = context.whole("id")
    if group_id is None:
        raise HTTPException(404, "there is no group without an id")
    [found, row] = await context.database.read(groups.find_group(group_id, 10_000), observe.job(group_id))
    if found is None or row is None:
        raise HTTPException(404, f"there is no group {group_id}, or its retention has ended")
    numbers, why = found
    [members, children] = await context.database.read(
        groups.relatives_of_group(group_id, SHOWN), groups.children(group_id, SHOWN)
    )
    why_oldest = None
    if why["behind"]:
        [why_oldest] = await context.database.read(operate.explain(why["behind"]))
    return context.page(
        "group.html",
        group={**numbers, "parts": _parts(numbers)},
        why=why,
        parents=await _parents(context, group_id) if row["depends_on"] else [],
        children=children,
        members=members,
        why_oldest=why_oldest,
        graph=lay_out(members),
        box=(WIDTH, HEIGHT),
        shown=SHOWN,
        is_live=row["finished_at"] is None,
        now=context.now(),
    )


async def relatives(context: Context, job: dict[str, Any]) -> dict[str, Any]:
    """Return what a job waits for, what waits for it, and its steps."""
    [found, children] = await context.database.read(groups.relations(job["id"]), groups.children(job["id"], SHOWN))
    parents, steps = found or ([], [])
    return {
        "parents": parents[:SHOWN],
        "more_parents": max(len(parents) - SHOWN, 0),
        "children": children,
        "children_are_cut": len(children) == SHOWN,
        "steps": steps[-SHOWN:],
    }


async def _parents(context: Context, job_id: int) -> list[dict[str, Any]]:
    [found] = await context.database.read(groups.relations(job_id))
    return found[0][:SHOWN] if found else []


def _parts(numbers: dict[str, Any]) -> list[tuple[str, int, float, float]]:
    """Return (state, members, from, width) of the states that a bar shows, in percent."""
    total = sum(numbers[state] for state in STATES)
    parts, at = [], 0.0
    for state in STATES:
        if numbers[state]:
            width = 100 * numbers[state] / total
            parts.append((state, numbers[state], round(at, 2), round(width, 2)))
            at += width
    return parts
