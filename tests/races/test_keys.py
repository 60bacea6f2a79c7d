"""Keys, calls of accumulating tasks and limits, where two sessions meet in the order that hurts."""

from __future__ import annotations

from datetime import timedelta
from typing import LiteralString

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
    value,
)
from tests.databases import Database
from tests.facts import wait_until
from tests.sessions import Session

COMPLETE: LiteralString = "select pgqueue.complete(%s, %s)"
RESERVE: LiteralString = "select id from pgqueue.reserve('other', 10)"

BEGIN: dict[str, LiteralString] = {
    "repeatable read": "begin isolation level repeatable read",
    "serializable": "begin isolation level serializable",
}
ENDS = pytest.mark.parametrize("end", ["commit", "rollback"])


def chain(conn: psycopg.Connection, count: int, **options: object) -> tuple[Row, list[int]]:
    """`count` jobs of one key: the first reserved, the others waiting. Returns its row and their ids."""
    job_ids = enqueue_many(conn, count, key="k", **options)
    held = reserve_one(conn)
    assert held.id == job_ids[0]
    return held, job_ids[1:]


def block_behind(conn: psycopg.Connection) -> None:
    assert reserve(conn, 10) == []


def is_blocked(conn: psycopg.Connection, *job_ids: int) -> bool:
    return all(state(conn, job_id) == "blocked" for job_id in job_ids)


def left_behind(conn: psycopg.Connection) -> int:
    """What the net of maintain had to release so far."""
    maintain(conn)
    found: int = value(conn, "select unblocked from pgqueue.maintenance_runs order by n desc limit 1")
    return found


def open_with(session: Session, begin: LiteralString = "begin") -> Session:
    session.run(begin)
    session.run("set local statement_timeout = '20s'")
    return session


# A claim that blocks a job while the job ahead ends.


# What makes the first job of a key leave its place: while it executes, and while it waits.
LEAVING: dict[str, LiteralString] = {
    "complete": "select pgqueue.complete(%s, %s)",
    "dead": "select pgqueue.fail(%s, %s, retry => false)",
    "cancelled": "select pgqueue.fail(%s, %s, cancel => true)",
    "exchange": "select * from pgqueue.exchange('w', completed => array[%s], completed_reservations => array[%s])",
}


@pytest.mark.covers("L1")
@pytest.mark.parametrize("leaving", LEAVING.values(), ids=LEAVING)
@ENDS
def test_a_job_ends_while_an_open_claim_blocks_behind_it_and_the_next_follows(
    database: Database, end: LiteralString, leaving: LiteralString
) -> None:
    conn = database.connect()
    held, [next_id] = chain(conn, 2)
    claim = open_with(database.session())
    assert claim.run(RESERVE) == []
    conn.execute("set statement_timeout = '20s'")
    conn.execute(leaving, [held.id, held.reservation])
    assert job(conn, held.id).state != "executing"
    claim.run(end)
    assert ids(reserve(conn, 10)) == [next_id]
    assert left_behind(conn) == 0


@pytest.mark.covers("L1")
@ENDS
def test_a_note_outlives_the_claim_that_it_waits_for(database: Database, clock: Clock, end: LiteralString) -> None:
    now = clock.set("2030-01-01 12:00+00")
    assert now
    conn = database.connect()
    held, [next_id] = chain(conn, 2)
    claim = open_with(database.session())
    assert claim.run(RESERVE) == []
    assert call(conn, "complete", held.id, held.reservation) is True
    # Read again and again while the claim is open: by reserve, by maintain.
    for _ in range(3):
        assert reserve(conn, 10) == []
        maintain(conn)
        clock.advance("100 ms")
    assert value(conn, "select count(*) from pgqueue.key_notes") == 1
    claim.run(end)
    assert ids(reserve(conn, 10)) == [next_id]
    assert value(conn, "select count(*) from pgqueue.key_notes") == 0
    assert left_behind(conn) == 0


