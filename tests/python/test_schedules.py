"""Schedules in Python and on the command line: they only pass on what the SQL functions do."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from pgqueue import App
from pgqueue.cli import cli
from pgqueue.config import WorkerConfig
from pgqueue.errors import ConfigError, DuplicateTask, InvalidArgument, PgQueueError
from pgqueue.worker import Worker
from tests.calls import call, value
from tests.databases import Database


def nightly() -> App:
    app = App()

    @app.schedule("30 2 * * *", timezone="Europe/Berlin", catch_up="skip", args={"kind": "all"}, tags=["x"])
    @app.schedule(every=timedelta(minutes=5), name="often", args={"kind": "new"}, headers={"a": 1})
    @app.task(name="report")
    def report(kind: str) -> None: ...

    return app


async def start(app: App, database: Database) -> None:
    """Start a worker and let it end when there is nothing to do."""
    await asyncio.wait_for(Worker(app, database.dsn, WorkerConfig(until_empty=True)).run(), 120)


def schedules(conn: psycopg.Connection) -> list[tuple[Any, ...]]:
    return conn.execute(
        "select name, coalesce(declared_expression, every::text), declared_timezone, catch_up, task, args,"
        " xmin::text from pgqueue.schedules order by name"
    ).fetchall()


async def test_a_worker_declares_them_at_its_start_and_only_writes_changes(
    database: Database, conn: psycopg.Connection
) -> None:
    await start(nightly(), database)
    declared = schedules(conn)
    assert [row[:-1] for row in declared] == [
        ("often", "00:05:00", "UTC", "last", "report", {"kind": "new"}),
        ("report", "30 2 * * *", "Europe/Berlin", "skip", "report", {"kind": "all"}),
    ]
    await start(nightly(), database)
    assert schedules(conn) == declared


async def test_an_operators_pause_and_expression_survive_a_deploy(database: Database, conn: psycopg.Connection) -> None:
    await start(nightly(), database)
    call(conn, "pause_schedule", "report")
    conn.execute("update pgqueue.schedules set expression = '0 4 * * *' where name = 'report'")
    await start(nightly(), database)
    assert value(conn, "select expression from pgqueue.effective_schedules where name = 'report'") == "0 4 * * *"
    assert value(conn, "select paused_at from pgqueue.effective_schedules where name = 'report'") is not None


def test_a_wrong_expression_is_refused_where_it_is_declared() -> None:
    app = App()
    with pytest.raises(ConfigError, match="schedule t: the hour of a cron expression must be 0 to 23"):
        app.schedule("0 24 * * *")(app.task(name="t")(print_nothing))


async def test_a_wrong_time_zone_stops_the_worker_at_its_start(database: Database) -> None:
    app = App()
    app.schedule("0 12 * * *", timezone="Mars/Olympus")(app.task(name="t")(print_nothing))
    with pytest.raises(PgQueueError, match="Mars/Olympus"):
        await start(app, database)


def print_nothing() -> None: ...


def test_misuse_is_refused_when_it_is_declared() -> None:
    app = App()
    task = app.task(name="t")(print_nothing)
    with pytest.raises(ConfigError, match="either a cron expression or every"):
        app.schedule()
    with pytest.raises(ConfigError, match="either a cron expression or every"):
        app.schedule("* * * * *", every="1 min")
    with pytest.raises(TypeError, match="no option 'evry'"):
        app.schedule("* * * * *", evry="1 min")  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument, match="do not fit"):
        app.schedule("* * * * *", args={"x": 1})(task)
    with pytest.raises(ConfigError, match="only a task"):
        app.schedule("* * * * *")(print_nothing)  # type: ignore[arg-type]
    app.schedule("* * * * *")(task)
    with pytest.raises(DuplicateTask, match="two schedules"):
        app.schedule("* * * * *")(task)


@pytest.mark.parametrize(
    ("option", "wrong"), [("priority", 2.7), ("max_attempts", 2.5), ("catch_up_cap", True), ("jitter", True)]
)
def test_a_value_that_would_be_read_as_another_is_refused_when_it_is_declared(option: str, wrong: object) -> None:
    given: Any = {option: wrong}
    with pytest.raises(InvalidArgument, match=f"{option} is {wrong}"):
        App().schedule("0 3 * * *", **given)


def test_an_app_takes_in_the_schedules_of_another() -> None:
    together = App()
    together.include(nightly())
    assert sorted(together.schedules) == ["often", "report"]
    with pytest.raises(DuplicateTask):
        together.include(nightly())


def run(database: Database, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["schedules", *arguments, "--dsn", database.dsn])
    return result.exit_code, result.output


def test_the_command_line(database: Database, conn: psycopg.Connection) -> None:
    call(conn, "schedule", "nightly", "30 2 * * *", "report", timezone="Europe/Berlin")
    code, output = run(database, "list")
    assert code == 0
    assert "nightly" in output
    [listed] = json.loads(run(database, "list", "--json")[1])
    assert (listed["name"], listed["expression"], listed["timezone"]) == ("nightly", "30 2 * * *", "Europe/Berlin")

    assert run(database, "pause", "nightly") == (0, "Schedule nightly: paused\n")
    assert run(database, "pause", "nightly") == (0, "Schedule nightly: unchanged\n")
    assert json.loads(run(database, "resume", "nightly", "--json")[1]) == {"name": "nightly", "outcome": "resumed"}
    assert run(database, "resume", "nightly") == (0, "Schedule nightly: unchanged\n")

    code, output = run(database, "run", "nightly")
    assert (code, int(output)) == (0, value(conn, "select id from pgqueue.jobs"))
    shown = json.loads(run(database, "show", "nightly", "--json")[1])
    assert [each["outcome"] for each in shown["runs"]] == ["manual", "planned", "planned"]
    assert "manual" in run(database, "show", "nightly")[1]

    assert run(database, "remove", "nightly") == (0, "Schedule nightly: removed\n")
    for command in ("show", "pause", "resume", "run", "remove"):
        assert run(database, command, "nightly")[0] == 1
