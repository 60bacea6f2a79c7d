"""A worker's life as SQL: hello, beat, idle, awake, bye."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, enqueue, maintain, reserve, reserve_one, state, stats, table, value
from tests.databases import Cloner, Database

NOON = "2030-01-01 12:00+00"


def test_a_worker_registers_beats_and_leaves(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    assert call(conn, "beat", "w") is False
    channel = call(conn, "hello", "w", ["a", "b"], Jsonb({"host": "h"}))
    assert channel == call(conn, "idle", "w")
    assert channel.isidentifier()
    clock.advance("10 s")
    assert call(conn, "beat", "w") is True
    [worker] = stats(conn).workers
    assert (worker["worker"], worker["queues"], worker["info"]) == ("w", ["a", "b"], {"host": "h"})
    assert worker["last_beat_at"].startswith("2030-01-01T12:00:10")

    call(conn, "hello", "w", None, Jsonb({"host": "h2"}))
    [worker] = stats(conn).workers
    assert (worker["queues"], worker["info"]) == (None, {"host": "h2"})
    enqueue(conn)
    held = reserve_one(conn)
    call(conn, "idle", "w")
    call(conn, "bye", "w")
    assert stats(conn).workers == []
    assert value(conn, "select count(*) from pgqueue.idle_workers where until > pgqueue._clock()") == 0
    assert call(conn, "beat", "w") is False
    assert state(conn, held.id) == "executing"


def test_a_worker_that_is_silent_for_minutes_is_deregistered_and_learns_it_with_its_next_beat(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set(NOON)
    call(conn, "hello", "silent")
    call(conn, "hello", "beating")
    for _ in range(6):
        clock.advance("61 s")
        assert call(conn, "beat", "beating") is True
        maintain(conn)
    assert [worker["worker"] for worker in stats(conn).workers] == ["beating"]
    assert call(conn, "beat", "silent") is False


def test_old_naps_beats_and_runs_are_cleared_away(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    call(conn, "hello", "w")
    call(conn, "idle", "w")
    conn.execute("insert into pgqueue.maintenance_runs (at) select pgqueue._clock() from generate_series(1, 4000)")
    for _ in range(12):
        clock.advance("61 s")
        call(conn, "beat", "w")
        maintain(conn)
    clock.advance("58 min")
    call(conn, "beat", "w")
    maintain(conn)
    assert value(conn, "select count(*) from pgqueue.idle_workers") == 0
    # Those of an hour, for the plot of its memory.
    assert value(conn, "select count(*) from pgqueue.heartbeats") == 3
    assert value(conn, "select count(*) from pgqueue.maintenance_runs") <= 3602


@pytest.mark.covers("G3")
def test_idle_tells_when_the_next_job_of_its_queues_is_due(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    assert table(conn, "idle", "w")[0].next_due is None
    enqueue(conn, queue="a", delay="2 min")
    enqueue(conn, queue="a", priority=5, delay="3 min")
    enqueue(conn, queue="b", delay="1 min")
    enqueue(conn, queue="p", delay="1 s")
    call(conn, "pause_queue", "p")

    def next_due(worker: str, *queues: str) -> timedelta | None:
        [row] = table(conn, "idle", worker, list(queues) or None)
        return row.next_due and row.next_due - clock.now()

    assert next_due("one", "a") == timedelta(minutes=2)
    assert next_due("many", "b", "a") == timedelta(minutes=1)
    assert next_due("none", "empty") is None
    # By rank: a thousand workers do not jump at one job.
    assert next_due("two", "a") == timedelta(minutes=2, milliseconds=40)
    assert next_due("three", "a") == timedelta(minutes=2, milliseconds=60)


def test_the_fleet_runs_maintenance_about_once_a_second(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)

    def call_again_in() -> float:
        again: timedelta = table(conn, "idle", "w")[0].call_again_in
        return again.total_seconds()

    alone = [call_again_in() for _ in range(40)]
    assert all(1.1 <= seconds <= 1.6 for seconds in alone)
    # The first of them found that none did.
    assert value(conn, "select count(*) from pgqueue.maintenance_runs") == 1
    for n in range(30):
        call(conn, "hello", f"w{n}")
    many = [call_again_in() for _ in range(40)]
    # Never so rarely that a gap of 5 s could open.
    assert all(3 <= seconds <= 5 for seconds in many)
    assert max(many) > 3.5
    clock.advance("3 s")
    call_again_in()
    assert value(conn, "select count(*) from pgqueue.maintenance_runs") == 2


def test_idle_reports_a_job_that_is_due_already(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    enqueue(conn, queue="a")
    assert table(conn, "idle", "w", ["a", "b"])[0].next_due == clock.now()
    # It was announced to other idle workers, and one of them is about to take it.
    assert table(conn, "idle", "late", ["a", "b"])[0].next_due == clock.now() + timedelta(milliseconds=250)
    clock.advance("1 s")
    assert table(conn, "idle", "w", ["a", "b"])[0].next_due == clock.now()
    call(conn, "pause_queue", "a")
    assert table(conn, "idle", "w")[0].next_due is None


def test_idle_finds_what_its_maintenance_brought_back(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    maintain(conn)
    enqueue(conn)
    reserve(conn, 1, "dead", lease="1 s")
    clock.advance("3 s")
    assert table(conn, "idle", "w")[0].next_due == clock.now()


def test_one_worker_keeps_running_maintenance_and_another_takes_over_when_it_has_gone(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set(NOON)
    for n in range(5):
        call(conn, "hello", f"w{n}")

    def calls(worker: str) -> tuple[int, float]:
        [row] = table(conn, "idle", worker)
        return value(conn, "select count(*) from pgqueue.maintenance_runs"), row.call_again_in.total_seconds()

    kept, again = calls("w0")
    assert kept == 1
    assert again <= 1.6
    clock.advance("1.5 s")
    kept, again = calls("w1")
    assert kept == 1
    assert again >= 3
    assert calls("w0")[0] == 2
    clock.advance("2.1 s")
    kept, again = calls("w1")
    assert kept == 3
    assert again <= 1.6


def test_idle_is_a_heartbeat_and_reports_a_deregistered_worker(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    assert table(conn, "idle", "w")[0].registered is False
    call(conn, "hello", "w")
    for _ in range(21):
        clock.advance("1 s")
        assert table(conn, "idle", "w")[0].registered is True
    assert value(conn, "select count(*) from pgqueue.heartbeats") == 3


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_idle_works_with_an_old_snapshot_without_maintenance(conn: psycopg.Connection, level: str) -> None:
    conn.execute(f"set default_transaction_isolation = '{level}'".encode())
    assert table(conn, "idle", "w")[0].next_due is None
    assert value(conn, "select count(*) from pgqueue.maintenance_runs") == 0


def test_awake_takes_back_the_workers_own_nap(conn: psycopg.Connection) -> None:
    call(conn, "idle", "one")
    call(conn, "idle", "two", ["a", "b"])
    assert value(conn, "select count(*) from pgqueue.idle_workers") == 3
    call(conn, "awake", "two")
    assert value(conn, "select array_agg(worker) from pgqueue.idle_workers") == ["one"]


def in_another_server(conn: psycopg.Connection) -> None:
    """As in a physical copy, or in the standby that a failover promoted: another server has the rows."""
    conn.execute("update pgqueue.workers set server_started_at = server_started_at - interval '1 hour'")


def test_in_another_server_no_worker_counts_as_alive_before_it_has_registered_there(conn: psycopg.Connection) -> None:
    call(conn, "hello", "web-1", None, Jsonb({"instance": "a"}))
    alive = (
        "select (select bool_and(is_alive) from pgqueue.worker_status),"
        " (select count(*) from pgqueue._living_workers_of(null, pgqueue._clock())),"
        " (select count(*) from jsonb_array_elements(pgqueue.stats() -> 'workers') w where w ->> 'last_beat_at' <> '')"
    )
    assert conn.execute(alive).fetchone() == (True, 1, 1)
    in_another_server(conn)
    assert conn.execute(alive).fetchone() == (False, 0, 0)
    # A copy does no more. After a failover the worker registers when it reconnects, or when beat() asks it to.
    assert call(conn, "beat", "web-1") is False
    assert table(conn, "idle", "web-1")[0].registered is False
    assert conn.execute(alive).fetchone() == (False, 0, 0)
    call(conn, "hello", "web-1", None, Jsonb({"instance": "a"}))
    assert conn.execute(alive).fetchone() == (True, 1, 1)
    assert call(conn, "beat", "web-1") is True
    assert table(conn, "idle", "web-1")[0].registered is True


def test_after_a_failover_a_worker_keeps_its_name_its_command_and_its_jobs(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set(NOON)
    info = Jsonb({"instance": "a"})
    assert table(conn, "claim_name", "web-1", info) == []
    call(conn, "hello", "web-1", None, info)
    call(conn, "quiet_worker", "web-1")
    job_id = enqueue(conn)
    held = reserve_one(conn, "web-1", lease="30 s")
    call(conn, "started", [held.id], [held.reservation])
    in_another_server(conn)
    clock.advance("5 s")
    # Another process of the name is not let in, for it would give back what the first one runs.
    [taken] = table(conn, "claim_name", "web-1", Jsonb({"instance": "b"}))
    assert taken.silent_for == timedelta(seconds=5)
    # Nor does a new worker that registers forget the one that has not reconnected yet.
    call(conn, "hello", "web-2")
    maintain(conn)
    assert call(conn, "worker_command", "web-1", "", "a") == "quiet"
    call(conn, "hello", "web-1", None, info)
    assert call(conn, "worker_command", "web-1", "", "a") == "quiet"
    assert state(conn, job_id) == "executing"
    assert call(conn, "complete", held.id, held.reservation) is True


def test_a_copy_of_a_database_begins_without_the_workers_of_the_original(
    cloner: Cloner, database: Database, conn: psycopg.Connection
) -> None:
    call(conn, "hello", "web-1", None, Jsonb({"instance": "a"}))
    table(conn, "idle", "web-1", handoff_channel="x" * 40, listener=conn.info.backend_pid)
    assert table(conn, "claim_name", "web-1", Jsonb({"instance": "b"})) != []
    # As a copy has it: the rows of the original, under another oid.
    other = cloner.migrated()
    with psycopg.connect(other.dsn, autocommit=True) as copy:
        for name in ("workers", "heartbeats", "idle_workers"):
            with (
                conn.cursor().copy(f"copy pgqueue.{name} to stdout".encode()) as read,
                copy.cursor().copy(f"copy pgqueue.{name} from stdin".encode()) as written,
            ):
                for data in read:
                    written.write(data)
        assert table(copy, "claim_name", "web-1", Jsonb({"instance": "b"})) == []
        assert value(copy, "select count(*) from pgqueue.idle_workers") == 0
        assert value(copy, "select count(*) from pgqueue.heartbeats") == 1
        call(copy, "hello", "web-1", None, Jsonb({"instance": "b"}))
        call(copy, "hello", "web-2")
        assert value(copy, "select array_agg(name order by name) from pgqueue.workers") == ["web-1", "web-2"]
    cloner.drop(other)
    assert value(conn, "select count(*) from pgqueue.workers") == 1
