"""Bulk operations against claims, ends and each other: they wait for no session and block none."""

from __future__ import annotations

import pytest

from tests.calls import call, enqueue, enqueue_many, ids, reserve, reserve_one, state, table, value
from tests.databases import Database
from tests.facts import wait_until


@pytest.mark.covers("L9")
@pytest.mark.parametrize("function", ["delete_many", "cancel_many", "kill_many", "run_now_many"])
def test_a_bulk_call_skips_locked_rows_and_does_not_wait(database: Database, function: str) -> None:
    holder, conn = database.connect(autocommit=False), database.connect()
    conn.execute("set statement_timeout = '5s'")
    first, second, third = enqueue_many(conn, 3, delay="1 h")
    holder.execute("select from pgqueue.jobs where id = %s for update", [second])
    [row] = table(conn, function, queue="default", state="waiting")
    assert (row.changed, row.passed_over, row.left_over, row.next_after) == (2, 1, 0, None)
    holder.rollback()
    [row] = table(conn, function, queue="default", state="waiting")
    assert (row.changed, row.passed_over) == (1, 0)
    assert state(conn, second) == state(conn, first) == state(conn, third)


@pytest.mark.parametrize("function", ["delete_many", "retry_many"])
def test_a_bulk_call_skips_locked_rows_of_history(database: Database, function: str) -> None:
    holder, conn = database.connect(autocommit=False), database.connect()
    conn.execute("set statement_timeout = '5s'")
    job_ids = enqueue_many(conn, 3)
    for held in reserve(conn, 3):
        call(conn, "fail", held.id, held.reservation, retry=False)
    assert call(holder, "retry", job_ids[1]) is True  # open
    [row] = table(conn, function, queue="default", state="dead")
    assert (row.changed, row.passed_over) == (2, 1)
    holder.commit()
    assert state(conn, job_ids[1]) == "waiting"
    [row] = table(conn, function, queue="default", state="dead")
    assert (row.changed, row.passed_over) == (0, 0)


def test_a_bulk_call_that_is_open_stops_no_claim(database: Database) -> None:
    bulk, conn = database.connect(autocommit=False), database.connect()
    conn.execute("set statement_timeout = '5s'")
    doomed = enqueue_many(conn, 5)
    table(bulk, "cancel_many", queue="default")
    other = enqueue(conn)
    assert ids(reserve(conn, 10)) == [other]
    bulk.rollback()
    assert ids(reserve(conn, 10)) == doomed


def test_a_job_that_is_claimed_between_check_and_lock_runs(database: Database) -> None:
    conn = database.connect()
    job_id = enqueue(conn)
    claiming, deleting, gate = database.session(), database.session(), database.session()
    # The bulk call finds the job waiting, and stops before it locks it.
    gate.run("begin")
    gate.run("select pg_advisory_lock(1)")
    conn.execute(
        "create function public.stop() returns void language sql as 'select pg_advisory_xact_lock(1)';"
        "create function pgqueue._find_and_stop(pgqueue.job_filter, boolean, bigint, integer, integer,"
        " out matches pgqueue.found_job[], out next_id bigint, out is_cut boolean)"
        " language plpgsql as $$ begin"
        " select f.* into matches, next_id, is_cut from pgqueue._find_as_it_is($1, $2, $3, $4, $5) f;"
        " perform public.stop(); end $$;"
        "alter function pgqueue._search_by_id rename to _find_as_it_is;"
        "alter function pgqueue._find_and_stop rename to _search_by_id"
    )
    deleted = deleting.start("select changed, passed_over from pgqueue.delete_many(job_ids => %s)", [[job_id]])
    wait_until(lambda: deleting.waits_behind(gate))
    [(claimed,)] = claiming.run("select id from pgqueue.reserve('w')")
    gate.run("select pg_advisory_unlock(1)")
    gate.run("rollback")
    assert deleted.result(10) == [(0, 1)]
    assert claimed == job_id
    assert state(conn, job_id) == "executing"


@pytest.mark.covers("L1")
def test_deleting_a_blocked_job_leaves_the_one_that_executes_and_the_next_of_its_key(database: Database) -> None:
    conn = database.connect()
    first, second, third = enqueue_many(conn, 3)
    held = reserve_one(conn)
    conn.execute("update pgqueue.jobs set key = 'k'")
    conn.execute("update pgqueue.jobs set state = 'blocked' where id > %s", [first])
    [row] = table(conn, "delete_many", job_ids=[second])
    assert row.changed == 1
    # A job released too soon is blocked again by the next claim, or never was released: it does not run at the same
    # time.
    assert state(conn, third) in ("waiting", "blocked")
    assert state(conn, first) == "executing"
    assert held.id == first


@pytest.mark.covers("L1")
def test_deleting_the_job_ahead_while_the_next_is_being_blocked_releases_it(database: Database) -> None:
    conn = database.connect()
    first, second = enqueue_many(conn, 2)
    conn.execute("update pgqueue.jobs set key = 'k'")
    blocking, deleting = database.session(), database.session()
    # As a claim does: it share-locks the job ahead, and blocks behind it.
    blocking.run("begin")
    blocking.run("select from pgqueue.jobs where id = %s for share", [first])
    blocking.run("update pgqueue.jobs set state = 'blocked' where id = %s", [second])
    deleted = deleting.start("select pgqueue.delete(%s)", [first])
    wait_until(lambda: deleting.waits_behind(blocking))
    blocking.run("commit")
    assert deleted.result(10) == [(True,)]
    assert state(conn, second) == "waiting"


def test_a_bulk_delete_skips_a_job_behind_which_another_is_being_blocked(database: Database) -> None:
    conn = database.connect()
    conn.execute("set statement_timeout = '5s'")
    first, second = enqueue_many(conn, 2)
    conn.execute("update pgqueue.jobs set key = 'k'")
    blocking = database.session()
    blocking.run("begin")
    blocking.run("select from pgqueue.jobs where id = %s for share", [first])
    blocking.run("update pgqueue.jobs set state = 'blocked' where id = %s", [second])
    [row] = table(conn, "delete_many", job_ids=[first, second])
    assert (row.changed, row.passed_over) == (0, 2)
    blocking.run("commit")
    [row] = table(conn, "delete_many", job_ids=[first, second])
    assert row.changed == 2


def test_two_bulk_calls_share_the_work_and_neither_waits(database: Database) -> None:
    first, second, conn = database.connect(autocommit=False), database.connect(), database.connect()
    second.execute("set statement_timeout = '5s'")
    enqueue_many(conn, 20)
    [mine] = table(first, "cancel_many", queue="default", max_jobs=10)
    [theirs] = table(second, "cancel_many", queue="default")
    assert (mine.changed, theirs.changed, theirs.passed_over) == (10, 10, 10)
    first.commit()
    assert value(conn, "select count(*) from pgqueue.history where state = 'cancelled'") == 20


def test_a_bulk_retry_waits_for_no_open_enqueue_of_a_dedupe_key(database: Database) -> None:
    producer, conn = database.connect(autocommit=False), database.connect()
    conn.execute("set statement_timeout = '5s'")
    again = enqueue(conn, dedupe="d")
    call(conn, "cancel", again)
    enqueue(producer, dedupe="d")
    [row] = table(conn, "retry_many", job_ids=[again])
    assert (row.changed, row.passed_over) == (1, 0)
    producer.commit()
    assert value(conn, "select dedupe is null from pgqueue.jobs where id = %s", again) is True
