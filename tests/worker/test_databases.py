"""One process serves several databases: their slots, and the loss of one."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from pgqueue import App
from pgqueue.config import WorkerConfig, name_databases
from pgqueue.errors import ConfigError, PgQueueError
from pgqueue.schema.migrate import migrate
from pgqueue.worker import fleet as fleet_module
from pgqueue.worker.fleet import Fleet
from pgqueue.worker.run import concurrency
from pgqueue.worker.run.slots import Slots
from pgqueue.worker.trade.exchange import Reply
from tests.calls import enqueue, enqueue_many, value
from tests.databases import Cloner, Database, uri
from tests.facts import wait_until, wait_until_async
from tests.proxy import Proxy
from tests.workers import WorkerProcess, is_asleep, write_module

CRASHES = "select crashes from pgqueue.all_jobs where id = %s and state = 'succeeded'"


@pytest.fixture
def second(cloner: Cloner) -> Iterator[Database]:
    database = cloner.migrated()
    yield database
    cloner.drop(database)


@pytest.fixture
def other(second: Database) -> psycopg.Connection:
    return second.connect()


@asynccontextmanager
async def serving(app: App, *dsns: str, **settings: Any) -> AsyncIterator[Fleet]:
    fleet = Fleet(app, dsns, WorkerConfig(**{"shutdown_timeout": 3.0, **settings}))
    running = asyncio.create_task(fleet.run())
    try:
        yield fleet
    finally:
        fleet.stop()
        await asyncio.wait_for(running, 120)


class Gate:
    """A task that runs until it is let go; `running` and `most` count it by database."""

    def __init__(self, app: App) -> None:
        self.running = {"a": 0, "b": 0}
        self.most_at_once = 0
        self.go = asyncio.Event()
        self.one = asyncio.Semaphore(0)

        @app.task(name="waits")
        async def waits(i: int = 0, place: str = "a") -> None:
            self.running[place] += 1
            self.most_at_once = max(self.most_at_once, sum(self.running.values()))
            try:
                done = [asyncio.ensure_future(self.go.wait()), asyncio.ensure_future(self.one.acquire())]
                await asyncio.wait(done, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.cancel()
            finally:
                self.running[place] -= 1


def fill(conn: psycopg.Connection, place: str, count: int) -> None:
    conn.execute(
        "select pgqueue.enqueue_many('waits', array_fill(jsonb_build_object('place', %s::text), array[%s::int]))",
        [place, count],
    )


class Stub:
    """A member of slots: what it runs, and how many due jobs it has beyond that."""

    def __init__(self, used: int, due: int) -> None:
        self.used, self.due, self.concurrency = used, due, 1
        self.freed = asyncio.Event()

    @property
    def wants(self) -> bool:
        return self.due > 0


def numbers(total: int, *members: Stub) -> list[int]:
    slots = Slots(total, len(members))
    for member in members:
        slots.join(member)
    slots.settle()
    return [member.concurrency for member in members]


def test_one_database_alone_with_due_jobs_gets_all_slots_but_one_for_each_other() -> None:
    assert numbers(20, Stub(0, 100), Stub(0, 0), Stub(0, 0)) == [18, 9, 9]
    assert numbers(20, Stub(18, 100), Stub(0, 0), Stub(0, 0))[1:] == [1, 1]


def test_databases_with_due_jobs_get_equal_parts() -> None:
    assert numbers(20, Stub(10, 5), Stub(10, 5)) == [10, 10]
    assert numbers(20, Stub(7, 5), Stub(7, 5), Stub(6, 5)) == [7, 7, 6]
    # The part that a third one leaves, which has fewer jobs, is shared too.
    assert numbers(20, Stub(9, 5), Stub(9, 5), Stub(2, 0))[:2] == [9, 9]


def test_a_database_gets_its_part_as_jobs_of_the_others_end() -> None:
    assert numbers(20, Stub(19, 5), Stub(1, 5)) == [10, 1]
    assert numbers(20, Stub(15, 5), Stub(1, 5)) == [10, 5]


def test_a_slot_is_kept_for_a_database_whose_worker_has_not_started_yet() -> None:
    slots, first, second = Slots(8, 2), Stub(0, 30), Stub(0, 0)
    slots.join(first)
    assert first.concurrency == 7
    first.used = 7
    slots.join(second)
    assert [first.concurrency, second.concurrency] == [7, 1]
    # Its worker failed and is started again.
    slots.leave(second)
    slots.settle()
    assert first.concurrency == 7
    slots.expect_fewer()
    assert first.freed.is_set()
    slots.settle()
    assert first.concurrency == 8


def test_slots_are_never_given_twice() -> None:
    members = [Stub(0, 9), Stub(0, 9), Stub(0, 9)]
    slots = Slots(10, 3)
    for member in members:
        slots.join(member)
    for turn in range(300):
        member = members[turn % 3]
        slots.settle()
        member.used = max(member.used, member.concurrency)
        assert sum(each.used for each in members) <= 10
        if turn % 7 == 0:
            members[(turn // 7) % 3].used -= members[(turn // 7) % 3].used > 0
    assert sorted(member.used for member in members) in ([3, 3, 4], [3, 3, 3], [2, 4, 4], [2, 3, 4])


def test_fewer_slots_than_databases_are_refused() -> None:
    with pytest.raises(ConfigError, match="concurrency is 2 for 3 databases"):
        Slots(2, 3)


@pytest.mark.parametrize(
    ("dsns", "names"),
    [
        (["dbname=a host=x", "dbname=b host=x"], ["a", "b"]),
        (["dbname=a host=x", "dbname=a host=y", "dbname=b host=y"], ["a@x", "a@y", "b"]),
        (["postgresql://x:1/a", "postgresql://x:2/a"], ["a@x:1", "a@x:2"]),
        (["service=orders", "service=mail"], ["orders", "mail"]),
    ],
)
def test_a_database_has_the_shortest_name_that_tells_it_apart(dsns: list[str], names: list[str]) -> None:
    assert name_databases(dsns) == names


def test_a_database_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="--dsn names a on x twice"):
        name_databases(["dbname=a host=x", "postgresql://x/a"])


@pytest.mark.covers("A9")
async def test_all_slots_serve_one_database_while_the_other_has_no_job(
    database: Database, second: Database, conn: psycopg.Connection
) -> None:
    app = App()
    gate = Gate(app)
    fill(conn, "a", 30)
    async with serving(app, database.dsn, second.dsn, concurrency=8) as fleet:
        await wait_until_async(lambda: gate.running["a"] == 7, 20)
        assert fleet.status()["running"] == 7
        gate.go.set()
        await wait_until_async(lambda: value(conn, "select count(*) from pgqueue.history") == 30, 20)


@pytest.mark.covers("A9")
async def test_the_slots_of_a_claim_that_came_back_empty_go_to_the_other_database(
    database: Database, second: Database, conn: psycopg.Connection, other: psycopg.Connection
) -> None:
    app = App()
    gate = Gate(app)
    holder = second.session()
    holder.run("begin")
    async with serving(app, database.dsn, second.dsn, concurrency=8, name="w"):
        for each in (conn, other):
            await wait_until_async(partial(is_asleep, each, "w"), 20)
        # It claims, and its claim waits: until the answer comes it counts as using slots.
        holder.run("lock table pgqueue.jobs in access exclusive mode")
        other.execute("select pg_notify(channel, 'wake') from pgqueue.idle_workers")
        claims = (
            "select exists (select from pg_stat_activity where datname = current_database()"
            " and wait_event_type = 'Lock' and query like '%.reserve(%')"
        )
        await wait_until_async(lambda: value(other, claims), 20)
        fill(conn, "a", 30)
        await wait_until_async(lambda: gate.running["a"] > 0, 20)
        assert gate.running["a"] < 7
        holder.run("rollback")
        await wait_until_async(lambda: gate.running["a"] == 7, 20)
        gate.go.set()


@pytest.mark.covers("A9")
async def test_a_job_of_one_database_starts_while_the_other_has_filled_all_slots_it_may(
    database: Database, second: Database, conn: psycopg.Connection, other: psycopg.Connection
) -> None:
    app = App()
    gate = Gate(app)
    fill(conn, "a", 100)
    async with serving(app, database.dsn, second.dsn, concurrency=8):
        await wait_until_async(lambda: gate.running["a"] == 7, 20)
        fill(other, "b", 100)
        await wait_until_async(lambda: gate.running["b"] == 1, 20)
        # Its equal part, one for each job of the other that ends.
        for _ in range(20):
            gate.one.release()
            await asyncio.sleep(0)
        await wait_until_async(lambda: gate.running == {"a": 4, "b": 4}, 20)
        assert gate.most_at_once <= 8
        gate.go.set()
        for each in (conn, other):
            await wait_until_async(lambda each=each: value(each, "select count(*) from pgqueue.history") == 100, 20)


@pytest.mark.covers("A9")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_both_databases_are_emptied_and_no_more_handlers_run_than_there_are_slots(
    kind: str, database: Database, second: Database, conn: psycopg.Connection, other: psycopg.Connection
) -> None:
    app = App()
    running = 0
    most = 0
    starts: list[str] = []

    def begin(place: str) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        starts.append(place)

    def end() -> None:
        nonlocal running
        running -= 1

    if kind == "async":

        @app.task(name="waits")
        async def waits(place: str) -> None:
            begin(place)
            await asyncio.sleep(0.005)
            end()

    else:
        lock = threading.Lock()

        @app.task(name="waits")
        def waits_in_a_thread(place: str) -> None:
            with lock:
                begin(place)
            time.sleep(0.005)
            with lock:
                end()

    fill(conn, "a", 1500)
    fill(other, "b", 1500)
    async with serving(app, database.dsn, second.dsn, concurrency=6) as fleet:
        for each in (conn, other):
            await wait_until_async(lambda each=each: value(each, "select count(*) from pgqueue.history") == 1500, 60)
        assert most <= 6
        # The reply to the last report may still be on its way.
        await wait_until_async(lambda: fleet.status()["succeeded"] == 3000)
        counted = {entry["database"]: entry["succeeded"] for entry in fleet.counts.entries()}
        assert counted == dict.fromkeys(name_databases([database.dsn, second.dsn]), 1500)
    # None was starved while both had jobs.
    both = max(starts.index("a"), starts.index("b"))
    assert 200 < starts[both : both + 1000].count("a") < 800
    for each in (conn, other):
        assert value(each, "select max(attempts) from pgqueue.history") == 1


@pytest.mark.covers("A10")
async def test_the_loss_of_one_database_stops_no_other(
    database: Database, second: Database, conn: psycopg.Connection, other: psycopg.Connection
) -> None:
    app = App()

    @app.task
    async def t(i: int) -> None:
        pass

    with Proxy(uri(second.dsn, application_name="x")) as proxy:
        async with serving(app, database.dsn, proxy.dsn, concurrency=4, lease=6.0) as fleet:
            enqueue_many(other, 5)
            await wait_until_async(lambda: value(other, "select count(*) from pgqueue.history") == 5, 20)
            proxy.refuse()
            proxy.drop()
            await wait_until_async(lambda: "the database cannot be used" in fleet.status()["reason"], 20)
            # All slots but the one that is kept go to what can be served.
            enqueue_many(conn, 50)
            await wait_until_async(lambda: value(conn, "select count(*) from pgqueue.history") == 50, 20)
            assert fleet.status()["ready"]
            enqueue_many(other, 5)
            proxy.accept()
            await wait_until_async(lambda: value(other, "select count(*) from pgqueue.history") == 10, 40)
            await wait_until_async(lambda: fleet.status()["reason"] == "", 20)


async def test_a_database_that_refuses_at_the_start_is_tried_again_and_stops_no_other(
    database: Database, empty_database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "_FIRST_PAUSE", 0.2)
    app = App()
    begun: list[str] = []

    @app.on_start
    async def begin() -> None:
        begun.append("start")

    @app.on_stop
    async def end() -> None:
        begun.append("stop")

    @app.task
    async def t(i: int) -> None:
        pass

    async with serving(app, database.dsn, empty_database.dsn, concurrency=4) as fleet:
        enqueue_many(conn, 3)
        await wait_until_async(lambda: value(conn, "select count(*) from pgqueue.history") == 3, 20)
        await wait_until_async(lambda: "pgqueue migrate" in fleet.status()["reason"], 20)
        await asyncio.to_thread(migrate, empty_database.dsn)
        late = empty_database.connect()
        enqueue(late, "t", {"i": 1})
        await wait_until_async(lambda: value(late, "select count(*) from pgqueue.history") == 1, 20)
    # Once for the process, whichever database came when.
    assert begun == ["start", "stop"]


async def test_when_all_databases_refuse_the_first_refusal_is_raised(empty_database: Database) -> None:
    fleet = Fleet(App(), [empty_database.dsn, uri(empty_database.dsn, dbname="postgres")], WorkerConfig())
    with pytest.raises(PgQueueError, match="run: pgqueue migrate"):
        await fleet.run()


@pytest.mark.long
@pytest.mark.covers("A12")
async def test_a_range_of_slots_moves_for_all_databases_together(
    database: Database, second: Database, conn: psycopg.Connection, other: psycopg.Connection
) -> None:
    app = App()
    gate = Gate(app)
    fill(conn, "a", 20)
    fill(other, "b", 20)
    async with serving(app, database.dsn, second.dsn, min_concurrency=2, concurrency=10) as fleet:
        await wait_until_async(lambda: sum(gate.running.values()) == 10, 30)
        assert gate.running == {"a": 5, "b": 5}
        gate.go.set()
        await wait_until_async(lambda: fleet.status()["concurrency"] == 2, 60)


async def test_the_loop_that_moves_the_slots_is_logged_and_started_again_when_it_crashes(
    database: Database, second: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    async def crash(*_: object) -> None:
        calls.append(len(calls))
        raise ArithmeticError("an error of the loop")

    monkeypatch.setattr(concurrency, "adapt_forever", crash)
    async with serving(App(), database.dsn, second.dsn, min_concurrency=2, concurrency=4):
        await wait_until_async(lambda: len(calls) > 1)
    assert "the concurrency loop of worker" in caplog.text
    assert "an error of the loop" in caplog.text


@pytest.mark.parametrize("processes", [(), ("--processes", "2")])
def test_the_command_serves_them_and_labels_its_metrics(
    processes: tuple[str, ...],
    database: Database,
    second: Database,
    conn: psycopg.Connection,
    other: psycopg.Connection,
    tmp_path: Path,
) -> None:
    write_module(tmp_path, "from pgqueue import App\napp = App()\n@app.task\ndef t(i):\n    pass\n")
    options = ("-r", "jobs", "--health-port", "0", "--dsn", database.dsn, "--dsn", second.dsn)
    worker = WorkerProcess(tmp_path, "", *options, *processes).started()
    try:
        for each in (conn, other):
            enqueue_many(each, 20)
        for each in (conn, other):
            wait_until(lambda each=each: value(each, "select count(*) from pgqueue.history") == 20, 20)
        url = worker.log().split("health at ")[1].split("/status")[0]
        for name in name_databases([database.dsn, second.dsn]):
            wanted = f'pgqueue_jobs_total{{database="{name}",outcome="succeeded",queue="default",task="t"}} 20.0'
            wait_until(lambda wanted=wanted: wanted in httpx.get(f"{url}/metrics", timeout=30).text, 10)
            succeeded = [
                line
                for line in httpx.get(f"{url}/metrics", timeout=30).text.splitlines()
                if line.startswith("pgqueue_worker_succeeded_total") and f'database="{name}"' in line
            ]
            assert sum(float(line.split()[-1]) for line in succeeded) == 20
        assert httpx.get(f"{url}/ready", timeout=30).status_code == 200
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    finally:
        worker.kill()


@pytest.mark.parametrize("how", ["stop", "retire"])
async def test_workers_that_are_stopped_before_they_start_end(how: str, database: Database, second: Database) -> None:
    fleet = Fleet(App(), (database.dsn, second.dsn), WorkerConfig())
    # A signal that comes while the port of the health endpoint is opened.
    (fleet.stop if how == "stop" else fleet.retire)()
    assert await asyncio.wait_for(fleet.run(), 60) is True


@pytest.mark.covers("L7")
def test_a_supervisor_gives_back_in_every_database_what_a_dead_process_held(
    database: Database, second: Database, conn: psycopg.Connection, other: psycopg.Connection, tmp_path: Path
) -> None:
    write_module(
        tmp_path,
        """
        import time
        from pathlib import Path
        from pgqueue import App
        app = App()
        @app.task
        def t(i):
            Path(f"running-{i}").touch()
            while not Path("go").exists():
                time.sleep(0.02)
        """,
    )
    options = ("-r", "jobs", "--processes", "1", "--dsn", database.dsn, "--dsn", second.dsn, "--lease", "300")
    worker = WorkerProcess(tmp_path, "", *options).started()
    try:
        jobs = [(each, enqueue(each, "t", {"i": i})) for i, each in enumerate((conn, other))]
        # Only a job whose handler runs has crashed its process.
        wait_until(lambda: len([*tmp_path.glob("running-*")]) == 2, 20)
        children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        (tmp_path / "go").touch()
        # Long before the lease lapses.
        for each, job_id in jobs:
            assert wait_until(lambda each=each, job_id=job_id: value(each, CRASHES, job_id), 30) == 1
    finally:
        worker.kill()


async def test_jobs_of_a_claim_take_their_slots_before_another_database_is_given_any(
    database: Database, second: Database, conn: psycopg.Connection
) -> None:
    app = App()
    may_end = asyncio.Event()

    @app.task
    async def t(i: int) -> None:
        await may_end.wait()

    async with serving(app, database.dsn, second.dsn, concurrency=10, name="w") as fleet:
        worker = fleet._places[0].worker
        assert worker is not None
        intake, runner = worker._intake, worker._runner
        took, answered = intake.took, intake._slots.answered
        claimed, seen = 0, []

        def takes(reply: Reply, asked_for: int) -> int:
            nonlocal claimed
            claimed = len(reply.claimed or [])
            try:
                return took(reply, asked_for)
            finally:
                claimed = 0

        def note(is_short: bool) -> None:
            seen.append((claimed, runner.running + runner.unstarted))
            answered(is_short)

        intake.took, intake._slots.answered = takes, note  # type: ignore[method-assign]
        conn.execute("set pgqueue.hand_off = off")
        enqueue_many(conn, 3)
        await wait_until_async(lambda: any(number for number, _ in seen))
        may_end.set()
    assert all(in_slots >= number for number, in_slots in seen), seen
