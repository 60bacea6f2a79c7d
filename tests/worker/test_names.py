"""One name, one process: two of one name would give back each other's jobs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue import App, Job
from pgqueue.config import WorkerConfig
from pgqueue.db import consume
from pgqueue.db.call import Call
from pgqueue.errors import ConfigError
from pgqueue.worker import Worker
from pgqueue.worker.link.connection import Link
from pgqueue.worker.link.outage import Outage
from pgqueue.worker.presence import identity
from pgqueue.worker.presence.identity import Identity
from pgqueue.worker.process.requests import Requests
from pgqueue.worker.trade.exchange import Exchange
from tests.calls import call, enqueue, job, reserve, state, table, value
from tests.databases import Database
from tests.facts import wait_until, wait_until_async
from tests.worker.conftest import Start
from tests.workers import done, working, write_module


class NameOf:
    """Answers claim_name: the name belongs to `other`, whose silence is as scripted, until that is replaced."""

    def __init__(self, other: dict[str, object], *silences: float) -> None:
        self.other = other
        self.silences = list(silences)
        self.asked = 0

    async def perform(self, call: Call[Any]) -> Any:
        self.asked += 1
        *_, instead_of = call.params
        if instead_of == self.other.get("instance", ""):
            return None
        return self.other, timedelta(seconds=self.silences.pop(0))


@pytest.fixture(autouse=True)
def poll_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_POLL", 0.001)


@pytest.fixture
def gone() -> int:
    """The id of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def of_this_machine(**info: object) -> dict[str, object]:
    return {**Identity(WorkerConfig()).info(), **info}


async def test_a_name_whose_process_beats_is_refused_with_what_has_it() -> None:
    elsewhere = NameOf({"instance": "x", "host": "h", "pid": 17}, 8.0, 8.5, 9.0, 0.4)
    with pytest.raises(ConfigError) as refused:
        await Identity(WorkerConfig(name="mail")).take_name(elsewhere.perform)
    assert str(refused.value) == (
        "another worker named 'mail' is alive: process 17 on h, last heartbeat 0.4 s ago;"
        " stop it, or give each worker another name; without --name it is unique"
    )


async def test_a_name_whose_process_stays_silent_is_taken_over() -> None:
    elsewhere = NameOf({"instance": "x", "heartbeat": 10}, 8.0, 14.9, 15.1)
    await Identity(WorkerConfig(name="mail")).take_name(elsewhere.perform)
    assert elsewhere.asked == 4


async def test_a_slow_heartbeat_is_waited_for() -> None:
    elsewhere = NameOf({"instance": "x", "heartbeat": 60}, 15.1, 64.9, 1.0)
    with pytest.raises(ConfigError):
        await Identity(WorkerConfig(name="mail")).take_name(elsewhere.perform)


@pytest.mark.parametrize("info", [{}, {"heartbeat": "x"}, {"heartbeat": -1}, {"instance": 5}])
async def test_a_worker_in_another_language_counts_as_dead_after_its_silence(info: dict[str, object]) -> None:
    other = NameOf({**info}, 14.0, 15.5)
    other.other.setdefault("instance", "")
    other.other["instance"] = str(other.other["instance"])
    await Identity(WorkerConfig(name="mail")).take_name(other.perform)
    assert other.asked == 3


async def test_a_process_of_this_machine_that_is_gone_is_replaced_at_once(gone: int) -> None:
    dead = NameOf(of_this_machine(instance="x", pid=gone), 0.1)
    await Identity(WorkerConfig(name="mail")).take_name(dead.perform)
    assert dead.asked == 2


async def test_a_process_of_another_container_is_not_taken_for_one_of_this_machine(gone: int) -> None:
    elsewhere = NameOf(of_this_machine(instance="x", pid=gone, processes_of="another"), 0.1, 0.05)
    with pytest.raises(ConfigError):
        await Identity(WorkerConfig(name="mail")).take_name(elsewhere.perform)


