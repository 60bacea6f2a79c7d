"""Values that JSON holds otherwise than Python: long integers, numbers that are not finite, what Python cannot read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

import psycopg
import pytest

import pgqueue
from pgqueue import App, Job
from pgqueue.db.json import Unreadable, from_json
from pgqueue.errors import InvalidArgument
from tests.calls import call, enqueue, job, reserve_one, value
from tests.databases import Database
from tests.workers import done, working

LONG = [10**20 + 1, 2**64, -(2**63) - 1, 2**256 - 1, 2**53 + 1, 10**400]


@dataclass
class Point:
    x: float


class Level(Enum):
    NONE = math.nan


@pytest.mark.parametrize("number", LONG)
@pytest.mark.parametrize("form", ["{}", '{{"n": {}}}', "[1, {}]", '[1,{}, "1234567890123456789012"]', " {} "])
def test_integers_are_exact_whatever_their_length(number: int, form: str) -> None:
    text = form.format(number)
    for each in (text, text.encode()):
        found = from_json(each)
        inner = found["n"] if isinstance(found, dict) else found[1] if isinstance(found, list) else found
        assert inner == number
        assert type(inner) is int


@pytest.mark.parametrize("text", ["1" * 5000, "[" * 100_000, '{"a": 1234567890123456789012'])
def test_what_python_cannot_read_is_told_apart(text: str) -> None:
    assert isinstance(from_json(text), Unreadable)


@pytest.mark.parametrize(
    "args",
    [
        {"n": math.nan},
        {"n": [1, {"m": [math.inf]}]},
        {"n": -math.inf, "m": None},
    ],
)
def test_numbers_that_are_not_finite_are_refused_with_the_way_out(
    conn: psycopg.Connection, args: dict[str, Any]
) -> None:
    for send in (
        lambda: pgqueue.enqueue(conn, "t", args),
        lambda: pgqueue.enqueue_many(conn, "t", [{}, args]),
        lambda: pgqueue.enqueue_batch(conn, [{"task": "t", "args": args}]),
        lambda: pgqueue.enqueue(conn, "t", headers=args),
        lambda: pgqueue.emit_event(conn, "e", args),
    ):
        with pytest.raises(InvalidArgument, match=r"it holds the number (nan|-?inf)") as raised:
            send()
        assert "None, or a text" in str(raised.value.hint)
    assert value(conn, "select count(*) from pgqueue.jobs") == 0


@pytest.mark.parametrize("inner", [(math.inf,), Point(math.nan), Level.NONE])
def test_they_are_found_in_what_is_written_as_json_besides(conn: psycopg.Connection, inner: Any) -> None:
    for send in (
        lambda: pgqueue.enqueue(conn, "t", headers={"n": inner}),
        lambda: pgqueue.emit_event(conn, "e", {"n": inner}),
    ):
        with pytest.raises(InvalidArgument, match=r"it holds the number (nan|-?inf)"):
            send()


def test_null_and_the_word_null_are_no_numbers(conn: psycopg.Connection) -> None:
    args = {"a": None, "b": "null", "c": [1.5, None], "d": 1.5}
    assert job(conn, pgqueue.enqueue(conn, "t", args)).args == args


@pytest.mark.parametrize("where", ["step", "result"])
async def test_a_result_that_is_not_finite_fails_its_attempt(
    where: str, database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task(max_attempts=1, store_result=True)
    def measure(job: Job) -> float:
        return float(job.step("mean", lambda: math.nan)) if where == "step" else math.nan

    job_id = measure.enqueue(conn)
    async with working(app, database.dsn):
        assert await done(conn, job_id) == ["dead"]
    [error] = job(conn, job_id).errors
    assert "it holds the number nan" in error["message"]


async def test_a_handler_gets_long_integers_as_they_are(database: Database, conn: psycopg.Connection) -> None:
    app = App()
    got: list[object] = []

    @app.task(max_attempts=1)
    async def pay(job: Job, wei: int) -> None:
        got.append(wei)
        got.append(await job.wait_event("paid", "1 hour"))
        [(_, result)] = (await job.wait([child])).values()
        got.append(result)

    child = enqueue(conn, "child", queue="elsewhere")
    held = reserve_one(conn, queues=["elsewhere"])
    conn.execute("select pgqueue.complete(%s, %s, %s::text::jsonb)", [held.id, held.reservation, str(LONG[0])])
    conn.execute("select pgqueue.emit_event('paid', %s::text::jsonb)", [str(LONG[1])])
    job_id = value(conn, "select pgqueue.enqueue('pay', jsonb_build_object('wei', %s::text::numeric))", str(LONG[2]))
    async with working(app, database.dsn):
        assert await done(conn, job_id) == ["succeeded"]
    assert got == [LONG[2], LONG[1], LONG[0]]
    assert {type(each) for each in got} == {int}


@pytest.mark.parametrize("what", ["event", "child", "step"])
async def test_what_cannot_be_read_raises_in_the_handler_and_is_not_handed_to_it(
    what: str, database: Database, conn: psycopg.Connection
) -> None:
    app = App()

    @app.task(max_attempts=1)
    async def read(job: Job) -> None:
        match what:
            case "event":
                await job.wait_event("paid", "1 hour")
            case "child":
                await job.wait([child])
            case "step":
                await job.step("one", lambda: 1)

    child = enqueue(conn, "child", queue="elsewhere")
    huge = "1" * 5000
    held = reserve_one(conn, queues=["elsewhere"])
    conn.execute("select pgqueue.complete(%s, %s, %s::text::jsonb)", [held.id, held.reservation, huge])
    conn.execute("select pgqueue.emit_event('paid', %s::text::jsonb)", [huge])
    job_id = enqueue(conn, "read")
    if what == "step":
        held = reserve_one(conn)
        conn.execute("select pgqueue.complete_step(%s, %s, 'one', %s::text::jsonb)", [held.id, held.reservation, huge])
        call(conn, "snooze", held.id, held.reservation, "0")
    async with working(app, database.dsn):
        assert await done(conn, job_id) == ["dead"]
    [error] = job(conn, job_id).errors
    assert error["class"] == "pgqueue.errors.InvalidArgument"
    assert "cannot be read here" in error["message"]
