"""The overview: which queue is late and why, the queues in the order of need, and the trends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from pgqueue import verdict
from pgqueue.db import observe, samples
from pgqueue.web import capacity, dead_groups, dying, render, series
from pgqueue.web.capacity import Running
from pgqueue.web.context import Context
from pgqueue.web.feed import feed

# Parts that a page can do without.
DEATHS, FINDINGS, EXECUTING = "the errors of dead jobs", "problems that the doctor finds", "what executes"
LATENESS, TRENDS, TROUBLES = "why jobs are late", "the trends", "what just failed"
USUAL = "how many usually die"

# Workers that are shown.
_MOST = 12

# Seconds over which rates of queues are taken, and jobs that died are counted.
LATELY, DAY = 60, 86_400


async def overview(context: Context) -> Response:
    """Show whether something is late, the queues, the workers, and the errors of dead jobs."""
    shared = context.database.shared
    now = context.now()
    stats, findings, groups, causes = await _what_takes_longest(context)
    trends = await context.part(TRENDS, shared("trends", 60.0, samples.trends), [])
    running = await context.part(EXECUTING, shared("executing", 2.0, observe.executing), [])
    lately = await shared("lately", 5.0, lambda: series.lately(LATELY))
    usual = await context.part(TRENDS, shared("usual", 600.0, series.usual), {})
    dead_today = await shared("dead today", 60.0, lambda: samples.died(DAY))
    usual_deaths = await context.part(USUAL, shared("usual deaths", 600.0, samples.usual_deaths), None)
    queues = [each for each in stats["queues"] if not each["queue"].startswith("@")]
    late = verdict.still_late(causes, queues)
    held = [Running(*each) for each in running]
    alive = verdict.living(stats)
    shown = alive[:_MOST]
    troubles = await context.part(TROUBLES, shared("troubles", 2.0, observe.troubles), [])
    reached = verdict.reach(late, findings, queues, len(alive))
    pauses = pauses_of_queues(stats)
    needy, quiet = verdict.in_order(queues, late, {name: each["out"] or 0.0 for name, each in lately.rates.items()})
    return context.page(
        "overview.html",
        stats=stats,
        verdict=reached,
        late_one=next((each for each in queues if each["queue"] == reached.queue), None),
        # A setting is wrong since long: what has happened stands before it.
        findings=sorted(
            (each for each in verdict.beside(late, findings) if each["severity"] != "info"),
            key=lambda each: each["topic"] == "settings",
        ),
        holding=capacity.holding(reached.subject, held, now) if reached.cause == "slots" else None,
        queues=[
            {
                **each,
                "level": verdict.level(each),
                "age": verdict.age(each),
                "pause": pauses.get(each["queue"]),
                "why": next((row for row in late if row["queue_name"] == each["queue"]), None),
                "slots": capacity.of_queue(each["queue"], alive, held, usual, now),
                "rates": lately.rates.get(each["queue"], {}),
            }
            for each in needy
        ],
        sums={"quiet": _sum(quiet), "paused": _sum([each for each in queues if each["paused_at"]])},
        quiet=[{**each, "rates": lately.rates.get(each["queue"], {})} for each in quiet],
        sparklines=render.sparklines(trends),
        worst=verdict.worst(queues),
        rates=lately.rates.get("", {}),
        feed=feed(troubles, lately.samples),
        died=dying.beside_usual(dead_today, usual_deaths, of_all=False),
        groups=groups,
        workers=[(each, capacity.of_worker(each, held, usual, now), _tasks(each["worker"], held)) for each in shown],
        alive=len(alive),
        slots=capacity.of_workers(alive, held, usual, now),
        are_more=capacity.is_cut(held),
        ranges=series.RANGES,
        now=now,
    )


async def _what_takes_longest(
    context: Context,
) -> tuple[dict[str, Any], list[dict[str, Any]], dead_groups.Groups, list[dict[str, Any]]]:
    """Return the numbers, the findings, the dead by their errors, and why queues are late, read side by side."""
    return await asyncio.gather(
        context.database.stats(),
        context.part(FINDINGS, context.database.shared("doctor", 60.0, observe.doctor), []),
        context.part(DEATHS, dead_groups.read(context), dead_groups.Groups()),
        context.part(LATENESS, context.database.late(), []),
    )


def pauses_of_queues(stats: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return what has paused each queue that is paused: source, since, until, reason, by."""
    known = {each["target"]: each for each in stats["pauses"] if each["kind"] == "queue"}
    # The list has the first thousand; since when each queue is paused is known of all.
    bare = {"source": "operator", "by": "an operator", "until": None, "reason": None}
    return {
        each["queue"]: known.get(each["queue"]) or {**bare, "since": each["paused_at"]}
        for each in stats["queues"]
        if each["paused_at"]
    }


def _sum(queues: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the due jobs of queues, with how they were counted."""
    earlier = [at for each in queues if (at := observe.counted_at(each, "due"))]
    is_cut = any(each["counted_to"] is not None for each in queues)
    return {
        "due": sum(each["due"] for each in queues),
        "counted_at": min(earlier, default=None),
        "counted_to": 0 if is_cut else None,
    }


def _tasks(worker: str, running: Sequence[Running]) -> str:
    """Return the jobs that a worker runs, in words, the most frequent first."""
    runs = capacity.by_task(worker, running, {}, 0.0)
    return ", ".join(f"{each.task} {each.jobs}" for each in runs[:3]) + (", …" if runs[3:] else "") or "runs nothing"
