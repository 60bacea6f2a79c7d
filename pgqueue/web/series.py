"""Rates, percentiles and the points of plots, from samples over time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pgqueue.db import samples
from pgqueue.db.call import Call, Row
from pgqueue.metrics import QueueTimes
from pgqueue.worker.tell.counts import BOUNDS

# Times that plots show, in seconds, with their names.
RANGES = {"15 min": 900, "1 h": 3600, "1 d": 86_400, "7 d": 604_800}

# The outcomes by which a job leaves the queue for good.
_GONE = ("succeeded", "dead", "cancelled")


def counts(ended: Mapping[str, Mapping[str, Any]] | None) -> dict[str, float]:
    """Sum over tasks what started and ended in a sample."""
    found: dict[str, float] = {}
    for entry in (ended or {}).values():
        for name, value in entry.items():
            if name not in ("run", "wait"):
                found[name] = found.get(name, 0) + value
    return found


def usual() -> Call[dict[str, float]]:
    """Read the usual time of a run of each task: its p95 within a day, in seconds."""
    call = samples.runs_of_a_day()
    return Call(call.text, call.params, lambda rows: _usual(call.read(rows)))


def _usual(rows: Sequence[Sequence[Any]]) -> dict[str, float]:
    runs: dict[str, Sequence[float]] = {}
    for task, buckets in rows:
        runs[task] = _added(runs[task], buckets) if task in runs else buckets
    found = {task: percentile(buckets, 0.95) for task, buckets in runs.items()}
    return {task: value for task, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Lately:
    """The samples of a short time, and of each queue, "" for all: jobs per second that came `in`, and ended by outcome.

    `out`: those that started; None where workers of 0.1.0 reported, which do not count starts.
    """

    samples: Sequence[Sequence[Any]]
    rates: Mapping[str, Mapping[str, float | None]]


def lately(seconds: int) -> Call[Lately]:
    """Read the samples of a short time."""
    call = samples.lately(seconds)

    def read(rows: list[Row]) -> Lately:
        found = call.read(rows)
        return Lately(found, _rates(found))

    return Call(call.text, call.params, read)


def of_task(task: str, seconds: int) -> Call[list[Row]]:
    """Read the samples of a task over a time until now, as rows of `series`: only what ended is known."""
    call = samples.series_of_task(task, seconds)
    return Call(call.text, call.params, lambda rows: _by_time(call.read(rows)))


def _by_time(rows: Sequence[Sequence[Any]]) -> list[Row]:
    found: dict[tuple[float, int], dict[str, Any]] = {}
    for at, span, ended in rows:
        entries = found.setdefault((at, span), {})
        if ended is not None:
            # It may be of several queues.
            entries[str(len(entries))] = ended
    return [(at, span, 0, 0, 0, 0, 0.0, entries, 0, False) for (at, span), entries in found.items()]


def usual_waits(queue: str) -> Call[list[float]]:
    """Read the buckets of the times that jobs of a queue waited within a day."""
    call = samples.waits_of_a_day(queue)
    return Call(call.text, call.params, lambda rows: _summed(buckets for (buckets,) in call.read(rows)))


def times_of_queues(times: QueueTimes) -> Call[None]:
    """Read the samples after the last that was added to the times, and add them."""
    call = samples.since(times.last)
    return Call(call.text, call.params, lambda rows: times.add(call.read(rows)))


def _rates(rows: Sequence[Sequence[Any]]) -> dict[str, dict[str, float | None]]:
    by_queue: dict[str, dict[float, Sequence[Any]]] = {}
    for row in rows:
        by_queue.setdefault(row[0], {})[row[1]] = row
    times = sorted(by_queue.get("", {}))
    return {queue: _rates_of(found, times) for queue, found in by_queue.items()}


def _rates_of(found: Mapping[float, Sequence[Any]], times: Sequence[float]) -> dict[str, float | None]:
    # A sample counts what has happened since the previous one.
    took = sum(found[at][2] if at in found else 10 for at in times)
    sums: dict[str, float] = {}
    for row in found.values():
        for name, value in counts(row[5]).items():
            sums[name] = sums.get(name, 0) + value / took
    rates: dict[str, float | None] = {**sums}
    rates["out"] = sums.get("started", None if sums else 0.0)
    first, last = found.get(times[0]), found.get(times[-1])
    rates["in"] = None
    if len(times) > 1 and all(row is None or row[4] for row in (first, last)):
        more = (last[3] if last else 0) - (first[3] if first else 0)
        left = sum(counts(row[5]).get(name, 0) for at, row in found.items() if at > times[0] for name in _GONE)
        rates["in"] = max((more + left) / (times[-1] - times[0]), 0.0)
    return rates


def enqueued(before: Sequence[Any] | None, row: Sequence[Any], found: Mapping[str, float]) -> float | None:
    """Return the jobs per second that came between two samples: the live ones that there are more, and those that left.

    None where one of the two did not count all jobs at its time.
    """
    if before is None or not (before[9] and row[9]):
        return None
    left = sum(found.get(name, 0) for name in _GONE)
    return max(float(row[8] - before[8] + left) / max(float(row[0] - before[0]), 1.0), 0.0)


def percentile(buckets: Sequence[float], part: float) -> float | None:
    """Estimate a percentile: within the bucket that it falls into, times are taken to spread by their logarithm."""
    total, reached, low = sum(buckets), 0.0, BOUNDS[0] / 4
    for bound, count in zip([*BOUNDS, BOUNDS[-1] * 4], buckets, strict=True):
        if count and reached + count >= part * total:
            return low * math.exp(math.log(bound / low) * (part * total - reached) / count)
        reached, low = reached + count, bound
    return None


def buckets_of(name: str, ended: Mapping[str, Mapping[str, Any]] | None) -> list[float]:
    """Sum over tasks the buckets of times: `wait`, from being due to the start, or `run`."""
    return _summed(entry[name]["buckets"] for entry in (ended or {}).values() if name in entry)


def _summed(several: Iterable[Sequence[float]]) -> list[float]:
    found = [0.0] * (len(BOUNDS) + 1)
    for each in several:
        found = _added(found, each)
    return found


def points(rows: Sequence[Sequence[Any]], *, runs: bool = False) -> dict[str, list[Any]]:
    """Return the lines of plots by name, one value for each sample; null where it is not known."""
    lines: dict[str, list[Any]] = {"t": [row[0] for row in rows], "enqueued": []}
    every = [counts(row[7]) for row in rows]
    # Null where workers of 0.1.0 reported, which do not count starts.
    lines["started"] = [
        round(found.get("started", 0) / row[1], 3) if "started" in found or not found else None
        for row, found in zip(rows, every, strict=True)
    ]
    for name in ("succeeded", "failed", "dead"):
        lines[name] = [round(found.get(name, 0) / row[1], 3) for row, found in zip(rows, every, strict=True)]
    for before, row, found in zip([None, *rows], rows, every, strict=False):
        came = enqueued(before, row, found)
        lines["enqueued"].append(None if came is None else round(came, 3))
    for kind, prefix in (("wait", ""), ("run", "run "))[: 1 + runs]:
        buckets = [buckets_of(kind, row[7]) for row in rows]
        for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            lines[prefix + name] = [_rounded(percentile(each, part)) for each in buckets]
    # A plot by the logarithm has no zero.
    lines["oldest"] = [_rounded(row[6]) or None for row in rows]
    # Whether each number of due jobs is of its time.
    lines["exact"] = [bool(row[9]) for row in rows]
    return {**lines, "due": [row[2] for row in rows], "executing": [row[3] for row in rows]}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _added(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [each + more for each, more in zip(one, other, strict=True)]
