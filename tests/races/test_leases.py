"""Leases: what lapses, what gets a grace period, and who may still do something."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, LiteralString

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
    stats,
    table,
    value,
)
from tests.databases import Database
from tests.sessions import Session

NOON = "2030-01-01 12:00+00"


@pytest.fixture
def clock(clock: Clock) -> Clock:
    clock.set(NOON)
    return clock


def watch(conn: psycopg.Connection, clock: Clock, seconds: int) -> None:
    """Let time pass, with a run of maintenance every second."""
    maintain(conn)
    for _ in range(seconds):
        clock.advance("1 s")
        maintain(conn)


@pytest.mark.covers("G9", "D2", "D3")
def test_a_worker_that_wakes_after_its_lease_was_taken_can_change_nothing(
    conn: psycopg.Connection, clock: Clock
) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    stopped = reserve_one(conn, "stopped")
    watch(conn, clock, 30)
    taken = reserve_one(conn, "other")
    assert (taken.id, taken.attempt) == (job_id, 1)

    old = stopped.reservation
    assert table(conn, "extend", [job_id], [old]) == []
    assert call(conn, "complete", job_id, old) is False
    assert column(conn, "complete_many", [job_id], [old]) == [job_id]
    assert call(conn, "fail", job_id, old) is None
    assert call(conn, "snooze", job_id, old, "1 s") is False
    assert column(conn, "release", [job_id], [old]) == [job_id]
    assert column(conn, "release_unheld", "stopped") == []
    found = job(conn, job_id)
    assert (found.state, found.reserved_by, found.reservation) == ("executing", "other", taken.reservation)
    assert call(conn, "complete", job_id, taken.reservation) is True


@pytest.mark.covers("D2")
def test_a_lease_that_lapsed_and_was_not_yet_taken_back_is_still_the_workers(
    conn: psycopg.Connection, clock: Clock
) -> None:
    enqueue_many(conn, 2)
    late, later = reserve(conn, 2)
    clock.advance("31 s")
    assert [row.job_id for row in table(conn, "extend", *pairs([late]))] == [late.id]
    assert call(conn, "complete", later.id, later.reservation) is True


@pytest.mark.covers("D3")
def test_with_maintenance_a_lapsed_lease_is_taken_back_at_once(conn: psycopg.Connection, clock: Clock) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    reserve_one(conn, lease="30 s")
    watch(conn, clock, 29)
    assert state(conn, job_id) == "executing"
    watch(conn, clock, 1)
    assert state(conn, job_id) == "waiting"
    assert stats(conn).maintenance["rescued"] == 1
    assert stats(conn).maintenance["grace_periods"] == 0


def test_after_a_gap_a_lapsed_lease_gets_one_grace_period_and_only_one(conn: psycopg.Connection, clock: Clock) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    held = reserve_one(conn, lease="30 s")
    clock.advance("2 min")  # no maintenance
    first = maintain(conn)
    assert (first.rescued, first.prolonged) == (0, 1)
    assert job(conn, job_id).lease_expires_at == clock.now() + timedelta(seconds=30)
    watch(conn, clock, 29)
    assert state(conn, job_id) == "executing"

    # The same reservation, a second gap: it has had its grace period.
    clock.advance("2 min")
    second = maintain(conn)
    assert (second.rescued, second.prolonged) == (1, 0)
    assert state(conn, job_id) == "waiting"

    # A new reservation has a grace period of its own.
    again = reserve_one(conn, lease="30 s")
    assert again.reservation != held.reservation
    clock.advance("2 min")
    assert maintain(conn).prolonged == 1


def test_extending_does_not_earn_a_reservation_a_second_grace_period(conn: psycopg.Connection, clock: Clock) -> None:
    watch(conn, clock, 1)
    enqueue(conn)
    held = reserve_one(conn, lease="30 s")
    clock.advance("2 min")
    assert maintain(conn).prolonged == 1
    assert len(table(conn, "extend", *pairs([held]), "30 s")) == 1
    clock.advance("2 min")
    assert maintain(conn).rescued == 1


def test_a_lease_that_ran_in_the_gap_and_lapses_after_it_gets_a_grace_period_as_well(
    conn: psycopg.Connection, clock: Clock
) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    reserve_one(conn, lease="30 s")
    clock.advance("20 s")  # the gap: its worker could not extend at a third of the lease
    assert maintain(conn).prolonged == 0
    watch(conn, clock, 9)
    clock.advance("1 s")
    assert maintain(conn).prolonged == 1
    watch(conn, clock, 29)
    assert state(conn, job_id) == "executing"
    watch(conn, clock, 1)
    assert state(conn, job_id) == "waiting"


def test_a_lease_that_began_after_the_gap_gets_no_grace_period(conn: psycopg.Connection, clock: Clock) -> None:
    watch(conn, clock, 1)
    clock.advance("2 min")
    maintain(conn)
    clock.advance("1 s")
    job_id = enqueue(conn)
    reserve_one(conn, lease="10 s")
    watch(conn, clock, 10)
    assert state(conn, job_id) == "waiting"


def test_five_seconds_are_no_gap(conn: psycopg.Connection, clock: Clock) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    reserve_one(conn, lease="4 s")
    clock.advance("5 s")
    maintain(conn)
    assert state(conn, job_id) == "waiting"


def test_rare_callers_of_reserve_are_a_gap_and_each_lease_gets_one_grace_period(
    conn: psycopg.Connection, clock: Clock
) -> None:
    job_ids = enqueue_many(conn, 3)
    reserve(conn, 3, "killed", lease="30 s")
    clock.advance("10 min")
    assert reserve(conn, 3, "other") == []
    clock.advance("10 min")
    assert sorted(ids(reserve(conn, 3, "other"))) == job_ids


def test_an_open_completion_costs_its_worker_no_other_lease_and_stops_no_maintenance(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    watch(conn, clock, 1)
    enqueue_many(conn, 101)
    held = reserve(conn, 101, "w", lease="30 s")
    handlers_own, others = held[50], held[:50] + held[51:]
    handler = database.connect(autocommit=False)
    assert call(handler, "complete", handlers_own.id, handlers_own.reservation) is True
    conn.execute("set statement_timeout = '5s'")

    # Two lease lengths; the worker extends at a third, all of its leases in one batch.
    for _ in range(6):
        for _ in range(10):
            clock.advance("1 s")
            assert maintain(conn).ran is True
        extended = table(conn, "extend", *pairs(held), "30 s")
        assert sorted(row.job_id for row in extended) == ids(held)
    expected = dict.fromkeys(ids(others), clock.now() + timedelta(seconds=30))
    assert {row.job_id: row.lease_expires_at for row in extended if row.job_id in expected} == expected
    assert stats(conn).maintenance["rescued"] == 0
    assert stats(conn).maintenance["failures"] == {}
    assert reserve(conn, 10, "other") == []

    handler.commit()
    assert state(conn, handlers_own.id) == "succeeded"
    left = table(conn, "extend", *pairs(held), "30 s")
    assert sorted(row.job_id for row in left) == ids(others)
    assert column(conn, "complete_many", *pairs(others)) == []


def test_a_lease_whose_completion_is_rolled_back_late_comes_back_by_itself(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    held = reserve_one(conn, lease="3 s")
    handler = database.connect(autocommit=False)
    call(handler, "complete", job_id, held.reservation)
    watch(conn, clock, 10)
    assert state(conn, job_id) == "executing"
    handler.rollback()
    watch(conn, clock, 1)
    assert ids(reserve(conn, 1, "other")) == [job_id]


def test_a_share_lock_on_the_job_keeps_its_lease_while_the_transaction_lives(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    held = reserve_one(conn, lease="3 s")
    handler = database.connect(autocommit=False)
    handler.execute("select from pgqueue.jobs where id = %s for share", [job_id])
    watch(conn, clock, 10)
    assert [row.job_id for row in table(conn, "extend", *pairs([held]))] == [job_id]
    assert call(handler, "complete", job_id, held.reservation) is True
    handler.commit()
    assert state(conn, job_id) == "succeeded"


def test_release_gives_back_what_it_can_and_leaves_locked_rows(database: Database, conn: psycopg.Connection) -> None:
    enqueue_many(conn, 3)
    held = reserve(conn, 3)
    handler = database.connect(autocommit=False)
    call(handler, "complete", held[1].id, held[1].reservation)
    conn.execute("set statement_timeout = '5s'")
    assert column(conn, "release", *pairs(held)) == []
    assert column(conn, "release_unheld", "w") == []
    assert [state(conn, row.id) for row in held] == ["waiting", "executing", "waiting"]
    handler.commit()
    assert column(conn, "release", *pairs(held)) == ids(held)
    assert value(conn, "select count(*) from pgqueue.history") == 1


def pass_time(conn: psycopg.Connection, clock: Clock, seconds: int) -> None:
    """Let time pass, with as much maintenance as leaves no gap."""
    for _ in range(seconds // 5):
        clock.advance("5 s")
        maintain(conn)
    watch(conn, clock, seconds % 5)


# What another session may do to the row of an executing job, and keep open for longer than the lease.
LOCKS: dict[str, LiteralString] = {
    "cancel": "select pgqueue.cancel(%(id)s)",
    "cancel_many": "select pgqueue.cancel_many(job_ids => array[%(id)s::bigint])",
    "a claim that blocks the next job of its key": "select pgqueue.reserve('third', 1)",
    "progress": "select pgqueue.progress(%(id)s, %(reservation)s, 1)",
    "hold": "select pgqueue.hold(%(id)s, %(reservation)s)",
    "started": "select pgqueue.started(array[%(id)s::bigint], array[%(reservation)s::bigint])",
    "select for update": "select from pgqueue.jobs where id = %(id)s for update",
    "select for key share": "select from pgqueue.jobs where id = %(id)s for key share",
    "complete": "select pgqueue.complete(%(id)s, %(reservation)s)",
    "fail": "select pgqueue.fail(%(id)s, %(reservation)s)",
    "snooze": "select pgqueue.snooze(%(id)s, %(reservation)s, '1 s')",
    "release": "select pgqueue.release(array[%(id)s::bigint], array[%(reservation)s::bigint])",
}
# The first eight leave the job executing when they are committed.
ENDS = [
    *((how, "rollback", "maintain") for how in LOCKS),
    *((how, "commit", "reserve") for how in [*LOCKS][:8]),
    ("fail", "rollback", "reserve"),
]


@pytest.fixture
def other(database: Database) -> Session:
    return database.session()


def lock(session: Session, held: Row, how: str) -> None:
    session.run("begin")
    session.run(LOCKS[how], {"id": held.id, "reservation": held.reservation})


def extend_for(conn: psycopg.Connection, clock: Clock, held: list[Row], thirds: int) -> None:
    """Extend as a worker does, every third of a lease of 30 s; each time all are reported as held in full."""
    for _ in range(thirds):
        pass_time(conn, clock, 10)
        extended = {row.job_id: row.lease_expires_at for row in table(conn, "extend", *pairs(held), "30 s")}
        assert extended == dict.fromkeys(ids(held), clock.now() + timedelta(seconds=30))


@pytest.mark.covers("G9", "D2")
@pytest.mark.parametrize(("how", "end", "taker"), ENDS)
def test_a_job_reported_as_held_while_its_row_was_locked_stays_held_when_that_lock_ends(
    how: str, end: Literal["rollback", "commit"], taker: str, conn: psycopg.Connection, clock: Clock, other: Session
) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn, key="k")
    held = reserve_one(conn)
    enqueue(conn, key="k")
    lock(other, held, how)
    extend_for(conn, clock, [held], 4)
    other.run(end)

    if taker == "maintain":
        assert maintain(conn).rescued == 0
    assert reserve(conn, 1, "thief") == []
    pass_time(conn, clock, 29)
    assert reserve(conn, 1, "thief") == []
    assert (job(conn, job_id).state, job(conn, job_id).losses) == ("executing", 0)
    assert call(conn, "complete", job_id, held.reservation) is True


@pytest.mark.covers("D3")
@pytest.mark.parametrize("taker", ["maintain", "reserve"])
def test_a_promised_lease_ends_on_time_when_its_worker_has_died(
    taker: str, conn: psycopg.Connection, clock: Clock, other: Session
) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    held = reserve_one(conn)
    lock(other, held, "select for update")
    extend_for(conn, clock, [held], 4)
    other.run("rollback")
    if taker == "reserve":
        assert reserve(conn, 1, "next") == []
    pass_time(conn, clock, 29)
    assert reserve(conn, 1, "next") == []
    clock.advance("1 s")
    if taker == "maintain":
        assert maintain(conn).rescued == 1
    assert ids(reserve(conn, 1, "next")) == [job_id]


def test_a_lock_that_outlives_the_promise_gives_the_job_free_as_soon_as_it_ends(
    conn: psycopg.Connection, clock: Clock, other: Session
) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    held = reserve_one(conn)
    lock(other, held, "cancel")
    extend_for(conn, clock, [held], 3)
    pass_time(conn, clock, 60)
    assert state(conn, job_id) == "executing"
    other.run("rollback")
    assert maintain(conn).rescued == 1


@pytest.mark.covers("G9", "D2")
def test_extend_promises_nothing_for_a_job_that_an_open_claim_is_giving_away(
    conn: psycopg.Connection, clock: Clock, other: Session
) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    held = reserve_one(conn)
    watch(conn, clock, 29)
    clock.advance("1 s")
    other.run("begin")
    assert other.run("select id from pgqueue.reserve('thief')") == [(job_id,)]

    assert table(conn, "extend", *pairs([held])) == [(job_id, None, False)]
    assert value(conn, "select count(*) from pgqueue.lease_promises") == 0
    other.run("commit")
    assert table(conn, "extend", *pairs([held])) == []
    assert job(conn, job_id).reserved_by == "thief"


def test_a_lease_that_lapsed_while_its_row_was_locked_is_granted_nothing_and_taken_back(
    conn: psycopg.Connection, clock: Clock, other: Session
) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    held = reserve_one(conn)
    lock(other, held, "select for update")
    watch(conn, clock, 30)
    assert table(conn, "extend", *pairs([held])) == [(job_id, None, False)]
    other.run("rollback")
    assert maintain(conn).rescued == 1


def test_a_failure_after_a_rolled_back_transaction_of_its_handler_counts_each_time(
    conn: psycopg.Connection, clock: Clock, other: Session
) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    for attempt in (1, 2, 3):
        held = reserve_one(conn)
        assert held.attempt == attempt
        lock(other, held, "hold")
        extend_for(conn, clock, [held], 4)
        other.run("rollback")
        # Everything that could take it comes before its worker reports the failure.
        maintain(conn)
        assert reserve(conn, 1, "thief") == []
        assert call(conn, "fail", job_id, held.reservation, None, "1 s") == "failed"
        clock.advance("1 s")
    found = job(conn, job_id)
    assert (len(found.errors), found.losses) == (3, 0)


def test_a_promise_made_before_the_clock_stepped_back_holds_for_one_lease_and_no_longer(
    conn: psycopg.Connection, clock: Clock, other: Session
) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    held = reserve_one(conn)
    lock(other, held, "select for update")
    extend_for(conn, clock, [held], 3)
    clock.advance("-1 hour")
    maintain(conn)
    other.run("rollback")
    # It stands in the other time: cut to one length, and then what was promised, one more.
    watch(conn, clock, 29)
    assert state(conn, job_id) == "executing"
    watch(conn, clock, 31)
    assert state(conn, job_id) == "waiting"
    assert (
        value(conn, "select count(*) from pgqueue.lease_promises where until > pgqueue._clock() + interval '1 min'")
        == 0
    )


def test_extend_reports_no_more_than_a_lease_after_the_clock_stepped_back(
    conn: psycopg.Connection, clock: Clock, other: Session
) -> None:
    """Maintenance may be about to cut the lease whose row it has locked."""
    watch(conn, clock, 1)
    enqueue(conn)
    held = reserve_one(conn)
    lock(other, held, "select for update")
    clock.advance("-1 h")
    [extended] = table(conn, "extend", *pairs([held]), "30 s")
    assert extended.lease_expires_at == clock.now() + timedelta(seconds=30)
    other.run("rollback")
    watch(conn, clock, 29)
    assert state(conn, held.id) == "executing"


def test_a_promise_is_void_for_another_reservation(conn: psycopg.Connection, clock: Clock, other: Session) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    held = reserve_one(conn)
    lock(other, held, "select for update")
    watch(conn, clock, 10)
    table(conn, "extend", *pairs([held]), "1 hour")
    other.run("rollback")
    assert column(conn, "release", *pairs([held])) == []
    reserve_one(conn, "next", lease="5 s")
    watch(conn, clock, 5)
    assert state(conn, job_id) == "waiting"


def test_promises_do_not_pile_up(conn: psycopg.Connection, clock: Clock, other: Session) -> None:
    watch(conn, clock, 1)
    enqueue(conn)
    held = reserve_one(conn)
    lock(other, held, "cancel")
    for _ in range(15):
        pass_time(conn, clock, 10)
        table(conn, "extend", *pairs([held]))
    # Those of the last lease and the last minute.
    assert value(conn, "select count(*) from pgqueue.lease_promises") <= 10
    other.run("rollback")
    pass_time(conn, clock, 120)
    assert value(conn, "select count(*) from pgqueue.lease_promises") == 0


def test_the_lease_head_stays_behind_a_lease_whose_row_is_locked(
    conn: psycopg.Connection, clock: Clock, other: Session
) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    held = reserve_one(conn)
    stands_at = job(conn, job_id).lease_expires_at
    lock(other, held, "select for update")
    for _ in range(6):
        # Others come and go, so that the head has something to pass.
        call(conn, "complete_many", *pairs([reserve_one(conn) for _ in enqueue_many(conn, 5)]))
        extend_for(conn, clock, [held], 1)
    assert value(conn, "select pgqueue._lease_head()") == stands_at
    other.run("rollback")
    watch(conn, clock, 29)
    # Nothing of it is below the head any more.
    assert value(conn, "select pgqueue._lease_head()") > stands_at
    assert stats(conn).maintenance["hidden"] == 0
    watch(conn, clock, 1)
    assert state(conn, job_id) == "waiting"


@pytest.mark.parametrize("which", ["leader", "member"])
def test_a_batch_of_which_one_row_is_locked_stays_held_whole(
    which: str, conn: psycopg.Connection, clock: Clock, other: Session
) -> None:
    call(conn, "declare_task", "acc", accumulate=True)
    watch(conn, clock, 1)
    for n in range(3):
        enqueue(conn, "acc", {"n": n}, key="k")
    rows = reserve(conn, 1)
    assert len(rows) == 3
    lock(other, rows[0 if which == "leader" else 2], "select for update")
    extend_for(conn, clock, rows, 4)
    other.run("rollback")
    maintain(conn)
    assert reserve(conn, 1, "thief") == []
    watch(conn, clock, 28)
    assert {state(conn, row.id) for row in rows} == {"executing"}
    watch(conn, clock, 2)
    assert {state(conn, row.id) for row in rows} == {"waiting"}


def test_a_member_of_a_batch_is_reported_as_held_for_as_long_as_its_leader(
    conn: psycopg.Connection, clock: Clock
) -> None:
    call(conn, "declare_task", "acc", accumulate=True)
    for n in range(2):
        enqueue(conn, "acc", {"n": n}, key="k")
    leader, member = reserve(conn, 1)
    clock.advance("10 s")
    # Extended without its leader, whose lease goes for all.
    assert table(conn, "extend", *pairs([member])) == [(member.id, leader.lease_expires_at, False)]


@pytest.mark.parametrize("how", ["select for update", "cancel"])
def test_a_crashed_workers_batch_with_a_locked_member_makes_no_session_wait(
    how: str, conn: psycopg.Connection, other: Session
) -> None:
    call(conn, "declare_task", "acc", accumulate=True)
    for n in range(3):
        enqueue(conn, "acc", {"n": n}, key="k")
    plain = enqueue(conn)
    rows = reserve(conn, 10)
    lock(other, [row for row in rows if row.key == "k"][2], how)
    conn.execute("set statement_timeout = '20s'")
    assert column(conn, "crashed", "w", *pairs(rows)) == [plain]
    # Nothing is half-done: the batch is whole, and no crash is counted of it.
    assert [job(conn, row.id).state for row in rows if row.key == "k"] == ["executing"] * 3
    assert value(conn, "select count(*) from pgqueue.jobs where key = 'k' and crashed_on is not null") == 0
    other.run("rollback")
    assert len(column(conn, "crashed", "w", *pairs(rows))) == 1
    assert {state(conn, row.id) for row in rows} == {"waiting"}


# The grace period of a gap in maintenance.


def test_a_lease_that_began_just_before_maintenance_resumed_gets_no_grace_period(
    conn: psycopg.Connection, clock: Clock
) -> None:
    # A deploy: the old workers stopped, the new one reserves before it first runs maintenance.
    watch(conn, clock, 1)
    clock.advance("20 s")
    job_id = enqueue(conn)
    reserve_one(conn, "killed")
    clock.advance("2 s")
    maintain(conn)
    watch(conn, clock, 27)
    assert state(conn, job_id) == "executing"
    watch(conn, clock, 1)
    assert state(conn, job_id) == "waiting"


def test_a_lease_that_could_be_extended_after_the_gap_gets_no_grace_period(
    conn: psycopg.Connection, clock: Clock
) -> None:
    # The only worker is killed; the next one starts 10 s later and runs maintenance.
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    reserve_one(conn, "killed")
    watch(conn, clock, 4)
    clock.advance("10 s")
    watch(conn, clock, 15)
    assert state(conn, job_id) == "executing"
    watch(conn, clock, 1)
    assert state(conn, job_id) == "waiting"


@pytest.mark.parametrize("gap", [0, 5, 6, 15, 16, 31, 90])
@pytest.mark.parametrize("before", [0, 9])
def test_a_killed_workers_job_comes_back_within_a_lease_or_after_a_gap_at_most_one_more(
    gap: int, before: int, conn: psycopg.Connection, clock: Clock
) -> None:
    watch(conn, clock, 1)
    job_id = enqueue(conn)
    reserve_one(conn, "killed", lease="30 s")
    watch(conn, clock, before)
    clock.advance(f"{gap} s")
    maintain(conn)
    passed = before + gap
    while state(conn, job_id) == "executing":
        clock.advance("1 s")
        maintain(conn)
        passed += 1
    could_not_extend = gap > 5 and before + gap > 15
    assert passed == max(30, before + gap) + (30 if could_not_extend else 0)


def test_of_many_callers_of_maintain_one_does_the_work(database: Database, conn: psycopg.Connection) -> None:
    first, others = database.connect(autocommit=False), [database.connect() for _ in range(5)]
    assert maintain(first).ran is True
    assert [maintain(other).ran for other in others] == [False] * 5
    first.commit()
    assert maintain(others[0]).ran is True
    assert value(conn, "select count(*) from pgqueue.maintenance_runs") == 2
