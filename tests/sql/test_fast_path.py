"""The fast paths of a claim and of an end: when they are taken, and that they do what the long way would."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from tests.calls import Row, call, enqueue, ids, maintain, reserve, reserve_one, table, value
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


# In place of _finish, so that going there shows.
_NO_FINISH = """
create or replace function pgqueue._finish(
    p_job_ids bigint[], p_reservations bigint[], p_executing boolean, p_state pgqueue.job_state,
    p_results jsonb[] default null, p_error jsonb default null, p_merged_into bigint[] default null,
    p_errors jsonb[] default null, p_follow boolean default true
)
returns bigint[]
language plpgsql as $$ begin raise exception using errcode = 'PT001', message = 'the long way'; end $$
"""


def _complete(conn: psycopg.Connection, job_id: int, reservation: int) -> object:
    return call(conn, "complete", job_id, reservation, Jsonb({"n": 1}))


def _exchange(conn: psycopg.Connection, job_id: int, reservation: int) -> object:
    found = table(
        conn,
        "exchange",
        "w",
        completed=[job_id],
        completed_reservations=[reservation],
        results=[Jsonb({"n": 1})],
    )
    return found == []


_ENDS = pytest.mark.parametrize("end", [_complete, _exchange], ids=["complete", "exchange"])


@_ENDS
@pytest.mark.parametrize("options", [{}, {"key": "k"}, {"dedupe": "d"}, {"limit_key": "l"}], ids=str)
def test_the_end_of_a_single_job_takes_the_fast_path(
    conn: psycopg.Connection, end: Callable[[psycopg.Connection, int, int], object], options: dict[str, str]
) -> None:
    enqueue(conn, **options)
    job = reserve_one(conn)
    conn.execute(_NO_FINISH)
    assert end(conn, job.id, job.reservation) is True
    assert value(conn, "select (state, result ->> 'n')::text from pgqueue.history") == "(succeeded,1)"


@_ENDS
@pytest.mark.parametrize("reason", ["setting", "note", "steps", "locked", "partition", "lost"])
def test_an_end_that_it_does_not_know_goes_the_long_way(
    conn: psycopg.Connection,
    database: Database,
    end: Callable[[psycopg.Connection, int, int], object],
    reason: str,
) -> None:
    enqueue(conn)
    job = reserve_one(conn)
    other = database.connect(autocommit=False)
    if reason == "setting":
        conn.execute("set pgqueue.fast_path = off")
    elif reason == "note":
        parent = enqueue(conn)
        enqueue(conn, depends_on=[parent])
    elif reason == "steps":
        call(conn, "complete_step", job.id, job.reservation, "s", Jsonb(1))
    elif reason == "locked":
        other.execute("select from pgqueue.jobs where id = %s for update", [job.id])
    elif reason == "partition":
        conn.execute("set timezone = utc")
        for [name] in conn.execute(
            "select inhrelid::regclass::text from pg_inherits where inhparent = 'pgqueue.history_days'::regclass"
        ).fetchall():
            conn.execute(f"drop table {name}".encode())
    reservation = job.reservation + (reason == "lost")
    with conn.transaction(force_rollback=True):
        conn.execute(_NO_FINISH)
        with pytest.raises(psycopg.Error) as raised:
            end(conn, job.id, reservation)
        assert raised.value.sqlstate == "PT001"
    assert value(conn, "select state from pgqueue.jobs where id = %s", job.id) == "executing"
    other.rollback()
    assert end(conn, job.id, reservation) is (reason != "lost")


_ended = st.fixed_dictionaries(
    {},
    optional={
        "args": st.sampled_from([{}, {"a": "\n" * 3000}]),
        "queue": st.sampled_from(["kept", "not kept", "none"]),
        "priority": st.integers(-5, 5),
        "key": st.sampled_from("kl"),
        "limit_key": st.just("l"),
        "dedupe": st.just("d"),
        "score": st.integers(0, 9),
        "headers": st.just(Jsonb({"h": 1})),
        "tags": st.just(["t"]),
        "timeout": st.just("1 min"),
        "max_attempts": st.integers(1, 3),
        "retry_policy": st.just("fixed"),
        "retention": st.sampled_from(["0", "3 days", "8 days", "9 days", "40 days"]),
    },
)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    options=_ended,
    behind=_ended,
    task=st.sampled_from(["t", "declared", "brief"]),
    limit=st.sampled_from([None, None, "task", "key", "limit_key"]),
    fails=st.booleans(),
    extended=st.booleans(),
    end=st.sampled_from([_complete, _exchange]),
)
def test_both_ways_of_an_end_leave_the_same(
    conn: psycopg.Connection,
    options: dict[str, object],
    behind: dict[str, object],
    task: str,
    limit: str | None,
    fails: bool,
    extended: bool,
    end: Callable[[psycopg.Connection, int, int], object],
) -> None:
    conn.execute(
        "truncate pgqueue.jobs, pgqueue.history, pgqueue.dedupe_keys, pgqueue.limits, pgqueue.tasks, pgqueue.queues"
    )
    call(conn, "declare_task", "declared", retention_succeeded="2 days", timeout="1 s")
    call(conn, "declare_task", "brief", retention_succeeded="0")
    call(conn, "configure_queue", "kept", retention_succeeded="20 days")
    call(conn, "configure_queue", "not kept", retention_succeeded="0")
    if limit is not None:
        call(conn, "set_limit", limit, {"task": task, "key": "k", "limit_key": "l"}[limit], 1)
    job_id = enqueue(conn, task, **options)
    enqueue(conn, task, **{**behind, "dedupe": None})
    if fails and (job := _claimed(conn, job_id)) is not None:
        call(conn, "fail", job.id, job.reservation, Jsonb({"class": "E", "message": "m"}), "0 s")
    # A claim also blocks the second job where it must. Dead, or blocked itself: there is nothing to compare.
    job = _claimed(conn, job_id)
    if job is None:
        return
    if extended:
        table(conn, "extend", [job.id], [job.reservation], "1 min")
    left = {path: _left(conn, path, end, job.id, job.reservation) for path in ("on", "off")}
    assert left["on"] == left["off"]


def _claimed(conn: psycopg.Connection, job_id: int) -> Row | None:
    return next((each for each in reserve(conn, 2) if each.id == job_id), None)


def _left(
    conn: psycopg.Connection,
    path: str,
    end: Callable[[psycopg.Connection, int, int], object],
    job_id: int,
    reservation: int,
) -> list[object]:
    with conn.transaction(force_rollback=True):
        conn.execute("select set_config('pgqueue.fast_path', %s, true)", [path])
        assert end(conn, job_id, reservation) is True
        return [
            value(
                conn, f"select coalesce(jsonb_agg(to_jsonb(x) - array{without} order by x::text), '[]') from {name} x"
            )
            for name, without in (
                ("pgqueue.history", ["finished_at", "kept_until"]),
                ("pgqueue.jobs", ["ready_at"]),
                ("pgqueue.dedupe_keys", [""]),
                ("pgqueue.limit_waits", [""]),
                ("pgqueue.key_notes", ["n", "next_at"]),
            )
        ] + [value(conn, "select max(extract(epoch from kept_until - finished_at)) from pgqueue.history")]
