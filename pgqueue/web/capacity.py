"""Slots of workers: which run, which run far longer than is usual for their task, which are taken by other queues."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from pgqueue import verdict
from pgqueue.db import observe

# A job that runs longer than this many times the usual p95 of its task is late, and far too long.
LATE, OVERLONG = 2, 10

# As in why_late(): a job that runs for less than a minute is never far too long; if no job of a task ended within a
# day, one of five minutes is.
_LEAST, _UNKNOWN = 60.0, 30.0


@dataclass(frozen=True, slots=True)
class Running:
    """Jobs of a task and queue that one worker executes, with the epochs of their reservations, the oldest first."""

    worker: str
    queue: str
    task: str
    since: Sequence[float]
    jobs: Sequence[int] = ()

    def overlong(self, usual: float | None, now: float, times: float = OVERLONG) -> int:
        """Return how many run longer than `times` times the usual p95."""
        return sum(is_over(now - each, usual, times) for each in self.since)


@dataclass(frozen=True, slots=True)
class SlotUse:
    """`own` run, `overlong` of these far too long; `taken` by other queues; the rest of `all` is free.

    `more` jobs are held that have no slot: fetched ahead, or members of a batch, which share one.
    """

    own: int
    overlong: int
    taken: int
    all: int
    more: int = 0

    @property
    def words(self) -> str:
        """Return them in words."""
        found = f"{self.own:,} of {self.all:,} slots run"
        if self.overlong:
            found += f", {self.overlong:,} of them far too long"
        if self.taken:
            found += f"; {self.taken:,} are taken by other queues"
        if self.more:
            found += f"; {self.more:,} more jobs are held, fetched ahead or in a batch"
        return found


@dataclass(frozen=True, slots=True)
class Cell:
    """A slot with a job in it: two letters and a hue for its task, its age in seconds, how late, how long its bar."""

    job: int
    task: str
    code: str
    hue: int
    age: float
    level: str
    width: int


def cells(worker: str, running: Iterable[Running], usual: Mapping[str, float], now: float) -> list[Cell]:
    """Return the jobs that a worker runs, the oldest first, so that only the end of the list moves."""
    found = [
        Cell(job, each.task, code_of(each.task), hue_of(each.task), age, level_of(age, usual.get(each.task)), bar(age))
        for each in running
        if each.worker == worker
        for job, age in zip(each.jobs, (now - since for since in each.since), strict=True)
    ]
    return sorted(found, key=lambda cell: (-cell.age, cell.job))


def of_task(
    task: str, running: Iterable[Running], usual: Mapping[str, float], now: float
) -> list[tuple[Cell, str, str]]:
    """Return (slot, worker, queue) of what runs of a task, the oldest first."""
    found = [
        (
            Cell(job, task, code_of(task), hue_of(task), age, level_of(age, usual.get(task)), bar(age)),
            each.worker,
            each.queue,
        )
        for each in running
        if each.task == task
        for job, age in zip(each.jobs, (now - since for since in each.since), strict=True)
    ]
    return sorted(found, key=lambda row: (-row[0].age, row[0].job))


@dataclass(frozen=True, slots=True)
class Run:
    """The jobs of one task that a worker runs: their number, the age and level of the oldest, and the usual time."""

    task: str
    code: str
    hue: int
    jobs: int
    oldest: float
    level: str
    usual: float | None


def by_task(worker: str, running: Iterable[Running], usual: Mapping[str, float], now: float) -> list[Run]:
    """Return the jobs that a worker runs by task, the most frequent first."""
    sums: dict[str, tuple[int, float]] = {}
    for each in running:
        if each.worker == worker and each.since:
            jobs, oldest = sums.get(each.task, (0, 0.0))
            sums[each.task] = (jobs + len(each.since), max(oldest, now - each.since[0]))
    found = [
        Run(task, code_of(task), hue_of(task), jobs, oldest, level_of(oldest, usual.get(task)), usual.get(task))
        for task, (jobs, oldest) in sums.items()
    ]
    return sorted(found, key=lambda run: (-run.jobs, run.task))


@dataclass(frozen=True, slots=True)
class Holding:
    """The jobs of a task that hold slots: how many, for how many seconds, and where in an hour the first began."""

    task: str
    jobs: int
    since: float
    place: float | None


def holding(task: str, running: Iterable[Running], now: float, width: int = 120) -> Holding | None:
    """Return the jobs of a task that run, with the place of their first start on a sparkline; None: none runs."""
    since = [at for each in running if each.task == task for at in each.since]
    if not since:
        return None
    age = max(now - min(since), 0.0)
    return Holding(task, len(since), age, round(width * (1 - age / 3600), 1) if age < 3600 else None)


def code_of(task: str) -> str:
    """Return two letters for a task: the first ones of two of its words."""
    words = [each for each in re.split(r"[^A-Za-z0-9]+", task) if each]
    return ("".join(each[0] for each in words[:2]) if len(words) > 1 else "".join(words)[:2]).upper() or "?"


def hue_of(task: str) -> int:
    """Return one of six hues, always the same for a task."""
    return crc32(task.encode(errors="replace")) % 6 + 1


def is_cut(running: Iterable[Running]) -> bool:
    """Tell whether more may run than was read."""
    return sum(len(each.since) for each in running) >= observe.MOST_EXECUTING


def level_of(age: float, usual: float | None) -> str:
    """Return over, late or "" for a job that runs for this age in seconds."""
    return "over" if is_over(age, usual) else "late" if is_over(age, usual, LATE) else ""


def bar(age: float) -> int:
    """Return the width of a bar for a time, in per cent: by the logarithm, full at an hour."""
    return round(min(100.0, max(4.0, (math.log10(max(age, 0.1)) + 1) / (math.log10(3600) + 1) * 100)))


def is_over(age: float, usual: float | None, times: float = OVERLONG) -> bool:
    """Tell whether a job runs longer than `times` times the usual p95 of its task."""
    return age > max(times * (_UNKNOWN if usual is None else usual), times * _LEAST / OVERLONG)


def of_worker(
    worker: Mapping[str, Any], running: Iterable[Running], usual: Mapping[str, float], now: float
) -> SlotUse | None:
    """Return the slots of one worker; None if it did not report how many it has."""
    held = [each for each in running if each.worker == worker["worker"]]
    if verdict.slots_of(worker) is None and not held:
        return None
    return of_workers([worker], held, usual, now)


def of_workers(
    workers: Iterable[Mapping[str, Any]], running: Iterable[Running], usual: Mapping[str, float], now: float
) -> SlotUse:
    """Return the slots of these workers, and of others that run jobs."""
    held = list(running)
    jobs: Counter[str] = Counter()
    for each in held:
        jobs[each.worker] += len(each.since)
    return _sum({each["worker"]: verdict.slots_of(each) for each in workers}, jobs, Counter(), held, usual, now)


def of_queue(
    queue: str, workers: Sequence[Mapping[str, Any]], running: Sequence[Running], usual: Mapping[str, float], now: float
) -> SlotUse:
    """Return the slots of the workers that serve a queue."""
    serving = {each["worker"]: verdict.slots_of(each) for each in workers if serves(each, queue)}
    own: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    for each in running:
        if each.queue == queue:
            own[each.worker] += len(each.since)
        elif each.worker in serving:
            taken[each.worker] += len(each.since)
    return _sum(serving, own, taken, [each for each in running if each.queue == queue], usual, now)


def _sum(
    known: Mapping[str, int | None],
    own: Counter[str],
    taken: Counter[str],
    held: Sequence[Running],
    usual: Mapping[str, float],
    now: float,
) -> SlotUse:
    """Return the slots of all workers; one that did not report how many it has has as many as it uses."""
    runs = takes = slots = 0
    for worker in known.keys() | own.keys():
        reported = known.get(worker)
        most = own[worker] + taken[worker] if reported is None else reported
        mine = min(own[worker], most)
        runs += mine
        takes += min(taken[worker], most - mine)
        slots += most
    overlong = sum(each.overlong(usual.get(each.task), now) for each in held)
    return SlotUse(runs, min(overlong, runs), takes, slots, own.total() - runs)


def serves(worker: Mapping[str, Any], queue: str) -> bool:
    """Tell whether a worker claims from a queue."""
    return worker["queues"] is None or queue in worker["queues"]


def alone(queue: str, workers: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the only one of these workers that serves a queue; None: several do, or none."""
    names = [str(each["worker"]) for each in workers if serves(each, queue)]
    return names[0] if len(names) == 1 else None


def memory_level(worker: Mapping[str, Any]) -> str:
    """Return over, late or "" for what a worker of worker_status holds of the memory that it may hold."""
    held, most = worker["memory"], worker["memory_limit"]
    if not held or not most:
        return ""
    return "over" if held >= 0.9 * most else "late" if held >= 0.8 * most else ""