@pytest.mark.covers("L1")
@pytest.mark.parametrize("count", [3, 250])
def test_batches_end_while_an_open_claim_blocks_behind_all_of_them(database: Database, count: int) -> None:
    conn = database.connect()
    for _ in range(2):
        conn.execute("select pgqueue.enqueue('t', key => 'k' || n) from generate_series(1, %s) n", [count])
    held = reserve(conn, count)
    assert len(held) == count
    claim = open_with(database.session())
    claim.run("select id from pgqueue.reserve('other', 1000)")
    # A first claim makes its plans, and may not come to the end of the lane.
    blocked = value(
        conn,
        "select count(*) from pg_locks where locktype = 'advisory' and mode = 'ShareLock'"
        " and database = (select oid from pg_database where datname = current_database())",
    )
    assert blocked > 0
    conn.execute("set statement_timeout = '20s'")
    assert column(conn, "complete_many", *pairs(held)) == []
    assert value(conn, "select count(*) from pgqueue.key_notes") == blocked
    claim.run("commit")
    wait_until(lambda: reserve(conn, 1000) is not None and value(conn, STILL_WAITING) == 0)
    assert left_behind(conn) == 0


STILL_WAITING = "select count(*) from pgqueue.jobs where state <> 'executing'"


@pytest.mark.covers("L1")
@pytest.mark.parametrize("away", ["cancel", "delete"])
def test_a_waiting_job_leaves_while_an_open_claim_blocks_behind_it(database: Database, away: str) -> None:
    conn = database.connect()
    call(conn, "set_limit", "limit_key", "l", max_executing=0)
    first = enqueue(conn, key="k", limit_key="l")
    block_behind(conn)
    assert is_blocked(conn, first)
    second = enqueue(conn, key="k")
    claim = open_with(database.session())
    assert claim.run(RESERVE) == []
    conn.execute("set statement_timeout = '20s'")
    call(conn, away, first)
    claim.run("commit")
    assert ids(reserve(conn, 10)) == [second]
    assert left_behind(conn) == 0


@pytest.mark.covers("L1")
@pytest.mark.parametrize("leaving", ["fail", "release"])
def test_an_earlier_job_that_an_open_claim_blocks_follows_one_that_goes_back(
    database: Database, clock: Clock, leaving: str
) -> None:
    clock.set("2030-01-01 12:00+00")
    conn = database.connect()
    earlier = enqueue(conn, key="k", delay="1 min")
    later = enqueue(conn, key="k")
    held = reserve_one(conn, lease="1 hour")
    assert held.id == later
    clock.advance("1 min")
    claim = open_with(database.session())
    assert claim.run(RESERVE) == []
    conn.execute("set statement_timeout = '20s'")
    if leaving == "fail":
        assert call(conn, "fail", held.id, held.reservation, retry_in="1 h") == "failed"
    else:
        assert column(conn, "release", [held.id], [held.reservation], delay="1 h") == []
    claim.run("commit")
    assert state(conn, earlier) == "blocked"
    assert ids(reserve(conn, 10)) == [earlier]
    assert left_behind(conn) == 0


@pytest.mark.covers("L1")
@pytest.mark.parametrize("count", [1, 50])
def test_a_claim_between_the_mark_of_a_leaving_job_and_its_check_blocks_nothing(
    database: Database, clock: Clock, count: int
) -> None:
    clock.set("2030-01-01 12:00+00")
    conn = database.connect()
    for _ in range(2):
        conn.execute("select pgqueue.enqueue('t', key => 'k' || n) from generate_series(1, %s) n", [count])
    held = reserve(conn, count)
    gate, finish = open_with(database.session()), database.session()
    gate.run("select pg_advisory_xact_lock(1)")
    conn.execute("create function public.gate() returns void language sql as 'select pg_advisory_xact_lock_shared(1)'")
    source = value(conn, "select pg_get_functiondef('pgqueue._release_next'::regproc)")
    tried = "perform pgqueue._note_open_claims(p_job_ids, p_queues, p_keys);"
    assert source.count(tried) == 1
    conn.execute(source.replace(tried, f"{tried} perform public.gate();").encode())
    done = finish.start("select * from pgqueue.complete_many(%s, %s)", pairs(held))
    wait_until(lambda: finish.waits_behind(gate))
    assert reserve(conn, 100) == []
    assert value(conn, "select count(*) from pgqueue.jobs where state = 'blocked'") == 0
    gate.run("commit")
    assert done.result(10) == []
    clock.advance("1 s")
    assert len(reserve(conn, 100)) == count
    assert left_behind(conn) == 0


