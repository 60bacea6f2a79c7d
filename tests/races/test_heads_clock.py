"""A clock that steps back, forward and back again hides no job below a head.

PGQUEUE_MODEL=500 runs for longer.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pgqueue.testing import Clock
from tests.calls import (
    Row,
    call,
    column,
    enqueue,
    enqueue_many,
    ids,
    maintain,
    pairs,
    reserve,
    reserve_one,
    stats,
    value,
)
from tests.databases import Database

pytestmark = pytest.mark.covers("D1", "D3")

NOON = "2030-01-01 12:00+00"
EXAMPLES = int(os.environ.get("PGQUEUE_MODEL", "15"))
STEPS = ["1 ms", "50 ms", "300 ms", "800 ms", "999 ms", "1 s", "1500 ms", "10 s", "1 hour"]


def flow(conn: psycopg.Connection, clock: Clock, rounds: int = 6) -> None:
    """Enqueue, run and maintain for a while, so that the heads move."""
    for _ in range(rounds):
        enqueue_many(conn, 60)
        clock.advance("1 ms")
        column(conn, "complete_many", *pairs(reserve(conn, 1000)))
        clock.advance("200 ms")
        maintain(conn)


def hidden(conn: psycopg.Connection) -> list[int]:
    """The jobs below the heads of their lanes, and those whose leases are below theirs."""
    rows = conn.execute(
        """
        select j.id
        from pgqueue.jobs j
        cross join lateral pgqueue._head(j.queue, j.priority, j.resumed) h
        where j.state in ('waiting', 'failed') and (j.ready_at, j.id) < (h.head, h.head_id)
        """
    ).fetchall()
    return [row[0] for row in rows]


def due(conn: psycopg.Connection) -> list[int]:
    rows = conn.execute(
        "select id from pgqueue.jobs where state in ('waiting', 'failed') and ready_at <= pgqueue._clock() order by id"
    ).fetchall()
    return [row[0] for row in rows]


@pytest.fixture
def clock(clock: Clock, conn: psycopg.Connection) -> Clock:
    clock.set(NOON)
    flow(conn, clock)
    assert value(conn, "select isfinite(h.head) from pgqueue._head('default', 0::smallint, false) h")
    return clock


@pytest.mark.parametrize("step", STEPS)
def test_a_job_enqueued_after_a_step_back_is_found_when_the_clock_is_where_it_was(
    conn: psycopg.Connection, clock: Clock, step: str
) -> None:
    clock.advance(f"-{step}")
    job_id = enqueue(conn)
    clock.advance(step)
    clock.advance("1 ms")
    assert ids(reserve(conn)) == [job_id]
    flow(conn, clock, 3)
    clock.advance("61 s")
    maintain(conn)
    assert stats(conn).maintenance["hidden"] == 0


@pytest.mark.parametrize("step", STEPS)
def test_heads_that_moved_before_anyone_claimed_do_not_pass_what_came_after_a_step_back(
    conn: psycopg.Connection, clock: Clock, step: str
) -> None:
    clock.advance(f"-{step}")
    job_ids = [enqueue(conn) for _ in range(3)]
    clock.advance(step)
    for _ in range(4):
        clock.advance("200 ms")
        maintain(conn)
    assert ids(reserve(conn, 10)) == job_ids


def released(conn: psycopg.Connection, held: Row) -> None:
    column(conn, "release", *pairs([held]))


def failed(conn: psycopg.Connection, held: Row) -> None:
    call(conn, "fail", held.id, held.reservation, retry_in="0 s")


def retried(conn: psycopg.Connection, held: Row) -> None:
    assert call(conn, "retry", value(conn, "select id from pgqueue.history where task = 'cancelled'"))


def next_of_a_key(conn: psycopg.Connection, held: Row) -> None:
    column(conn, "complete_many", *pairs([held]))


def enqueued(conn: psycopg.Connection, held: Row) -> None:
    enqueue(conn)


@pytest.mark.parametrize("step", ["1500 ms", "1 hour"])
@pytest.mark.parametrize("make_ready", [enqueued, released, failed, retried, next_of_a_key])
def test_a_transaction_that_is_open_over_a_step_back_and_one_forward_hides_no_job(
    database: Database,
    conn: psycopg.Connection,
    clock: Clock,
    make_ready: Callable[[psycopg.Connection, Row], None],
    step: str,
) -> None:
    enqueue(conn, key="k")
    enqueue(conn, key="k")
    held = reserve_one(conn, lease="1 day")
    cancelled = enqueue(conn, "cancelled", delay="1 h")
    call(conn, "cancel", cancelled)
    flow(conn, clock)
    other = database.connect(autocommit=False)
    clock.advance(f"-{step}")
    make_ready(other, held)
    clock.advance(step)
    # Heads move, and know of the open transaction; its mark is not committed yet.
    flow(conn, clock)
    other.commit()
    assert hidden(conn) == []
    flow(conn, clock)
    assert hidden(conn) == []
    clock.advance("61 s")
    maintain(conn)
    assert stats(conn).maintenance["hidden"] == 0


def test_marks_stand_until_all_have_ended_that_may_not_know_of_them(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    marks = "select count(*) from pgqueue.head_marks where reason = 'clock'"
    has_heads = "select count(*) > 0 from pgqueue.heads where queue = 'default'"
    # It could have computed a head before the step, and write it at any time.
    before = database.connect(autocommit=False)
    before.execute("select pg_current_xact_id()")
    clock.advance("-1 h")
    enqueue(conn)
    for _ in range(3):
        clock.advance("1 h")
        maintain(conn)
        assert value(conn, marks) == 1
    assert value(conn, "select not isfinite(h.head) from pgqueue._head('default', 0::smallint, false) h")
    before.commit()
    clock.advance("1 s")
    maintain(conn)
    assert value(conn, marks) == 0
    # The step of maintain that cleared them moves heads at once, from the beginning.
    assert value(conn, has_heads)
    flow(conn, clock)
    assert value(conn, "select isfinite(h.head) from pgqueue._head('default', 0::smallint, false) h")
    assert hidden(conn) == []


def test_marks_of_a_restored_dump_end(conn: psycopg.Connection, clock: Clock) -> None:
    conn.execute(
        "insert into pgqueue.head_marks (reason, at, seen_xid) values ('clock', pgqueue._clock(), '9999999999999')"
    )
    clock.advance("1 s")
    maintain(conn)
    clock.advance("1 s")
    maintain(conn)
    assert value(conn, "select count(*) from pgqueue.head_marks") == 0


@pytest.mark.parametrize("step", ["1 ms", "300 ms", "800 ms", "999 ms"])
def test_a_producer_that_cannot_see_the_heads_steps_back_by_less_than_their_lag(
    database: Database, conn: psycopg.Connection, clock: Clock, step: str
) -> None:
    """Its snapshot is older than the heads: only their distance from the clock keeps its job above them."""
    producer = database.connect()
    producer.execute("begin isolation level repeatable read")
    producer.execute("select from pgqueue.jobs")
    flow(conn, clock)
    clock.advance(f"-{step}")
    job_id = enqueue(producer)
    producer.commit()
    clock.advance(step)
    assert ids(reserve(conn, 10)) == [job_id]


@pytest.mark.parametrize("back", ["-300 ms", "-1 hour"])
def test_a_job_that_comes_back_after_a_step_back_is_found(conn: psycopg.Connection, clock: Clock, back: str) -> None:
    enqueue(conn)
    held = reserve_one(conn, lease="1 day")
    for _ in range(4):
        clock.advance("61 s")
        maintain(conn)
    clock.advance(back)
    column(conn, "release", *pairs([held]))
    clock.advance(back.removeprefix("-"))
    assert ids(reserve(conn)) == [held.id]


SIZES = st.one_of(
    st.integers(1, 2_000), st.sampled_from([999, 1_000, 1_001, 5_000, 60_000, 3_600_000]), st.integers(1, 3_600_000)
)
ACTIONS = st.one_of(
    st.tuples(st.just("back"), SIZES),
    st.tuples(st.just("forward"), SIZES),
    st.tuples(st.just("enqueue"), st.integers(1, 3)),
    st.tuples(st.just("bulk"), st.integers(60, 80)),
    st.tuples(st.just("claim"), st.integers(1, 200)),
    st.tuples(st.just("release"), st.integers(1, 5)),
    # Time that passes, with maintain at its usual pace.
    st.tuples(st.just("pass"), st.integers(1, 4)),
)


def act(conn: psycopg.Connection, clock: Clock, action: str, size: int) -> None:
    match action:
        case "back":
            clock.advance(f"-{size} ms")
        case "forward":
            clock.advance(f"{size} ms")
        case "enqueue":
            for _ in range(size):
                enqueue(conn)
        case "bulk":
            enqueue_many(conn, size)
        case "claim":
            wanted = len(due(conn))
            held = reserve(conn, size, lease="1 day")
            assert len(held) >= min(size, wanted)
            column(conn, "complete_many", *pairs(held))
        case "release":
            held = reserve(conn, size, lease="1 day")
            column(conn, "release", *pairs(held))
        case _:
            for _ in range(size):
                clock.advance("700 ms")
                maintain(conn)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_steps_of_any_size_in_any_order_hide_nothing(conn: psycopg.Connection, clock: Clock) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(actions=st.lists(ACTIONS, min_size=5, max_size=40))
    def look(actions: list[tuple[str, int]]) -> None:
        latest = clock.now()
        for action, size in actions:
            act(conn, clock, action, size)
            latest = max(latest, clock.now())
            assert hidden(conn) == []
        # All that was committed is due by now, whatever the clock did.
        clock.set(latest)
        clock.advance("2 s")
        maintain(conn)
        while held := reserve(conn, 1000, lease="1 day"):
            column(conn, "complete_many", *pairs(held))
        assert value(conn, "select count(*) from pgqueue.jobs") == 0
        assert value(conn, "select coalesce(max(hidden), 0) from pgqueue.maintenance_runs") == 0

    look()
