"""How many jobs fit a filter: from samples that have the number, or counted within bounds when that is asked for."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psycopg

from pgqueue._filters import DUE_STATES, Filter
from pgqueue.db import observe
from pgqueue.web.database import PageDatabase

# Jobs that are counted, in all and by one statement, and seconds after which no further statement begins.
MOST = 100_000
AT_ONCE = 10_000
WITHIN = 4.0


@dataclass(frozen=True, slots=True)
class Counted:
    """How many jobs fit; where counting `stopped` before the end, there may be more."""

    jobs: int
    stopped: str = ""


async def count(database: PageDatabase, found: Filter, order: str) -> Counted:
    """Count the jobs of an order that fit a filter, page by page, as the order has them."""
    jobs, after = 0, None
    ends = time.monotonic() + WITHIN
    while True:
        try:
            [page] = await database.read(observe.search(order, found, after, AT_ONCE))
        except psycopg.errors.QueryCanceled:
            return Counted(jobs, "by its timeout")
        jobs, after = jobs + len(page.ids), page.next
        if after is None:
            return Counted(jobs)
        if jobs >= MOST:
            return Counted(jobs, "there")
        if time.monotonic() >= ends:
            return Counted(jobs, f"after {WITHIN:g} s")


async def about(database: PageDatabase, found: Filter, order: str) -> int | None:
    """Return how many fit, if samples have the number: for filters by queue and live state only."""
    if order == "due":
        found = {**found, "states": [each for each in DUE_STATES if each in found.get("states", DUE_STATES)]}
    if not found.keys() <= {"queues", "states"} or any(name.endswith("*") for name in found.get("queues", [])):
        return None
    states = set(found.get("states", ()))
    if not states or not states <= {"waiting", "failed", "blocked", "executing", "dead"}:
        return None
    stats = await database.stats()
    chosen = [each for each in stats["queues"] if "queues" not in found or each["queue"] in found["queues"]]
    if any(each["counted_to"] for each in chosen):
        return None
    return sum(int(each[state]) for each in chosen for state in states)
