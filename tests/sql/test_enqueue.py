"""The rows that enqueue and enqueue_many store, and the defaults of options that are left out."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, column, enqueue, enqueue_many, ids, job, reserve, reserve_one, state, table, value
from tests.databases import Database

NOON = "2030-01-01 12:00+00"


@pytest.mark.covers("G1", "A2")
def test_ids_grow(conn: psycopg.Connection) -> None:
    first, second = enqueue(conn), enqueue(conn)
    assert second > first


@pytest.mark.covers("G3", "A2", "D1")
def test_a_job_with_a_delay_is_not_handed_out_before_it(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    job_id = enqueue(conn, delay="2 hours")
    assert job(conn, job_id).due_at == clock.now() + timedelta(hours=2)
    clock.advance("1 hour 59 min 59.999999 s")
    assert reserve(conn) == []
    clock.advance("1 us")
    assert ids(reserve(conn)) == [job_id]


@pytest.mark.covers("G3", "A2", "D1")
def test_a_job_for_an_instant_is_not_handed_out_before_it(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    job_id = enqueue(conn, run_at="2030-01-02 00:00+00")
    clock.set("2030-01-01 23:59:59.999999+00")
    assert reserve(conn) == []
    clock.set("2030-01-02 00:00+00")
    assert ids(reserve(conn)) == [job_id]


@pytest.mark.parametrize(
    "option",
    [{"run_at": "2001-01-01 00:00+00"}, {"delay": "-1 day"}, {"delay": "0"}, {"delay": "-1000 years"}],
)
def test_a_time_in_the_past_means_now(conn: psycopg.Connection, clock: Clock, option: dict[str, str]) -> None:
    clock.set(NOON)
    job_id = enqueue(conn, **option)
    assert job(conn, job_id).due_at == clock.now()
    assert ids(reserve(conn)) == [job_id]


def test_a_job_enqueued_late_in_a_long_transaction_does_not_look_old(database: Database) -> None:
    producer = database.connect(autocommit=False)
    began = value(producer, "select now()")
    job_id = enqueue(producer)
    found = job(producer, job_id)
    assert found.created_at > began
    assert found.due_at > began


@pytest.mark.covers("G2")
def test_many_jobs_share_their_options_and_their_ids_come_in_order(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    options: dict[str, Any] = {
        "queue": "q",
        "priority": 7,
        "delay": "1 min",
        "expires_in": "1 hour",
        "max_attempts": 3,
        "headers": Jsonb({"h": 1}),
        "tags": ["x"],
    }
    job_ids = enqueue_many(conn, 500, **options)
    assert job_ids == sorted(set(job_ids))
    clock.advance("1 min")
    reserved = reserve(conn, 500)
    assert [(row.id, row.args["i"]) for row in reserved] == list(zip(job_ids, range(500), strict=True))
    assert {(row.queue, row.priority, row.max_attempts) for row in reserved} == {("q", 7, 3)}
    for job_id in (job_ids[0], job_ids[-1]):
        found = job(conn, job_id)
        assert (found.headers, found.tags) == ({"h": 1}, ["x"])
        assert found.run_at == clock.now()
        assert found.expires_at == clock.now() + timedelta(hours=1)


@pytest.mark.covers("G2")
def test_many_jobs_are_enqueued_all_or_none(conn: psycopg.Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        call(conn, "enqueue_many", "t", [Jsonb({}), Jsonb([]), Jsonb({})])
    assert value(conn, "select count(*) from pgqueue.jobs") == 0


def test_no_args_for_many_is_no_jobs(conn: psycopg.Connection) -> None:
    assert column(conn, "enqueue_many", "t", []) == []
    assert value(conn, "select count(*) from pgqueue.lanes") == 0


@pytest.mark.covers("G4")
def test_the_queue_is_default_where_nothing_is_said(conn: psycopg.Connection) -> None:
    assert job(conn, enqueue(conn)).queue == "default"


@pytest.mark.covers("G4")
def test_queue_and_priority_come_from_the_call_then_the_task_then_the_queue(conn: psycopg.Connection) -> None:
    call(conn, "declare_task", "t", queue="of-task", priority=20)
    call(conn, "declare_task", "only-queue", queue="of-task")
    conn.execute("insert into pgqueue.queues (name, priority) values ('of-task', 30), ('other', 40)")

    def stored(task: str, **options: Any) -> tuple[str, int]:
        one = job(conn, enqueue(conn, task, **options))
        many = job(conn, enqueue_many(conn, 1, task, **options)[0])
        assert (one.queue, one.priority) == (many.queue, many.priority)
        return one.queue, one.priority

    assert stored("t", queue="other", priority=10) == ("other", 10)
    assert stored("t", queue="other") == ("other", 20)
    assert stored("t") == ("of-task", 20)
    assert stored("only-queue") == ("of-task", 30)
    assert stored("unknown", queue="other") == ("other", 40)
    assert stored("unknown") == ("default", 0)


@pytest.mark.covers("G4")
def test_what_an_operator_sets_beats_what_the_code_declares_and_survives_it(conn: psycopg.Connection) -> None:
    def declare() -> bool:
        declared: bool = call(
            conn, "declare_task", "t", queue="declared", priority=1, max_attempts=2, expires_in="1 hour"
        )
        return declared

    assert declare() is True
    assert declare() is False
    conn.execute("update pgqueue.tasks set queue = 'operator', max_attempts = 5 where name = 't'")
    assert declare() is False
    assert call(conn, "declare_task", "t", queue="declared anew", priority=1) is True

    found = job(conn, enqueue(conn))
    assert (found.queue, found.priority, found.expires_at) == ("operator", 1, None)
    assert reserve_one(conn).max_attempts == 5
    conn.execute("update pgqueue.tasks set queue = null, max_attempts = null where name = 't'")
    assert job(conn, enqueue(conn)).queue == "declared anew"
    assert reserve_one(conn).max_attempts == 11


def test_max_attempts_of_the_task_hold_for_jobs_that_wait_already(conn: psycopg.Connection) -> None:
    theirs, own = enqueue(conn), enqueue(conn, max_attempts=4)
    conn.execute("insert into pgqueue.tasks (name, max_attempts) values ('t', 1)")
    first, second = reserve(conn, 2)
    assert (first.max_attempts, second.max_attempts) == (1, 4)
    assert call(conn, "fail", theirs, first.reservation) == "dead"
    assert call(conn, "fail", own, second.reservation) == "failed"


def test_expires_in_counts_from_run_at_and_defaults_to_the_task(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    call(conn, "declare_task", "t", expires_in="10 min")
    own = job(conn, enqueue(conn, delay="1 hour", expires_in="5 min"))
    assert own.expires_at - clock.now() == timedelta(hours=1, minutes=5)
    assert job(conn, enqueue(conn)).expires_at - clock.now() == timedelta(minutes=10)
    past = job(conn, enqueue(conn, run_at="2001-01-01 00:00+00"))
    assert past.expires_at - clock.now() == timedelta(minutes=10)
    assert job(conn, enqueue(conn, "other")).expires_at is None


def test_the_size_limit_of_args_is_a_setting(conn: psycopg.Connection) -> None:
    def of_size(size: int) -> dict[str, str]:
        return {"x": "a" * (size - len('{"x": ""}'))}

    enqueue(conn, "t", of_size(1048576))
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="1048576 bytes"):
        enqueue(conn, "t", of_size(1048577))
    conn.execute("update pgqueue.settings set max_args_bytes = 262144")
    enqueue(conn, "t", of_size(262144))
    for enqueue_it in (
        lambda: enqueue(conn, "t", of_size(262145)),
        lambda: column(conn, "enqueue_many", "t", [Jsonb({}), Jsonb(of_size(262145))]),
    ):
        with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
            enqueue_it()
        assert refused.value.diag.message_primary == "args must be at most 262144 bytes of JSON"
        assert "max_args_bytes" in (refused.value.diag.message_hint or "")


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_enqueue_works_at_every_isolation_level(database: Database, level: str) -> None:
    conn = database.connect(options=f"-c default_transaction_isolation={level.replace(' ', chr(92) + ' ')}")
    assert value(conn, "show transaction_isolation") == level
    one, many = enqueue(conn), enqueue_many(conn, 2)
    assert {state(conn, job_id) for job_id in (one, *many)} == {"waiting"}


def test_names_are_bounded_in_bytes_not_characters(conn: psycopg.Connection) -> None:
    name = "ä" * 64
    found = job(conn, enqueue(conn, name, queue=name, tags=[name]))
    assert (found.task, found.queue, found.tags) == (name, name, [name])
    assert reserve_one(conn, queues=[name]).task == name


def test_jobs_with_a_spread_become_due_one_after_the_other_over_that_time(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set(NOON)
    jobs = enqueue_many(conn, 5, spread="10 min", expires_in="1 min", run_at="2030-01-01 11:00+00", key="k")
    assert ids(reserve(conn, 5)) == jobs[:1]
    for n, job_id in enumerate(jobs):
        each = job(conn, job_id)
        assert each.expires_at - clock.now() == timedelta(minutes=2 * n + 1)
        # A job that is not due yet holds no position in its key.
        assert each.run_at - clock.now() == (timedelta(minutes=2 * n) if n else timedelta(hours=-1))
    clock.advance("2 min -1 us")
    assert call(conn, "complete", jobs[0], value(conn, "select reservation from pgqueue.jobs where id = %s", jobs[0]))
    assert reserve(conn, 5) == []
    clock.advance("1 us")
    assert ids(reserve(conn, 5)) == jobs[1:2]


@pytest.mark.parametrize("spread", ["-1 s", "2 years"])
def test_a_spread_is_between_zero_and_a_year(conn: psycopg.Connection, spread: str) -> None:
    with pytest.raises(psycopg.Error, match="spread must be between zero and a year") as refused:
        enqueue_many(conn, 2, spread=spread)
    assert refused.value.sqlstate == "22023"
    assert len(enqueue_many(conn, 2, spread="0")) == len(reserve(conn, 3)) == 2


@pytest.mark.parametrize("limit_key", ["*", "acme*"])
def test_a_limit_key_that_would_stand_for_others_is_refused(conn: psycopg.Connection, limit_key: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"limit_key must be .* not end in \*"):
        enqueue(conn, limit_key=limit_key)
    [row] = table(conn, "enqueue_batch", [Jsonb({"task": "t", "limit_key": limit_key})])
    assert row.outcome == "error"
    waiting = enqueue(conn, limit_key="acme")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="limit_key must be"):
        call(conn, "update_job", waiting, limit_key=limit_key)
    assert value(conn, "select count(*) from pgqueue.jobs") == 1
