"""Buckets against a plain model: whatever is started, spent and awaited, jobs start in order, at the right level."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from pgqueue.testing import Clock
from tests.calls import call, enqueue, maintain, reserve, value
from tests.databases import Cloner

RATE, BURST = 10, 100  # ten units a second

steps = st.lists(
    st.tuples(st.just("enqueue"), st.sampled_from([1, 5, 30, 99, 100, 250]))
    | st.tuples(st.just("claim"), st.sampled_from([1, 3, 10]))
    | st.tuples(st.just("spend"), st.sampled_from([0, 1, 40, 180]))
    | st.tuples(st.just("wait"), st.sampled_from([1, 3, 12, 60, -30])),
    max_size=30,
)


@dataclass
class Model:
    level: float = BURST
    at: float = 0.0
    now: float = 0.0
    waiting: list[tuple[int, int]] = field(default_factory=list)
    # What was spent beyond or below its cost since the level was written: when, and how much.
    spent: list[tuple[float, int]] = field(default_factory=list)

    def filled(self) -> float:
        """Return what is in the bucket now. What came in until something was spent is lost if the clock steps back."""
        level, at = self.level, min(self.at, self.now) if self.at > self.now + 1 else self.at
        for spent_at, units in [*self.spent, (self.now, 0)]:
            if at < spent_at <= self.now:
                level, at = min(BURST, level + RATE * (spent_at - at)), spent_at
            level = min(BURST, level - units)
        return level

    def take(self, units: int) -> None:
        self.level, self.spent = self.filled() - units, []
        self.at = self.now if self.at > self.now + 1 else max(self.at, self.now)

    def start(self, most: int) -> list[int]:
        """In order; none passes the first that does not fit; what costs more than the bucket goes when it is full."""
        started: list[int] = []
        while self.waiting and len(started) < most:
            job_id, cost = self.waiting[0]
            missing = min(cost, BURST) - self.filled()
            # The next milliseconds decide: the model does not know which claim is the first that sees it.
            assume(not 1e-6 < missing < 0.5)
            if missing > 1e-6:
                break
            self.take(cost)
            started.append(job_id)
            self.waiting.pop(0)
        return started


@pytest.fixture(scope="module")
def shared(cloner: Cloner) -> Iterator[psycopg.Connection]:
    database = cloner.migrated()
    yield database.connect()
    cloner.drop(database)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "target"), [("queue", "default"), ("task", "t"), ("limit_key", "a")])
@given(steps)
@example([("enqueue", 1), ("claim", 1), ("wait", 1), ("spend", 40), ("wait", -30)])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_bucket_starts_what_the_model_starts(
    shared: psycopg.Connection, kind: str, target: str, steps: list[tuple[str, int]]
) -> None:
    conn = shared
    clock = Clock(conn)
    tables = "jobs, history, lanes, limits, limit_levels, limit_starts, limit_waits, maintenance_runs, heads"
    conn.execute(f"truncate {', '.join('pgqueue.' + name for name in tables.split(', '))}".encode())
    clock.set("2030-01-01 12:00+00")
    maintain(conn)
    call(conn, "set_limit", kind, target, rate=RATE, per="1 s", burst=BURST)
    model = Model()
    held: list[Any] = []
    for what, number in steps:
        if what == "enqueue":
            job_id = enqueue(conn, limit_key="a", cost=number)
            model.waiting.append((job_id, number))
        elif what == "wait" and (number > 0 or not model.waiting):
            clock.advance(f"{number} s")
            model.now += number
            if number < 0:
                # It has the level filled from now on.
                maintain(conn)
                model.at = min(model.at, model.now) if model.at > model.now + 1 else model.at
                clock.advance("1 s")
                model.now += 1
        elif what == "spend" and held:
            row, cost = held.pop()
            assert call(conn, "spent", row.id, row.reservation, number) is True
            assert call(conn, "complete", row.id, row.reservation) is True
            model.spent.append((model.now, number - cost))
        elif what == "claim":
            costs = dict(model.waiting)
            expected = model.start(number)
            # What was blocked comes back with a check, which a claim makes when it comes up short.
            rows: list[Any] = []
            for _ in range(3):
                clock.advance("1 ms")
                rows += reserve(conn, max(number - len(rows), 1), lease="1 day") if len(rows) < number else []
            assert [row.id for row in rows] == expected, (what, number, model)
            held += [(row, costs[row.id]) for row in rows]
            model.now += 0.003
    rule = "pgqueue._rules_of('default', 't', null, 'a', pgqueue._clock()) r"
    level = value(conn, f"select l.level from {rule} cross join lateral pgqueue._level_of(r, pgqueue._clock()) l")
    assert level == pytest.approx(model.filled(), abs=0.2)
