"""The pages of workers, and the actions on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from pgqueue.db import observe, operate
from pgqueue.db.call import Row
from pgqueue.web import capacity, queue_parts, render, series
from pgqueue.web.actions import change, one
from pgqueue.web.capacity import Running
from pgqueue.web.context import Context
from pgqueue.web.questions import Action, act

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
    return await act(context, "worker", OF_WORKERS, form)


async def _kill_for(context: Context, job: str) -> Response:
    """Kill the worker that executes a job. If it has ended since the question, the worker's other jobs run on."""
    kill = OF_WORKERS["kill"]
    context.require(kill.right)
    if not (job.isascii() and job.isdigit() and len(job) <= 18):
        raise HTTPException(400, "this is not the id of a job")
    name = await change(context, operate.kill_worker(job_id=int(job)))
    said = f"{name}: {kill.said}" if name else "nothing was sent: it does not execute, or its worker was asked already"
    return context.go(f"jobs/{job}", said=said)
