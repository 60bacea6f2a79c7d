"""The policy that is an SQL function: its arguments, its results, and its owner."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, enqueue, job, reserve_one, state, table, value

NOON = "2030-01-01 12:00+00"
PINNED = "set search_path = pg_catalog, pg_temp"


@pytest.fixture
def clock(clock: Clock) -> Clock:
    clock.set(NOON)
    return clock


@pytest.fixture
def other(conn: psycopg.Connection) -> Iterator[str]:
    """A role without rights."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    conn.execute(f"create role {name}".encode())
    yield name
    conn.execute("reset role")
    conn.execute(f"reassign owned by {name} to current_user".encode())
    conn.execute(f"drop owned by {name}".encode())
    conn.execute(f"drop role {name}".encode())


def create(conn: psycopg.Connection, body: str, options: str = PINNED, language: str = "sql") -> None:
    conn.execute("create schema if not exists app")
    conn.execute(
        "create or replace function app.policy(job jsonb, error jsonb) returns interval"
        f" language {language} {options} as $f$ {body} $f$".encode()
    )


def raising(conn: psycopg.Connection, statement: str) -> None:
    create(conn, f"begin {statement}; end", language="plpgsql")


def fail(conn: psycopg.Connection, job_id: int, error: object = None) -> str:
    new_state: str = call(conn, "fail", job_id, reserve_one(conn).reservation, Jsonb(error or {"message": "m"}))
    return new_state


@pytest.mark.covers("G10")
def test_a_function_says_when_by_the_job_and_the_error(conn: psycopg.Connection, clock: Clock) -> None:
    create(
        conn,
        """
        select make_interval(
            secs => (job -> 'args' ->> 'pace')::int * ((job ->> 'retries')::int + 1) + (error ->> 'code')::int
                + 1000 * (job ->> 'max_attempts')::int
        )
        """,
    )
    call(conn, "set_retry_function", "t", "app.policy")
    job_id = enqueue(conn, "t", {"pace": 10}, max_attempts=3)
    for seconds in (3017, 3027):
        assert fail(conn, job_id, {"code": 7}) == "failed"
        assert job(conn, job_id).due_at - clock.now() == timedelta(seconds=seconds)
        clock.advance("1 hour")
    assert fail(conn, job_id, {"code": 7}) == "dead"


@pytest.mark.covers("G10")
def test_null_means_dead(conn: psycopg.Connection) -> None:
    create(conn, "select case when error ->> 'class' <> 'Fatal' then interval '0' end")
    call(conn, "set_retry_function", "t", "app.policy")
    job_id = enqueue(conn)
    assert fail(conn, job_id, {"class": "Hiccup"}) == "failed"
    assert fail(conn, job_id, {"class": "Fatal"}) == "dead"
    assert "policy_error" not in job(conn, job_id).errors[-1]


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("raise division_by_zero", "22012"),
        ("assert false, 'never'", "never"),
        ("insert into pgqueue.jobs (task) values (job ->> 'id'); return '1 s'", "23502"),
        ("return interval '-1 s'", "-00:00:01"),
        ("return interval '11 years'", "11 years"),
        ("return 'nonsense'", "22007"),
    ],
)
def test_a_function_that_raises_leaves_it_to_the_default_policy_and_the_job_says_why(
    conn: psycopg.Connection, clock: Clock, statement: str, why: str
) -> None:
    raising(conn, statement)
    call(conn, "set_retry_function", "t", "app.policy")
    conn.execute("update pgqueue.tasks set retry_delay = '1 day'")
    job_id = enqueue(conn)
    assert fail(conn, job_id) == "failed"
    assert timedelta(seconds=30) <= job(conn, job_id).due_at - clock.now() <= timedelta(seconds=33)
    [entry] = job(conn, job_id).errors
    assert entry["message"] == "m"
    assert entry["policy_error"].startswith("retry function app.policy: ")
    assert why in entry["policy_error"]


def test_a_function_that_does_not_return_ends_with_the_callers_statement_timeout(
    conn: psycopg.Connection, clock: Clock
) -> None:
    raising(conn, "perform pg_sleep(3600); return '1 s'")
    call(conn, "set_retry_function", "t", "app.policy")
    job_id = enqueue(conn)
    # Of the claim before it as well, of which the first one in a session makes the plans.
    conn.execute("set statement_timeout = '3 s'")
    assert fail(conn, job_id) == "failed"
    conn.execute("reset statement_timeout")
    assert job(conn, job_id).due_at - clock.now() >= timedelta(seconds=30)
    assert "57014" in job(conn, job_id).errors[0]["policy_error"]


