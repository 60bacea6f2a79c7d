"""The dead in groups: what is behind each mask of a fingerprint, and what became of those that were retried."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from pgqueue.web.render import group_key, interval, is_within, masks_of, seconds, stamp, usually

# What each mask of a fingerprint stands for, as pgqueue._fingerprint finds it.
_MASKED = {
    "n": r"[0-9]+(?:[.,:][0-9]+)*",
    "id": r"[\w-]+",
    "host": r"[a-z0-9.-]+(?::[0-9]+)?",
    "url": r"[A-Za-z][A-Za-z0-9+.-]*://[^\s<>]+",
    "text": r"\"[^\"]*\"|`[^`]*`|'[^']*'",
}

# Values of a mask that are shown, masks of a fingerprint, and jobs.
_VALUES, _MASKS, _NEWEST = 4, 6, 3

# Calls of one operator for one error that come within this time, in seconds, are one retry: a page retries by 500.
_TOGETHER = 600


@dataclass(frozen=True, slots=True)
class Mask:
    """A mask: its name, its most frequent values as (value, jobs, per cent), and how many it has."""

    name: str
    values: Sequence[tuple[str, int, int]]
    different: int


@dataclass(frozen=True, slots=True)
class Behind:
    """The lines of a group, of N jobs: its masks, and the newest jobs as (id, when it died, its line)."""

    jobs: int
    masks: Sequence[Mask]
    newest: Sequence[tuple[int, str, str]]


def behind(fingerprint: str, lines: Sequence[Sequence[Any]]) -> Behind:
    """Return what the masks of a fingerprint hide, from its lines: (line, jobs, last id, when that died)."""
    parts = masks_of(fingerprint)
    names = parts[1::2]
    pattern = re.compile(
        "".join(f"({_MASKED[part]})" if number % 2 else re.escape(part) for number, part in enumerate(parts))
    )
    found: list[Counter[str]] = [Counter() for _ in names]
    for line, jobs, *_ in lines:
        match = pattern.match(line)
        for counter, name, value in zip(found, names, match.groups() if match else (), strict=False):
            counter[_short(name, value)] += jobs
    masks = [
        Mask(name, [(value, jobs, round(100 * jobs / counter.total())) for value, jobs in _most(counter)], len(counter))
        for name, counter in zip(names, found, strict=True)
        if counter
    ]
    newest = [(last_id, last_at, line) for line, _, last_id, last_at in lines[:_NEWEST]]
    return Behind(sum(jobs for _, jobs, *_ in lines), masks[:_MASKS], newest)


def died_within(group: Mapping[str, Any], seconds: int | None, now: float) -> int | None:
    """Return how many jobs of a group died within a time, None for ever; None where hours of a day do not tell."""
    if seconds is None:
        return None
    hours = seconds // 3600
    if hours <= len(group["trend"] or ()):
        return int(sum(group["trend"][-hours:]))
    return int(group["jobs"]) if is_within(group["first_at"], seconds, now) else None


@dataclass(frozen=True, slots=True)
class Deaths:
    """How many jobs died within a time, how many usually do in words, and how bad that is: bad, warn or ""."""

    jobs: int
    words: str
    tone: str


def beside_usual(jobs: int, usual: float | None, *, of_all: bool) -> Deaths:
    """Return how many died beside what is usual in the same time; None: not known. `of_all`: say that these are all."""
    words = [] if usual is None else [usually(usual)]
    if of_all or usual is None:
        words.append("in all queues")
    # Two deviations more than usual are seldom chance.
    unlikely = 0.0 if usual is None else usual + 2 * math.sqrt(usual)
    tone = "bad" if usual is None or jobs > 3 * max(usual, 1) else "warn" if jobs > unlikely else ""
    return Deaths(jobs, ", ".join(words), tone if jobs else "")


def mostly(groups: Iterable[Mapping[str, Any]], jobs: int) -> str | None:
    """Return the class of the error that more than half of the jobs of a day died of; None: there is none."""
    found: Counter[str] = Counter()
    for each in groups:
        found[each["class"] or "no class"] += sum(each["trend"] or ())
    return next((kind for kind, most in found.most_common(1) if most * 2 > jobs), None)


def kept_in_words(how_long: str | None, oldest: str | None, now: float) -> str:
    """Return for how long dead jobs are kept, an interval of the database's, and when the oldest goes."""
    words = [f"for {interval(how_long)}"] if how_long else []
    if oldest is not None:
        left = stamp(oldest) - now
        words.append(f"the oldest leaves {f'in {seconds(left)}' if left > 0 else 'soon'}")
    return "; ".join(words)


