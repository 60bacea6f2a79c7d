"""Parts of the page of a queue: what runs, what stands beside its numbers, its tenants, and who set its options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pgqueue.db import limits, observe, samples
from pgqueue.db.call import Row
from pgqueue.web import capacity, dead_groups, dying, facets
from pgqueue.web.context import Context
from pgqueue.web.overview import DAY, EXECUTING
from pgqueue.web.render import instant, stamp

# Parts that the page can do without.
FILLING, NEXT, CHANGES = "what fills it", "when the next one is due", "who set its options"

# What holds where an operator has not set an option of a queue, as the columns of pgqueue.queues have it.
DEFAULTS = {
    "priority": "0",
    "weight": "1",
    "fair_by": "nothing",
    "max_share": "no limit",
    "retry_budget": "no limit",
    "retention_succeeded": "as settings",
    "retention_cancelled": "as settings",
    "retention_dead": "as settings",
}

# Tenants that are listed.
_TENANTS = 10


async def filling(context: Context, queue: str) -> list[Row]:
    """Return the rows of queue_facets() of a queue."""
    reading = context.database.shared(("facets", queue), 60.0, lambda: observe.queue_facets(queue))
    return await context.part(FILLING, reading, [])


async def beside(
    context: Context, numbers: dict[str, Any], groups: dead_groups.Groups, rows: Sequence[Row]
) -> dict[str, Any]:
    """Return what stands beside the numbers of a queue, with the `rows` of what fills it.

    How many died within a day, of what; when the next one is due; the tenants; and who last set each option.
    """
    name, now, shared = numbers["queue"], context.now(), context.database.shared
    next_at = None
    if numbers["scheduled"]:
        next_at = await context.part(NEXT, shared(("next", name), 10.0, lambda: observe.next_due(name, now)), None)
    dead_today = await shared(("dead today", name), 60.0, lambda: samples.died(DAY, name))
    changes = await context.part(CHANGES, shared(("changes", name), 60.0, lambda: observe.last_changes(name)), [])
    return {
        "dead_today": dead_today,
        "dies_of": dying.mostly(groups, dead_today),
        "next_at": next_at,
        "filled_at": instant(now - context.database.age(("facets", name))),
        "tenants": await _tenants(context, name, rows),
        "changes": {each["option"]: each for each in changes},
    }


def aged(
    rows: Iterable[Mapping[str, Any]], usual: Mapping[str, float], now: float
) -> list[tuple[Mapping[str, Any], float, str, float | None]]:
    """Return running jobs, each with its age, how late it is, and the usual p95 of its task."""
    ages = ((each, now - stamp(each["reserved_at"]), usual.get(each["task"])) for each in rows)
    return [(each, age, capacity.level_of(age, often), often) for each, age, often in ages]


def pauses(queue: str, filling: facets.Filling, pauses: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what is paused or throttled of a queue, and of the tasks and tenants that fill it."""
    stopped = {(value.pauses, value.text) for facet in filling.facets for value in facet.values if value.pauses}
    return [each for each in pauses if (each["kind"], each["target"]) in stopped | {("queue", queue)}]


async def _tenants(context: Context, queue: str, rows: Sequence[Row]) -> list[facets.Tenant]:
    """Return the tenants that have most jobs of a queue, with their shares and how long the oldest of each waits."""
    shared, now = context.database.shared, context.now()
    running = await context.part(
        EXECUTING, shared(("tenants", queue), 5.0, lambda: observe.executing_by_tenant(queue)), []
    )
    names = sorted(value for facet, value, _ in rows if facet == "tenant")
    if not names and not running:
        return []
    reading = shared(("due since", queue), 60.0, lambda: observe.due_since(queue, names))
    lags = {name: max(now - at, 0.0) for name, at in await context.part(FILLING, reading, [])}
    shares = {each["limit_key"]: each["weight"] for each in await shared("shares", 5.0, limits.shares)}
    return facets.tenants(rows, dict(running), shares, lags)[:_TENANTS]
