"""A claim that is left open holds the jobs that it took, and hinders no other session."""

from __future__ import annotations

import re
from typing import Any, LiteralString

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
    maintain,
    pairs,
    reserve,
    reserve_one,
    state,
    value,
)
from tests.databases import Database
from tests.facts import wait_until
from tests.sessions import Session


@pytest.fixture
def claim(database: Database) -> Session:
    session = database.session()
    session.run("begin")
    return session


@pytest.fixture
def other(database: Database) -> psycopg.Connection:
    """Another worker, which waits for no other session."""
    conn = database.connect()
    conn.execute("set statement_timeout = '20s'")
    return conn


def take(session: Session, max_jobs: int = 10, queues: list[str] | None = None) -> list[int]:
    rows = session.run("select id from pgqueue.reserve('open', %s, %s)", [max_jobs, queues])
    return [row[0] for row in rows]


def limit(conn: psycopg.Connection, kind: str, target: str, **limits: Any) -> None:
    assert call(conn, "set_limit", kind, target, **limits) is True
    conn.execute("delete from pgqueue.limit_waits")


def limit_locks(conn: psycopg.Connection) -> int:
    """Locks of limits: the second keys are negative."""
    count: int = value(
        conn,
        "select count(*) from pg_locks where locktype = 'advisory' and classid::bigint = pgqueue._lock_class()"
        " and objid::bigint >= 2147483648"
        " and database = (select oid from pg_database where datname = current_database())",
    )
    return count


def test_a_claim_that_only_skips_jobs_does_not_wake_its_worker_again(claim: Session, other: psycopg.Connection) -> None:
    limit(other, "task", "t", max_executing=1000)
    enqueue_many(other, 4000)
    assert len(take(claim, 1)) == 1
    heard: list[str] = []
    other.add_notify_handler(lambda notice: heard.append(notice.payload))
    other.execute(f"listen {value(other, 'select pgqueue._channel(%s)', 'w')}".encode())
    assert reserve(other) == []
    assert heard == []


# A cancel at any point.


def gated(source: str) -> list[str]:
    """The function once for each of its blocks, which then begins at a gate."""
    places = [match.end() for match in re.finditer(r"(begin|then|else|loop)\n", source)]
    return [f"{source[:place]}perform public.gate();\n{source[place:]}" for place in places]


@pytest.mark.parametrize(
    "function", ["_leave_limits", "_unblock", "_recheck_limits", "_within_limits", "_block_on_limits"]
)
def test_a_cancel_at_any_point_leaves_no_lock_of_a_limit(database: Database, function: str) -> None:
    conn = database.connect()
    limit(conn, "task", "t", max_executing=1)
    gate = database.session()
    gate.run("select pg_advisory_lock(1)")
    conn.execute("create function public.gate() returns void language sql as 'select pg_advisory_xact_lock_shared(1)'")
    source = value(conn, f"select pg_get_functiondef('pgqueue.{function}'::regproc)")
    reached = 0
    for variant in gated(source):
        conn.execute(variant.encode())
        first, second = database.session(), database.session()
        enqueue_many(conn, 2)
        # One starts and one is blocked, and the limit is due to be checked.
        conn.execute("insert into pgqueue.limit_waits (name, next_at) values ('task:t', now())")
        began = second.start("select id, reservation from pgqueue.reserve('w', 2)")
        wait_until(lambda: began.done() or second.waits_behind(gate))  # noqa: B023
        if began.done():
            [(job_id, reservation)] = began.result()
            # Not complete(), which waits a millisecond and then again: the cancel could fall in between.
            ended = first.start("select pgqueue.complete_many(array[%s], array[%s])", [job_id, reservation])
            wait_until(lambda: ended.done() or first.waits_behind(gate))  # noqa: B023
        else:
            ended = began
        if not ended.done():
            reached += 1
            conn.execute("select pg_cancel_backend(%s)", [first.pid if began.done() else second.pid])
            with pytest.raises(psycopg.errors.QueryCanceled):
                ended.result(10)
        # The sessions live on.
        conn.execute(source.encode())
        assert limit_locks(conn) == 0
        conn.execute("delete from pgqueue.jobs")
        conn.execute("delete from pgqueue.limit_waits")
        job_id = enqueue(conn)
        assert ids(reserve(conn, 10)) == [job_id]
        conn.execute("delete from pgqueue.jobs")
    assert reached > 0


# Limits.


def test_it_holds_no_lock_of_a_limit_that_it_checked(
    conn: psycopg.Connection, claim: Session, other: psycopg.Connection
) -> None:
    limit(conn, "task", "t", max_executing=1)
    first, second = enqueue_many(conn, 2, queue="q")
    assert ids(reserve(conn, 2)) == [first]
    assert state(conn, second) == "blocked"
    # There is more capacity now, and the open claim, of another queue, finds that.
    call(conn, "set_limit", "task", "t", max_executing=5)
    assert take(claim, 1, ["other"]) == []
    assert limit_locks(conn) == 0
    third = enqueue(conn, queue="q")
    assert third in ids(reserve(other, 10))


