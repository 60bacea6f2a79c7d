"""Hand-offs: a job that is enqueued alone goes to an idle worker at once, reserved."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from pgqueue.db import consume
from pgqueue.db.call import perform
from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, ids, job, maintain, reserve, stay_idle, value
from tests.databases import Cloner, Database
from tests.facts import wait_until


class Idle:
    """A worker that is idle and takes hand-offs."""

    def __init__(self, database: Database, worker: str = "w", queues: list[str] | None = None) -> None:
        self.conn = database.connect()
        self.worker = worker
        self.channel = f"pgqueue_{worker:x<32}"
        wake_up = call(self.conn, "hello", worker, queues)
        for name in (self.channel, wake_up):
            self.conn.execute(f'listen "{name}"'.encode())
        listener = value(self.conn, "select pg_backend_pid()")
        call(
            self.conn,
            "idle",
            worker,
            queues,
            handoff_channel=self.channel,
            listener=listener,
            lease=timedelta(seconds=30),
        )
        stay_idle(self.conn, worker)

    def heard(self) -> list[str]:
        """The payloads that came, of hand-offs and of wake-ups; those without the time of a commit."""
        self.conn.execute("select 1")
        payloads = [notice.payload for notice in self.conn.notifies(timeout=0)]
        return [payload if payload.startswith("[") else payload.split(" ")[0] for payload in payloads]

    def handed(self) -> list[consume.JobRow]:
        """The jobs that were handed to it; nothing else may have come."""
        return [consume.read_handoff(payload)[0] for payload in self.heard()]


def test_a_job_is_reserved_for_an_idle_worker_and_sent_to_it(database: Database, conn: psycopg.Connection) -> None:
    idle = Idle(database)
    job_id = enqueue(
        conn, "send", {"to": "a@b.c"}, queue="mail", priority=3, headers=Jsonb({"trace": "é\n"}), timeout="90 s"
    )
    [row] = idle.handed()
    held = job(conn, job_id)
    assert (held.state, held.reserved_by, held.attempts) == ("executing", "w", 1)
    assert held.created_at < held.reserved_at
    assert value(conn, "select lease from pgqueue.jobs") == timedelta(seconds=30)
    assert value(conn, "select lease_expires_at - reserved_at from pgqueue.jobs") >= timedelta(seconds=30)
    assert (row.id, row.task, row.queue, row.priority, row.attempt) == (job_id, "send", "mail", 3, 1)
    assert (row.args, row.headers) == (b'\x01{"to": "a@b.c"}', '\x01{"trace": "é\\n"}'.encode())
    assert (row.timeout, row.max_attempts) == (timedelta(seconds=90), 11)
    assert reserve(conn, 10) == []
    assert call(conn, "complete", row.id, row.reservation) is True


def test_the_lease_is_no_longer_than_the_workers(database: Database, conn: psycopg.Connection) -> None:
    idle = Idle(database)
    call(idle.conn, "awake", "w")
    call(
        idle.conn,
        "idle",
        "w",
        handoff_channel=idle.channel,
        lease="2 s",
        listener=value(idle.conn, "select pg_backend_pid()"),
    )
    enqueue(conn)
    [payload] = idle.heard()
    _, reserved_at, lease = consume.read_handoff(payload)
    assert lease == 2.0
    assert abs(reserved_at - time.time()) < 60


_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "args": st.dictionaries(st.text('aé\n"\\', max_size=3), st.integers() | st.text(max_size=9), max_size=3),
        "queue": st.text("ab\n\"'é", min_size=1, max_size=5),
        "priority": st.integers(-100, 100),
        "headers": st.dictionaries(st.sampled_from(["a", "b"]), st.text(max_size=5), max_size=2),
        "timeout": st.sampled_from(["1 s", "0.25 s", "2 days"]),
        "max_attempts": st.integers(1, 30),
        "run_at": st.sampled_from(["2020-01-01 00:00:00.123457+00", "1999-12-31+00", "0003-01-01+00"]),
    },
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(options=_OPTIONS, declared=st.booleans())
def test_what_is_sent_is_what_a_claim_returns(
    options: dict[str, Any], declared: bool, database: Database, conn: psycopg.Connection
) -> None:
    conn.execute("truncate pgqueue.jobs, pgqueue.idle_workers")
    conn.execute("delete from pgqueue.tasks")
    if declared:
        call(conn, "declare_task", "t", max_attempts=7, timeout="3 s", store_result=True)
    for name in ("args", "headers"):
        # NUL is no text in PostgreSQL.
        if name in options:
            options[name] = Jsonb(
                {k: v.replace("\0", "") if isinstance(v, str) else v for k, v in options[name].items()}
            )
    idle = Idle(database)
    args = options.pop("args", Jsonb({}))
    job_id = call(conn, "enqueue", "t", args, **options)
    [sent] = idle.handed()
    call(idle.conn, "awake", "w")
    assert sent.id == job_id
    call(conn, "release", [sent.id], [sent.reservation])
    [claimed] = perform(conn, consume.exchange(consume.Claim("w", None, None, 30.0, "weighted"), 1, ask=True))
    assert claimed.lease_expires_at > sent.lease_expires_at
    same = {"reservation": 0, "lease_expires_at": 0}
    assert sent._replace(**same) == claimed._replace(**same)
    idle.conn.close()


def test_the_first_job_of_a_transaction_is_handed_off_and_the_others_are_announced(
    database: Database, conn: psycopg.Connection
) -> None:
    idle = Idle(database)
    with conn.transaction():
        first, second = enqueue(conn), enqueue(conn)
    announced, payload = idle.heard()
    assert (consume.read_handoff(payload)[0].id, announced) == (first, "wake")
    assert ids(reserve(conn, 10)) == [second]


def test_a_job_after_several_and_after_one_for_later_is_handed_off(
    database: Database, conn: psycopg.Connection
) -> None:
    idle = Idle(database)
    with conn.transaction():
        enqueue(conn, delay="1 s")
        many = enqueue_many(conn, 2)
        alone = enqueue(conn)
        enqueue(conn)
    *announced, payload = idle.heard()
    assert (consume.read_handoff(payload)[0].id, sorted(announced)) == (alone, ["due", "wake"])
    assert ids(reserve(conn, 10))[:2] == many


def test_a_transaction_that_is_rolled_back_hands_off_nothing(database: Database, conn: psycopg.Connection) -> None:
    idle = Idle(database)
    with conn.transaction(force_rollback=True):
        enqueue(conn)
    with conn.transaction():
        with conn.transaction(force_rollback=True):
            enqueue(conn)
        kept = enqueue(conn)
    assert [row.id for row in idle.handed()] == [kept]
    assert reserve(conn, 10) == []


def test_rules_that_do_not_touch_the_job_bar_no_hand_off(database: Database, conn: psycopg.Connection) -> None:
    for kind in ("queue", "task", "key", "limit_key"):
        call(conn, "set_limit", kind, "other", 1)
    enqueue(conn, queue="other", delay="1 hour")
    call(conn, "configure_queue", "other", weight=5)
    call(conn, "pause_queue", "other")
    # It is closed.
    call(conn, "set_breaker", "task", "t")
    idle = Idle(database)
    job_id = enqueue(conn)
    assert [each.id for each in idle.handed()] == [job_id]


def test_a_job_with_a_limit_key_that_no_rule_touches_is_handed_off(
    database: Database, conn: psycopg.Connection
) -> None:
    call(conn, "configure_queue", "default", fair_by="limit_key")
    call(conn, "set_breaker", "limit_key", "*")
    idle = Idle(database)
    job_id = enqueue(conn, limit_key="a")
    assert [each.id for each in idle.handed()] == [job_id]


def _under_a_limit_of_its_limit_key(conn: psycopg.Connection) -> None:
    call(conn, "set_limit", "limit_key", "tenant:*", 5)
    enqueue(conn, limit_key="tenant:1")


def _with_a_paused_limit_key(conn: psycopg.Connection) -> None:
    call(conn, "pause", "limit_key", "tenant:*")
    enqueue(conn, limit_key="tenant:1")


def _in_a_paused_queue(conn: psycopg.Connection) -> None:
    call(conn, "pause_queue", "default")
    enqueue(conn)


def _under_a_limit_of_its_task(conn: psycopg.Connection) -> None:
    call(conn, "set_limit", "task", "t", 1)
    enqueue(conn)


def _under_a_limit_of_its_queue(conn: psycopg.Connection) -> None:
    # Not by set_limit, which wakes the worker as well.
    conn.execute("insert into pgqueue.limits (kind, target, max_executing) values ('queue', 'default', 1)")
    enqueue(conn)


def _with_the_setting(conn: psycopg.Connection) -> None:
    conn.execute("set pgqueue.hand_off = off")
    enqueue(conn)


@pytest.mark.parametrize(
    "enqueue_it",
    [
        _in_a_paused_queue,
        _under_a_limit_of_its_task,
        _under_a_limit_of_its_queue,
        _with_the_setting,
        lambda conn: enqueue(conn, key="k"),
        _under_a_limit_of_its_limit_key,
        _with_a_paused_limit_key,
        lambda conn: enqueue(conn, dedupe="k"),
        lambda conn: enqueue(conn, expires_in="1 hour"),
        lambda conn: enqueue(conn, args={"a": "x" * 7000}),
        lambda conn: enqueue_many(conn, 2),
    ],
    ids=[
        "paused",
        "limit of its task",
        "limit of its queue",
        "setting",
        "key",
        "limit of its limit_key",
        "paused limit_key",
        "dedupe",
        "expires",
        "large",
        "enqueue_many",
    ],
)
def test_every_other_job_is_announced(
    enqueue_it: Callable[[psycopg.Connection], object], database: Database, conn: psycopg.Connection
) -> None:
    idle = Idle(database)
    enqueue_it(conn)
    assert idle.heard() == ["wake"]
    assert value(conn, "select count(*) from pgqueue.jobs where state = 'executing'") == 0


@pytest.mark.parametrize("options", [{}, {"key": "k"}, {"limit_key": "l"}])
def test_a_job_is_announced_with_the_time_of_its_commit(
    options: dict[str, Any], database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2030-01-01 12:00+00")
    idle = Idle(database)
    call(conn, "set_limit", "task", "t", 1)
    with conn.transaction():
        enqueue(conn, **options)
        clock.advance("2 s")
    assert times(idle) == [("wake", clock.now())]


def _advance(conn: psycopg.Connection, clock: Clock) -> None:
    clock.advance("2 s")
    # A session sees it with its next lock on a table.
    conn.execute("create temp table seen () on commit drop")


def times(idle: Idle) -> list[tuple[str, datetime]]:
    """The words that came, sorted, and the times of commits with them."""
    idle.conn.execute("select 1")
    words = sorted(notice.payload.partition(" ") for notice in idle.conn.notifies(timeout=0))
    return [(word, datetime.fromtimestamp(int(at) / 1_000_000, UTC)) for word, _, at in words]


def _staged(conn: psycopg.Connection) -> None:
    call(conn, "stage")
    conn.execute("insert into pg_temp.pgqueue_staged (task) values ('t'), ('t')")
    conn.execute("select pgqueue.enqueue_staged()")


_SEVERAL: dict[str, Callable[[psycopg.Connection], object]] = {
    "enqueue_many": lambda conn: enqueue_many(conn, 3),
    "enqueue_many in a savepoint": lambda conn: _in_savepoint(conn, enqueue_many, 3),
    "enqueue_many after one rolled back": lambda conn: (
        _in_savepoint(conn, enqueue_many, 3, undo=True),
        enqueue_many(conn, 3),
    ),
    "enqueue_batch": lambda conn: conn.execute("""select pgqueue.enqueue_batch(array['{"task": "t"}']::jsonb[])"""),
    "enqueue_outcome": lambda conn: call(conn, "enqueue_outcome", "t", dedupe="d"),
    "enqueue_staged": _staged,
}


def _in_savepoint(conn: psycopg.Connection, what: Callable[..., object], *args: object, undo: bool = False) -> None:
    with conn.transaction(force_rollback=undo):
        what(conn, *args)


@pytest.mark.parametrize("several", _SEVERAL)
def test_several_jobs_are_announced_with_the_time_of_their_commit(
    several: str, database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2030-01-01 12:00+00")
    idle = Idle(database)
    with conn.transaction():
        _SEVERAL[several](conn)
        _advance(conn, clock)
    assert times(idle) == [("wake", clock.now())]


def test_every_job_of_a_transaction_is_announced_with_the_time_of_its_commit(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2030-01-01 12:00+00")
    workers = {queue: Idle(database, queue, [queue]) for queue in "abc"}
    call(conn, "set_limit", "task", "t", 1)
    with conn.transaction():
        enqueue(conn, queue="a")
        enqueue(conn, queue="a", delay="3 s")
        enqueue_many(conn, 2, queue="b")
        enqueue_many(conn, 2, queue="c", delay="4 s")
        enqueue(conn, queue="c", delay="1 hour")
        _advance(conn, clock)
    now = clock.now()
    assert times(workers["a"]) == [("due", now), ("wake", now)]
    assert times(workers["b"]) == [("wake", now)]
    assert times(workers["c"]) == [("due", now)]


@pytest.mark.parametrize("first", ["enqueue", "enqueue_many"])
@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_no_job_stays_unannounced_after_set_constraints(
    when: str, first: str, database: Database, conn: psycopg.Connection
) -> None:
    a, b = Idle(database, "a", ["a"]), Idle(database, "b", ["b"])
    immediate = "set constraints all immediate"
    with conn.transaction():
        if when == "before":
            conn.execute(immediate)
        (enqueue if first == "enqueue" else lambda conn, queue: enqueue_many(conn, 2, queue=queue))(conn, queue="a")
        if when == "between":
            conn.execute(immediate)
        enqueue_many(conn, 2, queue="b")
        enqueue(conn, queue="b")
        if when == "after":
            conn.execute(immediate)
    assert a.heard() == ["wake"]
    assert b.heard() == ["wake"]


def test_an_error_while_a_job_is_offered_keeps_no_other_one_waiting(
    database: Database, conn: psycopg.Connection
) -> None:
    idle = Idle(database)
    conn.execute("alter table pgqueue.jobs add constraint never check (state <> 'executing')")
    with conn.transaction():
        enqueue(conn)
        enqueue_many(conn, 2)
    assert idle.heard() == ["wake"]


def test_notes_that_cannot_be_read_stop_no_commit(database: Database, conn: psycopg.Connection) -> None:
    idle = Idle(database)
    with conn.transaction():
        job_id = enqueue(conn)
        conn.execute("select set_config('pgqueue.noted', 'no JSON', true)")
    [sent] = idle.handed()
    assert sent.id == job_id


def test_who_is_idle_at_the_commit_is_woken_and_not_who_was_at_the_enqueue(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2030-01-01 12:00+00")
    before = Idle(database, "before")
    with conn.transaction():
        enqueue_many(conn, 2)
        clock.advance("20 s")
        now = Idle(database, "now")
    assert now.heard() == ["wake"]
    assert before.heard() == []


def test_a_job_for_later_is_announced_as_due(database: Database, conn: psycopg.Connection) -> None:
    idle = Idle(database)
    enqueue(conn, delay="1 s")
    assert idle.heard() == ["due"]


def test_args_that_compress_well_do_not_exceed_the_payload(database: Database, conn: psycopg.Connection) -> None:
    idle = Idle(database)
    for length in range(5800, 6200, 20):
        enqueue(conn, "t" * 128, {"a": "x" * length}, queue='"' * 128)
    assert {payload == "wake" for payload in idle.heard()} == {True, False}


def test_a_worker_whose_listening_session_has_ended_gets_no_jobs(database: Database, conn: psycopg.Connection) -> None:
    idle, beside = Idle(database, "w"), Idle(database, "beside")
    call(beside.conn, "awake", "beside")
    pid = idle.conn.info.backend_pid
    idle.conn.close()
    wait_until(lambda: value(conn, "select not exists (select from pg_stat_activity where pid = %s)", pid))
    job_id = enqueue(conn)
    assert ids(reserve(conn)) == [job_id]


def test_a_worker_without_a_channel_is_woken(database: Database, conn: psycopg.Connection) -> None:
    idle = Idle(database)
    call(idle.conn, "awake", "w")
    call(idle.conn, "idle", "w")
    enqueue(conn)
    assert idle.heard() == ["wake"]


def test_only_a_worker_of_its_queue_gets_a_job(database: Database, conn: psycopg.Connection) -> None:
    a, b = Idle(database, "a", ["a"]), Idle(database, "b", ["b", "c"])
    enqueue(conn, queue="c")
    assert (a.heard(), len(b.handed())) == ([], 1)
    enqueue(conn, queue="d")
    assert value(conn, "select state from pgqueue.jobs where queue = 'd'") == "waiting"


def test_jobs_go_to_all_idle_workers_in_turn(database: Database, conn: psycopg.Connection) -> None:
    several = [Idle(database, name) for name in "abc"]
    # One that has registered often does not get more.
    for _ in range(20):
        call(
            several[0].conn, "idle", "a", handoff_channel=several[0].channel,
            listener=several[0].conn.info.backend_pid,
        )  # fmt: skip
        stay_idle(several[0].conn, "a")
    for _ in range(120):
        enqueue(conn)
    handed = [len(each.handed()) for each in several]
    assert sum(handed) == 120
    assert min(handed) > 15


def test_no_notification_no_hand_off(database: Database, conn: psycopg.Connection) -> None:
    idle = Idle(database)
    conn.execute("set pgqueue.notify = off")
    job_id = enqueue(conn)
    assert idle.heard() == []
    assert ids(reserve(conn)) == [job_id]


def test_a_job_that_expires_in_its_transaction_does_not_start(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2030-01-01 12:00+00")
    maintain(conn)
    Idle(database)
    other = database.connect()
    with conn.transaction():
        job_id = enqueue(conn, expires_in="3 s")
        for _ in range(6):
            clock.advance("1 s")
            maintain(other)
    maintain(conn)
    assert reserve(conn) == []
    assert job(conn, job_id).state == "cancelled"


@pytest.mark.parametrize("begin", ["begin isolation level repeatable read", "begin isolation level serializable"])
def test_an_old_snapshot_hands_off_nothing(begin: LiteralString, database: Database, conn: psycopg.Connection) -> None:
    idle, producer = Idle(database), database.session()
    producer.run(begin)
    producer.run("select from pgqueue.jobs")
    # The worker is busy by now, which the producer cannot see.
    call(idle.conn, "awake", "w")
    producer.run("select pgqueue.enqueue('t')")
    producer.run("commit")
    assert value(conn, "select state from pgqueue.jobs") == "waiting"


def test_enqueues_at_serializable_do_not_make_each_other_fail(database: Database, conn: psycopg.Connection) -> None:
    idle = Idle(database)
    # The index has a page.
    enqueue(conn)
    first, second = database.session(), database.session()
    for each in (first, second):
        each.run("begin isolation level serializable")
    for _ in range(2):
        first.run("select pgqueue.enqueue('t')")
        second.run("select pgqueue.enqueue('t')")
    first.run("commit")
    second.run("commit")
    assert len(idle.heard()) == 1
    assert value(conn, "select count(*) from pgqueue.jobs") == 5


def test_a_producer_is_not_told_the_channel(database: Database, conn: psycopg.Connection) -> None:
    idle = Idle(database)
    told: list[str] = []
    conn.add_notice_handler(lambda notice: told.append(notice.message_primary or ""))
    # Any role may set these.
    conn.execute("set trace_notify = on; set client_min_messages = debug5")
    enqueue(conn)
    conn.execute("reset trace_notify; reset client_min_messages")
    assert len(idle.handed()) == 1
    assert [message for message in told if idle.channel in message] == []


def test_a_hand_off_that_never_arrives_comes_back_after_its_lease(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2030-01-01 12:00+00")
    maintain(conn)
    idle = Idle(database)
    job_id = enqueue(conn)
    [row] = idle.handed()
    call(conn, "awake", "w")
    # The only worker that does not stand still leaves gaps of 7 s.
    for _ in range(4):
        clock.advance("7 s")
        assert maintain(conn).rescued == 0
    clock.advance("2.1 s")
    assert maintain(conn).rescued == 1
    [again] = reserve(conn, 10, "other")
    assert (again.id, again.attempt, again.reservation > row.reservation) == (job_id, 1, True)
    assert call(conn, "complete", row.id, row.reservation) is False


def test_after_an_outage_a_handed_job_gets_the_grace_period_of_any_lease(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2030-01-01 12:00+00")
    maintain(conn)
    idle = Idle(database)
    enqueue(conn)
    [row] = idle.handed()
    # Nothing was extended, and no maintenance ran: the server was away.
    clock.advance("40 s")
    assert (maintain(conn).rescued, job(conn, row.id).state) == (0, "executing")
    assert value(conn, "select lease_expires_at - pgqueue._clock() from pgqueue.jobs") == timedelta(seconds=30)


@pytest.fixture
def noon(conn: psycopg.Connection, clock: Clock) -> Clock:
    clock.set("2030-01-01 12:00+00")
    maintain(conn)
    return clock


@pytest.mark.parametrize("limit_key", [None, "a"])
def test_a_worker_is_told_what_was_handed_to_it_and_should_have_come(
    database: Database, conn: psycopg.Connection, noon: Clock, limit_key: str | None
) -> None:
    idle = Idle(database)
    old = enqueue(conn, limit_key=limit_key)
    noon.advance("10 s")
    call(conn, "idle", "w", handoff_channel=idle.channel, listener=idle.conn.info.backend_pid)
    lost = enqueue(conn, limit_key=limit_key)
    # Claimed, and of another worker.
    conn.execute("set pgqueue.hand_off = off")
    enqueue(conn)
    reserve(conn, 1, "w")
    enqueue(conn)
    reserve(conn, 1, "other")
    noon.advance("0.4 s")
    asked = "select array_agg(job_id order by job_id) from pgqueue.held_by('w', handed_within => %s)"
    assert value(conn, asked, "5 s") is None
    noon.advance("0.1 s")
    assert value(conn, asked, "5 s")[0] == lost
    assert value(conn, asked, "1 min")[:2] == [old, lost]
    assert value(conn, "select count(*) from pgqueue.held_by('w')") == 3


def test_a_worker_that_stands_still_is_handed_nothing_six_seconds_later(
    database: Database, conn: psycopg.Connection, noon: Clock
) -> None:
    idle = Idle(database)
    call(idle.conn, "awake", "w")
    an_hour = timedelta(hours=1)
    call(idle.conn, "idle", "w", None, an_hour, handoff_channel=idle.channel, listener=idle.conn.info.backend_pid)
    noon.advance("5.9 s")
    enqueue(conn)
    assert len(idle.handed()) == 1
    noon.advance("0.1 s")
    enqueue(conn)
    assert idle.heard() == []


def test_a_session_of_another_database_is_handed_nothing(
    cloner: Cloner, database: Database, conn: psycopg.Connection
) -> None:
    other = cloner.migrated()
    with psycopg.connect(other.dsn, autocommit=True) as elsewhere:
        # As in a copy of a database: the registration names a session that listens in the original.
        call(conn, "idle", "w", handoff_channel="x" * 40, listener=elsewhere.info.backend_pid)
        job_id = enqueue(conn)
    cloner.drop(other)
    assert ids(reserve(conn)) == [job_id]


def test_the_lease_begins_with_the_commit(database: Database, conn: psycopg.Connection, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    idle = Idle(database)
    with conn.transaction():
        conn.execute("create table orders ()")
        enqueue(conn)
        clock.advance("3 s")
    [payload] = idle.heard()
    row, reserved_at, _ = consume.read_handoff(payload)
    assert reserved_at == clock.now().timestamp()
    assert row.lease_expires_at > row.created_at + 3_000_000


# What a transaction does to a job that it has enqueued, and to what decides whether that starts.
_BEFORE_COMMIT: dict[str, LiteralString] = {
    "delete": "select pgqueue.delete({id})",
    "purge": "select (pgqueue.purge_queue('default')).*",
    "cancel": "select pgqueue.cancel({id})",
    "cancel_many": "select (pgqueue.cancel_many(job_ids => array[{id}])).*",
    "kill_many": "select (pgqueue.kill_many(job_ids => array[{id}])).*",
    "pause": "select pgqueue.pause_queue('default')",
    "limit": "select pgqueue.set_limit('queue', 'default', max_executing => 0)",
    "reserve": "select id - {id} from pgqueue.reserve('me')",
    "outcome": "select state from pgqueue.outcome({id})",
}


@pytest.mark.parametrize("constraints", [None, "before", "after", "in a function"])
@pytest.mark.parametrize("what", _BEFORE_COMMIT)
def test_a_transaction_has_the_same_outcome_beside_an_idle_worker(
    what: str, constraints: str | None, database: Database, conn: psycopg.Connection
) -> None:
    conn.execute(
        "create function immediate() returns void language plpgsql as $$ begin set constraints all immediate; end $$"
    )

    def outcome() -> tuple[object, object]:
        with conn.transaction():
            if constraints == "before":
                conn.execute("set constraints all immediate")
            job_id = enqueue(conn)
            if constraints == "after":
                conn.execute("set constraints all immediate")
            elif constraints is not None:
                conn.execute("select immediate()")
            answer = conn.execute(_BEFORE_COMMIT[what].replace("{id}", str(job_id)).encode()).fetchall()
        state = value(conn, "select state from pgqueue.all_jobs where id = %s", job_id)
        conn.execute("truncate pgqueue.limits")
        call(conn, "resume_queue", "default")
        conn.execute("truncate pgqueue.jobs")
        return answer, "waiting" if what == "outcome" else state

    without = outcome()
    idle = Idle(database)
    assert outcome() == without
    assert [payload for payload in idle.heard() if payload.startswith("[")] == [] or what == "outcome"


def test_a_transaction_that_became_read_only_announces(database: Database, conn: psycopg.Connection) -> None:
    idle = Idle(database)
    with conn.transaction():
        enqueue(conn)
        conn.execute("set transaction read only")
    assert idle.heard() == ["wake"]


def test_an_error_while_a_job_is_offered_does_not_fail_the_commit(database: Database, conn: psycopg.Connection) -> None:
    idle = Idle(database)
    conn.execute("alter table pgqueue.jobs add constraint never check (state <> 'executing')")
    job_id = enqueue(conn)
    assert idle.heard() == ["wake"]
    assert job(conn, job_id).state == "waiting"


def test_a_procedure_that_commits_announces(database: Database, conn: psycopg.Connection) -> None:
    idle = Idle(database)
    conn.execute("create procedure p() language plpgsql as $$ begin perform pgqueue.enqueue('t'); commit; end $$")
    conn.execute("call p()")
    assert idle.heard() == ["wake"]


def test_a_session_in_which_triggers_do_not_fire_hands_off_all_the_same(
    database: Database, conn: psycopg.Connection
) -> None:
    idle = Idle(database)
    # As tools for loading and replicating data set it.
    conn.execute("set session_replication_role = replica")
    job_id = enqueue(conn)
    assert [row.id for row in idle.handed()] == [job_id]


def test_rows_of_a_dump_are_handed_to_nobody(database: Database, conn: psycopg.Connection) -> None:
    Idle(database)
    with conn.transaction():
        job_id = enqueue(conn)
        call(conn, "pause_queue", "default")
    call(conn, "resume_queue", "default")
    conn.execute("create table dump as select * from pgqueue.jobs")
    conn.execute("truncate pgqueue.jobs")
    conn.execute("insert into pgqueue.jobs overriding system value select * from dump")
    assert value(conn, "select offered from pgqueue.jobs where id = %s", job_id) is True
    assert value(conn, "select state from pgqueue.jobs where id = %s", job_id) == "waiting"


def test_a_transaction_that_empties_the_table_decides_first(database: Database, conn: psycopg.Connection) -> None:
    Idle(database)
    with conn.transaction():
        enqueue(conn)
        with pytest.raises(psycopg.errors.ObjectInUse), conn.transaction():
            conn.execute("truncate pgqueue.jobs")
        conn.execute("set constraints all immediate")
        conn.execute("truncate pgqueue.jobs")
    assert value(conn, "select count(*) from pgqueue.jobs") == 0


def test_a_role_without_any_right_of_its_own_hands_off(database: Database, conn: psycopg.Connection) -> None:
    idle = Idle(database)
    producer = f"producer_{database.name}"
    conn.execute(f'create role "{producer}"'.encode())
    try:
        call(conn, "grant_access", "producer", producer)
        with conn.transaction():
            conn.execute(f'set local role "{producer}"'.encode())
            enqueue(conn)
        assert len(idle.handed()) == 1
    finally:
        call(conn, "revoke_access", "producer", producer)
        conn.execute(f'drop role "{producer}"'.encode())


def test_one_job_of_a_transaction_is_looked_at_when_it_commits(database: Database, conn: psycopg.Connection) -> None:
    Idle(database)
    conn.execute("do $$ begin for n in 1..50 loop perform pgqueue.enqueue('t'); end loop; end $$")
    assert value(conn, "select count(*) from pgqueue.jobs where offered") == 1
    conn.execute("truncate pgqueue.jobs")
    conn.execute(
        "do $$ begin for n in 1..50 loop perform pgqueue.enqueue_many('t', array['{}']::jsonb[]); end loop; end $$"
    )
    assert value(conn, "select count(*) from pgqueue.jobs where offered") == 1


def test_several_jobs_without_an_idle_worker_are_not_looked_at(database: Database, conn: psycopg.Connection) -> None:
    enqueue_many(conn, 2)
    assert value(conn, "select count(*) from pgqueue.jobs where offered") == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"handoff_channel": "short", "listener": 1}, "32 to 63 bytes"),
        ({"handoff_channel": "x" * 64, "listener": 1}, "32 to 63 bytes"),
        ({"handoff_channel": "x" * 40}, "without listener"),
        ({"handoff_channel": "x" * 40, "listener": 1, "lease": "0"}, "lease"),
    ],
)
def test_bad_arguments_of_idle_are_refused(options: dict[str, object], error: str, conn: psycopg.Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=error):
        call(conn, "idle", "w", **options)


def test_what_a_newer_server_sends_besides_is_ignored(database: Database, conn: psycopg.Connection) -> None:
    idle = Idle(database)
    job_id = enqueue(conn, args={"a": 1})
    [payload] = idle.heard()
    header, _, rest = payload.partition("\n")
    more = json.dumps([*json.loads(header), "x", {"y": None}])
    assert consume.read_handoff(f"{more}\n{rest}") == consume.read_handoff(payload)
    assert consume.read_handoff(payload)[0].id == job_id
