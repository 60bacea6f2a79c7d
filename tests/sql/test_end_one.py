"""The small statement that ends a single job: when it does, and that it leaves what the general one would."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from tests.calls import Row, call, column, enqueue, reserve, reserve_one, table, value
from tests.databases import Database

# In place of _finish, so that going there shows.
_NO_FINISH = """
create or replace function pgqueue._finish(
    p_job_ids bigint[], p_reservations bigint[], p_executing boolean, p_state pgqueue.job_state,
    p_results jsonb[] default null, p_error jsonb default null, p_merged_into bigint[] default null,
    p_errors jsonb[] default null, p_settle boolean default true
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
@pytest.mark.parametrize("workflows", [False, True], ids=["", "workflows elsewhere"])
def test_the_end_of_a_single_job_is_one_small_statement(
    conn: psycopg.Connection,
    end: Callable[[psycopg.Connection, int, int], object],
    options: dict[str, str],
    workflows: bool,
) -> None:
    enqueue(conn, **options)
    job = reserve_one(conn)
    if workflows:
        enqueue(conn, depends_on=[enqueue(conn)])
        call(conn, "open_group", "g")
    conn.execute(_NO_FINISH)
    assert end(conn, job.id, job.reservation) is True
    assert value(conn, "select (state, result ->> 'n')::text from pgqueue.history") == "(succeeded,1)"


# In place of _follow_ends, so that going there shows.
_NO_FOLLOWING = """
create or replace function pgqueue._follow_ends(
    p_ended pgqueue.ended_job[], p_executing boolean, p_state pgqueue.job_state, p_error jsonb
)
returns void
language plpgsql as $$ begin raise exception using errcode = 'PT001', message = 'followed'; end $$
"""


@_ENDS
def test_an_end_with_a_limit_key_is_followed_only_while_a_limit_key_has_a_limit(
    conn: psycopg.Connection, end: Callable[[psycopg.Connection, int, int], object]
) -> None:
    call(conn, "set_limit", "key", "other", 1)
    conn.execute(_NO_FOLLOWING)
    for limited in (False, True):
        enqueue(conn, limit_key="l")
        job = reserve_one(conn)
        if not limited:
            assert end(conn, job.id, job.reservation) is True
            call(conn, "set_limit", "limit_key", "m", 1)
            continue
        with pytest.raises(psycopg.Error, match="followed"):
            end(conn, job.id, job.reservation)


@_ENDS
@pytest.mark.parametrize("reason", ["child", "steps", "locked", "partition", "lost"])
def test_any_other_end_goes_the_long_way(
    conn: psycopg.Connection,
    database: Database,
    end: Callable[[psycopg.Connection, int, int], object],
    reason: str,
) -> None:
    enqueue(conn)
    job = reserve_one(conn)
    other = database.connect(autocommit=False)
    if reason == "child":
        enqueue(conn, depends_on=[job.id])
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
    assert _left(conn, end, job.id, job.reservation) == _left(conn, _complete_many, job.id, job.reservation)


def _claimed(conn: psycopg.Connection, job_id: int) -> Row | None:
    return next((each for each in reserve(conn, 2) if each.id == job_id), None)


def _complete_many(conn: psycopg.Connection, job_id: int, reservation: int) -> object:
    """Ends it by the general statement, which takes many jobs."""
    return column(conn, "complete_many", [job_id], [reservation], [Jsonb({"n": 1})]) == []


def _left(
    conn: psycopg.Connection,
    end: Callable[[psycopg.Connection, int, int], object],
    job_id: int,
    reservation: int,
) -> list[object]:
    with conn.transaction(force_rollback=True):
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
