"""Random lives of jobs, against a small model: hypothesis calls the functions in any order and checks every job.

The model knows what a user knows: which jobs exist, which are executing, which have ended and how, which were ever
reserved, and from when on each may run. After each step it must be so in the database, and no job may stay blocked
without a reason. One session only: what two do to each other is in tests/races.
PGQUEUE_MODEL=500 runs for longer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from pgqueue.testing import Clock
from tests.calls import Row, call, column, enqueue, maintain, reserve, stats, value
from tests.databases import Database

EXAMPLES = int(os.environ.get("PGQUEUE_MODEL", "20"))
STEPS = 50

QUEUES = ("default", "other")
KEYS = (None, None, "a", "b", "c")
TASKS = ("t", "u")
LIMIT_KEYS = (None, None, "l:1", "l:2")
LIMITS = (("task", "u"), ("limit_key", "l:*"), ("limit_key", "l:2"), ("key", "a"), ("queue", "other"))
LEASE = timedelta(minutes=30)
FOREVER = timedelta(days=1)

TABLES = "jobs, history, lanes, limits, limit_starts, limit_waits, key_notes, maintenance_runs, idle_workers"


@dataclass
class Job:
    """A job as its user knows it."""

    queue: str
    task: str
    key: str | None
    limit_key: str | None
    run_at: datetime
    state: str = "live"
    ever_reserved: bool = False
    failed: bool = False
    reservation: int = 0
    lease_ends: datetime | None = None


class Queue(RuleBasedStateMachine):
    """Steps that a hook may add to: a subclass brings rules of its own (such as dedupe) and gets the invariants."""

    jobs = Bundle("jobs")
    held = Bundle("held")

    def __init__(self, conn: psycopg.Connection, clock: Clock) -> None:
        super().__init__()
        self.conn = conn
        self.clock = clock
        self.model: dict[int, Job] = {}
        self.limits: dict[tuple[str, str], int] = {}

    @initialize()
    def empty(self) -> None:
        self.conn.execute(f"truncate pgqueue.{TABLES.replace(', ', ', pgqueue.')}".encode())
        self.clock.back_to_real()
        maintain(self.conn)

    # What users do.

    @rule(
        target=jobs,
        queue=st.sampled_from(QUEUES),
        task=st.sampled_from(TASKS),
        key=st.sampled_from(KEYS),
        limit_key=st.sampled_from(LIMIT_KEYS),
        hours=st.sampled_from([0, 0, 0, 1]),
        priority=st.integers(0, 2),
    )
    def enqueue(self, queue: str, task: str, key: str | None, limit_key: str | None, hours: int, priority: int) -> int:
        job_id = enqueue(
            self.conn, task, queue=queue, key=key, limit_key=limit_key, delay=timedelta(hours=hours), priority=priority
        )
        run_at = value(self.conn, "select run_at from pgqueue.jobs where id = %s", job_id)
        self.model[job_id] = Job(queue, task, key, limit_key, run_at)
        return job_id

    @rule(
        target=held,
        worker=st.sampled_from("vw"),
        max_jobs=st.sampled_from([1, 2, 50]),
        lease=st.sampled_from([LEASE, FOREVER]),
    )
    def reserve(self, worker: str, max_jobs: int, lease: timedelta) -> tuple[tuple[int, int], ...]:
        before = self.clock.now()
        rows = reserve(self.conn, max_jobs, worker, lease=lease)
        self.see_lapsed({row.id for row in rows})
        self.check_claim(rows, before, max_jobs)
        for row in rows:
            job = self.model[row.id]
            job.state, job.ever_reserved = "executing", True
            job.reservation, job.lease_ends = row.reservation, row.lease_expires_at
        return tuple((row.id, row.reservation) for row in rows)

    @rule(held=consumes(held))
    def complete(self, held: tuple[tuple[int, int], ...]) -> None:
        lost = column(self.conn, "complete_many", [h[0] for h in held], [h[1] for h in held])
        assert lost == [job_id for job_id, reservation in held if not self.holds(job_id, reservation)]
        for job_id, reservation in held:
            if self.holds(job_id, reservation):
                self.model[job_id].state = "succeeded"

    @rule(held=consumes(held), retry_in=st.sampled_from([0, 1, None]))
    def fail(self, held: tuple[tuple[int, int], ...], retry_in: int | None) -> None:
        for job_id, reservation in held:
            answer = call(
                self.conn,
                "fail",
                job_id,
                reservation,
                retry=retry_in is not None,
                retry_in=timedelta(hours=retry_in or 0),
            )
            if not self.holds(job_id, reservation):
                assert answer is None
                continue
            job = self.model[job_id]
            if job.state == "asked":
                assert answer == "cancelled"
                job.state = "cancelled"
            elif retry_in is None:
                assert answer == "dead"
                job.state = "dead"
            else:
                assert answer == "failed"
                job.state, job.failed = "live", True

    @rule(held=consumes(held), hours=st.sampled_from([0, 1]), snooze=st.booleans())
    def give_back(self, held: tuple[tuple[int, int], ...], hours: int, snooze: bool) -> None:
        if snooze:
            for job_id, reservation in held:
                answer = call(self.conn, "snooze", job_id, reservation, timedelta(hours=hours))
                assert answer is self.holds(job_id, reservation)
        else:
            lost = column(self.conn, "release", [h[0] for h in held], [h[1] for h in held], timedelta(hours=hours))
            assert lost == [job_id for job_id, reservation in held if not self.holds(job_id, reservation)]
        for job_id, reservation in held:
            if self.holds(job_id, reservation):
                job = self.model[job_id]
                job.state = "cancelled" if job.state == "asked" else "live"

    @rule(job_id=jobs)
    def cancel(self, job_id: int) -> None:
        job = self.model[job_id]
        answer = call(self.conn, "cancel", job_id)
        match job.state:
            case "live":
                assert answer == "cancelled"
                job.state = "cancelled"
            case "executing" | "asked":
                assert answer == "requested"
                job.state = "asked"
            case _:
                assert answer is None

    @rule(job_id=jobs)
    def delete(self, job_id: int) -> None:
        job = self.model[job_id]
        answer = call(self.conn, "delete", job_id)
        assert answer is (job.state not in ("executing", "asked", "deleted"))
        if answer:
            job.state = "deleted"

    @rule(job_id=jobs)
    def retry(self, job_id: int) -> None:
        job = self.model[job_id]
        [[now_failed]] = self.conn.execute(
            "select exists (select from pgqueue.jobs where id = %s and state = 'failed')", [job_id]
        ).fetchall()
        answer = call(self.conn, "retry", job_id)
        assert answer is (now_failed or job.state in ("dead", "cancelled"))
        if job.state in ("dead", "cancelled"):
            # Out of the history it comes as new.
            job.state, job.failed = "live", False
            job.run_at = value(self.conn, "select run_at from pgqueue.jobs where id = %s", job_id)

    @rule(which=st.sampled_from(LIMITS), at_most=st.sampled_from([0, 1, 2, None]))
    def set_limit(self, which: tuple[str, str], at_most: int | None) -> None:
        self.conn.execute("delete from pgqueue.limits where (kind, target) = (%s, %s)", which)
        self.limits.pop(which, None)
        if at_most is not None:
            self.conn.execute(
                "insert into pgqueue.limits (kind, target, max_executing) values (%s, %s, %s)", [*which, at_most]
            )
            self.limits[which] = at_most

    @rule(by=st.sampled_from(["2 s", "61 min"]))
    def time_passes(self, by: str) -> None:
        self.clock.advance(by)

    @rule()
    def keep_house(self) -> None:
        maintain(self.conn)
        self.see_lapsed(set())

    # What must be so.

    def holds(self, job_id: int, reservation: int) -> bool:
        job = self.model[job_id]
        return job.state in ("executing", "asked") and job.reservation == reservation

    def see_lapsed(self, claimed: set[int]) -> None:
        """Reserve and maintain may take lapsed leases back, or grant them a grace period once."""
        now = self.clock.now()
        executing = dict(
            self.conn.execute("select id, lease_expires_at from pgqueue.jobs where state = 'executing'").fetchall()
        )
        for job_id, job in self.model.items():
            if job.state in ("executing", "asked") and job.lease_ends is not None and job.lease_ends <= now:
                if job_id in executing and job_id not in claimed:
                    job.lease_ends = executing[job_id]
                elif job.state == "asked":
                    job.state = "cancelled"
                else:
                    job.state = "live"

    def check_claim(self, rows: list[Row], before: datetime, max_jobs: int) -> None:
        now = self.clock.now()
        assert len(rows) <= max_jobs
        claimed = {row.id for row in rows}
        for row in rows:
            job = self.model[row.id]
            assert job.state == "live", f"{row.id} was handed out as {job.state}"
            assert job.ever_reserved or job.run_at <= now
            if job.key is None:
                continue
            for other_id, other in self.model.items():
                if other_id == row.id or (other.queue, other.key) != (job.queue, job.key):
                    continue
                assert other_id not in claimed, "two of one key"
                assert other.state not in ("executing", "asked"), f"{other_id} is executing"
                if other.state == "live" and other_id < row.id:
                    holds_place = other.ever_reserved or other.run_at <= before
                    assert not holds_place, f"{other_id} stands before {row.id}"
        if len(rows) < max_jobs:
            # Nothing that could have been had was left.
            left = self.conn.execute(
                "select id, queue from pgqueue.jobs where state in ('waiting', 'failed') and ready_at <= %s", [before]
            ).fetchall()
            assert [job_id for job_id, queue in left if ("queue", queue) not in self.limits] == []

    @invariant()
    def each_job_is_where_the_model_says(self) -> None:
        found: dict[int, list[str]] = {}
        for job_id, state in self.conn.execute("select id, state::text from pgqueue.all_jobs").fetchall():
            found.setdefault(job_id, []).append(state)
        expected: dict[int, Any] = {
            job_id: {
                "live": ["blocked", "failed" if job.failed else "waiting"],
                "asked": ["executing"],
            }.get(job.state, [job.state])
            for job_id, job in self.model.items()
            if job.state != "deleted"
        }
        assert {job_id: len(states) for job_id, states in found.items()} == dict.fromkeys(expected, 1)
        for job_id, states in found.items():
            assert states[0] in expected[job_id], f"{job_id} is {states[0]}, not {expected[job_id]}"

    @invariant()
    def a_key_has_one_job_executing(self) -> None:
        assert (
            self.conn.execute(
                "select queue, key from pgqueue.jobs where state = 'executing' and key is not null"
                " group by 1, 2 having count(*) > 1"
            ).fetchall()
            == []
        )

    @invariant()
    def nothing_is_blocked_without_a_reason(self) -> None:
        assert (
            self.conn.execute(
                """
            select b.id from pgqueue.jobs b
            where b.state = 'blocked' and b.blocked_on is null
                and not exists (
                    select from pgqueue.jobs a
                    where a.queue = b.queue and a.key = b.key and a.id <> b.id
                        and (
                            a.state = 'executing'
                            or a.id < b.id
                            and (a.state = 'blocked' or a.reservation > 0 or a.run_at <= pgqueue._clock())
                        )
                )
            """
            ).fetchall()
            == []
        )
        assert (
            self.conn.execute(
                "select b.id from pgqueue.jobs b where b.blocked_on is not null"
                " and not exists (select from pgqueue.limit_waits w where w.name = b.blocked_on)"
            ).fetchall()
            == []
        )
        assert self.conn.execute("select count(*) from pgqueue.key_notes").fetchall() == [(0,)]

    @invariant()
    def the_net_had_nothing_to_do(self) -> None:
        assert value(self.conn, "select coalesce(max(unblocked), 0) from pgqueue.maintenance_runs") == 0
        failures = stats(self.conn).maintenance["failures"]
        assert not failures

    def teardown(self) -> None:
        """In the end, without limits, every job that is left can be run."""
        if not self.model:
            return
        self.conn.execute("delete from pgqueue.limits")
        for _ in range(3):
            # Each lease may get one length more.
            self.clock.advance("25 hours")
            maintain(self.conn)
            self.see_lapsed(set())
        for _ in range(len(self.model) + 5):
            rows = reserve(self.conn, 50, lease=FOREVER)
            column(self.conn, "complete_many", [row.id for row in rows], [row.reservation for row in rows])
            if not rows:
                self.clock.advance("2 s")
                maintain(self.conn)
        assert self.conn.execute("select id, state from pgqueue.jobs").fetchall() == []


@pytest.mark.long
@pytest.mark.covers("L1", "L13", "D3")
@pytest.mark.timeout(600)
def test_whatever_is_done_to_jobs_each_is_where_it_must_be(database: Database) -> None:
    run(database, Queue)


def run(database: Database, machine: Callable[[psycopg.Connection, Clock], RuleBasedStateMachine]) -> None:
    conn = database.connect()
    clock = Clock(database.connect())
    run_state_machine_as_test(
        lambda: machine(conn, clock),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            # Shrinking takes minutes; the long form does it.
            phases=(Phase.generate, *([Phase.shrink] if "PGQUEUE_MODEL" in os.environ else [])),
            suppress_health_check=list(HealthCheck),
        ),
    )
