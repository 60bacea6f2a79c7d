"""Fair queues: among the due jobs of one priority tenants take turns, each by its share, and no job is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import (
    Row,
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
    table,
    value,
)
from tests.databases import Database
from tests.sql.test_handoff import Idle

NOON = "2030-01-01 12:00+00"


@pytest.fixture
def conn(conn: psycopg.Connection) -> psycopg.Connection:
    call(conn, "configure_queue", "default", fair_by="limit_key")
    return conn


def tenants(conn: psycopg.Connection, rows: list[Row]) -> list[str | None]:
    return [job(conn, row.id).limit_key for row in rows]


def starts(conn: psycopg.Connection, jobs: int, at_a_time: int, worker: str = "w") -> Counter[str | None]:
    """Claim and complete, until so many have started; by tenant."""
    started: Counter[str | None] = Counter()
    while started.total() < jobs:
        rows = reserve(conn, at_a_time, worker)
        assert rows
        started.update(tenants(conn, rows))
        column(conn, "complete_many", *pairs(rows))
    return started


def fill(conn: psycopg.Connection, **jobs: int) -> None:
    for tenant, number in jobs.items():
        enqueue_many(conn, number, limit_key=tenant)


def off_the_path(conn: psycopg.Connection, clock: Clock) -> None:
    """Let every empty lane leave the path; the transaction of another database may be waited for meanwhile."""
    for _ in range(20):
        clock.advance("31 s")
        maintain(conn)
        if value(conn, "select count(*) = 0 from pgqueue.tenant_lanes where lane_key <> ''"):
            return
    pytest.fail("a lane without jobs stays")


@pytest.mark.parametrize("at_a_time", [1, 2, 10])
def test_a_job_behind_a_flood_of_another_tenant_starts_within_a_round(conn: psycopg.Connection, at_a_time: int) -> None:
    fill(conn, a=300, b=1)
    assert "b" in starts(conn, 2, at_a_time)


@pytest.mark.parametrize("at_a_time", [1, 3, 7, 64])
def test_tenants_start_as_many_jobs_each_however_many_wait(conn: psycopg.Connection, at_a_time: int) -> None:
    fill(conn, a=300, b=100, c=100, d=100, e=100)
    started = starts(conn, 320, at_a_time)
    assert max(started.values()) - min(started.values()) <= 1


@pytest.mark.parametrize("at_a_time", [1, 4, 7, 50])
def test_a_tenant_with_a_share_starts_as_many_jobs_in_its_turn(conn: psycopg.Connection, at_a_time: int) -> None:
    assert call(conn, "set_share", "a", 3)
    fill(conn, a=300, b=100, c=100)
    started = starts(conn, 200, at_a_time)
    assert abs(started["a"] - 120) <= 3
    assert abs(started["b"] - started["c"]) <= 1


def test_a_share_holds_for_a_prefix_and_the_longest_one_counts(conn: psycopg.Connection) -> None:
    for name, weight in (("big:*", 2), ("big:b*", 3), ("big:c", 4)):
        call(conn, "set_share", name, weight)
    for tenant in ("big:a", "big:b", "big:c", "small"):
        enqueue_many(conn, 100, limit_key=tenant)
    assert starts(conn, 100, 10) == {"big:a": 20, "big:b": 30, "big:c": 40, "small": 10}


def test_a_share_is_taken_back_and_says_whether_it_changed(conn: psycopg.Connection) -> None:
    assert call(conn, "set_share", "a", 3) is True
    assert call(conn, "set_share", "a", 3) is False
    assert call(conn, "set_share", "a", None) is True
    assert call(conn, "set_share", "a", None) is False
    assert value(conn, "select count(*) from pgqueue.shares") == 0
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        call(conn, "set_share", "a", 0)


def test_the_jobs_of_one_tenant_start_in_their_order(conn: psycopg.Connection) -> None:
    fill(conn, b=20)
    mine = enqueue_many(conn, 40, limit_key="a")
    started = [job_id for _ in range(20) for job_id in ids(reserve(conn, 3))]
    assert [job_id for job_id in started if job_id in set(mine)] == mine


def test_a_claim_is_filled_by_those_who_have_jobs(conn: psycopg.Connection) -> None:
    fill(conn, a=1, b=2, c=60)
    assert Counter(tenants(conn, reserve(conn, 50))) == {"a": 1, "b": 2, "c": 47}
    assert len(reserve(conn, 50)) == 13


def test_a_higher_priority_goes_first_whoever_waits(conn: psycopg.Connection) -> None:
    fill(conn, a=5, b=5)
    urgent = enqueue_many(conn, 20, limit_key="a", priority=5)
    assert ids(reserve(conn, 20)) == urgent


def test_tenants_take_turns_beside_a_queue_with_a_weight_whether_it_has_jobs_or_not(conn: psycopg.Connection) -> None:
    call(conn, "configure_queue", "weighted", weight=3)
    fill(conn, a=20, b=20)
    assert starts(conn, 20, 4) == {"a": 10, "b": 10}
    enqueue_many(conn, 60, queue="weighted")
    started = starts(conn, 80, 4)
    assert started == {"a": 10, "b": 10, None: 60}


def test_jobs_without_a_limit_key_are_one_tenant(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 50)
    for _ in range(50):
        enqueue(conn)
    fill(conn, a=50)
    assert starts(conn, 60, 10) == {None: 30, "a": 30}


def test_workers_go_on_where_each_has_stopped(conn: psycopg.Connection) -> None:
    fill(conn, **{f"t{i}": 40 for i in range(10)})
    for worker in ("v", "w", "x"):
        assert set(starts(conn, 20, 1, worker).values()) == {2}


def test_a_tenant_with_long_jobs_comes_after_all_others(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    fill(conn, a=50)
    assert len(reserve(conn, 9, "busy")) == 9
    clock.advance("1 s")
    maintain(conn)
    fill(conn, b=20)
    for _ in range(20):
        row = reserve_one(conn)
        assert tenants(conn, [row]) == ["b"]
        call(conn, "complete", row.id, row.reservation)
    # No other tenant waits, and no slot stays empty.
    assert tenants(conn, reserve(conn, 5)) == ["a"] * 5


def test_a_tenant_with_long_jobs_starts_more_also_where_only_lanes_without_jobs_are_before_it(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set(NOON)
    fill(conn, a=3)
    assert len(reserve(conn, 3, "busy")) == 3
    clock.advance("1 s")
    # Their lanes stay on the path, more of them than a claim may probe in vain.
    fill(conn, **{f"t{i}": 1 for i in range(150)})
    rows = reserve(conn, 150)
    column(conn, "complete_many", *pairs(rows))
    assert len(rows) == 150
    fill(conn, a=10)
    maintain(conn)
    assert value(conn, "select cardinality(busy_lanes) from pgqueue.maintenance_runs order by n desc limit 1") == 1
    found = [row for _ in range(3) for row in reserve(conn, 1)]
    assert tenants(conn, found) == ["a"] * len(found) != []


def test_tenants_with_long_jobs_are_noted_by_each_run_of_maintenance_and_for_two_seconds(
    conn: psycopg.Connection, clock: Clock
) -> None:
    noted = "select busy_lanes from pgqueue.maintenance_runs order by n desc limit 1"
    clock.set(NOON)
    fill(conn, a=50)
    held = reserve(conn, 9, "busy")
    clock.advance("1 s")
    maintain(conn)
    fill(conn, b=20)
    assert value(conn, noted) == [value(conn, "select pgqueue._head_name('default', pgqueue._lane_of('a'))")]
    assert value(conn, "select count(*) from pgqueue.turns where worker = ''") == 0
    held += (rows := reserve(conn, 4))
    assert tenants(conn, rows) == ["b"] * 4
    # No session has counted since.
    clock.advance("3 s")
    held += (rows := reserve(conn, 4))
    assert Counter(tenants(conn, rows)) == {"a": 2, "b": 2}
    column(conn, "complete_many", *pairs(held))
    maintain(conn)
    assert value(conn, noted) is None


def test_a_tenant_with_a_share_may_execute_as_much_more(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    call(conn, "set_share", "a", 9)
    fill(conn, a=100)
    reserve(conn, 9, "busy")
    clock.advance("1 s")
    maintain(conn)
    fill(conn, b=100)
    started = Counter(tenants(conn, reserve(conn, 20)))
    assert started == {"a": 18, "b": 2}


def test_a_worker_without_a_turn_draws_one_of_the_tenants(conn: psycopg.Connection) -> None:
    fill(conn, **{f"t{i}": 60 for i in range(5)})
    started: Counter[str | None] = Counter()
    for number in range(100):
        started.update(tenants(conn, reserve(conn, 1, f"w{number}")))
    # Twenty each: one with none has a chance of 1 in 10 to the 9.
    assert len(started) == 5


@pytest.mark.parametrize("rule", ["limit", "pause", "throttle"])
def test_a_tenant_that_may_not_start_is_passed_over_and_nothing_is_written(conn: psycopg.Connection, rule: str) -> None:
    fill(conn, a=10, b=3)
    if rule == "limit":
        call(conn, "set_limit", "limit_key", "a*", 1)
        enqueue(conn, limit_key="a")
    elif rule == "pause":
        call(conn, "pause", "limit_key", "a")
    else:
        call(conn, "throttle", "limit_key", "a", "1 hour")
    before = value(conn, "select array_agg(ctid::text order by id) from pgqueue.jobs where limit_key = 'a'")
    allowed = int(rule == "limit")
    assert Counter(tenants(conn, reserve(conn, 10))) == Counter({"a": allowed, "b": 3})
    assert reserve(conn, 10) == []
    after = value(
        conn,
        "select array_agg(ctid::text order by id) from pgqueue.jobs where limit_key = 'a' and state = 'waiting'",
    )
    assert after == before[allowed:]
    assert value(conn, "select count(*) from pgqueue.limit_waits") == 0


def test_a_tenant_that_was_at_its_limit_starts_again(conn: psycopg.Connection) -> None:
    call(conn, "set_limit", "limit_key", "a", 2)
    fill(conn, a=5)
    started = 0
    while rows := reserve(conn, 10):
        assert len(rows) <= 2
        started += len(rows)
        column(conn, "complete_many", *pairs(rows))
    assert started == 5


def test_an_end_wakes_an_idle_worker_for_the_next_job_of_a_tenant_at_its_limit(
    conn: psycopg.Connection, database: Database
) -> None:
    call(conn, "set_limit", "limit_key", "a*", 1)
    fill(conn, a=2)
    first = reserve_one(conn, "v")
    assert reserve(conn, 1, "v") == []
    idle = Idle(database)
    call(conn, "complete", first.id, first.reservation)
    assert idle.heard() == ["wake"]
    last = reserve_one(conn)
    call(conn, "complete", last.id, last.reservation)
    # None waits.
    assert idle.heard() == []


def test_an_end_under_the_limit_of_a_tenant_reads_no_lanes_of_queues_in_which_it_has_no_job(
    conn: psycopg.Connection,
) -> None:
    call(conn, "set_limit", "limit_key", "a", 1)
    table(conn, "idle", "w", **{"for": "1 hour"})

    def end() -> int:
        enqueue(conn, limit_key="a")
        row = reserve_one(conn, "v", queues=["default"])
        ending = f"explain (analyze, buffers, format json) select pgqueue.complete({row.id}, {row.reservation})"
        plan = value(conn, ending)[0]["Plan"]
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    def beside(queues: int) -> int:
        for number in range(queues):
            call(conn, "configure_queue", f"q{number}", fair_by="limit_key")
            enqueue(conn, queue=f"q{number}", limit_key="b")
        # Once more when the plans are made.
        return [end() for _ in range(3)][-1]

    few = beside(2)
    assert beside(150) < few + 100


def test_an_idle_worker_is_not_told_of_jobs_that_may_not_start(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    call(conn, "pause", "limit_key", "a", "2030-01-01 13:00+00")
    fill(conn, a=2)
    maintain(conn)
    [row] = table(conn, "idle", "w")
    assert row.next_due.isoformat().startswith("2030-01-01T13:00")
    fill(conn, b=1)
    [row] = table(conn, "idle", "w")
    assert row.next_due == clock.now()


def test_limits_of_tasks_and_keys_hold_in_a_fair_queue(conn: psycopg.Connection) -> None:
    call(conn, "set_limit", "task", "u", 1)
    for tenant in ("a", "b"):
        enqueue_many(conn, 3, "u", limit_key=tenant)
        enqueue_many(conn, 3, key="k", limit_key=tenant)
    done = 0
    while rows := reserve(conn, 10):
        assert len([row for row in rows if row.task == "u"]) <= 1
        assert len([row for row in rows if row.key == "k"]) <= 1
        column(conn, "complete_many", *pairs(rows))
        done += len(rows)
    assert done == 12


def _stage(conn: psycopg.Connection) -> None:
    with conn.transaction():
        call(conn, "stage")
        with conn.cursor().copy("copy pgqueue_staged (task, limit_key) from stdin") as rows:
            rows.write_row(["t", "a"])
        table(conn, "enqueue_staged")


@pytest.mark.parametrize(
    "make",
    [
        lambda conn: enqueue(conn, limit_key="a"),
        lambda conn: enqueue(conn, limit_key="a", dedupe="d"),
        lambda conn: enqueue_many(conn, 1, limit_key="a"),
        lambda conn: column(conn, "enqueue_batch", [Jsonb({"task": "t", "limit_key": "a"})]),
        _stage,
    ],
    ids=["enqueue", "with a dedupe key", "enqueue_many", "enqueue_batch", "staged"],
)
def test_a_job_is_in_the_lane_of_its_tenant_however_it_is_enqueued(
    conn: psycopg.Connection, make: Callable[[psycopg.Connection], object]
) -> None:
    make(conn)
    assert value(conn, "select lane_key = pgqueue._lane_of('a') from pgqueue.jobs")
    assert value(conn, "select count(*) from pgqueue.tenant_lanes where lane_key = pgqueue._lane_of('a')") == 1
    assert tenants(conn, reserve(conn, 5)) == ["a"]


@pytest.mark.parametrize("options", [{}, {"limit_key": "a"}, {"priority": 3}, {"queue": "plain"}])
def test_a_job_is_written_once_also_without_a_limit_key(conn: psycopg.Connection, options: dict[str, Any]) -> None:
    enqueue(conn, **options)
    written = "select array[n_tup_ins, n_tup_upd] from pg_stat_xact_user_tables where relid = 'pgqueue.jobs'::regclass"
    with conn.transaction():
        inserted, updated = value(conn, written)
        job_id = enqueue(conn, **options)
        assert value(conn, written) == [inserted + 1, updated]
    expected = None if "queue" in options else value(conn, "select pgqueue._lane_of(%s)", options.get("limit_key"))
    assert value(conn, "select lane_key from pgqueue.jobs where id = %s", job_id) == expected


def _replaced(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue(conn, limit_key="a", dedupe="d", delay="1 day")
    off_the_path_of_the_future(conn, clock)
    enqueue(conn, limit_key="a", dedupe="d", on_conflict="replace")


def off_the_path_of_the_future(conn: psycopg.Connection, clock: Clock) -> None:
    for _ in range(20):
        clock.advance("31 s")
        maintain(conn)
        if value(conn, "select min(due_from) > pgqueue._clock() from pgqueue.tenant_lanes where lane_key <> ''"):
            return
    pytest.fail("a lane whose jobs are not due stays due")


def _updated(conn: psycopg.Connection, clock: Clock) -> None:
    job_id = enqueue(conn, limit_key="b", delay="1 day")
    off_the_path_of_the_future(conn, clock)
    call(conn, "update_job", job_id, limit_key="a", run_at=clock.now())


def _failed(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue(conn, limit_key="a", retry_delay="1 min", retry_policy="fixed")
    row = reserve_one(conn, lease="1 day")
    off_the_path(conn, clock)
    call(conn, "fail", row.id, row.reservation, Jsonb({"message": "x"}))
    clock.advance("2 min")


def _snoozed(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue(conn, limit_key="a")
    row = reserve_one(conn, lease="1 day")
    off_the_path(conn, clock)
    call(conn, "snooze", row.id, row.reservation, "1 min")
    clock.advance("2 min")


def _released(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue(conn, limit_key="a")
    row = reserve_one(conn, lease="1 day")
    off_the_path(conn, clock)
    column(conn, "release", [row.id], [row.reservation])


def _lapsed(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue(conn, limit_key="a")
    reserve_one(conn)
    clock.advance("31 s")
    maintain(conn)
    clock.advance("31 s")
    maintain(conn)


def _child(conn: psycopg.Connection, clock: Clock) -> None:
    parent = enqueue(conn, "parent", queue="other")
    enqueue(conn, limit_key="a", depends_on=[parent])
    off_the_path(conn, clock)
    row = reserve_one(conn, queues=["other"])
    column(conn, "complete_many", [row.id], [row.reservation])


def _later_child(conn: psycopg.Connection, clock: Clock) -> None:
    parent = enqueue(conn, "parent", queue="other")
    enqueue(conn, limit_key="a", depends_on=[parent], delay="10 min")
    off_the_path(conn, clock)
    row = reserve_one(conn, queues=["other"])
    column(conn, "complete_many", [row.id], [row.reservation])
    clock.advance("11 min")


def _unpaused(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "pause", "task", "t")
    enqueue(conn, limit_key="a")
    assert reserve(conn) == []
    off_the_path(conn, clock)
    call(conn, "resume", "task", "t")
    maintain(conn)


def _retried(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue(conn, limit_key="a", max_attempts=1)
    row = reserve_one(conn, lease="1 day")
    call(conn, "fail", row.id, row.reservation, Jsonb({"message": "x"}))
    off_the_path(conn, clock)
    call(conn, "retry", row.id)


def _behind_a_key(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue_many(conn, 2, limit_key="a", key="k")
    row = reserve_one(conn, lease="1 day")
    assert reserve(conn) == []
    off_the_path(conn, clock)
    column(conn, "complete_many", [row.id], [row.reservation])


def _scheduled(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue(conn, limit_key="a", delay="1 hour")
    off_the_path_of_the_future(conn, clock)
    clock.advance("1 hour")


@pytest.mark.parametrize(
    "comes",
    [
        *(_replaced, _updated, _failed, _snoozed, _released, _lapsed, _child, _later_child, _unpaused, _retried),
        *(_behind_a_key, _scheduled),
    ],
)
def test_a_job_that_becomes_ready_when_its_lane_has_left_the_path_starts(
    conn: psycopg.Connection, clock: Clock, comes: Callable[[psycopg.Connection, Clock], None]
) -> None:
    clock.set(NOON)
    comes(conn, clock)
    assert tenants(conn, reserve(conn, 5)) == ["a"]


def test_lanes_that_are_empty_leave_the_path_and_those_with_jobs_stay(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    fill(conn, **{f"t{i}": 1 for i in range(30)})
    fill(conn, kept=1)
    call(conn, "pause", "limit_key", "kept")
    column(conn, "complete_many", *pairs(reserve(conn, 100)))
    for _ in range(20):
        clock.advance("31 s")
        maintain(conn)
        if value(conn, "select count(*) from pgqueue.tenant_lanes where lane_key <> ''") == 1:
            break
    assert column_of(conn, "select substr(lane_key, 9) from pgqueue.tenant_lanes where lane_key <> ''") == ["kept"]


def column_of(conn: psycopg.Connection, query: str) -> list[Any]:
    return [row[0] for row in conn.execute(query.encode())]


def test_a_claim_goes_on_where_it_stopped_among_lanes_without_jobs(conn: psycopg.Connection) -> None:
    fill(conn, **{f"t{i}": 1 for i in range(200)})
    column(conn, "complete_many", *pairs(reserve(conn, 1000)))
    fill(conn, a=1)
    # They are on the path still: each claim passes 65 of them at most, and has its worker come again.
    found = [row for _ in range(5) for row in reserve(conn, 1)]
    assert tenants(conn, found) == ["a"]


def test_a_worker_is_woken_where_its_claim_has_stopped_on_the_way(conn: psycopg.Connection, database: Database) -> None:
    fill(conn, **{f"t{i}": 1 for i in range(200)})
    column(conn, "complete_many", *pairs(reserve(conn, 1000)))
    fill(conn, a=1)
    listener = database.connect()
    listener.execute(f"listen {value(conn, 'select pgqueue._channel(%s)', 'w')}".encode())
    for _ in range(5):
        if reserve(conn, 1):
            break
        assert [each.payload for each in listener.notifies(timeout=60, stop_after=1)] == ["wake"]
    else:
        pytest.fail("the job was not found")


def _claims_until_no_wake(conn: psycopg.Connection, heard: list[str]) -> int:
    for number in range(1, 20):
        heard.clear()
        assert reserve(conn, 1) == []
        if not heard:
            return number
    pytest.fail("the claims of a worker wake it for ever")


def _wakes_of(conn: psycopg.Connection) -> list[str]:
    """Return a list that receives the wake-ups of worker w."""
    heard: list[str] = []
    conn.add_notify_handler(lambda notice: heard.append(notice.payload))
    conn.execute(f"listen {value(conn, 'select pgqueue._channel(%s)', 'w')}".encode())
    return heard


def test_wakes_end_where_a_queue_has_too_few_units_for_any_job(conn: psycopg.Connection) -> None:
    call(conn, "set_limit", "queue", "default", rate=1, per="1 day", burst=10)
    call(conn, "pause", "limit_key", "paused")
    enqueue(conn, limit_key="paused", cost=1)
    enqueue(conn, limit_key="b", cost=6)
    assert len(reserve(conn, 1)) == 1
    enqueue_many(conn, 3000, limit_key="c", cost=6)
    maintain(conn)
    heard = _wakes_of(conn)
    assert _claims_until_no_wake(conn, heard) <= 3


def _hundred_lanes_of_which_one_may_not_start(conn: psycopg.Connection, rule: str) -> list[str]:
    """Return a list that receives the wake-ups of worker w."""
    fill(conn, a=5, **{f"t{i}": 1 for i in range(99)})
    if rule == "limit":
        call(conn, "set_limit", "limit_key", "a*", 2)
    else:
        call(conn, "pause", "limit_key", "a")
    rows = reserve(conn, 1000)
    done = [row for row in rows if job(conn, row.id).limit_key != "a"]
    column(conn, "complete_many", *pairs(done))
    assert len(done) == 99
    return _wakes_of(conn)


@pytest.mark.parametrize("rule", ["limit", "pause"])
def test_wakes_end_after_a_round_that_found_nothing_and_the_next_round_finds_what_came(
    conn: psycopg.Connection, rule: str
) -> None:
    heard = _hundred_lanes_of_which_one_may_not_start(conn, rule)
    assert _claims_until_no_wake(conn, heard) == 2
    # Wherever the last round has ended.
    for tenant in (f"t{i}" for i in range(0, 99, 9)):
        enqueue(conn, limit_key=tenant)
        heard.clear()
        while not (rows := reserve(conn, 1)):
            assert heard == ["wake"]
            heard.clear()
        assert tenants(conn, rows) == [tenant]
        column(conn, "complete_many", *pairs(rows))
        assert _claims_until_no_wake(conn, heard) <= 3


@pytest.mark.parametrize("tenants_", [65, 130, 66])
def test_wakes_end_also_where_a_claim_ends_just_where_it_began(conn: psycopg.Connection, tenants_: int) -> None:
    # A claim of one passes 65 lanes.
    call(conn, "configure_queue", "default", fair_by="limit_key")
    call(conn, "set_limit", "limit_key", "*", 1)
    fill(conn, **{f"t{i}": 2 for i in range(tenants_)})
    assert len([row for _ in range(3) for row in reserve(conn, tenants_)]) == tenants_
    conn.execute("delete from pgqueue.turns")
    heard = _wakes_of(conn)
    assert _claims_until_no_wake(conn, heard) <= 3
    assert _claims_until_no_wake(conn, heard) <= 3


def test_a_round_that_was_interrupted_begins_anew(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    heard = _hundred_lanes_of_which_one_may_not_start(conn, "limit")
    assert reserve(conn, 1) == []
    assert heard == ["wake"]
    # What came meanwhile may be in a lane that the round has passed.
    clock.advance("6 s")
    assert _claims_until_no_wake(conn, heard) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"queues": ["plain", "default"], "strategy": "strict"},
        {"queues": ["plain", "default"], "strategy": "lag"},
        {"queues": ["plain", "default"], "strategy": "round_robin"},
        {"queues": ["plain", "default"], "weights": [1, 4]},
        {"queues": ["plain", "default"]},
        {},
    ],
    ids=str,
)
def test_fair_and_plain_queues_are_served_by_one_worker(conn: psycopg.Connection, options: dict[str, Any]) -> None:
    enqueue_many(conn, 40, queue="plain")
    fill(conn, a=40, b=10)
    started: Counter[str | None] = Counter()
    while rows := reserve(conn, 7, **options):
        started.update(tenants(conn, rows))
        column(conn, "complete_many", *pairs(rows))
    assert started == {None: 40, "a": 40, "b": 10}


def test_a_queue_at_its_limit_starts_no_more_whoever_waits(conn: psycopg.Connection) -> None:
    call(conn, "set_limit", "queue", "default", 3)
    fill(conn, a=5, b=5)
    assert len(reserve(conn, 10)) == 3
    assert reserve(conn, 10) == []


def test_jobs_from_before_a_switch_start_too_and_get_their_lanes(conn: psycopg.Connection) -> None:
    call(conn, "configure_queue", "default", reset=["fair_by"])
    fill(conn, a=20, b=1)
    enqueue(conn, limit_key="a", delay="1 hour")
    call(conn, "configure_queue", "default", fair_by="limit_key")
    assert len(reserve(conn, 3)) == 3
    fill(conn, c=1)
    assert "c" in tenants(conn, reserve(conn, 2))
    maintain(conn)
    assert value(conn, "select count(*) from pgqueue.jobs where lane_key is null and state = 'waiting'") == 0
    assert len(reserve(conn, 50)) == 17


def test_a_job_from_before_a_switch_starts_while_tenants_fill_each_claim(conn: psycopg.Connection) -> None:
    call(conn, "configure_queue", "default", reset=["fair_by"])
    [before] = enqueue_many(conn, 1, limit_key="b")
    call(conn, "configure_queue", "default", fair_by="limit_key")
    fill(conn, a=400)
    # One claim in sixteen takes it first: a chance of 1 in 10 to the 9 that none does.
    assert any(before in ids(reserve(conn, 1)) for _ in range(350))


def test_after_a_switch_back_all_jobs_start_and_nothing_is_left_of_the_lanes(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set(NOON)
    fill(conn, a=20, b=5)
    assert call(conn, "configure_queue", "default", reset=["fair_by"])
    fill(conn, c=5)
    assert len(reserve(conn, 10)) == 10
    maintain(conn)
    assert value(conn, "select count(*) from pgqueue.jobs where lane_key is not null and state = 'waiting'") == 0
    assert len(reserve(conn, 50)) == 20
    for _ in range(40):
        clock.advance("20 s")
        maintain(conn)
        if not value(conn, "select bool_or(is_fair) from pgqueue.lanes"):
            break
    assert value(conn, "select bool_or(is_fair) from pgqueue.lanes") is False
    assert value(conn, "select count(*) from pgqueue.tenant_lanes where lane_key <> ''") == 0


def test_a_queue_that_is_not_fair_writes_nothing_of_it(conn: psycopg.Connection) -> None:
    for number in range(20):
        enqueue(conn, queue="plain", limit_key=f"t{number}")
    column(conn, "complete_many", *pairs(reserve(conn, 5, queues=["plain"])))
    maintain(conn)
    for name in ("tenant_lanes", "turns"):
        assert value(conn, f"select count(*) from pgqueue.{name}") == 0
    assert value(conn, "select count(*) from pgqueue.jobs where lane_key is not null") == 0
    assert value(conn, "select pg_relation_size('pgqueue.jobs_in_lanes')") == 8192


def test_only_the_newest_turn_of_a_worker_is_kept(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    fill(conn, a=20, b=20)
    starts(conn, 5, 1)
    assert 1 <= value(conn, "select count(*) from pgqueue.turns") <= 5
    clock.advance("61 s")
    maintain(conn)
    assert value(conn, "select count(*) from pgqueue.turns") == 1
    clock.advance("2 hours")
    maintain(conn)
    assert value(conn, "select count(*) from pgqueue.turns") == 0


def test_claims_delete_the_turns_of_before_once_in_a_while(conn: psycopg.Connection) -> None:
    fill(conn, a=200, b=200)
    conn.execute("select setseed(0.5)")
    reserve(conn, 1, "other")
    assert starts(conn, 300, 1) == {"a": 150, "b": 150}
    # Sixteen, on the average.
    assert 1 <= value(conn, "select count(*) from pgqueue.turns where worker = 'w'") < 150
    assert value(conn, "select count(*) from pgqueue.turns where worker = 'other'") == 1


def test_a_claim_reads_rules_and_shares_only_once_there_was_one(conn: psycopg.Connection) -> None:
    scans = """
        select relname, coalesce(idx_scan, 0) + seq_scan
        from pg_stat_xact_user_tables
        where schemaname = 'pgqueue' and relname in ('limits', 'pauses', 'shares')
    """

    def reads() -> Counter[str]:
        # Counted since the last report of the session.
        with conn.transaction():
            before = Counter(dict(conn.execute(scans).fetchall()))
            assert len(reserve(conn, 1)) == 1
            after = Counter(dict(conn.execute(scans).fetchall()))
            after.subtract(before)
            return after

    fill(conn, a=20, b=20)
    reads()
    before = reads()
    assert before["shares"] == 0
    call(conn, "set_share", "a", 2)
    assert reads()["shares"] > 0
    assert reads()["limits"] == before["limits"]
    call(conn, "set_limit", "task", "other", max_executing=1)
    after = reads()
    assert after["limits"] > before["limits"]
    assert after["pauses"] > before["pauses"]


def test_a_claim_writes_one_turn_and_none_where_the_last_one_has_ended_there(conn: psycopg.Connection) -> None:
    fill(conn, a=20)
    starts(conn, 5, 1)
    assert value(conn, "select count(*) from pgqueue.turns") == 1
    # It takes several passes to fill a claim.
    fill(conn, b=3, c=60)
    assert len(reserve(conn, 50, "v")) == 50
    assert value(conn, "select count(*) from pgqueue.turns where worker = 'v'") == 1


def test_turns_are_not_in_the_write_ahead_log(conn: psycopg.Connection) -> None:
    assert value(conn, "select relpersistence from pg_class where oid = 'pgqueue.turns'::regclass") == "u"


def test_a_lane_that_no_claim_has_to_walk_gets_no_head(conn: psycopg.Connection) -> None:
    fill(conn, a=200)
    for _ in range(3):
        column(conn, "complete_many", *pairs(reserve(conn, 60)))
        # Else the next claim might meet their entries.
        conn.execute("vacuum pgqueue.jobs")
    assert value(conn, "select count(*) from pgqueue.heads where priority > 800") == 0


def test_a_hidden_lane_is_found_by_maintenance(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    fill(conn, a=1, b=1, c=1)
    conn.execute("delete from pgqueue.tenant_lanes")
    assert reserve(conn, 5) == []
    clock.advance("61 s")
    maintain(conn)
    assert len(reserve(conn, 5)) == 3


def test_jobs_without_a_lane_in_a_fair_queue_are_found_by_maintenance(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    fill(conn, a=1, b=1)
    conn.execute("update pgqueue.jobs set lane_key = null")
    clock.advance("61 s")
    maintain(conn)
    clock.advance("1 ms")
    assert len(reserve(conn, 5)) == 2


def test_a_clock_that_steps_back_hides_no_job_in_a_lane(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    fill(conn, a=10)
    starts(conn, 3, 1)
    maintain(conn)
    enqueue(conn, limit_key="b", delay="1 hour")
    clock.advance("-1 hour")
    maintain(conn)
    fill(conn, c=1)
    clock.advance("1 s")
    maintain(conn)
    assert Counter(tenants(conn, reserve(conn, 20))) == {"a": 7, "c": 1}


def test_explain_says_how_many_of_its_tenant_are_ahead_and_who_takes_turns(conn: psycopg.Connection) -> None:
    mine = enqueue_many(conn, 13, limit_key="a")
    fill(conn, b=1, c=1)
    call(conn, "hello", "w", ["default"])
    [found] = table(conn, "explain", mine[-1])
    assert found.reason == "turn"
    assert found.detail.startswith(
        "it is due: tenant a has 12 jobs ahead in priority 0 of queue default; 3 tenants take turns"
    )


def findings(conn: psycopg.Connection) -> list[str]:
    return [row.evidence for row in table(conn, "doctor") if row.topic == "tenant"]


def test_doctor_names_a_tenant_that_floods_a_fair_queue(conn: psycopg.Connection) -> None:
    fill(conn, b=20, c=20)
    assert findings(conn) == []
    fill(conn, a=1100)
    assert findings(conn) == [
        "tenant a has 1,100 of the first 1,140 jobs that wait in it; the others take their turns between them"
    ]


def test_doctor_names_a_fair_queue_whose_jobs_have_no_limit_key(conn: psycopg.Connection) -> None:
    fill(conn, a=20)
    enqueue_many(conn, 200)
    [found] = findings(conn)
    assert found.startswith("200 of the first 220 jobs that wait in it have no limit_key")


def test_doctor_says_how_many_jobs_wait_as_before_a_switch(conn: psycopg.Connection) -> None:
    fill(conn, a=5)
    conn.execute("update pgqueue.jobs set lane_key = null where id % 5 > 1")
    assert findings(conn) == ["at least 3 jobs wait as they did before it was made fair"]


def test_jobs_of_a_queue_that_is_fair_no_more_start_once_they_have_left_their_lanes(
    conn: psycopg.Connection, clock: Clock
) -> None:
    call(conn, "configure_queue", "default", fair_by="limit_key")
    enqueue_many(conn, 3, limit_key="a")
    call(conn, "configure_queue", "default", reset=["fair_by"])
    # The rows of their lanes pass, and the jobs have none any more.
    for _ in range(3):
        clock.advance("40 s")
        maintain(conn)
    assert value(conn, "select count(*) from pgqueue.jobs where lane_key is not null") == 0
    assert len(reserve(conn, 3)) == 3


def test_a_tenant_with_less_than_its_part_of_all_that_runs_has_turns_however_long_its_jobs_are(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set(NOON)
    fill(conn, a=3)
    assert len(reserve(conn, 3, "busy")) == 3
    clock.advance("2 s")
    fill(conn, a=50, b=100)
    assert tenants(conn, reserve(conn, 40)).count("b") >= 20
    maintain(conn)
    assert "a" in tenants(conn, reserve(conn, 10))
