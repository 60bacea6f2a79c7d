"""The pages of tenants and events: whose jobs fill the queues, and what was emitted."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.responses import Response

from pgqueue.db import limits, observe, steps
from pgqueue.web import facets, render
from pgqueue.web.actions import change, one
from pgqueue.web.context import Context

# Tenants and events that are listed.
_TENANTS, _EVENTS = 50, 100


async def tenants(context: Context) -> Response:
    """The tenants that have most jobs, by limit_key: due, executing, and what holds them back."""
    shared = context.database.shared
    rows = await shared("facets", 60.0, lambda: observe.queue_facets(None, _TENANTS))
    running = await shared("tenants", 5.0, lambda: observe.executing_by_tenant(None))
    stats = await context.database.stats()
    shares = {each["limit_key"]: each["weight"] for each in await shared("shares", 5.0, limits.shares)}
    return context.page(
        "tenants.html",
        shares=shares,
        tenants=facets.tenants(rows, dict(running), shares, {})[:_TENANTS],
        filling=facets.of_queue(None, rows),
        filled_at=render.instant(context.now() - context.database.age("facets")),
        limits=[each for each in stats["limits"] if each["kind"] == "limit_key"],
        pauses={each["target"]: each for each in stats["pauses"] if each["kind"] == "limit_key"},
        now=context.now(),
    )


async def events(context: Context) -> Response:
    """The events that are kept, by name or the largest first."""
    prefix, by_size = context.query("prefix"), context.query("order") == "size"
    [rows] = await context.database.read(steps.list_events(prefix or None, _EVENTS, by_size=by_size))
    return context.page("events.html", events=rows, prefix=prefix, by_size=by_size, most=_EVENTS, now=context.now())


async def act_on_event(context: Context) -> Response:
    """Delete an event, after a question."""
    form = await context.form()
    context.require("delete")
    name = one(form, "name")
    if not name:
        raise HTTPException(400, "there is no event without a name")
    if one(form, "confirm") != "yes":
        return context.page("delete_event.html", name=name)
    deleted = await change(context, steps.delete_events([name], None))
    said = (
        "it is deleted" if deleted else "nothing was deleted: it is gone, or has not reached all jobs that wait for it"
    )
    return context.go("events", said=said)