def _most(counter: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counter.items(), key=lambda item: (-item[1], item[0]))[:_VALUES]


def _short(name: str, value: str) -> str:
    """Return what is counted of a value: of an address its host, for the rest may differ for each job."""
    if name == "text":
        return value[1:-1]
    try:
        return urlsplit(value).netloc.rpartition("@")[2] if name == "url" else value
    except ValueError:
        return value


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of the jobs of a bulk retry, of one or more calls with these `numbers`.

    `is_about`: the numbers stand for a sample of them. `is_cut`: not all that died again were found.
    """

    at: str
    actor: str
    task: str
    kind: str | None
    fingerprint: str
    jobs: int
    waiting: int
    executing: int
    dead: int
    cancelled: int
    is_about: bool
    is_cut: bool
    numbers: tuple[int, ...] = ()

    @property
    def succeeded(self) -> int:
        """How many have succeeded: those that are in no other state."""
        return max(self.jobs - self.waiting - self.executing - self.dead - self.cancelled, 0)

    @property
    def filter(self) -> str:
        """The filter of these jobs."""
        return f"retried:{','.join(map(str, self.numbers))}"

    @property
    def key(self) -> str:
        """The short name of the group that they were of."""
        return group_key({"task": self.task, "class": self.kind, "fingerprint": self.fingerprint})

    @property
    def parts(self) -> list[tuple[str, int, float, float]]:
        """Return (state, jobs, from, width) of the states that a bar shows, in per cent."""
        found, at = [], 0.0
        for state in ("succeeded", "executing", "waiting", "cancelled", "dead"):
            jobs = getattr(self, state)
            if jobs:
                width = 100 * jobs / max(self.jobs, 1)
                found.append((state, jobs, round(at, 2), round(width, 2)))
                at += width
        return found


def fates(rows: Iterable[Mapping[str, Any]]) -> list[Fate]:
    """Return the bulk retries of `retry_fates`, the newest first; calls that follow each other are one."""
    found: list[Fate] = []
    for row in rows:
        each = _fate(row)
        last = next((fate for fate in found if (fate.key, fate.actor) == (each.key, each.actor)), None)
        if last is None or stamp(last.at) - stamp(each.at) > _TOGETHER:
            found.append(each)
            continue
        sums = {
            name: getattr(last, name) + getattr(each, name)
            for name in ("jobs", "waiting", "executing", "dead", "cancelled")
        }
        # The time of the first call: from then on the jobs came back.
        found[found.index(last)] = replace(
            last,
            **sums,
            at=each.at,
            is_about=last.is_about or each.is_about,
            is_cut=last.is_cut or each.is_cut,
            numbers=last.numbers + each.numbers,
        )
    return [each for each in found if each.jobs > 1]


def _fate(row: Mapping[str, Any]) -> Fate:
    jobs, seen = row["jobs"], max(row["looked_at"], 1)
    live = {name: math.ceil(row[name] * jobs / seen) for name in ("waiting", "executing")}
    return Fate(
        row["at"], row["actor"], row["task"], row["class"], row["fingerprint"], jobs, live["waiting"],
        live["executing"], row["dead"], row["cancelled"], seen < jobs, row["is_cut"],
        (row["n"],),
    )  # fmt: skip
