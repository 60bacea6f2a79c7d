"""The head of jobs with keys: probes for a key begin there, and nothing that lives is below it."""

from __future__ import annotations

from typing import LiteralString

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import call, column, enqueue, ids, maintain, pairs, reserve, reserve_one, state, stats, value
from tests.databases import Database
from tests.facts import wait_until

pytestmark = pytest.mark.covers("D1", "L1")

NOON = "2030-01-01 12:00+00"


def key_head(conn: psycopg.Connection) -> int:
    head: int = value(conn, "select id from pgqueue._key_head()")
    return head


def run_some(conn: psycopg.Connection, clock: Clock, rounds: int = 4, step: str = "2 s") -> int:
    """Run sixty keyed jobs in each round, more than enough for a claim to move heads; returns the newest id."""
    newest = 0
    for _ in range(rounds):
        newest = max(enqueue(conn, key=f"k{n}", queue="other") for n in range(60))
        clock.advance("1 ms")
        while held := reserve(conn, 100, queues=["other"], lease="1 day"):
            column(conn, "complete_many", *pairs(held))
        clock.advance(step)
        maintain(conn)
    return newest


@pytest.fixture(autouse=True)
def noon(clock: Clock) -> None:
    clock.set(NOON)


def test_the_head_passes_jobs_that_ended_and_stops_at_the_first_that_lives(
    conn: psycopg.Connection, clock: Clock
) -> None:
    first = run_some(conn, clock)
    assert key_head(conn) > first - 60
    living = enqueue(conn, key="k", delay="1 day")
    run_some(conn, clock)
    assert key_head(conn) == living


def test_jobs_without_keys_do_not_stop_the_head(conn: psycopg.Connection, clock: Clock) -> None:
    for _ in range(20):
        enqueue(conn, queue="plain", delay="1 day")
    newest = run_some(conn, clock)
    assert key_head(conn) > newest - 60


def test_a_job_that_is_retried_out_of_history_is_first_of_its_key(conn: psycopg.Connection, clock: Clock) -> None:
    old = enqueue(conn, key="k")
    held = reserve_one(conn)
    call(conn, "fail", held.id, held.reservation, retry=False)
    run_some(conn, clock)
    assert key_head(conn) > old
    later = enqueue(conn, key="k")
    call(conn, "retry", old)
    clock.advance("1 ms")
    held = reserve_one(conn)
    assert held.id == old
    assert reserve(conn) == []
    assert state(conn, later) == "blocked"
    call(conn, "complete", held.id, held.reservation)
    assert ids(reserve(conn)) == [later]


def test_heads_that_move_while_a_retry_is_open_do_not_pass_it(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    old = enqueue(conn, key="k")
    held = reserve_one(conn)
    call(conn, "fail", held.id, held.reservation, retry=False)
    run_some(conn, clock)
    running = enqueue(conn, key="k")
    held = reserve_one(conn, lease="1 day")
    assert held.id == running
    operator = database.connect(autocommit=False)
    call(operator, "retry", old)
    run_some(conn, clock)
    assert key_head(conn) > old
    operator.commit()
    # It is blocked behind the one that runs, below the former head, and released by its end.
    assert reserve(conn) == []
    assert state(conn, old) == "blocked"
    call(conn, "complete", held.id, held.reservation)
    assert ids(reserve(conn, lease="1 day")) == [old]
    for _ in range(20):
        clock.advance("1 s")
        maintain(conn)
    assert key_head(conn) == old
    run_some(conn, clock, step="61 s")
    assert stats(conn).maintenance["hidden"] == 0


def test_a_head_from_before_the_commit_of_a_long_retry_does_not_count(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    old = enqueue(conn, key="k")
    held = reserve_one(conn)
    call(conn, "fail", held.id, held.reservation, retry=False)
    run_some(conn, clock)
    operator, claim = database.connect(autocommit=False), database.connect(autocommit=False)
    call(operator, "retry", old)
    clock.advance("11 s")
    # As a claim does that commits later than the retry, and than maintenance has seen it.
    claim.execute(
        "insert into pgqueue.heads (queue, priority, resumed, head, head_id, at, xid)"
        " select queue, priority, resumed, head, head_id, pgqueue._clock(), pg_current_xact_id()"
        " from pgqueue.heads where queue = '' and priority = 1 order by n desc limit 1"
    )
    operator.commit()
    maintain(conn)
    claim.commit()
    assert key_head(conn) <= old
    for _ in range(12):
        clock.advance("1 s")
        maintain(conn)
    assert key_head(conn) == old
    assert value(conn, "select count(*) from pgqueue.head_marks") == 0


@pytest.mark.parametrize("step", ["30 ms", "2 s"], ids=["waited for", "written down"])
def test_a_producer_that_commits_late_is_not_passed(
    database: Database, conn: psycopg.Connection, clock: Clock, step: str
) -> None:
    run_some(conn, clock)
    producer = database.connect(autocommit=False)
    old = enqueue(producer, key="k")
    later = enqueue(conn, key="k")
    run_some(conn, clock, step=step)
    producer.commit()
    assert key_head(conn) <= old
    held = reserve_one(conn, lease="1 day")
    assert held.id == old
    call(conn, "complete", held.id, held.reservation)
    clock.advance("1 ms")
    assert ids(reserve(conn)) == [later]


@pytest.mark.parametrize(
    "enqueued",
    [
        "select job_id from pgqueue.enqueue_outcome('t', key => 'k')",
        "select pgqueue.enqueue_many('t', array['{}']::jsonb[], key => 'k', dedupe => 'd')",
    ],
    ids=["outcome", "many"],
)
def test_a_producer_draws_no_id_before_it_has_its_xid(
    database: Database, conn: psycopg.Connection, clock: Clock, enqueued: LiteralString
) -> None:
    """Else a horizon in between has a later id, and knows nothing of the producer."""
    run_some(conn, clock)
    conn.execute(
        "create function public.gate() returns boolean language plpgsql as $$ begin"
        " if current_setting('test.stops', true) = 'yes' then perform pg_advisory_xact_lock_shared(1); end if;"
        " return true; end $$"
    )
    source = value(conn, "select pg_get_functiondef('pgqueue._ready_at'::regproc)")
    assert source.count("declare\n") == 1
    conn.execute(source.replace("declare\n", "declare\n    v_stopped boolean := public.gate();\n").encode())
    # One draw in 32 is logged, and takes an xid for that.
    while value(conn, "select log_cnt from pgqueue.jobs_id_seq") == 0:
        value(conn, "select nextval('pgqueue.jobs_id_seq')")
    gate, producer = database.session(), database.session()
    gate.run("select pg_advisory_lock(1)")
    producer.run("set test.stops = 'yes'")
    stopped = producer.start(enqueued)
    wait_until(lambda: producer.waits_behind(gate))
    run_some(conn, clock)
    gate.run("select pg_advisory_unlock(1)")
    [(job_id,)] = stopped.result(10)
    assert key_head(conn) <= job_id


def test_jobs_below_the_head_are_found_once_a_minute_and_counted(conn: psycopg.Connection, clock: Clock) -> None:
    old = enqueue(conn, key="k", delay="1 day")
    run_some(conn, clock)
    # Only a mistake can do this.
    conn.execute("update pgqueue.heads set head_id = head_id + 1000 where queue = '' and priority = 1")
    assert key_head(conn) > old
    clock.advance("61 s")
    maintain(conn)
    assert stats(conn).maintenance["hidden"] == 1
    assert key_head(conn) <= old