def test_what_a_function_that_raises_has_done_is_undone(conn: psycopg.Connection) -> None:
    conn.execute("create table traces ()")
    raising(conn, "insert into public.traces default values; raise division_by_zero")
    call(conn, "set_retry_function", "t", "app.policy")
    assert fail(conn, enqueue(conn)) == "failed"
    assert value(conn, "select count(*) from traces") == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("drop function app.policy", "no such function"),
        ("alter function app.policy reset search_path", "search_path"),
        ("alter function app.policy set search_path = app", "search_path"),
        ("alter function app.policy owner to {other}", "owned by"),
        ("alter function app.policy security definer owner to {other}", "owned by"),
        ("alter schema app owner to {other}", "Its schema is owned by"),
    ],
)
def test_a_function_that_could_lend_the_owners_rights_is_neither_set_nor_called(
    conn: psycopg.Connection, clock: Clock, other: str, change: str, why: str
) -> None:
    conn.execute("create table calls ()")
    create(conn, "insert into public.calls default values; select interval '1 s'")
    call(conn, "set_retry_function", "t", "app.policy")
    conn.execute(f"grant create on schema app to {other}".encode())
    change = change.format(other=other)
    if "definer" in change:
        conn.execute("alter function app.policy security definer")
        change = change.replace(" security definer", "")
    conn.execute(change.encode())

    job_id = enqueue(conn)
    assert fail(conn, job_id) == "failed"
    assert job(conn, job_id).due_at - clock.now() >= timedelta(seconds=30)
    assert why in job(conn, job_id).errors[-1]["policy_error"]
    assert value(conn, "select count(*) from calls") == 0
    with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
        call(conn, "set_retry_function", "t", "app.policy")
    assert why in (refused.value.diag.message_detail or "")


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ("jsonb", "interval"),
        ("json, jsonb", "interval"),
        ("jsonb, jsonb", "text"),
        ("jsonb, jsonb", "setof interval"),
    ],
)
def test_a_function_of_another_shape_is_refused(conn: psycopg.Connection, arguments: str, result: str) -> None:
    conn.execute("create schema app")
    conn.execute(
        f"create function app.wrong({arguments}) returns {result} language sql {PINNED}"
        f" as $$ select null::{result.removeprefix('setof ')} $$".encode()
    )
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        call(conn, "set_retry_function", "t", "app.wrong")
    assert value(conn, "select count(*) from pgqueue.tasks") == 0


def test_it_runs_for_a_worker_that_may_not_call_it(conn: psycopg.Connection, clock: Clock, other: str) -> None:
    create(conn, "select interval '5 s'")
    conn.execute("revoke all on function app.policy from public")
    call(conn, "set_retry_function", "t", "app.policy")
    call(conn, "grant_access", "worker", other)
    job_id = enqueue(conn)
    conn.execute(f"set role {other}".encode())
    assert fail(conn, job_id) == "failed"
    conn.execute("reset role")
    assert job(conn, job_id).due_at - clock.now() == timedelta(seconds=5)


def test_it_is_taken_back_with_null_and_an_operator_may_switch_it_off(conn: psycopg.Connection, clock: Clock) -> None:
    create(conn, "select interval '5 s'")
    call(conn, "declare_task", "t", retry_policy="fixed", retry_delay="7 s", retry_jitter=0)
    call(conn, "set_retry_function", "t", "app.policy")
    job_id = enqueue(conn)

    def delay(**options: str) -> float:
        call(conn, "fail", job_id, reserve_one(conn).reservation, **options)
        found: timedelta = job(conn, job_id).due_at - clock.now()
        clock.advance(found)
        return found.total_seconds()

    assert delay() == 5
    conn.execute("update pgqueue.tasks set retry_policy = 'exponential', retry_delay = '0'")
    assert [delay(), delay(policy="function")] == [1, 5]
    conn.execute("update pgqueue.tasks set retry_policy = 'function'")
    assert delay() == 5
    call(conn, "set_retry_function", "t", None)
    conn.execute("update pgqueue.tasks set retry_delay = null")
    assert delay() == 7
    assert state(conn, job_id) == "failed"


def test_exchange_leaves_to_a_later_call_what_a_function_is_to_decide(conn: psycopg.Connection, clock: Clock) -> None:
    create(conn, "select interval '1 h'")
    call(conn, "set_retry_function", "asked", "app.policy")
    jobs = [enqueue(conn, task) for task in ("asked", "asked", "asked", "other", "done")]
    held = {row.id: row.reservation for row in table(conn, "reserve", "w", 5)}
    *failed, completed = jobs

    def exchange(*failing: int, **named: object) -> dict[int, str]:
        rows = table(
            conn, "exchange", "w", failed=list(failing), failed_reservations=[held[each] for each in failing], **named
        )
        return {row.id: row.outcome for row in rows}

    # A failure that says by itself what comes next is decided.
    said = exchange(
        *failed,
        completed=[completed],
        completed_reservations=[held[completed]],
        retry=[True, False, True, True],
        policies=[None, None, "fixed", None],
        ask=False,
    )
    assert said == dict(zip(failed, ["undecided", "dead", "failed", "failed"], strict=True))
    assert [state(conn, each) for each in jobs] == ["executing", "dead", "failed", "failed", "succeeded"]
    assert job(conn, jobs[0]).errors is None
    assert exchange(jobs[0], ask=True) == {jobs[0]: "failed"}
    assert job(conn, jobs[0]).due_at - clock.now() == timedelta(hours=1)
