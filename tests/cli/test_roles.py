"""Every view and every command that reads, as each kind of role: taken from the catalog and the tree of commands."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest

from pgqueue.cli import completion
from tests.calls import call, enqueue, job, maintain, reserve_one
from tests.cli.commands import commands
from tests.cli.conftest import Run
from tests.databases import Database, uri

READING = ("reader", "operator")
KINDS = ("producer", "worker", *READING)

# They go on until they are stopped, or for minutes; they are for the owner of the queue; or they ask it nothing.
LEFT_OUT = {("worker",), ("demo",), ("bench",), ("server",), ("migrate",), ("psql",), ("dsn",), ("web",), ("top",)}
LEFT_OUT |= {("mcp",)}
LEFT_OUT |= {("proxy",)}
# It writes nothing where there is nothing to retry.
LEFT_OUT |= {("groups", "retry")}


@pytest.fixture
def seeded(conn: psycopg.Connection) -> dict[str, str]:
    """A queue with something of everything; what to give to parameters, by their names."""
    job_id = enqueue(conn, "t", queue="mail", key="k")
    held = reserve_one(conn)
    call(conn, "fail", held.id, held.reservation, retry=False)
    enqueue(conn, "t", queue="mail")
    call(conn, "schedule", "nightly", "0 3 * * *", "report")
    call(conn, "run_schedule_now", "nightly")
    call(conn, "set_limit", "task", "t", max_executing=3)
    call(conn, "hello", "w")
    group_id = call(conn, "open_group", "an import")
    maintain(conn)
    return {
        "job_id": str(job_id),
        "group_id": str(group_id),
        "queues": "mail",
        "name": "nightly",
        "queue": "mail",
        "kind": "task",
        "target": "t",
        "role": "nobody",
        "task": "t",
        "delay": "1 min",
        "limit_key": "tenant:5",
        "weight": "3",
    }


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def role(conn: psycopg.Connection, kind: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    conn.execute(f"create role {name}".encode())
    call(conn, "grant_access", kind, name)
    yield name
    conn.execute(f"drop owned by {name}".encode())
    conn.execute(f"drop role {name}".encode())


def arguments(parameters: list[object], values: dict[str, str]) -> list[str]:
    """What a command needs, and --yes where it would ask."""
    given = []
    for each in parameters:
        name = str(each.name)  # type: ignore[attr-defined]
        if each.param_type_name == "argument" and each.required:  # type: ignore[attr-defined]
            given.append(values[name])
        elif name == "yes":
            given.append("--yes")
    return given


@pytest.mark.usefixtures("seeded")
def test_readers_and_operators_read_every_view(conn: psycopg.Connection, role: str, kind: str) -> None:
    views = conn.execute(
        "select c.oid::regclass::text from pg_class c where relnamespace = 'pgqueue'::regnamespace and relkind = 'v'"
    ).fetchall()
    assert len(views) > 3
    refused = []
    conn.execute(f"set role {role}".encode())
    for (view,) in views:
        try:
            rows = conn.execute(f"select * from {view}".encode()).fetchall()
        except psycopg.errors.InsufficientPrivilege:
            refused.append(view)
        else:
            # What a worker declares and reports, and what executes.
            empty = ("pgqueue.effective_tasks", "pgqueue.executing", "pgqueue.worker_memory", "pgqueue.troubles")
            assert rows or view in empty
    conn.execute("reset role")
    assert refused == ([] if kind in READING else [view for (view,) in views])


def test_readers_and_operators_run_every_command_that_reads(
    database: Database, run: Run, seeded: dict[str, str], role: str, kind: str
) -> None:
    """A command reads if the owner can run it where nothing may be written."""
    reading = []
    for path, command in commands():
        if path in LEFT_OUT:
            continue
        line = [*path, *arguments(command.params, seeded)]
        alone = uri(database.dsn, options="-c default_transaction_read_only=on")
        if run(*line, "--dsn", alone).code != 0:
            continue
        reading.append(path)
        done = run(*line, "--dsn", uri(database.dsn, options=f"-c role={role}"))
        assert "Traceback" not in done.err
        if kind in READING:
            assert (done.code, done.err) == (0, ""), (line, done)
        else:
            assert done.code == 2, (line, done)
            assert "permission denied" in done.err
    assert {("status",), ("jobs", "list"), ("schedules", "list"), ("limits", "list")} <= set(reading)
    assert ("jobs", "delete") not in reading


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("kind", ["producer"])
def test_a_producer_enqueues_although_it_cannot_read_which_names_there_are(
    database: Database, run: Run, conn: psycopg.Connection, role: str
) -> None:
    done = run("enqueue", "tt", "--queue", "mails", "--dsn", uri(database.dsn, options=f"-c role={role}"))
    assert (done.code, done.err) == (0, "")
    assert job(conn, int(done.out)).queue == "mails"


@pytest.mark.parametrize("kind", READING)
def test_a_role_that_reads_is_told_of_a_queue_that_is_on_time(
    database: Database, run: Run, conn: psycopg.Connection, role: str
) -> None:
    enqueue(conn, "t", queue="reports", delay="1 day")
    as_role = ("--dsn", uri(database.dsn, options=f"-c role={role}"))
    done = run("why", "reports", *as_role)
    assert (done.code, done.err) == (0, "")
    assert "reports: on_time" in done.out
    assert "did you mean reports?" in run("why", "report", *as_role).err


@pytest.mark.parametrize("kind", ["operator"])
@pytest.mark.parametrize(
    "line",
    [
        ("queues", "pause", "mail"),
        ("queues", "resume", "mail"),
        ("queues", "set", "mail", "--weight", "2"),
        ("queues", "purge", "mail", "--yes"),
        ("limits", "set", "queue", "mail", "--max-executing", "2"),
        ("limits", "pause", "queue", "mail"),
    ],
    ids=" ".join,
)
def test_an_operator_changes_a_queue(
    database: Database, run: Run, conn: psycopg.Connection, role: str, line: tuple[str, ...]
) -> None:
    # Nothing but its jobs tells of the queue.
    enqueue(conn, "t", queue="mail")
    done = run(*line, "--dsn", uri(database.dsn, options=f"-c role={role}"))
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize("kind", ["operator"])
def test_an_operator_is_told_the_queue_that_was_meant(
    database: Database, run: Run, conn: psycopg.Connection, role: str
) -> None:
    enqueue(conn, "t", queue="mail")
    done = run("queues", "pause", "mial", "--dsn", uri(database.dsn, options=f"-c role={role}"))
    assert done.code == 1
    assert "did you mean mail?" in done.err


@pytest.mark.parametrize("kind", READING)
def test_a_role_that_reads_has_the_names_of_queues_completed(
    database: Database, conn: psycopg.Connection, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(conn, "t", queue="mail")
    monkeypatch.setenv("PGQUEUE_DSN", uri(database.dsn, options=f"-c role={role}"))
    assert completion.queues("ma") == ["mail"]
