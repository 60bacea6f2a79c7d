"""Dedupe against a small model: whatever is done in whatever order, one job stands for a key, and the right one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import Row, call, column, job, maintain, reserve, table, value
from tests.databases import Cloner, Database

KEYS = ["a", "b"]
MODES = [None, "skip", "replace", "merge", "debounce", "supersede", "raise"]

enqueues = st.tuples(
    st.just("enqueue"),
    st.sampled_from(KEYS),
    st.sampled_from(MODES),
    st.sampled_from([None, 5, 60]),  # dedupe_for, in seconds
    st.sampled_from([0, 3, 20]),  # delay
)
ENDS = ["complete", "dead", "fail", "release", "cancel", "delete", "retry"]
steps = st.lists(
    enqueues
    | st.tuples(st.sampled_from(ENDS), st.integers(0, 7))
    | st.tuples(st.just("advance"), st.sampled_from([1, 4, 30, 90]))
    | st.just(("reserve",)),
    max_size=25,
)


@dataclass
class Job:
    args: dict[str, Any]
    run_at: datetime
    created_at: datetime
    key: str | None
    touched: bool = False
    # It executes, and another job has superseded it: the worker is asked to cancel it.
    asked: bool = False
    state: str = "live"


@dataclass
class Model:
    """What should be so: jobs by id, and who stands for a key until when."""

    jobs: dict[int, Job] = field(default_factory=dict)
    stands: dict[str, tuple[int, datetime | None]] = field(default_factory=dict)

    def standing(self, key: str, now: datetime) -> int | None:
        job_id, until = self.stands.get(key, (None, None))
        return None if until is not None and until <= now else job_id

    def end(self, job_id: int, state: str) -> None:
        self.jobs[job_id].state = state
        for key, (holder, until) in list(self.stands.items()):
            if holder == job_id and (until is None or state == "deleted"):
                del self.stands[key]

    def enqueue(
        self, key: str, mode: str | None, delay: int, n: int, now: datetime, held: dict[int, int]
    ) -> tuple[int | None, str]:
        """Which job answers (None: a new one), and the outcome."""
        run_at = now + timedelta(seconds=delay)
        holder = self.standing(key, now)
        if holder is None:
            return None, "inserted"
        found = self.jobs[holder]
        if mode == "raise":
            return holder, "error"
        if mode == "supersede":
            if holder in held:
                found.asked = True
            elif found.state == "live":
                self.end(holder, "cancelled")
            return None, "superseded"
        if mode in (None, "skip") or found.touched or found.state != "live":
            return holder, "skipped"
        if mode == "merge":
            found.args = {**found.args, f"n{n}": n}
            return holder, "merged"
        if mode == "replace":
            found.args, found.run_at = {f"n{n}": n}, run_at
            return holder, "replaced"
        ceiling = found.created_at + 10 * (run_at - now)
        found.run_at = max(found.run_at, min(run_at, ceiling))
        return holder, "debounced"


@pytest.fixture(scope="module")
def shared(cloner: Cloner) -> Iterator[Database]:
    database = cloner.migrated()
    yield database
    cloner.drop(database)


@pytest.mark.long
@given(steps)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_right_job_has_a_key(shared: Database, steps: list[tuple[Any, ...]]) -> None:
    conn = shared.connect()
    clock = Clock(conn)
    conn.execute("truncate pgqueue.jobs, pgqueue.history, pgqueue.dedupe_keys, pgqueue.lanes, pgqueue.maintenance_runs")
    clock.set("2030-01-01 12:00+00")
    model = Model()
    held: dict[int, int] = {}
    for n, step in enumerate(steps):
        now = clock.now()
        ids = sorted(model.jobs)
        if step[0] == "enqueue":
            _, key, mode, dedupe_for, delay = step
            expected, outcome = model.enqueue(key, mode, delay, n, now, held)
            options = {"dedupe": key, "on_conflict": mode, "delay": f"{delay} s"}
            options["dedupe_for"] = None if dedupe_for is None else f"{dedupe_for} s"
            [row] = table(conn, "enqueue_batch", [Jsonb({"task": "t", "args": {f"n{n}": n}, **options})])
            assert row.outcome == outcome, (step, row)
            if expected is not None:
                assert row.job_id == (None if outcome == "error" else expected)
                continue
            model.jobs[row.job_id] = Job({f"n{n}": n}, now + timedelta(seconds=delay), now, key)
            model.stands[key] = (row.job_id, None if dedupe_for is None else now + timedelta(seconds=dedupe_for))
        elif step[0] == "advance":
            clock.advance(f"{step[1]} s")
            maintain(conn)
        elif step[0] == "reserve":
            for row in reserve(conn, 1, lease="1 day"):
                assert model.jobs[row.id].run_at <= now
                model.jobs[row.id].touched = True
                held[row.id] = row.reservation
        elif ids:
            act(conn, model, held, step[0], ids[step[1] % len(ids)], now)
    check(conn, model, clock.now())


def act(conn: Any, model: Model, held: dict[int, int], what: str, job_id: int, now: datetime) -> None:
    found = model.jobs[job_id]
    if what == "cancel" and job_id not in held and found.state == "live":
        assert call(conn, "cancel", job_id) == "cancelled"
        model.end(job_id, "cancelled")
    elif what == "delete" and job_id not in held:
        assert call(conn, "delete", job_id) is (found.state != "deleted")
        model.end(job_id, "deleted")
    elif what == "retry" and found.state in ("cancelled", "dead"):
        assert call(conn, "retry", job_id) is True
        found.state, found.run_at, found.asked = "live", min(found.run_at, now), False
        holder = None if found.key is None else model.standing(found.key, now)
        if found.key is not None and holder is None:
            model.stands[found.key] = (job_id, None)
        elif holder != job_id:
            found.key = None
    elif job_id in held and what in ("complete", "dead", "fail", "release"):
        reservation = held.pop(job_id)
        if what == "complete":
            assert call(conn, "complete", job_id, reservation) is True
            model.end(job_id, "succeeded")
        elif what == "dead":
            ended = "cancelled" if found.asked else "dead"
            assert call(conn, "fail", job_id, reservation, retry=False) == ended
            model.end(job_id, ended)
        elif found.asked:
            if what == "fail":
                assert call(conn, "fail", job_id, reservation) == "cancelled"
            else:
                column(conn, "release", [job_id], [reservation])
            model.end(job_id, "cancelled")
        elif what == "fail":
            assert call(conn, "fail", job_id, reservation, retry_in="5 s") == "failed"
            found.run_at = now
        else:
            column(conn, "release", [job_id], [reservation])


def check(conn: Any, model: Model, now: datetime) -> None:
    for job_id, expected in model.jobs.items():
        found: Row = job(conn, job_id)
        if expected.state == "deleted":
            assert found is None
            continue
        live = found.finished_at is None
        assert (live, found.args, found.dedupe) == (expected.state == "live", expected.args, expected.key)
        if not expected.touched and live:
            assert found.run_at == expected.run_at
    for key in KEYS:
        still = "dedupe = %s and coalesce(until, 'infinity') > %s"
        standing = value(conn, f"select job_id from pgqueue.dedupe_keys where {still}", key, now)
        assert standing == model.standing(key, now)
    stale = "select count(*) from pgqueue.dedupe_keys k where until is null and not exists"
    assert value(conn, f"{stale} (select from pgqueue.jobs j where j.id = k.job_id and j.dedupe = k.dedupe)") == 0