def test_it_lets_go_no_more_than_it_can_take(
    conn: psycopg.Connection, claim: Session, other: psycopg.Connection
) -> None:
    limit(conn, "task", "t", max_executing=0)
    job_ids = enqueue_many(conn, 10)
    assert reserve(conn, 20) == []
    call(conn, "set_limit", "task", "t", max_executing=20)
    assert len(take(claim, 1)) == 1
    # Those under the limit wait for the claim. It has let go none of them that it did not take.
    assert claim.run("select count(*) from pgqueue.jobs where state = 'blocked'") == [(9,)]
    claim.run("rollback")
    assert ids(reserve(other, 20)) == job_ids


def test_it_holds_no_lock_of_a_limit_without_capacity(
    conn: psycopg.Connection, claim: Session, other: psycopg.Connection
) -> None:
    limit(conn, "task", "t", max_executing=1)
    held = reserve_one_of(conn)
    blocked = enqueue(conn)
    assert take(claim) == []
    assert limit_locks(conn) == 0
    assert call(other, "complete", held.id, held.reservation) is True
    following = enqueue(conn)
    assert ids(reserve(other, 10)) == [following]
    claim.run("commit")
    assert state(conn, blocked) == "blocked"


def reserve_one_of(conn: psycopg.Connection, **options: Any) -> Row:
    enqueue(conn, **options)
    return reserve_one(conn)


def test_a_job_under_two_limits_of_which_one_is_taken_locks_neither(
    database: Database, conn: psycopg.Connection, claim: Session, other: psycopg.Connection
) -> None:
    limit(conn, "limit_key", "l", max_executing=5)
    limit(conn, "task", "t", max_executing=5)
    starting = database.session()
    starting.run("begin")
    enqueue(conn, "t", queue="a")
    assert len(take(starting, 1, ["a"])) == 1
    # It stands under both. Another claim starts jobs of its task.
    both = enqueue(conn, "t", limit_key="l", queue="a")
    assert take(claim, 1, ["a"]) == []
    assert limit_locks(conn) == 1
    alone = enqueue(conn, "u", limit_key="l", queue="b")
    assert ids(reserve(other, 10)) == [alone]
    starting.run("commit")
    claim.run("commit")
    assert ids(reserve(other, 10)) == [both]


def test_it_locks_no_limit_of_a_queue_that_it_took_nothing_from(
    conn: psycopg.Connection, claim: Session, other: psycopg.Connection
) -> None:
    for queue in ("a", "b"):
        limit(conn, "queue", queue, max_executing=5)
    first, second = enqueue(conn, queue="a", priority=9), enqueue(conn, queue="b")
    assert take(claim, 1) == [first]
    assert ids(reserve(other, 10)) == [second]


def test_a_sleeping_worker_locks_no_limit(conn: psycopg.Connection, claim: Session, other: psycopg.Connection) -> None:
    limit(conn, "queue", "a", max_executing=5)
    maintain(conn)
    job_id = enqueue(conn, queue="a")
    claim.run("select * from pgqueue.idle('open')")
    assert limit_locks(conn) == 0
    assert ids(reserve(other, 10)) == [job_id]


