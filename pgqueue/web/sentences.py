"""What the pages of schedules, limits and groups say on top: what is wrong, or that all is well."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pgqueue import verdict
from pgqueue.web.render import interval, many, number, seconds, short, stamp

# The axis of the time to come, by the logarithm: seconds with their names; the last one is its end.
_MARKS = {60: "1 min", 600: "10 min", 3600: "1 h", 86_400: "1 d", 604_800: "7 d", 2_678_400: "31 d"}


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence, how bad it is (ok, late or critical), and what stands behind it.

    In its middle is the name of a thing, with the `page` of that and what the address has; or none.
    """

    level: str
    begin: str
    because: str = ""
    name: str = ""
    end: str = "."
    page: str = ""
    query: Mapping[str, Any] = field(default_factory=dict)


def of_schedules(rows: Sequence[Mapping[str, Any]], now: float, is_cut: bool = False) -> Sentence:
    """Say which schedule cannot run, is late, or of which the last run came to nothing; else which is next.

    `is_cut`: there are more. Nothing is wrong with those, for what is wrong comes first.
    """
    live = [each for each in rows if not each["paused_at"]]
    paused = [each["name"] for each in rows if each["paused_at"]]
    asleep = f"{len(paused):,} paused: {_some(paused)}." if paused else ""

    def about(level: str, each: Mapping[str, Any], end: str, because: str, begin: str = "") -> Sentence:
        return Sentence(level, begin, because, each["name"], end, "schedule", {"name": each["name"]})

    for each in live:
        if each["error"]:
            return about("critical", each, " cannot run.", f"{each['error']} It is tried again each minute.")
    coming = sorted((each for each in live if each["next_at"]), key=lambda each: stamp(each["next_at"]))
    if coming and (age := now - stamp(coming[0]["next_at"])) >= verdict.LATE:
        return about(
            "late", coming[0], f" is {seconds(age)} late.", "Maintenance enqueues what is due; each worker runs it."
        )
    for each in live:
        last = each["runs"][0] if each["runs"] else None
        if last and last["job_state"] == "dead":
            return about("late", each, " is dead.", "It runs again at its next time.", "The last job of ")
        if last and last["outcome"] == "overlap":
            return about("late", each, " was left out.", "The job before it had not ended.", "The last run of ")
    if not rows:
        because = (
            "Code declares one with @app.schedule, SQL with select pgqueue.schedule('nightly', '0 3 * * *', 'report');"
        )
        return Sentence("ok", "There is no schedule", because)
    if not coming:
        return Sentence("ok", "No run is due", asleep)
    left = stamp(coming[0]["next_at"]) - now
    which = f"Each of the first {len(rows):,} schedules" if is_cut else "Each schedule"
    begin = f"{f'{which} is' if len(live) > 1 else 'It is'} on time: the next is "
    return about("ok", coming[0], f", {f'in {seconds(left)}' if left > 0 else 'now'}.", asleep, begin)


def of_limits(
    limits: Sequence[Mapping[str, Any]],
    pauses: Sequence[Mapping[str, Any]],
    breakers: Sequence[tuple[Mapping[str, Any], int]],
) -> Sentence:
    """Say what is stopped or waits for a limit; else which limit is the fullest."""
    for each, opened in breakers:
        if opened:
            because = f"Its jobs wait for {interval(each['pause'])} after too many attempts failed."
            return Sentence("late", "The breaker of ", because, each["target"], " is open.")
    waited = sorted((each for each in limits if each["waiting"]), key=lambda each: -each["waiting"])
    held = "; ".join(f"{each['kind'].replace('_', ' ')} {short(each['target'], 40)}" for each in pauses[:3])
    stopped = f"Paused: {held}{', …' if len(pauses) > 3 else ''}." if pauses else ""
    if waited:
        most = waited[0]
        jobs = f"{number(most['waiting'], most['counted_to'])} job{'s wait' if most['waiting'] != 1 else ' waits'}"
        used = _taken(most)
        because = f"{used[0].upper()}{used[1:]}." if used else ""
        if len(waited) > 1:
            because += f" Jobs wait for {many(len(waited) - 1, 'other limit')} too."
        is_stopped = most["max_executing"] == 0
        end = f" lets none run: {jobs}." if is_stopped else f" is at the limit: {jobs} for it."
        return Sentence("late", "", " ".join([because, stopped]).strip(), most["target"], end)
    if not limits:
        return Sentence("ok", "Nothing is limited: each queue runs as many jobs as its workers have slots", stopped)
    fullest = max(limits, key=_share)
    because = f"The fullest is {short(fullest['target'], 60)}: {_taken(fullest)}." if _share(fullest) else ""
    return Sentence("ok", "No job waits for a limit", " ".join([because, stopped]).strip())


