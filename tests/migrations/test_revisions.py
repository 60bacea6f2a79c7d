"""Down through every revision with jobs in every state: none is lost; what an older schema cannot hold is refused."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.errors import MigrationError
from pgqueue.schema import bundled
from pgqueue.schema.migrate import migrate
from tests.calls import call, enqueue, enqueue_many, reserve, reserve_one
from tests.databases import Database

WORKFLOWS = "0015"


def jobs(conn: psycopg.Connection) -> dict[int, str]:
    """Every job by its id; below head there is no view of them."""
    return dict(
        conn.execute("select id, state::text from pgqueue.jobs union all select id, state::text from pgqueue.history")
    )


def fill(conn: psycopg.Connection) -> None:
    """Jobs in every state that every revision has, by each way into it."""
    call(conn, "declare_task", "gather", accumulate=True)
    call(conn, "set_limit", "task", "limited", max_executing=1)
    call(conn, "schedule", "nightly", "0 3 * * *", "report")
    for n, queue in enumerate(("succeeded", "dead", "failed", "released", "snoozed")):
        enqueue(conn, queue=queue, key=f"k{n}", retention="1 year" if n else None)
        held = reserve_one(conn, queues=[queue])
        if queue == "succeeded":
            call(conn, "complete", held.id, held.reservation, Jsonb({"n": 1}))
        elif queue == "released":
            call(conn, "release", [held.id], [held.reservation])
        elif queue == "snoozed":
            call(conn, "snooze", held.id, held.reservation, "1 hour")
        else:
            call(conn, "fail", held.id, held.reservation, Jsonb({"message": "no"}), retry=queue == "failed")
    call(conn, "cancel", enqueue(conn))
    enqueue_many(conn, 3, queue="keys", key="k")
    enqueue_many(conn, 3, "limited", queue="limits")
    enqueue_many(conn, 3, "gather", queue="gathering", key="g")
    for queue in ("keys", "limits", "gathering"):
        assert (
            reserve_one(conn, queues=[queue], lease="1 hour") if queue != "gathering" else reserve(conn, queues=[queue])
        )
        assert reserve(conn, 10, queues=[queue]) == []
    enqueue(conn, queue="waiting", dedupe="d", tags=["t"], priority=7, expires_in="1 day")
    enqueue(conn, queue="waiting", delay="2 hours", headers=Jsonb({"a": 1}), max_attempts=3)


def test_a_job_in_every_state_survives_the_way_down_and_up(database: Database) -> None:
    conn = database.connect(prepare_threshold=None)
    fill(conn)
    before = jobs(conn)
    assert set(before.values()) == {"waiting", "executing", "failed", "blocked", "succeeded", "dead", "cancelled"}
    for revision in reversed(bundled.revisions()[:-1]):
        assert migrate(database.dsn, to=revision).revision == revision
        assert jobs(conn).keys() == before.keys(), revision
    assert migrate(database.dsn).current
    assert jobs(conn).keys() == before.keys()
    ended = ("succeeded", "dead", "cancelled")
    assert {i: s for i, s in jobs(conn).items() if s in ended} == {i: s for i, s in before.items() if s in ended}


@pytest.mark.parametrize("waits", ["for a job", "for members", "in a group that is open", "for an event", "with steps"])
def test_a_job_that_an_older_schema_cannot_hold_is_named_and_nothing_is_changed(database: Database, waits: str) -> None:
    conn = database.connect(prepare_threshold=None)
    if waits == "for a job":
        job_id = enqueue(conn, depends_on=[enqueue(conn)])
    elif waits in ("for members", "in a group that is open"):
        job_id = call(conn, "open_group", "g")
        enqueue(conn, group_id=job_id)
        if waits == "for members":
            call(conn, "close_group", job_id)
    else:
        job_id = enqueue(conn)
        held = reserve_one(conn)
        if waits == "for an event":
            conn.execute("select pgqueue.await_event(%s, %s, 'e', 'e')", [held.id, held.reservation])
        else:
            call(conn, "complete_step", held.id, held.reservation, "s", Jsonb(1))
    before = jobs(conn)
    older = bundled.revisions()[bundled.revisions().index(WORKFLOWS) - 1]
    with pytest.raises(MigrationError, match=rf"jobs would be lost: the first of these jobs: {job_id}\b") as refused:
        migrate(database.dsn, to=older)
    assert "let them end" in (refused.value.hint or "")
    assert jobs(conn) == before
    assert call(conn, "delete" if waits == "for a job" else "cancel", job_id)
