"""Heads of lanes: no claim walks what others have claimed, and none passes a job by.

Orders are forced with a clock that moves by hand. Each test lets the head pass a job's place, or try to, and then lets
the job come: it must be handed out. See sql/functions/claim/_head.sql for the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

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
    state,
    stats,
    table,
    value,
)
from tests.databases import Database

pytestmark = pytest.mark.covers("D1", "D3")

NOON = "2030-01-01 12:00+00"
BEGINNING = "-infinity"
# Below and above the 250 ms after which no head waits for a transaction.
SOON, LATE = "110 ms", "2 s"


def head(conn: psycopg.Connection, queue: str = "default", *, resumed: bool = False) -> str | datetime:
    """The head as readers see it; psycopg has no infinite times."""
    found = value(
        conn,
        "select nullif(h.head, '-infinity') from pgqueue._head(%s, 0::smallint, %s) h",
        queue,
        resumed,
    )
    return BEGINNING if found is None else found


def ready_at(conn: psycopg.Connection, job_id: int) -> datetime:
    at: datetime = value(conn, "select ready_at from pgqueue.jobs where id = %s", job_id)
    return at


@dataclass
class Traffic:
    """Jobs that come and go, while maintenance moves the heads."""

    conn: psycopg.Connection
    clock: Clock

    def flow(self, queue: str = "default", *, step: str = LATE, rounds: int = 4) -> None:
        for _ in range(rounds):
            # Fifty and more: smaller claims leave the head to one among them.
            enqueue_many(self.conn, 60, "traffic", queue=queue)
            self.clock.advance("1 ms")
            while held := [row for row in reserve(self.conn, 100, queues=[queue]) if row.task == "traffic"]:
                column(self.conn, "complete_many", *pairs(held))
            self.clock.advance(step)
            maintain(self.conn)

    def pass_by(self, queue: str = "default", *, resumed: bool = False) -> None:
        """Let the head of the queue pass all that there has been."""
        now = self.clock.now()
        # Where few come back, the head follows within a minute.
        self.flow(queue, step="61 s" if resumed else LATE)
        passed = head(self.conn, queue, resumed=resumed)
        assert isinstance(passed, datetime)
        assert passed > now


@pytest.fixture
def traffic(conn: psycopg.Connection, clock: Clock) -> Traffic:
    clock.set(NOON)
    return Traffic(conn, clock)


def test_the_head_passes_what_was_claimed_and_stops_at_the_first_that_waits(
    conn: psycopg.Connection, clock: Clock, traffic: Traffic
) -> None:
    job_ids = []
    for _ in range(3):
        job_ids.append(enqueue(conn))
        clock.advance("1 ms")
    first, second, third = (ready_at(conn, job_id) for job_id in job_ids)
    for _ in range(3):
        clock.advance("1 s")
        maintain(conn)
    assert head(conn) == first
    held = reserve_one(conn)
    clock.advance("1 s")
    maintain(conn)
    assert head(conn) == second
    call(conn, "complete", held.id, held.reservation)
    reserve_one(conn)
    clock.advance("1 s")
    maintain(conn)
    assert head(conn) == third


def test_a_client_that_only_reserves_moves_the_head_as_well(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    enqueue_many(conn, 600)
    first = ready_at(conn, enqueue(conn))
    for _ in range(4):
        clock.advance("1 s")
        enqueue_many(conn, 100)
        # Fifty and more: smaller claims leave it to one among them.
        column(conn, "complete_many", *pairs(reserve(conn, 150)))
    moved = head(conn)
    assert moved != BEGINNING
    assert moved >= first
    assert head(conn, "") != BEGINNING


def test_a_head_is_not_moved_more_often_than_every_tenth_of_a_second(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    enqueue_many(conn, 3000)
    for _ in range(20):
        clock.advance("10 ms")
        column(conn, "complete_many", *pairs(reserve(conn, 100)))
    assert value(conn, "select count(*) from pgqueue.heads where queue = 'default' and not resumed") <= 3
    assert value(conn, "select count(*) from pgqueue.horizons") <= 3


def test_nothing_is_written_on_a_queue_at_rest(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> None:
    def written() -> int:
        count: int = value(conn, "select max(n) from pgqueue.heads")
        return count

    traffic.flow()
    waiting = enqueue(conn, queue="waiting")
    for _ in range(5):
        clock.advance("1 s")
        maintain(conn)
    # Leases may lapse for a while.
    clock.advance("11 min")
    for _ in range(5):
        clock.advance("1 s")
        maintain(conn)
    before = written()
    for _ in range(100):
        clock.advance("10 s")
        maintain(conn)
    assert written() == before
    assert ids(reserve(conn, queues=["waiting"])) == [waiting]


def test_old_heads_and_horizons_are_cleared_away(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> None:
    for _ in range(4):
        traffic.flow(rounds=10, step="10 s")
    rows = "select count(*) from pgqueue.heads where queue = 'default' and not resumed"
    assert value(conn, rows) <= 10
    assert value(conn, "select count(*) from pgqueue.horizons") <= 20


# --- (a) and (b): producers that commit late -------------------------------------------------------------------------


@pytest.mark.parametrize("step", [SOON, LATE], ids=["waited for", "written down"])
def test_a_producer_newer_than_the_last_transaction_that_ended_loses_no_job(
    database: Database, conn: psycopg.Connection, clock: Clock, traffic: Traffic, step: str
) -> None:
    traffic.pass_by()
    producer = database.connect(autocommit=False)
    job_id = enqueue(producer)
    at = ready_at(producer, job_id)
    # Nothing has ended here since it took its xid: no snapshot's list names it, until the next horizon was committed.
    clock.advance("60 ms")
    maintain(conn)
    assert head(conn) <= at  # type: ignore[operator]
    clock.advance("60 ms")
    maintain(conn)
    traffic.flow(step=step, rounds=1 if step == SOON else 4)
    passed = head(conn)
    assert isinstance(passed, datetime)
    assert (passed > at) == (step == LATE)
    producer.commit()
    assert job_id in ids(reserve(conn, 10))


def test_a_producer_whose_xid_is_the_newest_of_all_loses_no_job(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2020-01-01 12:00+00")
    Traffic(conn, clock).pass_by()
    # From here on the clock runs: to move it by hand is a transaction, which would end after the producer's xid.
    clock.back_to_real()
    # Years have passed: the lane would be dropped as empty.
    conn.execute("update pgqueue.lanes set until = now() + '1 hour'::interval")
    producer = database.connect(autocommit=False)
    job_id = enqueue(producer)
    # No snapshot lists the producer as running: its xid is not below one that has ended. Its job is older than the
    # horizon that this notes.
    maintain(conn)
    producer.commit()
    assert ids(reserve(conn)) == [job_id]


@pytest.mark.parametrize("taken_late", [False, True])
def test_a_producer_that_commits_between_proposal_and_taking_loses_no_job(
    database: Database, conn: psycopg.Connection, clock: Clock, traffic: Traffic, taken_late: bool
) -> None:
    traffic.pass_by()
    producer = database.connect(autocommit=False)
    job_id = enqueue(producer)
    clock.advance("200 ms")
    maintain(conn)  # notes a horizon that is above the job
    producer.commit()
    for _ in range(3):
        clock.advance("10 s" if taken_late else "150 ms")
        maintain(conn)
    assert ids(reserve(conn)) == [job_id]


def test_a_producer_that_began_before_the_horizon_and_enqueues_after_it_loses_no_job(
    database: Database, conn: psycopg.Connection, clock: Clock, traffic: Traffic
) -> None:
    producer = database.connect(autocommit=False)
    first = enqueue(producer)
    traffic.pass_by()
    second = enqueue(producer)
    traffic.pass_by()
    producer.commit()
    assert ids(reserve(conn, 10)) == [first, second]


def test_what_a_long_transaction_leaves_is_gone_back_to_once(
    database: Database, conn: psycopg.Connection, clock: Clock, traffic: Traffic
) -> None:
    producer = database.connect(autocommit=False)
    job_id = enqueue(producer)
    at = ready_at(producer, job_id)
    traffic.pass_by()
    producer.commit()
    assert head(conn) <= at if (found := head(conn)) != BEGINNING else found  # type: ignore[operator]
    clock.advance("1 s")
    maintain(conn)
    assert head(conn) == at
    held = reserve_one(conn)
    assert held.id == job_id
    call(conn, "complete", held.id, held.reservation)
    for _ in range(2):
        clock.advance("1 s")
        maintain(conn)
    moved = head(conn)
    assert isinstance(moved, datetime)
    assert moved > at
    assert value(conn, "select open_xids is null from pgqueue.heads where queue = 'default' order by n desc limit 1")


def test_a_transaction_that_rolls_back_is_forgotten(
    database: Database, conn: psycopg.Connection, clock: Clock, traffic: Traffic
) -> None:
    producer = database.connect(autocommit=False)
    at = ready_at(producer, enqueue(producer))
    traffic.pass_by()
    producer.rollback()
    clock.advance("1 s")
    maintain(conn)
    moved = head(conn)
    assert isinstance(moved, datetime)
    assert moved > at


def test_of_several_long_transactions_each_is_gone_back_to(
    database: Database, conn: psycopg.Connection, traffic: Traffic
) -> None:
    producers = []
    for _ in range(3):
        producer = database.connect(autocommit=False)
        producers.append((producer, enqueue(producer)))
        traffic.flow()
    for producer, job_id in (producers[1], producers[2], producers[0]):
        producer.commit()
        assert ids(reserve(conn, 10)) == [job_id]
        traffic.flow()


def test_a_claim_that_is_rolled_back_leaves_its_jobs_above_the_head(
    database: Database, conn: psycopg.Connection, clock: Clock, traffic: Traffic
) -> None:
    job_ids = enqueue_many(conn, 60)
    claimer = database.connect(autocommit=False)
    assert ids(reserve(claimer, 60)) == job_ids
    traffic.flow()
    claimer.rollback()
    assert ids(reserve(conn, 100)) == job_ids


def test_the_head_that_a_rolled_back_claim_moved_does_not_stand(
    database: Database, conn: psycopg.Connection, clock: Clock, traffic: Traffic
) -> None:
    job_ids = enqueue_many(conn, 100)
    for _ in range(3):
        clock.advance("1 s")
        maintain(conn)
    before = head(conn)
    claimer = database.connect(autocommit=False)
    for _ in range(2):
        clock.advance("1 s")
        reserve(claimer, 50)
    claimer.rollback()
    assert head(conn) == before
    assert ids(reserve(conn, 100)) == job_ids


def test_a_transaction_that_has_its_xid_proposes_nothing(
    database: Database, conn: psycopg.Connection, clock: Clock, traffic: Traffic
) -> None:
    """Between its xid and its clock other transactions may have begun that nothing waits for."""
    traffic.pass_by()
    claimer, producer = database.connect(autocommit=False), database.connect(autocommit=False)
    claimer.execute("select pg_current_xact_id()")
    job_id = enqueue(producer)
    clock.advance("1 ms")
    enqueue_many(conn, 100)
    clock.advance("1 s")
    reserve(claimer, 100)
    maintain(claimer)
    claimer.commit()
    clock.advance("150 ms")
    enqueue_many(conn, 100)
    column(conn, "complete_many", *pairs(reserve(conn, 100)))
    producer.commit()
    assert job_id in ids(reserve(conn, 100))


# --- (c) ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made_by", ["the writer", "another"])
def test_a_lane_made_while_a_long_writer_is_open_hides_none_of_its_jobs(
    database: Database, conn: psycopg.Connection, traffic: Traffic, made_by: str
) -> None:
    traffic.pass_by()
    writer = database.connect(autocommit=False)
    enqueue(writer)
    if made_by == "the writer":
        job_id = enqueue(writer, queue="new")
        # It is written down for this lane before there is the other.
        traffic.pass_by()
        traffic.pass_by("new")
    else:
        traffic.pass_by()
        traffic.pass_by("new")
        job_id = enqueue(writer, queue="new")
        traffic.pass_by("new")
    writer.commit()
    assert ids(reserve(conn, queues=["new"])) == [job_id]


def test_a_lane_on_which_an_open_writer_relies_is_not_dropped(
    database: Database, conn: psycopg.Connection, clock: Clock, traffic: Traffic
) -> None:
    traffic.pass_by("old")
    writer = database.connect(autocommit=False)
    job_id = enqueue(writer, queue="old")
    traffic.pass_by("old")
    for _ in range(3):
        clock.advance("2 hours")
        maintain(conn)
    assert value(conn, "select count(*) from pgqueue.lanes where queue = 'old'") == 1
    writer.commit()
    assert ids(reserve(conn, queues=["old"])) == [job_id]


def test_the_heads_of_a_lane_that_was_dropped_go_an_hour_later(
    conn: psycopg.Connection, clock: Clock, traffic: Traffic
) -> None:
    traffic.pass_by("old")
    for _ in range(4):
        clock.advance("61 min")
        maintain(conn)
    assert value(conn, "select count(*) from pgqueue.lanes where queue = 'old'") == 0
    assert value(conn, "select count(*) from pgqueue.heads where queue = 'old'") == 0
    job_id = enqueue(conn, queue="old")
    assert ids(reserve(conn, queues=["old"])) == [job_id]


# --- (d): every way back into the ready index -----------------------------------------------------------------------

Way = Callable[[psycopg.Connection, Clock, Traffic], int]
WAYS: dict[str, Way] = {}


def way(build: Way) -> Way:
    """A function that takes a job out, lets the head pass its place, brings it back and returns its id."""
    WAYS[build.__name__] = build
    return build


def taken(conn: psycopg.Connection, traffic: Traffic, **options: object) -> tuple[int, int]:
    """A job that executes, with its reservation, and that the head has passed."""
    lease = options.pop("lease", "1 day")
    enqueue(conn, **options)
    held = reserve_one(conn, lease=lease)
    traffic.pass_by()
    return held.id, held.reservation


@way
def fails_and_is_retried_at_once(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    job_id, reservation = taken(conn, traffic)
    assert call(conn, "fail", job_id, reservation, retry_in="0") == "failed"
    return job_id


@way
def fails_and_its_time_comes(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    job_id, reservation = taken(conn, traffic)
    call(conn, "fail", job_id, reservation, retry_in="5 s")
    traffic.flow(rounds=2)
    clock.advance("2 s")
    return job_id


@way
def failed_is_retried_by_hand(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    job_id, reservation = taken(conn, traffic)
    call(conn, "fail", job_id, reservation, retry_in="1 day")
    traffic.pass_by()
    assert call(conn, "retry", job_id) is True
    return job_id


@way
def dead_is_retried_by_hand(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    job_id, reservation = taken(conn, traffic)
    assert call(conn, "fail", job_id, reservation, retry=False) == "dead"
    traffic.pass_by()
    assert call(conn, "retry", job_id) is True
    return job_id


@way
def dead_are_retried_in_bulk(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    job_id, reservation = taken(conn, traffic)
    call(conn, "fail", job_id, reservation, retry=False)
    traffic.pass_by()
    table(conn, "retry_many", job_ids=[job_id])
    return job_id


@way
def cancelled_is_retried_by_hand(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    job_id = enqueue(conn)
    assert call(conn, "cancel", job_id) == "cancelled"
    traffic.pass_by()
    assert call(conn, "retry", job_id) is True
    return job_id


@way
def is_released(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    job_id, reservation = taken(conn, traffic)
    assert column(conn, "release", [job_id], [reservation]) == []
    return job_id


@way
def is_released_again_behind_the_head_of_those_that_came_back(
    conn: psycopg.Connection, clock: Clock, traffic: Traffic
) -> int:
    job_id, reservation = taken(conn, traffic)
    for _ in range(2):
        column(conn, "release", [job_id], [reservation])
        clock.advance("1 ms")
        reservation = reserve_one(conn, lease="1 day").reservation
        traffic.pass_by(resumed=True)
    column(conn, "release", [job_id], [reservation])
    return job_id


@way
def is_snoozed_for_nothing(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    job_id, reservation = taken(conn, traffic)
    assert call(conn, "snooze", job_id, reservation, "0") is True
    return job_id


@way
def is_given_back_as_unheld(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    job_id, _ = taken(conn, traffic)
    assert column(conn, "release_unheld", "w") == [job_id]
    return job_id


@way
def its_worker_crashed(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    job_id, _ = taken(conn, traffic)
    assert column(conn, "crashed", "w") == [job_id]
    return job_id


@way
def its_lease_lapses(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    job_id, _ = taken(conn, traffic, lease="20 s")
    # It gets a grace period, for maintenance had not run before.
    for _ in range(10):
        clock.advance("4 s")
        maintain(conn)
    clock.advance("1 ms")
    return job_id


@way
def its_lease_lapses_unseen_by_maintenance(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    job_id, _ = taken(conn, traffic, lease="20 s")
    conn.execute("update pgqueue.jobs set grace_given = true")
    clock.advance("30 s")
    return job_id


@way
def is_let_go_by_the_one_ahead_in_its_key(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    enqueue(conn, key="k")
    ahead = reserve_one(conn, lease="1 day")
    job_id = enqueue(conn, key="k")
    assert reserve(conn) == []
    assert state(conn, job_id) == "blocked"
    traffic.pass_by()
    call(conn, "complete", ahead.id, ahead.reservation)
    return job_id


@way
def is_let_go_by_a_note(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    enqueue(conn, key="k")
    ahead = reserve_one(conn, lease="1 day")
    job_id = enqueue(conn, key="k")
    assert reserve(conn) == []
    traffic.pass_by()
    conn.execute("begin isolation level repeatable read")
    call(conn, "complete", ahead.id, ahead.reservation)
    conn.execute("commit")
    assert state(conn, job_id) == "blocked"
    return job_id


@way
def is_let_go_as_a_limit_is_left(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    call(conn, "set_limit", "task", "t", 1)
    enqueue(conn)
    ahead = reserve_one(conn, lease="1 day")
    job_id = enqueue(conn)
    assert reserve(conn) == []
    assert state(conn, job_id) == "blocked"
    traffic.pass_by()
    call(conn, "complete", ahead.id, ahead.reservation)
    return job_id


@way
def is_let_go_as_a_limit_is_dropped(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    call(conn, "set_limit", "task", "t", 1)
    enqueue(conn)
    reserve_one(conn, lease="1 day")
    job_id = enqueue(conn)
    assert reserve(conn) == []
    traffic.pass_by()
    call(conn, "drop_limit", "task", "t")
    maintain(conn)
    return job_id


@way
def a_queue_under_a_limit_gets_room(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    call(conn, "set_limit", "queue", "default", 0)
    job_id = enqueue(conn)
    traffic.flow("other")
    call(conn, "drop_limit", "queue", "default")
    return job_id


@way
def its_queue_is_resumed(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    job_id = enqueue(conn)
    call(conn, "pause_queue", "default")
    traffic.flow("other")
    call(conn, "resume_queue", "default")
    return job_id


@way
def is_enqueued_for_the_past(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    traffic.pass_by()
    return enqueue(conn, run_at="2029-01-01 00:00+00")


@way
def is_replaced_by_one_of_the_past(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    job_id = enqueue(conn, dedupe="d", delay="1 day")
    traffic.pass_by()
    assert enqueue(conn, dedupe="d", on_conflict="replace", run_at="2029-01-01 00:00+00") == job_id
    return job_id


@way
def is_replaced_while_it_is_blocked(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    enqueue(conn, key="k")
    ahead = reserve_one(conn, lease="1 day")
    job_id = enqueue(conn, key="k", dedupe="d")
    assert reserve(conn) == []
    traffic.pass_by()
    call(conn, "complete", ahead.id, ahead.reservation)
    assert enqueue(conn, key="k", dedupe="d", on_conflict="replace") == job_id
    return job_id


@way
def is_debounced_while_it_is_blocked(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    enqueue(conn, key="k")
    ahead = reserve_one(conn, lease="1 day")
    job_id = enqueue(conn, key="k", dedupe="d", delay="1 s")
    clock.advance("2 s")
    assert reserve(conn) == []
    assert state(conn, job_id) == "blocked"
    traffic.pass_by()
    # No further than its ceiling, which is long past.
    assert enqueue(conn, key="k", dedupe="d", on_conflict="debounce", delay="100 ms") == job_id
    call(conn, "complete", ahead.id, ahead.reservation)
    clock.advance("1 s")
    return job_id


@way
def is_to_run_now(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    job_id = enqueue(conn, delay="1 day")
    traffic.pass_by()
    table(conn, "run_now_many", job_ids=[job_id])
    return job_id


@way
def is_put_off_behind_a_locked_row(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    ahead = enqueue(conn, key="k", delay="1 s")
    job_id = enqueue(conn, key="k", delay="2 s")
    clock.advance("3 s")
    with psycopg.connect(conn.info.dsn, password=conn.info.password) as other:
        other.execute("select from pgqueue.jobs where id = %s for update", [ahead])
        assert reserve(conn) == []
        traffic.flow(step="100 ms")
    held = reserve_one(conn, lease="1 day")
    assert held.id == ahead
    traffic.pass_by()
    call(conn, "complete", held.id, held.reservation)
    return job_id


@way
def is_one_payload_of_a_call_that_failed(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    call(conn, "declare_task", "acc", accumulate=True)
    job_ids = [enqueue(conn, "acc", {"n": n}, key="k") for n in range(3)]
    held = reserve(conn, 1, lease="1 day")
    assert ids(held) == job_ids
    traffic.pass_by()
    call(conn, "fail", held[0].id, held[0].reservation, retry_in="0")
    return job_ids[0]


@way
def is_of_a_schedule(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    call(conn, "schedule", "s", task="t", every="10 s")
    traffic.pass_by()
    call(conn, "run_schedule_now", "s")
    job_id: int = value(conn, "select max(id) from pgqueue.jobs where task = 't'")
    call(conn, "pause_schedule", "s")
    return job_id


@way
def was_cut_short_by_a_step_back(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> int:
    traffic.pass_by()
    job_id = enqueue(conn)
    clock.advance("-1 hour")
    maintain(conn)
    clock.advance("1 s")
    return job_id


@pytest.mark.parametrize("name", WAYS)
def test_a_job_that_comes_back_is_above_the_head(
    conn: psycopg.Connection, clock: Clock, traffic: Traffic, name: str
) -> None:
    job_id = WAYS[name](conn, clock, traffic)
    found = [row for _ in range(3) for row in reserve(conn, 10, lease="1 day")]
    assert job_id in ids(found)
    assert value(conn, "select pgqueue._find_hidden()") == 0


def test_leases_of_a_claim_that_commits_late_lapse(
    database: Database, conn: psycopg.Connection, clock: Clock, traffic: Traffic
) -> None:
    claimer = database.connect(autocommit=False)
    job_id = enqueue(conn)
    assert ids(reserve(claimer, lease="1 s")) == [job_id]
    traffic.flow()
    now = clock.now()
    passed = head(conn, "")
    assert isinstance(passed, datetime)
    claimer.commit()
    assert job(conn, job_id).lease_expires_at < now
    conn.execute("update pgqueue.jobs set grace_given = true where id = %s", [job_id])
    assert ids(reserve(conn)) == [job_id]


def test_a_lease_that_is_extended_to_less_lapses(conn: psycopg.Connection, clock: Clock, traffic: Traffic) -> None:
    job_id = enqueue(conn)
    held = reserve_one(conn, lease="1 day")
    traffic.flow()
    assert head(conn, "") != BEGINNING
    table(conn, "extend", *pairs([held]), "1 s")
    for _ in range(2):
        clock.advance("1 s")
        maintain(conn)
    clock.advance("1 ms")
    assert ids(reserve(conn)) == [job_id]


# --- (e): clocks and dumps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("back", ["-1 hour", "-300 ms"])
@pytest.mark.parametrize("kept", [True, False], ids=["with maintenance", "reserve only"])
def test_what_comes_after_the_clock_stepped_back_is_found(
    conn: psycopg.Connection, clock: Clock, traffic: Traffic, back: str, kept: bool
) -> None:
    traffic.flow(step="100 ms", rounds=8)
    clock.advance(back)
    job_id = enqueue(conn)
    if kept:
        for _ in range(3):
            clock.advance("50 ms")
            maintain(conn)
    assert ids(reserve(conn)) == [job_id]
    traffic.flow(step="200 ms", rounds=8)
    assert value(conn, "select pgqueue._find_hidden()") == 0


def test_what_comes_after_a_step_back_is_still_found_when_the_clock_is_where_it_was(
    conn: psycopg.Connection, clock: Clock, traffic: Traffic
) -> None:
    traffic.pass_by()
    clock.advance("-1 hour")
    job_id = enqueue(conn)
    maintain(conn)
    clock.advance("2 hours")
    assert ids(reserve(conn)) == [job_id]


def test_a_horizon_of_before_a_step_back_is_not_taken(
    database: Database, conn: psycopg.Connection, clock: Clock, traffic: Traffic
) -> None:
    traffic.flow()
    clock.advance("1 s")
    maintain(conn)  # notes a horizon
    clock.advance("-500 ms")
    producer = database.connect(autocommit=False)
    job_id = enqueue(producer)
    clock.advance("1 ms")
    maintain(conn)
    traffic.flow(step="110 ms", rounds=6)
    producer.commit()
    assert job_id in ids(reserve(conn, 10))


def test_heads_that_came_with_a_dump_count_for_nothing(
    conn: psycopg.Connection, clock: Clock, traffic: Traffic
) -> None:
    traffic.pass_by()
    # As on a younger server: its transactions have not got that far yet.
    for name in ("heads", "horizons"):
        conn.execute(
            f"update pgqueue.{name} set xid = (pg_current_xact_id()::text::bigint + 1000000)::text::xid8".encode()
        )
    assert head(conn) == BEGINNING
    job_id = enqueue(conn)
    conn.execute("update pgqueue.jobs set ready_at = '2029-01-01 00:00+00'")
    for _ in range(4):
        clock.advance("1 s")
        maintain(conn)
    assert head(conn) == ready_at(conn, job_id)
    assert ids(reserve(conn)) == [job_id]


def test_ready_jobs_below_their_head_are_found_once_a_minute_and_counted(
    conn: psycopg.Connection, clock: Clock, traffic: Traffic
) -> None:
    traffic.pass_by()
    held = reserve_one(conn) if enqueue(conn) else None
    assert held is not None
    job_id = enqueue(conn)
    traffic.pass_by("other")
    # Only a mistake can do this.
    conn.execute("update pgqueue.jobs set ready_at = '2029-01-01 00:00+00' where id = %s", [job_id])
    conn.execute(
        "update pgqueue.jobs set lease_expires_at = '2029-01-01 00:00+00', grace_given = true where id = %s",
        [held.id],
    )
    assert reserve(conn) == []
    assert stats(conn).maintenance["hidden"] == 0
    clock.advance("61 s")
    maintain(conn)
    assert stats(conn).maintenance["hidden"] == 2
    assert ids(reserve(conn)) == [job_id]
    clock.advance("61 s")
    maintain(conn)
    assert stats(conn).maintenance["hidden"] == 2
    assert state(conn, held.id) == "waiting"
