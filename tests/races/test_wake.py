"""Who is notified of what, and when nobody is."""

from __future__ import annotations

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, ids, job, pairs, reserve, reserve_one, state, stay_idle, value
from tests.databases import Database

COMMON = "pgqueue"


class Sleeper:
    """A worker that said idle() and listens; `heard()` is what came since the last look."""

    def __init__(self, database: Database, worker: str, queues: list[str] | None = None) -> None:
        self.conn = database.connect()
        self.worker, self.queues = worker, queues
        self.conn.execute("listen " + COMMON)
        channel = call(self.conn, "hello", worker, queues)
        self.conn.execute(f'listen "{channel}"'.encode())
        self.sleep()

    def sleep(self) -> None:
        call(self.conn, "idle", self.worker, self.queues)
        stay_idle(self.conn, self.worker)

    def heard(self) -> list[tuple[str, str]]:
        # Of the commits before this, all notifications have arrived with the answer to a statement.
        self.conn.execute("select 1")
        return [
            # Without the time of the commit.
            (notice.channel if notice.channel == COMMON else "own", notice.payload.split(" ")[0])
            for notice in self.conn.notifies(timeout=0)
        ]


WOKEN = [("own", "wake")]
# A job becomes ready while the worker is idle: it asks when.
DUE_SOON = [("own", "due")]


def test_an_enqueue_wakes_an_idle_worker_that_serves_its_queue_and_no_other(database: Database) -> None:
    producer = database.connect()
    a, b = Sleeper(database, "a", ["a"]), Sleeper(database, "b", ["b", "c"])
    enqueue(producer, queue="a")
    assert (a.heard(), b.heard()) == (WOKEN, [])
    enqueue(producer, queue="c")
    assert (a.heard(), b.heard()) == ([], WOKEN)
    enqueue(producer, queue="d")
    assert (a.heard(), b.heard()) == ([], [])
    everything = Sleeper(database, "everything")
    enqueue_many(producer, 3, queue="d")
    assert everything.heard() == WOKEN


