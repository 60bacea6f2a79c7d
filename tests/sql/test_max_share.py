"""max_share: the part of a worker's slots that one tenant of a fair queue may have, so that others start at once."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import Row, call, column, enqueue, enqueue_many, ids, maintain, pairs, reserve, table, value
from tests.databases import Database
from tests.sql.plans import blocks
from tests.sql.test_fair import fill, tenants
from tests.sql.test_handoff import Idle

NOON = "2030-01-01 12:00+00"


def hello(conn: psycopg.Connection, worker: str, slots: int) -> None:
    call(conn, "hello", worker, None, Jsonb({"concurrency": slots}))


@pytest.fixture
def conn(conn: psycopg.Connection) -> psycopg.Connection:
    call(conn, "configure_queue", "default", fair_by="limit_key", max_share=0.9)
    hello(conn, "w", 10)
    return conn


def held(conn: psycopg.Connection, worker: str = "w") -> Counter[str | None]:
    found = conn.execute("select limit_key from pgqueue.jobs where state = 'executing' and reserved_by = %s", [worker])
    return Counter(name for (name,) in found)


def test_of_ten_slots_one_stays_for_the_other_tenants(conn: psycopg.Connection) -> None:
    fill(conn, a=20)
    assert tenants(conn, reserve(conn, 10)) == ["a"] * 9
    assert reserve(conn, 1) == []
    fill(conn, b=2)
    [mine] = reserve(conn, 1)
    assert tenants(conn, [mine]) == ["b"]
    # All slots are taken: a worker asks for none. If it did, the other tenant could have them.
    call(conn, "complete", mine.id, mine.reservation)
    assert tenants(conn, reserve(conn, 1)) == ["b"]


@pytest.mark.parametrize(
    ("share", "slots", "most"),
    [(0.9, 10, 9), (0.5, 7, 3), (0.29, 100, 29), (0.1, 3, 1), (0.9, 1, 1), (1.0, 10, 10)],
)
@pytest.mark.parametrize("at_a_time", [1, 7, 100])
def test_a_tenant_has_its_part_of_the_slots_rounded_down_and_one_at_least(
    conn: psycopg.Connection, share: float, slots: int, most: int, at_a_time: int
) -> None:
    call(conn, "configure_queue", "default", max_share=share)
    hello(conn, "w", slots)
    fill(conn, a=110)
    claimed = 0
    while claimed < slots and (rows := reserve(conn, min(at_a_time, slots - claimed))):
        claimed += len(rows)
    assert claimed == most


@pytest.mark.parametrize("in_one_call", [False, True])
def test_a_tenant_goes_on_as_its_jobs_end(conn: psycopg.Connection, in_one_call: bool) -> None:
    fill(conn, a=20)
    rows = reserve(conn, 10)
    done, reservations = pairs(rows[:2])
    if in_one_call:
        found = table(conn, "exchange", "w", 10, completed=done, completed_reservations=reservations)
        assert [row.outcome for row in found] == ["reserved"] * 2
    else:
        assert column(conn, "complete_many", done, reservations) == []
        assert len(reserve(conn, 10)) == 2
    assert held(conn) == {"a": 9}


def test_each_worker_counts_its_own_slots(conn: psycopg.Connection) -> None:
    hello(conn, "v", 4)
    fill(conn, a=30)
    assert len(reserve(conn, 10, "w")) == 9
    assert len(reserve(conn, 10, "v")) == 3
    # One that has not said how many it has takes as many as it likes.
    assert len(reserve(conn, 10, "stranger")) == 10


def test_what_a_worker_does_for_other_queues_takes_none_of_it(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 20, queue="plain", limit_key="a")
    fill(conn, a=20)
    assert len(reserve(conn, 5, queues=["plain"])) == 5
    assert len(reserve(conn, 5, queues=["default"])) == 5
    assert len(reserve(conn, 10, queues=["default"])) == 4


def test_jobs_without_a_limit_key_are_one_tenant(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 20)
    assert len(reserve(conn, 10)) == 9
    fill(conn, b=1)
    assert tenants(conn, reserve(conn, 1)) == ["b"]


@pytest.mark.parametrize("max_jobs", [10, 50])
def test_one_claim_counts_what_it_takes_of_all_priorities(conn: psycopg.Connection, max_jobs: int) -> None:
    for priority in (5, 0, -5):
        enqueue_many(conn, 6, limit_key="a", priority=priority)
    assert len(reserve(conn, max_jobs)) == 9


def test_jobs_that_come_back_at_once_count_as_well(conn: psycopg.Connection) -> None:
    fill(conn, a=20)
    assert column(conn, "release", *pairs(reserve(conn, 10))) == []
    assert len(reserve(conn, 10)) == 9
    fill(conn, b=1)
    assert tenants(conn, reserve(conn, 1)) == ["b"]


def test_a_job_that_came_back_and_was_a_claim_by_itself_counts_as_well(conn: psycopg.Connection) -> None:
    hello(conn, "v", 10)
    fill(conn, a=30)
    back = reserve(conn, 1, "v")
    mine = reserve(conn, 9)
    assert column(conn, "release", *pairs(back)) == []
    # It is not held back.
    assert ids(reserve(conn, 1)) == ids(back)
    assert held(conn) == {"a": 10}
    column(conn, "complete_many", *pairs(mine[:1]))
    assert reserve(conn, 1) == []
    column(conn, "complete_many", *pairs(mine[1:2]))
    assert len(reserve(conn, 5)) == 1


def assert_the_next_starts_below_five(conn: psycopg.Connection, mine: list[Row]) -> None:
    for done in mine[:5]:
        call(conn, "complete", done.id, done.reservation)
        assert reserve(conn, 1) == []
    call(conn, "complete", mine[5].id, mine[5].reservation)
    assert len(reserve(conn, 5)) == 1


def test_what_a_worker_held_before_there_was_a_max_share_counts_as_well(conn: psycopg.Connection) -> None:
    call(conn, "configure_queue", "default", reset=["max_share"])
    fill(conn, a=30)
    mine = reserve(conn, 10)
    call(conn, "configure_queue", "default", max_share=0.5)
    assert_the_next_starts_below_five(conn, mine)


def test_what_a_worker_claimed_while_there_was_no_max_share_for_a_while_counts_as_well(
    conn: psycopg.Connection,
) -> None:
    fill(conn, a=30)
    [done] = reserve(conn, 1)
    call(conn, "complete", done.id, done.reservation)
    call(conn, "configure_queue", "default", reset=["max_share"])
    mine = reserve(conn, 10)
    call(conn, "configure_queue", "default", max_share=0.5)
    assert_the_next_starts_below_five(conn, mine)


def test_a_batch_takes_one_slot(conn: psycopg.Connection) -> None:
    call(conn, "declare_task", "gather", accumulate=True)
    for key in "kl":
        for n in range(3):
            enqueue(conn, "gather", {"n": n}, key=key, limit_key="a")
    assert len({row.leader for row in reserve(conn, 2)}) == 2
    fill(conn, a=20)
    assert len(reserve(conn, 10)) == 7


def test_a_claim_reads_what_its_worker_holds_and_no_job_of_another_worker(conn: psycopg.Connection) -> None:
    hello(conn, "w", 1_000)
    hello(conn, "v", 100_000)
    fill(conn, a=20, b=20)
    few = min(blocks(conn, "pgqueue.reserve('w', 1)") for _ in range(3))
    fill(conn, a=3_100, b=3_100)
    enqueue_many(conn, 3_100)
    assert len(reserve(conn, 9_000, "v")) == 9_000
    conn.execute("vacuum pgqueue.jobs")
    assert min(blocks(conn, "pgqueue.reserve('w', 1)") for _ in range(3)) < few + 100


def test_a_share_of_turns_and_a_limit_hold_beside_it(conn: psycopg.Connection) -> None:
    call(conn, "set_share", "a", 20)
    call(conn, "set_limit", "limit_key", "b", 2)
    fill(conn, a=50, b=50, c=50)
    hello(conn, "w", 20)
    assert len(reserve(conn, 20)) == 20
    assert held(conn) == {"a": 18, "b": 1, "c": 1}
    column(conn, "complete_many", *column_pairs(conn, "a"))
    assert len(reserve(conn, 18)) == 18
    assert held(conn)["b"] <= 2


def column_pairs(conn: psycopg.Connection, tenant: str) -> tuple[list[int], list[int]]:
    found = conn.execute(
        "select id, reservation from pgqueue.jobs where state = 'executing' and limit_key = %s", [tenant]
    ).fetchall()
    return [each[0] for each in found], [each[1] for each in found]


@pytest.mark.parametrize(
    "options",
    [
        {"queues": ["plain", "default"], "strategy": "strict"},
        {"queues": ["plain", "default"], "strategy": "lag"},
        {"queues": ["plain", "default"], "strategy": "round_robin"},
        {"queues": ["plain", "default"], "weights": [1, 4]},
        {},
    ],
    ids=str,
)
def test_it_holds_with_every_strategy(conn: psycopg.Connection, options: dict[str, Any]) -> None:
    enqueue_many(conn, 5, queue="plain")
    fill(conn, a=40)
    claimed = 0
    while rows := reserve(conn, 4, **options):
        claimed += len(rows)
    assert claimed == 5 + 9


def test_it_binds_from_its_commit_on_and_ends_with_it(conn: psycopg.Connection) -> None:
    fill(conn, a=20)
    call(conn, "configure_queue", "default", max_share=0.3)
    assert len(reserve(conn, 10)) == 3
    call(conn, "configure_queue", "default", reset=["max_share"])
    assert len(reserve(conn, 7)) == 7


def test_a_queue_that_is_not_fair_knows_no_tenants(conn: psycopg.Connection) -> None:
    call(conn, "configure_queue", "default", reset=["fair_by"])
    fill(conn, a=20)
    assert len(reserve(conn, 10)) == 10


def test_an_idle_worker_looks_again_in_a_moment_where_only_its_tenants_slots_are_taken(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set(NOON)
    hello(conn, "w", 10)
    fill(conn, a=20)
    reserve(conn, 10)
    maintain(conn)
    [row] = table(conn, "idle", "w")
    # Nobody else hears that one of them ended.
    assert row.next_due == clock.now() + timedelta(milliseconds=250)
    call(conn, "awake", "w")
    hello(conn, "v", 10)
    [row] = table(conn, "idle", "v")
    assert row.next_due == clock.now()
    call(conn, "awake", "v")
    fill(conn, b=1)
    [row] = table(conn, "idle", "w")
    assert row.next_due == clock.now()


def test_an_idle_worker_reads_what_it_holds_once_however_many_tenants_wait(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set(NOON)
    for worker in ("v", "w"):
        hello(conn, worker, 1_000)
    fill(conn, a=502)
    assert len(reserve(conn, 1, "v")) == 1
    assert len(reserve(conn, 500, "w")) == 500
    conn.execute("select pgqueue.enqueue('t', limit_key => 't' || n) from generate_series(1, 200) n")
    maintain(conn)
    few = blocks(conn, "pgqueue.idle('v')")
    assert blocks(conn, "pgqueue.idle('w')") < few + 20_000


def test_an_idle_worker_is_told_of_a_job_that_came_back_at_once(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    hello(conn, "w", 10)
    fill(conn, a=1)
    column(conn, "release", *pairs(reserve(conn, 1)))
    clock.advance("10 s")
    maintain(conn)
    [row] = table(conn, "idle", "w")
    assert row.next_due == clock.now()


def test_a_job_is_not_handed_past_it(conn: psycopg.Connection, database: Database) -> None:
    idle = Idle(database)
    hello(conn, "w", 10)
    for options in ({"limit_key": "a"}, {}):
        enqueue(conn, **options)
        assert idle.heard() == ["wake"]
    assert len(reserve(conn, 10)) == 2


def test_explain_and_why_late_name_it(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    hello(conn, "w", 10)
    fill(conn, a=20)
    rows = reserve(conn, 10)
    last = value(conn, "select max(id) from pgqueue.jobs")
    clock.advance("20 s")
    hello(conn, "w", 10)
    [found] = table(conn, "explain", last)
    said = "its tenant has as many slots of each worker as max_share 0.9 of queue default gives to one"
    assert (found.reason, found.detail) == ("limit", said)
    clock.advance("20 s")
    hello(conn, "w", 10)
    [late] = table(conn, "why_late", "default")
    assert (late.cause, late.subject) == ("limit", "max_share:default")
    assert late.evidence == f"{said}; it holds back 11 jobs"
    assert late.remedy == "start more workers, or: pgqueue queues set default --max-share 1"
    call(conn, "complete", rows[0].id, rows[0].reservation)
    [found] = table(conn, "explain", last)
    assert found.reason == "turn"
    # Another worker has room for it.
    reserve(conn, 10)
    hello(conn, "v", 10)
    [found] = table(conn, "explain", last)
    assert found.reason == "turn"


def test_a_wrong_share_is_refused(conn: psycopg.Connection) -> None:
    for wrong in (0, -0.5, 1.01, float("nan")):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="max_share must be above 0 and at most 1"):
            call(conn, "configure_queue", "default", max_share=wrong)
