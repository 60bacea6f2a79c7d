"""Down through each later revision with jobs in every state: none is lost; what older tables cannot hold is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.errors import MigrationError
from pgqueue.schema import bundled
from pgqueue.schema.migrate import migrate, status
from tests.calls import call, enqueue, enqueue_many, reserve, reserve_one
from tests.databases import Database
from tests.migrations.made_up import add_revision

FIRST = "0001"

# What the downgrade of a revision says whose jobs the older tables cannot hold.
REFUSES = """
do $$
declare
    v_id bigint := (select min(j.id) from pgqueue.jobs j where j.priority = 7);
begin
    if v_id is not null then
        raise 'the older schema has no priority 7, and jobs would be lost'
            using detail = format('the first of these jobs: %s', v_id), hint = 'let them end, then go on';
    end if;
end
$$;
alter table pgqueue.jobs drop column made_up_9001;
"""


@pytest.fixture
def sources(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of sql/ and migrations/ with two more revisions. The database is made before, by this release."""
    for name in ("sql", "migrations"):
        shutil.copytree(bundled.directory(name), tmp_path / name)
    newest = bundled.revisions()[-1]
    add_revision(tmp_path / "migrations", newest, "9001", down=REFUSES)
    add_revision(tmp_path / "migrations", "9001", "9002")
    monkeypatch.setattr(bundled, "directory", lambda name: tmp_path / name)
    return tmp_path


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


@pytest.mark.usefixtures("sources")
def test_a_job_in_every_state_survives_the_way_down_and_up(database: Database) -> None:
    conn = database.connect(prepare_threshold=None)
    assert migrate(database.dsn).revision == "9002"
    fill(conn)
    conn.execute("update pgqueue.jobs set priority = 6 where priority = 7")
    before = jobs(conn)
    assert set(before.values()) == {"waiting", "executing", "failed", "blocked", "succeeded", "dead", "cancelled"}
    for revision in reversed(bundled.revisions()[:-1]):
        assert migrate(database.dsn, to=revision).revision == revision
        assert jobs(conn) == before, revision
    assert migrate(database.dsn).current
    assert jobs(conn) == before


@pytest.mark.usefixtures("sources")
def test_a_job_that_an_older_schema_cannot_hold_is_named_and_nothing_is_changed(database: Database) -> None:
    conn = database.connect(prepare_threshold=None)
    migrate(database.dsn)
    job_id = enqueue(conn, priority=7)
    with pytest.raises(MigrationError, match=rf"jobs would be lost: the first of these jobs: {job_id}\b") as refused:
        migrate(database.dsn, to=FIRST)
    assert refused.value.hint == "let them end, then go on"
    assert status(database.dsn).current
    assert call(conn, "cancel", job_id)
    assert migrate(database.dsn, to=FIRST).revision == FIRST