def test_a_limit_that_an_open_claim_is_checking_is_checked_by_others_a_second_later(
    conn: psycopg.Connection, claim: Session, other: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2030-01-01 12:00+00")
    limit(conn, "task", "t", rate=1, per="10 s")
    first, second = enqueue_many(conn, 2, queue="q")
    assert ids(reserve(conn, 1)) == [first]
    assert reserve(conn, 1) == []
    assert state(conn, second) == "blocked"
    # The claim finds the limit due, holds what says so, and has no job to let go: that one is locked.
    clock.advance("11 s")
    holder = conn
    with holder.transaction():
        holder.execute("select from pgqueue.jobs where id = %s for update", [second])
        assert take(claim, 1, ["other"]) == []
    clock.advance("2 s")
    assert ids(reserve(other, 10)) == [second]


# Keys.


def test_a_note_that_an_open_claim_is_reading_is_read_by_others_a_second_later(
    database: Database, conn: psycopg.Connection, claim: Session, other: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2030-01-01 12:00+00")
    first, second = enqueue_many(conn, 2, key="k", queue="q")
    held = reserve_one(conn, lease="1 hour")
    assert held.id == first
    blocking = database.session()
    blocking.run("begin")
    assert take(blocking) == []
    assert call(conn, "complete", held.id, held.reservation) is True
    # A reader finds the claim still open, and stays open itself.
    assert claim.run("select pgqueue._read_key_notes(10)") == [(False,)]
    blocking.run("commit")
    assert state(conn, second) == "blocked"
    clock.advance("2 s")
    maintain(other)
    claim.run("rollback")
    assert ids(reserve(other, 10)) == [second]
    assert value(conn, "select max(unblocked) from pgqueue.maintenance_runs") == 0


def test_it_reads_no_notes_of_queues_that_it_does_not_serve(
    conn: psycopg.Connection, claim: Session, other: psycopg.Connection
) -> None:
    enqueue_many(conn, 2, key="k", queue="q")
    held = reserve_one(conn)
    assert reserve(conn, 10) == []
    with conn.transaction():
        conn.execute("set transaction isolation level repeatable read")
        assert call(conn, "complete", held.id, held.reservation) is True
    assert take(claim, 10, ["other"]) == []
    assert len(reserve(other, 10)) == 1


def test_it_takes_back_no_more_lapsed_leases_than_it_has_slots_for(
    conn: psycopg.Connection, claim: Session, other: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2030-01-01 12:00+00")
    maintain(conn)
    enqueue_many(conn, 5)
    assert len(reserve(conn, 5, lease="4 s")) == 5
    clock.advance("2 s")
    maintain(conn)
    clock.advance("3 s")
    assert len(take(claim, 2)) == 2
    assert len(reserve(other, 10)) == 3


# Dedupe keys.


RETRYING: list[LiteralString] = ["select pgqueue.retry(%s)", "select pgqueue.retry_many(job_ids => array[%s])"]


@pytest.fixture
def retrying(database: Database, conn: psycopg.Connection) -> Session:
    """A session with an open retry of a job whose dedupe key another job has taken, which has expired."""
    again = enqueue(conn, dedupe="d")
    call(conn, "cancel", again)
    enqueue(conn, dedupe="d", expires_in="1 us", queue="q")
    session = database.session()
    session.run("begin")
    assert session.run("select pgqueue.retry(%s)", [again]) == [(True,)]
    return session


def test_reserve_does_not_wait_for_an_open_retry_whose_dedupe_key_is_taken(
    conn: psycopg.Connection, retrying: Session, other: psycopg.Connection
) -> None:
    plain = enqueue(conn, queue="q")
    assert ids(reserve(other, 10, queues=["q"])) == [plain]
    retrying.run("commit")
    assert value(conn, "select count(*) from pgqueue.jobs where dedupe is not null") == 0


@pytest.mark.parametrize("retry", RETRYING)
def test_the_existing_job_ends_while_a_retry_of_its_dedupe_key_is_open(
    database: Database, conn: psycopg.Connection, other: psycopg.Connection, retry: LiteralString
) -> None:
    again = enqueue(conn, dedupe="d")
    call(conn, "cancel", again)
    held = reserve_one_of(conn, dedupe="d")
    retrying = database.session()
    retrying.run("begin")
    retrying.run(retry, [again])
    assert call(other, "complete", held.id, held.reservation) is True
    retrying.run("commit")
    # The key is free again.
    assert enqueue(conn, dedupe="d") not in (again, held.id)


def test_a_locked_dedupe_key_stops_no_claim_and_is_taken_over(
    conn: psycopg.Connection, claim: Session, other: psycopg.Connection
) -> None:
    expired = enqueue(conn, dedupe="d", expires_in="1 us")
    plain = enqueue(conn)
    claim.run("select from pgqueue.dedupe_keys for update")
    assert ids(reserve(other, 10)) == [plain]
    claim.run("rollback")
    assert state(conn, expired) == "cancelled"
    following = call(conn, "enqueue", "t", Jsonb({}), dedupe="d")
    assert following > plain


def test_a_retry_takes_a_dedupe_key_that_was_left_without_a_job(
    conn: psycopg.Connection, claim: Session, other: psycopg.Connection
) -> None:
    expired = enqueue(conn, dedupe="d", expires_in="1 us")
    claim.run("select from pgqueue.dedupe_keys for update")
    assert reserve(other, 10) == []
    claim.run("rollback")
    again = enqueue(conn, "u", dedupe="d")
    call(conn, "cancel", again)
    assert state(conn, expired) == "cancelled"
    assert call(conn, "retry", expired) is True
    assert enqueue(conn, dedupe="d") == expired


def test_a_completion_never_waits_for_a_claim_in_progress(database: Database, other: psycopg.Connection) -> None:
    """The lock on the row ahead is held for one statement of the claim, not to its end."""
    conn = database.connect()
    enqueue_many(conn, 2, key="k")
    held = reserve_one(conn)
    gate, session = database.session(), database.session()
    gate.run("select pg_advisory_lock(1)")
    # One text, one transaction: as if the claim were one slow statement.
    slow: LiteralString = "select id from pgqueue.reserve('slow', 10); select pg_advisory_xact_lock_shared(1)"
    claiming = session.start(slow)
    wait_until(lambda: session.waits_behind(gate))
    assert column(other, "complete_many", *pairs([held])) == []
    gate.run("select pg_advisory_unlock(1)")
    claiming.result(10)
    assert len(reserve(conn, 10)) == 1
