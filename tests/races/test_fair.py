"""Lanes of tenants: each order in which a job could be hidden, forced by two sessions.

The lane leaves the path while an enqueue that relies on it is open, while another claim has locked its only job, while
the queue is switched. Each time the job must start.
"""

from __future__ import annotations

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, column, enqueue, enqueue_many, ids, maintain, pairs, reserve, value
from tests.databases import Database
from tests.facts import flush_statistics

NOON = "2030-01-01 12:00+00"


def _fair(database: Database, clock: Clock) -> psycopg.Connection:
    clock.set(NOON)
    conn = database.connect()
    call(conn, "configure_queue", "default", fair_by="limit_key")
    return conn


def _pass_time(conn: psycopg.Connection, clock: Clock, times: int = 3) -> None:
    for _ in range(times):
        clock.advance("31 s")
        maintain(conn)


def _lanes(conn: psycopg.Connection) -> int:
    found: int = value(conn, "select count(distinct lane_key) from pgqueue.tenant_lanes where lane_key <> ''")
    return found


def _inserted(conn: psycopg.Connection) -> int:
    flush_statistics(conn)
    found: int = value(conn, "select n_tup_ins from pg_stat_user_tables where relname = 'tenant_lanes'")
    return found


def test_a_lane_stays_on_the_path_while_an_enqueue_that_relies_on_it_is_open(database: Database, clock: Clock) -> None:
    conn, producer = _fair(database, clock), database.connect(autocommit=False)
    enqueue(conn, limit_key="a")
    column(conn, "complete_many", *pairs(reserve(conn, 1)))
    clock.advance("4 s")
    job_id = enqueue(producer, limit_key="a")
    # It relies on the row that is there.
    assert value(producer, "select count(*) from pgqueue.tenant_lanes where lane_key <> ''") == 1
    _pass_time(conn, clock)
    assert _lanes(conn) == 1
    producer.commit()
    assert ids(reserve(conn, 1)) == [job_id]
    for _ in range(20):
        # The transaction of another database may be waited for as well.
        _pass_time(conn, clock, 1)
        if _lanes(conn) == 0:
            return
    pytest.fail("a lane without jobs stays")


def test_an_enqueue_that_began_before_the_promise_ended_is_waited_for(database: Database, clock: Clock) -> None:
    """The row is read as maintain begins to look at it: its promise is over, the transaction with its xid is not."""
    conn, producer = _fair(database, clock), database.connect(autocommit=False)
    enqueue(conn, limit_key="a")
    column(conn, "complete_many", *pairs(reserve(conn, 1)))
    job_id = enqueue(producer, limit_key="a")
    clock.advance("6 s")
    maintain(conn)
    clock.advance("2 s")
    maintain(conn)
    producer.commit()
    clock.advance("2 s")
    maintain(conn)
    assert ids(reserve(conn, 1)) == [job_id]


def test_an_enqueue_after_the_promise_makes_its_own(database: Database, clock: Clock) -> None:
    conn, producer = _fair(database, clock), database.connect(autocommit=False)
    enqueue(conn, limit_key="a")
    column(conn, "complete_many", *pairs(reserve(conn, 1)))
    clock.advance("6 s")
    job_id = enqueue(producer, limit_key="a")
    assert value(producer, "select count(*) from pgqueue.tenant_lanes where lane_key <> ''") == 2
    _pass_time(conn, clock)
    producer.commit()
    assert ids(reserve(conn, 1)) == [job_id]


def test_a_lane_whose_only_job_another_claim_has_locked_is_not_empty(database: Database, clock: Clock) -> None:
    conn, claimer = _fair(database, clock), database.connect(autocommit=False)
    job_id = enqueue(conn, limit_key="a")
    assert ids(reserve(claimer, 1)) == [job_id]
    assert reserve(conn, 1) == []
    _pass_time(conn, clock)
    claimer.rollback()
    assert ids(reserve(conn, 1)) == [job_id]


def test_two_claims_at_once_take_different_jobs_of_a_tenant(database: Database, clock: Clock) -> None:
    conn, claimer = _fair(database, clock), database.connect(autocommit=False)
    enqueue_many(conn, 4, limit_key="a")
    mine = ids(reserve(claimer, 2, "v"))
    theirs = ids(reserve(conn, 4))
    claimer.commit()
    assert (len(mine), len(theirs), set(mine) & set(theirs)) == (2, 2, set())


def _with_a_max_share(database: Database, clock: Clock) -> psycopg.Connection:
    conn = _fair(database, clock)
    call(conn, "configure_queue", "default", max_share=0.9)
    for worker in ("v", "w"):
        call(conn, "hello", worker, None, Jsonb({"concurrency": 10}))
    enqueue_many(conn, 30, limit_key="a")
    return conn


@pytest.mark.parametrize("is_committed", [True, False])
def test_two_claims_of_one_worker_at_once_give_a_tenant_no_more_than_its_part(
    database: Database, clock: Clock, is_committed: bool
) -> None:
    conn, claimer = _with_a_max_share(database, clock), database.connect(autocommit=False)
    assert len(reserve(claimer, 5)) == 5
    # It does not see them: neither does it wait, nor does it take more.
    assert reserve(conn, 5) == []
    if is_committed:
        claimer.commit()
    else:
        claimer.rollback()
    assert len(reserve(conn, 10)) == (4 if is_committed else 9)


def test_two_workers_at_once_have_their_parts_each(database: Database, clock: Clock) -> None:
    conn, claimer = _with_a_max_share(database, clock), database.connect(autocommit=False)
    assert len(reserve(claimer, 10, "v")) == 9
    assert len(reserve(conn, 10, "w")) == 9


