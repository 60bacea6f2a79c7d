"""Chains, groups, steps and events, with a worker."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

import examples.workflows.app as examples
import pgqueue
from pgqueue import App, Job
from pgqueue._steps import Steps, perform
from pgqueue.config import WorkerConfig
from pgqueue.db.call import perform as ask
from pgqueue.errors import DuplicateStep, EventTimeout, InvalidArgument, LeaseLost
from pgqueue.testing import Clock
from pgqueue.worker import Worker
from tests.calls import call, enqueue, job, reserve_one, state, table, value
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import done, working


async def work(app: App, database: Database) -> None:
    """Run a worker until nothing is due."""
    async with asyncio.timeout(120):
        await Worker(app, database.dsn, WorkerConfig(until_empty=True)).run()


@pytest.fixture(params=["async", "in a thread"])
def in_thread(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "in a thread")


def test_a_chain_is_one_job_after_the_other(conn: psycopg.Connection) -> None:
    app = App()

    @app.task
    def fetch(page: int) -> None: ...

    @app.task
    def report() -> None: ...

    ids = pgqueue.chain(conn, fetch.job(1), fetch.job(2), report.using(run_if="finished").job())
    assert [job(conn, each).depends_on for each in ids] == [None, ids[:1], ids[1:2]]
    assert job(conn, ids[2]).run_if == "finished"
    with pytest.raises(InvalidArgument, match="job 1 of the chain: queue"):
        pgqueue.chain(conn, fetch.job(1), fetch.using(queue="").job(2))


def test_a_refused_chain_leaves_nothing_behind(database: Database, conn: psycopg.Connection) -> None:
    own = database.connect(autocommit=False)
    for connection in (conn, own):
        with pytest.raises(InvalidArgument, match="job 1 of the chain: "):
            pgqueue.chain(connection, {"task": "a"}, {"task": "b", "depends_on": [99999]}, {"task": "c"})
    # The transaction goes on.
    pgqueue.chain(own, {"task": "d"})
    own.commit()
    assert value(conn, "select array_agg(task) from pgqueue.jobs") == ["d"]


async def test_a_chain_on_an_async_connection(database: Database, conn: psycopg.Connection) -> None:
    async_conn = await database.connect_async()
    ids = await pgqueue.chain(async_conn, {"task": "a"}, {"task": "b"})
    await async_conn.commit()
    assert job(conn, ids[1]).depends_on == ids[:1]


async def test_a_group_and_its_callback_run(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    seen: list[Any] = []

    @app.task
    async def load(number: int) -> None:
        seen.append(number)

    @app.task
    async def report() -> None:
        seen.append("report")

    with app.group(conn, "import") as group:
        group.enqueue_many(load, [{"number": number} for number in range(20)])
        group.enqueue(load.using(priority=5), 20)
    group.then(report.using(run_if="finished"))
    await work(app, database)
    assert (sorted(seen[:-1]), seen[-1]) == (list(range(21)), "report")
    assert state(conn, group.id) == "succeeded"


def test_the_callback_of_a_group_waits_for_other_jobs_too(conn: psycopg.Connection) -> None:
    app = App()

    @app.task
    async def report() -> None: ...

    other = report.enqueue(conn)
    with app.group(conn) as group:
        group.enqueue(report)
    callback = group.then(report.using(depends_on=[other]))
    assert sorted(job(conn, callback).depends_on) == sorted([other, group.id])


async def test_a_group_on_an_async_connection(database: Database, conn: psycopg.Connection) -> None:
    app = App()

    @app.task
    async def load(number: int) -> None: ...

    async_conn = await database.connect_async()
    async with app.group(async_conn) as group:
        await group.enqueue(load, 1)
    await async_conn.commit()
    assert table(conn, "group_progress", group.id)[0].total == 1
    await work(app, database)
    assert state(conn, group.id) == "succeeded"


async def test_a_step_that_is_done_is_not_done_again(
    database: Database, conn: psycopg.Connection, in_thread: bool
) -> None:
    app = App()
    calls: list[Any] = []

    def charge(order: int) -> dict[str, Any]:
        calls.append(("charge", order))
        return {"id": 7, "pair": (1, 2)}

    async def mail() -> None:
        calls.append("mail")
        if calls.count("mail") == 1:
            raise ConnectionError("no answer")

    if in_thread:

        @app.task(name="order", retry_delay="0", retry_jitter=0)
        def order_in_thread(job: Job) -> None:
            calls.append(job.step("charge", charge, 17))
            job.step("mail", lambda: asyncio.run(mail()))

    else:

        @app.task(name="order", retry_delay="0", retry_jitter=0)
        async def order(job: Job) -> None:
            calls.append(await job.step("charge", charge, 17))
            await job.step("mail", mail)

    job_id = pgqueue.enqueue(conn, "order")
    await work(app, database)
    # As JSON has it, from the first attempt on.
    stored = {"id": 7, "pair": [1, 2]}
    assert calls == [("charge", 17), stored, "mail", stored, "mail"]
    assert (state(conn, job_id), job(conn, job_id).attempts) == ("succeeded", 2)
    assert [row.name for row in table(conn, "steps", job_id)] == ["charge", "mail"]


def test_a_handler_whose_job_has_ended_gets_no_results_of_steps(conn: psycopg.Connection) -> None:
    """History keeps the steps of a job that succeeded without their results: they must not pass for results."""
    enqueue(conn)
    held = reserve_one(conn)
    assert call(conn, "complete_step", held.id, held.reservation, "pay", Jsonb(7))
    call(conn, "fail", held.id, held.reservation, retry_in="0 s")
    stale = reserve_one(conn)
    steps = Steps((stale.id, stale.reservation), lambda leaving: None)
    assert perform(steps.step("pay", pytest.fail, ("it is stored",), {}), partial(ask, conn)) == 7
    assert call(conn, "complete", stale.id, stale.reservation)
    assert [step.name for step in table(conn, "steps", stale.id)] == ["pay"]
    late = Steps((stale.id, stale.reservation), lambda leaving: None)
    with pytest.raises(LeaseLost):
        perform(late.step("pay", pytest.fail, ("its lease is lost",), {}), partial(ask, conn))


async def test_two_steps_of_one_name_are_refused(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    errors: list[type[Exception]] = []

    @app.task
    async def twice(job: Job) -> None:
        await job.step("a", lambda: 1)
        try:
            await job.step("a", lambda: 2)
        except DuplicateStep as error:
            errors.append(type(error))

    pgqueue.enqueue(conn, "twice")
    await work(app, database)
    assert errors == [DuplicateStep]


async def test_a_step_in_the_steps_own_transaction(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    conn.execute("create table paid (n int)")

    @app.task(max_attempts=2, retry_delay="0", retry_jitter=0)
    def pay(job: Job) -> None:
        with psycopg.connect(database.dsn) as own:
            own.execute("insert into paid values (%s)", [job.attempt])
            assert job.complete_step(own, f"pay {job.attempt}")
            if job.attempt == 1:
                raise RuntimeError("after the step")

    job_id = pgqueue.enqueue(conn, "pay")
    await work(app, database)
    assert value(conn, "select array_agg(n) from paid") == [2]
    assert [row.name for row in table(conn, "steps", job_id)] == ["pay 2"]


async def test_a_step_whose_own_transaction_is_rolled_back_is_called_again(
    database: Database, conn: psycopg.Connection
) -> None:
    """As when an asynchronous failover loses the commit: a record of the step alone would lose its writes for good."""
    app = App()
    conn.execute("create table paid (n int)")

    @app.task(max_attempts=2, retry_delay="0", retry_jitter=0)
    def order(job: Job) -> None:
        def pay() -> int:
            with psycopg.connect(database.dsn) as own:
                own.execute("insert into paid values (%s)", [job.attempt])
                assert job.complete_step(own, "pay", job.attempt)
                if job.attempt == 1:
                    own.rollback()
            return job.attempt

        assert job.step("pay", pay) == job.attempt
        if job.attempt == 1:
            raise RuntimeError("after the step")

    job_id = pgqueue.enqueue(conn, "order")
    await work(app, database)
    assert (state(conn, job_id), value(conn, "select array_agg(n) from paid")) == ("succeeded", [2])


async def test_a_step_in_its_own_transaction_does_not_wait_for_it(database: Database, conn: psycopg.Connection) -> None:
    """The transaction may be open beyond the step; a second record of the step would wait for it."""
    app = App()

    @app.task(max_attempts=1, timeout="30 s")
    def order(job: Job) -> None:
        with psycopg.connect(database.dsn) as own:
            assert job.step("pay", lambda: job.complete_step(own, "pay", True)) is True

    job_id = pgqueue.enqueue(conn, "order")
    await work(app, database)
    assert state(conn, job_id) == "succeeded"
    assert [row.name for row in table(conn, "steps", job_id)] == ["pay"]


async def test_a_sleeping_job_holds_no_worker(
    database: Database, conn: psycopg.Connection, clock: Clock, in_thread: bool
) -> None:
    app = App()
    ran: list[int] = []

    if in_thread:

        @app.task(name="t", max_attempts=1)
        def sleeps_in_thread(job: Job) -> None:
            job.sleep("cool down", "1 day")
            ran.append(job.attempt)

    else:

        @app.task(name="t", max_attempts=1)
        async def sleeps(job: Job) -> None:
            await job.sleep("cool down", "1 day")
            ran.append(job.attempt)

    job_id = pgqueue.enqueue(conn, "t")
    await work(app, database)
    assert (state(conn, job_id), ran) == ("waiting", [])
    clock.advance("1 day")
    await work(app, database)
    assert (state(conn, job_id), ran) == ("succeeded", [1])


async def test_a_job_waits_for_the_jobs_that_it_started(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    found: list[Any] = []

    @app.task(store_result=True)
    async def part(number: int) -> int:
        return number * 2

    @app.task
    async def whole(job: Job) -> None:
        async def start() -> list[int]:
            own = await database.connect_async()
            ids = await part.enqueue_many(own, [{"number": number} for number in range(3)])
            await own.commit()
            return ids

        found.append(await job.wait(await job.step("start", start)))

    job_id = pgqueue.enqueue(conn, "whole")
    async with working(app, database.dsn):
        assert await done(conn, job_id) == ["succeeded"]
    [results] = found
    assert sorted(results.values()) == [("succeeded", 0), ("succeeded", 2), ("succeeded", 4)]


async def test_an_event_from_outside(
    database: Database, conn: psycopg.Connection, clock: Clock, in_thread: bool
) -> None:
    app = App()
    found: list[Any] = []

    def answer(job: Job) -> Any:
        return job.wait_event(f"paid:{job.id}", timeout="1 hour")

    if in_thread:

        @app.task(name="t")
        def waits_in_thread(job: Job) -> None:
            try:
                found.append(answer(job))
            except EventTimeout:
                found.append("timeout")

    else:

        @app.task(name="t")
        async def waits(job: Job) -> None:
            try:
                found.append(await answer(job))
            except EventTimeout:
                found.append("timeout")

    one, other = pgqueue.enqueue(conn, "t"), pgqueue.enqueue(conn, "t")
    await work(app, database)
    assert found == []
    assert pgqueue.emit_event(conn, f"paid:{one}", {"amount": 5}) is True
    assert pgqueue.emit_event(conn, f"paid:{one}", {"amount": 6}) is False
    await work(app, database)
    assert found == [{"amount": 5}]
    clock.advance("1 hour")
    await work(app, database)
    assert found == [{"amount": 5}, "timeout"]
    assert (state(conn, one), state(conn, other)) == ("succeeded", "succeeded")


async def test_results_of_steps_pass_the_codec(database: Database, conn: psycopg.Connection) -> None:
    class Codec:
        def encode(self, args: dict[str, Any], /) -> dict[str, Any]:
            return {name: f"<{value}>" for name, value in args.items()}

        def decode(self, args: dict[str, Any], /) -> dict[str, Any]:
            return {name: value[1:-1] for name, value in args.items()}

    app = App(codec=Codec())
    found: list[Any] = []
    stored: list[Any] = []

    @app.task(retry_delay="0", retry_jitter=0)
    async def secret(job: Job) -> None:
        found.append(await job.step("fetch", lambda: "s3cret"))
        if job.attempt == 1:
            stored.append(value(conn, "select result from pgqueue.steps"))
            raise RuntimeError

    secret.enqueue(conn)
    await work(app, database)
    assert found == ["s3cret", "s3cret"]
    assert stored == ["<s3cret>"]


async def test_a_parent_that_dies_and_is_retried_runs_the_chain(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    broken = True

    @app.task(max_attempts=1)
    async def fetch() -> None:
        if broken:
            raise RuntimeError

    @app.task
    async def load() -> None: ...

    first, second = pgqueue.chain(conn, fetch.job(), load.job())
    await work(app, database)
    assert (state(conn, first), state(conn, second)) == ("dead", "cancelled")
    broken = False
    call(conn, "retry", first)
    await work(app, database)
    assert (state(conn, first), state(conn, second)) == ("succeeded", "succeeded")
    assert call(conn, "emit_event", "x", Jsonb(None))


async def test_until_empty_waits_for_a_child_whose_row_is_locked_when_its_parent_ends(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task
    async def parent() -> None: ...

    @app.task
    async def child() -> None: ...

    first, second = pgqueue.chain(conn, parent.job(), child.job())
    holder = database.session()
    holder.run("begin")
    holder.run("select from pgqueue.jobs where id = %s for update", [second])
    working = asyncio.create_task(work(app, database))
    await wait_until_async(lambda: state(conn, first) == "succeeded")
    holder.run("rollback")
    await working
    assert (state(conn, first), state(conn, second)) == ("succeeded", "succeeded")


async def test_the_examples_run(
    database: Database, conn: psycopg.Connection, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="workflows")
    packed, late = (pgqueue.enqueue(conn, "workflows.order", {"number": number}) for number in (17, 18))
    pgqueue.enqueue(conn, "workflows.import_rows", {"rows": 10_000})
    pgqueue.enqueue(conn, "workflows.nightly")
    for _ in range(3):
        await work(examples.app, database)
    pgqueue.emit_event(conn, "packed:17", {"parcel": 5})
    await work(examples.app, database)
    assert (state(conn, packed), state(conn, late)) == ("succeeded", "waiting")
    clock.advance("2 days")
    for _ in range(3):
        await work(examples.app, database)
    printed = "\n".join(record.getMessage() for record in caplog.records if record.name == "workflows")
    assert printed.count("charged") == 2
    for line in ("parcel 5: shipped", "payment 1018: refunded", "the night went well", "has ended"):
        assert printed.count(line) == 1, line
    assert "something failed" not in printed
    # The import: a group of a hundred pages, and one report.
    [members] = conn.execute(
        "select total, succeeded from pgqueue.groups() where name = 'import of 10000 rows'"
    ).fetchall()
    assert members == (100, 100)
    assert value(conn, "select count(*) from pgqueue.jobs") == 0


async def test_a_sleep_beside_a_step_lets_it_end_and_starts_no_other(
    database: Database, conn: psycopg.Connection, in_thread: bool
) -> None:
    app = App()
    calls: list[str] = []

    async def handle(job: Job) -> None:
        started, go = asyncio.Event(), asyncio.Event()

        async def charge() -> None:
            calls.append("charge")
            started.set()
            await go.wait()

        async def pay() -> None:
            await job.step("charge", charge)
            await job.step("mail", calls.append, "mail")

        async def rest() -> None:
            if not calls:
                await started.wait()
            sleeping = asyncio.create_task(job.sleep("rest", "0.5 s"))
            await asyncio.sleep(0)
            go.set()
            await sleeping

        await asyncio.gather(pay(), rest())

    def handle_in_thread(job: Job) -> None:
        started, go = threading.Event(), threading.Event()

        def charge() -> None:
            calls.append("charge")
            started.set()
            go.wait(120)

        def pay() -> None:
            job.step("charge", charge)
            job.step("mail", calls.append, "mail")

        with ThreadPoolExecutor(1) as pool:
            paid = pool.submit(pay)
            if not calls:
                started.wait(120)
            # Soon after the sleep began to wait.
            threading.Timer(0.2, go.set).start()
            job.sleep("rest", "0.5 s")
            paid.result()

    app.task(name="handle")(handle_in_thread if in_thread else handle)
    job_id = enqueue(conn, "handle")
    async with working(app, database.dsn):
        assert await done(conn, job_id) == ["succeeded"]
    assert calls == ["charge", "mail"]
    assert (job(conn, job_id).attempts, job(conn, job_id).losses) == (1, 0)


async def test_a_sleep_in_a_task_group_is_no_failure(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    runs: list[bool] = []

    @app.task
    async def handle(job: Job) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(job.sleep("a", "0.2 s"))
            group.create_task(job.sleep("b", "0.2 s"))
        runs.append(True)

    job_id = handle.enqueue(conn)
    async with working(app, database.dsn):
        assert await done(conn, job_id) == ["succeeded"]
    assert runs == [True]
    assert (job(conn, job_id).attempts, job(conn, job_id).losses, job(conn, job_id).errors) == (1, 0, None)
    assert "lost" not in caplog.text


async def test_a_handler_that_swallows_its_suspension_sleeps_all_the_same(
    database: Database, conn: psycopg.Connection, in_thread: bool
) -> None:
    app = App()
    runs: list[Any] = []

    async def handle(job: Job) -> None:
        runs.append(await asyncio.gather(job.sleep("rest", "0.2 s"), return_exceptions=True))

    def handle_in_thread(job: Job) -> None:
        with suppress(BaseException):
            job.sleep("rest", "0.2 s")
        runs.append(1)

    app.task(name="handle")(handle_in_thread if in_thread else handle)
    job_id = enqueue(conn, "handle")
    async with working(app, database.dsn):
        assert await done(conn, job_id) == ["succeeded"]
    assert len(runs) == 2
    assert (job(conn, job_id).attempts, job(conn, job_id).losses) == (1, 0)


async def test_a_sleep_inside_a_step_does_not_wait_for_it(
    database: Database, conn: psycopg.Connection, in_thread: bool
) -> None:
    app = App()

    def handle(job: Job) -> None:
        job.step("outer", job.sleep, "inner", "0.2 s")

    async def handle_later(job: Job) -> None:
        await job.step("outer", job.sleep, "inner", "0.2 s")

    app.task(name="handle")(handle if in_thread else handle_later)
    job_id = enqueue(conn, "handle")
    async with working(app, database.dsn):
        assert await done(conn, job_id) == ["succeeded"]
    assert job(conn, job_id).attempts == 1


@pytest.mark.parametrize("wait", ["wait", "sleep", "wait_event"])
async def test_a_refused_wait_that_the_handler_catches_leaves_the_job_as_it_was(
    wait: str, database: Database, conn: psycopg.Connection, in_thread: bool
) -> None:
    app = App()
    stages: list[str] = []
    arguments: dict[str, tuple[Any, ...]] = {"wait": ([99999],), "sleep": ("rest", "soon"), "wait_event": ("",)}

    async def handle(job: Job) -> None:
        with pytest.raises(InvalidArgument):
            await getattr(job, wait)(*arguments[wait])
        stages.append(job.stage.value)

    def handle_in_thread(job: Job) -> None:
        with pytest.raises(InvalidArgument):
            getattr(job, wait)(*arguments[wait])
        stages.append(job.stage.value)

    app.task(name="handle")(handle_in_thread if in_thread else handle)
    job_id = enqueue(conn, "handle")
    async with working(app, database.dsn):
        assert await done(conn, job_id) == ["succeeded"]
    # While it is open, a lost lease is told.
    assert stages == ["open"]
