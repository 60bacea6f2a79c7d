"""The fast path of a claim: when it is taken, and that it claims what the long way would."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.calls import call, enqueue, ids, maintain, reserve, reserve_one, value
from tests.databases import Database

# In place of the long way, so that taking it shows.
_BARRED = """
create or replace function pgqueue._claim_lanes(
    p_worker text, p_max_jobs integer, p_queues text[], p_weights integer[], p_lease interval, p_strategy text,
    p_chance double precision, p_began timestamptz, p_newest_id bigint
)
returns table (
    id bigint, task text, args jsonb, headers jsonb, queue text, key text, priority integer, attempt integer,
    max_attempts integer, reservation bigint, run_at timestamptz, created_at timestamptz, lease_expires_at timestamptz,
    leader bigint, score numeric, timeout interval, losses integer, crashes integer, store_result boolean
)
language plpgsql as $$ begin raise exception using errcode = 'PT001', message = 'the long way'; end $$
"""


def test_small_claims_of_plain_jobs_take_the_fast_path(conn: psycopg.Connection) -> None:
    conn.execute(_BARRED)
    maintain(conn)
    later, low, high = enqueue(conn, delay="1 hour"), enqueue(conn), enqueue(conn, priority=1)
    elsewhere = enqueue(conn, queue="elsewhere")
    assert ids(reserve(conn, 1)) == [high]
    assert ids(reserve(conn, 50, queues=["default", "none"])) == [low]
    [job] = reserve(conn, 50)
    assert job.id == elsewhere
    assert reserve(conn, 50) == []
    assert value(conn, "select state from pgqueue.all_jobs where id = %s", later) == "waiting"
    assert call(conn, "complete", job.id, job.reservation) is True


@pytest.mark.parametrize(
    "reason",
    [
        lambda conn: call(conn, "set_limit", "queue", "other", 1),
        lambda conn: call(conn, "pause_queue", "other"),
        lambda conn: call(conn, "configure_queue", "other", weight=2),
        lambda conn: conn.execute("set pgqueue.fast_path = off"),
        lambda conn: conn.execute("delete from pgqueue.maintenance_runs"),
        lambda conn: reserve_one(conn, lease="1 us"),
        lambda conn: conn.execute(
            "insert into pgqueue.key_notes (queue, key, job_id, next_at) values ('q', 'k', 1, now())"
        ),
        lambda conn: enqueue(conn, key="k"),
        lambda conn: enqueue(conn, limit_key="k"),
        lambda conn: enqueue(conn, expires_in="1 hour"),
    ],
    ids=[
        "limit",
        "paused",
        "weight",
        "setting",
        "no maintenance",
        "lapsed lease",
        "note",
        "key",
        "limit_key",
        "expires_in",
    ],
)
def test_what_it_does_not_know_goes_the_long_way(
    conn: psycopg.Connection, reason: Callable[[psycopg.Connection], object]
) -> None:
    maintain(conn)
    enqueue(conn)
    reason(conn)
    assert _goes_the_long_way(conn)
    assert len(reserve(conn, 5)) >= 1


@pytest.mark.parametrize(
    "options",
    [{"max_jobs": 51}, {"strategy": "lag"}, {"queues": ["default"], "weights": [1]}],
    ids=lambda o: next(iter(o)),
)
def test_arguments_that_it_does_not_know_go_the_long_way(conn: psycopg.Connection, options: dict[str, object]) -> None:
    maintain(conn)
    enqueue(conn)
    assert _goes_the_long_way(conn, **options)
    assert len(reserve(conn, **{"max_jobs": 5, **options})) == 1  # type: ignore[arg-type]


def _goes_the_long_way(conn: psycopg.Connection, **options: object) -> bool:
    with conn.transaction(force_rollback=True):
        conn.execute(_BARRED)
        try:
            reserve(conn, **{"max_jobs": 5, **options})  # type: ignore[arg-type]
        except psycopg.Error as error:
            return error.sqlstate == "PT001"
        return False


def test_a_lapsed_lease_is_taken_back_where_no_session_runs_maintenance(
    conn: psycopg.Connection, clock: object
) -> None:
    job_id = enqueue(conn)
    maintain(conn)
    reserve_one(conn, lease="1 s")
    clock.advance("4 s")  # type: ignore[attr-defined]
    assert ids(reserve(conn, 1)) == [job_id]


def test_a_full_claim_passes_the_wake_up_on(conn: psycopg.Connection, database: Database) -> None:
    maintain(conn)
    listener = database.connect()
    channel = value(listener, "select channel from pgqueue.idle('other', null, '1 min')")
    listener.execute(f"listen {channel}".encode())
    conn.execute("set pgqueue.notify = off")
    enqueue(conn)
    enqueue(conn)
    conn.execute("set pgqueue.notify = on")
    assert len(reserve(conn, 2)) == 2
    assert [each.payload for each in listener.notifies(timeout=5, stop_after=1)] == ["wake"]
    enqueue_quietly = "select set_config('pgqueue.notify', 'off', true), pgqueue.enqueue('t')"
    conn.execute(enqueue_quietly)
    assert len(reserve(conn, 2)) == 1
    assert list(listener.notifies(timeout=0.2)) == []


_jobs = st.lists(
    st.fixed_dictionaries(
        {
            "queue": st.sampled_from("abc"),
            "priority": st.sampled_from([-1, 0, 1]),
            "delay": st.sampled_from([None, None, None, "1 hour"]),
            "what": st.sampled_from(["plain"] * 12 + ["key", "limit_key", "expires", "returned", "locked"]),
        }
    ),
    max_size=25,
)
_claims = st.fixed_dictionaries(
    {
        "max_jobs": st.integers(1, 12),
        "queues": st.sampled_from([None, None, ["a"], ["b", "a"], ["c", "b", "a"], ["a", "none"]]),
    }
)


@pytest.mark.long
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(jobs=_jobs, claim=_claims, rule=st.sampled_from(["none"] * 4 + ["limit", "paused", "weight"]))
def test_both_ways_claim_the_same_jobs_in_the_same_order(
    database: Database, jobs: list[dict[str, object]], claim: dict[str, object], rule: str
) -> None:
    with database.connect() as conn, database.connect(autocommit=False) as other:
        conn.execute("delete from pgqueue.jobs")
        conn.execute("delete from pgqueue.limits")
        conn.execute("delete from pgqueue.queues")
        for each in jobs:
            _make(conn, other, each)
        if rule == "limit":
            call(conn, "set_limit", "queue", "a", 2)
        elif rule == "paused":
            call(conn, "pause_queue", "b")
        elif rule == "weight":
            call(conn, "configure_queue", "c", weight=3)
        maintain(conn)
        claimed = {path: _claim(conn, path, claim) for path in ("on", "off")}
        assert claimed["on"] == claimed["off"]
        other.rollback()


def _make(conn: psycopg.Connection, other: psycopg.Connection, job: dict[str, object]) -> None:
    options = {name: job[name] for name in ("queue", "priority", "delay") if job[name] is not None}
    what = job["what"]
    if what == "key":
        options["key"] = "k"
    elif what == "limit_key":
        options["limit_key"] = "k"
    elif what == "expires":
        options["expires_in"] = timedelta(hours=1)
    job_id = enqueue(conn, **options)
    if what == "returned" and job["delay"] is None:
        conn.execute(
            "select pgqueue.release(array[r.id], array[r.reservation])"
            " from pgqueue.reserve('w', 1000, array[%s]) r where r.id = %s",
            [job["queue"], job_id],
        )
        conn.execute("select pgqueue.release_unheld('w')")
    elif what == "locked":
        other.execute("select from pgqueue.jobs where id = %s for update skip locked", [job_id])


def _claim(conn: psycopg.Connection, path: str, claim: dict[str, object]) -> list[tuple[object, ...]]:
    with conn.transaction(force_rollback=True):
        conn.execute("select setseed(0.5), set_config('pgqueue.fast_path', %s, true)", [path])
        rows = reserve(conn, claim["max_jobs"], queues=claim["queues"])  # type: ignore[arg-type]
        return [
            (row.id, row.queue, row.priority, row.attempt, row.max_attempts, row.lease_expires_at is None)
            for row in rows
        ]
