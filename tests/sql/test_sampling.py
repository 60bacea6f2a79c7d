"""How reserve chooses among queues: weighted, strict, lag, round robin."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, reserve, reserve_one, value

# Twenty thousand draws at 3:1: the share of the first has a standard deviation of 0.0031, so 0.75 +- 0.015 (2 %) is
# 4.9 of them. A fair sampler misses it once in a million runs; one that is 3 % off misses it two times in three.
CLAIMS = 20_000
SHARE = 0.75
TOLERANCE = 0.02 * SHARE


def fill(conn: psycopg.Connection, **counts: int) -> None:
    for queue, count in counts.items():
        enqueue_many(conn, count, queue=queue)


def shares(conn: psycopg.Connection, claims: int, batch: int, **options: object) -> Counter[str]:
    """Reserve `claims` jobs by `batch`, and count them by queue."""
    named = "".join(f", {name} => %({name})s" for name in options)
    got: Counter[str] = Counter()
    # Many to a statement, but not all: a claim walks what its own transaction has taken before.
    for done in range(0, claims, 1000):
        calls = min(1000, claims - done) // batch
        rows = conn.execute(
            f"select r.queue, count(*) from generate_series(1, {calls}) n"
            f" cross join lateral (select x.queue from pgqueue.reserve('w' || n, {batch}{named}) x) r"
            " group by 1".encode(),
            options,
        ).fetchall()
        got.update(dict(rows))
    return got


@pytest.mark.long
@pytest.mark.covers("G6", "G5")
@pytest.mark.parametrize("batch", [1, 100])
def test_weights_three_to_one_give_three_to_one_whatever_the_batch(conn: psycopg.Connection, batch: int) -> None:
    fill(conn, a=CLAIMS, b=CLAIMS)
    got = shares(conn, CLAIMS, batch, queues=["a", "b"], weights=[3, 1])
    assert got.total() == CLAIMS
    assert abs(got["a"] / CLAIMS - SHARE) < TOLERANCE


@pytest.mark.covers("G6")
def test_an_empty_queue_wastes_no_turn(conn: psycopg.Connection) -> None:
    fill(conn, b=1000)
    assert shares(conn, 1000, 10, queues=["a", "b"], weights=[1000, 1]) == {"b": 1000}


@pytest.mark.covers("G6")
def test_a_batch_is_filled_from_the_others_when_the_drawn_queue_runs_out(conn: psycopg.Connection) -> None:
    fill(conn, a=5, b=5, c=200)
    got = Counter(row.queue for row in reserve(conn, 100, queues=["a", "b", "c"], weights=[1000, 1000, 1]))
    assert got == {"a": 5, "b": 5, "c": 90}


@pytest.mark.covers("G6")
@pytest.mark.parametrize("batch", [1, 10])
def test_queues_without_due_jobs_change_no_share_of_the_others(conn: psycopg.Connection, batch: int) -> None:
    """Draws that hit them do not count: most slots draw again among those that are due."""
    idle = [f"idle{n}" for n in range(30)]
    for queue in idle:
        enqueue(conn, queue=queue, delay="1 hour")
    fill(conn, a=2500, b=2500)
    queues, weights = ["a", "b", *idle], [9, 1, *[100] * len(idle)]
    got = shares(conn, 2000, batch, queues=queues, weights=weights)
    assert abs(got["a"] - 1800) < 70  # 5.2 deviations
    assert got["a"] + got["b"] == 2000
    got = shares(conn, 200, batch, queues=["a", *idle], weights=[1, *[100] * len(idle)])
    assert got == {"a": 200}


@pytest.mark.covers("G7")
def test_weight_one_moves_beside_weight_one_thousand(conn: psycopg.Connection) -> None:
    # In 20,000 draws the chance that it never comes is (1000/1001)^20000, about 2e-9.
    fill(conn, big=CLAIMS, small=CLAIMS)
    assert shares(conn, CLAIMS, 100, queues=["big", "small"], weights=[1000, 1])["small"] > 0


def test_slots_of_one_batch_are_drawn_independently(conn: psycopg.Connection) -> None:
    # Blocks (all of a, then all of b) have one change of queue in 200 slots; independent draws at 1:1.1 about 100.
    fill(conn, a=200, b=200)
    rows = reserve(conn, 200, queues=["a", "b"], weights=[10, 11])
    changes = sum(one.queue != other.queue for one, other in pairwise(rows))
    assert 60 < changes < 140


def test_within_the_drawn_queue_priority_decides_then_ready_time(conn: psycopg.Connection) -> None:
    early = enqueue(conn, queue="a")
    late = enqueue(conn, queue="a")
    high = enqueue(conn, queue="a", priority=5)
    enqueue(conn, queue="b")
    rows = reserve(conn, 4, queues=["a", "b"], weights=[1, 2])
    assert [row.id for row in rows if row.queue == "a"] == [high, early, late]


@pytest.mark.covers("G6")
def test_weights_of_queues_take_effect_at_once_and_those_of_the_caller_win(conn: psycopg.Connection) -> None:
    fill(conn, a=4000, b=4000)
    conn.execute("insert into pgqueue.queues (name, weight) values ('a', 9)")
    assert abs(shares(conn, 2000, 100, queues=["a", "b"])["a"] - 1800) < 70  # 5.2 deviations
    conn.execute("update pgqueue.queues set weight = 1 where name = 'a'")
    conn.execute("insert into pgqueue.queues (name, weight) values ('b', 9)")
    assert abs(shares(conn, 2000, 100)["b"] - 1800) < 70
    assert abs(shares(conn, 1000, 100, queues=["a", "b"], weights=[9, 1])["a"] - 900) < 50


def test_a_row_of_queues_without_a_weight_changes_nothing(conn: psycopg.Connection) -> None:
    conn.execute("insert into pgqueue.queues (name) values ('a')")
    low = enqueue(conn, queue="a", priority=1)
    high = enqueue(conn, queue="b", priority=2)
    assert [row.id for row in reserve(conn, 2)] == [high, low]


@pytest.mark.covers("G7", "L11")
def test_strict_order_serves_the_first_queue_as_long_as_it_has_something(conn: psycopg.Connection) -> None:
    fill(conn, a=3, b=3)
    rows = reserve(conn, 4, queues=["b", "a"], strategy="strict")
    assert [row.queue for row in rows] == ["b", "b", "b", "a"]


@pytest.mark.covers("L11")
def test_lag_serves_the_queue_whose_oldest_due_job_is_oldest(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set("2026-01-01 00:00:00+00")
    oldest = enqueue(conn, queue="b")
    clock.set("2026-01-01 00:00:10+00")
    enqueue(conn, queue="a", priority=50)
    clock.set("2026-01-01 00:00:20+00")
    urgent = enqueue(conn, queue="b", priority=10)
    rows = reserve(conn, 3, strategy="lag")
    assert [row.id for row in rows[:2]] == [urgent, oldest]
    assert rows[2].queue == "a"


@pytest.mark.covers("L11")
def test_round_robin_takes_the_queues_in_turn_within_a_batch(conn: psycopg.Connection) -> None:
    fill(conn, a=10, b=10, c=2)
    got = [row.queue for row in reserve(conn, 12, strategy="round_robin")]
    assert Counter(got) == {"a": 5, "b": 5, "c": 2}
    assert len(set(got[:3])) == 3
    assert got[3:6] == got[:3]


@pytest.mark.covers("L11")
def test_round_robin_begins_anywhere(conn: psycopg.Connection) -> None:
    fill(conn, a=40, b=40)
    assert {reserve_one(conn, strategy="round_robin").queue for _ in range(40)} == {"a", "b"}


@pytest.mark.covers("D1")
@pytest.mark.parametrize("strategy", ["weighted", "strict", "lag", "round_robin"])
def test_no_strategy_hands_out_a_job_before_its_time(conn: psycopg.Connection, clock: Clock, strategy: str) -> None:
    clock.set("2026-01-01 00:00:00+00")
    later = enqueue(conn, queue="a", delay="1 s")
    options = {"queues": ["a", "b"], "weights": [2, 1], "strategy": strategy}
    assert reserve(conn, 5, **options) == []
    clock.set("2026-01-01 00:00:01+00")
    assert [row.id for row in reserve(conn, 5, **options)] == [later]


@pytest.mark.parametrize("strategy", ["weighted", "round_robin"])
def test_a_job_that_came_back_goes_first_in_its_lane(conn: psycopg.Connection, strategy: str) -> None:
    options = {"queues": ["a", "b"], "weights": [2, 1], "strategy": strategy}
    first, *_ = enqueue_many(conn, 3, queue="a")
    row = reserve_one(conn, **options)
    assert row.id == first
    call(conn, "release", [row.id], [row.reservation])
    assert reserve_one(conn, **options).id == first


@pytest.mark.parametrize("strategy", ["weighted", "round_robin"])
def test_a_paused_queue_is_not_drawn(conn: psycopg.Connection, strategy: str) -> None:
    fill(conn, a=2, b=2)
    call(conn, "pause_queue", "a")
    rows = reserve(conn, 4, queues=["a", "b"], weights=[5, 1], strategy=strategy)
    assert [row.queue for row in rows] == ["b", "b"]


@pytest.mark.parametrize("strategy", ["weighted", "round_robin"])
def test_no_job_is_claimed_twice_when_the_draw_is_repeated(
    conn: psycopg.Connection, clock: Clock, strategy: str
) -> None:
    # Expired jobs, a lapsed lease and empty queues make reserve read again, also rows that it has locked itself.
    clock.set("2026-01-01 00:00:00+00")
    for queue in "abc":
        enqueue(conn, queue=queue, expires_in="1 s")
        enqueue_many(conn, 3, queue=queue)
    lost = reserve_one(conn, queues=["c"], lease="1 s")
    call(conn, "maintain")
    clock.set("2026-01-01 00:00:03+00")
    rows = reserve(conn, 50, queues=["a", "b", "c"], weights=[3, 2, 1], strategy=strategy)
    assert len({row.id for row in rows}) == len(rows) == 10
    assert lost.id in {row.id for row in rows}
    assert value(conn, "select count(*) from pgqueue.jobs where state = 'executing'") == 10


@pytest.mark.parametrize("full", ["a", "b"])
def test_a_lapsed_lease_is_taken_back_where_the_last_turn_was_full_and_another_was_not(
    conn: psycopg.Connection, clock: Clock, full: str
) -> None:
    clock.set("2026-01-01 00:00:00+00")
    lost = enqueue(conn, queue="c")
    assert reserve_one(conn, queues=["c"], lease="1 s").id == lost
    call(conn, "maintain")
    # Keyed: turns are served one by one. Two slots each, and one of the queues has one job.
    waiting = [enqueue(conn, queue=queue, key=str(n)) for queue in "ab" for n in range(1 + (queue == full))]
    clock.set("2026-01-01 00:00:03+00")
    rows = reserve(conn, 4, strategy="round_robin")
    assert sorted(row.id for row in rows) == sorted([lost, *waiting])
