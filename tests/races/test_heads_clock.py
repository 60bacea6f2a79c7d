"""A clock that steps back, forward and back again hides no job below a head.

PGQUEUE_MODEL=500 looks for longer.
"""

from __future__ import annotations

import os

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pgqueue.testing import Clock
from tests.calls import column, enqueue, enqueue_many, ids, maintain, pairs, reserve, reserve_one, stats, value
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
    assert stats(conn).housekeeping["hidden"] == 0


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


@pytest.mark.parametrize("step", ["1500 ms", "10 s", "1 hour"])
def test_a_transaction_that_was_open_over_a_step_back_and_one_forward_hides_its_job_for_a_second_at_most(
    database: Database, conn: psycopg.Connection, clock: Clock, step: str
) -> None:
    producer = database.connect(autocommit=False)
    clock.advance(f"-{step}")
    job_id = enqueue(producer)
    clock.advance(step)
    # Heads move, and know of the open transaction; its mark is not committed yet.
    flow(conn, clock)
    producer.commit()
    assert hidden(conn) == [job_id]
    clock.advance("1 s")
    maintain(conn)
    assert hidden(conn) == []
    assert ids(reserve(conn, 10)) == [job_id]
    # Once only.
    flow(conn, clock)
    head = value(conn, "select h.head from pgqueue._head('default', 0::smallint, false) h")
    flow(conn, clock)
    assert value(conn, "select h.head from pgqueue._head('default', 0::smallint, false) h") > head
    clock.advance("61 s")
    maintain(conn)
    assert stats(conn).housekeeping["hidden"] == 0


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
