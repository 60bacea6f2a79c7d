"""wanted: what an autoscaler asks."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, maintain, reserve, value
from tests.sql.plans import blocks


def wanted(conn: psycopg.Connection, *queues: str) -> int:
    found: int = call(conn, "wanted", list(queues) or None)
    return found


@pytest.fixture(params=["counted", "sampled"])
def how(request: pytest.FixtureRequest, conn: psycopg.Connection) -> str:
    """Both ways: with no maintenance yet, and from its samples."""
    return str(request.param)


def test_it_counts_due_and_executing_jobs(conn: psycopg.Connection, how: str) -> None:
    enqueue_many(conn, 5, queue="mail")
    enqueue(conn, queue="mail", delay="1 h")
    enqueue_many(conn, 3, queue="keyed", key="k")
    enqueue_many(conn, 2, queue="other")
    reserve(conn, 2, queues=["mail"])
    reserve(conn, 3, queues=["keyed"])
    if how == "sampled":
        maintain(conn)
    assert (wanted(conn, "mail"), wanted(conn, "keyed"), wanted(conn, "nowhere")) == (5, 1, 0)
    assert wanted(conn, "mail", "keyed") == 6
    assert wanted(conn) == 8


def test_due_jobs_of_a_paused_queue_want_no_worker(conn: psycopg.Connection, how: str) -> None:
    enqueue_many(conn, 5, queue="mail")
    reserve(conn, 2, queues=["mail"])
    if how == "sampled":
        maintain(conn)
    call(conn, "pause_queue", "mail")
    assert wanted(conn, "mail") == 2


def test_a_fleet_that_was_scaled_to_zero_is_wanted_again_by_jobs_and_schedules(
    conn: psycopg.Connection, clock: Clock
) -> None:
    maintain(conn)
    # Once a day, half a day from now.
    hour = value(conn, "select extract(hour from pgqueue._clock() at time zone 'UTC' + interval '12 hours')::integer")
    call(conn, "schedule", "report", f"0 {hour} * * *", "make_report", queue="reports")
    maintain(conn)
    enqueue(conn, queue="mail", delay="10 min")
    assert wanted(conn) == 0
    # No worker, so no maintenance and no samples from here on.
    clock.advance(timedelta(minutes=11))
    assert (wanted(conn, "mail"), wanted(conn, "reports")) == (1, 0)
    clock.advance(timedelta(days=1))
    assert (wanted(conn, "mail"), wanted(conn, "reports"), wanted(conn)) == (1, 1, 2)
    call(conn, "pause_schedule", "report")
    assert wanted(conn, "reports") == 0


def test_a_sample_from_the_future_is_not_believed(conn: psycopg.Connection, clock: Clock) -> None:
    maintain(conn)
    enqueue(conn, queue="mail")
    assert wanted(conn) == 0
    clock.advance(timedelta(hours=-1))
    enqueue(conn, queue="mail")
    assert wanted(conn) >= 1


def test_its_cost_does_not_grow_with_the_backlog(conn: psycopg.Connection) -> None:
    read = {}
    for jobs in (1_000, 20_000):
        enqueue_many(conn, jobs, queue="mail")
        conn.execute("vacuum analyze pgqueue.jobs")
        counted = blocks(conn, "pgqueue.wanted('{mail}')")
        conn.execute("select pgqueue._sample(pgqueue._clock())")
        sampled = blocks(conn, "pgqueue.wanted('{mail}')")
        read[jobs] = (counted, sampled)
        conn.execute("delete from pgqueue.samples")
    assert read[20_000][0] < 2 * read[1_000][0] + 100
    assert read[20_000][1] < 100


@pytest.mark.parametrize("queues", [[], [""], [None]])
def test_wrong_queues_are_refused(conn: psycopg.Connection, queues: list[str | None]) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="queue"):
        call(conn, "wanted", queues)


def test_a_reader_may_ask_and_so_may_a_producer(conn: psycopg.Connection) -> None:
    for kind in ("reader", "operator", "worker", "producer"):
        row = conn.execute("select %s = any (who_may) from pgqueue.manual where name = 'wanted'", [kind]).fetchone()
        assert row == (True,)