def test_a_tenant_that_flips_beside_an_old_snapshot_leaves_few_rows(database: Database, clock: Clock) -> None:
    conn, holder = _fair(database, clock), database.connect(autocommit=False)
    holder.execute("set transaction isolation level repeatable read")
    holder.execute("select from pgqueue.jobs")
    before = _inserted(conn)
    for _ in range(60):
        enqueue(conn, limit_key="a")
        column(conn, "complete_many", *pairs(reserve(conn, 1)))
        clock.advance("1 s")
        maintain(conn)
    # The snapshot keeps all of them: one in five seconds, and some of maintenance.
    assert _inserted(conn) - before <= 20


def _beside_an_old_snapshot(
    database: Database, clock: Clock, jobs: int, *, behind_a_pause: bool = False
) -> psycopg.Connection:
    """Return a connection to a queue where this many jobs of one tenant have ended, and their index entries stay."""
    conn, holder = _fair(database, clock), database.connect(autocommit=False)
    holder.execute("set transaction isolation level repeatable read")
    holder.execute("select from pgqueue.jobs")
    if behind_a_pause:
        # The head of the queue stays where this one is.
        enqueue(conn, limit_key="b")
        call(conn, "pause", "limit_key", "b")
    enqueue_many(conn, jobs, limit_key="a")
    column(conn, "complete_many", *pairs(reserve(conn, jobs)))
    for _ in range(2):
        # A safe point that is later.
        clock.advance("10 s")
        maintain(conn)
    return conn


def _entries(conn: psycopg.Connection) -> int:
    """How many entries of lanes a claim of one job reads."""
    counted = "select pg_stat_get_xact_tuples_returned('pgqueue.jobs_in_lanes'::regclass)"
    with conn.transaction():
        before = value(conn, counted)
        assert len(reserve(conn, 1)) == 1
        found: int = value(conn, counted) - before
        return found


def test_a_lane_without_a_head_is_read_from_the_head_of_its_queue_on(database: Database, clock: Clock) -> None:
    conn = _beside_an_old_snapshot(database, clock, 600)
    conn.execute("delete from pgqueue.heads where priority > 800")
    enqueue_many(conn, 3, limit_key="a")
    # One claim in fifty moves a head, and reads for that.
    assert min(_entries(conn) for _ in range(3)) <= 5


def test_a_claim_that_had_to_walk_moves_the_head_of_its_tenant(database: Database, clock: Clock) -> None:
    conn = _beside_an_old_snapshot(database, clock, 1_000, behind_a_pause=True)
    enqueue_many(conn, 3, limit_key="a")
    # It moves heads by chance, and here in any case: it has read more than the limit of the chance.
    assert _entries(conn) >= 1_000
    assert _entries(conn) <= 5


@pytest.mark.parametrize("minutes", [0, 3])
def test_a_job_of_an_enqueue_that_saw_a_plain_queue_starts_after_the_switch(
    database: Database, clock: Clock, minutes: int
) -> None:
    clock.set(NOON)
    conn, producer = database.connect(), database.connect(autocommit=False)
    enqueue(conn, limit_key="a")
    job_id = enqueue(producer, limit_key="b")
    call(conn, "configure_queue", "default", fair_by="limit_key")
    enqueue(conn, limit_key="c")
    column(conn, "complete_many", *pairs(reserve(conn, 10)))
    assert value(conn, "select count(*) from pgqueue.jobs") == 0
    _pass_time(conn, clock, 2 * minutes)
    producer.commit()
    assert ids(reserve(conn, 10)) == [job_id]


def test_a_job_of_an_enqueue_that_saw_a_fair_queue_starts_after_the_switch_back(
    database: Database, clock: Clock
) -> None:
    conn, producer = _fair(database, clock), database.connect(autocommit=False)
    enqueue(conn, limit_key="a")
    job_id = enqueue(producer, limit_key="b")
    call(conn, "configure_queue", "default", reset=["fair_by"])
    enqueue(conn, limit_key="c")
    column(conn, "complete_many", *pairs(reserve(conn, 10)))
    assert value(conn, "select count(*) from pgqueue.jobs") == 0
    _pass_time(conn, clock, 6)
    producer.commit()
    assert ids(reserve(conn, 10)) == [job_id]


def test_a_head_of_a_lane_passes_no_job_of_an_open_enqueue(database: Database, clock: Clock) -> None:
    conn, producer = _fair(database, clock), database.connect(autocommit=False)
    job_id = enqueue(producer, limit_key="a")
    # The head of the queue stays where this one is, and the lane is walked from there.
    enqueue(conn, limit_key="b")
    call(conn, "pause", "limit_key", "b")
    for jobs in (1_000, 1, 1, 1):
        clock.advance("2 s")
        enqueue_many(conn, jobs, limit_key="a")
        clock.advance("1 ms")
        while rows := reserve(conn, 1_000):
            column(conn, "complete_many", *pairs(rows))
        clock.advance("2 s")
        maintain(conn)
    assert value(conn, "select count(*) > 0 from pgqueue.heads where priority = 1000")
    producer.commit()
    assert ids(reserve(conn, 10)) == [job_id]


def test_a_head_of_a_lane_that_is_wrong_is_found(database: Database, clock: Clock) -> None:
    conn = _fair(database, clock)
    job_id = enqueue(conn, limit_key="a")
    conn.execute(
        "insert into pgqueue.heads (queue, priority, resumed, head, at, xid)"
        " select pgqueue._head_name('default', lane_key), 1000, false, pgqueue._clock() + interval '1 s',"
        " pgqueue._clock(), pg_current_xact_id() from pgqueue.jobs"
    )
    clock.advance("2 s")
    assert reserve(conn, 1) == []
    clock.advance("61 s")
    maintain(conn)
    assert ids(reserve(conn, 1)) == [job_id]
