"""Thousands of queues: a worker of all queues visits lanes that have something due, and no others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import Row, call, column, enqueue, enqueue_many, ids, maintain, pairs, reserve, table, value
from tests.databases import Database
from tests.facts import flush_statistics
from tests.sql.plans import blocks

NOON = "2030-01-01 12:00+00"


def fill(conn: psycopg.Connection, queues: Iterable[str], **options: object) -> list[int]:
    """Enqueue a job in each of these queues, and run maintenance, which counts the lanes."""
    jobs = [Jsonb({"task": "t", "queue": queue, **options}) for queue in queues]
    rows = table(conn, "enqueue_batch", jobs)
    maintain(conn)
    return [row.job_id for row in rows]


def named(prefix: str, count: int) -> list[str]:
    return [f"{prefix} {number:04}" for number in range(count)]


def claimed(conn: psycopg.Connection, max_jobs: int, **options: object) -> Iterator[list[Row]]:
    """Claim until each lane was visited: beside many lanes a claim that found nothing makes its worker claim again."""
    fruitless = 0
    while fruitless < 25:
        rows = reserve(conn, max_jobs, **options)
        fruitless = 0 if rows else fruitless + 1
        yield rows


def complete_all(conn: psycopg.Connection) -> None:
    for held in claimed(conn, 100):
        column(conn, "complete_many", *pairs(held))


def empty(conn: psycopg.Connection, queues: Iterable[str]) -> None:
    """Make lanes that are registered, and in which nothing is."""
    fill(conn, queues)
    complete_all(conn)
    maintain(conn)


def claims_until(conn: psycopg.Connection, job_id: int) -> int:
    """How many claims it takes until one returns the job; all others return nothing."""
    for number in range(1, 50):
        if found := ids(reserve(conn)):
            assert found == [job_id]
            return number
    raise AssertionError("the job was not found")


def test_each_job_of_many_queues_is_served_once(conn: psycopg.Connection) -> None:
    expected = fill(conn, named("q", 200)) + fill(conn, named("q", 200)) + fill(conn, named("other", 70), priority=3)
    found = [job_id for rows in claimed(conn, 7) for job_id in ids(rows)]
    assert sorted(found) == sorted(expected)


def test_the_highest_priority_over_many_queues_goes_first(conn: psycopg.Connection) -> None:
    low, high = fill(conn, named("low", 150)), fill(conn, named("high", 150), priority=5)
    few = fill(conn, named("few", 3), priority=9)
    found = [job_id for rows in claimed(conn, 10) for job_id in ids(rows)]
    assert sorted(found[:3]) == sorted(few)
    assert sorted(found[3:153]) == sorted(high)
    assert sorted(found[153:]) == sorted(low)


def test_up_to_64_lanes_with_something_due_the_older_job_goes_first(conn: psycopg.Connection) -> None:
    fill(conn, named("later", 100), delay="1 day")
    conn.execute("delete from pgqueue.lanes where queue like 'later%'")
    conn.execute(
        "insert into pgqueue.lanes (queue, priority, due_from, until)"
        " select 'later ' || to_char(n, 'fm0000'), 0, now() + '23 hours'::interval, now() from generate_series(0, 99) n"
    )
    expected = fill(conn, named("due", 40))
    assert value(conn, "select due_lanes from pgqueue.maintenance_runs order by n desc limit 1") == 40
    assert [job_id for _ in range(4) for job_id in ids(reserve(conn, 10))] == expected


def test_each_queue_gets_its_turn_beside_floods(conn: psycopg.Connection) -> None:
    floods = named("flood", 100)
    for _ in range(10):
        fill(conn, floods)
    quiet = fill(conn, ["quiet"])
    # 101 lanes are two rounds of 64, and its job is the newest of all.
    found = [job_id for _ in range(25) for job_id in ids(reserve(conn, 64))]
    assert set(quiet) <= set(found)
    assert len(found) == 1001


def test_empty_lanes_end_a_claim_which_wakes_its_worker_until_each_was_visited(
    conn: psycopg.Connection, database: Database
) -> None:
    empty(conn, named("empty", 200))
    [idle] = table(conn, "idle", "w")
    listener = database.connect()
    listener.execute(f'listen "{idle.channel}"'.encode())
    rounds = 0
    while list(listener.notifies(timeout=0)) or rounds == 0:
        assert reserve(conn) == []
        rounds += 1
        assert rounds < 10
        listener.execute("select 1")
    # 200 lanes are four visits.
    assert rounds in (3, 4, 5)


def test_a_job_beside_empty_lanes_is_found_by_the_claims_that_go_on(conn: psycopg.Connection) -> None:
    empty(conn, named("empty", 300))
    [job_id] = fill(conn, ["due"])
    assert claims_until(conn, job_id) <= 6


def test_a_claim_reads_hardly_more_beside_five_thousand_queues_than_beside_a_thousand(conn: psycopg.Connection) -> None:
    read = {}
    # Beyond some five hundred no more of them are looked at; what grows are the indexes.
    for count in (1000, 5000):
        fill(conn, named(f"of {count}", count))
        conn.execute("vacuum (analyze) pgqueue.jobs, pgqueue.lanes, pgqueue.heads")
        # The least of three: what autovacuum has analyzed meanwhile is planned anew.
        calls = ("pgqueue.reserve('w', 10)", "pgqueue.idle('w')")
        read[count] = {call: min(blocks(conn, call) for _ in range(3)) for call in calls}
    for name, few in read[1000].items():
        assert read[5000][name] <= 1.5 * few + 50


@pytest.mark.parametrize("count", [20, 200])
def test_a_claim_of_a_named_queue_reads_no_lane_of_another(conn: psycopg.Connection, count: int) -> None:
    fill(conn, named("q", count))
    [job_id] = fill(conn, ["mine"])
    assert ids(reserve(conn, 10, queues=["mine", "none"])) == [job_id]


def test_ends_of_many_tenants_under_a_limit_read_the_lanes_once(conn: psycopg.Connection) -> None:
    def lanes_read() -> int:
        flush_statistics(conn)
        read: int = value(
            conn,
            "select t.seq_tup_read + (select sum(i.idx_tup_read) from pg_stat_user_indexes i where i.relid = t.relid)"
            " from pg_stat_user_tables t where t.relname = 'lanes'",
        )
        return read

    call(conn, "set_limit", "limit_key", "t*", max_executing=1)
    for n in range(50):
        enqueue(conn, queue=f"q{n}", delay="1 day")
    for n in range(20):
        enqueue(conn, limit_key=f"t{n}")
    held = reserve(conn, 20, queues=["default"])
    assert len(held) == 20
    before = lanes_read()
    assert column(conn, "complete_many", *pairs(held)) == []
    assert lanes_read() - before < 200


def test_paused_queues_are_no_visits(conn: psycopg.Connection) -> None:
    fill(conn, named("paused", 300), priority=1)
    for queue in named("paused", 300):
        call(conn, "pause_queue", queue)
    [job_id] = fill(conn, ["served"])
    assert claims_until(conn, job_id) == 1
    call(conn, "resume_queue", "paused 0007")
    assert len(reserve(conn, 10)) == 1


def test_queues_at_their_limits_hide_no_job(conn: psycopg.Connection) -> None:
    limited = named("limited", 150)
    for queue in limited:
        call(conn, "set_limit", "queue", queue, 1)
    fill(conn, limited)
    assert sum(len(rows) for rows in claimed(conn, 50)) == 150
    fill(conn, limited)
    [job_id] = fill(conn, ["free"])
    assert claims_until(conn, job_id) <= 4


def test_a_lane_for_later_is_visited_at_its_time(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    expected = fill(conn, named("later", 150), delay="10 hours")
    for _ in range(3):
        clock.advance("61 min")
        maintain(conn)
    assert value(conn, "select count(*) from pgqueue.lanes where due_from = '-infinity'") == 0
    [idle] = table(conn, "idle", "w")
    assert str(idle.next_due) == "2030-01-01 22:00:00+00:00"
    assert reserve(conn, 10) == []
    clock.set("2030-01-01 22:00:01+00")
    # Without maintenance first, and with it.
    found = ids(reserve(conn, 10))
    maintain(conn)
    found += [job_id for rows in claimed(conn, 50) for job_id in ids(rows)]
    assert sorted(found) == sorted(expected)


def test_empty_lanes_leave_and_few_are_visited_in_the_exact_order_again(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    fill(conn, named("q", 200))
    complete_all(conn)
    for _ in range(4):
        clock.advance("3 s")
        maintain(conn)
    # The first of them were registered when there were few.
    assert value(conn, "select count(*) from pgqueue.lanes") == 64
    assert value(conn, "select due_lanes from pgqueue.maintenance_runs order by n desc limit 1") is None
    expected = fill(conn, named("q", 200))
    found = [job_id for rows in claimed(conn, 50) for job_id in ids(rows)]
    assert sorted(found) == sorted(expected)


def test_lanes_with_jobs_stay_and_are_not_registered_by_each_job(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    fill(conn, named("q", 100))
    for _ in range(5):
        clock.advance("3 s")
        maintain(conn)
    lanes = "select max(n) from (select count(*) as n from pgqueue.lanes group by queue) q"
    for _ in range(5):
        enqueue(conn, queue="q 0099")
    assert value(conn, lanes) == 1


def test_unregistered_lanes_among_many_are_found_part_by_part(conn: psycopg.Connection) -> None:
    # Four parts, of which each run takes one by chance.
    fill(conn, named("q", 1100))
    conn.execute("delete from pgqueue.lanes where queue in ('q 0003', 'q 0030', 'q 0300', 'q 0077')")
    for _ in range(200):
        if value(conn, "select count(distinct queue) from pgqueue.lanes") == 1100:
            break
        call(conn, "maintain")
    assert value(conn, "select count(distinct queue) from pgqueue.lanes") == 1100


STRATEGIES = ["weighted", "lag", "round_robin"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_serves_each_job_of_many_queues(conn: psycopg.Connection, strategy: str) -> None:
    call(conn, "configure_queue", "q 0005", weight=3)
    expected = fill(conn, named("q", 200)) + fill(conn, named("urgent", 80), priority=5)
    call(conn, "pause_queue", "q 0006")
    found = [job_id for rows in claimed(conn, 10, strategy=strategy) for job_id in ids(rows)]
    assert sorted(found) == sorted(set(expected) - {expected[6]})
    call(conn, "resume_queue", "q 0006")
    assert [job_id for _ in range(10) for job_id in ids(reserve(conn, strategy=strategy))] == [expected[6]]


def test_round_robin_over_many_queues_takes_one_of_each_before_a_second(conn: psycopg.Connection) -> None:
    for _ in range(2):
        fill(conn, named("q", 128))
    taken = Counter(row.queue for _ in range(2) for row in reserve(conn, 64, strategy="round_robin"))
    assert set(taken.values()) == {1}
    assert len(taken) == 128


def test_a_queue_with_a_weight_has_its_share_beside_many_without(conn: psycopg.Connection) -> None:
    call(conn, "configure_queue", "heavy", weight=200)
    enqueue_many(conn, 300, queue="heavy")
    for _ in range(3):
        fill(conn, named("q", 200))
    # Half of the weights, so about half of two hundred slots: 30 off is eight standard deviations.
    taken = Counter(row.queue == "heavy" for _ in range(20) for row in reserve(conn, 20))
    assert taken.total() == 400
    assert 120 <= taken[True] <= 280


def test_slots_that_draw_begin_again_where_a_round_ends_with_the_last_lane(conn: psycopg.Connection) -> None:
    # 128 lanes are two visits, and behind them is no other.
    call(conn, "configure_queue", "q 0001", weight=5)
    expected = [job_id for _ in range(3) for job_id in fill(conn, named("q", 128))]
    found = [job_id for rows in claimed(conn, 20) for job_id in ids(rows)]
    assert sorted(found) == sorted(expected)


def test_a_sample_counts_a_part_of_thousands_of_queues_and_shows_all(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    fill(conn, named("q", 1200))
    enqueue_many(conn, 40, queue="large")
    last = "select count(*) from pgqueue.samples where at = (select max(at) from pgqueue.samples) and queue <> ''"

    def sample() -> int:
        clock.advance("11 s")
        maintain(conn)
        return int(value(conn, last))

    sample()
    assert sample() < 700
    complete_all(conn)
    fill(conn, named("other", 300))
    for _ in range(8):
        sample()
    found = call(conn, "stats", recent=True)
    assert {each["queue"] for each in found["queues"] if each["waiting"]} == set(named("other", 300))
    assert found["total"]["waiting"] == 300


def test_no_queue_is_forgotten_after_maintenance_stood_still(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    fill(conn, named("q", 1200))
    for pause in (*["11 s"] * 6, "10 min"):
        clock.advance(pause)
        maintain(conn)
    found = call(conn, "stats", recent=True)
    assert found["total"]["waiting"] == 1200
    assert sum(each["waiting"] for each in found["queues"]) == 1200


def test_metrics_name_the_queues_with_the_most_jobs(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    fill(conn, named("q", 600))
    enqueue_many(conn, 5, queue="z large")
    # Parts are counted in turn.
    for _ in range(4):
        clock.advance("11 s")
        maintain(conn)
    shown = [row.labels["queue"] for row in table(conn, "metrics") if row.name == "pgqueue_queue_lag_seconds"]
    assert len(shown) == 500
    assert "z large" in shown


def test_beside_more_than_64_lanes_no_queue_of_the_same_priority_comes_first(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set(NOON)
    for queue in named("q", 70):
        enqueue(conn, queue=queue)
        clock.advance("1 s")
    maintain(conn)
    clock.advance("5 min")
    maintain(conn)
    call(conn, "hello", "w", None, Jsonb({"concurrency": 2}))
    causes = Counter(row.cause for row in table(conn, "why_late"))
    assert (causes.total(), causes["starved"]) == (70, 0)
    fill(conn, named("high", 2), priority=5)
    [row] = table(conn, "why_late", "q 0003")
    assert (row.cause, row.evidence) == (
        "starved",
        "its workers serve first: queue high 0000, priority 5 (1 due); queue high 0001, priority 5 (1 due)",
    )


def test_a_queue_whose_part_had_no_turn_is_wanted_and_says_of_when_its_numbers_are(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set(NOON)
    fill(conn, named("q", 760))
    for _ in range(4):
        clock.advance("11 s")
        maintain(conn)
    enqueue_many(conn, 50, queue="new")
    assert call(conn, "wanted", ["new"]) == 50
    assert call(conn, "wanted", ["new", "q 0001"]) == 51
    found = {each["queue"]: each for each in call(conn, "stats", recent=True)["queues"]}
    assert (found["new"]["due"], found["new"]["ready_counted_at"] is None) == (0, False)


def test_no_queue_is_forgotten_when_there_are_fewer_parts(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    fill(conn, named("q", 555))
    conn.execute(
        "insert into pgqueue.lanes (queue, priority, until)"
        " select 'x' || n, 0, 'infinity' from generate_series(1, 200) n"
    )
    for _ in range(4):
        clock.advance("11 s")
        maintain(conn)
    conn.execute("delete from pgqueue.lanes where queue ~ '^x'")
    for _ in range(4):
        assert call(conn, "wanted") == 555
        clock.advance("11 s")
        maintain(conn)
        assert value(conn, "select due from pgqueue.samples where queue = '' order by n desc limit 1") == 555


def test_metrics_have_the_late_queues_first_and_none_of_them_is_on_time(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    fill(conn, named("later", 500), delay="1 day")
    late = [*named("q", 110), "z"]
    fill(conn, late)
    clock.advance("1 min")
    shown = [row for row in table(conn, "metrics") if row.name == "pgqueue_queue_late_seconds"]
    causes = {row.labels["queue"]: row.labels["cause"] for row in shown if row.value == 60}
    assert sorted(causes) == late
    assert Counter(causes.values()) == {"no_worker": 100, "unknown": 11}
    assert {row.labels["cause"] for row in shown if row.value == 0} == {"on_time"}
