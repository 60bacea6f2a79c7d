"""The history of a job, by the times in its row, and the parts of it that are not recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pgqueue.logs import how_many
from pgqueue.verdict import LATE
from pgqueue.web.render import seconds, short, stamp

# Errors that a job keeps.
_KEPT = 10

# Classes of errors that the queue itself gives to jobs, outside of attempts.
_OF_THE_QUEUE = frozenset({"Killed", "ParentFailed", "MemberFailed", "GroupCancelled", "Circle"})


def events(job: dict[str, Any], errors: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return times and what happened then, in order. `errors` begin with the last one."""
    found = [(job["created_at"], "enqueued"), (job["run_at"], "was to run")]
    if job["due_at"]:
        found.append((job["due_at"], "due"))
    for number, each in enumerate(reversed(errors), 1):
        if _stamp(each, "at") is not None:
            found.append((each["at"], _words(each, number)))
    if job["reserved_at"]:
        last = f", the last of {job['claims']} claims" if job["claims"] > 1 else ""
        found.append((job["reserved_at"], f"reserved by {short(job['reserved_by'])}{last}"))
    if job["cancel_requested_at"]:
        found.append((job["cancel_requested_at"], "cancel requested"))
    if job["finished_at"]:
        found.append((job["finished_at"], job["state"]))
    return sorted((each for each in found if each[0]), key=lambda event: stamp(event[0]))


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt: its number, how it ended, where, its error; epochs of its claim (None: not recorded) and end."""

    number: int
    state: str
    worker: str | None
    since: float | None
    until: float
    error: dict[str, Any]
    # How long it waited from being due to the claim, and how long the queue backs off after it.
    waited: float | None = None
    backoff: float | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the life of a job: what it is, from when to when in epochs, and the place in a bar in per cent."""

    kind: str
    since: float
    until: float
    words: str
    number: int | None = None
    x: float = 0.0
    width: float = 0.0


def attempts(job: dict[str, Any], errors: Sequence[dict[str, Any]], now: float) -> list[Attempt]:
    """Return the attempts that are recorded, the oldest first. `errors` begin with the last one."""
    found: list[Attempt] = []
    due: float | None = stamp(job["run_at"])
    for number, each in enumerate(reversed(errors), 1):
        since, until, again = (_stamp(each, name) for name in ("reserved_at", "at", "retry_at"))
        if until is None or each.get("class") in _OF_THE_QUEUE:
            continue
        is_last = job["state"] == "dead" and job["finished_at"] == each["at"]
        counted = each.get("attempt")
        found.append(
            Attempt(
                counted if isinstance(counted, int) else number,
                "dead" if is_last else "failed",
                each["worker"] if isinstance(each.get("worker"), str) else None,
                since,
                until,
                each,
                None if since is None or due is None else max(since - due, 0.0),
                None if again is None else max(again - until, 0.0),
            )
        )
        due = again
    last = stamp(job["reserved_at"]) if job["reserved_at"] else None
    # Older rows do not record when a failed attempt was claimed: the last claim may be that of the last error.
    if last is not None and last >= max((each.until for each in found), default=last):
        end = stamp(job["finished_at"]) if job["finished_at"] else now if job["state"] == "executing" else None
        if end is not None and job["state"] != "dead":
            found.append(Attempt(job["attempts"], job["state"], job["reserved_by"], last, end, {}))
    return found


def life(job: dict[str, Any], attempts: Sequence[Attempt], now: float) -> list[Segment]:
    """Return the life of a job from left to right; widths grow with the logarithm of the time."""
    parts: list[Segment] = []
    at, due = stamp(job["created_at"]), stamp(job["run_at"])

    def add(kind: str, until: float | None, words: str, number: int | None = None) -> None:
        nonlocal at
        if until is not None and until > at:
            parts.append(Segment(kind, at, until, words, number))
            at = until

    for each in attempts:
        add("backoff", due, "backs off" if parts else "scheduled")
        if each.since is None:
            add(f"attempt-{each.state}", each.until, "waited and ran, attempt", each.number)
        else:
            add("wait", each.since, "waits")
            # Times of one attempt may be a moment apart from those of others.
            at = min(at, each.until - 0.001)
            add(f"attempt-{each.state}", each.until, "attempt", each.number)
        again = _stamp(each.error, "retry_at")
        due = at if again is None else again
    end = stamp(job["finished_at"]) if job["finished_at"] else now
    if job["due_at"] and job["state"] in ("waiting", "failed"):
        due = stamp(job["due_at"])
    add("backoff", min(due, end), "backs off" if attempts else "scheduled")
    if job["state"] == "blocked":
        add("blocked", end, "blocked")
    elif job["state"] in ("waiting", "failed") and end - at >= LATE:
        add("late", end, "due, waits for a slot")
    elif not job["finished_at"] or end - at > 0.01:
        add("wait", end, "waits")
    return _placed(parts)


def in_words(parts: Sequence[Segment]) -> str:
    """Return a life in words, for readers who do not see the bar."""
    said = (
        f"{each.words}{'' if each.number is None else f' {each.number}'} for {seconds(each.until - each.since)}"
        for each in parts
    )
    return ", ".join(said)


def _placed(parts: Sequence[Segment]) -> list[Segment]:
    widths = [max(2.6, 3 * math.log10(1 + (each.until - each.since) / 0.1) ** 1.25) for each in parts]
    total, at, found = sum(widths), 0.0, []
    for each, width in zip(parts, widths, strict=True):
        share = 100 * width / total
        placed = (round(at, 2), round(share - 0.25, 2))
        found.append(Segment(each.kind, each.since, each.until, each.words, each.number, *placed))
        at += share
    return found


def _stamp(error: dict[str, Any], name: str) -> float | None:
    try:
        return stamp(error[name])
    except (KeyError, TypeError, ValueError):
        # Any program may have written it.
        return None


def unrecorded(job: dict[str, Any], errors: Sequence[dict[str, Any]]) -> list[str]:
    """Return what happened at times that are not recorded, in sentences."""
    found = []
    ended = sum(each.get("class") not in _OF_THE_QUEUE for each in errors)
    # The last claim is recorded, whatever its outcome.
    if job["claims"] > max(ended, 1) + (job["state"] in ("executing", "succeeded") and ended > 0):
        found.append("Only the last of the claims that ended without an error is recorded.")
    if job["losses"]:
        times = "once" if job["losses"] == 1 else how_many(job["losses"], "time")
        found.append(f"Its lease was lost {times}; when is not recorded.")
    if job["crashed_on"]:
        found.append(f"Workers that died while they ran it: {', '.join(map(short, job['crashed_on']))}.")
    if len(errors) >= _KEPT:
        found.append(f"Errors before the last {_KEPT} are not kept.")
    return found


def _words(error: dict[str, Any], number: int) -> str:
    kind = short(error.get("class"))
    if error.get("class") in _OF_THE_QUEUE:
        return f"ended: {kind}"
    worker = f" on {short(error['worker'])}" if error.get("worker") else ""
    return f"attempt {error.get('attempt', number)} failed{worker}: {kind}"
