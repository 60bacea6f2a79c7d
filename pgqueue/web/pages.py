"""The pages that only read. Each reads samples, or a bounded number of rows."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from pgqueue import __version__, metrics, verdict
from pgqueue._filters import DUE_STATES, ORDERS, STATES, WORDS, Filter, exactly, replaced
from pgqueue.db import consume, observe, operate, samples
from pgqueue.schema import bundled
from pgqueue.schema.status import Status
from pgqueue.web import (
    capacity,
    commands,
    counting,
    dead_groups,
    facets,
    queue_parts,
    render,
    sentences,
    series,
    timeline,
    traces,
    workflows,
)
from pgqueue.web.capacity import Running
from pgqueue.web.context import Context
from pgqueue.web.overview import DEATHS, EXECUTING, FINDINGS, LATELY, LATENESS, TRENDS, pauses_of_queues

log = logging.getLogger("pgqueue.web")

# Jobs on a page.
PAGE = 50

# Characters of args that a form shows.
_EDITED = 20_000

# Jobs that match of which the most frequent values are counted, where that is asked for.
SAMPLE = 1000

# Where they could not be read.
NO_RELATIVES: dict[str, Any] = {
    "parents": [],
    "more_parents": 0,
    "children": [],
    "children_are_cut": False,
    "steps": [],
}

_LIVE = {"waiting", "executing", "failed", "blocked"}

# Parts that the page of a queue can do without, and the metrics.
WAITS, TIMES = "how long jobs usually wait", "how long jobs waited and ran"
FACETS = "what they are"


async def queues(context: Context) -> Response:
    """All queues, the ones in trouble first, with the cause of each that is late."""
    stats = await context.database.stats()
    options = await context.database.shared("queues", 5.0, observe.queues)
    late = verdict.still_late(await context.part(LATENESS, context.database.late(), []), stats["queues"])
    pauses = pauses_of_queues(stats)
    causes = {row["queue_name"]: verdict.cause_of(row) for row in late}
    trends = await context.part(TRENDS, context.database.shared("trends", 60.0, samples.trends), [])
    return context.page(
        "queues.html",
        queues=[
            {
                **each,
                "level": verdict.level(each),
                "age": verdict.age(each),
                "cause": causes.get(each["queue"]),
                "pause": pauses.get(each["queue"]),
            }
            for each in _in_trouble_first(stats["queues"])
        ],
        sparklines=render.sparklines(trends),
        options={each["name"]: each for each in options},
        stats=stats,
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
    groups, late, rows = await asyncio.gather(
        context.part(DEATHS, dead_groups.read(context, name), dead_groups.Groups()),
        context.part(LATENESS, shared(("why", name), 10.0, lambda: observe.why_late(name)), []),
        queue_parts.filling(context, name),
    )
    running_now = await context.part(EXECUTING, shared("executing", 2.0, observe.executing), [])
    held = [Running(*each) for each in running_now]
    usual = await context.part(TRENDS, shared("usual", 600.0, series.usual), {})
    trends = await context.part(TRENDS, shared("trends", 60.0, samples.trends), [])
    lately = await shared("lately", 5.0, lambda: series.lately(LATELY))
    waits = await context.part(WAITS, shared(("waits", name), 600.0, lambda: series.usual_waits(name)), [])
    filling = facets.of_queue(name, rows)
    working = facets.of_workers(name, held)
    bars = facets.histogram(filling.waits, waits)
    [running] = await context.database.read(observe.running_in(name))
    alive = verdict.living(stats)
    exact = None
    if context.query("exact"):
        reading = shared("exact", 5.0, lambda: observe.stats(recent=False))
        whole = await context.part("the exact numbers", reading, {"queues": []})
        exact = next((each for each in whole["queues"] if each["queue"] == name), None)
    return context.page(
        "queue.html",
        stats=stats,
        name=name,
        exact=exact,
        pause=pauses_of_queues(stats).get(name),
        numbers=numbers,
        **await queue_parts.beside(context, numbers, groups, rows),
        defaults=queue_parts.DEFAULTS,
        trend=render.sparklines(trends).get(name),
        level=verdict.level(numbers),
        age=verdict.age(numbers),
        verdict=verdict.reach(verdict.still_late(late, [numbers]), (), [numbers]),
        rates=lately.rates.get(name, {}),
        slots=capacity.of_queue(name, alive, held, usual, now),
        filling=filling,
        facets=[*filling.facets, *([working] if working else [])],
        bars=bars,
        bars_in_words=facets.in_words(bars),
        running=queue_parts.aged(running, usual, now),
        bar=capacity.bar,
        options=known,
        groups=groups,
        workers=[each for each in stats["workers"] if capacity.serves(each, name)],
        alone=capacity.alone(name, alive),
        limits=[each for each in stats["limits"] if each["kind"] == "queue" and each["target"] == name],
        pauses=queue_parts.pauses(name, filling, stats["pauses"]),
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
    looking = _sample(context, line, wanted, order) if context.query("facets") else None
    return context.page(
        "jobs.html",
        sample=None if looking is None else await context.part(FACETS, looking, None),
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
    attempts = timeline.attempts(columns, errors, now)
    # A handler may write into them what it was given.
    reading = context.database.read(*([observe.newest_log(job_id)] if context.may("args") else []))
    logged = await context.part("its log lines", reading, [])
    lived = timeline.life(columns, attempts, now)
    relatives = await context.part(
        "what it waits for and what waits for it", workflows.relatives(context, columns), NO_RELATIVES
    )
    changeable, shown_args = (set(), None) if _has_begun(columns, why, relatives) else _changeable(context, found)
    named = [each.error for each in attempts]
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
        attempts=attempts,
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
        relatives=relatives,
        # Its form stands on the page.
        actions=[each for each in actions_for([columns["state"]]) if each[0] != "update"],
        changeable=changeable,
        shown_args=shown_args,
        now=now,
    )


async def limits(context: Context) -> Response:
    """Limits, with the jobs that they count and that wait for them; what is paused; and breakers."""
    stats = await context.database.stats()
    found = await context.database.shared("breakers", 5.0, observe.breakers)
    breakers = found[: observe.MOST_LISTED]
    opened = [each for each in stats["pauses"] if each["source"] == "breaker"]
    states = [(each, _opened(each, opened)) for each in breakers]
    return context.page(
        "limits.html",
        sentence=sentences.of_limits(stats["limits"], stats["pauses"], states),
        limits=stats["limits"],
        pauses=stats["pauses"],
        breakers=states,
        more_breakers=len(found) > len(breakers),
        now=context.now(),
    )


async def audit(context: Context) -> Response:
    """The actions of operators, newest first."""
    [rows, settings] = await context.database.read(observe.audit(context.whole("before")), observe.settings())
    return context.page("audit.html", rows=rows, kept_for=settings["retention_audit"], now=context.now())


async def health(context: Context) -> Response:
    """The findings of doctor(), versions and settings."""
    shared = context.database.shared
    findings, stats, rows = await asyncio.gather(
        context.part(FINDINGS, shared("doctor", 60.0, observe.doctor), []),
        context.database.stats(),
        context.part("the numbers of the server", shared("metrics", 60.0, observe.metrics), []),
    )
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
    rows = await context.database.shared("metrics", 60.0, observe.metrics)
    times = await context.part(TIMES, context.database.times_of_queues(), metrics.QueueTimes())
    text = metrics.as_text([*metrics.of_database(rows), *metrics.of_times({"": times})])
    return Response(text, media_type=metrics.CONTENT_TYPE)


async def points(context: Context) -> Response:
    """The points of plots of a queue or a task: times, what came, started and ended, how long jobs waited.

    `begins`: when the recorded history does, if not before the time that is shown.
    """
    name, task = context.query("queue"), context.query("task")
    span, shared = series.RANGES.get(context.query("range"), 900), context.database.shared
    if task:
        # A task may be in any queue: the samples of all are read.
        rows = await shared(("series of task", task, span), max(span / 60, 5.0), lambda: series.of_task(task, span))
    else:
        rows = await shared(("series", name, span), 2.0, lambda: samples.series(name, span))
    now = round(context.now())
    begins = await shared(("begins", span), 60.0, lambda: samples.begins(span))
    times = {
        "from": now - span,
        "to": now,
        "begins": None if begins is not None and begins <= now - span else begins or now,
    }
    return JSONResponse({**times, **series.points(rows, runs=bool(task))})


def actions_for(states: Sequence[str] | None) -> list[tuple[str, str]]:
    """Return the actions that can do something to jobs in these states, with their labels."""
    every = [
        ("run", "Run now", {"waiting", "failed"}),
        ("retry", "Retry", {"dead", "cancelled"}),
        ("cancel", "Cancel", _LIVE),
        ("update", "Change", {"waiting", "failed", "blocked"}),
        ("kill", "Send to the dead", {"waiting", "failed", "blocked"}),
        ("delete", "Delete", {"waiting", "failed", "blocked", "succeeded", "dead", "cancelled"}),
    ]
    return [(name, label) for name, label, able in every if states is None or able & set(states)]


def _opened(breaker: dict[str, Any], opened: Sequence[dict[str, Any]]) -> int:
    """Return how many of the tasks or tenants of a breaker it has stopped: of one with a star, several."""
    name = breaker["target"]
    return sum(
        each["kind"] == breaker["kind"]
        and (each["target"].startswith(name[:-1]) if name.endswith("*") else each["target"] == name)
        for each in opened
    )


def _has_begun(job: dict[str, Any], why: dict[str, Any] | None, relatives: dict[str, Any]) -> bool:
    """Return whether a job has begun its steps, with which it goes on: only a dead one can be changed."""
    # Between its attempts a job has a leader only if its batch has steps. An event may come before its first one.
    is_waiting_in_one = why is not None and why["reason"] == "event"
    return job["state"] != "dead" and bool(relatives["steps"] or job["leader"] or is_waiting_in_one)


def _changeable(context: Context, found: Any) -> tuple[set[str], str | None]:
    """Return what a form may change of a job, args or the rest, and the args; None: these cannot be shown whole."""
    state = found["state"]
    if found["task"] == "@group" or state in ("executing", "succeeded", "cancelled") or not context.may("act"):
        return set(), None
    stored = found.texts["args"]
    plain = render.document(stored, ())
    is_whole = context.settings.codec is None and plain == render.document(stored, context.settings.redact)
    args = plain if context.may("args") and is_whole and len(plain) <= _EDITED else None
    allowed = {"args"} if args is not None else set()
    return allowed | ({"rest"} if state != "dead" and not found["attempts"] else set()), args


def _in_trouble_first(queues: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    # Groups stand in their own queue, which is served by no worker, and have a page.
    return sorted((each for each in queues if not each["queue"].startswith("@")), key=_trouble, reverse=True)


def _trouble(numbers: dict[str, Any]) -> tuple[float, int, int]:
    return (float(numbers["lag"]), numbers["failed"] + numbers["dead"], numbers["length"])


def _all_of(line: str, wanted: Filter, order: str) -> str:
    """Return the filter of "all that match": of the jobs that the order has, and no others."""
    states = wanted.get("states")
    if order != "due" or not line.strip():
        return line
    if states is None:
        return f"{line} state:{','.join(DUE_STATES)}"
    return line if set(states) <= set(DUE_STATES) else ""


async def _sample(context: Context, line: str, wanted: Filter, order: str) -> facets.Sample | None:
    """Return the most frequent values of the first jobs that match."""
    [found] = await context.database.read(observe.search(order, wanted, None, SAMPLE))
    [rows] = await context.database.read(observe.facets(found.ids))
    jobs = len(found.ids)
    if order == "due":
        # Also of an empty filter, and of one with other states: those are not shown.
        states = [each for each in DUE_STATES if each in wanted.get("states", DUE_STATES)]
        line = replaced(line, "state", ",".join(states))
    return facets.Sample(jobs, found.next is not None, facets.of_jobs(line, rows, jobs))


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
        # The key is gone, or the codec has an error: then the page is needed most.
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
    """Return the severity of the state of a job: dead, late, or fine."""
    if job["state"] == "dead":
        return "critical"
    is_due = job["state"] in ("waiting", "failed") and job["due_at"]
    return "late" if is_due and now - render.stamp(job["due_at"]) >= verdict.LATE else "ok"


async def _like(context: Context, job: dict[str, Any], errors: Sequence[dict[str, Any]]) -> dead_groups.Groups:
    """Return the group of dead jobs with the same error; empty where there is none."""
    if job["state"] != "dead" or not errors:
        return dead_groups.Groups()
    groups = await context.part(DEATHS, dead_groups.read(context), dead_groups.Groups())
    line, of_it = str(errors[0].get("message") or ""), (job["task"], errors[0].get("class"))
    same = (
        each for each in groups if (each["task"], each["class"]) == of_it and render.fits(each["fingerprint"], line)
    )
    return replace(groups, rows=list(islice(same, 1)))


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