def of_groups(rows: Sequence[Mapping[str, Any]], *, are_all: bool) -> Sentence:
    """Say which group that has not ended has dead members; else how many are under way, of all or on this page."""
    # A forgotten group has no time: its members alone are left.
    going = [each for each in rows if not each["finished_at"] and each["state"] != "forgotten"]
    here = "" if are_all else " on this page"
    hurt = [each for each in going if each["dead"]]
    if hurt:
        each = hurt[0]
        because = f"{_ended(each)}." + (f" So have {many(len(hurt) - 1, 'other group')}." if len(hurt) > 1 else "")
        dead = number(each["dead"], each["counted_to"])
        end = f" has {dead} dead member{'s' if dead != '1' else ''}, and has not ended."
        return Sentence("late", "", because, _name(each), end, "group", {"id": each["id"]})
    if going:
        each = going[-1]
        is_one = len(going) == 1
        begin = (
            f"{many(len(going), 'group')}{here} {'is' if is_one else 'are'} under way"
            f"{': ' if is_one else ', the oldest is '}"
        )
        return Sentence("ok", begin, f"{_ended(each)}.", _name(each), ".", "group", {"id": each["id"]})
    if rows or not are_all:
        return Sentence("ok", f"No group{here} is under way")
    because = "A group is opened with select pgqueue.open_group('import'); its jobs are awaited together."
    return Sentence("ok", "There is no group yet", because)


def axis() -> list[tuple[str, float]]:
    """Return the marks of the axis of the time to come: (name, place in per cent)."""
    return [(name, _place(after)) for after, name in _MARKS.items()]


def places(schedule: Mapping[str, Any], now: float) -> list[float]:
    """Return the places of the next runs of a schedule on that axis, in per cent."""
    times = [each for each in (schedule["next_at"], *schedule["later"]) if each and each != "infinity"]
    return [_place(stamp(each) - now) for each in times]


def _place(after: float) -> float:
    last = max(_MARKS)
    return round(2 + 94 * math.log1p(min(max(after, 0.0), last) / 20) / math.log1p(last / 20), 2)


def _some(names: Sequence[str]) -> str:
    return ", ".join(short(each, 40) for each in names[:3]) + (", …" if len(names) > 3 else "")


def _name(group: Mapping[str, Any]) -> str:
    return str(group["name"] or f"group {group['id']}")


def _ended(group: Mapping[str, Any]) -> str:
    ended = sum(group[state] for state in ("succeeded", "dead", "cancelled"))
    stop = group["counted_to"]
    return f"{number(ended, stop)} of {number(group['total'], stop)} members have ended"


def _share(limit: Mapping[str, Any]) -> float:
    """Return what part of a limit is taken, the fuller of its two."""
    starts = limit["burst"] or limit["rate"]
    return max(
        (limit["used"] or 0) / limit["max_executing"] if limit["max_executing"] else 0.0,
        (limit["started"] or 0) / starts if starts else 0.0,
    )


def _taken(limit: Mapping[str, Any]) -> str:
    parts = []
    if limit["max_executing"] is not None:
        parts.append(f"{number(limit['used'] or 0)} of {number(limit['max_executing'])} execute")
    if limit["rate"]:
        most = limit["burst"] or limit["rate"]
        parts.append(f"{number(limit['started'] or 0)} of {number(most)} starts of {interval(limit['per'])} are taken")
    return ", ".join(parts)
