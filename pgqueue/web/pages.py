"""The pages that only read. Each reads samples, or a bounded number of rows."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from pgqueue import __version__, metrics
from pgqueue.db import consume, observe, operate
from pgqueue.schema import bundled
from pgqueue.schema.status import Status
from pgqueue.search import DUE_STATES, ORDERS, STATES, WORDS, Filter, exactly
from pgqueue.web import capacity, commands, counting, render, series, timeline, traces, verdict, workflows
from pgqueue.web.capacity import Running
from pgqueue.web.context import Context
from pgqueue.web.overview import DEATHS, EXECUTING, FINDINGS, LATELY, LATENESS, TRENDS, is_alive

log = logging.getLogger("pgqueue.web")

# Jobs on a page.
PAGE = 50

# Seconds over which the rate of a task is taken, and what counts in it.
_LATELY = 600
_ENDS = ("succeeded", "failed", "dead", "cancelled")

# Where they could not be read.
NO_RELATIVES: dict[str, Any] = {"parents": [], "more_parents": 0, "children": [], "steps": []}

_LIVE = {"waiting", "executing", "failed", "blocked"}


async def queues(context: Context) -> Response:
    """All queues, the ones in trouble first."""
    stats = await context.database.stats()
    options = await context.database.shared("queues", 5.0, observe.queues)
    trends = await context.part("the trends", context.database.shared("trends", 10.0, observe.trends), [])
    return context.page(
        "queues.html",
        queues=[
            {**each, "level": verdict.level(each), "age": verdict.age(each)}
            for each in _in_trouble_first(stats["queues"])
        ],
        sparklines=render.sparklines(trends),
        options={each["name"]: each for each in options},
        counted_at=stats["sampled_at"] or stats["at"],
        now=context.now(),
    )


async def queue(context: Context) -> Response:
    """One queue: why it is late, its numbers, what runs, its options, its workers, its dead jobs."""
    name, now, shared = context.query("name"), context.now(), context.database.shared
    stats = await context.database.stats()
    options = await shared("queues", 5.0, observe.queues)
    numbers = next((each for each in stats["queues"] if each["queue"] == name), None)
    known = next((each for each in options if each["name"] == name), {})
    if numbers is None:
        raise HTTPException(404, f"there is no queue {render.short(name)}")
    groups = await context.part(DEATHS, shared(("dead", name), 60.0, lambda: observe.dead_groups(name)), [])
    late = await context.part(LATENESS, shared(("why", name), 10.0, lambda: observe.why_late(name)), [])
    held = await context.part(EXECUTING, shared("executing", 2.0, observe.executing), [])
    usual = await context.part(TRENDS, shared("usual", 600.0, series.usual), {})
    lately = await shared("lately", 5.0, lambda: series.lately(LATELY))
    [running, paused_by] = await context.database.read(observe.running_in(name), observe.paused_by(name))
    alive = [each for each in stats["workers"] if is_alive(each, now)]
    return context.page(
        "queue.html",
        name=name,
        paused_by=paused_by,
        numbers=numbers,
        level=verdict.level(numbers),
        age=verdict.age(numbers),
        verdict=verdict.reach(late, (), [numbers]),
        rates=lately.get(name, {}),
        slots=capacity.of_queue(name, alive, [Running(*each) for each in held], usual, now),
        running=[
            (each, age, capacity.level_of(age, usual.get(each["task"])), usual.get(each["task"]), capacity.bar)
            for each in running
            for age in [now - render.stamp(each["reserved_at"])]
        ],
        options=known,
        groups=groups[:10],
        workers=[each for each in stats["workers"] if capacity.serves(each, name)],
        limits=[each for each in stats["limits"] if each["kind"] == "queue" and each["target"] == name],
        ranges=series.RANGES,
        now=now,
    )


async def jobs(context: Context) -> Response:
    """Jobs that fit a filter: newest first, oldest first, or those that are due first."""
    line, order, after = context.query("q"), context.query("order", ORDERS[0]), context.query("after")
    wanted = context.filter(line)
    [found] = await context.database.read(observe.search(order, wanted, after or None, PAGE))
    [rows] = await context.database.read(observe.jobs(found.ids))
    counted = await counting.count(context.database, wanted, order) if context.query("count") else None
    return context.page(
        "jobs.html",
        q=line,
        jobs=rows,
        found=found,
        order=order,
        after=after,
        about=await counting.about(context.database, wanted, order),
        counted=counted,
        counted_at=datetime.fromtimestamp(context.now(), UTC).isoformat(),
        all_of=_all_of(line, wanted, order),
        orders=ORDERS,
        states=STATES,
        words=WORDS,
        actions=actions_for(wanted.get("states")),
        now=context.now(),
    )


async def job(context: Context) -> Response:
    """Everything about one job."""
    job_id = _id_of(context)
    [found] = await context.database.read(observe.job(job_id))
    if found is None:
        raise HTTPException(404, f"there is no job {job_id}, or its retention has ended")
    [why] = await context.part("why it is in this state", context.database.read(operate.explain(job_id)), [None])
    columns = {name: found[name] for name in found if name not in ("args", "headers", "result", "errors")}
    neighbours = await context.part("others of its key", _neighbours(context, columns), [])
    [(docs, owner)] = await context.database.read(observe.about_task(columns["task"]))
    redact, errors, now = context.settings.redact, _errors(found), context.now()
    tries = timeline.attempts(columns, errors, now)
    # A handler may write into them what it was given.
    reading = context.database.read(*([observe.job_log(job_id)] if context.may("args") else []))
    logged = await context.part("its log lines", reading, [])
    lived = timeline.life(columns, tries, now)
    named = [each.error for each in tries]
    return context.page(
        "job.html",
        job=columns,
        why=why,
        documents={
            name: render.document(_decoded(context, found) if name == "args" else found.texts[name], redact)
            for name in ("args", "headers", "result")
            if found.texts.get(name) not in (None, "null")
        },
        level=_level(columns, now),
        tries=tries,
        traces=[traces.parse(each.get("traceback")) for each in named],
        logs=_by_attempt(logged[0] if logged else []),
        by_queue=[each for each in errors if all(each is not known for known in named)],
        life=lived,
        life_in_words=timeline.in_words(lived),
        like=await _like(context, columns, errors),
        timeline=timeline.events(columns, errors),
        unrecorded=timeline.unrecorded(columns, errors),
        neighbours=neighbours,
        trace=_trace(context, found),
        docs=docs,
        owner=owner,
        command=commands.copy(columns, found.texts["args"], redact, context.may("args")),
        relatives=await context.part(
            "what it waits for and what waits for it", workflows.relatives(context, columns), NO_RELATIVES
        ),
        actions=actions_for([columns["state"]]),
        now=now,
    )


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
    """One task: declared and set options side by side. Jobs may be of a task that no worker has declared."""
    name = context.query("name")
    [known] = await context.database.read(observe.task(name))
    times = await _times(context)
    if known is None and name not in times:
        [jobs] = await context.database.read(observe.search("newest", {"tasks": [exactly(name or "?")]}, None, 1))
        # A search that was cut may not have come to one.
        if not jobs.ids and jobs.next is None:
            raise HTTPException(
                404, f"there is no task {render.short(name)}: no worker has declared it, no job is of it"
            )
    effective = known["effective"] if known else {}
    options = [
        (key, known.get(f"declared_{key}"), known.get(key), value)
        for key, value in effective.items()
        if known and key != "name"
    ]
    return context.page(
        "task.html",
        name=name,
        docs=effective.get("docs"),
        owner=effective.get("owner"),
        options=options,
        times=times.get(name),
        now=context.now(),
    )


async def limits(context: Context) -> Response:
    """Limits, with the jobs that they count and that wait for them."""
    stats = await context.database.stats()
    return context.page("limits.html", limits=stats["limits"], pauses=stats["pauses"], now=context.now())


async def dead(context: Context) -> Response:
    """The dead jobs, by their last error."""
    name, now, shared = context.query("queue") or None, context.now(), context.database.shared
    groups = await shared(("dead", name), 60.0, lambda: observe.dead_groups(name))
    stats = await context.database.stats()
    return context.page(
        "dead.html",
        groups=groups,
        queue=name,
        dead_today=await shared("dead today", 60.0, observe.dead_today),
        kept=sum(each["dead"] for each in stats["queues"] if name is None or each["queue"] == name),
        new=sum(render.is_within(each["first_at"], 86_400, now) for each in groups),
        growing=sum(each["jobs"] > 1 and render.is_within(each["last_at"], 600, now) for each in groups),
        now=now,
    )


async def audit(context: Context) -> Response:
    """The actions of operators, newest first."""
    [rows] = await context.database.read(observe.audit(context.whole("before")))
    return context.page("audit.html", rows=rows, now=context.now())


async def health(context: Context) -> Response:
    """The findings of doctor(), versions and settings."""
    findings = await context.part(FINDINGS, context.database.shared("doctor", 60.0, observe.doctor), [])
    stats = await context.database.stats()
    rows = await context.part("the numbers of the server", context.database.shared("metrics", 2.0, observe.metrics), [])
    [installed, settings] = await context.database.read(consume.version(), observe.settings())
    return context.page(
        "health.html",
        findings=findings,
        stats=stats,
        installed=installed,
        refusal=Status.of(installed).refusal("this database"),
        settings_of_queue=settings,
        known=(__version__, bundled.revisions()[-1]),
        skew=context.now() - time.time(),
        server={name: value for name, labels, value in rows if not labels},
        dead_tuples=sorted((labels["table"], value) for name, labels, value in rows if name == "pgqueue_dead_tuples"),
        wrong_clocks=_wrong_clocks(stats["workers"]),
        now=context.now(),
    )


async def metrics_text(context: Context) -> Response:
    """The metrics of the database, for Prometheus."""
    if not metrics.is_available():
        raise HTTPException(404, "prometheus-client is not installed: pip install 'pgqueue-sql[metrics]'")
    rows = await context.database.shared("metrics", 2.0, observe.metrics)
    return Response(metrics.as_text(metrics.of_database(rows)), media_type=metrics.CONTENT_TYPE)


async def points(context: Context) -> Response:
    """The points of plots: times, what came, started and ended per second, how long jobs waited, what is due."""
    name, span = context.query("queue"), series.RANGES.get(context.query("range"), 900)
    rows = await context.database.shared(("series", name, span), 2.0, lambda: observe.series(name, span))
    now = round(context.now())
    return JSONResponse({"from": now - span, "to": now, **series.points(rows)})


def actions_for(states: Sequence[str] | None) -> list[tuple[str, str]]:
    """Return the actions that can do something to jobs in these states, with their labels."""
    every = [
        ("run", "Run now", {"waiting", "failed"}),
        ("retry", "Retry", {"dead", "cancelled"}),
        ("cancel", "Cancel", _LIVE),
        ("kill", "Send to the dead", {"waiting", "failed", "blocked"}),
        ("delete", "Delete", {"waiting", "failed", "blocked", "succeeded", "dead", "cancelled"}),
    ]
    return [(name, label) for name, label, able in every if states is None or able & set(states)]


def _in_trouble_first(queues: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    # Groups stand in their own queue, which is served by no worker, and have a page.
    return sorted((each for each in queues if not each["queue"].startswith("@")), key=_trouble, reverse=True)


def _trouble(numbers: dict[str, Any]) -> tuple[float, int, int]:
    return (float(numbers["lag"]), numbers["failed"] + numbers["dead"], numbers["length"])


async def _times(context: Context) -> dict[str, dict[str, Any]]:
    """Return how each task performed in the last hour, and as `rate` the attempts that ended per second lately."""
    rows = await context.database.shared(("ended", 3600), 60.0, lambda: observe.ended_by_task(3600))
    lately = context.now() - _LATELY
    recent = render.by_task((task, ended) for task, ended, at in rows if at > lately)
    times = render.by_task((task, ended) for task, ended, _ in rows)
    for task, entry in times.items():
        ended = sum(recent.get(task, {}).get(name, 0) for name in _ENDS)
        entry["rate"] = ended / _LATELY
    return times


def _all_of(line: str, wanted: Filter, order: str) -> str:
    """Return the filter of "all that match": of the jobs that the order has, and no others."""
    states = wanted.get("states")
    if order != "due" or not line.strip():
        return line
    if states is None:
        return f"{line} state:{','.join(DUE_STATES)}"
    return line if set(states) <= set(DUE_STATES) else ""


def _wrong_clocks(workers: Sequence[dict[str, Any]]) -> list[tuple[str, float]]:
    """Return the workers whose clock was a second or more off the server's when they started, the worst first."""
    found = []
    for each in workers:
        ahead = each["info"].get("clock_ahead") if isinstance(each["info"], dict) else None
        if isinstance(ahead, int | float) and abs(ahead) >= 1:
            found.append((each["worker"], float(ahead)))
    return sorted(found, key=lambda pair: -abs(pair[1]))


