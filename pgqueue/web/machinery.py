"""The pages of workers and schedules, and the actions on them, each after a question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from pgqueue.db import observe, operate
from pgqueue.db.call import Call, Row
from pgqueue.web import capacity, queue_parts, render, sentences, series
from pgqueue.web.actions import Form, change, one
from pgqueue.web.capacity import Running
from pgqueue.web.context import Context
from pgqueue.web.cron_words import in_words


@dataclass(frozen=True, slots=True)
class Action:
    """An action on one thing: the right it needs, its label, what happens, and the statement."""

    right: str
    label: str
    effect: str
    call: Callable[[str], Call[Any]]
    said: str
    otherwise: str
    is_danger: bool = False


_NOT_ASKED = "nothing was sent: the worker is gone, or was asked already"

OF_WORKERS = {
    "quiet": Action(
        "act",
        "Make quiet",
        "It reserves no more jobs, and gives back those that it has not started. It and its running jobs continue.",
        operate.quiet_worker,
        "the worker is asked to be quiet",
        _NOT_ASKED,
    ),
    "resume": Action(
        "act",
        "Resume",
        "It reserves jobs again.",
        operate.resume_worker,
        "the worker is asked to continue",
        "nothing was sent: the worker is gone, or was not asked to be quiet",
    ),
    "stop": Action(
        "delete",
        "Stop",
        "It reserves no more jobs and ends with the last of its jobs, or after its shutdown timeout. What supervises"
        " it may start another. This cannot be taken back.",
        operate.stop_worker,
        "the worker is asked to stop",
        _NOT_ASKED,
        is_danger=True,
    ),
    "kill": Action(
        "delete",
        "Kill",
        "Its process ends at once. What supervises it starts another, and gives back all jobs that it holds; each one"
        " that it runs counts a crash, and is cancelled if it was asked to. For a handler that does not end.",
        operate.kill_worker,
        "the worker is asked to end at once",
        _NOT_ASKED,
        is_danger=True,
    ),
}
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


async def workers(context: Context) -> Response:
    """Workers, the silent ones first."""
    shared = context.database.shared
    found = await shared("workers", 2.0, observe.workers)
    running = await context.part("what executes", shared("executing", 2.0, observe.executing), [])
    usual = await context.part("usual times", shared("usual", 600.0, series.usual), {})
    memory = await _memory(context)
    stats = await context.database.stats()
    held, now = [Running(*each) for each in running], context.now()
    limits = {each["worker"]: each["memory_limit"] for each in found}
    return context.page(
        "workers.html",
        slots={each["worker"]: capacity.of_worker(each, held, usual, now) for each in found},
        cells={each["worker"]: capacity.cells(each["worker"], held, usual, now) for each in found},
        runs={each["worker"]: capacity.by_task(each["worker"], held, usual, now) for each in found},
        memories={worker: render.line(at, values, limits.get(worker)) for worker, at, values in memory if len(at) > 1},
        memory_levels={each["worker"]: capacity.memory_level(each) for each in found},
        served=_served(found),
        unserved=_unserved(stats["queues"], found),
        alive=sum(bool(each["is_alive"]) for each in found),
        memory=sum(each["memory"] or 0 for each in found if each["is_alive"]),
        groups=by_supervisor(found[: observe.MOST_LISTED]),
        more=found[observe.MOST_LISTED :],
        able=able,
        now=now,
    )


def _served(workers: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return how many living workers serve each queue that one of them names."""
    alive = [each for each in workers if each["is_alive"]]
    names = {name for each in alive for name in each["queues"] or ()}
    return {name: sum(capacity.serves(each, name) for each in alive) for name in names}


def _unserved(queues: Sequence[dict[str, Any]], workers: Sequence[dict[str, Any]]) -> list[str]:
    """Return the queues that no living worker serves."""
    alive = [each for each in workers if each["is_alive"]]
    names = (each["queue"] for each in queues if not each["queue"].startswith("@"))
    return [name for name in names if not any(capacity.serves(each, name) for each in alive)]


async def worker(context: Context) -> Response:
    """One worker, what it executes, and the memory that it held."""
    name, now = context.query("name"), context.now()
    [known, running] = await context.database.read(observe.worker(name), observe.running(name))
    if known is None:
        raise HTTPException(404, f"there is no worker {render.short(name)}: none is registered, and none holds jobs")
    usual = await context.part("usual times", context.database.shared("usual", 600.0, series.usual), {})
    lines = {each: (at, values) for each, at, values in await _memory(context) if len(at) > 1}
    return context.page(
        "worker.html",
        worker=known,
        running=queue_parts.aged(running, usual, now),
        bar=capacity.bar,
        memory=render.line(*lines[name], known["memory_limit"]) if name in lines else None,
        memory_level=capacity.memory_level(known),
        able=able,
        now=now,
    )


