"""The middleware of an App around enqueue and execution, and the calls of its hooks."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import psycopg
import pytest

import pgqueue
from pgqueue import App, Discard, Job, Snooze
from pgqueue.errors import ConfigError, InvalidArgument, SchemaError
from pgqueue.hooks import Dead, Event
from pgqueue.middleware import Enqueuing
from pgqueue.worker.tell.events import Lifetime
from tests.calls import call, enqueue, job, value
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import WorkerProcess, done, is_asleep, working, write_module

ROOT = Path(__file__).parents[2]
who: ContextVar[str] = ContextVar("who", default="nobody")


# Around execution


@pytest.mark.covers("L14")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_middleware_stands_around_every_handler_outermost_first(
    kind: str, database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    seen: list[str] = []
    threads: dict[str, int] = {}

    def see(what: str) -> None:
        seen.append(what)
        threads[what] = threading.get_ident()

    @app.middleware
    async def outer(job: Job, call_next: Callable[[], Any]) -> Any:
        see(f"outer {job.task}")
        who.set("Ada")
        result = await call_next()
        see("outer after")
        return result

    @app.middleware
    def plain(job: Job, call_next: Callable[[], Any]) -> Any:
        see("plain")
        try:
            return call_next()
        finally:
            see("plain after")

    @app.middleware
    async def inner(job: Job, call_next: Callable[[], Any]) -> Any:
        see("inner")
        try:
            return await call_next()
        finally:
            see("inner after")

    async def asynchronous(n: int) -> None:
        see(f"handler {n} {who.get()}")

    def synchronous(n: int) -> None:
        see(f"handler {n} {who.get()}")

    app.task(name="t")(asynchronous if kind == "async" else synchronous)
    job_id = enqueue(conn, "t", {"n": 1})
    async with working(app, database.dsn, concurrency=1):
        assert await done(conn, job_id) == ["succeeded"]
    # Plain ones are inside of all async ones.
    assert seen == ["outer t", "inner", "plain", "handler 1 Ada", "plain after", "inner after", "outer after"]
    loop = threading.get_ident()
    assert threads["outer t"] == threads["inner"] == loop != threads["plain"]
    assert threads["handler 1 Ada"] == (loop if kind == "async" else threads["plain"])


async def test_what_one_job_sets_in_its_context_the_next_does_not_see(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    seen: list[str] = []

    @app.middleware
    async def name_it(job: Job, call_next: Callable[[], Any]) -> Any:
        seen.append(who.get())
        who.set(f"job {job.id}")
        return await call_next()

    @app.task
    async def t() -> None:
        seen.append(who.get())

    ids = [enqueue(conn, "t") for _ in range(2)]
    async with working(app, database.dsn, concurrency=1):
        await done(conn, *ids)
    assert seen == ["nobody", f"job {ids[0]}", "nobody", f"job {ids[1]}"]


@pytest.mark.covers("L14")
async def test_what_middleware_raises_is_as_if_the_handler_had(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    ran: list[str] = []

    @app.middleware
    async def refuse(job: Job, call_next: Callable[[], Any]) -> Any:
        if job.args == {"what": "snooze"}:
            raise Snooze("1 hour")
        return await call_next()

    @app.middleware
    def judge(job: Job, call_next: Callable[[], Any]) -> Any:
        try:
            return call_next()
        except KeyError as error:
            raise Discard(f"no {error}") from error

    @app.task
    async def asynchronous(what: str) -> None:
        ran.append(what)
        if what == "key":
            raise KeyError(what)
        if what == "exit":
            sys.exit(3)

    @app.task
    def synchronous(what: str) -> None:
        raise KeyError(what)

    ids = [enqueue(conn, "asynchronous", {"what": what}) for what in ("snooze", "key", "exit")]
    last = enqueue(conn, "synchronous", {"what": "x"})
    async with working(app, database.dsn):
        assert await done(conn, ids[1], last) == ["dead", "dead"]
        await wait_until_async(lambda: job(conn, ids[2]).state == "failed")
        await wait_until_async(lambda: job(conn, ids[0]).attempts == 0)
    assert sorted(ran) == ["exit", "key"]
    assert job(conn, ids[1]).errors[0]["message"] == "no 'key'"
    assert job(conn, ids[2]).errors[0]["class"] == "SystemExit"


@pytest.mark.parametrize("plain", [True, False])
async def test_a_cancelled_job_stops_within_its_middleware(
    plain: bool, database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    ended: list[str] = []
    started = asyncio.Event()

    @app.middleware
    async def outer(job: Job, call_next: Callable[[], Any]) -> Any:
        try:
            return await call_next()
        except asyncio.CancelledError:
            ended.append("outer")
            raise

    if plain:

        @app.middleware
        def inner(job: Job, call_next: Callable[[], Any]) -> Any:
            try:
                return call_next()
            finally:
                ended.append("plain")

    @app.task
    async def sleep() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("handler")

    job_id = enqueue(conn, "sleep")
    async with working(app, database.dsn):
        await asyncio.wait_for(started.wait(), 120)
        value(conn, "select pgqueue.cancel(%s)", job_id)
        assert await done(conn, job_id) == ["cancelled"]
    assert ended == (["handler", "plain", "outer"] if plain else ["handler", "outer"])


# Around enqueue


@pytest.mark.covers("L14")
def test_middleware_around_enqueue_may_change_arguments_headers_and_options(conn: psycopg.Connection) -> None:
    app = App()
    seen: list[str] = []

    @app.enqueue_middleware
    def outer(jobs: Enqueuing, call_next: Callable[[Enqueuing], Any]) -> Any:
        seen.append(f"outer {jobs.task} {len(jobs.args)}")
        jobs.headers["tenant"] = 5
        return call_next(jobs)

    @app.enqueue_middleware
    def inner(jobs: Enqueuing, call_next: Callable[[Enqueuing], Any]) -> Any:
        for args in jobs.args:
            args["to"] = args["to"].lower()
        jobs.options.setdefault("queue", "mail")
        result = call_next(jobs)
        seen.append(f"inner {type(result).__name__}")
        return result

    @app.task
    def send(to: str) -> None: ...

    given = {"trace": "x"}
    first = send.using(headers=given, queue="own").enqueue(conn, "A@B")
    second, third = send.enqueue_many(conn, [{"to": "C"}, {"to": "D"}])
    fourth = pgqueue.enqueue(conn, send, {"to": "E"})
    fifth = send.using(dedupe="d").enqueue_outcome(conn, "F").job_id
    plain = pgqueue.enqueue(conn, "send", {"to": "G"})
    found = [job(conn, each) for each in (first, second, third, fourth, fifth, plain)]
    assert [each.args["to"] for each in found] == ["a@b", "c", "d", "e", "f", "G"]
    assert [each.queue for each in found] == ["own", "mail", "mail", "mail", "mail", "default"]
    assert found[0].headers == {"trace": "x", "tenant": 5}
    assert given == {"trace": "x"}
    assert (found[1].headers, found[5].headers) == ({"tenant": 5}, None)
    assert seen[:4] == ["outer send 1", "inner int", "outer send 2", "inner list"]


async def test_middleware_around_enqueue_serves_async_connections(database: Database, conn: psycopg.Connection) -> None:
    app = App()

    @app.enqueue_middleware
    async def awaited(jobs: Enqueuing, call_next: Callable[[Enqueuing], Any]) -> Any:
        await asyncio.sleep(0)
        jobs.headers["a"] = 1
        return await call_next(jobs)

    @app.enqueue_middleware
    def passed_on(jobs: Enqueuing, call_next: Callable[[Enqueuing], Any]) -> Any:
        jobs.headers["b"] = 2
        return call_next(jobs)

    @app.task
    def send(to: str) -> None: ...

    connection = await database.connect_async()
    job_id = await send.enqueue(connection, "x")
    assert job(conn, job_id).headers == {"a": 1, "b": 2}
    await connection.close()
    with pytest.raises(ConfigError, match="it serves both"):
        send.enqueue(conn, "x")


# Hooks


@pytest.mark.covers("L14", "A12")
async def test_hooks_get_the_events_of_a_worker_and_its_jobs(database: Database, conn: psycopg.Connection) -> None:
    app, part = App(), App()
    seen: list[str] = []
    events: list[Event] = []

    @app.on_start
    async def starts() -> None:
        seen.append(f"start {value(conn, 'select count(*) from pgqueue.jobs where state <> %s', 'waiting')}")

    @app.on_stop
    def stops() -> None:
        seen.append("stop")

    app.on_event(events.append)

    @part.on_start
    def part_starts() -> None:
        seen.append("part")

    @part.task
    async def t(what: str) -> None:
        if what == "fail":
            raise ValueError("not today")
        if what == "snooze":
            raise Snooze("1 hour")
        if what == "discard":
            raise Discard("never")

    app.include(part)
    ids = [enqueue(conn, "t", {"what": what}) for what in ("go", "fail", "snooze", "discard")]
    unknown = enqueue(conn, "no_such_task")
    async with working(app, database.dsn) as worker:
        await wait_until_async(lambda: len([each for each in events if each.kind not in ("reserved", "started")]) == 5)
    assert seen == ["start 0", "part", "stop"]
    kinds = {each.job_id: each.kind for each in events if each.kind not in ("reserved", "started")}
    assert kinds == dict(zip(ids, ["succeeded", "failed", "snoozed", "dead"], strict=True)) | {unknown: "released"}
    assert sum(each.jobs for each in events if each.kind == "reserved") == 5
    assert {each.job_id for each in events if each.kind == "started"} == set(ids)
    failed = next(each for each in events if each.kind == "failed")
    assert (failed.worker, failed.task, failed.queue, failed.attempt) == (worker.config.name, "t", "default", 1)
    assert failed.error is not None
    assert failed.error["message"] == "not today"
    assert failed.seconds is not None
    assert {each.kind for each in events if each.seconds is None} == {"reserved", "started", "released"}


@pytest.mark.long
@pytest.mark.covers("A12")
async def test_hooks_get_a_job_that_completed_itself_and_one_that_was_cancelled_while_it_ran(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    events: list[Event] = []
    app.on_event(events.append)

    @app.task
    async def settles(job: Job) -> None:
        async with job.transaction():
            pass

    @app.task
    async def waits() -> None:
        await asyncio.sleep(60)

    def of(job_id: int) -> list[str]:
        return [each.kind for each in events if each.job_id == job_id]

    settled, cancelled = enqueue(conn, "settles"), enqueue(conn, "waits")
    async with working(app, database.dsn):
        await wait_until_async(lambda: of(cancelled) == ["started"])
        assert call(conn, "cancel", cancelled) == "requested"
        assert await done(conn, settled, cancelled) == ["succeeded", "cancelled"]
        await wait_until_async(lambda: len(of(settled) + of(cancelled)) == 4)
    assert of(settled) == ["started", "succeeded"]
    assert of(cancelled) == ["started", "cancelled"]


@pytest.mark.covers("L8", "L14")
async def test_the_hook_for_the_dead_gets_the_dead_payloads(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    dead: list[Dead] = []

    @app.on_dead
    async def told(each: Dead) -> None:
        dead.append(each)

    @app.task(max_attempts=1)
    async def single(n: int) -> None:
        raise ValueError(f"not {n}")

    @app.task(accumulate=True, batch_size=2, max_attempts=1)
    async def gathered(payloads: dict[str, list[Any]]) -> None:
        if any({"n": 9} in each for each in payloads.values()):
            raise Discard("nine")
        if any({"n": 1} in each for each in payloads.values()):
            raise ValueError("one")

    async with working(app, database.dsn):
        await done(conn, single.enqueue(conn, 7))
        await wait_until_async(lambda: len(dead) == 1)
        with conn.transaction():
            ids = [gathered.using(key=key, score=n).enqueue(conn, {"n": n}) for key in "ab" for n in (2, 1, 3)]
        assert sorted(await done(conn, *ids)) == ["dead", "dead", *["succeeded"] * 4]
        await wait_until_async(lambda: len(dead) == 3)
        with conn.transaction():
            ids = [gathered.using(key="c", score=n).enqueue(conn, {"n": n}) for n in (8, 9)]
        await done(conn, *ids)
        await wait_until_async(lambda: len(dead) == 4)
    first, second, third, last = dead
    assert (first.job.task, first.payloads, first.error["message"]) == ("single", [{"n": 7}], "not 7")
    assert {second.job.key, third.job.key} == {"a", "b"}
    assert second.payloads == third.payloads == [{"n": 1}]
    assert last.payloads == [{"n": 8}, {"n": 9}]


@pytest.mark.covers("L14")
async def test_a_hook_that_raises_is_logged_and_harms_nothing(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    errors: list[tuple[str, str]] = []

    def broken(*_: Any) -> None:
        raise RuntimeError("broken hook")

    for kind in (app.on_start, app.on_stop, app.on_dead, app.on_event, app.on_error):
        kind(broken)

    @app.on_error
    def words(error: BaseException, where: str) -> None:
        errors.append((str(error), where))

    @app.task(max_attempts=1)
    def t() -> None:
        raise ValueError

    app.error_formatter = broken
    with caplog.at_level(logging.ERROR):
        job_id = enqueue(conn, "t", max_attempts=1)
        async with working(app, database.dsn):
            assert await done(conn, job_id) == ["dead"]
            await wait_until_async(lambda: len(errors) >= 2)
    assert {where.rpartition(" ")[2] for _, where in errors} == {"start", "dead", "stop"}
    assert {text for text, _ in errors} == {"broken hook"}
    assert job(conn, job_id).errors[0]["class"] == "ValueError"
    assert "the error formatter failed" in caplog.text


async def test_hooks_for_a_start_wait_until_those_for_the_end_have_ended() -> None:
    """As where the last of several databases goes while another one is tried again."""
    app = App()
    ended = asyncio.Event()
    seen: list[str] = []

    @app.on_start
    async def start() -> None:
        seen.append("start")

    @app.on_stop
    async def stop() -> None:
        seen.append("stop begins")
        await ended.wait()
        seen.append("stop ends")

    lifetime = Lifetime(app)
    await lifetime.start()
    stopping = asyncio.create_task(lifetime.stop())
    await wait_until_async(lambda: "stop begins" in seen)
    starting = asyncio.create_task(lifetime.start())
    await asyncio.wait({starting}, timeout=0.05)
    ended.set()
    await asyncio.gather(stopping, starting)
    assert seen == ["start", "stop begins", "stop ends", "start"]


async def test_a_hook_for_the_start_that_meets_a_cancellation_is_logged_and_the_worker_starts(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    seen: list[str] = []

    @app.on_start
    async def breaks() -> None:
        gone = asyncio.get_running_loop().create_future()
        gone.cancel()
        await gone

    @app.on_start
    async def works() -> None:
        seen.append("works")

    async with working(app, database.dsn):
        assert seen == ["works"]
    assert "breaks for start raised" in caplog.text


async def test_a_hook_that_is_cancelled_keeps_no_other_from_being_called_at_the_end(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqueue.worker.tell.events._STOP_HOOKS", 60.0)
    app = App()
    began = asyncio.Event()
    stopped: list[str] = []

    @app.on_dead
    async def waits(_: Dead) -> None:
        began.set()
        # Until the worker waits for it.
        await wait_until_async(lambda: any(each.get_name() == "pgqueue-end" for each in asyncio.all_tasks()))
        raise asyncio.CancelledError

    @app.on_stop
    async def stop() -> None:
        stopped.append("stop")

    @app.task(max_attempts=1)
    async def t() -> None:
        raise ValueError

    enqueue(conn, "t")
    worker = pgqueue.worker.Worker(app, database.dsn)
    running = asyncio.create_task(worker.run())
    await began.wait()
    worker.stop()
    assert await running is True
    assert stopped == ["stop"]


@pytest.mark.covers("L14")
async def test_errors_outside_handlers_have_a_hook(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App()
    errors: list[tuple[str, str]] = []
    app.on_error(lambda error, where: errors.append((str(error), where)))

    async with working(app, database.dsn) as worker:
        await wait_until_async(lambda: is_asleep(conn, worker.config.name))

        async def crash(*_: Any, **__: Any) -> int:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(worker._claimer, "claim", crash)
        # Announced: a hand-off passes the claim by.
        conn.execute("set pgqueue.hand_off = off")
        enqueue(conn, "t")
        await wait_until_async(lambda: errors)
    assert errors[0] == ("a bug", "claiming loop")

    elsewhere = pgqueue.worker.Worker(app, database.dsn.replace(database.name, "postgres"))
    with pytest.raises(SchemaError):
        await elsewhere.run()
    assert errors[-1][1] == "worker"


@pytest.mark.covers("L14")
async def test_the_error_formatter_decides_the_stored_error(database: Database, conn: psycopg.Connection) -> None:
    app = App(error_formatter=lambda error: {"class": "E", "message": "no\0 secrets", "code": 1})

    @app.task
    def t() -> None:
        raise ValueError("a secret")

    job_id = enqueue(conn, "t")
    async with working(app, database.dsn):
        await wait_until_async(lambda: job(conn, job_id).state == "failed")
    found = job(conn, job_id).errors[0]
    assert (found["class"], found["message"]) == ("E", "no\ufffd secrets")
    assert "traceback" not in found


def test_an_object_that_is_no_function_is_refused_when_it_is_declared() -> None:
    app = App()
    for declare in (app.middleware, app.enqueue_middleware, app.on_start, app.on_event):
        with pytest.raises(ConfigError, match="must be a function"):
            declare("nonsense")  # type: ignore[type-var]

    async def late(event: Event) -> None: ...

    with pytest.raises(ConfigError, match="plain function"):
        app.on_event(late)


# Codec


@pytest.mark.covers("L14")
async def test_the_encrypting_example_keeps_arguments_from_the_database(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    fernet = pytest.importorskip("cryptography.fernet")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.setenv("PAYLOAD_KEYS", fernet.Fernet.generate_key().decode())
    sys.modules.pop("encrypted.tasks", None)
    module = importlib.import_module("encrypted.tasks")
    module.app.error_formatter = None
    got: list[Any] = []
    module.on_charge = got.append

    first = module.charge.enqueue(conn, "4111-1111", amount=5)
    [second] = module.charge.enqueue_many(conn, [{"card": "4222", "amount": 6}])
    [batched] = pgqueue.enqueue_batch(conn, [module.charge.using().job("4333", amount=7)])
    gathered = [module.tally.using(key="k", score=n).enqueue(conn, {"card": str(n)}) for n in (1, 2)]
    sql = enqueue(conn, "charge", {"card": "4444", "amount": 8})
    wrong = enqueue(conn, "charge", {"encrypted": "not by us"}, max_attempts=1)
    stored = value(conn, "select string_agg(args::text, ' ') from pgqueue.jobs where id <> %s", sql)
    assert "4111" not in stored
    assert set(job(conn, first).args) == {"encrypted"}
    async with working(module.app, database.dsn):
        assert batched.job_id is not None
        states = await done(conn, first, second, batched.job_id, *gathered, sql, wrong)
    assert states == ["succeeded"] * 6 + ["dead"]
    assert sorted(got, key=str) == [
        ("4111-1111", 5),
        ("4222", 6),
        ("4333", 7),
        ("4444", 8),
        {"k": [{"card": "1"}, {"card": "2"}]},
    ]
    assert job(conn, wrong).errors[0]["class"] == "pgqueue.errors.InvalidPayload"


def test_the_encrypting_example_runs_in_a_worker_process(
    database: Database, conn: psycopg.Connection, tmp_path: Path
) -> None:
    fernet = pytest.importorskip("cryptography.fernet")
    key = fernet.Fernet.generate_key().decode()
    token = fernet.Fernet(key).encrypt(b'{"card": "4111", "amount": 5}').decode()
    job_id = enqueue(conn, "charge", {"encrypted": token})
    write_module(
        tmp_path,
        """
        from pgqueue import App

        app = App()
        app.on_start(lambda: print("loaded"))
        app.on_stop(lambda: print("over"))
        """,
        "hooks",
    )
    options = ("-r", "examples.encrypted.tasks", "-r", "hooks", "--until-empty")
    worker = WorkerProcess(tmp_path, database.dsn, *options, environment={"PAYLOAD_KEYS": key})
    try:
        assert worker.wait(60) == 0, worker.log()
    finally:
        worker.kill()
    assert job(conn, job_id).state == "succeeded"
    log = worker.log()
    assert log.index("loaded") < log.index("('4111', 5)") < log.index("over")


def test_a_codec_that_cannot_write_enqueues_nothing(conn: psycopg.Connection) -> None:
    class Broken:
        def encode(self, args: dict[str, Any]) -> dict[str, Any]:
            raise InvalidArgument("no key")

        def decode(self, args: dict[str, Any]) -> dict[str, Any]:
            return args

    app = App(codec=Broken())

    @app.task
    def t() -> None: ...

    with suppress(InvalidArgument):
        t.enqueue(conn)
    with pytest.raises(InvalidArgument, match="no key"):
        pgqueue.enqueue(conn, t)
    assert value(conn, "select count(*) from pgqueue.jobs") == 0
