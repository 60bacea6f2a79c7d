"""The pages of schedules, and the actions on them."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.responses import Response

from pgqueue.db import observe, operate
from pgqueue.web import render, sentences
from pgqueue.web.actions import Form, change, one
from pgqueue.web.context import Context
from pgqueue.web.cron_words import in_words
from pgqueue.web.questions import Action, act

OF_SCHEDULES = {
    "pause": Action(
        "schedule",
        "Pause",
        "It enqueues no more jobs until it is resumed. Jobs that exist stay; deploys do not resume it.",
        operate.pause_schedule,
        "the schedule is paused",
        "nothing was changed: it is gone, or was paused already",
    ),
    "resume": Action(
        "schedule",
        "Resume",
        "It continues from now on. Runs that were due during the pause are not made up for.",
        operate.resume_schedule,
        "the schedule continues",
        "nothing was changed: it is gone, or was not paused",
    ),
    "run": Action(
        "schedule",
        "Run now",
        "It enqueues one job at once, in addition to its times, even if it is paused or its last job has not ended.",
        operate.run_schedule_now,
        "a job was enqueued",
        "the schedule no longer exists",
    ),
    "remove": Action(
        "schedule",
        "Remove",
        "It enqueues no more jobs; its jobs stay. A worker whose code declares it adds it again at its next start:"
        " pause it instead to prevent that.",
        operate.unschedule,
        "the schedule is removed",
        "the schedule no longer exists",
        is_danger=True,
    ),
}


async def schedules(context: Context) -> Response:
    """Schedules: those with something wrong, then the next one due."""
    found = await context.database.shared("schedules", 2.0, observe.schedules)
    now = context.now()
    shown, more = found[: observe.MOST_LISTED], found[observe.MOST_LISTED :]
    return context.page(
        "schedules.html",
        sentence=sentences.of_schedules(shown, now, is_cut=bool(more)),
        schedules=[{**each, "places": sentences.places(each, now)} for each in shown],
        axis=sentences.axis(),
        more=more,
        in_words=in_words,
        now=now,
    )


async def schedule(context: Context) -> Response:
    """One schedule: what was declared and set, its next times and its last runs."""
    name = context.query("name")
    [found] = await context.database.read(observe.schedule(name))
    if found is None:
        raise HTTPException(404, f"there is no schedule {render.short(name)}")
    now = context.now()
    places = sentences.places(found, now)
    return context.page(
        "schedule.html", schedule=found, places=places, axis=sentences.axis(), in_words=in_words, now=now
    )


async def act_on_schedule(context: Context) -> Response:
    """Pause, resume, run or remove a schedule, or set its expression and time zone."""
    form = await context.form()
    if one(form, "do") == "set":
        return await _set_schedule(context, form)
    return await act(context, "schedule", OF_SCHEDULES, form)


async def _set_schedule(context: Context, form: Form) -> Response:
    context.require("schedule")
    name = one(form, "name")
    given = {option: one(form, option).strip() for option in ("expression", "timezone")}
    [found] = await context.database.read(observe.schedule(name))
    if found is None:
        raise HTTPException(404, f"there is no schedule {render.short(name)}")
    if "confirm" not in form:
        return context.page("set_schedule.html", schedule=found, given=given, in_words=in_words)
    reset = [option for option, value in given.items() if not value]
    call = operate.configure_schedule(name, given["expression"] or None, given["timezone"] or None, reset)
    is_changed = await change(context, call)
    return context.go("schedule", name=name, said="it is set from now on" if is_changed else "it was unchanged")
