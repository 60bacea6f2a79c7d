"""Slots of workers: which run, which run far longer than is usual for their task, which are taken by other queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# What runs longer than so many times the p95 of its task is late, and far too long.
LATE, OVERLONG = 2, 10

# Shorter than this, in seconds, nothing runs far too long: a p95 of 4 ms says little about one run of 40 ms.
_LEAST = 5.0


@dataclass(frozen=True, slots=True)
class Running:
    """Jobs of a task and queue that one worker executes, and when each was reserved: in epochs, the oldest first."""

    worker: str
    queue: str
    task: str
    since: Sequence[float]

    def overlong(self, usual: float | None, now: float, times: float = OVERLONG) -> int:
        """Return how many run longer than so many times the usual p95."""
        return sum(is_over(now - each, usual, times) for each in self.since)


@dataclass(frozen=True, slots=True)
class Slots:
    """`own` run, `overlong` of these far too long; `taken` by other queues; the rest of `all` is free."""

    own: int
    overlong: int
    taken: int
    all: int

    @property
    def words(self) -> str:
        """Return them in words."""
        found = f"{self.own} of {self.all} slots run"
        if self.overlong:
            found += f", {self.overlong} of them far too long"
        if self.taken:
            found += f"; {self.taken} are taken by other queues"
        return found


def is_over(age: float, usual: float | None, times: float = OVERLONG) -> bool:
    """Tell whether a job runs longer than so many times the p95 of its task; where none is known, none does."""
    return usual is not None and age > max(times * usual, _LEAST)


def of_worker(
    worker: Mapping[str, Any], running: Iterable[Running], usual: Mapping[str, float], now: float
) -> Slots | None:
    """Return the slots of one worker; None where it has not said how many it has."""
    concurrency = slots_of(worker)
    held = [each for each in running if each.worker == worker["worker"]]
    own = sum(len(each.since) for each in held)
    if concurrency is None and not own:
        return None
    overlong = sum(each.overlong(usual.get(each.task), now) for each in held)
    return Slots(own, overlong, 0, max(concurrency or 0, own))


def of_queue(
    queue: str, workers: Sequence[Mapping[str, Any]], running: Sequence[Running], usual: Mapping[str, float], now: float
) -> Slots:
    """Return the slots of the workers that serve a queue."""
    serving = {each["worker"]: slots_of(each) or 0 for each in workers if serves(each, queue)}
    mine = [each for each in running if each.queue == queue]
    own = sum(len(each.since) for each in mine)
    overlong = sum(each.overlong(usual.get(each.task), now) for each in mine)
    taken = sum(len(each.since) for each in running if each.queue != queue and each.worker in serving)
    return Slots(own, overlong, taken, max(sum(serving.values()), own + taken))


def serves(worker: Mapping[str, Any], queue: str) -> bool:
    """Tell whether a worker claims from a queue."""
    return worker["queues"] is None or queue in worker["queues"]


def slots_of(worker: Mapping[str, Any]) -> int | None:
    """Return how many jobs a worker runs at once, as it said; a client in another language may say anything."""
    info = worker["info"]
    found = info.get("concurrency") if isinstance(info, dict) else None
    return found if isinstance(found, int) and 0 <= found <= 1_000_000 else None
