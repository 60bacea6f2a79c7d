"""perform: one handler, with a job that has no row. inline: handlers where they are enqueued."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import pgqueue
from pgqueue import App, Cancel, Discard, Job, Retry, Snooze, Throttled
from pgqueue.errors import ConfigError, InvalidArgument, LeaseLost
from pgqueue.testing import inline, perform, perform_async
from tests.databases import Database

app = App()


@app.task
def doubled(job: Job, numbers: tuple[int, ...]) -> Any:
    return job.attempt, numbers


@app.task(validate=True)
def typed(n: int, since: timedelta) -> Any:
    return n, since


@app.task
async def later(n: int) -> int:
    await asyncio.sleep(0)
    return n + 1


@app.task
def fails(kind: str) -> None:
    raise {
        "error": LookupError("no such order"),
        "snooze": Snooze("5 min"),
        "throttle": Throttled(after=30, reason="429"),
        "retry": Retry(after=30, reason="no answer"),
        "discard": Discard("gone"),
        "cancel": Cancel("withdrawn"),
    }[kind]


def test_arguments_go_through_json() -> None:
    assert perform(doubled, [1, 2], attempt=3).result == (3, (1, 2))
    with pytest.raises(InvalidArgument, match="do not fit task doubled: numbers: "):
        perform(doubled, object())


@pytest.mark.parametrize("timeout", [timedelta(milliseconds=50), 0.05, "50 ms"], ids=str)
def test_a_handler_that_runs_past_its_timeout_fails(timeout: timedelta | float | str) -> None:
    slow = App()

    @slow.task(timeout=timeout)
    async def waits() -> None:
        await asyncio.sleep(10)

    performed = perform(waits, raise_errors=False)
    assert (performed.state, performed.reason) == ("failed", "it ran longer than its timeout of 0.05 s")


def test_arguments_go_through_validation_both_ways() -> None:
    assert perform(typed, 1, since=timedelta(hours=1)).result == (1, timedelta(hours=1))
    with pytest.raises(InvalidArgument):
        perform(typed, "x", since="y")


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="do not fit task doubled"):
        perform(doubled)


def test_what_a_handler_decides_comes_back_as_data() -> None:
    snoozed = perform(fails, "snooze")
    assert (snoozed.state, snoozed.delay) == ("snoozed", "5 min")
    throttled = perform(fails, "throttle")
    assert (throttled.state, throttled.delay) == ("snoozed", timedelta(seconds=30))
    retried = perform(fails, "retry")
    assert (retried.state, retried.retry_in, retried.reason) == ("failed", timedelta(seconds=30), "no answer")
    assert perform(fails, "discard").state == "dead"
    assert perform(fails, "cancel").state == "cancelled"
    assert perform(fails, "retry", attempt=11).state == "dead"


def test_an_error_comes_out_unless_it_is_wanted_as_data() -> None:
    with pytest.raises(LookupError, match="no such order"):
        perform(fails, "error")
    assert repr(perform(fails, "error", raise_errors=False).error) == "LookupError('no such order')"


def test_the_rule_of_the_task_is_asked() -> None:
    ruled = App()

    @ruled.task(retry=lambda error, n: 10 * (n + 1), discard_on=KeyError)
    def handler(key: bool) -> None:
        raise KeyError if key else ValueError

    assert perform(handler, False, attempt=2, raise_errors=False).retry_in == timedelta(seconds=20)
    assert perform(handler, True, raise_errors=False).state == "dead"


def test_an_async_handler_runs_on_a_loop_of_its_own() -> None:
    assert perform(later, 1).result == 2


async def test_or_on_the_running_one() -> None:
    assert (await perform_async(later, 1)).result == 2
    with pytest.raises(ConfigError, match="perform_async"):
        perform(later, 1)


def test_the_jobs_own_transaction_is_the_connection_that_is_given(database: Database) -> None:
    own = App()

    @own.task
    def settles(job: Job) -> None:
        with job.transaction() as connection:
            connection.execute("create table settled ()")

    conn = database.connect(autocommit=False)
    assert perform(settles, connection=conn).state == "succeeded"
    assert conn.execute("select to_regclass('settled')").fetchone() == ("settled",)
    conn.rollback()
    with pytest.raises(LeaseLost, match="connection="):
        perform(settles)


def test_middleware_of_an_app_stands_around_it() -> None:
    around = App()

    @around.middleware
    def plus(job: Job, call_next: Any) -> Any:
        return call_next() + (job.headers or {})["n"]

    @around.task
    def one() -> int:
        return 1

    assert perform(one, app=around, headers={"n": 2}).result == 3


def test_inline_runs_handlers_where_they_are_enqueued_and_without_a_database() -> None:
    ran_by_handler: list[Any] = []
    shop = App()

    @shop.task(queue="mail")
    def receipt(to: str) -> None:
        ran_by_handler.append(to)

    @shop.task
    def order(to: str) -> None:
        receipt.enqueue(None, to)  # type: ignore[call-overload]

    with inline(shop) as ran:
        assert isinstance(order.using(delay="1 week", queue="slow", key="k").enqueue(None, "a@b.c"), int)  # type: ignore[call-overload]
        assert len(receipt.enqueue_many(None, [{"to": "b"}, {"to": "c"}])) == 2  # type: ignore[call-overload]
        assert pgqueue.enqueue_outcome(None, receipt, {"to": "d"}).outcome == "inserted"  # type: ignore[call-overload]
    assert ran_by_handler == ["a@b.c", "b", "c", "d"]
    assert [each.job.task for each in ran] == ["receipt", "order", "receipt", "receipt", "receipt"]
    assert (ran[1].job.queue, ran[1].job.key) == ("slow", "k")
    assert [each.job.queue for each in ran if each.job.task == receipt.name] == ["mail"] * 4


def test_inline_raises_what_a_handler_raises_and_ends_with_its_block(database: Database) -> None:
    with inline(app), pytest.raises(LookupError):
        fails.enqueue(None, "error")  # type: ignore[call-overload]
    conn = database.connect()
    fails.enqueue(conn, "error")
    assert conn.execute("select count(*) from pgqueue.jobs").fetchone() == (1,)


def test_inline_keeps_the_middleware_around_an_enqueue() -> None:
    around = App()

    @around.enqueue_middleware
    def tenant(jobs: Any, call_next: Any) -> Any:
        jobs.headers["tenant"] = "t1"
        return call_next(jobs)

    @around.task
    def handler(job: Job) -> Any:
        return job.headers

    with inline(around) as ran:
        handler.enqueue(None)  # type: ignore[call-overload]
    assert ran[0].result == {"tenant": "t1"}


def test_inline_refuses_options_and_arguments_as_ever() -> None:
    with inline(app):
        with pytest.raises(TypeError, match="no option"):
            doubled.using(colour="red").enqueue(None, [])  # type: ignore[call-arg,call-overload]
        with pytest.raises(InvalidArgument):
            doubled.enqueue(None)  # type: ignore[call-overload]


async def test_inline_on_the_event_loop(database: Database) -> None:
    conn = await database.connect_async()
    with inline(app) as ran:
        assert await later.enqueue(conn, 1) > 0
        await later.enqueue(None, 2)  # type: ignore[call-overload]
    assert [each.result for each in ran] == [2, 3]
    assert (await (await conn.execute("select count(*) from pgqueue.jobs")).fetchone()) == (0,)
