"""Pauses and throttles of queues, tasks and limit_keys: what does not start, until when, and what comes back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import (
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

NOON = "2030-01-01 12:00+00"


@pytest.fixture
def clock(clock: Clock) -> Clock:
    clock.set(NOON)
    return clock


def reasons(conn: psycopg.Connection, job_id: int) -> tuple[str, str]:
    [found] = table(conn, "explain", job_id)
    return found.reason, found.detail


@pytest.mark.parametrize(
    ("kind", "target"), [("queue", "default"), ("task", "t"), ("limit_key", "acme:5"), ("limit_key", "acme:*")]
)
def test_what_is_paused_does_not_start_until_it_is_resumed(conn: psycopg.Connection, kind: str, target: str) -> None:
    held = enqueue_many(conn, 3, limit_key="acme:5")
    free = [enqueue(conn, "other", queue="q", limit_key="acm"), enqueue(conn, "other", queue="q")]
    assert call(conn, "pause", kind, target, reason="the provider is down") is True
    assert call(conn, "pause", kind, target) is False
    assert sorted(ids(reserve(conn, 10))) == free
    assert reserve(conn, 10) == []
    reason, detail = reasons(conn, held[0])
    assert reason == "paused"
    assert detail.startswith(f"{kind.replace('_', ' ')} {target} is paused since ")
    assert detail.endswith(": the provider is down")
    later = enqueue(conn, limit_key="acme:5")
    assert reserve(conn, 10) == []
    assert call(conn, "resume", kind, target) is True
    assert call(conn, "resume", kind, target) is False
    assert ids(reserve(conn, 10)) + ids(reserve(conn, 10)) == [*held, later]
    assert value(conn, "select count(*) from pgqueue.jobs where attempts <> 1") == 0


def test_a_paused_queue_changes_no_row_of_a_job(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 3)
    rows = "select array_agg((ctid, xmin)::text order by id) from pgqueue.jobs"
    before = value(conn, rows)
    call(conn, "pause", "queue", "default")
    assert reserve(conn, 10) == []
    assert value(conn, rows) == before


def test_a_pause_ends_by_itself_and_idle_wakes_the_worker_for_it(conn: psycopg.Connection, clock: Clock) -> None:
    for kind, target in (("task", "t"), ("queue", "q")):
        until = clock.now() + timedelta(seconds=40)
        job_id = enqueue(conn, target if kind == "task" else "x", queue=target if kind == "queue" else "default")
        assert call(conn, "pause", kind, target, until) is True
        assert reserve(conn) == []
        maintain(conn)
        [idle] = table(conn, "idle", "w")
        assert idle.next_due == until
        clock.advance("40 s -1 us")
        maintain(conn)
        assert reserve(conn) == []
        clock.advance("1 us")
        assert ids(reserve(conn)) == [job_id]


def test_the_longest_of_several_pauses_counts_and_each_source_ends_its_own(
    conn: psycopg.Connection, clock: Clock
) -> None:
    job_id = enqueue(conn, limit_key="a")
    call(conn, "throttle", "task", "t", "30 s", "429")
    call(conn, "throttle", "task", "t", "10 s", "429")
    assert call(conn, "throttle", "task", "t", "0") is False
    call(conn, "throttle", "limit_key", "a", "20 s")
    assert reserve(conn) == []
    assert reasons(conn, job_id)[0] == "throttled"
    call(conn, "pause", "task", "t", clock.now() + timedelta(seconds=50), "by hand")
    assert "by hand" in reasons(conn, job_id)[1]
    clock.advance("31 s")
    maintain(conn)
    assert reserve(conn) == []
    assert call(conn, "resume", "task", "t", "throttle") is False
    assert call(conn, "resume", "task", "t") is True
    assert ids(reserve(conn)) == [job_id]


def test_a_throttle_is_cut_at_the_setting(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "throttle", "task", "t", "2 days")
    assert value(conn, "select until from pgqueue.pauses") == clock.now() + timedelta(hours=1)
    conn.execute("update pgqueue.settings set throttle_most = '3 hours'")
    call(conn, "throttle", "task", "t", "2 days")
    assert value(conn, "select max(until) from pgqueue.pauses") == clock.now() + timedelta(hours=3)


def test_jobs_of_a_pause_come_back_behind_what_waits_as_many_as_a_claim_asks_for(conn: psycopg.Connection) -> None:
    old = enqueue_many(conn, 20)
    call(conn, "pause", "task", "t")
    while value(conn, "select count(*) from pgqueue.jobs where state = 'waiting'"):
        assert reserve(conn, 10) == []
    waiting = enqueue_many(conn, 2, "other")
    call(conn, "resume", "task", "t")
    assert ids(reserve(conn, 2)) == waiting
    assert ids(reserve(conn, 5)) == old[:5]
    assert value(conn, "select count(*) from pgqueue.jobs where state = 'blocked'") == 15
    assert value(conn, "select count(*) from pgqueue.jobs where resumed") == 0
    while value(conn, "select count(*) from pgqueue.jobs where state = 'blocked'"):
        maintain(conn)
    new = enqueue(conn, "other")
    assert ids(reserve(conn, 20)) == [*old[5:], new]


def test_limits_keep_their_values_and_a_pause_of_a_limit_key_is_not_its_limit(conn: psycopg.Connection) -> None:
    call(conn, "set_limit", "limit_key", "a", max_executing=1)
    call(conn, "set_limit", "task", "t", max_executing=5)
    first, second, third = enqueue_many(conn, 3, limit_key="a")
    assert ids(reserve(conn, 5)) == [first]
    call(conn, "pause", "limit_key", "a")

    assert call(conn, "complete", first, value(conn, "select reservation from pgqueue.jobs where id = %s", first))
    maintain(conn)
    assert reserve(conn, 5) == []
    assert [(row.kind, row.max_executing) for row in limits(conn)] == [("limit_key", 1), ("task", 5)]
    call(conn, "resume", "limit_key", "a")
    maintain(conn)
    started = ids(reserve(conn, 5)) + ids(reserve(conn, 5))
    assert started == [second]
    assert job(conn, third).blocked_on == "limit_key:a"


def limits(conn: psycopg.Connection) -> list[Any]:
    with conn.cursor(row_factory=psycopg.rows.namedtuple_row) as cursor:
        return cursor.execute("select kind, max_executing from pgqueue.limits order by kind").fetchall()


def test_a_job_behind_a_paused_one_of_its_key_waits_with_it(conn: psycopg.Connection) -> None:
    first, second = enqueue(conn, "t", key="k"), enqueue(conn, "other", key="k")
    call(conn, "pause", "task", "t")
    assert reserve(conn, 5) == []
    assert reserve(conn, 5) == []
    call(conn, "resume", "task", "t")
    assert ids(reserve(conn, 5)) == [first]
    assert call(conn, "complete", first, value(conn, "select reservation from pgqueue.jobs where id = %s", first))
    assert ids(reserve(conn, 5)) == [second]


def test_paused_of_names_the_claimed_jobs_that_would_not_start_now(conn: psycopg.Connection) -> None:
    a, b, c, d = (
        enqueue(conn, "a"),
        enqueue(conn, "b", limit_key="x:1"),
        enqueue(conn, "c", queue="q"),
        enqueue(conn, "d"),
    )
    assert len(reserve(conn, 10)) == 4
    assert column(conn, "paused_of", [a, b, c, d]) == []
    call(conn, "throttle", "task", "a", "1 min")
    call(conn, "pause", "limit_key", "x:*")
    call(conn, "pause_queue", "q")
    assert column(conn, "paused_of", [a, b, c, d, 0]) == [a, b, c]


@pytest.mark.parametrize(
    ("kind", "target"),
    [("queue", "default"), ("task", "t"), ("key", "k"), ("limit_key", "a:1"), ("limit_key", "a:*")],
)
def test_paused_of_names_what_was_claimed_before_a_limit_of_it_was_set_or_changed(
    conn: psycopg.Connection, clock: Clock, kind: str, target: str
) -> None:
    mine = enqueue(conn, key="k1", limit_key="a:1")
    enqueue(conn, "u", queue="other", key="l1", limit_key="b:1")
    both = ids(reserve(conn, 10, lease="1 hour"))
    clock.advance("1 s")
    call(conn, "set_limit", kind, target, rate=5, per="1 s")
    assert column(conn, "paused_of", both) == [mine]
    column(conn, "release", [mine], [value(conn, "select reservation from pgqueue.jobs where id = %s", mine)])
    clock.advance("1 s")
    assert ids(reserve(conn, 10, lease="1 hour")) == [mine]
    # It was claimed under it.
    assert column(conn, "paused_of", both) == []
    clock.advance("1 s")
    assert call(conn, "set_limit", kind, target, rate=5) is False
    assert column(conn, "paused_of", both) == []
    call(conn, "set_limit", kind, target, rate=4)
    assert column(conn, "paused_of", both) == [mine]


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (["key", "k"], "kind"),
        ([None, "k"], "kind"),
        (["queue", ""], "target"),
        (["task", "x" * 129], "target"),
        (["limit_key", "x" * 513], "target"),
        (["task", "t", "2000-01-01 00:00+00"], "until"),
    ],
)
def test_a_wrong_pause_is_refused(conn: psycopg.Connection, args: list[Any], found: str) -> None:
    with pytest.raises(psycopg.Error, match=found) as refused:
        call(conn, "pause", *args)
    assert refused.value.sqlstate == "22023"
    assert refused.value.diag.message_hint


def test_maintenance_keeps_one_row_of_each_source(conn: psycopg.Connection, clock: Clock) -> None:
    for seconds in (10, 20, 30):
        call(conn, "throttle", "task", "t", f"{seconds} s")
    call(conn, "pause", "task", "t")
    maintain(conn)
    assert column(conn, "_standing_pauses", clock.now()) == ["task"]
    rows = "select array_agg(source order by source) from pgqueue.pauses"
    assert value(conn, rows) == ["operator", "throttle"]
    clock.advance("3 min")
    maintain(conn)
    assert value(conn, rows) == ["operator"]


# What a handler asks for


def test_a_throttled_job_goes_back_without_an_attempt_and_nothing_of_its_limit_key_starts(
    conn: psycopg.Connection, clock: Clock
) -> None:
    first, second = enqueue_many(conn, 2, limit_key="api")
    other = enqueue(conn, limit_key="another")
    held = reserve_one(conn)
    assert call(conn, "throttled", held.id, held.reservation, "30 s", reason="429") == "throttled"
    assert call(conn, "throttled", held.id, held.reservation, "30 s") is None
    assert (job(conn, first).state, job(conn, first).attempts) == ("waiting", 0)
    assert ids(reserve(conn, 10)) == [other]
    assert (
        value(conn, "select (kind, target, source, reason, by)::text from pgqueue.pauses")
        == "(limit_key,api,throttle,429,w)"
    )
    clock.advance("30 s")
    assert sorted(ids(reserve(conn, 10)) + ids(reserve(conn, 10))) == [first, second]


def test_a_job_without_a_limit_key_throttles_its_task_and_one_that_has_it_may(conn: psycopg.Connection) -> None:
    for options in ({}, {"limit_key": "a"}):
        enqueue(conn, **options)
        held = reserve_one(conn)
        assert call(conn, "throttled", held.id, held.reservation, "1 ms", kind="task" if options else None)
    assert value(conn, "select array_agg(distinct kind || ':' || target) from pgqueue.pauses") == ["task:t"]


def test_a_job_that_was_only_throttled_for_a_day_fails_the_next_time(conn: psycopg.Connection, clock: Clock) -> None:
    job_id = enqueue(conn, max_attempts=2)
    for expected in ("failed", "dead"):
        for hours in range(25):
            held = reserve_one(conn)
            assert (held.attempt, hours) == (1 if expected == "failed" else 2, hours)
            assert call(conn, "throttled", held.id, held.reservation, "1 hour") == "throttled"
            clock.advance("1 hour")
        clock.advance("1 s")
        held = reserve_one(conn)
        assert call(conn, "throttled", held.id, held.reservation, "1 hour", reason="429") == expected
        clock.advance("1 hour")
    assert job(conn, job_id).errors[-1]["class"] == "Throttled"


def test_a_failure_begins_the_day_of_being_throttled_anew(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue(conn)
    held = reserve_one(conn)
    assert call(conn, "throttled", held.id, held.reservation, "1 hour") == "throttled"
    clock.advance("1 hour")
    held = reserve_one(conn)
    assert call(conn, "fail", held.id, held.reservation) == "failed"
    clock.advance("24 hours")
    held = reserve_one(conn)
    assert call(conn, "throttled", held.id, held.reservation, "1 hour") == "throttled"


@pytest.mark.parametrize("other", ["snooze", "suspend", "lapse"])
def test_an_attempt_that_goes_back_for_another_reason_begins_the_day_of_being_throttled_anew(
    conn: psycopg.Connection, clock: Clock, other: str
) -> None:
    enqueue(conn, max_attempts=1)
    held = reserve_one(conn)
    assert call(conn, "throttled", held.id, held.reservation, "1 hour") == "throttled"
    clock.advance("1 hour")
    held = reserve_one(conn)
    if other == "snooze":
        assert call(conn, "snooze", held.id, held.reservation, "25 hours") is True
    elif other == "suspend":
        assert call(conn, "suspend", held.id, held.reservation, until=clock.now() + timedelta(hours=25)) == "suspended"
    clock.advance("25 hours")
    if other == "lapse":
        maintain(conn)
        clock.advance("1 min")
        maintain(conn)
    held = reserve_one(conn)
    assert call(conn, "throttled", held.id, held.reservation, "1 hour") == "throttled"


def test_a_job_that_is_given_back_unstarted_was_only_throttled(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue(conn, max_attempts=1)
    held = reserve_one(conn)
    assert call(conn, "throttled", held.id, held.reservation, "1 hour") == "throttled"
    clock.advance("25 hours")
    held = reserve_one(conn)
    assert column(conn, "release", [held.id], [held.reservation]) == []
    held = reserve_one(conn)
    assert call(conn, "throttled", held.id, held.reservation, "1 hour") == "dead"


@pytest.mark.parametrize("source", ["operator", "throttle"])
def test_a_pause_that_is_extended_stands_since_its_beginning_also_when_its_rows_are_one(
    conn: psycopg.Connection, clock: Clock, source: str
) -> None:
    conn.execute("update pgqueue.settings set throttle_most = '2 days'")
    since = clock.now()
    for hours in (21, 41):
        if source == "operator":
            assert call(conn, "pause", "task", "t", since + timedelta(hours=hours)) is True
        else:
            assert call(conn, "throttle", "task", "t", since + timedelta(hours=hours) - clock.now()) is True
        clock.advance("20 hours")
        maintain(conn)
    assert value(conn, "select count(*) from pgqueue.pauses") == 1
    assert value(conn, "select since from pgqueue._standing_pauses(pgqueue._clock())") == since
    clock.advance("2 hours")
    assert call(conn, "pause", "task", "t") is True
    assert value(conn, "select since from pgqueue._standing_pauses(pgqueue._clock())") == clock.now()


def test_release_of_a_paused_job_does_not_start_it_elsewhere(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 2)
    rows = reserve(conn, 2)
    call(conn, "pause", "task", "t")
    assert column(conn, "release", *pairs(rows)) == []
    assert reserve(conn, 2) == []
    call(conn, "resume", "task", "t")
    assert len(reserve(conn, 2)) == 2