@pytest.mark.covers("L1")
@ENDS
def test_a_claim_defers_jobs_behind_one_that_is_being_finished(
    database: Database, clock: Clock, end: LiteralString
) -> None:
    now = clock.set("2030-01-01 12:00+00")
    conn = database.connect()
    held, [next_id] = chain(conn, 2)
    plain = enqueue(conn)
    finish = open_with(database.session())
    assert finish.run(COMPLETE, [held.id, held.reservation]) == [(True,)]
    assert ids(reserve(conn, 10)) == [plain]
    assert state(conn, next_id) == "waiting"
    ready_at = "select ready_at from pgqueue.jobs where id = %s"
    # An end mostly lasts for milliseconds. One that lasts is not looked at twenty times a second.
    assert value(conn, ready_at, next_id) == now + timedelta(milliseconds=50)
    later = clock.advance("50 ms")
    assert reserve(conn, 10) == []
    assert value(conn, ready_at, next_id) == later + timedelta(seconds=1)
    finish.run(end)
    clock.advance("1 s")
    if end == "commit":
        assert ids(reserve(conn, 10)) == [next_id]
    else:
        block_behind(conn)
        assert is_blocked(conn, next_id)
    assert left_behind(conn) == 0


@pytest.mark.covers("L1")
def test_a_claim_blocks_jobs_behind_one_whose_step_is_not_committed(database: Database, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    conn = database.connect()
    held, [next_id] = chain(conn, 2)
    handler = open_with(database.session())
    assert handler.run("select pgqueue.complete_step(%s, %s, 's')", [held.id, held.reservation]) == [(True,)]
    block_behind(conn)
    assert is_blocked(conn, next_id)
    assert handler.run(COMPLETE, [held.id, held.reservation]) == [(True,)]
    handler.run("commit")
    assert ids(reserve(conn, 10)) == [next_id]
    assert left_behind(conn) == 0


@pytest.mark.covers("L1")
def test_a_job_that_gives_its_position_up_during_a_claim_blocks_no_other(database: Database) -> None:
    conn = database.connect()
    first, second = enqueue_many(conn, 2, key="k")
    # The claim finds the first one locked, and the second one behind it; then the first is gone.
    holder = open_with(database.session())
    holder.run("select pgqueue.cancel(%s)", [first])
    assert reserve(conn, 10) == []
    holder.run("commit")
    conn.execute("update pgqueue.jobs set ready_at = now() where id = %s", [second])
    assert ids(reserve(conn, 10)) == [second]


@pytest.mark.covers("L1")
def test_a_job_that_moves_to_another_queue_during_a_claim_blocks_no_other(database: Database) -> None:
    conn = database.connect()
    first, second = enqueue_many(conn, 2, key="k")
    moving, gate, claim = (open_with(database.session()) for _ in range(3))
    moving.run("select pgqueue.update_job(%s, queue => 'other')", [first])
    gate.run("select pg_advisory_xact_lock(1)")
    conn.execute("create function public.gate() returns void language sql as 'select pg_advisory_xact_lock_shared(1)'")
    source = value(conn, "select pg_get_functiondef('pgqueue._block_behind'::regproc)")
    conn.execute(source.replace("begin\n", "begin\n    perform public.gate();\n", 1).encode())
    # The claim has found that the first one is ahead, as the move is not committed yet.
    found = claim.start("select id from pgqueue.reserve('w', 10, '{default}')")
    wait_until(lambda: claim.waits_behind(gate))
    moving.run("commit")
    gate.run("commit")
    assert found.result(10) == [(second,)]
    claim.run("commit")
    assert ids(reserve(conn, 10)) == [first]
    assert left_behind(conn) == 0


# Two claims of one key, where the earlier job commits late.


@pytest.mark.covers("L1")
@ENDS
def test_of_two_claims_of_one_key_the_later_drops_its_candidate_and_goes_on(
    database: Database, end: LiteralString
) -> None:
    conn = database.connect()
    late, claim = open_with(database.session()), open_with(database.session())
    [[earlier]] = late.run("select pgqueue.enqueue('t', key => 'k')")
    later = enqueue(conn, key="k")
    assert claim.run(RESERVE) == [(later,)]
    late.run("commit")
    others = [enqueue(conn), enqueue(conn, key="k2"), enqueue(conn)]
    # Neither claim can see the other. The index does. (On a slow machine the wait for it may use a call's time up.)
    claimed: list[int] = []
    wait_until(lambda: bool(claimed.extend(ids(reserve(conn, 3))) or sorted(claimed) == others))
    assert state(conn, earlier) == "waiting"
    claim.run(end)
    conn.execute("update pgqueue.jobs set ready_at = now() where id = %s and state = 'waiting'", [earlier])
    if end == "rollback":
        assert ids(reserve(conn, 10)) == [earlier]
        return
    block_behind(conn)
    assert is_blocked(conn, earlier)
    [[reservation]] = conn.execute("select reservation from pgqueue.jobs where id = %s", [later]).fetchall()
    assert call(conn, "complete", later, reservation) is True
    assert ids(reserve(conn, 10)) == [earlier]


@pytest.mark.covers("L1")
def test_a_claim_that_is_held_open_keeps_no_other_waiting_however_many_keys_it_has(database: Database) -> None:
    conn = database.connect()
    late, claim = open_with(database.session()), open_with(database.session())
    late.run("select pgqueue.enqueue('t', key => 'k' || n) from generate_series(1, 800) n")
    conn.execute("select pgqueue.enqueue('t', key => 'k' || n) from generate_series(1, 800) n")
    assert len(claim.run("select id from pgqueue.reserve('other', 800)")) == 800
    late.run("commit")
    plain = enqueue_many(conn, 3)
    # It waits 20 ms for the first of them.
    conn.execute("set statement_timeout = '12s'")
    assert ids(reserve(conn, 803)) == plain
    claim.run("commit")


@pytest.mark.covers("L1")
def test_two_claims_that_want_each_others_keys_end_without_a_deadlock(database: Database) -> None:
    conn = database.connect()
    first, second = open_with(database.session()), open_with(database.session())
    early = [open_with(database.session()) for _ in range(2)]
    a_early = early[0].run("select pgqueue.enqueue('t', key => 'a', queue => 'q')")[0][0]
    b_early = early[1].run("select pgqueue.enqueue('t', key => 'b', queue => 'q')")[0][0]
    a_late, b_late = enqueue(conn, key="a", queue="q"), enqueue(conn, key="b", queue="q", priority=1)
    assert first.run("select id from pgqueue.reserve('first', 1, '{q}')") == [(b_late,)]
    assert second.run("select id from pgqueue.reserve('second', 1, '{q}')") == [(a_late,)]
    for session in early:
        session.run("commit")
    # Each sees the early job of both keys, and holds one key itself.
    one = first.start("select id from pgqueue.reserve('first', 10, '{q}')")
    other = second.start("select id from pgqueue.reserve('second', 10, '{q}')")
    assert (one.result(10), other.result(10)) == ([], [])
    first.run("commit")
    second.run("commit")
    assert {state(conn, a_late), state(conn, b_late)} == {"executing"}
    assert {state(conn, a_early), state(conn, b_early)} <= {"waiting", "blocked"}


# A finish against a session that removes the next job.


@pytest.mark.covers("L1", "A6")
@pytest.mark.parametrize("away", ["cancel", "delete"])
@ENDS
def test_a_finish_passes_over_a_next_job_that_is_being_taken_away(
    database: Database, away: str, end: LiteralString
) -> None:
    conn = database.connect()
    held, [next_id, following] = chain(conn, 3)
    block_behind(conn)
    assert is_blocked(conn, next_id, following)
    taking = open_with(database.session())
    taking.run("select pgqueue.cancel(%s)" if away == "cancel" else "select pgqueue.delete(%s)", [next_id])
    conn.execute("set statement_timeout = '5s'")
    assert call(conn, "complete", held.id, held.reservation) is True
    taking.run(end)
    expected = following if end == "commit" else next_id
    claimed = reserve(conn, 10)
    assert ids(claimed) == [expected]
    assert left_behind(conn) == 0
    if end == "rollback":
        call(conn, "complete", next_id, claimed[0].reservation)
        assert ids(reserve(conn, 10)) == [following]


@pytest.mark.covers("L1", "A6")
@pytest.mark.parametrize("away", ["cancel", "delete"])
@ENDS
def test_removing_the_next_job_waits_for_a_finish_that_releases_it(
    database: Database, away: str, end: LiteralString
) -> None:
    conn = database.connect()
    held, [next_id, following] = chain(conn, 3)
    block_behind(conn)
    finish, taking = open_with(database.session()), database.session()
    finish.run(COMPLETE, [held.id, held.reservation])
    taken = taking.start("select pgqueue.cancel(%s)" if away == "cancel" else "select pgqueue.delete(%s)", [next_id])
    wait_until(lambda: taking.waits_behind(finish))
    finish.run(end)
    assert taken.result(10)[0][0] in ("cancelled", True)
    if end == "rollback":
        # It was released too early; it is blocked again.
        block_behind(conn)
        assert is_blocked(conn, following)
        assert call(conn, "complete", held.id, held.reservation) is True
    assert ids(reserve(conn, 10)) == [following]
    assert left_behind(conn) == 0


@pytest.mark.covers("L1")
def test_two_batches_that_release_each_others_next_jobs_do_not_deadlock(database: Database) -> None:
    conn = database.connect()
    keys = [f"k{n}" for n in range(20)]
    for _ in range(2):
        for key in keys:
            enqueue(conn, key=key)
    held = reserve(conn, 40)
    assert len(held) == 20
    first, second = open_with(database.session()), database.session()
    first.run("select * from pgqueue.complete_many(%s, %s)", pairs(held[10:]))
    other = second.start("select * from pgqueue.complete_many(%s, %s)", pairs(held[:10]))
    assert other.result(10) == []
    first.run("commit")
    assert len(reserve(conn, 40)) == 20


# A completion held open.


@pytest.mark.covers("L1")
def test_a_completion_held_open_stops_only_its_key(database: Database, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    conn = database.connect()
    held, behind = chain(conn, 10_001)
    plain = enqueue_many(conn, 50)
    finish = open_with(database.session())
    finish.run(COMPLETE, [held.id, held.reservation])
    got: list[int] = []
    calls = 0
    while len(got) < len(plain) and calls < 150:
        got += ids(reserve(conn, 10))
        calls += 1
    assert got == plain
    assert value(conn, "select count(*) from pgqueue.jobs where state = 'blocked'") == 0
    finish.run("commit")
    clock.advance("1 s")
    assert ids(reserve(conn, 1)) == behind[:1]
    assert left_behind(conn) == 0


# Above READ COMMITTED.


@pytest.mark.covers("L1")
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_completion_with_an_old_snapshot_releases_jobs_blocked_since(database: Database, level: str) -> None:
    conn = database.connect()
    held, [next_id] = chain(conn, 2)
    finish = database.session()
    finish.run(BEGIN[level])
    finish.run("select count(*) from pgqueue.jobs")
    block_behind(conn)
    assert is_blocked(conn, next_id)
    assert finish.run(COMPLETE, [held.id, held.reservation]) == [(True,)]
    finish.run("commit")
    assert ids(reserve(conn, 10)) == [next_id]
    assert value(conn, "select count(*) from pgqueue.key_notes") == 0
    assert left_behind(conn) == 0


@pytest.mark.covers("L1")
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_failure_with_an_old_snapshot_releases_an_earlier_job_that_was_blocked_since(
    database: Database, clock: Clock, level: str
) -> None:
    clock.set("2030-01-01 12:00+00")
    conn = database.connect()
    earlier = enqueue(conn, key="k", delay="1 min")
    enqueue(conn, key="k")
    held = reserve_one(conn, lease="1 hour")
    clock.advance("1 min")
    finish = database.session()
    finish.run(BEGIN[level])
    finish.run("select count(*) from pgqueue.jobs")
    block_behind(conn)
    assert finish.run("select pgqueue.fail(%s, %s, retry_in => '1 h')", [held.id, held.reservation]) == [("failed",)]
    finish.run("commit")
    assert ids(reserve(conn, 10)) == [earlier]
    assert left_behind(conn) == 0


# Calls of accumulating tasks.


@pytest.mark.covers("L13")
def test_a_locked_payload_stops_neither_rescue_nor_reserve(database: Database, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    conn = database.connect()
    maintain(conn)
    call(conn, "declare_task", "acc", accumulate=True)
    for n in range(3):
        enqueue(conn, "acc", {"n": n}, key="k")
    plain = enqueue(conn)
    call_rows = reserve(conn, 2, lease="10 s")
    assert len(call_rows) == 4
    holder = open_with(database.session())
    holder.run("select from pgqueue.jobs where id = %s for update", [call_rows[1].id])
    for _ in range(4):
        clock.advance("4 s")
        maintain(conn)
    assert stats(conn).maintenance["failures"] == {}
    assert state(conn, plain) == "waiting"
    # The whole call counts as held.
    assert {state(conn, row.id) for row in call_rows if row.task == "acc"} == {"executing"}
    conn.execute("set statement_timeout = '5s'")
    assert ids(reserve(conn, 10)) == [plain]
    assert column(conn, "release", *pairs(call_rows[:1])) == []
    holder.run("commit")
    assert len(reserve(conn, 1)) == 3


@pytest.mark.covers("L6")
def test_a_call_that_lost_its_first_key_is_not_given_to_another_task(database: Database) -> None:
    conn = database.connect()
    call(conn, "declare_task", "acc", accumulate=True, batch_size=5)
    late, claim = open_with(database.session()), open_with(database.session())
    # Of the first key an earlier payload commits late, and the claim of the later one is not committed.
    late.run("select pgqueue.enqueue('acc', '{\"n\": 1}', key => 'a')")
    enqueue(conn, "acc", {"n": 2}, key="a")
    assert len(claim.run(RESERVE)) == 1
    late.run("commit")
    plain = [enqueue(conn, key="p1"), enqueue(conn, key="p2")]
    payload = enqueue(conn, "acc", {"n": 3}, key="b")
    calls = [ids(reserve(conn, 1)) for _ in range(3)]
    claim.run("commit")
    assert calls == [[plain[0]], [plain[1]], [payload]]


# Limits.


def limit(
    conn: psycopg.Connection,
    kind: str,
    target: str,
    at_most: int | None = None,
    rate: int | None = None,
    per: str | None = None,
) -> None:
    conn.execute(
        "insert into pgqueue.limits (kind, target, max_executing, rate, per) values (%s, %s, %s, %s, %s)",
        [kind, target, at_most, rate, per],
    )


@pytest.mark.parametrize("kind", ["queue", "task", "key", "limit_key"])
@ENDS
def test_two_claims_under_one_limit_never_exceed_it(database: Database, kind: str, end: LiteralString) -> None:
    conn = database.connect()
    target = {"queue": "q", "task": "t", "key": "k", "limit_key": "l"}[kind]
    limit(conn, kind, target, at_most=3)
    for n in range(8):
        enqueue(conn, queue="q", key=f"k{n}", limit_key="l")
    first = open_with(database.session())
    assert len(first.run("select id from pgqueue.reserve('first', 2)")) == 2
    conn.execute("set statement_timeout = '5s'")
    # The second cannot know what the first is going to be: it leaves these jobs alone.
    assert reserve(conn, 10) == []
    first.run(end)
    assert len(reserve(conn, 10)) == (1 if end == "commit" else 3)
    assert reserve(conn, 10) == []


def test_a_rate_holds_for_two_claims_at_once(database: Database, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    conn = database.connect()
    limit(conn, "task", "t", rate=3, per="10 s")
    enqueue_many(conn, 8)
    first = open_with(database.session())
    assert len(first.run("select id from pgqueue.reserve('first', 2)")) == 2
    assert reserve(conn, 10) == []
    first.run("commit")
    assert len(reserve(conn, 10)) == 1


def test_a_job_blocked_by_a_limit_while_the_last_one_leaves_is_released(database: Database, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    conn = database.connect()
    limit(conn, "task", "t", at_most=1)
    enqueue(conn)
    held = reserve_one(conn)
    waiting = enqueue(conn)
    claim = open_with(database.session())
    assert claim.run(RESERVE) == []  # blocked, not committed
    assert call(conn, "complete", held.id, held.reservation) is True
    claim.run("commit")
    assert state(conn, waiting) == "blocked"
    clock.advance("1 s")
    assert ids(reserve(conn, 10)) == [waiting]


def test_a_check_of_a_limit_while_a_claim_blocks_jobs_on_it_loses_none(database: Database, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    conn = database.connect()
    limit(conn, "task", "t", rate=1, per="10 s")
    enqueue_many(conn, 2)
    [_] = reserve(conn, 1)
    reserve(conn, 1)
    assert value(conn, "select count(*) from pgqueue.limit_waits") == 1
    conn.execute("delete from pgqueue.jobs where state = 'blocked'")
    waiting = enqueue(conn)
    clock.advance("9 s")
    claim = open_with(database.session())
    assert claim.run(RESERVE) == []
    clock.advance("2 s")
    # The limit is due, and no other job that it blocks is visible.
    maintain(conn)
    claim.run("commit")
    assert state(conn, waiting) == "blocked"
    clock.advance("1 s")
    assert ids(reserve(conn, 10)) == [waiting]


@ENDS
def test_a_leaver_waits_for_no_claim_under_its_limit(database: Database, clock: Clock, end: LiteralString) -> None:
    clock.set("2030-01-01 12:00+00")
    conn = database.connect()
    limit(conn, "limit_key", "l", at_most=2)
    enqueue_many(conn, 4, limit_key="l")
    held = reserve(conn, 10)
    assert len(held) == 2
    claim = open_with(database.session())
    claim.run(RESERVE)
    conn.execute("set statement_timeout = '5s'")
    assert column(conn, "complete_many", *pairs(held)) == []
    claim.run(end)
    clock.advance("1 s")
    assert len(reserve(conn, 10)) == 2
    assert job(conn, held[0].id).state == "succeeded"
