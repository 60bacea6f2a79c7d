"""Two sessions want the same job, or the same rows in another order."""

from __future__ import annotations

import psycopg
import pytest

from tests.calls import call, column, enqueue, enqueue_many, ids, job, pairs, reserve, reserve_one, state, value
from tests.databases import Database
from tests.facts import wait_until


@pytest.mark.covers("G9", "D2", "D4")
def test_two_claimers_never_get_the_same_job_and_neither_waits(database: Database) -> None:
    first, second = database.connect(autocommit=False), database.connect()
    second.execute("set statement_timeout = '5s'")
    job_ids = enqueue_many(second, 10)
    mine = reserve(first, 4, "first")  # not committed
    theirs = reserve(second, 10, "second")
    assert (ids(mine), ids(theirs)) == (job_ids[:4], job_ids[4:])
    first.rollback()
    assert ids(reserve(second, 10, "second")) == job_ids[:4]


@pytest.mark.covers("G9", "D4")
def test_many_claimers_at_once_get_every_job_once(database: Database) -> None:
    conn = database.connect()
    job_ids = enqueue_many(conn, 400)
    sessions = [database.session() for _ in range(6)]
    claims = [
        session.start("select id from pgqueue.reserve(%s, 7)", [f"w{n}"]) for session in sessions for n in range(12)
    ]
    seen = [row[0] for claim in claims for row in claim.result(30)]
    assert sorted(seen) == job_ids


def test_a_locked_row_stops_neither_its_lane_nor_its_rescue(database: Database) -> None:
    holder, conn = database.connect(autocommit=False), database.connect()
    conn.execute("set statement_timeout = '5s'")
    job_ids = enqueue_many(conn, 3)
    holder.execute("select from pgqueue.jobs where id = %s for update", [job_ids[0]])
    assert ids(reserve(conn, 10)) == job_ids[1:]
    holder.rollback()
    assert ids(reserve(conn, 10)) == job_ids[:1]


def test_two_batches_with_the_same_jobs_in_opposite_order_do_not_deadlock(database: Database) -> None:
    conn = database.connect()
    job_ids = enqueue_many(conn, 50)
    held = reserve(conn, 50)
    blocker, first, second = database.session(), database.session(), database.session()
    # Both have to stop at the first row of their order; only if that is the same one is there no deadlock.
    middle = held[25]
    blocker.run("begin")
    blocker.run("select from pgqueue.jobs where id = %s for update", [middle.id])
    up = first.start("select * from pgqueue.complete_many(%s, %s)", pairs(held))
    wait_until(lambda: first.waits_behind(blocker))
    down = second.start("select * from pgqueue.complete_many(%s, %s)", pairs(held[::-1]))
    wait_until(second.is_waiting_on_lock)
    blocker.run("commit")
    assert up.result(10) == []
    assert sorted(row[0] for row in down.result(10)) == job_ids
    assert value(conn, "select count(*) from pgqueue.history where state = 'succeeded'") == 50


def test_a_batch_locks_in_the_order_of_ids_whatever_the_order_given(database: Database) -> None:
    conn = database.connect()
    enqueue_many(conn, 20)
    held = reserve(conn, 20)
    blocker, batch = database.session(), database.session()
    blocker.run("begin")
    blocker.run("select from pgqueue.jobs where id = %s for update", [held[10].id])
    waiting = batch.start("select * from pgqueue.complete_many(%s, %s)", pairs(held[::-1]))
    wait_until(lambda: batch.waits_behind(blocker))
    locked = [
        row.id
        for row in held
        if conn.execute("select from pgqueue.jobs where id = %s for update skip locked", [row.id]).rowcount == 0
    ]
    assert locked == ids(held[:11])
    blocker.run("commit")
    assert waiting.result(10) == []


@pytest.mark.parametrize("meanwhile", ["extend", "release"])
def test_a_batch_that_waited_ends_a_job_as_the_other_transaction_left_it(meanwhile: str, database: Database) -> None:
    conn = database.connect()
    enqueue_many(conn, 3)
    held = reserve(conn, 3)
    other, batch = database.session(), database.session()
    other.run("begin")
    if meanwhile == "extend":
        other.run("select from pgqueue.extend(%s, %s)", pairs(held[1:2]))
    else:
        other.run("select from pgqueue.release(%s, %s)", pairs(held[1:2]))
    ending = batch.start("select * from pgqueue.complete_many(%s, %s)", pairs(held))
    wait_until(lambda: batch.waits_behind(other))
    other.run("commit")
    # Its lease was extended, and it is held. Or it was given back, and is not.
    assert ending.result(10) == ([] if meanwhile == "extend" else [(held[1].id,)])
    assert [state(conn, row.id) for row in held] == [
        "succeeded", "succeeded" if meanwhile == "extend" else "waiting", "succeeded"
    ]  # fmt: skip


def test_a_batch_that_waited_for_a_step_keeps_it_in_history(database: Database) -> None:
    conn = database.connect()
    enqueue_many(conn, 2)
    held = reserve(conn, 2)
    stepped = held[1]
    call(conn, "complete_step", stepped.id, stepped.reservation, "first")
    other, batch = database.session(), database.session()
    other.run("begin")
    other.run("select pgqueue.complete_step(%s, %s, 'second')", [stepped.id, stepped.reservation])
    ending = batch.start("select * from pgqueue.complete_many(%s, %s)", pairs(held))
    wait_until(lambda: batch.waits_behind(other))
    other.run("commit")
    assert ending.result(10) == []
    steps = value(conn, "select steps from pgqueue.history where id = %s", stepped.id)
    assert [step["name"] for step in steps] == ["first", "second"]


