"""Limits: how many may execute, and how many may start in a time, over the whole fleet."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import Row, call, column, enqueue, enqueue_many, ids, maintain, pairs, reserve, state, table, value
from tests.facts import flush_statistics


@pytest.fixture
def standing(clock: Clock) -> Clock:
    clock.set("2030-01-01 12:00+00")
    return clock


def limit(
    conn: psycopg.Connection,
    kind: str,
    target: str,
    at_most: int | None = None,
    rate: int | None = None,
    per: str | None = None,
) -> None:
    conn.execute(
        "insert into pgqueue.limits (kind, target, max_executing, rate, per) values (%s, %s, %s, %s, %s)"
        " on conflict (kind, target) do update set max_executing = excluded.max_executing, rate = excluded.rate,"
        " per = excluded.per",
        [kind, target, at_most, rate, per],
    )


def complete(conn: psycopg.Connection, *rows: Row) -> None:
    assert column(conn, "complete_many", *pairs(list(rows))) == []


def executing(conn: psycopg.Connection) -> int:
    found: int = value(conn, "select count(*) from pgqueue.jobs where state = 'executing'")
    return found


KINDS = [("queue", "q"), ("task", "t"), ("key", "k"), ("limit_key", "l"), ("limit_key", "l*"), ("limit_key", "*")]


def fill(conn: psycopg.Connection, count: int) -> list[int]:
    return [enqueue(conn, queue="q", key=f"k{n}", limit_key="l") for n in range(count)]


@pytest.mark.parametrize(("kind", "target"), KINDS)
def test_at_most_n_jobs_execute(conn: psycopg.Connection, kind: str, target: str) -> None:
    limit(conn, kind, target, at_most=2)
    job_ids = fill(conn, 5)
    free = [enqueue(conn, "other"), enqueue(conn, "other", key="x", queue="r"), enqueue(conn, "other", limit_key="m")]
    first = [row for row in reserve(conn, 20) if row.id not in free]
    assert ids(first) == job_ids[:2]
    assert reserve(conn, 20, "other") == []
    complete(conn, first[0])
    second = reserve(conn, 20)
    assert ids(second) == job_ids[2:3]
    complete(conn, first[1], *second)
    assert ids(reserve(conn, 20)) == job_ids[3:]


@pytest.mark.parametrize(("kind", "target"), KINDS)
def test_a_job_that_was_released_in_vain_keeps_its_position(
    conn: psycopg.Connection, clock: Clock, kind: str, target: str
) -> None:
    limit(conn, kind, target, at_most=2)
    job_ids = fill(conn, 5)
    first = reserve(conn, 20)
    assert ids(first) == job_ids[:2]
    complete(conn, first[0])
    # The limit is checked again while the third job waits to be claimed: the fourth is released too, and blocked again.
    clock.advance("3 s")
    second = reserve(conn, 20)
    assert ids(second) == job_ids[2:3]
    complete(conn, first[1], *second)
    assert ids(reserve(conn, 20)) == job_ids[3:]


LEAVING: dict[str, Callable[[psycopg.Connection, Clock, Row], object]] = {
    "complete": lambda conn, clock, row: complete(conn, row),
    "fail": lambda conn, clock, row: call(conn, "fail", row.id, row.reservation, retry_in="1 hour"),
    "die": lambda conn, clock, row: call(conn, "fail", row.id, row.reservation, retry=False),
    "snooze": lambda conn, clock, row: call(conn, "snooze", row.id, row.reservation, "1 hour"),
    "release": lambda conn, clock, row: column(conn, "release", *pairs([row]), "1 hour"),
    "cancel": lambda conn, clock, row: (call(conn, "cancel", row.id), column(conn, "release", *pairs([row]))),
}


@pytest.mark.parametrize(("kind", "target"), KINDS)
@pytest.mark.parametrize("how", LEAVING)
def test_a_job_that_leaves_a_limit_releases_the_next(
    conn: psycopg.Connection, standing: Clock, kind: str, target: str, how: str
) -> None:
    limit(conn, kind, target, at_most=1)
    job_ids = fill(conn, 3)
    [held] = reserve(conn, 10, lease="1 hour")
    assert reserve(conn, 10) == []
    LEAVING[how](conn, standing, held)
    assert ids(reserve(conn, 10)) == job_ids[1:2]
    assert executing(conn) == 1


@pytest.mark.covers("L13")
@pytest.mark.parametrize(("kind", "target"), KINDS)
def test_what_executes_counts_until_its_lease_is_taken_back(
    conn: psycopg.Connection, standing: Clock, kind: str, target: str
) -> None:
    maintain(conn)
    limit(conn, kind, target, at_most=1)
    job_ids = fill(conn, 2)
    [held] = reserve(conn, 10, lease="4 s")
    standing.advance("3 s")
    maintain(conn)
    assert reserve(conn, 10) == []
    standing.advance("3 s")
    # It lapsed; the one that takes it back also takes the place.
    [again] = reserve(conn, 10)
    assert again.id in job_ids
    assert executing(conn) == 1
    assert call(conn, "complete", held.id, held.reservation) is False


def test_a_limit_takes_effect_when_it_is_set_lowered_raised_and_dropped(
    conn: psycopg.Connection, standing: Clock
) -> None:
    enqueue_many(conn, 10)
    held = reserve(conn, 3)
    limit(conn, "task", "t", at_most=3)
    assert reserve(conn, 10) == []
    limit(conn, "task", "t", at_most=5)
    standing.advance("1 s")
    held += reserve(conn, 10)
    standing.advance("1 ms")
    held += reserve(conn, 10)
    assert len(held) == 5
    limit(conn, "task", "t", at_most=2)
    complete(conn, *held[:3])
    assert reserve(conn, 10) == []
    complete(conn, held[3])
    assert len(reserve(conn, 10)) == 1
    conn.execute("delete from pgqueue.limits")
    standing.advance("1 s")
    # Also if no client calls maintain.
    got = reserve(conn, 10)
    standing.advance("1 ms")
    assert len(got) + len(reserve(conn, 10)) == 4


def test_rules_that_were_copied_here_without_their_sequence_are_found(
    conn: psycopg.Connection, standing: Clock
) -> None:
    # As logical replication does, and a copy from another database.
    with conn.cursor() as cursor:
        for table, columns, row in (
            ("limits", "kind, target, max_executing, n", "task\tt\t1\t7"),
            ("pauses", "kind, target, source, until, at, by, n", "task\tu\toperator\tinfinity\t2020-01-01\tme\t7"),
            ("shares", "limit_key, weight, n", "a\t3\t7"),
        ):
            with cursor.copy(f"copy pgqueue.{table} ({columns}) from stdin".encode()) as copy:
                copy.write(row + "\n")
    standing.advance("61 s")
    maintain(conn)
    fill(conn, 3)
    enqueue(conn, "u")
    assert len(reserve(conn, 10)) == 1
    assert value(conn, "select pg_sequence_last_value('pgqueue.shares_n_seq')") is not None


@pytest.mark.parametrize(("kind", "target"), KINDS)
def test_a_limit_of_nothing_stops_all_under_it(conn: psycopg.Connection, kind: str, target: str) -> None:
    limit(conn, kind, target, at_most=0)
    enqueue(conn, queue="q", key="k", limit_key="l")
    other = enqueue(conn, "other", key="other")
    assert ids(reserve(conn, 10)) == [other]
    assert reserve(conn, 10) == []


def test_the_more_limits_block_jobs_the_more_rarely_each_is_checked(conn: psycopg.Connection, standing: Clock) -> None:
    limit(conn, "limit_key", "*", 1)
    for n in range(300):
        enqueue_many(conn, 2, limit_key=f"t{n}")
    held = reserve(conn, 600)
    assert len(held) == 300
    standing.advance("1 s")
    maintain(conn)
    waits = "select count(*), min(next_at) from pgqueue.limit_waits"
    assert conn.execute(waits).fetchone() == (300, standing.now() + timedelta(seconds=4))
    # An end does not wait for that.
    complete(conn, held[7])
    assert len(reserve(conn, 10)) == 1


def test_every_value_of_a_wildcard_has_its_own_capacity(conn: psycopg.Connection) -> None:
    limit(conn, "limit_key", "tenant:*", at_most=1)
    limit(conn, "limit_key", "tenant:big*", at_most=2)
    limit(conn, "limit_key", "tenant:big:7", at_most=3)
    for name in ("tenant:a", "tenant:b", "tenant:bigger", "tenant:big:7", "tenan"):
        enqueue_many(conn, 4, limit_key=name)
    rows = reserve(conn, 50)
    found: dict[str, int] = {}
    for row in rows:
        name = value(conn, "select limit_key from pgqueue.jobs where id = %s", row.id)
        found[name] = found.get(name, 0) + 1
    assert found == {"tenant:a": 1, "tenant:b": 1, "tenant:bigger": 2, "tenant:big:7": 3, "tenan": 4}


def test_a_job_under_two_limits_needs_capacity_in_both(conn: psycopg.Connection, standing: Clock) -> None:
    limit(conn, "task", "t", at_most=3)
    limit(conn, "limit_key", "l", at_most=1)
    under_both = enqueue_many(conn, 3, limit_key="l")
    under_one = enqueue_many(conn, 3)
    first = reserve(conn, 10)
    assert ids(first) == [under_both[0], *under_one[:2]]
    complete(conn, first[1])
    assert ids(reserve(conn, 10)) == [under_one[2]]
    complete(conn, first[0])
    standing.advance("1 s")
    assert ids(reserve(conn, 10)) == [under_both[1]]
    assert executing(conn) == 3


@pytest.mark.parametrize(("kind", "target"), [kind for kind in KINDS if kind[0] != "key"])
def test_at_most_n_start_in_any_stretch_of_the_period(
    conn: psycopg.Connection, standing: Clock, kind: str, target: str
) -> None:
    limit(conn, kind, target, rate=2, per="10 s")
    fill(conn, 7)
    start = standing.now()
    starts: list[timedelta] = []
    for _ in range(45):
        rows = reserve(conn, 10)
        complete(conn, *rows)
        starts += [standing.now() - start] * len(rows)
        standing.advance("1 s")
    assert len(starts) == 7
    for earlier, later in zip(starts, starts[2:], strict=False):
        assert later - earlier >= timedelta(seconds=10)
    assert starts[-1] <= timedelta(seconds=36)


def test_a_rate_gives_what_it_promises_also_over_short_times(conn: psycopg.Connection, standing: Clock) -> None:
    limit(conn, "task", "t", rate=1, per="100 ms")
    enqueue_many(conn, 40)
    count = 0
    for _ in range(50):
        count += len(reserve(conn, 10))
        standing.advance("50 ms")
    # 2.5 seconds.
    assert 20 <= count <= 26


@pytest.mark.parametrize("key", [None, "k"])
def test_starts_are_counted_by_the_time_at_which_jobs_say_that_they_were_reserved(
    conn: psycopg.Connection, key: str | None
) -> None:
    # Of the real clock: a later one of the two would let one start too many into an interval.
    limit(conn, "task", "t", rate=1, per="10 s")
    enqueue(conn, "t", key=key)
    assert len(reserve(conn, 10)) == 1
    assert value(conn, "select j.reserved_at = s.at from pgqueue.jobs j cross join pgqueue.limit_starts s") is True


@pytest.mark.parametrize(("kind", "target"), [("queue", "q"), ("task", "t"), ("limit_key", "l")])
def test_an_idle_worker_gets_the_time_of_the_next_free_start(
    conn: psycopg.Connection, standing: Clock, kind: str, target: str
) -> None:
    limit(conn, kind, target, rate=1, per="10 s")
    fill(conn, 2)
    start = standing.now()
    assert len(reserve(conn, 10)) == 1
    standing.advance("1 s")
    assert reserve(conn, 10) == []
    [registration] = table(conn, "idle", "w", ["q"])
    assert registration.next_due == start + timedelta(seconds=10)
    standing.advance("9 s")
    assert len(reserve(conn, 10)) == 1


@pytest.mark.parametrize(("kind", "target"), [("queue", "q"), ("task", "t"), ("limit_key", "l")])
def test_a_rate_survives_a_clock_that_steps_back(
    conn: psycopg.Connection, standing: Clock, kind: str, target: str
) -> None:
    maintain(conn)
    limit(conn, kind, target, rate=2, per="10 s")
    fill(conn, 6)
    assert len(reserve(conn, 10)) == 2
    assert reserve(conn, 10) == []
    standing.advance("-1 hour")
    maintain(conn)
    got = 0
    for _ in range(30):
        got += len(reserve(conn, 10))
        standing.advance("1 s")
        maintain(conn)
    assert 3 <= got <= 4


def test_a_limit_key_is_decided_on_only_while_one_has_a_limit_or_is_paused(conn: psycopg.Connection) -> None:
    find = (
        "select candidates from pgqueue._find_due('w', null, 'weighted', null, 10, pgqueue._clock(), null, false, null)"
    )
    enqueue_many(conn, 3, limit_key="tenant:5")
    call(conn, "set_limit", "task", "other", max_executing=1)
    call(conn, "pause", "task", "other")
    assert value(conn, find) is None
    call(conn, "set_limit", "limit_key", "tenant:*", max_executing=1)
    assert value(conn, find) is not None
    call(conn, "drop_limit", "limit_key", "tenant:*")
    assert value(conn, find) is None
    call(conn, "pause", "limit_key", "tenant:5")
    assert value(conn, find) is not None


def test_other_lanes_and_plain_jobs_pass_a_limit_without_capacity(conn: psycopg.Connection) -> None:
    limit(conn, "task", "t", at_most=1)
    enqueue_many(conn, 3000)
    plain = enqueue_many(conn, 5, "other")
    got: list[int] = []
    calls = 0
    while not set(plain) <= set(got) and calls < 60:
        got += ids(reserve(conn, 10))
        calls += 1
    assert set(plain) <= set(got)
    assert executing(conn) == 6


def test_a_blocked_job_may_be_cancelled_and_deleted(conn: psycopg.Connection) -> None:
    limit(conn, "task", "t", at_most=1)
    job_ids = enqueue_many(conn, 4)
    [held] = reserve(conn, 10)
    assert call(conn, "cancel", job_ids[1]) == "cancelled"
    assert call(conn, "delete", job_ids[2]) is True
    complete(conn, held)
    assert ids(reserve(conn, 10)) == job_ids[3:]


@pytest.mark.covers("L1")
def test_a_job_of_a_key_that_a_limit_stops_keeps_its_place(conn: psycopg.Connection, standing: Clock) -> None:
    limit(conn, "limit_key", "l", at_most=1)
    running = enqueue(conn, limit_key="l")
    first = enqueue(conn, key="k", limit_key="l")
    second = enqueue(conn, key="k")
    [held] = reserve(conn, 10)
    assert held.id == running
    assert {state(conn, first), state(conn, second)} == {"blocked"}
    complete(conn, held)
    [row] = reserve(conn, 10)
    assert row.id == first
    complete(conn, row)
    assert ids(reserve(conn, 10)) == [second]
    maintain(conn)
    assert value(conn, "select unblocked from pgqueue.maintenance_runs order by n desc limit 1") == 0


@pytest.mark.covers("L6")
@pytest.mark.parametrize("kind", ["queue", "task"])
@pytest.mark.parametrize(("at_most", "rate"), [(2, None), (None, 2), (4, None), (None, 4)])
def test_each_key_of_a_call_counts_under_a_limit(
    conn: psycopg.Connection, standing: Clock, kind: str, at_most: int | None, rate: int | None
) -> None:
    call(conn, "declare_task", "acc", accumulate=True, batch_size=3)
    limit(conn, kind, "q" if kind == "queue" else "acc", at_most, rate, "1 min" if rate else None)
    for n in range(16):
        enqueue(conn, "acc", {"n": n}, queue="q", key=f"k{n // 2}")
    most = at_most or rate
    rows = reserve(conn, 10)
    assert len({row.key for row in rows}) == most
    assert len(rows) == 2 * (most or 0)
    # Calls are as large as they were.
    assert len({row.leader for row in rows}) == (1 if most == 2 else 2)
    assert value(conn, "select sum(started) from pgqueue.limit_starts") == rate
    assert reserve(conn, 10) == []
    if at_most:
        complete(conn, rows[0])
        assert len({row.key for row in reserve(conn, 10)}) == 1


@pytest.mark.covers("L6")
def test_a_claim_reads_those_limits_on_keys_with_which_its_keys_begin(conn: psycopg.Connection) -> None:
    def read() -> int:
        flush_statistics(conn)
        rows: int = value(
            conn,
            "select t.seq_tup_read + (select sum(i.idx_tup_read) from pg_stat_user_indexes i where i.relid = t.relid)"
            " from pg_stat_user_tables t where t.relname = 'limits'",
        )
        return rows

    conn.execute(
        "insert into pgqueue.limits (kind, target, max_executing) select 'key', 'of ' || n, 1"
        " from generate_series(1000, 5999) n"
    )
    limit(conn, "key", "é€", 2)
    limit(conn, "key", "é", 3)
    keys = [
        "é€1",
        "é€2",
        "é€3",
        "é4",
        "é5",
        "e",
        "of 1500/a",
        "of 1500/b",
        "of 150",
        *(f"other {n}" for n in range(20)),
    ]
    expected = [enqueue(conn, key=key) for key in keys]
    before = read()
    held = reserve(conn, 40)
    assert ids(held) == [job_id for n, job_id in enumerate(expected) if n not in (2, 4, 7)]
    complete(conn, *held)
    assert read() - before < 1000


def test_a_limit_on_a_queue_counts_jobs_and_keys_of_calls_together(conn: psycopg.Connection) -> None:
    call(conn, "declare_task", "acc", accumulate=True, batch_size=2)
    limit(conn, "queue", "q", at_most=5)
    first = enqueue(conn, queue="q", priority=5)
    for n in range(2):
        enqueue(conn, "acc", {"n": n}, queue="q", key=f"k{n}")
    plain = enqueue_many(conn, 5, queue="q")
    # A slot of the call is left, and other queues have jobs.
    other = enqueue(conn, queue="r")
    assert ids(reserve(conn, 10)) == [first, 2, 3, *plain[:2], other]
    assert reserve(conn, 10) == []
