"""A database of the last release, full of jobs, is migrated while they wait, run and fail: they all go on."""

from __future__ import annotations

from dataclasses import dataclass, field

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue import App, Job
from pgqueue.schema.migrate import migrate
from pgqueue.testing import Clock
from tests.calls import Row, call, enqueue, enqueue_many, job, maintain, reserve, reserve_one, state, stats, value
from tests.databases import Database
from tests.migrations.releases import install
from tests.workers import done, working


@dataclass
class Before:
    """The jobs of the release before, and who holds them."""

    held: dict[str, Row] = field(default_factory=dict)
    jobs: dict[str, int] = field(default_factory=dict)
    keyed: list[int] = field(default_factory=list)
    limited: list[int] = field(default_factory=list)
    gathered: list[Row] = field(default_factory=list)
    states: dict[int, str] = field(default_factory=dict)


def fill(conn: psycopg.Connection) -> Before:
    """Jobs in every state that there is, by the functions of the release."""
    before = Before()
    jobs = before.jobs
    call(conn, "hello", "old", None, Jsonb({"version": "0.8"}))
    call(conn, "declare_task", "gather", accumulate=True)
    call(conn, "set_limit", "task", "limited", max_executing=1)
    call(conn, "schedule", "nightly", "0 3 * * *", "report")

    for name in ("succeeded", "dead"):
        jobs[name] = enqueue(conn, queue="ended", key="k")
        held = reserve_one(conn, "old", queues=["ended"])
        if name == "dead":
            call(conn, "fail", held.id, held.reservation, Jsonb({"message": "no paper"}), retry=False)
        else:
            call(conn, "complete", held.id, held.reservation, Jsonb({"n": 1}))
    jobs["cancelled"] = enqueue(conn, queue="ended")
    call(conn, "cancel", jobs["cancelled"])

    for name in ("completes", "lapses", "is released", "fails"):
        jobs[name] = enqueue(conn, name, queue="executing")
        before.held[name] = reserve_one(conn, "old", queues=["executing"], lease="1 hour")
    # The first of a key executes, the others are blocked behind it.
    before.keyed = enqueue_many(conn, 6, "keyed", queue="keys", key="k")
    before.held["key"] = reserve_one(conn, "old", queues=["keys"], lease="1 hour")
    assert reserve(conn, 10, "old", queues=["keys"]) == []
    before.limited = enqueue_many(conn, 4, "limited", queue="limits")
    before.held["limit"] = reserve_one(conn, "old", queues=["limits"], lease="1 hour")
    assert reserve(conn, 10, "old", queues=["limits"]) == []
    for n in range(3):
        enqueue(conn, "gather", {"n": n}, queue="gathering", key="g")
    before.gathered = reserve(conn, 1, "old", queues=["gathering"], lease="1 hour")

    jobs["waiting"] = enqueue(conn, "plain", queue="waiting")
    jobs["deduped"] = enqueue(conn, "plain", queue="waiting", dedupe="d")
    jobs["staged"] = enqueue(conn, "plain", queue="waiting", priority=7)
    jobs["scheduled"] = enqueue(conn, "plain", queue="waiting", delay="2 hours")
    jobs["failed"] = enqueue(conn, "plain", queue="failed")
    held = reserve_one(conn, "old", queues=["failed"])
    call(conn, "fail", held.id, held.reservation, Jsonb({"message": "once"}), retry_in="1 min")
    jobs["released"] = enqueue(conn, "plain", queue="released")
    held = reserve_one(conn, "old", queues=["released"])
    call(conn, "release", [held.id], [held.reservation])
    # Lanes have heads, and a worker is idle.
    for _ in range(3):
        call(conn, "maintain")
    call(conn, "idle", "asleep", ["waiting"])
    rows = conn.execute("select id, state::text from pgqueue.all_jobs").fetchall()
    before.states = dict(rows)
    return before


@pytest.fixture
def migrated(empty_database: Database) -> tuple[psycopg.Connection, Before]:
    # No statements prepared: the migration changes what they return.
    conn = empty_database.connect(prepare_threshold=None)
    install(conn)
    before = fill(conn)
    assert {"waiting", "executing", "failed", "blocked", "succeeded", "dead", "cancelled"} == set(
        before.states.values()
    )
    assert migrate(empty_database.dsn).current
    return conn, before


