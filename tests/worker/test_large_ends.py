"""Ends that are much for a worker and its server: long messages, large results, batches that are not answered."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from pgqueue import App, Snooze
from pgqueue.db.consume import JobRow
from pgqueue.db.json import to_result
from pgqueue.errors import InvalidArgument, LockTimeout
from pgqueue.worker.hold.held import RELEASED, End, Ending, Held, Holding
from pgqueue.worker.hold.outbox import LARGE, Ends, Outbox
from pgqueue.worker.process.requests import Requests
from pgqueue.worker.run.failure import describe
from pgqueue.worker.trade.reporter import Reporter
from tests.calls import enqueue, job, state, value
from tests.databases import Database
from tests.facts import wait_until_async
from tests.workers import done, working


def test_a_long_message_is_cut_where_the_error_is_described_and_keeps_its_frames() -> None:
    def breaks() -> None:
        error = ValueError("é\n" * 5_000_000)
        error.add_note("n" * 5_000_000)
        raise error from KeyError("x" * 5_000_000)

    with pytest.raises(ValueError, match="é") as caught:
        breaks()
    described = describe(caught.value)
    assert described["message"] == "é\n" * 2000
    trace = str(described["traceback"])
    assert len(trace) < 20_000
    assert "\nnnnn" in trace
    assert "in breaks" in trace
    assert "KeyError: 'xxx" in trace


def test_the_class_of_an_error_is_text_that_postgresql_can_hold() -> None:
    odd = type("Odd", (Exception,), {"__module__": "\0\ud800"})
    assert describe(odd("no"))["class"] == "\ufffd?.Odd"


@pytest.mark.parametrize("value", ["\0", "\\\0", ["a", "\\\\\0"], {"a\0": 1}])
def test_a_result_with_a_nul_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument, match="NUL"):
        to_result(value)


def test_a_result_beyond_16_million_characters_is_refused() -> None:
    # Characters, not bytes; two of them are the quotes.
    assert to_result("é" * 15_999_998)
    with pytest.raises(InvalidArgument, match="16000001 characters"):
        to_result("é" * 15_999_999)


@pytest.mark.parametrize("value", ["\\u0000", "\\\\u0000", "\\\\", "é\\"])
def test_a_result_that_only_looks_like_a_nul_is_none(value: str) -> None:
    assert to_result(value)


def test_a_batch_has_few_bytes_and_large_ends_go_apart() -> None:
    ends = Ends()
    for size in (200_000,) * 30 + (300_000,) + (15_000_000,) * 2 + (0,) * 3:
        ends.add(_succeeded(size))
    small, large = _sizes(ends), _sizes(ends, large=True)
    assert small == [[200_000] * 20, [200_000] * 10 + [0] * 3]
    assert large == [[300_000], [15_000_000], [15_000_000]]
    assert not ends.are_behind


def test_many_bytes_that_wait_keep_a_worker_from_claiming() -> None:
    ends = Ends()
    for _ in range(5):
        ends.add(_succeeded(15_000_000))
    assert ends.are_behind
    ends.take(large=True)
    assert not ends.are_behind


async def test_a_batch_that_the_server_does_not_take_is_halved_until_it_does(
    database: Database, conn: psycopg.Connection
) -> None:
    _refuse(conn, "count(*) > 3 from inserted")
    app, come = App(), asyncio.Event()

    @app.task
    async def waits() -> None:
        await come.wait()

    jobs = [enqueue(conn, "waits") for _ in range(20)]
    async with working(app, database.dsn, concurrency=20) as worker:
        await wait_until_async(lambda: worker.status()["running"] == 20)
        come.set()
        assert await done(conn, *jobs) == ["succeeded"] * 20
    assert value(conn, "select max(attempts) from pgqueue.history") == 1


async def test_a_result_that_the_server_never_takes_is_stored_as_a_failure_that_says_so(
    database: Database, conn: psycopg.Connection
) -> None:
    _refuse(conn, "max(octet_length(result::text)) > 300000 from inserted")
    app = App()

    @app.task(store_result=True, max_attempts=1)
    async def returns(size: int) -> str:
        return "x" * size

    large = enqueue(conn, "returns", {"size": 500_000})
    async with working(app, database.dsn) as worker:
        await wait_until_async(lambda: worker.status()["held"] == 1)
        small = enqueue(conn, "returns", {"size": 5})
        assert await done(conn, small, large, timeout=60) == ["succeeded", "dead"]
    [error] = job(conn, large).errors
    assert error["class"] == "Result"
    assert error["message"].startswith("a result of 500002 bytes could not be stored: ")


# The others also mean that the queue is not installed, or that the worker's role has no rights.
@pytest.mark.parametrize("by", ["raise_exception", "undefined_table", "undefined_function", "insufficient_privilege"])
async def test_an_end_that_the_server_refuses_keeps_no_other_from_being_stored_and_is_stored_when_it_is_accepted(
    by: str, database: Database, conn: psycopg.Connection
) -> None:
    # As a trigger of a user does.
    _refuse(conn, "bool_or(task = 'bad') from inserted", by)
    app, come = App(), asyncio.Event()

    async def waits() -> None:
        await come.wait()

    for name in ("good", "bad"):
        app.task(name=name)(waits)
    jobs = [enqueue(conn, name) for name in ("good", "bad", "good", "good")]
    async with working(app, database.dsn) as worker:
        await wait_until_async(lambda: worker.status()["running"] == 4)
        come.set()
        assert await done(conn, jobs[0], *jobs[2:]) == ["succeeded"] * 3
        assert job(conn, jobs[1]).state == "executing"
        _accept(conn)
        assert await done(conn, jobs[1]) == ["succeeded"]
    assert value(conn, "select max(attempts) from pgqueue.history") == 1


# The second one as the queue itself refuses what the state of a job does not allow.
@pytest.mark.parametrize("how", ["", " using errcode = '55000', hint = 'Wait.'"])
async def test_a_job_that_the_server_does_not_give_back_keeps_no_other_end_from_being_stored(
    how: str, database: Database, conn: psycopg.Connection
) -> None:
    conn.execute(
        f"""
        create function public.refuse() returns trigger language plpgsql as $$
        begin
            if new.queue = 'bad' and old.state = 'executing' and new.state <> 'executing' then
                raise exception 'not this one'{how};
            end if;
            return new;
        end $$;
        create trigger refuse before update on pgqueue.jobs for each row execute function public.refuse();
        """.encode()
    )
    app, come = App(), asyncio.Event()

    @app.task
    async def waits() -> None:
        await come.wait()

    @app.task
    async def snoozes() -> None:
        await come.wait()
        raise Snooze(3600)

    bad = [enqueue(conn, name, queue="bad") for name in ("snoozes", "unknown", "unknown")]
    good = [enqueue(conn, name) for name in ("unknown", "snoozes", "waits", "waits")]
    async with working(app, database.dsn) as worker:
        await wait_until_async(lambda: worker.status()["running"] == 4)
        come.set()
        assert await done(conn, *good[2:]) == ["succeeded"] * 2
        await wait_until_async(lambda: [state(conn, each) for each in good[:2]] == ["waiting"] * 2)
        assert [state(conn, each) for each in bad] == ["executing"] * 3
        conn.execute("drop trigger refuse on pgqueue.jobs")
        await wait_until_async(lambda: [state(conn, each) for each in bad] == ["waiting"] * 3)


async def test_a_large_end_survives_the_restart_of_its_loop_while_the_worker_asks_whether_the_server_answers(
    database: Database, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    _refuse(conn, "max(octet_length(result::text)) > 300000 from inserted")
    app = App()

    @app.task(store_result=True, max_attempts=1)
    async def returns() -> str:
        return "x" * 500_000

    async with working(app, database.dsn) as worker:
        await wait_until_async(lambda: worker.status()["started"])
        # It is asked over this link, whose turn another call has.
        async with worker._links.keeping._turn:
            large = enqueue(conn, "returns")
            await wait_until_async(lambda: "could not store 1 end" in caplog.text)
            [reporting] = [each for each in asyncio.all_tasks() if each.get_name() == "pgqueue-large results"]
            reporting.cancel()
            await wait_until_async(lambda: "the large results loop" in caplog.text)
            _accept(conn)
        assert await done(conn, large) == ["succeeded"]


async def test_large_results_and_texts_of_errors_are_stored_as_they_are(
    database: Database, conn: psycopg.Connection
) -> None:
    app = App()
    text = '{"a\\": "é, NULL}\n' * 30_000

    @app.task(store_result=True)
    async def returns() -> str:
        return text

    @app.task(store_result=True)
    async def numbers() -> list[Decimal]:
        return [Decimal(1)] * 20_000

    @app.task(max_attempts=1)
    async def fails() -> None:
        raise ValueError('"\\ {NULL}, é\n')

    jobs = [enqueue(conn, name) for name in ("returns", "numbers", "fails")]
    async with working(app, database.dsn):
        assert await done(conn, *jobs) == ["succeeded", "succeeded", "dead"]
    assert job(conn, jobs[0]).result == text
    assert job(conn, jobs[1]).result == ["1"] * 20_000
    assert job(conn, jobs[2]).errors[0]["message"] == '"\\ {NULL}, é\n'


async def test_large_results_are_encoded_one_at_a_time(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App()
    meeting = threading.Barrier(2)
    met = []

    @app.task(store_result=True)
    async def large() -> str:
        return "x" * 100_000

    def encode(result: object) -> bytes:
        with suppress(threading.BrokenBarrierError):
            met.append(meeting.wait(0.5))
        return to_result(result)

    monkeypatch.setattr("pgqueue.worker.run.handlers.to_result", encode)
    jobs = [enqueue(conn, "large") for _ in range(3)]
    async with working(app, database.dsn, concurrency=3):
        assert await done(conn, *jobs) == ["succeeded"] * 3
    assert not met


async def test_ends_are_stored_where_a_text_null_is_no_null(database: Database, conn: psycopg.Connection) -> None:
    conn.execute(f'alter database "{database.name}" set array_nulls = off'.encode())
    app = App()

    @app.task(store_result=True)
    async def succeeds(number: int) -> int | None:
        return number or None

    @app.task(max_attempts=1)
    async def fails() -> None:
        raise ValueError("no")

    async with working(app, database.dsn):
        jobs = [enqueue(conn, "succeeds", {"number": number}) for number in (0, 1)]
        assert await done(conn, *jobs, enqueue(conn, "fails")) == ["succeeded", "succeeded", "dead"]
    assert [job(conn, job_id).result for job_id in jobs] == [None, 1]


@pytest.mark.parametrize("size", [LARGE + 1, 1])
async def test_ends_that_wait_when_a_loop_of_reports_is_restarted_wait_for_no_other_end(size: int) -> None:
    outbox = Outbox(Requests())
    for _ in range(2):
        outbox.put(_succeeded(size))
    # The loop before has heard of both, and was cancelled.
    outbox.came.clear()
    outbox.large_came.clear()
    trade = _Trade()
    reporter = Reporter(*("w", App(), trade, trade, outbox, *([trade] * 4)))  # type: ignore[arg-type]
    loop = asyncio.create_task(reporter.report_large_forever() if size > LARGE else reporter.report_forever())
    await wait_until_async(lambda: len(trade.reported) == 2)
    loop.cancel()


async def test_a_locked_job_that_goes_back_is_reported_once_more_where_the_next_one_cannot_be_given_back() -> None:
    first, second = _succeeded(0), _succeeded(0, job_id=2)
    first.attempt.ending, second.attempt.ending = RELEASED, Ending(End.RELEASED, delay=10.0)
    holding = Holding()
    holding.add(first, second)
    trade = _Trade()
    # The first one was held when it was to be given back, and is still reserved.
    trade.answers = [[], [first.pair], LockTimeout("locked")]
    reporter = Reporter(*("w", App(), trade, trade, Outbox(Requests()), holding, *([trade] * 3)))  # type: ignore[arg-type]
    with pytest.raises(LockTimeout):
        await reporter._report_returns([first, second])
    assert (trade.later, trade.again) == ([first], [second])


class _Trade:
    """Notes what is to be reported, over any connection, and when again; `answers` are those of the server."""

    def __init__(self) -> None:
        self.reported: list[Held] = []
        self.later: list[Held] = []
        self.again: list[Held] = []
        self.answers: list[Any] = []

    @property
    def second(self) -> _Trade:
        return self

    def free(self) -> None: ...

    async def capacity_beside(self) -> int:
        return 0

    async def ends_gather(self) -> None: ...

    async def exchange(self, link: object, max_jobs: int, batch: list[Held]) -> int:
        self.reported += batch
        return 0

    async def perform(self, call: object, **_: object) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def report_later(self, held: Held) -> None:
        held.attempt.is_locked = True
        self.later.append(held)

    def report_again(self, batch: list[Held]) -> None:
        self.again += batch

    @property
    def freed(self) -> asyncio.Event:
        return asyncio.Event()


def _succeeded(size: int, job_id: int = 1) -> Held:
    row = JobRow(job_id, "t", b"", None, "q", None, 0, 1, 1, 1, 0, 0, 0, None, None, 0, 0, True, "reserved", None)
    held = Held(row, 0.0)
    held.attempt.ending = Ending(End.SUCCEEDED, result=b"x" * size if size else None)
    return held


def _sizes(ends: Ends, *, large: bool = False) -> list[list[int]]:
    found = []
    while batch := ends.take(large=large):
        found.append([held.attempt.ending.size for held in batch])
    return found


def _refuse(conn: psycopg.Connection, what: str, by: str = "query_canceled") -> None:
    """Have the server refuse each statement that ends such jobs; by default as it does with one that takes too long."""
    conn.execute(
        f"""
        create function public.refuse() returns trigger language plpgsql as $$
        begin
            if (select {what}) then
                raise exception 'too much' using errcode = '{by}';
            end if;
            return null;
        end $$;
        create trigger refuse after insert on pgqueue.history
        referencing new table as inserted for each statement execute function public.refuse();
        """.encode()
    )


def _accept(conn: psycopg.Connection) -> None:
    """Have it accept them from now on."""
    conn.execute(
        "create or replace function public.refuse() returns trigger language plpgsql as $$ begin return null; end $$"
    )
