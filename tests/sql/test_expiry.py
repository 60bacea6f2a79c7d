"""expires_in bounds the wait for the first start: a job that began does not expire."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import Row, call, enqueue, job, maintain, reserve_one, state


def lose(conn: psycopg.Connection, held: Row) -> None:
    """Its worker is killed."""


def fail(conn: psycopg.Connection, held: Row) -> None:
    call(conn, "fail", held.id, held.reservation, retry_in="1 min")


def snooze(conn: psycopg.Connection, held: Row) -> None:
    call(conn, "snooze", held.id, held.reservation, "1 min")


def suspend(conn: psycopg.Connection, held: Row) -> None:
    call(conn, "suspend", held.id, held.reservation, depends_on=[enqueue(conn, queue="other")])


def suspend_until(conn: psycopg.Connection, held: Row) -> None:
    call(conn, "suspend", held.id, held.reservation, "2026-01-01 00:01+00")


def sleep(conn: psycopg.Connection, held: Row) -> None:
    call(conn, "sleep_step", held.id, held.reservation, "nap", "1 min")


def await_event(conn: psycopg.Connection, held: Row) -> None:
    call(conn, "await_event", held.id, held.reservation, "wait", "paid")


def crash(conn: psycopg.Connection, held: Row) -> None:
    call(conn, "release_unheld", "w", died=True)


@pytest.mark.parametrize("leave", [lose, fail, snooze, suspend, suspend_until, sleep, await_event, crash])
def test_a_job_that_began_does_not_expire(
    leave: Callable[[psycopg.Connection, Row], None], conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2026-01-01 00:00+00")
    enqueue(conn, expires_in="10 s")
    held = reserve_one(conn, lease="3 s")
    leave(conn, held)
    for at in ("00:00:04", "00:00:12", "00:00:20"):
        clock.set(f"2026-01-01 {at}+00")
        maintain(conn)
    assert state(conn, held.id) in ("waiting", "failed", "blocked")
    assert job(conn, held.id).expires_at is None


def test_a_job_that_is_given_back_before_its_start_still_expires(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set("2026-01-01 00:00+00")
    enqueue(conn, expires_in="10 s")
    held = reserve_one(conn)
    call(conn, "release", [held.id], [held.reservation])
    clock.set("2026-01-01 00:00:12+00")
    maintain(conn)
    assert state(conn, held.id) == "cancelled"
