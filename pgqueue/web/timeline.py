"""What became of a job, by the times that its row has; and what of it no row has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pgqueue.web.render import short, stamp

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
        if isinstance(each.get("at"), str):
            found.append((each["at"], _words(each, number)))
    if job["reserved_at"]:
        last = f", the last of {job['claims']} claims" if job["claims"] > 1 else ""
        found.append((job["reserved_at"], f"reserved by {short(job['reserved_by'])}{last}"))
    if job["cancel_requested_at"]:
        found.append((job["cancel_requested_at"], "cancel requested"))
    if job["finished_at"]:
        found.append((job["finished_at"], job["state"]))
    return sorted((each for each in found if each[0]), key=lambda event: stamp(event[0]))


def unrecorded(job: dict[str, Any], errors: Sequence[dict[str, Any]]) -> list[str]:
    """Return what happened at times that are not recorded, in sentences."""
    found = []
    if job["claims"] > 1:
        found.append("Of earlier claims only the errors are recorded.")
    if job["losses"]:
        times = "once" if job["losses"] == 1 else f"{job['losses']} times"
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
