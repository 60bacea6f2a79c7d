"""When a failed job runs again: the policies, who overrides whom, and the queue in which it waits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, ids, job, maintain, reserve, reserve_one, state, value

NOON = "2030-01-01 12:00+00"
HOUR = 3600


@pytest.fixture
def clock(clock: Clock) -> Clock:
    clock.set(NOON)
    return clock


def fail(conn: psycopg.Connection, clock: Clock, job_id: int, **options: Any) -> float:
    """Reserve the job, fail it, and travel to its next try; returns the seconds to there."""
    [held] = reserve(conn)
    assert held.id == job_id
    assert call(conn, "fail", job_id, held.reservation, **options) == "failed"
    delay: timedelta = job(conn, job_id).due_at - clock.now()
    if delay:
        clock.advance(delay - timedelta(microseconds=1))
        assert reserve(conn) == []
        clock.advance("1 us")
    return delay.total_seconds()


def ladder(conn: psycopg.Connection, clock: Clock, job_id: int, attempts: int) -> list[float]:
    return [fail(conn, clock, job_id) for _ in range(attempts)]


LADDERS: list[tuple[dict[str, Any], list[float]]] = [
    ({}, [30, 31, 62, 273, 1054, 3155]),
    ({"retry_policy": "fixed"}, [30, 30, 30]),
    ({"retry_policy": "fixed", "retry_delay": "5 min"}, [300, 300, 300]),
    ({"retry_policy": "exponential"}, [30, 31, 62, 273]),
    ({"retry_policy": "exponential", "retry_delay": "0", "retry_cap": "1 min"}, [0, 1, 32, 60, 60]),
    ({"retry_policy": "sidekiq"}, [15, 16, 31, 96, 271, 640]),
    ({"retry_policy": "sidekiq", "retry_delay": "1 s", "retry_cap": "80 s"}, [1, 2, 17, 80, 80]),
    ({"retry_policy": "doubling"}, [30, 60, 120, 240, 480, 960, 1920, HOUR, HOUR]),
    ({"retry_policy": "doubling", "retry_delay": "1 s", "retry_cap": "5 s"}, [1, 2, 4, 5, 5]),
    ({"retry_policy": "doubling", "retry_delay": "1 s", "retry_cap": "1 day"}, [2**n for n in range(15)]),
    ({"retry_policy": "list", "retry_delays": ["1 s", "0", "1 hour"]}, [1, 0, HOUR, HOUR, HOUR]),
    ({"retry_policy": "list", "retry_delays": ["1 day"], "retry_cap": "1 hour"}, [HOUR, HOUR]),
]


@pytest.mark.covers("G10", "L7", "A3")
@pytest.mark.parametrize(("options", "delays"), LADDERS, ids=[str(list(case[0].values())) for case in LADDERS])
def test_each_policy_has_its_ladder_and_then_the_job_is_dead(
    conn: psycopg.Connection, clock: Clock, options: dict[str, Any], delays: list[float]
) -> None:
    call(conn, "declare_task", "t", retry_jitter=0, max_attempts=len(delays) + 1, **options)
    job_id = enqueue(conn)
    assert ladder(conn, clock, job_id, len(delays)) == delays
    assert call(conn, "fail", job_id, reserve_one(conn).reservation) == "dead"
    assert (state(conn, job_id), job(conn, job_id).attempts) == ("dead", len(delays) + 1)


def backoff(conn: psycopg.Connection, policy: str, retries: int, jitter: float | None = None) -> float:
    return value(
        conn,
        "select extract(epoch from pgqueue._backoff(%s, null, %s, %s, null, '{10 s}'))::float8",
        policy,
        jitter,
        retries,
    )


@pytest.mark.covers("G10", "L7")
@pytest.mark.parametrize(
    ("policy", "retries", "least", "most"),
    [
        ("fixed", 7, 30, 33),
        ("exponential", 3, 273, 273 * 1.1),
        ("list", 3, 10, 11),
        # Up to 30 * (n + 1) seconds are added.
        ("sidekiq", 0, 15, 45),
        ("sidekiq", 3, 96, 96 + 120),
        # Full jitter: anything up to the delay.
        ("doubling", 0, 0, 30),
        ("doubling", 20, 0, HOUR),
    ],
)
def test_jitter_stays_within_its_bounds_and_fills_them(
    conn: psycopg.Connection, policy: str, retries: int, least: float, most: float
) -> None:
    delays = [backoff(conn, policy, retries) for _ in range(200)]
    assert all(least <= delay <= most for delay in delays)
    span = most - least
    assert min(delays) < least + span * 0.1
    assert max(delays) > most - span * 0.1
    assert len(set(delays)) > 100


@pytest.mark.parametrize("policy", ["fixed", "exponential", "sidekiq", "doubling", "list"])
def test_no_policy_overflows(conn: psycopg.Connection, policy: str) -> None:
    longest = value(conn, "select pgqueue._backoff(%s, '1 year', 1, 100000, '1 year', '{1 year}')", policy)
    assert longest <= timedelta(days=4 * 366)


@pytest.mark.covers("G10")
def test_an_operator_overrides_the_policy_and_a_deploy_does_not_undo_it(conn: psycopg.Connection, clock: Clock) -> None:
    def deploy(delays: list[str]) -> None:
        call(conn, "declare_task", "t", retry_policy="list", retry_delays=delays, retry_jitter=0)

    deploy(["7 s"])
    job_id = enqueue(conn, max_attempts=100)
    assert fail(conn, clock, job_id) == 7
    conn.execute("update pgqueue.tasks set retry_policy = 'doubling', retry_delay = '3 s', retry_cap = '10 s'")
    assert [fail(conn, clock, job_id) for _ in range(2)] == [6, 10]
    deploy(["8 s"])
    assert fail(conn, clock, job_id) == 10
    conn.execute("update pgqueue.tasks set retry_policy = null, retry_cap = null")
    assert fail(conn, clock, job_id) == 8
    conn.execute("update pgqueue.tasks set retry_delays = '{9 s}'")
    assert fail(conn, clock, job_id) == 9


@pytest.mark.covers("G10")
def test_a_job_overrides_its_task_and_keeps_that_in_history(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "declare_task", "t", retry_policy="fixed", retry_delay="1 min", retry_jitter=0, max_attempts=2)
    options = {"retry_policy": "doubling", "retry_delay": "5 s", "retry_cap": "4 s", "retry_queue": "default"}
    for enqueue_it in (enqueue, lambda conn, **options: enqueue_many(conn, 1, **options)[0]):
        job_id = enqueue_it(conn, **options)
        assert job(conn, job_id).retry == {"policy": "doubling", "delay": 5, "cap": 4, "queue": "default"}
        assert fail(conn, clock, job_id) == 4
        assert call(conn, "fail", job_id, reserve_one(conn).reservation) == "dead"
        assert job(conn, job_id).retry == {"policy": "doubling", "delay": 5, "cap": 4, "queue": "default"}
        assert call(conn, "retry", job_id) is True
        assert fail(conn, clock, job_id) == 4
        assert call(conn, "complete", job_id, reserve_one(conn).reservation) is True
    plain = enqueue(conn)
    assert job(conn, plain).retry is None
    assert fail(conn, clock, plain) == 60


@pytest.mark.parametrize(
    ("policy", "delay", "longest"),
    [("exponential", None, 24), ("sidekiq", None, 24), ("doubling", None, 1), ("exponential", "30 h", 30)],
)
def test_a_delay_that_grows_ends_at_a_default_cap(
    conn: psycopg.Connection, policy: str, delay: str | None, longest: int
) -> None:
    backoff = "select extract(epoch from pgqueue._backoff(%s, %s::interval, 0, %s))::float"
    assert value(conn, backoff, policy, delay, 31) == longest * HOUR
    assert value(conn, backoff, "fixed", "30 h", 31) == 30 * HOUR


@pytest.mark.parametrize("style", ["postgres", "sql_standard", "iso_8601"])
def test_a_jobs_own_delay_means_the_same_in_every_interval_style(
    conn: psycopg.Connection, clock: Clock, style: str
) -> None:
    call(conn, "declare_task", "t", retry_jitter=0)
    conn.execute(f"set intervalstyle = {style}".encode())
    job_id = enqueue(conn, retry_policy="fixed", retry_delay="1 day 00:00:01.5")
    conn.execute("set intervalstyle = postgres")
    assert fail(conn, clock, job_id) == 86401.5


def test_a_call_may_name_the_policy_for_this_once(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "declare_task", "t", retry_policy="fixed", retry_delay="7 s", retry_jitter=0)
    job_id = enqueue(conn)
    assert fail(conn, clock, job_id, policy="doubling") == 7
    assert fail(conn, clock, job_id, policy="doubling") == 14
    assert fail(conn, clock, job_id, policy="doubling", retry_in="2 s") == 2
    assert fail(conn, clock, job_id) == 7
    held = reserve_one(conn)
    with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
        call(conn, "fail", job_id, held.reservation, policy="list")
    assert "retry_delays" in (refused.value.diag.message_hint or "")
    assert state(conn, job_id) == "executing"


@pytest.mark.covers("G10")
def test_a_failed_job_moves_to_the_retry_queue(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "declare_task", "t", queue="fast", retry_queue="slow", retry_policy="fixed", retry_jitter=0)
    theirs, own = enqueue(conn), enqueue(conn, retry_queue="own", priority=5)
    for held in reserve(conn, 2, queues=["fast"]):
        assert call(conn, "fail", held.id, held.reservation) == "failed"
    assert [job(conn, job_id).queue for job_id in (theirs, own)] == ["slow", "own"]
    clock.advance("30 s")
    assert reserve(conn, 2, queues=["fast"]) == []
    assert ids(reserve(conn, 2, queues=["own"])) == [own]
    [held] = reserve(conn, 2, queues=["slow"])
    assert call(conn, "fail", held.id, held.reservation, retry=False) == "dead"
    assert job(conn, theirs).queue == "slow"


def test_a_worker_of_the_retry_queue_is_woken(conn: psycopg.Connection, clock: Clock) -> None:
    channel = call(conn, "hello", "w", ["slow"])
    call(conn, "idle", "w", ["slow"], **{"for": "10 min"})
    conn.execute(f'listen "{channel}"'.encode())
    enqueue(conn, retry_queue="slow")
    held = reserve_one(conn)
    call(conn, "fail", held.id, held.reservation, retry_in="1 s")
    assert [notice.payload for notice in conn.notifies(timeout=60, stop_after=1)] == ["due"]


def test_an_attempt_that_asks_for_it_ends_as_cancelled_with_its_reason(conn: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    held = reserve_one(conn)
    assert call(conn, "fail", job_id, held.reservation + 1, cancel=True) is None
    error = Jsonb({"class": "Cancel", "message": "not wanted"})
    assert call(conn, "fail", job_id, held.reservation, error, cancel=True, retry_in="1 s") == "cancelled"
    [entry] = job(conn, job_id).errors
    assert (entry["class"], entry["message"], entry["worker"]) == ("Cancel", "not wanted", "w")
    assert state(conn, job_id) == "cancelled"
    maintain(conn)
    assert value(conn, "select count(*) from pgqueue.jobs") == 0
