"""What fills a queue: the most frequent values of its due jobs, how long these wait, and what blocks others.

And what the jobs are that match a filter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pgqueue._filters import narrowed, quoted
from pgqueue.db import observe
from pgqueue.web.capacity import Running
from pgqueue.worker.tell.counts import BOUNDS

# Facets of queue_facets() by name: their title, and the word of a filter.
_FACETS = {
    "task": ("Task", "task"),
    "tenant": ("Tenant", "tenant"),
    "key": ("Key", "key"),
    "enqueued_by": ("Enqueued by", "by"),
    "tag": ("Tag", "tag"),
}

# What a pause calls these.
_PAUSED = {"task": "task", "tenant": "limit_key"}

# Values of a facet that are shown.
_MOST = 5

# The buckets of a histogram: short waits are one.
_FIRST = 1
_LABELS = ("4 ms", "16 ms", "64 ms", "¼ s", "1 s", "4 s", "16 s", "1 min", "5 min", "1 h", "more")


@dataclass(frozen=True, slots=True)
class Value:
    """A value, how many jobs have it and what part that is, in per cent; the filter of these jobs.

    `pauses`: the kind of a pause that stops them. `is_of_sample`: of the jobs that were read, where there may be more.
    """

    text: str
    jobs: int
    share: int
    filter: str
    pauses: str = ""
    is_of_sample: bool = True


@dataclass(frozen=True, slots=True)
class Facet:
    """A facet: its title, and the most frequent values."""

    title: str
    values: Sequence[Value]


@dataclass(frozen=True, slots=True)
class Sample:
    """The facets of jobs that match a filter: of how many, and whether more match."""

    jobs: int
    is_more: bool
    facets: Sequence[Facet]


@dataclass(frozen=True, slots=True)
class Bar:
    """A bucket of a histogram: its upper bound in words, and the shares of jobs that wait now and that usually do."""

    label: str
    now: float
    usual: float


@dataclass(frozen=True, slots=True)
class Filling:
    """What fills a queue. `due`: how many due jobs were read. `keys`, `limits`: what blocked jobs wait for."""

    due: int
    facets: Sequence[Facet]
    keys: Sequence[tuple[str, int]]
    limits: Sequence[tuple[str, int]]
    waits: Sequence[int]

    @property
    def is_cut(self) -> bool:
        """Whether there are more due jobs than were read."""
        return self.due >= observe.MOST_FACETED


def of_queue(queue: str | None, rows: Iterable[Sequence[Any]]) -> Filling:
    """Sort what queue_facets() returned: (facet, value, jobs). Without a queue, of all queues."""
    found: dict[str, list[tuple[str, int]]] = {}
    for facet, value, jobs in rows:
        found.setdefault(facet, []).append((value, jobs))
    due = found.get("due", [("", 0)])[0][1]
    only = f"queue:{quoted(queue)} " if queue else ""
    waits = [0] * (len(BOUNDS) + 1)
    for value, jobs in found.get("wait", []):
        waits[int(value)] = jobs
    return Filling(
        due,
        [
            Facet(title, [_value(only, name, word, value, jobs, due) for value, jobs in found[name]])
            for name, (title, word) in _FACETS.items()
            if name in found
        ],
        found.get("blocked_key", []),
        found.get("blocked_limit", []),
        waits,
    )


def _value(only: str, name: str, word: str, value: str, jobs: int, due: int) -> Value:
    filter = f"{only}{word}:{quoted(value)} state:waiting,failed"
    return Value(value, jobs, round(100 * jobs / max(due, 1)), filter, _PAUSED.get(name, ""))


def of_jobs(line: str, rows: Iterable[Sequence[Any]], jobs: int) -> list[Facet]:
    """Sort what facets() returned of a number of jobs that match a filter: the values that narrow it."""
    found: dict[str, list[Value]] = {}
    for name, text, of_it in rows:
        if (filter := narrowed(line, name, text)) is not None:
            share = round(100 * of_it / max(jobs, 1))
            found.setdefault(name, []).append(Value(text, of_it, share, filter, _PAUSED.get(name, "")))
    return [Facet(name.capitalize(), values) for name, values in found.items()]


def of_workers(queue: str, running: Iterable[Running]) -> Facet | None:
    """Return the workers that run jobs of a queue, the most first; None: none does."""
    sums: Counter[str] = Counter()
    for each in running:
        if each.queue == queue:
            sums[each.worker] += len(each.since)
    values = [
        Value(
            name,
            jobs,
            round(100 * jobs / sums.total()),
            f"queue:{quoted(queue)} worker:{quoted(name)} state:executing",
            is_of_sample=False,
        )
        for name, jobs in sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:_MOST]
    ]
    return Facet("Worker that runs them", values) if values else None


def histogram(now: Sequence[int], usual: Sequence[float]) -> list[Bar]:
    """Return the bars of how long due jobs wait, beside how long jobs usually wait; both by the buckets of samples."""
    return [Bar(label, *shares) for label, *shares in zip(_LABELS, _shares(now), _shares(usual), strict=True)]


def in_words(bars: Sequence[Bar]) -> str:
    """Return a histogram in words, for who does not see it."""
    parts = []
    for name, what in (("now", "of the due jobs"), ("usual", "of those that started within a day")):
        most = max(bars, key=lambda bar: getattr(bar, name))
        if getattr(most, name):
            before = bars[bars.index(most) - 1].label if most.label == "more" else most.label
            bound = f"more than {before}" if most.label == "more" else f"up to {before}"
            parts.append(f"{what} most, {getattr(most, name):.0f} %, waited {bound}")
    return "; ".join(parts) or "no job is due, and none started within a day"


def _shares(buckets: Sequence[float]) -> list[float]:
    total = sum(buckets)
    if not total:
        return [0.0] * len(_LABELS)
    every = [sum(buckets[: _FIRST + 1]), *buckets[_FIRST + 1 :]]
    return [100 * each / total for each in every]


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant: its due and executing jobs, how many it starts in its turn, and for how long its oldest waits."""

    name: str
    due: int
    executing: int
    share: int
    lag: float | None = None


def tenants(
    rows: Iterable[Sequence[Any]],
    executing: Mapping[str, int],
    shares: Mapping[str, int],
    lags: Mapping[str, float | None],
) -> list[Tenant]:
    """Return those that have most, from queue_facets(), the shares that are set, and the lags that are known."""
    due = {value: jobs for facet, value, jobs in rows if facet == "tenant"}
    found = [
        Tenant(name, due.get(name, 0), executing.get(name, 0), _share_of(name, shares), lags.get(name))
        for name in due.keys() | executing.keys()
    ]
    return sorted(found, key=lambda each: (-each.due - each.executing, each.name))


def _share_of(tenant: str, shares: Mapping[str, int]) -> int:
    """Return the share of a tenant: its own, else that of the longest prefix that it begins with, else one."""
    prefixes = [each for each in shares if each.endswith("*") and tenant.startswith(each[:-1])]
    return shares.get(tenant) or shares.get(max(prefixes, key=len, default=""), 1)