def test_every_job_of_the_last_release_is_there_after_the_migration_as_it_was(
    migrated: tuple[psycopg.Connection, Before],
) -> None:
    conn, before = migrated
    assert dict(conn.execute("select id, state::text from pgqueue.all_jobs").fetchall()) == before.states
    assert job(conn, before.jobs["succeeded"]).result == {"n": 1}
    assert job(conn, before.jobs["dead"]).errors[-1]["message"] == "no paper"
    assert maintain(conn).ran
    assert stats(conn).maintenance["failures"] == {}
    assert stats(conn).maintenance["hidden"] == 0


def test_fences_of_the_last_release_hold_after_the_migration(migrated: tuple[psycopg.Connection, Before]) -> None:
    conn, before = migrated
    held = before.held
    assert call(conn, "complete", held["completes"].id, held["completes"].reservation + 1) is False
    assert call(conn, "complete", held["completes"].id, held["completes"].reservation) is True
    assert call(conn, "complete", held["completes"].id, held["completes"].reservation) is False
    assert call(conn, "fail", held["fails"].id, held["fails"].reservation) == "failed"
    assert call(conn, "release", [held["is released"].id], [held["is released"].reservation]) is None
    again = reserve_one(conn, "new", queues=["executing"])
    assert again.id == held["is released"].id
    assert again.reservation > held["is released"].reservation
    assert call(conn, "complete", again.id, held["is released"].reservation) is False
    assert call(conn, "complete", again.id, again.reservation) is True
    # Those that wait behind an old worker's job go on when it ends, one at a time and in their order.
    assert reserve(conn, 10, "new", queues=["keys"]) == []
    ran = [held["key"].id]
    call(conn, "complete", held["key"].id, held["key"].reservation)
    while found := reserve(conn, 10, "new", queues=["keys"]):
        [row] = found
        ran.append(row.id)
        call(conn, "complete", row.id, row.reservation)
    assert ran == before.keyed
    # All payloads of one call, by its leader.
    assert call(conn, "complete", before.gathered[0].id, before.gathered[0].reservation) is True
    assert {state(conn, row.id) for row in before.gathered} == {"succeeded"}
    # The dedupe key still stands for its job.
    assert enqueue(conn, "plain", queue="waiting", dedupe="d") == before.jobs["deduped"]


def test_a_lease_of_the_last_release_lapses_and_its_job_runs_again(
    empty_database: Database, migrated: tuple[psycopg.Connection, Before]
) -> None:
    conn, before = migrated
    clock = Clock(empty_database.connect())
    for _ in range(3):
        # A gap in maintenance grants one length more.
        clock.advance("1 hour 1 s")
        maintain(conn)
    lapsed = before.held["lapses"]
    again = [row for row in reserve(conn, 10, "new", queues=["executing"]) if row.id == lapsed.id]
    assert [row.attempt for row in again] == [1]
    assert call(conn, "complete", lapsed.id, lapsed.reservation) is False
    assert call(conn, "complete", lapsed.id, again[0].reservation) is True


async def test_workers_of_this_release_run_every_job_of_the_last_one_once_and_in_order(
    empty_database: Database, migrated: tuple[psycopg.Connection, Before]
) -> None:
    conn, before = migrated
    app = App()
    ran: list[int] = []

    for name in ("plain", "keyed", "limited", "completes", "lapses", "is released", "fails"):

        @app.task(name=name)
        async def run(job: Job, i: int = 0) -> None:
            ran.append(job.id)

    expected = [job_id for job_id, was in before.states.items() if was in ("waiting", "blocked", "failed")]
    # What the old worker holds it ends, or gives back; the others come due.
    for held in before.held.values():
        call(conn, "release", [held.id], [held.reservation])
        expected.append(held.id)
    conn.execute("select pgqueue.complete(%s, %s)", [before.gathered[0].id, before.gathered[0].reservation])
    Clock(empty_database.connect()).advance("3 hours")
    async with working(app, empty_database.dsn, concurrency=4), working(app, empty_database.dsn, name="second"):
        assert set(await done(conn, *expected, timeout=60)) == {"succeeded"}
    assert sorted(ran) == sorted(expected)
    assert [job_id for job_id in ran if job_id in before.keyed] == before.keyed
    assert value(conn, "select count(*) from pgqueue.jobs where task <> 'report'") == 0
    assert stats(conn).maintenance["failures"] == {}
