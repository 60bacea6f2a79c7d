"""The main job from end to end, by SQL alone."""

from __future__ import annotations

import os
import shutil
import subprocess

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue import embedded
from pgqueue.testing import Clock
from tests.calls import call, enqueue, job, reserve_one, state, value
from tests.databases import Database

# Run by psql as it stands; every value that is shown is checked.
SCRIPT = """
\\set ON_ERROR_STOP on
insert into pgqueue.tasks (name, retry_delay, retry_policy) values ('flaky', '0', 'fixed');

select pgqueue.enqueue('send_email', '{"to": "a@b.c"}') as good \\gset
select pgqueue.enqueue('flaky', max_attempts => 2) as bad \\gset

select id, reservation from pgqueue.reserve('psql', 1) \\gset
select :id = :good, pgqueue.complete(:id, :reservation, '{"sent": true}');
select pgqueue.complete(:id, :reservation);

select id, reservation, attempt from pgqueue.reserve('psql', 10) \\gset
select :attempt, pgqueue.fail(:id, :reservation, '{"class": "Boom", "message": "first"}');
select id, reservation, attempt from pgqueue.reserve('psql', 10) \\gset
select :attempt, pgqueue.fail(:id, :reservation, '{"class": "Boom", "message": "second"}');

select id - :good, state, attempts, result, errors -> 0 ->> 'message', errors -> 1 ->> 'message'
from pgqueue.all_jobs order by id;
"""

SHOWN = """
t|t
f
1|failed
2|dead
0|succeeded|1|{"sent": true}||
1|dead|2||first|second
"""


@pytest.mark.covers("G1", "G8", "G12", "A5")
def test_psql_alone_is_producer_and_consumer(database: Database) -> None:
    psql = shutil.which("psql")
    # Not all binaries that come without a server bring it.
    if embedded.available() and (embedded.binaries() / "psql").exists():
        psql = str(embedded.binaries() / "psql")
    if psql is None:
        pytest.skip("there is no psql")
    done = subprocess.run(
        [psql, "-X", "-q", "-A", "-t", "-d", database.dsn],
        input=SCRIPT,
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.strip() == SHOWN.strip()


@pytest.mark.covers("G1", "G8", "A5")
def test_a_job_is_enqueued_reserved_and_completed_into_history(conn: psycopg.Connection) -> None:
    job_id = enqueue(conn, "send_email", {"to": "a@b.c"}, headers=Jsonb({"traceparent": "x"}), tags=["mail", "new"])
    waiting = job(conn, job_id)
    assert (waiting.state, waiting.queue, waiting.attempts) == ("waiting", "default", 0)

    reserved = reserve_one(conn, "worker-1")
    assert reserved.id == job_id
    assert reserved.task == "send_email"
    assert reserved.args == {"to": "a@b.c"}
    assert reserved.headers == {"traceparent": "x"}
    assert (reserved.attempt, reserved.max_attempts) == (1, 11)
    executing = job(conn, job_id)
    assert (executing.state, executing.reserved_by) == ("executing", "worker-1")
    assert executing.reserved_at is not None
    assert executing.reservation == reserved.reservation

    assert call(conn, "complete", job_id, reserved.reservation, Jsonb({"sent": True})) is True
    done = job(conn, job_id)
    assert (done.state, done.result, done.attempts) == ("succeeded", {"sent": True}, 1)
    assert (done.args, done.headers, done.tags) == ({"to": "a@b.c"}, {"traceparent": "x"}, ["mail", "new"])
    assert done.reserved_by == "worker-1"
    assert value(conn, "select count(*) from pgqueue.jobs") == 0
    # Each exactly once.
    assert call(conn, "complete", job_id, reserved.reservation) is False
    assert call(conn, "fail", job_id, reserved.reservation) is None


@pytest.mark.covers("G8", "G10", "G11")
def test_a_failing_job_climbs_the_retry_ladder_and_is_dead_after_eleven_attempts(
    conn: psycopg.Connection, clock: Clock
) -> None:
    conn.execute("insert into pgqueue.tasks (name, retry_jitter) values ('t', 0)")
    clock.set("2030-01-01 00:00+00")
    job_id = enqueue(conn)
    reservations = []
    for n in range(10):
        reserved = reserve_one(conn)
        reservations.append(reserved.reservation)
        assert reserved.attempt == n + 1
        error = Jsonb({"class": "Boom", "message": f"try {n + 1}"})
        assert call(conn, "fail", job_id, reserved.reservation, error) == "failed"
        assert state(conn, job_id) == "failed"

        delay = 30 + n**5
        assert (job(conn, job_id).due_at - clock.now()).total_seconds() == delay
        clock.advance(f"{delay - 0.001} s")
        assert call(conn, "reserve", "w") is None
        clock.advance("0.001 s")
    last = reserve_one(conn)
    assert last.attempt == 11
    assert call(conn, "fail", job_id, last.reservation, Jsonb({"message": "the last"})) == "dead"

    dead = job(conn, job_id)
    assert (dead.state, dead.attempts) == ("dead", 11)
    assert [error["attempt"] for error in dead.errors] == list(range(2, 12))
    assert dead.errors[-1]["message"] == "the last"
    assert reservations == sorted(set(reservations))


@pytest.mark.covers("G13", "A8")
def test_a_job_of_an_unknown_task_is_kept_as_any_other(conn: psycopg.Connection) -> None:
    job_id = enqueue(conn, "a task that no code has any more")
    reserved = reserve_one(conn)
    assert reserved.task == "a task that no code has any more"
    assert call(conn, "release", [job_id], [reserved.reservation], "1 min") is None
    assert (state(conn, job_id), job(conn, job_id).attempts) == ("waiting", 0)


def test_an_enqueue_that_is_rolled_back_enqueues_nothing(database: Database) -> None:
    producer, consumer = database.connect(autocommit=False), database.connect()
    job_id = enqueue(producer)
    assert call(consumer, "reserve", "w") is None
    producer.rollback()
    assert call(consumer, "reserve", "w") is None
    assert job(consumer, job_id) is None


def test_a_trigger_enqueues_in_the_transaction_of_the_row(conn: psycopg.Connection) -> None:
    conn.execute(
        """
        create table payments (id int primary key, cents int);
        create function notify_payment() returns trigger language plpgsql as $$
        begin
            perform pgqueue.enqueue('payment_received', jsonb_build_object('id', new.id), priority => 5);
            return new;
        end $$;
        create trigger paid after insert on payments for each row execute function notify_payment();
        insert into payments values (7, 100), (8, 200);
        """
    )
    assert [row[0] for row in conn.execute("select args from pgqueue.reserve('w', 10)")] == [
        {"id": 7},
        {"id": 8},
    ]
