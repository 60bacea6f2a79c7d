"""Jobs of one queue and key run one at a time and in order, whatever becomes of the one ahead."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

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
    state,
    table,
    value,
)


@pytest.fixture
def standing(clock: Clock) -> Clock:
    clock.set("2030-01-01 12:00+00")
    return clock


def complete(conn: psycopg.Connection, *rows: Row) -> None:
    assert column(conn, "complete_many", *pairs(list(rows))) == []


def chain(conn: psycopg.Connection, count: int = 3, **options: object) -> tuple[Row, list[int]]:
    """Jobs of one key: the first reserved, the others blocked behind it."""
    job_ids = enqueue_many(conn, count, key="k", **options)
    held = reserve_one(conn, lease="1 hour")
    assert held.id == job_ids[0]
    assert reserve(conn, 10) == []
    assert {state(conn, job_id) for job_id in job_ids[1:]} == {"blocked"}
    return held, job_ids[1:]


def left_behind(conn: psycopg.Connection) -> int:
    maintain(conn)
    found: int = value(conn, "select unblocked from pgqueue.maintenance_runs order by n desc limit 1")
    return found


@pytest.mark.covers("L1")
def test_jobs_of_a_key_run_one_at_a_time_in_the_order_of_their_ids(conn: psycopg.Connection) -> None:
    job_ids = enqueue_many(conn, 5, key="k")
    for job_id in job_ids:
        rows = reserve(conn, 10)
        assert ids(rows) == [job_id]
        assert rows[0].key == "k"
        assert reserve(conn, 10, "other") == []
        complete(conn, *rows)
    assert reserve(conn, 10) == []
    assert left_behind(conn) == 0


@pytest.mark.covers("L1")
def test_keys_and_plain_jobs_run_beside_each_other(conn: psycopg.Connection) -> None:
    a = enqueue_many(conn, 2, key="a")
    b = enqueue_many(conn, 2, key="b")
    plain = enqueue_many(conn, 2)
    assert ids(reserve(conn, 10)) == [a[0], b[0], *plain]


@pytest.mark.covers("L1")
def test_one_key_in_two_queues_is_two_keys(conn: psycopg.Connection) -> None:
    here, there = enqueue(conn, key="k", queue="a"), enqueue(conn, key="k", queue="b")
    assert sorted(ids(reserve(conn, 10))) == [here, there]


@pytest.mark.covers("L1")
def test_the_order_of_a_key_stands_above_priority(conn: psycopg.Connection) -> None:
    low, high = enqueue(conn, key="k", priority=-5), enqueue(conn, key="k", priority=5)
    other = enqueue(conn, key="other", priority=4)
    rows = reserve(conn, 10)
    assert ids(rows) == [other, low]
    complete(conn, *rows)
    assert ids(reserve(conn, 10)) == [high]


@pytest.mark.covers("L2")
def test_a_job_that_comes_while_another_of_its_key_runs_runs_afterwards(conn: psycopg.Connection) -> None:
    enqueue(conn, key="k")
    held = reserve_one(conn)
    later = enqueue(conn, key="k")
    assert reserve(conn) == []
    complete(conn, held)
    assert ids(reserve(conn)) == [later]


@pytest.mark.covers("L1")
def test_a_job_never_reserved_holds_its_place_only_while_it_is_due(conn: psycopg.Connection, standing: Clock) -> None:
    later, now = enqueue(conn, key="k", delay="1 min"), enqueue(conn, key="k")
    held = reserve_one(conn, lease="1 hour")
    assert held.id == now
    standing.advance("1 min")
    third = enqueue(conn, key="k")
    complete(conn, held)
    assert ids(reserve(conn, 10)) == [later]
    assert state(conn, third) == "blocked"


AHEAD: dict[str, Callable[[psycopg.Connection, Row], object]] = {
    "snoozed": lambda conn, row: call(conn, "snooze", row.id, row.reservation, "1 hour"),
    "failed": lambda conn, row: call(conn, "fail", row.id, row.reservation, retry_in="1 hour"),
    "released": lambda conn, row: column(conn, "release", *pairs([row]), "1 hour"),
}


@pytest.mark.covers("L1")
@pytest.mark.parametrize("how", AHEAD)
def test_a_job_that_was_once_reserved_holds_its_place_until_it_ends(
    conn: psycopg.Connection, standing: Clock, how: str
) -> None:
    held, behind = chain(conn)
    AHEAD[how](conn, held)
    fresh = enqueue(conn, key="k")
    assert reserve(conn, 10) == []
    assert left_behind(conn) == 0
    standing.advance("1 hour")
    again = reserve_one(conn)
    assert again.id == held.id
    complete(conn, again)
    for job_id in [*behind, fresh]:
        row = reserve_one(conn)
        assert row.id == job_id
        complete(conn, row)


@pytest.mark.covers("L1")
@pytest.mark.parametrize("how", AHEAD)
def test_an_earlier_job_that_came_due_meanwhile_goes_first(conn: psycopg.Connection, standing: Clock, how: str) -> None:
    earlier = enqueue(conn, key="k", delay="1 min")
    enqueue(conn, key="k")
    held = reserve_one(conn, lease="1 hour")
    standing.advance("1 min")
    assert reserve(conn) == []
    assert state(conn, earlier) == "blocked"
    AHEAD[how](conn, held)
    assert ids(reserve(conn, 10)) == [earlier]
    assert left_behind(conn) == 0


@pytest.mark.covers("L1", "L13")
def test_a_lapsed_lease_gives_the_job_back_ahead_of_later_ones(conn: psycopg.Connection, standing: Clock) -> None:
    maintain(conn)
    job_ids = enqueue_many(conn, 3, key="k")
    [held] = reserve(conn, 10, lease="6 s")
    for _ in range(3):
        standing.advance("3 s")
        maintain(conn)
    [again] = reserve(conn, 10)
    assert (again.id, again.attempt) == (job_ids[0], 1)
    assert call(conn, "complete", held.id, held.reservation) is False
    complete(conn, again)
    assert ids(reserve(conn, 10)) == job_ids[1:2]
    assert left_behind(conn) == 0


ENDS: dict[str, Callable[[psycopg.Connection, Row], object]] = {
    "dead": lambda conn, row: call(conn, "fail", row.id, row.reservation, retry=False),
    "cancelled by its handler": lambda conn, row: call(conn, "fail", row.id, row.reservation, cancel=True),
    "cancelled on request": lambda conn, row: (
        call(conn, "cancel", row.id),
        call(conn, "fail", row.id, row.reservation),
    ),
    "cancelled and released": lambda conn, row: (call(conn, "cancel", row.id), column(conn, "release", *pairs([row]))),
    "failed and cancelled": lambda conn, row: (
        call(conn, "fail", row.id, row.reservation),
        call(conn, "cancel", row.id),
    ),
    "snoozed and deleted": lambda conn, row: (
        call(conn, "snooze", row.id, row.reservation, "1 hour"),
        call(conn, "delete", row.id),
    ),
    "kept in no history": lambda conn, row: (
        conn.execute("update pgqueue.jobs set retention = '0'"),
        call(conn, "complete", row.id, row.reservation),
    ),
    "given back by a worker that has forgotten it, and cancelled": lambda conn, row: (
        table(conn, "release_unheld", "w"),
        call(conn, "cancel", row.id),
    ),
}


@pytest.mark.covers("L1", "A6")
@pytest.mark.parametrize("end", ENDS)
def test_however_a_job_ends_the_next_of_its_key_is_let_go(conn: psycopg.Connection, end: str) -> None:
    held, [following, last] = chain(conn)
    ENDS[end](conn, held)
    [row] = reserve(conn, 10)
    assert row.id == following
    complete(conn, row)
    assert ids(reserve(conn, 10)) == [last]
    assert left_behind(conn) == 0


@pytest.mark.covers("A6")
@pytest.mark.parametrize("function", ["cancel", "delete"])
def test_blocked_jobs_may_be_removed_and_the_rest_keeps_its_order(conn: psycopg.Connection, function: str) -> None:
    held, behind = chain(conn, 6)
    for job_id in (behind[0], behind[2]):
        call(conn, function, job_id)
    assert reserve(conn, 10) == []  # released too early, and blocked again
    complete(conn, held)
    for job_id in (behind[1], behind[3], behind[4]):
        row = reserve_one(conn)
        assert row.id == job_id
        complete(conn, row)
    assert left_behind(conn) == 0


def test_a_job_ahead_that_is_edited_into_the_future_gives_its_place_up(
    conn: psycopg.Connection, standing: Clock
) -> None:
    # Blocked behind one that is due and has not been reserved: that lane is the lower one.
    first = enqueue(conn, key="k", priority=0, queue="q")
    second = enqueue(conn, key="k", priority=9, queue="q")
    conn.execute("insert into pgqueue.limits (kind, target, max_executing) values ('task', 't', 0)")
    assert reserve(conn, 10) == []
    conn.execute("delete from pgqueue.limits")
    assert {state(conn, first), state(conn, second)} == {"blocked"}
    conn.execute(
        "update pgqueue.jobs set state = 'waiting', blocked_on = null, run_at = pgqueue._clock() + interval '1 hour',"
        " ready_at = pgqueue._clock() + interval '1 hour' where id = %s",
        [first],
    )
    conn.execute("select pgqueue._release_next('{q}', '{k}', null)")
    assert ids(reserve(conn, 10)) == [second]
    assert left_behind(conn) == 0


def test_a_job_that_expires_releases_the_job_behind_it(conn: psycopg.Connection, standing: Clock) -> None:
    held, [following] = chain(conn, 2)
    expiring = enqueue(conn, key="k", expires_in="1 min")
    last = enqueue(conn, key="k")
    assert reserve(conn, 10) == []
    standing.advance("2 min")
    maintain(conn)
    assert state(conn, expiring) == "cancelled"
    complete(conn, held)
    [row] = reserve(conn, 10)
    assert row.id == following
    complete(conn, row)
    assert ids(reserve(conn, 10)) == [last]


def test_an_expired_job_in_front_of_its_key_blocks_no_other(conn: psycopg.Connection, standing: Clock) -> None:
    expiring = enqueue(conn, key="k", expires_in="1 min")
    following = enqueue(conn, key="k")
    standing.advance("2 min")
    got = reserve(conn, 10) or reserve(conn, 10)
    assert ids(got) == [following]
    assert state(conn, expiring) == "cancelled"


@pytest.mark.covers("L9")
def test_a_dead_job_that_is_retried_takes_its_old_place(conn: psycopg.Connection) -> None:
    held, [second, third] = chain(conn)
    call(conn, "fail", held.id, held.reservation, retry=False)
    running = reserve_one(conn)
    assert running.id == second
    assert call(conn, "retry", held.id) is True
    assert reserve(conn, 10) == []
    complete(conn, running)
    [again] = reserve(conn, 10)
    assert again.id == held.id
    complete(conn, again)
    assert ids(reserve(conn, 10)) == [third]
    assert left_behind(conn) == 0


@pytest.mark.covers("L9")
def test_a_dead_job_retried_while_a_later_one_runs_is_not_left_behind_when_that_fails(
    conn: psycopg.Connection, standing: Clock
) -> None:
    held, [second] = chain(conn, 2)
    call(conn, "fail", held.id, held.reservation, retry=False)
    running = reserve_one(conn)
    call(conn, "retry", held.id)
    assert reserve(conn, 10) == []
    call(conn, "fail", second, running.reservation, retry_in="1 hour")
    assert ids(reserve(conn, 10)) == [held.id]
    assert left_behind(conn) == 0


@pytest.mark.covers("G10")
def test_a_job_with_a_key_is_retried_in_its_own_queue(conn: psycopg.Connection) -> None:
    call(conn, "declare_task", "t", retry_queue="slow")
    with_key, without = enqueue(conn, key="k"), enqueue(conn)
    for row in reserve(conn, 2):
        call(conn, "fail", row.id, row.reservation)
    assert (job(conn, with_key).queue, job(conn, without).queue) == ("default", "slow")
    with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
        enqueue(conn, key="k", retry_queue="slow")
    assert refused.value.diag.message_hint


def test_a_row_of_one_key_in_another_lane_is_not_read_twice(conn: psycopg.Connection) -> None:
    job_ids = [enqueue(conn, key="k", priority=priority) for priority in (3, 2, 1)]
    rows = reserve(conn, 10)
    assert ids(rows) == job_ids[:1]
    assert {state(conn, job_id) for job_id in job_ids[1:]} == {"blocked"}


# The net of maintain.


def test_maintain_releases_what_was_left_behind_and_counts_it(conn: psycopg.Connection) -> None:
    for key in ("a", "b", "c"):
        enqueue_many(conn, 3, key=key)
    assert len(reserve(conn, 10)) == 3
    assert left_behind(conn) == 0
    # Two of the jobs ahead vanish as no function of the queue would make them.
    conn.execute("delete from pgqueue.jobs where state = 'executing' and key in ('a', 'b')")
    assert reserve(conn, 10) == []
    assert left_behind(conn) == 2
    assert sorted(row.key for row in reserve(conn, 10)) == ["a", "b"]
    assert left_behind(conn) == 2


def test_the_net_goes_on_where_it_stopped(conn: psycopg.Connection) -> None:
    conn.execute(
        "select pgqueue.enqueue('t', key => 'k' || n) from generate_series(1, 1200) n, generate_series(1, 2) m"
    )
    # A claim goes on for 20 ms after its second round.
    claimed = 0
    while rows := reserve(conn, 2000):
        claimed += len(rows)
    assert claimed == 1200
    conn.execute("delete from pgqueue.jobs where state = 'executing'")
    found = [left_behind(conn)]
    assert found[0] == 500
    while found[-1] < 1200 and len(found) < 20:
        found.append(left_behind(conn))
    assert found[-1] == 1200


def test_a_deferred_job_is_not_taken_for_one_left_behind(conn: psycopg.Connection, standing: Clock) -> None:
    held, _ = chain(conn)
    call(conn, "snooze", held.id, held.reservation, "1 hour")
    assert [left_behind(conn) for _ in range(3)] == [0, 0, 0]
    assert reserve(conn, 10) == []