def test_nothing_is_sent_without_an_idle_worker(database: Database, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    producer = database.connect()
    awake, late = Sleeper(database, "awake"), Sleeper(database, "late")
    call(awake.conn, "awake", "awake")
    clock.advance("6 s")
    late.sleep()
    call(late.conn, "awake", "late")
    enqueue(producer)
    held = reserve_one(producer)
    call(producer, "fail", held.id, held.reservation, retry_in="0")
    assert (awake.heard(), late.heard()) == ([], [])


def test_a_nap_ends_by_its_time(database: Database, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    sleeper = Sleeper(database, "w")
    producer = database.connect()
    clock.advance("5.9 s")
    enqueue(producer)
    assert sleeper.heard() == WOKEN
    clock.advance("0.1 s")
    enqueue(producer)
    assert sleeper.heard() == []


@pytest.mark.covers("G3")
def test_a_delayed_job_wakes_only_who_would_sleep_past_its_time(database: Database, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    sleeper, producer = Sleeper(database, "w"), database.connect()
    enqueue(producer, delay="10 min")
    enqueue_many(producer, 2, delay="10 min")
    assert sleeper.heard() == []
    enqueue(producer, delay="3 s")
    assert sleeper.heard() == DUE_SOON
    enqueue_many(producer, 2, delay="3 s")
    assert sleeper.heard() == DUE_SOON
    # Both in one transaction, in either order.
    for first, second in ((None, "3 s"), ("3 s", None)):
        with producer.transaction():
            enqueue(producer, delay=first)
            enqueue(producer, delay=second)
        assert sorted(sleeper.heard()) == DUE_SOON + WOKEN
    with producer.transaction():
        producer.execute(
            """
            select pgqueue.enqueue_batch(
                array['{"task": "t"}', '{"task": "t", "delay": "3 s"}', '{"task": "t", "delay": "1 hour"}']::jsonb[]
            )
            """
        )
    assert sorted(sleeper.heard()) == DUE_SOON + WOKEN


def test_at_most_two_idle_workers_are_woken_once_for_a_transaction_and_a_queue(database: Database) -> None:
    sleepers = [Sleeper(database, f"w{n}") for n in range(6)]
    producer = database.connect(autocommit=False)
    for n in range(20):
        enqueue(producer, queue="q")
        if n % 3 == 0:
            enqueue_many(producer, 2, queue="q")
    assert [sleeper.heard() for sleeper in sleepers] == [[]] * 6
    producer.commit()
    heard = [sleeper.heard() for sleeper in sleepers]
    assert sorted(heard) == [[]] * 4 + [WOKEN] * 2

    # The next transaction wakes anew, another queue of one transaction too.
    enqueue(producer, queue="q")
    enqueue(producer, queue="r")
    producer.commit()
    assert 2 <= sum(len(sleeper.heard()) for sleeper in sleepers) <= 4


def test_a_rolled_back_savepoint_does_not_use_up_the_wake_up(database: Database) -> None:
    sleeper, producer = Sleeper(database, "w"), database.connect(autocommit=False)
    producer.execute("savepoint s")
    enqueue(producer)
    producer.execute("rollback to savepoint s")
    job_id = enqueue(producer)
    producer.commit()
    assert sleeper.heard() == WOKEN
    assert state(sleeper.conn, job_id) == "waiting"


def test_idle_workers_are_chosen_at_random(database: Database) -> None:
    sleepers = [Sleeper(database, f"w{n}") for n in range(4)]
    producer = database.connect()
    for _ in range(40):
        enqueue(producer)
    assert all(sleeper.heard() for sleeper in sleepers)


@pytest.mark.parametrize("off", ["off", "OFF", "false", "no", "0"])
def test_no_worker_is_notified_if_notify_is_off(database: Database, off: str) -> None:
    sleeper, producer = Sleeper(database, "w"), database.connect()
    producer.execute("select set_config('pgqueue.notify', %s, false)", [off])
    enqueue(producer)
    enqueue_many(producer, 2)
    producer.execute("set default_transaction_isolation = 'serializable'")
    enqueue(producer)
    assert sleeper.heard() == []
    producer.execute("set pgqueue.notify = on")
    enqueue(producer)
    assert sleeper.heard() == [(COMMON, "default")]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_above_read_committed_all_workers_are_notified(database: Database, level: str) -> None:
    producer = database.connect(autocommit=False)
    producer.execute(f"set transaction isolation level {level}".encode())
    # Its snapshot is older than the nap: it could never see who sleeps.
    value(producer, "select count(*) from pgqueue.jobs")
    sleeper = Sleeper(database, "w", ["mine"])
    enqueue(producer, queue="q")
    enqueue(producer, queue="q")
    enqueue_many(producer, 2, queue="r")
    producer.commit()
    assert sleeper.heard() == [(COMMON, "q"), (COMMON, "r")]


def test_an_idle_registration_during_an_open_enqueue_leaves_the_job_to_the_workers_own_poll(
    database: Database,
) -> None:
    # Why idle() comes before the last looks: this enqueue saw nobody asleep and will notify nobody.
    producer = database.connect(autocommit=False)
    job_id = enqueue(producer)
    sleeper = Sleeper(database, "w")
    assert reserve(sleeper.conn) == []
    producer.commit()
    assert sleeper.heard() == []
    assert ids(reserve(sleeper.conn)) == [job_id]


def test_a_reserve_that_comes_back_full_passes_the_wake_on_to_another(database: Database) -> None:
    first, second = Sleeper(database, "first", ["q"]), Sleeper(database, "second", ["q"])
    quiet = database.connect()
    quiet.execute("set pgqueue.notify = off")
    enqueue_many(quiet, 5, queue="q")
    assert (first.heard(), second.heard()) == ([], [])
    reserve(first.conn, 2, "first", queues=["q"])
    assert (first.heard(), second.heard()) == ([], WOKEN)
    reserve(first.conn, 10, "first", queues=["q"])
    assert (first.heard(), second.heard()) == ([], [])


@pytest.mark.parametrize("way", ["fail", "snooze", "release", "unheld", "retry", "resume"])
def test_what_makes_a_job_ready_wakes_an_idle_worker(database: Database, way: str) -> None:
    conn = database.connect()
    job_id = enqueue(conn)
    held = reserve_one(conn)
    if way == "retry":
        call(conn, "fail", job_id, held.reservation, retry=False)
    elif way == "resume":
        call(conn, "pause_queue", "default")
    sleeper = Sleeper(database, "sleeper")
    if way == "fail":
        call(conn, "fail", job_id, held.reservation, retry_in="1 s")
    elif way == "snooze":
        call(conn, "snooze", job_id, held.reservation, "1 s")
    elif way == "release":
        call(conn, "release", *pairs([held]))
    elif way == "unheld":
        call(conn, "release_unheld", "w")
    elif way == "retry":
        call(conn, "retry", job_id)
    else:
        call(conn, "resume_queue", "default")
    assert sleeper.heard() == (DUE_SOON if way in ("fail", "snooze") else WOKEN)


@pytest.mark.covers("A6")
def test_a_worker_learns_that_its_job_is_to_be_cancelled(database: Database) -> None:
    worker, conn = Sleeper(database, "w"), database.connect()
    job_id = enqueue(conn)
    worker.heard()
    reserve_one(worker.conn, "w")
    worker.heard()
    assert call(conn, "cancel", job_id) == "requested"
    assert worker.heard() == [("own", "cancel")]


def test_a_prepared_transaction_enqueues_and_cancels_with_notify_off(database: Database) -> None:
    conn = database.connect()
    if value(conn, "show max_prepared_transactions") == "0":
        pytest.skip("max_prepared_transactions is 0")
    sleeper = Sleeper(database, "w")
    executing = enqueue(conn)
    reserve_one(sleeper.conn, "w")
    sleeper.heard()

    two_phase = database.connect()
    two_phase.execute("begin")
    enqueue(two_phase)
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        two_phase.execute("prepare transaction 'notifying'")

    two_phase.execute("set pgqueue.notify = off")
    two_phase.execute("begin")
    job_id = enqueue(two_phase)
    many = enqueue_many(two_phase, 2)
    assert call(two_phase, "cancel", executing) == "requested"
    two_phase.execute("prepare transaction 'quiet'")
    assert reserve(conn, 10) == []
    conn.execute("commit prepared 'quiet'")
    assert ids(reserve(conn, 10)) == [job_id, *many]
    assert job(conn, executing).cancel_requested_at is not None
