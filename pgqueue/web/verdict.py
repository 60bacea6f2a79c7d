"""The one sentence on top: who is late, since when, why, and what to do; or that all is well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Seconds after which a queue is late, and very late.
LATE, VERY_LATE = 30, 300

# What why_late() calls the cause, in a few words; its evidence stands below.
_CAUSES = {
    "paused": "it is paused",
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
    """`level`: ok, late or critical. `queue`: the one that is late, "" for another problem, which `words` names."""

    level: str
    queue: str = ""
    lag: float = 0.0
    words: str = ""
    evidence: str = ""
    remedy: str = ""
    others: Sequence[Mapping[str, Any]] = ()


def level(lag: float, is_paused: bool = False) -> str:
    """Return how late a queue is: ok, late, critical, or paused, which is late on purpose."""
    if is_paused:
        return "paused"
    return "critical" if lag >= VERY_LATE else "late" if lag >= LATE else "ok"


def reach(
    late: Sequence[Mapping[str, Any]], findings: Sequence[Mapping[str, str]], queues: Sequence[Mapping[str, Any]]
) -> Verdict:
    """Reach the verdict: the worst of the queues that are `late`, else the worst finding, else that all is well."""
    troubled = [each for each in late if each["severity"] != "info"]
    if troubled:
        first, *others = troubled
        lag = max(first["lag"], first["stuck_for"])
        found = "critical" if first["severity"] == "critical" or lag >= VERY_LATE else "late"
        words = _CAUSES.get(first["cause"], first["cause"]).replace("{subject}", str(first["subject"]))
        return Verdict(found, first["queue_name"], lag, words, first["evidence"], first["remedy"], others)
    for severity, found in (("critical", "critical"), ("warning", "late")):
        for each in findings:
            if each["severity"] == severity:
                words = f"{each['topic'].replace('_', ' ')}: {each['subject']}"
                return Verdict(found, "", 0.0, words, each["evidence"], each["remedy"])
    worst = max((each for each in queues if not each["paused_at"]), key=lambda each: each["lag"], default=None)
    if worst is None or not worst["lag"]:
        return Verdict("ok")
    return Verdict("ok", worst["queue"], float(worst["lag"]))
