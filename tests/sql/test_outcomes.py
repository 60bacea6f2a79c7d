"""How an attempt ends: complete, fail, release, snooze, a lapsed lease; and what each costs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import (
    call,
    column,
    enqueue,
    enqueue_many,
    ids,
    job,
    maintain,
    pairs,
    reserve,
    reserve_one,
    state,
    table,
    value,
)

NOON = "2030-01-01 12:00+00"


@pytest.fixture
def clock(clock: Clock) -> Clock:
    clock.set(NOON)
    return clock


def keep_house(conn: psycopg.Connection) -> None:
    """Maintenance ran just now, so that a lease that lapses next lapsed under a watching eye."""
    conn.execute("insert into pgqueue.maintenance_runs (at) values (pgqueue._clock())")


def lapse(conn: psycopg.Connection, clock: Clock) -> None:
    """Let time pass, with maintenance, until a lease of 3 s is over."""
    for _ in range(4):
        clock.advance("1 s")
        maintain(conn)


@pytest.mark.covers("A5", "D2")
def test_a_batch_is_completed_with_its_results_and_the_lost_ones_are_returned(conn: psycopg.Connection) -> None:
    job_ids = enqueue_many(conn, 5)
    held = reserve(conn, 5)
    _, reservations = pairs(held)
    lost = [reservations[0], reservations[1] + 1, *reservations[2:]]
    results = [Jsonb(n) for n in range(4)] + [None]
    assert column(conn, "complete_many", job_ids, lost, results) == [job_ids[1]]
    assert [job(conn, job_id).result for job_id in job_ids] == [0, None, 2, 3, None]
    assert [state(conn, job_id) for job_id in job_ids] == [
        "succeeded",
        "executing",
        "succeeded",
        "succeeded",
        "succeeded",
    ]
    again = column(conn, "complete_many", job_ids, reservations)
    assert sorted(again) == [job_ids[n] for n in (0, 2, 3, 4)]
    assert column(conn, "complete_many", [], []) == []


@pytest.mark.covers("A5", "G9")
@pytest.mark.parametrize("ended_by", ["complete", "fail", "release", "snooze", "other reservation", "no job"])
def test_without_the_reservation_a_worker_changes_nothing(conn: psycopg.Connection, ended_by: str) -> None:
    job_id = enqueue(conn)
    reservation = reserve_one(conn).reservation
    if ended_by in ("complete", "fail"):
        call(conn, ended_by, job_id, reservation)
    elif ended_by == "release":
        call(conn, "release", [job_id], [reservation])
    elif ended_by == "snooze":
        call(conn, "snooze", job_id, reservation, "1 min")
    elif ended_by == "other reservation":
        reservation += 1
    else:
        job_id += 1

    before = conn.execute("select * from pgqueue.all_jobs").fetchall()
    assert call(conn, "complete", job_id, reservation) is False
    assert column(conn, "complete_many", [job_id], [reservation]) == [job_id]
    assert call(conn, "fail", job_id, reservation) is None
    assert call(conn, "snooze", job_id, reservation, "1 s") is False
    assert column(conn, "release", [job_id], [reservation]) == [job_id]
    assert table(conn, "extend", [job_id], [reservation]) == []
    assert conn.execute("select * from pgqueue.all_jobs").fetchall() == before


def test_a_reservation_grows_with_every_claim_and_has_a_random_part(conn: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    seen = []
    for _ in range(20):
        reserved = reserve_one(conn)
        seen.append(reserved.reservation)
        call(conn, "release", [job_id], [reserved.reservation])
    assert [reservation >> 20 for reservation in seen] == list(range(1, 21))
    assert len({reservation & 0xFFFFF for reservation in seen}) > 10


@pytest.mark.covers("G10")
@pytest.mark.parametrize(("retries", "seconds"), [(0, 30), (1, 31), (2, 62), (3, 273), (9, 59079)])
def test_the_default_backoff_is_30_plus_the_fifth_power_and_at_most_a_tenth_more(
    conn: psycopg.Connection, retries: int, seconds: int
) -> None:
    def backoff(jitter: float | None) -> float:
        return value(
            conn,
            "select extract(epoch from pgqueue._backoff(null, null, %s, %s))::float8",
            jitter,
            retries,
        )

    assert backoff(0) == seconds
    delays = [backoff(None) for _ in range(50)]
    assert all(seconds <= delay <= seconds * 1.1 for delay in delays)
    assert max(delays) > seconds * 1.01


def test_no_backoff_overflows(conn: psycopg.Connection) -> None:
    longest = value(conn, "select pgqueue._backoff('exponential', '1 year', 1, 100000)")
    assert longest <= timedelta(days=4 * 366)


@pytest.mark.covers("G10")
def test_the_policy_of_the_task_decides_and_the_operator_over_the_code(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "declare_task", "t", retry_policy="fixed", retry_delay="5 s", retry_jitter=0)
    job_id = enqueue(conn)

    def fail(**options: Any) -> timedelta:
        assert call(conn, "fail", job_id, reserve_one(conn).reservation, **options) == "failed"
        delay: timedelta = job(conn, job_id).due_at - clock.now()
        clock.advance(delay)
        return delay

    assert [fail(), fail(), fail()] == [timedelta(seconds=5)] * 3
    conn.execute("update pgqueue.tasks set retry_delay = '1 min'")
    assert fail() == timedelta(minutes=1)
    conn.execute("update pgqueue.tasks set retry_policy = 'exponential'")
    assert fail() == timedelta(minutes=1, seconds=4**5)
    assert fail(retry_in="7 s") == timedelta(seconds=7)
    assert fail(retry_in="0") == timedelta()


@pytest.mark.covers("G10")
def test_a_job_fails_for_good_with_retry_false(conn: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    assert call(conn, "fail", job_id, reserve_one(conn).reservation, retry=False) == "dead"
    assert (job(conn, job_id).state, job(conn, job_id).attempts) == ("dead", 1)


def test_the_last_ten_errors_are_kept_and_each_is_bounded(conn: psycopg.Connection) -> None:
    job_id = enqueue(conn, max_attempts=100)
    for n in range(13):
        long = {"class": f"C{n}" + "x" * 1000, "message": "m" * 10_000, "traceback": "first" + "t" * 99_999}
        call(conn, "fail", job_id, reserve_one(conn).reservation, Jsonb(long), retry_in="0")
    errors = job(conn, job_id).errors
    assert [error["attempt"] for error in errors] == list(range(4, 14))
    assert {error["worker"] for error in errors} == {"w"}
    last = errors[-1]
    assert last["class"].startswith("C12x")
    assert (len(last["class"]), len(last["message"]), len(last["traceback"])) == (200, 4000, 20000)
    # Of a traceback the end says what happened.
    assert last["traceback"] == "t" * 20000


@pytest.mark.parametrize(
    ("given", "message"), [("just text", "just text"), (None, None), ([1, 2], "[1, 2]"), (5, "5"), ({}, None)]
)
def test_an_error_may_be_any_json(conn: psycopg.Connection, given: Any, message: str | None) -> None:
    failed, dead = enqueue(conn), enqueue(conn)
    held = {row.id: row.reservation for row in reserve(conn, 2)}
    error = Jsonb(given) if given is not None else None
    assert call(conn, "fail", failed, held[failed], error) == "failed"
    assert call(conn, "fail", dead, held[dead], error, retry=False) == "dead"
    for job_id in (failed, dead):
        [entry] = job(conn, job_id).errors
        assert entry.get("message") == message
        assert (entry["attempt"], entry["worker"]) == (1, "w")


def test_release_snooze_and_a_lapsed_lease_burn_no_attempt(conn: psycopg.Connection, clock: Clock) -> None:
    maintain(conn)
    job_id = enqueue(conn, max_attempts=2)
    for _ in range(3):
        assert column(conn, "release", *pairs([reserve_one(conn)])) == []
        assert call(conn, "snooze", job_id, reserve_one(conn).reservation, "1 s") is True
        assert state(conn, job_id) == "waiting"
        clock.advance("1 s")
        keep_house(conn)
        assert reserve_one(conn, lease="3 s").attempt == 1
        lapse(conn, clock)
        assert (state(conn, job_id), job(conn, job_id).attempts) == ("waiting", 0)
    assert job(conn, job_id).losses == 3
    assert call(conn, "fail", job_id, reserve_one(conn).reservation, retry_in="0") == "failed"
    assert column(conn, "release", *pairs([reserve_one(conn)])) == []
    assert (state(conn, job_id), job(conn, job_id).attempts) == ("failed", 1)
    assert call(conn, "fail", job_id, reserve_one(conn).reservation) == "dead"


@pytest.mark.covers("A6")
@pytest.mark.parametrize("ending", ["fail", "release", "snooze", "lapse", "unheld"])
def test_a_job_that_is_asked_to_cancel_ends_cancelled_unless_it_succeeds(
    conn: psycopg.Connection, clock: Clock, ending: str
) -> None:
    maintain(conn)
    job_id = enqueue(conn)
    held = reserve_one(conn, lease="3 s")
    assert call(conn, "cancel", job_id) == "requested"
    [extended] = table(conn, "extend", [job_id], [held.reservation], "3 s")
    assert extended.cancel_requested is True
    if ending == "fail":
        assert call(conn, "fail", job_id, held.reservation, Jsonb("stopped")) == "cancelled"
        assert job(conn, job_id).errors[0]["message"] == "stopped"
    elif ending == "release":
        assert column(conn, "release", [job_id], [held.reservation]) == []
    elif ending == "snooze":
        assert call(conn, "snooze", job_id, held.reservation, "1 min") is True
    elif ending == "unheld":
        assert column(conn, "release_unheld", "w") == [job_id]
    else:
        lapse(conn, clock)
    assert state(conn, job_id) == "cancelled"
    assert value(conn, "select count(*) from pgqueue.jobs") == 0


@pytest.mark.covers("A6")
def test_a_job_that_is_asked_to_cancel_and_succeeds_has_succeeded(conn: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    held = reserve_one(conn)
    assert [call(conn, "cancel", job_id), call(conn, "cancel", job_id)] == ["requested", "requested"]
    assert call(conn, "complete", job_id, held.reservation) is True
    assert state(conn, job_id) == "succeeded"
    assert call(conn, "cancel", job_id) is None


def test_extend_returns_held_jobs_and_until_when(conn: psycopg.Connection, clock: Clock) -> None:
    first, second, gone = enqueue_many(conn, 3)
    held = reserve(conn, 3, lease="10 s")
    call(conn, "complete", gone, held[2].reservation)
    clock.advance("9 s")
    extended = table(conn, "extend", *pairs(held), "1 min")
    assert [row.job_id for row in extended] == [first, second]
    assert {row.lease_expires_at - clock.now() for row in extended} == {timedelta(minutes=1)}
    assert {row.cancel_requested for row in extended} == {False}
    assert job(conn, first).lease_expires_at - clock.now() == timedelta(minutes=1)


@pytest.mark.covers("D2", "G9")
def test_reserved_jobs_are_invisible_and_acknowledged_ones_never_come_back(
    conn: psycopg.Connection, clock: Clock
) -> None:
    maintain(conn)
    enqueue_many(conn, 2)
    done, lost = reserve(conn, 2, "killed", lease="3 s")
    assert reserve(conn, 10, "other") == []
    assert call(conn, "complete", done.id, done.reservation) is True
    lapse(conn, clock)
    [again] = reserve(conn, 10, "other")
    assert (again.id, again.attempt) == (lost.id, 1)
    assert again.reservation > lost.reservation
    clock.advance("1 day")
    assert ids(reserve(conn, 10, "other")) == []  # the gap grants held jobs a grace period
    assert state(conn, done.id) == "succeeded"


def test_release_with_a_delay_keeps_the_job_back(conn: psycopg.Connection, clock: Clock) -> None:
    job_id = enqueue(conn)
    assert column(conn, "release", *pairs([reserve_one(conn)]), "10 min") == []
    clock.advance("9 min 59 s")
    assert reserve(conn) == []
    clock.advance("1 s")
    assert ids(reserve(conn)) == [job_id]


def test_held_by_lists_what_a_worker_does_not_know_of_and_release_gives_it_back(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 3)
    known, lost = reserve(conn, 2, "mine")
    [others] = reserve(conn, 1, "another worker")
    call(conn, "snooze", known.id, known.reservation, "1 h")
    [found] = table(conn, "held_by", "mine")
    assert (found.job_id, found.reservation) == (lost.id, lost.reservation)
    assert column(conn, "release", [lost.id], [lost.reservation]) == []
    [again] = reserve(conn, 1, "mine")
    # Delivered late, it names a reservation that is over.
    assert column(conn, "release", [lost.id], [lost.reservation]) == [lost.id]
    assert [state(conn, each) for each in (again.id, others.id)] == ["executing", "executing"]
    assert (again.id, again.attempt, again.losses) == (lost.id, 1, 0)


def test_a_job_reserved_for_a_worker_that_does_not_know_it_is_given_back(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 4)
    known, lost, stale = reserve(conn, 3, "mine")
    [others] = reserve(conn, 1, "another worker")
    listed = [known.id, stale.id], [known.reservation, stale.reservation - 1]
    assert column(conn, "release_unheld", "mine", *listed) == [lost.id, stale.id]
    assert [state(conn, row.id) for row in (known, lost, stale, others)] == [
        "executing",
        "waiting",
        "waiting",
        "executing",
    ]
    assert {job(conn, row.id).attempts for row in (lost, stale)} == {0}
    assert ids(reserve(conn, 10)) == [lost.id, stale.id]
