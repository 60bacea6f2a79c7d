"""Costs: limits that count units, rates as buckets, and what jobs have really spent."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import Row, call, column, enqueue, ids, job, maintain, pairs, reserve, reserve_one, table, value

NOON = "2030-01-01 12:00+00"
numbers = itertools.count()
KINDS = [("queue", "default"), ("task", "t"), ("key", "k"), ("limit_key", "a"), ("limit_key", "*")]


@pytest.fixture
def clock(clock: Clock) -> Clock:
    clock.set(NOON)
    return clock


def work(conn: psycopg.Connection, *costs: int | None, **options: Any) -> list[int]:
    """Enqueue a job of each cost."""
    return [enqueue(conn, **{"key": f"k{next(numbers)}", "limit_key": "a", "cost": cost, **options}) for cost in costs]


def complete(conn: psycopg.Connection, rows: list[Row]) -> None:
    assert column(conn, "complete_many", *pairs(rows)) == []


def claim(conn: psycopg.Connection, max_jobs: int = 20) -> list[int]:
    """Start what may start, and end it. What comes back from a limit is due some microseconds later."""
    rows: list[Row] = []
    for _ in range(3):
        if len(rows) < max_jobs:
            rows += reserve(conn, max_jobs - len(rows), lease="1 day")
            conn.execute("select pgqueue_testing.advance_clock('20 us')")
    complete(conn, rows)
    return ids(rows)


def next_due(conn: psycopg.Connection) -> Any:
    [idle] = table(conn, "idle", "w")
    return idle.next_due


def explained(conn: psycopg.Connection, job_id: int) -> tuple[str, str, Any]:
    [found] = table(conn, "explain", job_id)
    return found.reason, found.detail, found.until


@pytest.mark.parametrize(("kind", "target"), KINDS)
def test_a_rate_counts_the_cost_of_each_start_and_lets_none_pass_the_first_that_does_not_fit(
    conn: psycopg.Connection, clock: Clock, kind: str, target: str
) -> None:
    call(conn, "set_limit", kind, target, rate=100, per="1 min")
    first, second, third, fourth = work(conn, 60, 30, 20, 5)
    assert claim(conn) == [first, second]
    assert claim(conn) == []
    clock.advance("30 s")
    assert claim(conn) == []
    [fifth] = work(conn, 1)
    assert claim(conn) == []
    clock.advance("31 s")
    assert claim(conn) == [third, fourth, fifth]


@pytest.mark.parametrize(("kind", "target"), KINDS)
def test_a_bucket_is_filled_at_its_rate_up_to_its_burst(
    conn: psycopg.Connection, clock: Clock, kind: str, target: str
) -> None:
    call(conn, "set_limit", kind, target, rate=60, per="1 min", burst=100)
    jobs = work(conn, *[30] * 8)
    assert claim(conn) == jobs[:3]
    assert claim(conn) == []
    # Ten units are left, and one comes in a second.
    clock.advance("19 s")
    assert claim(conn) == []
    clock.advance("1 s")
    assert claim(conn) == jobs[3:4]
    clock.advance("1 hour")
    assert claim(conn) == jobs[4:7]
    assert claim(conn) == []


@pytest.mark.parametrize(("kind", "target"), KINDS)
def test_what_costs_more_than_the_bucket_starts_when_it_is_full(
    conn: psycopg.Connection, clock: Clock, kind: str, target: str
) -> None:
    call(conn, "set_limit", kind, target, rate=60, per="1 min", burst=100)
    small, large, last = work(conn, 1, 500, 1)
    assert claim(conn) == [small]
    assert claim(conn) == []
    clock.advance("1 s")
    assert claim(conn) == [large]
    # It is 400 below zero.
    clock.advance("400 s")
    assert claim(conn) == []
    clock.advance("1 s")
    assert claim(conn) == [last]


@pytest.mark.parametrize(("kind", "target"), KINDS)
def test_small_jobs_that_keep_coming_do_not_keep_a_large_one_from_starting(
    conn: psycopg.Connection, clock: Clock, kind: str, target: str
) -> None:
    call(conn, "set_limit", kind, target, rate=60, per="1 min", burst=100)
    assert len(claim(conn)) == 0
    work(conn, 90)
    assert len(claim(conn)) == 1
    [large] = work(conn, 80)
    small = []
    for _ in range(7):
        small += work(conn, 1, 1)
        assert claim(conn) == []
        clock.advance("10 s")
    assert claim(conn) == [large]
    clock.advance("1 min")
    started = claim(conn, 50) + claim(conn, 50)
    assert sorted(started) == small


@pytest.mark.parametrize(("kind", "target"), KINDS[:2])
def test_a_job_of_a_higher_priority_goes_first_also_where_a_large_one_waits(
    conn: psycopg.Connection, clock: Clock, kind: str, target: str
) -> None:
    call(conn, "set_limit", kind, target, rate=60, per="1 min", burst=100)
    work(conn, 90)
    assert len(claim(conn)) == 1
    work(conn, 80)
    assert claim(conn) == []
    [urgent] = work(conn, 5, priority=10)
    assert claim(conn) == [urgent]


def test_an_idle_worker_wakes_when_the_bucket_is_full_enough(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "set_limit", "queue", "default", rate=60, per="1 min", burst=100)
    call(conn, "set_limit", "limit_key", "b", rate=60, per="1 min", burst=100)
    work(conn, 100)
    assert len(claim(conn)) == 1
    work(conn, 30)
    assert claim(conn) == []
    assert next_due(conn) == clock.now() + timedelta(seconds=30)
    clock.advance("30 s")
    assert len(claim(conn)) == 1
    call(conn, "drop_limit", "queue", "default")
    work(conn, 90, 12, queue="other", limit_key="b")
    assert len(claim(conn)) == 1
    # The claim asks to look soon, and who looks then knows the time.
    clock.advance("1 s")
    assert claim(conn) == []
    assert abs(next_due(conn) - clock.now() - timedelta(seconds=1)) < timedelta(milliseconds=1)


@pytest.mark.parametrize(("kind", "target"), KINDS)
def test_at_most_so_many_units_execute_and_what_costs_more_runs_alone(
    conn: psycopg.Connection, clock: Clock, kind: str, target: str
) -> None:
    call(conn, "set_limit", kind, target, max_cost=10)
    one, two, three, large, last = work(conn, 4, 4, 4, 50, 1)
    held = reserve(conn, 20, lease="1 day")
    assert ids(held) == [one, two]
    complete(conn, held[:1])
    again = reserve(conn, 20, lease="1 day")
    assert ids(again) == [three]
    complete(conn, held[1:])
    assert reserve(conn, 20) == []
    complete(conn, again)
    [alone] = reserve(conn, 20, lease="1 day")
    assert alone.id == large
    assert reserve(conn, 20) == []
    complete(conn, [alone])
    assert claim(conn) == [last]


def test_a_free_job_waits_for_a_bucket_below_zero_and_takes_nothing(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "set_limit", "task", "t", rate=60, per="1 min", burst=10)
    jobs = work(conn, 0, 20, 0)
    assert claim(conn) == jobs[:2]
    clock.advance("9 s")
    assert claim(conn) == []
    clock.advance("2 s")
    assert claim(conn) == jobs[2:]
    work(conn, 1)
    assert len(claim(conn)) == 1


def test_what_a_job_spent_beyond_its_cost_empties_the_bucket_and_what_it_did_not_comes_back(
    conn: psycopg.Connection, clock: Clock
) -> None:
    call(conn, "set_limit", "task", "t", rate=60, per="1 min", burst=100)
    work(conn, 50)
    held = reserve_one(conn)
    assert call(conn, "spent", held.id, held.reservation, 130) is True
    complete(conn, [held])
    assert call(conn, "spent", held.id, held.reservation, 130) is False
    [after] = work(conn, 1)
    clock.advance("30 s")
    assert claim(conn) == []
    clock.advance("1 s")
    assert claim(conn) == [after]
    clock.advance("1 hour")
    work(conn, 100, 60)
    held = reserve_one(conn)
    assert claim(conn) == []
    assert call(conn, "spent", held.id, held.reservation, 40) is True
    assert len(claim(conn)) == 1


@pytest.mark.parametrize("burst", [100, None], ids=["bucket", "rate"])
def test_what_a_job_spent_counts_once_however_often_it_is_said_and_the_last_word_holds(
    conn: psycopg.Connection, clock: Clock, burst: int | None
) -> None:
    clock.set("2030-01-01 12:00+00")
    call(conn, "set_limit", "task", "t", rate=100, per="1 hour", burst=burst)
    work(conn, 10)
    held = reserve_one(conn, lease="1 day")
    for units in (40, 40, 60, 60, 40, 40):
        assert call(conn, "spent", held.id, held.reservation, units) is True
    complete(conn, [held])
    # 60 units are left.
    [fits] = work(conn, 60)
    assert claim(conn) == [fits]
    work(conn, 1)
    assert claim(conn) == []


def test_what_a_job_said_hours_ago_is_known_until_it_ends(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    call(conn, "set_limit", "task", "t", rate=100, per="1 hour", burst=100)
    work(conn, 10)
    held = reserve_one(conn, lease="1 day")
    told = "select coalesce(sum(level), 0) from pgqueue.limit_levels where name like 'spent:%'"
    for units in (30, 50, 50):
        assert call(conn, "spent", held.id, held.reservation, units) is True
        assert value(conn, told) == units - 10
        assert value(conn, "select sum(level) from pgqueue.limit_levels where is_spent") == units - 10
        clock.advance("2 hours")
        maintain(conn)
    complete(conn, [held])
    clock.advance("2 min")
    maintain(conn)
    assert value(conn, told) == 0


@pytest.mark.parametrize("fair_by", [None, "limit_key"])
def test_a_higher_priority_passes_a_job_that_waits_for_units(
    conn: psycopg.Connection, clock: Clock, fair_by: str | None
) -> None:
    if fair_by is not None:
        call(conn, "configure_queue", "default", fair_by=fair_by)
    call(conn, "set_limit", "limit_key", "a", rate=60, per="1 hour", burst=60)
    enqueue(conn, "t", limit_key="a", cost=30)
    complete(conn, [reserve_one(conn)])
    large = enqueue(conn, "t", limit_key="a", cost=50)
    assert claim(conn) == []
    assert job(conn, large).state == "blocked"
    enqueue(conn, "t", limit_key="a", cost=1)
    assert claim(conn) == []
    urgent = enqueue(conn, "t", limit_key="a", cost=1, priority=10)
    assert claim(conn) == [urgent]


def test_what_a_job_spent_counts_under_a_rate_at_the_time_of_its_start(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "set_limit", "task", "t", rate=100, per="1 min")
    work(conn, 50, 50)
    held = reserve_one(conn, lease="1 hour")
    clock.advance("59 s")
    call(conn, "spent", held.id, held.reservation, 51)
    assert claim(conn) == []
    clock.advance("2 s")
    assert len(claim(conn)) == 1


def test_a_clock_that_steps_back_neither_fills_a_bucket_nor_stops_it(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "set_limit", "task", "t", rate=60, per="1 min", burst=100)
    maintain(conn)
    work(conn, *[50] * 6)
    assert len(claim(conn)) == 2
    clock.advance("-1 hour")
    maintain(conn)
    assert claim(conn) == []
    clock.advance("50 s")
    maintain(conn)
    assert len(claim(conn)) == 1
    assert claim(conn) == []
    # Half a second is the difference of two sessions, and fills nothing twice.
    clock.advance("30 s")
    level = value(conn, "select level from pgqueue.limit_levels order by n desc limit 1")
    limit = "pgqueue._limits_of(null, 't', null, null) l"
    for before in ("0 s", "0.5 s", "0 s"):
        conn.execute(
            f"select pgqueue._draw_units(l, 0, pgqueue._clock() - %s::interval) from {limit}".encode(), [before]
        )
    after = value(conn, "select level from pgqueue.limit_levels order by n desc limit 1")
    assert after == pytest.approx(level + 30, abs=0.001)


def test_a_bucket_is_filled_after_a_step_of_the_clock_that_no_maintenance_saw(
    conn: psycopg.Connection, clock: Clock
) -> None:
    call(conn, "set_limit", "task", "t", rate=60, per="1 min", burst=100)
    maintain(conn)
    clock.advance("1 hour")
    work(conn, 50, 50)
    assert len(claim(conn)) == 2
    clock.advance("-1 hour")
    maintain(conn)
    clock.advance("50 s")
    [job_id] = work(conn, 50)
    assert claim(conn) == [job_id]


def test_a_batch_of_an_accumulating_task_costs_the_sum_of_its_payloads(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "declare_task", "t", accumulate=True)
    call(conn, "set_limit", "task", "t", rate=60, per="1 min", burst=100)
    for n in range(4):
        enqueue(conn, args={"n": n}, key="k", cost=30)
    assert len(claim(conn)) == 4
    [after] = [enqueue(conn, key="l", cost=1)]
    clock.advance("20 s")
    assert claim(conn) == []
    clock.advance("1 s")
    assert claim(conn) == [after]
    # Payloads that have no cost are one unit together, as a batch is one start.
    clock.advance("1 hour")
    call(conn, "set_limit", "task", "t", rate=60, per="1 hour", burst=2)
    for n in range(4):
        enqueue(conn, args={"n": n}, key="k")
    assert len(claim(conn)) == 4
    enqueue(conn, key="l")
    assert len(claim(conn)) == 1


def test_the_payloads_of_a_batch_count_together_under_max_cost(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "declare_task", "t", accumulate=True)
    call(conn, "set_limit", "task", "t", max_cost=100)
    for n in range(3):
        enqueue(conn, args={"n": n}, key="k", cost=30)
    held = reserve(conn, 5, lease="1 day")
    assert len(held) == 3
    enqueue(conn, key="l", cost=11)
    assert reserve(conn, 5) == []
    complete(conn, held)
    assert len(claim(conn)) == 1


def test_explain_says_how_many_units_there_are_and_when_they_are_enough(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "set_limit", "limit_key", "api", rate=4500, per="1 min", burst=2000)
    work(conn, 1700, limit_key="api", key=None)
    assert len(claim(conn)) == 1
    large, small = work(conn, 1200, 10, limit_key="api", key=None)
    call(conn, "declare_task", "t")
    assert claim(conn) == []
    expected = ("limit", "its limit limit_key:api has 300 of 1,200 units, full enough in 12 s")
    assert explained(conn, large) == (*expected, clock.now() + timedelta(seconds=12))
    assert explained(conn, small) == (*expected, clock.now() + timedelta(seconds=12))
    call(conn, "set_limit", "queue", "default", max_cost=5)
    work(conn, 5)
    assert len(reserve(conn, 1)) == 1
    [waits] = work(conn, 3)
    assert explained(conn, waits)[:2] == ("limit", "its limit queue:default has 0 of 3 units")


def test_stats_say_how_much_of_a_bucket_is_taken_of_the_emptiest_one_of_a_prefix(
    conn: psycopg.Connection, clock: Clock
) -> None:
    call(conn, "set_limit", "limit_key", "a*", rate=60, per="1 min", burst=100, max_cost=500)
    work(conn, 10, limit_key="a1")
    work(conn, 70, limit_key="a2")
    assert len(claim(conn)) == 2
    clock.advance("10 s")
    [limit] = call(conn, "stats")["limits"]
    assert (limit["started"], limit["started_by"], limit["burst"], limit["max_cost"]) == (60, "a2", 100, 500)
    call(conn, "set_limit", "task", "t", rate=60, per="1 min", burst=50)
    work(conn, 20, limit_key="b")
    assert len(claim(conn)) == 1
    assert [each["started"] for each in call(conn, "stats")["limits"] if each["kind"] == "task"] == [20]


def test_every_way_to_enqueue_takes_a_cost_and_history_and_retry_keep_it(conn: psycopg.Connection) -> None:
    made = [enqueue(conn, cost=7), *column(conn, "enqueue_many", "t", [Jsonb({})], cost=7)]
    made.append(call(conn, "enqueue_outcome", "t", cost=7))
    made += [row.job_id for row in table(conn, "enqueue_batch", [Jsonb({"task": "t", "cost": 7})])]
    made.append(enqueue(conn, dedupe="d", cost=7))
    with conn.transaction():
        call(conn, "stage")
        conn.execute("insert into pgqueue_staged (task, cost) values ('t', 7)")
        conn.execute("insert into pgqueue_staged (task, cost, dedupe) values ('t', 7, 'e')")
        assert column(conn, "enqueue_staged") == ["inserted"]
    assert value(conn, "select array_agg(cost) from pgqueue.jobs") == [7] * 7
    rows = reserve(conn, 7)
    complete(conn, rows[:1])
    for row in rows[1:]:
        call(conn, "fail", row.id, row.reservation, retry=False)
    assert {job(conn, row.id).cost for row in rows} == {7}
    assert call(conn, "retry", rows[-1].id) is True
    assert value(conn, "select cost from pgqueue.jobs") == 7


@pytest.mark.parametrize("cost", [-1, 1_000_000_001])
def test_a_cost_below_zero_or_too_large_is_refused(conn: psycopg.Connection, cost: int) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="cost must be between 0 and 1000000000"):
        enqueue(conn, cost=cost)
    with conn.transaction(force_rollback=True):
        call(conn, "stage")
        conn.execute("insert into pgqueue_staged (task, cost) values ('t', %s)", [cost])
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="row 1 of the load: cost must be"):
            column(conn, "enqueue_staged")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"burst": 10}, "burst was given without rate"),
        ({"rate": 1, "per": "1 s", "burst": 0}, "burst must be between 1 and 1000000000"),
        ({"max_cost": 0}, "max_cost must be between 1 and 1000000000"),
    ],
)
def test_a_wrong_limit_of_units_is_refused(conn: psycopg.Connection, options: dict[str, Any], found: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=found):
        call(conn, "set_limit", "task", "t", **options)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="units must be between 0 and 1000000000"):
        call(conn, "spent", 1, 1, -1)


def test_each_part_of_a_limit_is_dropped_by_itself(conn: psycopg.Connection) -> None:
    def left() -> Any:
        parts = "max_executing, rate, per is null, max_cost, burst"
        return conn.execute(f"select {parts} from pgqueue.limits".encode()).fetchone()

    call(conn, "set_limit", "task", "t", max_executing=1, rate=2, per="1 s", max_cost=3, burst=4)
    assert call(conn, "set_limit", "task", "t", max_cost=3) is False
    assert call(conn, "drop_limit", "task", "t", "burst") is True
    assert call(conn, "drop_limit", "task", "t", "burst") is False
    assert left() == (1, 2, False, 3, None)
    call(conn, "set_limit", "task", "t", burst=4)
    assert call(conn, "drop_limit", "task", "t", "rate") is True
    assert left() == (1, None, True, 3, None)
    assert call(conn, "drop_limit", "task", "t", "max_executing") is True
    assert left() == (None, None, True, 3, None)
    assert call(conn, "drop_limit", "task", "t", "rate") is False
    assert call(conn, "drop_limit", "task", "t", "max_cost") is True
    assert left() is None


def test_no_limit_asks_what_jobs_cost_until_one_has_a_cost(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "set_limit", "task", "t", rate=3, per="1 min")
    work(conn, None, None)
    assert len(claim(conn)) == 2
    assert value(conn, "select pgqueue._has_costs()") is False
    work(conn, 1)
    assert value(conn, "select pgqueue._has_costs()") is True


def test_a_bucket_leaves_one_row_and_what_was_spent_late_is_not_lost(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "set_limit", "task", "t", rate=60, per="1 min", burst=100)
    work(conn, 10, 10, 10)
    late = reserve_one(conn, lease="1 hour")
    clock.advance("1 s")
    call(conn, "spent", late.id, late.reservation, 50)
    conn.execute("update pgqueue.limit_levels set at = at - interval '5 min' where is_spent")
    assert len(claim(conn, 1)) == 1
    assert value(conn, "select count(*) from pgqueue.limit_levels where not is_spent and name = 'task:t'") == 1
    assert value(conn, "select count(*) from pgqueue.limit_levels where is_spent") == 1
    # It was committed long after: maintenance brings it forward.
    clock.advance("61 s")
    maintain(conn)
    rule = "pgqueue._limits_of(null, 't', null, null) r"
    level = value(conn, f"select l.level from {rule} cross join lateral pgqueue._level_of(r, pgqueue._clock()) l")
    assert level == pytest.approx(60)
    assert len(claim(conn)) == 1
    assert value(conn, "select count(*) from pgqueue.limit_levels where name = 'task:t'") == 1
    # What an attempt said is forgotten once it has ended.
    complete(conn, [late])
    clock.advance("61 s")
    maintain(conn)
    assert value(conn, "select array_agg(name) from pgqueue.limit_levels") == ["task:t"]


@pytest.mark.parametrize("options", [{"per": "1 min", "burst": 1_000_000}, {"per": "1 hour"}])
def test_jobs_that_spent_as_much_as_they_may_say_stop_the_others_and_no_claim(
    conn: psycopg.Connection, clock: Clock, options: dict[str, Any]
) -> None:
    call(conn, "set_limit", "limit_key", "a", rate=1_000_000, **options)
    work(conn, 1, 1, 1, 1)
    free = work(conn, 1, limit_key="b")
    held = reserve(conn, 3, lease="1 day")
    for row in held:
        assert call(conn, "spent", row.id, row.reservation, 1_000_000_000) is True
    assert claim(conn) == free
    complete(conn, held)
    clock.advance("10 s")
    assert claim(conn) == []


def test_what_never_fits_into_a_bucket_waits_and_stops_no_claim(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "set_limit", "limit_key", "a", rate=1, per="1 day", burst=1)
    first, _ = work(conn, 1_000_000_000, 1)
    assert claim(conn) == [first]
    [free] = work(conn, 1, limit_key="b")
    assert claim(conn) == [free]


@pytest.mark.parametrize("options", [{}, {"burst": 10}])
def test_a_batch_may_cost_more_than_a_number_holds(
    conn: psycopg.Connection, clock: Clock, options: dict[str, int]
) -> None:
    call(conn, "declare_task", "t", accumulate=True)
    call(conn, "set_limit", "task", "t", rate=10, per="1 min", **options)
    for n in range(4):
        enqueue(conn, args={"n": n}, key="k", cost=1_000_000_000)
    held = reserve(conn, 4)
    assert len(held) == 4
    assert call(conn, "spent", held[0].id, held[0].reservation, 0) is True
    complete(conn, held)
    clock.advance("30 s")
    enqueue(conn, key="l", cost=1)
    assert len(claim(conn)) <= 1


def _rows(conn: psycopg.Connection) -> list[tuple[Any, ...]]:
    return conn.execute("select id, ctid::text, state from pgqueue.jobs where limit_key = 'a' order by id").fetchall()


def test_a_tenant_whose_bucket_has_too_little_has_one_job_blocked_and_the_others_keep_their_turns(
    conn: psycopg.Connection, clock: Clock
) -> None:
    call(conn, "configure_queue", "default", fair_by="limit_key")
    call(conn, "set_limit", "limit_key", "a", rate=60, per="1 min", burst=1500)
    assert work(conn, 1200) == claim(conn)
    first, *others = work(conn, *[1200] * 3, *[100] * 7)
    theirs = work(conn, *[1] * 6, limit_key="b")
    before = _rows(conn)
    assert claim(conn, 6) == theirs
    for _ in range(5):
        assert claim(conn, 20) == []
    after = _rows(conn)
    assert [row[0] for row in after if row[2] == "blocked"] == [first]
    assert after[1:] == before[1:]
    # It is full enough for the first one in 900 s, and the others follow in their order.
    clock.advance("890 s")
    maintain(conn)
    assert claim(conn) == []
    clock.advance("11 s")
    assert claim(conn) == [first]
    assert [row[2] for row in _rows(conn)].count("blocked") <= 1
    for number, job_id in enumerate(others):
        assert claim(conn) == []
        clock.advance("1200 s" if number < 2 else "100 s")
        maintain(conn)
        assert claim(conn) == [job_id]


def test_an_idle_worker_is_told_when_the_bucket_of_a_tenant_is_full_enough(
    conn: psycopg.Connection, clock: Clock
) -> None:
    call(conn, "configure_queue", "default", fair_by="limit_key")
    call(conn, "set_limit", "limit_key", "a", rate=60, per="1 min", burst=1500)
    assert work(conn, 1200) == claim(conn)
    work(conn, 1200, 1200)
    assert claim(conn) == []
    # What a claim has blocked is checked once soon after.
    clock.advance("1 s")
    assert claim(conn) == []
    assert timedelta(seconds=895) < next_due(conn) - clock.now() < timedelta(seconds=901)


def test_explain_says_of_a_job_of_a_tenant_what_the_one_before_it_costs(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "configure_queue", "default", fair_by="limit_key")
    call(conn, "set_limit", "limit_key", "a", rate=60, per="1 min", burst=1500)
    assert work(conn, 1200) == claim(conn)
    _, small = work(conn, 1200, 100)
    assert claim(conn) == []
    reason, detail, _ = explained(conn, small)
    assert (reason, detail.startswith("its limit limit_key:a has 300 of 1,200 units")) == ("limit", True)


def test_a_bucket_that_takes_months_to_fill_is_not_full_after_one(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    call(conn, "set_limit", "limit_key", "a", rate=10, per="1 day", burst=1000)
    enqueue(conn, limit_key="a", cost=1000)
    first = reserve_one(conn)
    call(conn, "complete", first.id, first.reservation)
    clock.advance("33 days")
    for _ in range(3):
        maintain(conn)
        clock.advance("1 min")
    for _ in range(20):
        enqueue(conn, limit_key="a", cost=50)
    assert len(reserve(conn, 20) + reserve(conn, 20)) == 6
    clock.advance("100 days")
    for _ in range(3):
        maintain(conn)
        clock.advance("1 min")
    assert (
        value(conn, "select count(*) from pgqueue.limit_levels where name = 'limit_key:a' and at < '2030-03-01'") == 0
    )
