"""The sentence on top of the pages and of `pgqueue top`, and the order in which queues stand below it.

It says who is late, since when, why, and what to do; or that all is well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    "workers": "it has too few workers",
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
    return float(numbers["lag"] if numbers["lag"] >= LATE or level(numbers) == "ok" else numbers["stuck_for"])


def reach(
    late: Sequence[Mapping[str, Any]],
    findings: Sequence[Mapping[str, str]],
    queues: Sequence[Mapping[str, Any]],
    alive: int | None = None,
) -> Verdict:
    """Reach the verdict: the worst of the queues that are `late`, else a critical finding, else that all is well.

    With `alive` = 0 workers, all is well only while no job is due.
    """
    troubled = [each for each in late if each["severity"] != "info"]
    if troubled:
        first, *others = troubled
        lag = max(first["lag"], first["stuck_for"])
        found = "critical" if first["severity"] == "critical" or first["lag"] >= VERY_LATE else "late"
        return Verdict(
            found, first["queue_name"], lag, cause_of(first), first["evidence"], first["remedy"], others,
            first["cause"], str(first["subject"]),
        )  # fmt: skip
    critical = next((each for each in findings if each["severity"] == "critical"), None)
    if critical is not None:
        words = f"{critical['topic'].replace('_', ' ')}: {critical['subject']}"
        return Verdict("critical", "", 0.0, words, critical["evidence"], critical["remedy"])
    running = [each for each in queues if not each["paused_at"]]
    worst = max(running, key=lambda each: each["lag"], default=None)
    due = sum(each["due"] for each in running)
    if alive == 0 and worst is not None and due:
        words = (
            f"{how_many(due, 'job', '{:,}'.format)} {'wait' if due > 1 else 'waits'}, and no worker is alive: start one"
        )
        evidence = f"the oldest is due in queue {worst['queue']}"
        return Verdict("late", "", 0.0, words, evidence, "pgqueue worker -r MODULE")
    if worst is None or not worst["lag"]:
        return Verdict("ok")
    return Verdict("ok", worst["queue"], float(worst["lag"]))


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
