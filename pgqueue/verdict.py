"""The verdict on all queues: the sentence on top of the pages and of `pgqueue top`, and the order of queues below it.

It says who is late, since when, why, and what to do; or that all is well. What a worker decides after a failed attempt
is another one, in `worker.hold.held`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgqueue.logs import how_many

# Seconds after which a queue is late, and very late.
LATE, VERY_LATE = 30, 300

# The most queues that stand in rows, while the others fold, and the least, where there are as many.
_MOST, _LEAST = 12, 5

# What why_late() calls the cause, in a few words; its evidence stands below.
CAUSES = {
    "paused": "it is paused",
    "throttled": "{subject} is throttled",
    "breaker": "{subject} fails, and its breaker has stopped it",
    "limit": "{subject} is at its limit",
    "key": "its jobs wait behind one job of key {subject}",
    "no_worker": "no worker serves it",
    "unknown_task": "no worker knows {subject}",
    "slots": "{subject} takes its slots and does not end",
    "starved": "its workers serve other queues first",
    "flood": "{subject} floods it",
    "database": "the database is slow",
    "workers": "its workers do not keep up",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """`level`: ok, late or critical. `queue`: the one that is late, "" for another problem, which `words` names.

    `cause` and `subject`: as why_late() has them.
    """

    level: str
    queue: str = ""
    lag: float = 0.0
    words: str = ""
    evidence: str = ""
    remedy: str = ""
    others: Sequence[Mapping[str, Any]] = ()
    cause: str = ""
    subject: str = ""


def living(stats: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the workers of stats() whose last heartbeat is recent enough, as worker_status.is_alive has it."""

    def is_alive(worker: Mapping[str, Any]) -> bool:
        info = worker["info"]
        every = info.get("heartbeat") if isinstance(info, dict) else None
        patience = 5 + (min(max(every, 10), 60) if isinstance(every, int | float) else 10)
        # By the time at which the numbers were read: pages and screens show them for seconds.
        return bool(worker["last_beat_at"]) and _instant(stats["at"]) - _instant(worker["last_beat_at"]) < patience

    return [each for each in stats["workers"] if is_alive(each)]


def _instant(value: str) -> float:
    return datetime.fromisoformat(value).timestamp()


def level(numbers: Mapping[str, Any]) -> str:
    """Return how late a queue is: ok, late, critical, or paused, which is late on purpose."""
    if numbers["paused_at"]:
        return "paused"
    if numbers["lag"] >= LATE:
        return "critical" if numbers["lag"] >= VERY_LATE else "late"
    # What waits for a limit or behind a key does so on purpose for a while.
    return "late" if numbers["stuck_for"] >= VERY_LATE else "ok"


def age(numbers: Mapping[str, Any]) -> float:
    """Return what makes a queue late: the age of its oldest due job, or of the oldest one that is stuck."""
    lag, stuck_for = numbers["lag"], numbers["stuck_for"]
    return float(lag if lag >= LATE or stuck_for < VERY_LATE else stuck_for)