async def test_the_second_of_two_live_workers_of_one_name_is_refused_and_the_first_works_on(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    runs: list[int] = []
    go_on = asyncio.Event()

    @app.task
    async def t() -> None: ...

    @app.task
    async def long(run: Job) -> None:
        runs.append(run.id)
        await go_on.wait()

    # Beats every second.
    settings: dict[str, Any] = {"name": "mail", "lease": 3.0, "listen": False, "poll_interval": 0.1}
    async with working(app, database.dsn, **settings):
        running = enqueue(conn, "long")
        await wait_until_async(lambda: runs)
        reservation = job(conn, running).reservation
        second = Worker(app, database.dsn, WorkerConfig(**settings))
        with pytest.raises(ConfigError, match="another worker named 'mail' is alive"):
            await second.run()
        assert value(conn, "select count(*) from pgqueue.workers where name = 'mail'") == 1
        # What the first one runs is left alone.
        found = job(conn, running)
        assert (found.state, found.reservation, found.losses) == ("executing", reservation, 0)
        go_on.set()
        assert await done(conn, running, enqueue(conn)) == ["succeeded"] * 2
        assert runs == [running]
    assert value(conn, "select count(*) from pgqueue.workers") == 0
    # The name is free again.
    async with working(app, database.dsn, **settings) as third:
        await third.started.wait()


@pytest.mark.covers("L13")
def test_a_killed_worker_comes_back_under_its_name_at_once(
    conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    write_module(tmp_path, "from pgqueue import App\napp = App()\n@app.task\ndef t(): ...\n")
    first = start_worker("-r", "jobs", "--name", "mail").started()
    first.kill()
    start_worker("-r", "jobs", "--name", "mail").started()
    job_id = enqueue(conn)
    wait_until(lambda: state(conn, job_id) == "succeeded")


def test_a_second_process_of_one_name_is_one_line_and_exit_code_2(start_worker: Start, tmp_path: Path) -> None:
    write_module(tmp_path, "from pgqueue import App\napp = App()\n@app.task\ndef t(): ...\n")
    options = ("-r", "jobs", "--name", "mail", "--lease", "3", "--no-listen", "--poll-interval", "0.1")
    first = start_worker(*options).started()
    second = start_worker(*options, "--log-level", "warning")
    assert second.wait() == 2
    [line] = second.log().splitlines()
    assert line.startswith(f"pgqueue: another worker named 'mail' is alive: process {first.pid} on ")
    assert first.is_alive()
    first.send(signal.SIGTERM)
    assert first.wait() == 0


def claim(conn: psycopg.Connection, instance: str, instead_of: str | None = None) -> list[Any]:
    return table(conn, "claim_name", "w", Jsonb({"instance": instance}), instead_of)


def test_of_two_that_take_a_name_at_once_the_second_waits_and_finds_the_first(
    database: Database, conn: psycopg.Connection
) -> None:
    first, second = database.session(), database.session()
    first.run("begin")
    first.run("select * from pgqueue.claim_name('w', '{\"instance\": \"a\"}')")
    waiting = second.start("select held_by ->> 'instance' from pgqueue.claim_name('w', '{\"instance\": \"b\"}')")
    wait_until(lambda: second.waits_behind(first))
    first.run("commit")
    assert waiting.result() == [("a",)]
    assert value(conn, "select info ->> 'instance' from pgqueue.workers") == "a"


def test_of_two_that_find_a_worker_dead_one_gets_its_name(conn: psycopg.Connection) -> None:
    assert claim(conn, "dead") == []
    assert claim(conn, "a", "dead") == []
    [left] = claim(conn, "b", "dead")
    assert left.held_by == {"instance": "a"}
    # Its own again, after its reply was lost.
    assert claim(conn, "a") == []


def test_a_worker_without_an_instance_is_replaced_by_the_empty_one(conn: psycopg.Connection) -> None:
    conn.execute("select pgqueue.hello('w')")
    [other] = claim(conn, "a")
    assert other.held_by == {}
    assert claim(conn, "a", "") == []


def test_a_claim_without_an_instance_is_refused(conn: psycopg.Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="info has no instance"):
        conn.execute("select * from pgqueue.claim_name('w', '{}')")


def test_this_process_knows_its_own_dead_workers() -> None:
    info = of_this_machine(instance="never started", pid=os.getpid())
    assert identity._is_dead(info)
    identity._alive.add("never started")
    assert not identity._is_dead(info)
    identity._alive.discard("never started")


def test_a_process_whose_name_another_one_has_taken_is_told(conn: psycopg.Connection) -> None:
    assert claim(conn, "first") == []
    assert call(conn, "worker_command", "w", "run", "first") == "run"
    assert claim(conn, "second", "first") == []
    assert call(conn, "worker_command", "w", "run", "first") == "taken"
    assert call(conn, "worker_command", "w", "run", "second") == "run"
    # One that gives none is not told, as before.
    assert call(conn, "worker_command", "w", "run") == "run"


async def test_a_worker_whose_name_another_one_has_taken_ends_and_leaves_the_other_its_jobs(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    go = asyncio.Event()

    @app.task
    async def t() -> None:
        await go.wait()

    running = enqueue(conn)
    worker = Worker(app, database.dsn, WorkerConfig(name="w", lease=15, queues=("default",)))
    serving = asyncio.create_task(worker.run())
    await wait_until_async(lambda: worker.status()["running"] == 1)
    assert claim(conn, "second", worker._identity.instance) == []
    enqueue(conn, queue="other")
    [others] = reserve(conn, 1, "w", queues=["other"], lease="1 hour")
    # It registers with each new connection.
    conn.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and application_name = 'pgqueue w'"
    )
    await wait_until_async(lambda: worker.status()["stopping"])
    go.set()
    assert await asyncio.wait_for(serving, 120) is True
    assert worker.exit_code == 1
    assert "another process has taken the name w" in caplog.text
    assert (state(conn, running), state(conn, others.id)) == ("succeeded", "executing")
    assert value(conn, "select info ->> 'instance' from pgqueue.workers where name = 'w'") == "second"


async def test_a_process_gives_back_its_own_lost_claim_and_nothing_of_another_one_that_has_its_name(
    database: Database, conn: psycopg.Connection
) -> None:
    config = WorkerConfig(name="w")
    identity = Identity(config)
    link = Link(database.dsn, Outage(database.dsn))
    exchange = Exchange(consume.Claim("w", None, None, config.lease, config.strategy), identity, Requests())
    await identity.take_name(link.perform)

    enqueue(conn)
    [own] = reserve(conn, 1, "w", lease="1 hour")
    exchange.compare_handoffs()
    await exchange.give_back_unknown(link, {})
    assert state(conn, own.id) == "waiting"

    # It stood still for long, and does not know yet.
    assert claim(conn, "second", identity.instance) == []
    [others] = reserve(conn, 1, "w", lease="1 hour")
    for _ in range(2):
        exchange.compare_handoffs()
        assert exchange.is_unsure
        await exchange.give_back_unknown(link, {})
        assert state(conn, others.id) == "executing"
        # Or the claiming loop would come back at once, for ever.
        assert not exchange.is_unsure
        assert not identity.has_name
    await link.close()


async def test_a_worker_keeps_the_name_of_a_dead_one_where_a_failover_forgets_that_it_took_it(
    database: Database, conn: psycopg.Connection, gone: int
) -> None:
    app = App()

    @app.task
    async def t() -> None: ...

    before = Jsonb(of_this_machine(instance="first", pid=gone))
    assert table(conn, "claim_name", "w", before) == []
    async with working(app, database.dsn, name="w") as worker:
        # As of the standby that became the primary.
        conn.execute("update pgqueue.workers set info = %s where name = 'w'", [before])
        conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and application_name = 'pgqueue w'"
        )
        instance = "select info ->> 'instance' from pgqueue.workers where name = 'w'"
        await wait_until_async(lambda: value(conn, instance) == worker._identity.instance)
        assert await done(conn, enqueue(conn)) == ["succeeded"]
        assert not worker.status()["stopping"]
        assert worker._identity.has_name
