"""The tables of the screen: their columns, and their rows from what was read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pgqueue import verdict
from pgqueue._filters import parse
from pgqueue.db import observe
from pgqueue.db.call import Call
from pgqueue.logs import printable

Row = Sequence[object]

# Jobs that are listed.
_MOST = 100

# States whose numbers are shown at the top.
STATES = ("due", "executing", "failed", "blocked", "dead")

COLUMNS = {
    "overview": ("state", "late", "what", "due", "run", "block", "dead", "cause", "evidence", "do"),
    "queues": ("queue", "lag s", "due", "scheduled", "executing", "failed", "blocked", "dead", "paused"),
    "jobs": ("id", "task", "queue", "state", "attempts", "worker", "key", "last error"),
    "workers": ("worker", "alive", "command", "host", "queues", "executing", "lapsed", "MiB", "last heartbeat"),
    "schedules": ("name", "when", "task", "next", "last outcome", "paused", "error"),
    "limits": ("kind", "of", "executing", "started", "of the fullest", "waiting", "paused"),
}


def rows_of(tab: str, line: str, order: str, stats: dict[str, Any], ask: Callable[[Call[Any]], Any]) -> Iterable[Row]:
    """Yield the rows of a tab but the first, from numbers that were read and from what it asks for."""
    match tab:
        case "queues":
            for each in sorted(stats["queues"], key=lambda queue: -queue["lag"]):
                states = ("due", "scheduled", "executing", "failed", "blocked", "dead")
                numbers = (observe.counted(each, name) for name in states)
                yield (each["queue"], each["lag"], *numbers, (each["paused_at"] or "")[:19])
        case "jobs":
            found = ask(observe.search(order, parse(line), None, _MOST))
            for each in ask(observe.jobs(found.ids)):
                error = ": ".join(filter(None, (each["error_class"], each["error"])))
                names = ("id", "task", "queue", "state", "attempts", "reserved_by", "key")
                yield (*(each[name] for name in names), error)
            if found.is_cut:
                yield ("", "there may be more: it stopped after 20,000 rows")
        case "workers":
            found = ask(observe.workers())
            for each in found[: observe.MOST_LISTED]:
                info = each["info"] if isinstance(each["info"], dict) else {}
                served = ", ".join(each["queues"] or ["all"])
                yield (
                    each["worker"],
                    "yes" if each["is_alive"] else "NO",
                    each["command"],
                    info.get("host"),
                    served,
                    _executing(each),
                    each["lapsed"],
                    None if each["memory"] is None else round(each["memory"] / 2**20),
                    (each["last_heartbeat_at"] or "never")[:19],
                )
            yield from _more(found)
        case "schedules":
            found = ask(observe.schedules())
            for each in found[: observe.MOST_LISTED]:
                when = each["expression"] or f"every {each['every']}"
                paused = (each["paused_at"] or "")[:19]
                yield (each["name"], when, each["task"], each["next_at"], each["last_outcome"], paused, each["error"])
            yield from _more(found)
        case "limits":
            paused_by = {(each["kind"], each["target"]): _pause(each) for each in stats["pauses"]}
            for each in stats["limits"]:
                used, most = each["used"], each["max_executing"]
                executing = each["executing"] if most is None else f"{used} of {most}"
                most_started = each["burst"] or each["rate"]
                started = f"{each['started']} of {most_started} per {each['per']}" if most_started else None
                fullest = each["used_by"] or each["started_by"]
                paused = paused_by.pop((each["kind"], each["target"]), None)
                waiting = observe.counted(each, "waiting")
                yield (each["kind"], each["target"], executing, started, fullest, waiting, paused)
            # What is paused and has no limit.
            for (kind, target), paused in paused_by.items():
                yield (kind, target, None, None, None, None, paused)


def identity(tab: str, row: Row) -> tuple[object, ...]:
    """Return what a row is about: that of the next reading with the same is the same one."""
    match tab:
        case "limits":
            return tuple(row[:2])
        case "overview":
            # A finding has no counts, and there may be several of one topic.
            return (row[2], None if row[3] else row[7])
    return tuple(row[:1])


def overview(
    queues: Sequence[dict[str, Any]], late: Sequence[Mapping[str, Any]], findings: Sequence[dict[str, str]]
) -> Iterable[Row]:
    """Yield the rows of the first screen: late queues with their counts and cause, findings, and the other queues."""
    shown, quiet = verdict.in_order(queues, late, {})
    causes = {each["queue_name"]: each for each in late}
    on_time = []
    for queue in [*shown, *quiet]:
        why = causes.get(queue["queue"])
        numbers = [observe.counted(queue, name) for name in ("due", "executing", "blocked", "dead")]
        age = seconds(verdict.age(queue))
        if why is not None:
            yield (
                why["severity"],
                age,
                queue["queue"],
                *numbers,
                verdict.cause_of(why),
                why["evidence"],
                why["remedy"],
            )
        else:
            level = verdict.level(queue)
            on_time.append((level, age, queue["queue"], *numbers, "on time" if level == "ok" else level, "", ""))
    # Late ones that no sample has yet.
    for each in late:
        if each["queue_name"] not in {known["queue"] for known in queues}:
            age, cause = seconds(verdict.age(each)), verdict.cause_of(each)
            yield (each["severity"], age, each["queue_name"], "", "", "", "", cause, each["evidence"], each["remedy"])
    for finding in verdict.beside(late, findings):
        topic, evidence, remedy = finding["topic"].replace("_", " "), finding["evidence"], finding["remedy"]
        # What it is about may have a long name, and would push the causes from a narrow screen.
        yield (finding["severity"], "", topic, "", "", "", "", finding["subject"], evidence, remedy)
    yield from on_time


def alive_of(stats: Sequence[Mapping[str, Any]]) -> str:
    """Say how many workers are alive, and how many others are registered: "3, 1 silent"."""
    alive = sum(len(verdict.living(each)) for each in stats)
    silent = sum(len(each["workers"]) for each in stats) - alive
    return f"{alive}, {silent} silent" if silent else str(alive)


def seconds(value: float) -> str:
    """Write a time in the unit that suits it."""
    for limit, unit, divisor in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if value < limit:
            return f"{value / divisor:.0f} {unit}"
    return f"{value / 86_400:.0f} d"


def _executing(worker: dict[str, Any]) -> object:
    """Say how many jobs a worker executes; what it holds beyond its slots was fetched ahead, or is in a batch."""
    held, slots = worker["executing"], verdict.slots_of(worker)
    return held if slots is None or held <= slots else f"{slots}, {held - slots} more held"


def _more(found: Sequence[object]) -> Iterable[Row]:
    """Say that not all are listed."""
    if len(found) > observe.MOST_LISTED:
        yield ("", f"the first {observe.MOST_LISTED}; there are more")


def _pause(each: dict[str, Any]) -> str:
    """Say what stands still: by whom, and until when."""
    until = f"until {each['until'][:19]}" if each["until"] else "until resumed"
    return f"{each['source']} {until}"


def short(value: object) -> str:
    """Write a cell, on one line and cut."""
    text = printable(" ".join(str("" if value is None else value).split()))
    return text if len(text) <= 80 else text[:79] + "…"
