"""The pages of tasks: how they perform, what runs, what jobs die of, and the options with where each comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from pgqueue._filters import exactly
from pgqueue.db import observe, operate, samples
from pgqueue.errors import InvalidArgument
from pgqueue.web import capacity, dead_groups, render, series
from pgqueue.web.actions import change, one
from pgqueue.web.capacity import Running
from pgqueue.web.context import Context
from pgqueue.web.overview import DEATHS, EXECUTING, TRENDS

# Seconds over which the rate of a task is taken, and what counts in it.
_LATELY = 600
_ENDS = ("succeeded", "failed", "dead", "cancelled")

# Running jobs of a task that are listed.
_MOST = 20

# What holds where neither the code nor an operator says otherwise, as the columns of pgqueue.tasks have it.
_DEFAULTS = {
    "queue": "default",
    "priority": "0, or that of its queue",
    "max_attempts": "11",
    "retry_policy": "exponential",
    "retry_delay": "30 s; 15 s for sidekiq",
    "retry_jitter": "0.1; 1 for sidekiq and doubling",
    "retry_cap": "by the policy",
    "retry_queue": "its own",
    "expires_in": "no limit",
    "timeout": "no limit",
    "max_crashes": "3",
    "batch_size": "1",
    "accumulate": "no",
    "store_result": "no",
    "retention_succeeded": "as its queue, else the settings",
    "retention_cancelled": "as its queue, else the settings",
    "retention_dead": "as its queue, else the settings",
}


async def tasks(context: Context) -> Response:
    """Tasks: their declared and set options, and how they perform."""
    found = await context.database.shared("tasks", 5.0, observe.tasks)
    shown, more = found[: observe.MOST_LISTED], found[observe.MOST_LISTED :]
    times = await _times(context)
    if not more:
        undeclared = sorted(times.keys() - {each["name"] for each in found})
        shown = [*shown, *({"name": name, "effective": {"queue": None}} for name in undeclared)]
    return context.page("tasks.html", tasks=shown, more=more, times=times, now=context.now())


async def task(context: Context) -> Response:
    """One task. Jobs may be of a task that no worker has declared."""
    name, now, shared = context.query("name"), context.now(), context.database.shared
    [known] = await context.database.read(observe.task(name))
    times = await _times(context)
    if known is None and name not in times:
        [jobs] = await context.database.read(observe.search("newest", {"tasks": [exactly(name or "?")]}, None, 1))
        # A search that was cut may not have come to one.
        if not jobs.ids and jobs.next is None:
            raise HTTPException(
                404, f"there is no task {render.short(name)}: no worker has declared it, no job is of it"
            )
    held = await context.part(EXECUTING, shared("executing", 2.0, observe.executing), [])
    usual = await context.part(TRENDS, shared("usual", 600.0, series.usual), {})
    groups = await context.part(DEATHS, dead_groups.read(context), dead_groups.Groups())
    stats = await context.database.stats()
    running = capacity.of_task(name, [Running(*each) for each in held], usual, now)
    effective = known["effective"] if known else {}
    return context.page(
        "task.html",
        name=name,
        docs=effective.get("docs"),
        owner=effective.get("owner"),
        options=_options(known) if known else [],
        settable=list(operate.TASK_OPTIONS),
        times=times.get(name),
        running=running[:_MOST],
        runs=len(running),
        usual=usual.get(name),
        bar=capacity.bar,
        groups=groups.of_task(name),
        limits=[each for each in stats["limits"] if (each["kind"], each["target"]) == ("task", name)],
        pauses=[each for each in stats["pauses"] if (each["kind"], each["target"]) == ("task", name)],
        ranges=series.RANGES,
        now=now,
    )


async def act_on_task(context: Context) -> Response:
    """Set an option of a task for an operator, or reset those that one has set."""
    form = await context.form()
    context.require("limits")
    name = one(form, "name")
    if one(form, "do") not in ("", "set"):
        raise HTTPException(400, "there is no such action")
    if not one(form, "do"):
        await change(context, operate.reset_task(name, form.get("option", [])))
        return context.go("task", name=name, said="the declared options apply again")
    option, text = one(form, "option"), one(form, "value").strip()
    if option not in operate.TASK_OPTIONS or not text:
        raise InvalidArgument("an option and its value are needed", hint="to take one back, reset it")
    call = operate.configure_task(name, {option: _value(operate.TASK_OPTIONS[option], text)}, [])
    is_changed = await change(context, call)
    said = f"{option.replace('_', ' ')} holds from now on" if is_changed else "it was set so already"
    return context.go("task", name=name, said=said)


def _value(kind: str, text: str) -> object:
    """Read the value of an option. Intervals are text: the server reads them."""
    try:
        match kind:
            case "integer":
                return int(text)
            case "float8":
                return float(text)
            case "boolean":
                return {"yes": True, "true": True, "no": False, "false": False}[text.lower()]
            case "interval[]":
                return [each.strip() for each in text.split(",")]
    except (ValueError, KeyError):
        expected = {"integer": "a whole number", "float8": "a number", "boolean": "yes or no"}[kind]
        raise InvalidArgument(f"{render.short(text)} is not {expected}", hint="correct the value") from None
    return text


def _options(known: Mapping[str, Any]) -> list[tuple[str, object, str, object, bool]]:
    """Return (option, what holds, where that comes from, what the code declares, whether it can be reset)."""
    found = []
    for option in [*operate.TASK_OPTIONS, "retry_function"]:
        value = known["effective"].get(option)
        own, declared = known.get(option), known.get(f"declared_{option}")
        source = "an operator" if own is not None else "the code" if declared is not None else "the default"
        can_reset = own is not None and option in operate.TASK_OPTIONS
        found.append((option, _DEFAULTS.get(option) if value is None else value, source, declared, can_reset))
    return found


async def _times(context: Context) -> dict[str, dict[str, Any]]:
    """Return how each task performed in the last hour, and as `rate` the attempts that ended per second lately."""
    rows = await context.database.shared(("ended", 3600), 60.0, lambda: samples.ended_by_task(3600))
    lately = context.now() - _LATELY
    recent = render.by_task((task, ended) for task, ended, at, span in rows if span == 10 and at > lately)
    summed = max((at for *_, at, span in rows if span == 600), default=0.0)
    times = render.by_task((task, ended) for task, ended, at, span in rows if span == 600 or at >= summed)
    for task, entry in times.items():
        ended = sum(recent.get(task, {}).get(name, 0) for name in _ENDS)
        entry["rate"] = ended / _LATELY
    return times
