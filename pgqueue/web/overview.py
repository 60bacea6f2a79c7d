"""The overview: who is late and why, the queues in the order of need, and what happens over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from pgqueue.db import observe
from pgqueue.web import capacity, render, series, verdict
from pgqueue.web.capacity import Running
from pgqueue.web.context import Context

# Parts that a page can do without.
DEATHS, FINDINGS, EXECUTING = "what jobs died of", "problems that the doctor finds", "what executes"
LATENESS, TRENDS = "why jobs are late", "the trends"

# The most queues that are shown in rows, while the others fold, and the least, where there are as many.
_MOST, _LEAST = 12, 5

# Seconds over which rates of queues are taken.
LATELY = 60


async def overview(context: Context) -> Response:
    """Say whether something is late, and show the queues, the workers, and what jobs die of."""
    shared = context.database.shared
    now = context.now()
    stats = await context.database.stats()
    findings = await context.part(FINDINGS, shared("doctor", 60.0, observe.doctor), [])
    groups = await context.part(DEATHS, shared(("dead", None), 60.0, lambda: observe.dead_groups(None)), [])
    trends = await context.part(TRENDS, shared("trends", 10.0, observe.trends), [])
    running = await context.part(EXECUTING, shared("executing", 2.0, observe.executing), [])
    lately = await shared("lately", 5.0, lambda: series.lately(LATELY))
    usual = await context.part(TRENDS, shared("usual", 600.0, series.usual), {})
    dead_today = await shared("dead today", 60.0, observe.dead_today)
    queues = [each for each in stats["queues"] if not each["queue"].startswith("@")]
    late = await context.part(LATENESS, shared("why", 10.0, observe.why_late), [])
    held = [Running(*each) for each in running]
    alive = [each for each in stats["workers"] if is_alive(each, now)]
    needy, quiet = _in_order(queues, late, lately)
    return context.page(
        "overview.html",
        stats=stats,
        verdict=verdict.reach(late, findings, queues, len(alive)),
        findings=[each for each in findings if each["severity"] != "info"],
        queues=[
            {
                **each,
                "level": verdict.level(each),
                "age": verdict.age(each),
                "why": next((row for row in late if row["queue_name"] == each["queue"]), None),
                "slots": capacity.of_queue(each["queue"], alive, held, usual, now),
                "rates": lately.get(each["queue"], {}),
            }
            for each in needy
        ],
        quiet=[{**each, "rates": lately.get(each["queue"], {})} for each in quiet],
        sparklines=render.sparklines(trends),
        # A paused queue is late on purpose.
        worst=max((each for each in queues if not each["paused_at"]), key=lambda each: each["lag"], default=None),
        rates=lately.get("", {}),
        dead_today=dead_today,
        groups=groups[:6],
        workers=[
            (each, capacity.of_worker(each, held, usual, now), _tasks(each["worker"], held)) for each in alive[:_MOST]
        ],
        alive=len(alive),
        slots=sum(capacity.slots_of(each) or 0 for each in alive),
        executing=sum(len(each.since) for each in held),
        overlong=sum(each.overlong(usual.get(each.task), now) for each in held),
        ranges=series.RANGES,
        now=now,
    )


def is_alive(worker: Mapping[str, Any], now: float) -> bool:
    """Tell whether a worker of stats() sent a heartbeat lately."""
    return bool(worker["last_beat_at"]) and now - render.stamp(worker["last_beat_at"]) < 65


def _in_order(
    queues: Sequence[dict[str, Any]], late: Sequence[Mapping[str, Any]], rates: Mapping[str, Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the queues to show in rows, the ones that need it most first, and those that are quiet."""
    places = {row["queue_name"]: place for place, row in enumerate(late)}

    def need(each: dict[str, Any]) -> tuple[bool, float, float, int]:
        is_late = each["queue"] in places or verdict.level(each) != "ok"
        busy = rates.get(each["queue"], {}).get("out") or 0.0
        # In the order of the causes that are known; what is paused is late on purpose.
        place = places.get(each["queue"], len(places)) + (len(places) if each["paused_at"] else 0)
        return (is_late, -float(place), float(busy), each["length"])

    found = sorted(queues, key=need, reverse=True)
    shown = max(_LEAST, sum(need(each)[0] for each in found))
    if len(found) <= shown + 1:
        shown = len(found)
    return found[: min(shown, _MOST)], found[min(shown, _MOST) :]


def _tasks(worker: str, running: Sequence[Running]) -> str:
    """Return what a worker runs, in words: the most first."""
    runs = capacity.by_task(worker, running, {}, 0.0)
    return ", ".join(f"{each.task} {each.jobs}" for each in runs[:3]) + (", …" if runs[3:] else "") or "runs nothing"
