"""`pgqueue import`, from the schemas that the other queues' own packages install."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from pgqueue import cli
from pgqueue.errors import ConfigError
from tests.calls import value
from tests.databases import Database


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")


def run(database: Database, *options: str) -> str:
    done = CliRunner().invoke(cli.cli, ["import", *options, "--dsn", database.dsn], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def jobs(conn: psycopg.Connection) -> list[tuple[object, ...]]:
    return conn.execute(
        "select task, args, queue, priority, key, dedupe, max_attempts, run_at > now() + interval '1 min'"
        " from pgqueue.jobs order by id"
    ).fetchall()


@pytest.fixture
def procrastinate(conn: psycopg.Connection) -> psycopg.Connection:
    conn.execute((resources.files("procrastinate") / "sql" / "schema.sql").read_text().encode())
    return conn


@needs("procrastinate")
async def test_procrastinates_waiting_jobs_are_moved(database: Database, procrastinate: psycopg.Connection) -> None:
    import procrastinate as other

    app = other.App(connector=other.PsycopgConnector(conninfo=database.dsn))

    @app.task(name="mail.send", queue="mail")
    def send(to: str) -> None: ...

    async with app.open_async():
        await send.defer_async(to="a@b.c")
        await send.configure(lock="k", queueing_lock="d", priority=500, schedule_in={"hours": 2}).defer_async(to="b")
        await send.configure(priority=-3).defer_async(to="runs there")
    procrastinate.execute(
        "update procrastinate_jobs set status = 'doing' where args ->> 'to' = 'runs there';"
        "insert into procrastinate_jobs (queue_name, task_name, status) values ('mail', 'mail.send', 'succeeded')"
    )
    before = value(procrastinate, "select count(*) from procrastinate_jobs")
    output = await asyncio.to_thread(run, database, "procrastinate", "--dry-run")
    assert "2 jobs would be moved; 0 refused and left; 1 running or locked there, and left" in output
    assert jobs(procrastinate) == []
    assert value(procrastinate, "select count(*) from procrastinate_jobs") == before
    output = await asyncio.to_thread(run, database, "procrastinate", "--task", "mail.send=send_email")
    assert "2  send_email  inserted" in output
    assert jobs(procrastinate) == [
        ("send_email", {"to": "a@b.c"}, "mail", 0, None, None, None, False),
        ("send_email", {"to": "b"}, "mail", 100, "k", "d", None, True),
    ]
    assert value(procrastinate, "select array_agg(status::text order by id) from procrastinate_jobs") == [
        "doing",
        "succeeded",
    ]
    assert "0 jobs moved" in await asyncio.to_thread(run, database, "procrastinate")


@needs("procrastinate")
def test_many_are_moved_in_order_and_at_once(database: Database, procrastinate: psycopg.Connection) -> None:
    procrastinate.execute(
        "insert into procrastinate_jobs (queue_name, task_name, args)"
        " select 'q', 't', jsonb_build_object('n', n) from generate_series(1, 2500) n"
    )
    run(database, "procrastinate", "--queue", "other")
    assert value(procrastinate, "select count(*) from procrastinate_jobs") == 0
    order = "select array_agg((args ->> 'n')::int order by id) from pgqueue.jobs where queue = 'other'"
    assert value(procrastinate, order) == list(range(1, 2501))


@needs("procrastinate")
def test_jobs_that_another_session_has_locked_are_left_and_counted(
    database: Database, procrastinate: psycopg.Connection
) -> None:
    procrastinate.execute(
        "insert into procrastinate_jobs (queue_name, task_name) select 'q', 't' from generate_series(1, 3)"
    )
    with procrastinate.transaction():
        procrastinate.execute("select from procrastinate_jobs where id = 2 for update")
        said = run(database, "procrastinate")
    assert "2 jobs moved; 0 refused and left; 1 running or locked there, and left" in said


@needs("procrastinate")
def test_every_number_arrives_as_it_was(database: Database, procrastinate: psycopg.Connection) -> None:
    args = '{"wei": 100000000000000000001, "edge": 18446744073709551616, "rate": 0.1234567890123456789012, "e": 1e400}'
    procrastinate.execute(
        "insert into procrastinate_jobs (queue_name, task_name, args) values ('q', 't', %s), ('q', 't', '{}')", [args]
    )
    assert "2 jobs moved" in run(database, "procrastinate")
    assert value(procrastinate, "select args = %s::jsonb from pgqueue.jobs order by id limit 1", args) is True


@needs("procrastinate")
def test_a_scheduled_job_arrives_at_its_time_whatever_the_styles_of_the_database(
    database: Database, procrastinate: psycopg.Connection
) -> None:
    procrastinate.execute(
        "insert into procrastinate_jobs (queue_name, task_name, scheduled_at)"
        " values ('q', 't', '2040-02-01 12:00:00.000001+00')"
    )
    procrastinate.execute(f"alter database {database.name} set datestyle = 'German, DMY'".encode())
    assert "1 job moved" in run(database, "procrastinate")
    assert value(procrastinate, "select run_at from pgqueue.jobs") == datetime(2040, 2, 1, 12, 0, 0, 1, tzinfo=UTC)


@needs("procrastinate")
def test_one_that_is_refused_undoes_everything_or_is_left(
    database: Database, procrastinate: psycopg.Connection
) -> None:
    procrastinate.execute(
        "insert into procrastinate_jobs (queue_name, task_name, args) values"
        " ('q', 'good', '{}'), ('q', '', '{}'), ('q', 'good', '{}')"
    )
    with pytest.raises(ConfigError, match=r"nothing was moved, because 1 job would be refused here: job 2 \(\)"):
        run(database, "procrastinate")
    assert jobs(procrastinate) == []
    assert "2 jobs moved; 1 refused and left" in run(database, "procrastinate", "--leave-refused")
    assert value(procrastinate, "select array_agg(id) from procrastinate_jobs") == [2]


def test_arguments_that_cannot_be_read_here_are_refused_alone(database: Database, conn: psycopg.Connection) -> None:
    # Graphile-worker stores json, which takes what jsonb does not.
    conn.execute(
        """
        create schema graphile_worker;
        create table graphile_worker._private_tasks (id integer, identifier text);
        create table graphile_worker._private_job_queues (id integer, queue_name text);
        create table graphile_worker._private_jobs (
            id bigserial, task_id integer, payload json, priority integer default 0, run_at timestamptz default now(),
            attempts integer default 0, max_attempts integer default 25, key text, locked_at timestamptz,
            job_queue_id integer
        );
        insert into graphile_worker._private_tasks values (1, 'send');
        insert into graphile_worker._private_jobs (task_id, payload)
        select 1, json_build_object('n', n) from generate_series(1, 20) n;
        """
    )
    conn.execute(r"""update graphile_worker._private_jobs set payload = '{"to": "a\u0000b"}' where id = 7""")
    conn.execute(r"""update graphile_worker._private_jobs set payload = '{"to": "\ud800"}' where id = 20""")
    with pytest.raises(
        ConfigError, match=r"2 jobs would be refused here: job 7 \(send\): .*u0000.*; job 20 \(send\): "
    ):
        run(database, "graphile-worker")
    assert jobs(conn) == []
    assert "18 jobs moved; 2 refused and left" in run(database, "graphile-worker", "--leave-refused")
    assert value(conn, "select array_agg(id order by id) from graphile_worker._private_jobs") == [7, 20]
    numbers = "select array_agg((args ->> 'n')::int order by id) from pgqueue.jobs"
    assert value(conn, numbers) == [*range(1, 7), *range(8, 20)]


@needs("pgqueuer")
def test_pgqueuers_queued_jobs_are_moved(database: Database, conn: psycopg.Connection) -> None:
    subprocess.run(
        [sys.executable, "-m", "pgqueuer", "--pg-dsn", database.dsn, "install"],
        check=True,
        capture_output=True,
        timeout=280,
    )
    conn.execute(
        "insert into pgqueuer (priority, execute_after, status, entrypoint, payload, dedupe_key, headers) values"
        """ (7, now(), 'queued', 'fetch', '{"url": "x"}', null, '{"trace": "t"}'),"""
        " (0, now() + interval '1 h', 'queued', 'fetch', 'plain text', 'd', null),"
        r" (0, now(), 'queued', 'fetch', '\xff00', null, null), (0, now(), 'queued', 'fetch', '\x0801', null, null),"
        r" (0, now(), 'queued', 'fetch', '\x0800', null, null),"
        " (0, now(), 'picked', 'fetch', null, null, null), (0, now(), 'queued', 'tick', null, null, null)"
    )
    assert "6 jobs moved; 0 refused and left; 1 running or locked there, and left" in run(database, "pgqueuer")
    assert [row[:2] for row in jobs(conn)] == [
        ("fetch", {"url": "x"}),
        ("fetch", {"payload": "plain text"}),
        ("fetch", {"payload_base64": "/wA="}),
        ("fetch", {"payload": "\x08\x01"}),
        ("fetch", {"payload_base64": "CAA="}),
        ("tick", {}),
    ]
    assert [(row[3], row[5], row[7]) for row in jobs(conn)[:2]] == [(7, None, False), (0, "d", True)]
    assert value(conn, "select headers from pgqueue.jobs order by id limit 1") == {"trace": "t"}
    assert value(conn, "select count(*) from pgqueuer") == 1


@needs("pgmq")
def test_pgmqs_unread_messages_are_moved(database: Database, conn: psycopg.Connection) -> None:
    conn.execute((resources.files("pgmq") / "sql" / "pgmq.sql").read_text().encode())
    conn.execute("select pgmq.create('mail'); select pgmq.create('other')")
    conn.execute("""select pgmq.send('mail', '{"read": true}'); select pgmq.read('mail', 600, 1)""")
    conn.execute("""select pgmq.send('mail', '{"to": "a"}'); select pgmq.send('mail', '[1, 2]', 3600)""")
    conn.execute("""select pgmq.send('other', '{"n": 1}')""")
    assert "3 jobs moved; 0 refused and left; 1 running or locked there, and left" in run(
        database, "pgmq", "mail", "other"
    )
    assert [(*row[:2], row[7]) for row in jobs(conn)] == [
        ("mail", {"to": "a"}, False),
        ("mail", {"payload": [1, 2]}, True),
        ("other", {"n": 1}, False),
    ]
    assert value(conn, "select count(*) from pgmq.q_mail") == 1


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_graphile_workers_jobs_are_moved(database: Database, conn: psycopg.Connection, tmp_path: Path) -> None:
    installed = subprocess.run(
        ["npm", "install", "--silent", "--no-audit", "--no-fund", "graphile-worker@0.17"],
        cwd=tmp_path,
        capture_output=True,
        timeout=280,
        check=False,
    )
    if installed.returncode:
        pytest.skip("graphile-worker cannot be installed")
    worker = tmp_path / "node_modules" / ".bin" / "graphile-worker"
    subprocess.run([worker, "--schema-only", "-c", database.dsn], check=True, capture_output=True, timeout=280)
    conn.execute(
        """
        select graphile_worker.add_job('send', '{"to": "a"}');
        select graphile_worker.add_job('send', '{"to": "b"}', queue_name := 'serial', priority := -5, job_key := 'k',
            run_at := now() + interval '1 h', max_attempts := 7);
        select graphile_worker.add_job('send', '[1]');
        select graphile_worker.add_job('send', '{"runs": "there"}');
        update graphile_worker._private_jobs set locked_at = now(), locked_by = 'w'
            where payload ->> 'runs' is not null;
        update graphile_worker._private_jobs set attempts = 2 where key = 'k'
        """
    )
    assert "3 jobs moved; 0 refused and left; 1 running or locked there, and left" in run(database, "graphile-worker")
    assert jobs(conn) == [
        ("send", {"to": "a"}, "default", 0, None, None, 25, False),
        ("send", {"to": "b"}, "default", 5, "serial", "k", 5, True),
        ("send", {"payload": [1]}, "default", 0, None, None, 25, False),
    ]


def test_a_queue_that_is_not_there_is_named(database: Database) -> None:
    with pytest.raises(ConfigError, match="there is no table procrastinate_jobs of procrastinate"):
        run(database, "procrastinate")
    with pytest.raises(ConfigError, match="there is no table q_mail of pgmq"):
        run(database, "pgmq", "mail")


def test_a_task_that_renames_nothing_is_refused(database: Database) -> None:
    with pytest.raises(ConfigError, match="OLD=NEW"):
        run(database, "procrastinate", "--task", "send")