def worst(queues: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the numbers of the queue whose oldest due job waits longest; a paused one is late on purpose."""
    return max((each for each in queues if not each["paused_at"]), key=lambda each: each["lag"], default=None)


def still_late(late: Sequence[Mapping[str, Any]], queues: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows of why_late() but those of queues that caught up since, by numbers, which are read more often.

    What the numbers do not have stays, such as a task that no worker knows, before the first sample.
    """
    on_time = {each["queue"] for each in queues if level(each) == "ok"}
    return [row for row in late if row["lag"] < LATE or row["queue_name"] not in on_time]


def reach(
    late: Sequence[Mapping[str, Any]],
    findings: Sequence[Mapping[str, str]],
    queues: Sequence[Mapping[str, Any]],
    alive: int | None = None,
) -> Verdict:
    """Reach the verdict: the worst of the queues that are `late`, else a critical finding, else that all is well.

    With `alive` = 0 workers, all is well only while no job is due. The age is that of the `queues`, as the table beside
    it has it: `late` may be a minute old.
    """
    troubled = [each for each in late if each["severity"] != "info"]
    if troubled:
        first, *others = troubled
        now = next((each for each in queues if each["queue"] == first["queue_name"] and level(each) != "ok"), first)
        found = "critical" if first["severity"] == "critical" or now["lag"] >= VERY_LATE else "late"
        return Verdict(
            found, first["queue_name"], age(now), cause_of(first), first["evidence"], first["remedy"], others,
            first["cause"], str(first["subject"]),
        )  # fmt: skip
    critical = next((each for each in findings if each["severity"] == "critical"), None)
    if critical is not None:
        words = f"{critical['topic'].replace('_', ' ')}: {critical['subject']}"
        return Verdict("critical", "", 0.0, words, critical["evidence"], critical["remedy"])
    running = [each for each in queues if not each["paused_at"]]
    oldest = worst(running)
    due = sum(each["due"] for each in running)
    if alive == 0 and oldest is not None and due:
        is_cut = any(each["due"] >= stop for each in running if (stop := each.get("counted_to")) is not None)
        jobs = f"{'at least ' if is_cut else ''}{how_many(due, 'job', '{:,}'.format)}"
        words = f"{jobs} {'wait' if due > 1 else 'waits'}, and no worker is alive: start one"
        evidence = f"the oldest is due in queue {oldest['queue']}"
        return Verdict("late", "", 0.0, words, evidence, "pgqueue worker -r MODULE")
    if oldest is None or not oldest["lag"]:
        return Verdict("ok")
    return Verdict("ok", oldest["queue"], float(oldest["lag"]))


def in_order(
    queues: Sequence[dict[str, Any]], late: Sequence[Mapping[str, Any]], busy: Mapping[str, float]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the queues to show in rows, the ones that need it most first, and those that are quiet.

    `busy`: what starts of each in a second.
    """
    places = {row["queue_name"]: place for place, row in enumerate(late)}

    def need(each: dict[str, Any]) -> tuple[bool, float, float, int]:
        is_late = each["queue"] in places or level(each) != "ok"
        # In the order of the causes that are known; what is paused is late on purpose.
        place = places.get(each["queue"], len(places)) + (len(places) if each["paused_at"] else 0)
        return (is_late, -float(place), busy.get(each["queue"], 0.0), each["length"])

    found = sorted(queues, key=need, reverse=True)
    shown = max(_LEAST, sum(need(each)[0] for each in found))
    if len(found) <= shown + 1:
        shown = len(found)
    return found[: min(shown, _MOST)], found[min(shown, _MOST) :]


def cause_of(row: Mapping[str, Any]) -> str:
    """Return the cause of why_late() in a few words."""
    return CAUSES.get(row["cause"], str(row["cause"])).replace("{subject}", str(row["subject"]))


# Topics of doctor() that are about queues, of which a finding may name several; the other ones are about a subject.
_ABOUT_QUEUES = {"no_worker", "paused", "lag", "starved"}


def beside(late: Sequence[Mapping[str, Any]], findings: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Return the findings of doctor() that are not the cause of one of the queues that are `late`."""
    topics = {"workers": "lag"}
    named = {(topics.get(row["cause"], row["cause"]), str(row["subject"])) for row in late}
    # doctor() finds the session or the table itself, and tasks that are given back.
    subjects = {subject for topic, subject in named if topic in ("database", "unknown_task")}

    def is_named(finding: Mapping[str, str]) -> bool:
        topic, subject = finding["topic"], finding["subject"]
        several = topic in _ABOUT_QUEUES and subject.endswith(" queues")
        return subject in subjects or (topic, subject) in named or (several and any(topic == each for each, _ in named))

    return [each for each in findings if not is_named(each)]


def slots_of(worker: Mapping[str, Any]) -> int | None:
    """Return how many jobs a worker says that it runs at once; a client in another language may report anything."""
    info = worker["info"]
    found = info.get("concurrency") if isinstance(info, dict) else None
    return found if type(found) is int and 0 <= found <= 1_000_000 else None