async def _memory(context: Context) -> list[Row]:
    """Return (worker, epochs of minutes, bytes) of the last hour."""
    reading = context.database.shared("memory", 60.0, observe.worker_memory)
    return await context.part("the memory of workers", reading, [])


def by_supervisor(workers: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any] | None, list[dict[str, Any]]]]:
    """Return the workers under their supervisors, with what these hold; those without one (None) first."""
    found: dict[tuple[Any, ...] | None, list[dict[str, Any]]] = {}
    for each in workers:
        found.setdefault(_supervisor(each), []).append(each)
    groups = []
    for key, rows in sorted(found.items(), key=lambda item: item[0] is not None):
        known = [each["memory"] for each in rows if each["memory"] is not None]
        host, name, pid = key or (None, None, None)
        above = {"host": host, "name": name, "pid": pid, "memory": sum(known) if known else None}
        groups.append((above if key else None, rows))
    return groups


def _supervisor(worker: dict[str, Any]) -> tuple[Any, ...] | None:
    info = worker["info"] if isinstance(worker["info"], dict) else {}
    above = info.get("supervisor")
    # A client in another language may register with any JSON.
    if not isinstance(above, dict):
        return None
    return tuple(str(each or "") for each in (info.get("host"), above.get("name"), above.get("pid")))


def able(worker: dict[str, Any]) -> list[tuple[str, Action]]:
    """Return the actions that can do something to a worker now."""
    names = {"kill": (), "stop": ("kill",), "quiet": ("resume", "stop", "kill")}.get(
        worker["command"], ("quiet", "stop", "kill")
    )
    if not worker["is_alive"]:
        return []
    return [(name, OF_WORKERS[name]) for name in names]


async def act_on_worker(context: Context) -> Response:
    """Make a worker quiet, resume, stop or kill it."""
    form = await context.form()
    job = one(form, "job")
    if job and one(form, "do") == "kill" and one(form, "confirm") == "yes":
        return await _kill_for(context, job)
    return await _act(context, "worker", OF_WORKERS, form)


async def _kill_for(context: Context, job: str) -> Response:
    """Kill the worker that executes a job. If it has ended since the question, the worker's other jobs run on."""
    kill = OF_WORKERS["kill"]
    context.require(kill.right)
    if not (job.isascii() and job.isdigit() and len(job) <= 18):
        raise HTTPException(400, "this is not the id of a job")
    name = await change(context, operate.kill_worker(job_id=int(job)))
    said = f"{name}: {kill.said}" if name else "nothing was sent: it does not execute, or its worker was asked already"
    return context.go(f"jobs/{job}", said=said)


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
    return await _act(context, "schedule", OF_SCHEDULES, form)


async def _set_schedule(context: Context, form: Form) -> Response:
    context.require("schedule")
    name = one(form, "name")
    given = {option: one(form, option).strip() for option in ("expression", "timezone")}
    if "confirm" not in form:
        [found] = await context.database.read(observe.schedule(name))
        if found is None:
            raise HTTPException(404, f"there is no schedule {render.short(name)}")
        return context.page("set_schedule.html", schedule=found, given=given, in_words=in_words)
    reset = [option for option, value in given.items() if not value]
    call = operate.configure_schedule(name, given["expression"] or None, given["timezone"] or None, reset)
    is_changed = await change(context, call)
    return context.go("schedule", name=name, said="it is set from now on" if is_changed else "it was unchanged")


async def _act(context: Context, of: str, actions: dict[str, Action], form: Form | None = None) -> Response:
    form = await context.form() if form is None else form
    name, what = one(form, "name"), one(form, "do")
    action = actions.get(what)
    if action is None:
        raise HTTPException(400, "there is no such action")
    context.require(action.right)
    if one(form, "confirm") != "yes":
        return context.page("sure.html", asked_of=of, name=name, what=what, action=action, job=one(form, "job"))
    found = await change(context, action.call(name))
    if found and what == "run":
        return context.go(f"{of}s", said=f"job {found} was enqueued")
    return context.go(f"{of}s", said=f"{name}: {action.said if found else action.otherwise}")