@pytest.mark.covers("A6", "A5")
def test_a_cancel_that_comes_after_an_uncommitted_completion_finds_nothing(database: Database) -> None:
    conn = database.connect()
    job_id = enqueue(conn)
    held = reserve_one(conn)
    first, second = database.session(), database.session()
    first.run("begin")
    assert first.run("select pgqueue.complete(%s, %s)", [job_id, held.reservation]) == [(True,)]
    cancelled = second.start("select pgqueue.cancel(%s)", [job_id])
    wait_until(lambda: second.waits_behind(first))
    first.run("commit")
    assert cancelled.result(10) == [(None,)]
    assert state(conn, job_id) == "succeeded"


@pytest.mark.covers("A6", "A5")
def test_a_completion_that_comes_after_an_uncommitted_cancel_succeeds(database: Database) -> None:
    conn = database.connect()
    job_id = enqueue(conn)
    held = reserve_one(conn)
    first, second = database.session(), database.session()
    first.run("begin")
    assert first.run("select pgqueue.cancel(%s)", [job_id]) == [("requested",)]
    completed = second.start("select pgqueue.complete(%s, %s)", [job_id, held.reservation])
    wait_until(lambda: second.waits_behind(first))
    first.run("commit")
    assert completed.result(10) == [(True,)]
    assert state(conn, job_id) == "succeeded"


def test_a_job_that_is_being_cancelled_is_not_handed_out(database: Database) -> None:
    first, second = database.connect(autocommit=False), database.connect()
    job_id = enqueue(second)
    assert call(first, "cancel", job_id) == "cancelled"
    assert reserve(second) == []
    first.commit()
    assert reserve(second) == []
    assert state(second, job_id) == "cancelled"


def test_a_cancel_that_comes_after_an_uncommitted_claim_asks_the_worker(database: Database) -> None:
    conn = database.connect()
    job_id = enqueue(conn)
    first, second = database.session(), database.session()
    first.run("begin")
    first.run("select * from pgqueue.reserve('w')")
    cancelled = second.start("select pgqueue.cancel(%s)", [job_id])
    wait_until(lambda: second.waits_behind(first))
    first.run("commit")
    assert cancelled.result(10) == [("requested",)]


@pytest.mark.covers("A5")
def test_of_two_retries_of_a_dead_job_one_brings_it_back(database: Database) -> None:
    conn = database.connect()
    job_id = enqueue(conn)
    call(conn, "fail", job_id, reserve_one(conn).reservation, retry=False)
    first, second = database.session(), database.session()
    first.run("begin")
    assert first.run("select pgqueue.retry(%s)", [job_id]) == [(True,)]
    again = second.start("select pgqueue.retry(%s)", [job_id])
    wait_until(lambda: second.waits_behind(first))
    first.run("commit")
    assert again.result(10) == [(False,)]
    assert ids(reserve(conn, 10)) == [job_id]


@pytest.mark.covers("A5")
def test_of_two_ends_of_one_attempt_the_first_counts(database: Database) -> None:
    conn = database.connect()
    job_id = enqueue(conn)
    held = reserve_one(conn)
    first, second = database.session(), database.session()
    first.run("begin")
    assert first.run("select pgqueue.fail(%s, %s)", [job_id, held.reservation]) == [("failed",)]
    completed = second.start("select pgqueue.complete(%s, %s)", [job_id, held.reservation])
    wait_until(lambda: second.waits_behind(first))
    first.run("commit")
    assert completed.result(10) == [(False,)]
    assert state(conn, job_id) == "failed"


@pytest.mark.long
@pytest.mark.partitions
def test_a_call_that_waits_for_a_row_too_long_is_refused_and_changes_nothing(database: Database) -> None:
    conn = database.connect()
    job_ids = enqueue_many(conn, 2)
    held = reserve(conn, 2)
    blocker, waiting = database.session(), database.session()
    blocker.run("begin")
    blocker.run("select from pgqueue.jobs where id = %s for update", [job_ids[1]])
    completing = waiting.start("select * from pgqueue.complete_many(%s, %s)", pairs(held))
    with pytest.raises(psycopg.errors.LockNotAvailable):
        completing.result(20)
    assert {state(conn, job_id) for job_id in job_ids} == {"executing"}
    # One by one, the rest is completed.
    assert call(conn, "complete", held[0].id, held[0].reservation) is True


def test_enqueue_waits_for_no_other_enqueue(database: Database) -> None:
    first, second = database.connect(autocommit=False), database.connect()
    second.execute("set statement_timeout = '5s'")
    for options in ({}, {"queue": "new"}, {"queue": "new", "priority": 3}):
        mine = enqueue(first, **options)  # open
        theirs = enqueue(second, **options)
        assert enqueue_many(second, 2, **options)
        assert theirs in ids(reserve(second, 10))
        assert job(second, mine) is None
    first.commit()
    assert len(reserve(second, 10)) == 3
    assert column(second, "reserve", "w") == []