def _id_of(context: Context) -> int:
    text = str(context.request.path_params["id"])
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise HTTPException(404, "this is not the id of a job")
    return int(text)


def _decoded(context: Context, job: Any) -> str:
    """Return the args as text, decoded where the codec can, else as they are stored."""
    stored: str = job.texts["args"]
    codec = context.settings.codec
    if codec is None or not context.may("args") or not isinstance(job["args"], dict):
        return stored
    try:
        decoded = codec.decode(job["args"])
        # Numbers that Python cannot hold exactly stay as they are stored.
        return stored if decoded == job["args"] else json.dumps(decoded, ensure_ascii=False)
    except Exception as error:
        # A key that is gone, or a codec with a mistake: the page is needed now more than ever.
        log.warning("args of job %s cannot be decoded: %s", job["id"], type(error).__name__)
        return stored


def _errors(found: Any) -> list[dict[str, Any]]:
    errors = found["errors"] or []
    return [each if isinstance(each, dict) else {"message": str(each)} for each in reversed(errors)]


def _by_attempt(lines: Sequence[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for each in lines:
        found.setdefault(each["attempt"], []).append(each)
    return found


def _level(job: dict[str, Any], now: float) -> str:
    """Return how bad the state of a job is: dead, or late, or as it should be."""
    if job["state"] == "dead":
        return "critical"
    is_due = job["state"] in ("waiting", "failed") and job["due_at"]
    return "late" if is_due and now - render.stamp(job["due_at"]) >= verdict.LATE else "ok"


async def _like(context: Context, job: dict[str, Any], errors: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the group of the dead jobs that died of the same error."""
    if job["state"] != "dead" or not errors:
        return None
    reading = context.database.shared(("dead", None), 60.0, lambda: observe.dead_groups(None))
    line = str(errors[0].get("message") or "")
    for each in await context.part(DEATHS, reading, []):
        is_of_it = (each["task"], each["class"]) == (job["task"], errors[0].get("class"))
        if is_of_it and render.fits(each["fingerprint"], line):
            return each
    return None


async def _neighbours(context: Context, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the live jobs of its key."""
    if job["key"] is None or job["finished_at"]:
        return []
    wanted = {"queues": [exactly(job["queue"])], "keys": [exactly(job["key"])], "states": sorted(_LIVE)}
    [found] = await context.database.read(observe.search("newest", wanted, None, 20))
    [rows] = await context.database.read(observe.jobs(found.ids))
    return [each for each in rows if each["id"] != job["id"]]


def _trace(context: Context, found: Any) -> str:
    headers = found["headers"]
    parent = headers.get("traceparent") if isinstance(headers, dict) else None
    template = context.settings.trace_url
    if (
        template is None
        or not isinstance(parent, str)
        or len(parts := parent.split("-")) != 4
        or not parts[1].isalnum()
    ):
        return ""
    return template.replace("{trace_id}", parts[1])
