"""Enqueueing from Python: in the caller's own transaction, on both kinds of connection."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row

import pgqueue
from pgqueue import App
from pgqueue.db import consume
from pgqueue.db.call import Call, perform
from pgqueue.db.results import Enqueued
from pgqueue.errors import DuplicateJob, InvalidArgument, LockTimeout, SchemaError, WrongIsolation
from tests.calls import job, reserve_one, value
from tests.databases import Database

app = App()


@app.task(name="mail.send")
def send(to: str, subject: str = "none", *, copies: int = 1) -> None: ...


@app.task
def anything(**arguments: Any) -> None: ...


@app.task
def listed(*names: str) -> None: ...


def jobs(conn: psycopg.Connection) -> list[tuple[str, dict[str, Any]]]:
    return [(row[0], row[1]) for row in conn.execute("select task, args from pgqueue.jobs order by id")]


class Change(Exception):
    """Of mind."""


# In the caller's transaction


@pytest.mark.covers("G1")
@pytest.mark.parametrize("row_factory", [psycopg.rows.tuple_row, dict_row])
def test_a_job_is_committed_with_the_callers_transaction(
    row_factory: Any, database: Database, conn: psycopg.Connection
) -> None:
    own = database.connect(autocommit=False, row_factory=row_factory)
    job_id = pgqueue.enqueue(own, "t", {"n": 1})
    assert isinstance(job_id, int)
    assert jobs(conn) == []
    own.commit()
    assert jobs(conn) == [("t", {"n": 1})]
    assert job(conn, job_id).task == "t"


def test_a_job_is_rolled_back_with_the_callers_transaction(database: Database, conn: psycopg.Connection) -> None:
    own = database.connect(autocommit=False)
    pgqueue.enqueue(own, "t")
    pgqueue.enqueue_many(own, "t", [{}, {}])
    own.rollback()
    assert jobs(conn) == []


def test_a_job_of_a_rolled_back_savepoint_goes_with_it_alone(database: Database, conn: psycopg.Connection) -> None:
    own = database.connect()
    with own.transaction():
        pgqueue.enqueue(own, "outer")
        with suppress(Change), own.transaction():
            pgqueue.enqueue(own, "inner")
            raise Change
        with own.transaction():
            pgqueue.enqueue(own, "second")
    assert jobs(conn) == [("outer", {}), ("second", {})]


def test_in_autocommit_a_job_is_there_at_once(database: Database, conn: psycopg.Connection) -> None:
    pgqueue.enqueue(database.connect(), "t")
    assert jobs(conn) == [("t", {})]


@pytest.fixture
async def async_conn(database: Database) -> AsyncIterator[psycopg.AsyncConnection]:
    connection = await database.connect_async(autocommit=False, row_factory=dict_row)
    yield connection
    await connection.close()


@pytest.mark.covers("G1")
async def test_on_an_async_connection_the_same_calls_are_awaited(
    async_conn: psycopg.AsyncConnection, conn: psycopg.Connection
) -> None:
    first = await pgqueue.enqueue(async_conn, "t", {"n": 1})
    second = await send.enqueue(async_conn, "a@b.c")
    third, fourth = await pgqueue.enqueue_many(async_conn, send, [{"to": "x"}, {"to": "y"}])
    [fifth] = await send.using(queue="q").enqueue_many(async_conn, [{"to": "z"}])
    assert jobs(conn) == []
    await async_conn.commit()
    assert first < second < third < fourth < fifth
    assert [args for _, args in jobs(conn)] == [{"n": 1}, {"to": "a@b.c"}, {"to": "x"}, {"to": "y"}, {"to": "z"}]
    with suppress(Change):
        async with async_conn.transaction():
            await send.enqueue(async_conn, "never")
            raise Change
    await async_conn.commit()
    assert len(jobs(conn)) == 5


def test_a_pipeline_carries_an_enqueue(database: Database, conn: psycopg.Connection) -> None:
    own = database.connect(autocommit=False)
    with own.pipeline():
        own.execute("create table t (id int)")
        assert pgqueue.enqueue(own, "t") > 0
    own.commit()
    assert jobs(conn) == [("t", {})]


@pytest.mark.parametrize(
    "connection", [None, "postgresql://", sqlite3.connect(":memory:")], ids=["none", "dsn", "another driver's"]
)
def test_an_object_that_is_no_connection_of_psycopg_is_refused_with_the_way_out(connection: Any) -> None:
    with pytest.raises(TypeError, match=r"run: select pgqueue\.enqueue"):
        pgqueue.enqueue(connection, "t")


# Options


@pytest.mark.covers("G1", "G3", "G4")
def test_options_reach_the_job_and_stay_apart_from_its_arguments(conn: psycopg.Connection) -> None:
    at = datetime(2040, 1, 1, 12, tzinfo=timezone(timedelta(hours=3)))
    job_id = send.using(
        queue="mail",
        priority=7,
        run_at=at,
        expires_in=timedelta(days=1),
        max_attempts=3,
        headers={"trace": ["x"]},
        tags=("a", "b"),
        retention="30 days",
    ).enqueue(conn, "a@b.c")
    found = job(conn, job_id)
    assert (found.task, found.args) == ("mail.send", {"to": "a@b.c"})
    assert (found.queue, found.priority, found.max_attempts) == ("mail", 7, 3)
    assert (found.run_at, found.expires_at) == (at, at + timedelta(days=1))
    assert (found.headers, found.tags) == ({"trace": ["x"]}, ["a", "b"])
    assert value(conn, "select retention from pgqueue.jobs") == timedelta(days=30)


@pytest.mark.parametrize("delay", [timedelta(hours=2), "2 hours", "PT2H"])
def test_a_delay_is_a_timedelta_or_an_interval_as_text(delay: Any, conn: psycopg.Connection) -> None:
    found = job(conn, pgqueue.enqueue(conn, "t", delay=delay))
    assert found.run_at - found.created_at == timedelta(hours=2)


def test_an_option_of_none_is_as_if_it_had_been_left_out(conn: psycopg.Connection) -> None:
    found = job(conn, pgqueue.enqueue(conn, "t", None, queue=None, delay=None, headers=None, key=None))
    assert (found.queue, found.args, found.headers) == ("default", {}, None)


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"nope": 1}, TypeError, "a job has no option 'nope'; it has queue, priority"),
        ({"delya": 60}, TypeError, "a job has no option 'delya': did you mean delay?"),
        ({"countdown": 60}, TypeError, "a job has no option 'countdown': here it is delay"),
        ({"eta": 60}, TypeError, "a job has no option 'eta': here it is run_at"),
        ({"expires": 60}, TypeError, "a job has no option 'expires': here it is expires_in"),
        ({"priority": 500}, InvalidArgument, "priority is 500; give a whole number from -100 to 100"),
        ({"max_attempts": 0}, InvalidArgument, "max_attempts is 0"),
        ({"delay": "soon"}, InvalidArgument, "delay is 'soon', which is not an interval"),
        (
            {"retry_policy": {"max_retries": 3}},
            InvalidArgument,
            "retry_policy is {'max_retries': 3}; give one of fixed, ",
        ),
        (
            {"retry_policy": "list"},
            InvalidArgument,
            "retry_policy is 'list'; give one of fixed, exponential, sidekiq, dou",
        ),
        ({"dedupe_for": "5 minuts"}, InvalidArgument, "dedupe_for is '5 minuts', which is not an interval"),
    ],
)
def test_using_refuses_at_once_what_no_job_can_have(options: dict[str, Any], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=re.escape(said)):
        send.using(**options)


@pytest.mark.parametrize(
    ("option", "said"),
    [("retry_policy", 'options of their own: retry_policy="fixed"'), ("key", "give a text or a number")],
)
def test_a_mapping_in_the_place_of_a_text_is_refused_by_the_name_of_its_option(
    option: str, said: str, conn: psycopg.Connection
) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(f"{option} is {{'max_retries': 3}}")) as refused:
        pgqueue.enqueue(conn, "t", **{option: {"max_retries": 3}})  # type: ignore[call-overload]
    assert said in str(refused.value)


def test_using_leaves_the_task_as_it_was(conn: psycopg.Connection) -> None:
    urgent = send.using(priority=100)
    assert job(conn, send.enqueue(conn, "a")).priority == 0
    assert job(conn, urgent.enqueue(conn, "a")).priority == 100
    assert [job(conn, each).priority for each in urgent.enqueue_many(conn, [{"to": "a"}, {"to": "b"}])] == [100, 100]


def test_a_task_may_be_given_where_a_name_may(conn: psycopg.Connection) -> None:
    pgqueue.enqueue(conn, send, {"to": "a"})
    assert jobs(conn) == [("mail.send", {"to": "a"})]


@pytest.mark.covers("G2")
def test_many_jobs_are_enqueued_by_one_statement_in_their_order(database: Database, conn: psycopg.Connection) -> None:
    own = database.connect(autocommit=False)
    ids = pgqueue.enqueue_many(own, "t", ({"n": n} for n in range(1000)), queue="q")
    own.commit()
    assert ids == sorted(ids)
    assert [job(conn, each).args for each in (ids[0], ids[500], ids[999])] == [{"n": 0}, {"n": 500}, {"n": 999}]
    # One clock reading for all, so one statement.
    assert value(conn, "select count(distinct created_at) from pgqueue.jobs") == 1
    assert pgqueue.enqueue_many(conn, "t", []) == []


# Dedupe


def test_the_outcome_of_an_enqueue_is_returned(conn: psycopg.Connection) -> None:
    first = pgqueue.enqueue_outcome(conn, send, {"to": "a"}, dedupe="d", delay=timedelta(hours=1))
    assert first == Enqueued(first.job_id, "inserted")
    keyed = send.using(dedupe="d", on_conflict="replace", dedupe_for=timedelta(hours=1))
    assert keyed.enqueue_outcome(conn, "b") == Enqueued(first.job_id, "replaced")
    assert send.using(dedupe="d").enqueue(conn, "c") == first.job_id
    assert jobs(conn) == [("mail.send", {"to": "b"})]


async def test_outcomes_are_awaited_on_an_async_connection(async_conn: psycopg.AsyncConnection) -> None:
    first = await pgqueue.enqueue_outcome(async_conn, "t", dedupe="d")
    second = await anything.using(dedupe="d").enqueue_outcome(async_conn, a=1)
    third = await pgqueue.enqueue_outcome(async_conn, "t", {"a": 1}, dedupe="d", on_conflict="merge")
    assert (first.outcome, second.outcome, third) == ("inserted", "inserted", Enqueued(first.job_id, "merged"))
    [fourth, fifth] = await pgqueue.enqueue_batch(async_conn, [{"task": "t", "dedupe": "d"}, {"task": ""}])
    assert (fourth.job_id, fourth.outcome, fifth.outcome) == (first.job_id, "skipped", "error")
    with pytest.raises(DuplicateJob):
        await pgqueue.enqueue(async_conn, "t", dedupe="d", on_conflict="raise")


def test_a_duplicate_is_an_error_of_its_own_with_what_stands_and_what_to_do(conn: psycopg.Connection) -> None:
    first = pgqueue.enqueue(conn, "t", dedupe="d")
    with pytest.raises(DuplicateJob, match=f"Job {first} has it; Leave on_conflict out"):
        pgqueue.enqueue(conn, "t", dedupe="d", on_conflict="raise")


def test_a_unique_constraint_of_the_users_is_no_duplicate_job(conn: psycopg.Connection) -> None:
    conn.execute("create table orders (id int primary key)")
    conn.execute("insert into orders values (1)")
    with pytest.raises(psycopg.errors.UniqueViolation):
        perform(conn, Call(b"insert into orders values (1)", (), lambda rows: None))


def test_a_dedupe_key_held_too_long_is_said_to_be(database: Database, conn: psycopg.Connection) -> None:
    holder = database.connect(autocommit=False)
    conn.execute("update pgqueue.settings set dedupe_wait = '50 ms'")
    pgqueue.enqueue(holder, "t", dedupe="d")
    with pytest.raises(LockTimeout, match=r"holds dedupe key 'd' of task 't'.*dedupe_wait"):
        pgqueue.enqueue(conn, "t", dedupe="d")


def test_options_of_order_and_dedupe_reach_the_job(conn: psycopg.Connection) -> None:
    found = job(conn, pgqueue.enqueue(conn, "t", key="k", score=1.5, limit_key="l", dedupe="d", dedupe_for="1 h"))
    assert (found.key, float(found.score), found.limit_key, found.dedupe) == ("k", 1.5, "l", "d")


# Batches


def test_a_batch_takes_the_options_of_each_job_and_answers_for_each(conn: psycopg.Connection) -> None:
    at = datetime(2040, 1, 1, 12, tzinfo=timezone(timedelta(hours=3)))
    results = pgqueue.enqueue_batch(
        conn,
        (
            each
            for each in [
                {"task": "t"},
                {"task": send, "args": {"to": "a"}, "run_at": at, "expires_in": timedelta(days=1), "tags": ("x", "y")},
                send.using(delay=timedelta(minutes=5), key="k", dedupe="d").job("b", copies=2),
                send.using(dedupe="d").job("c"),
                {"task": "t", "priority": 101},
                {"task": "t", "dealy": "1 s"},
                {"args": {}},
            ]
        ),
    )
    assert [each.outcome for each in results] == ["inserted"] * 3 + ["skipped"] + ["error"] * 3
    assert jobs(conn) == [("t", {}), ("mail.send", {"to": "a"}), ("mail.send", {"to": "b", "copies": 2})]
    second, third = job(conn, results[1].job_id or 0), job(conn, results[2].job_id or 0)
    assert (second.run_at, second.expires_at, second.tags) == (at, at + timedelta(days=1), ["x", "y"])
    assert (third.run_at - third.created_at, third.key) == (timedelta(minutes=5), "k")
    assert results[3].job_id == results[2].job_id
    error = results[4].error
    assert results[4].job_id is None
    assert error is not None
    assert set(error) == {"sqlstate", "message", "detail", "hint"}
    assert "dealy" in (results[5].error or {})["message"]
    assert pgqueue.enqueue_batch(conn, []) == []


def test_what_a_batch_cannot_send_is_refused_and_names_the_job(conn: psycopg.Connection) -> None:
    with pytest.raises(InvalidArgument, match="job 1 of the batch cannot be written as JSON"):
        pgqueue.enqueue_batch(conn, [{"task": "t"}, {"task": "t", "args": {"x": object()}}])
    with pytest.raises(InvalidArgument, match="run_at of job 0 of the batch has no time zone"):
        pgqueue.enqueue_batch(conn, [{"task": "t", "run_at": datetime(2040, 1, 1)}])
    with pytest.raises(InvalidArgument):
        send.using(dedupe="d").job()  # type: ignore[call-arg]
    assert jobs(conn) == []


def test_a_copy_takes_the_options_of_each_job(conn: psycopg.Connection) -> None:
    at = datetime(2040, 1, 1, 12, tzinfo=timezone(timedelta(hours=3)))
    given = [
        {"task": "t"},
        {"task": send, "args": {"to": "a\t\n\\"}, "run_at": at, "expires_in": timedelta(days=1), "tags": ("x", "y")},
        send.using(delay=timedelta(minutes=5), key="k", dedupe="d").job("b", copies=2),
        send.using(dedupe="d").job("c"),
        {"task": "t", "priority": 3, "headers": {"h": 1}, "score": 1.5},
    ]
    assert pgqueue.enqueue_copy(conn, (each for each in given)) == {"inserted": 4, "skipped": 1}
    found = [job(conn, job_id) for (job_id,) in conn.execute("select id from pgqueue.jobs order by id")]
    assert [each.task for each in found] == ["t", send.name, send.name, "t"]
    assert (found[1].args["to"], found[1].run_at, found[1].tags) == ("a\t\n\\", at, ["x", "y"])
    assert (found[2].key, found[2].args["copies"]) == ("k", 2)
    assert found[2].run_at - found[2].created_at == timedelta(minutes=5)
    assert (found[3].priority, found[3].headers) == (3, {"h": 1})
    assert pgqueue.enqueue_copy(conn, []) == {}


def test_a_copy_is_committed_and_rolled_back_with_the_callers_transaction(
    database: Database, conn: psycopg.Connection
) -> None:
    own = database.connect(autocommit=False)
    assert pgqueue.enqueue_copy(own, [{"task": "t"}, {"task": "u"}]) == {"inserted": 2}
    assert jobs(conn) == []
    own.rollback()
    assert pgqueue.enqueue_copy(own, [{"task": "v"}]) == {"inserted": 1}
    own.commit()
    assert [task for task, _ in jobs(conn)] == ["v"]


async def test_a_copy_on_an_async_connection(async_conn: psycopg.AsyncConnection, conn: psycopg.Connection) -> None:
    assert await pgqueue.enqueue_copy(async_conn, ({"task": "t", "args": {"n": n}} for n in range(50))) == {
        "inserted": 50
    }
    await async_conn.commit()
    assert await pgqueue.enqueue_copy(async_conn, []) == {}
    with pytest.raises(InvalidArgument, match="row 2 of the load: priority must be"):
        await pgqueue.enqueue_copy(async_conn, [{"task": "t"}, {"task": "t", "priority": 1000}])
    assert [args["n"] for _, args in jobs(conn)] == list(range(50))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"task": ""}, "row 2 of the load: task must be"),
        ({"task": "t", "delay": "soon"}, "line 2, column delay"),
        ({"task": "t", "args": {"x": object()}}, "args of job 2 of the load cannot be written as JSON"),
        ({"task": "t", "run_at": datetime(2040, 1, 1)}, "run_at of job 2 of the load has no time zone"),
        ({"task": "t", "dealy": "1 s"}, "there is no option 'dealy', in job 2 of the load"),
        ({"task": "t", "key": "a\0b"}, "NUL"),
    ],
)
def test_a_wrong_job_of_a_copy_is_named_and_nothing_is_enqueued(
    conn: psycopg.Connection, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        pgqueue.enqueue_copy(conn, [{"task": "t"}, wrong])
    assert jobs(conn) == []
    assert pgqueue.enqueue_copy(conn, [{"task": "t"}]) == {"inserted": 1}


def test_a_copy_needs_a_connection_to_postgres() -> None:
    with pytest.raises(TypeError, match=r"needs a connection of psycopg or asyncpg, .*, not sqlite3\.Connection"):
        pgqueue.enqueue_copy(sqlite3.connect(":memory:"), [])  # type: ignore[call-overload]


# Arguments


def test_positional_arguments_are_stored_under_their_names(conn: psycopg.Connection) -> None:
    send.enqueue(conn, "a@b.c", "Hello", copies=2)
    anything.enqueue(conn, a=1, queue="an argument, and no option")
    assert jobs(conn) == [
        ("mail.send", {"to": "a@b.c", "subject": "Hello", "copies": 2}),
        ("anything", {"a": 1, "queue": "an argument, and no option"}),
    ]


@pytest.mark.parametrize(
    "attempt",
    [
        lambda conn: send.enqueue(conn),
        lambda conn: send.enqueue(conn, "a", "b", 3),
        lambda conn: send.enqueue(conn, "a", to="b"),
        lambda conn: send.enqueue(conn, "a", delay=5),
        lambda conn: send.enqueue_many(conn, [{"to": "a"}, {"ot": "b"}]),
        lambda conn: listed.enqueue(conn, "a", "b"),
    ],
    ids=["missing", "too many", "twice", "option as argument", "one of many", "without names"],
)
def test_arguments_that_do_not_fit_are_refused_and_nothing_is_enqueued(
    attempt: Callable[[psycopg.Connection], object], conn: psycopg.Connection
) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        attempt(conn)
    assert refusal.value.hint
    assert jobs(conn) == []


def test_a_refusal_by_python_leaves_the_callers_transaction_usable(database: Database) -> None:
    own = database.connect(autocommit=False)
    pgqueue.enqueue(own, "t")
    attempts: list[Callable[[], object]] = [
        lambda: send.enqueue(own),
        lambda: pgqueue.enqueue(own, "t", {"x": object()}),
        lambda: pgqueue.enqueue(own, "t", run_at=datetime(2040, 1, 1)),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidArgument):
            attempt()
    own.commit()
    assert jobs(own) == [("t", {})]


@pytest.mark.parametrize(
    "args",
    [{"x": object()}, {"x": {1}}, {1: "x"}, {"x": 2**70}, {"x": "\udc80"}, {"x": b"bytes"}],
    ids=["object", "set", "key", "number", "half a character", "bytes"],
)
def test_what_json_cannot_hold_is_refused(args: Any, conn: psycopg.Connection) -> None:
    with pytest.raises(InvalidArgument, match="args cannot be written as JSON"):
        pgqueue.enqueue(conn, "t", args)
    assert jobs(conn) == []


def test_common_values_beyond_json_are_written_as_text(conn: psycopg.Connection) -> None:
    at, key = datetime(2040, 1, 1, tzinfo=UTC), UUID(int=1)
    pgqueue.enqueue(conn, "t", {"at": at, "key": key})
    assert jobs(conn) == [("t", {"at": "2040-01-01T00:00:00Z", "key": str(key)})]


# Refusals


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"run_at": datetime(2040, 1, 1)}, "run_at has no time zone"),
        ({"delay": "soon"}, "delay: invalid input syntax for type interval"),
        ({"delay": True}, "delay is True"),
        ({"delay": float("nan")}, "delay is nan; give seconds"),
        ({"expires_in": 1e20}, "give less than three million years"),
        ({"priority": "high"}, "invalid input syntax for type integer"),
        ({"priority": 101}, "priority must be between"),
        ({"priority": 2**40}, "out of range"),
        ({"queue": ""}, "queue must be 1 to 128 bytes"),
        ({"queue": "a\0b"}, "NUL"),
        ({"headers": [1]}, "headers must be a JSON object"),
        ({"headers": {"x": object()}}, "headers cannot be written as JSON"),
        ({"tags": "abc"}, "malformed array literal"),
        ({"run_at": datetime(2040, 1, 1, tzinfo=UTC), "delay": "1 s"}, "run_at and delay were both given"),
        ({"retention": timedelta(days=-1)}, "retention must be between"),
    ],
    ids=lambda each: ",".join(each) if isinstance(each, dict) else "",
)
def test_a_wrong_option_is_an_invalid_argument(options: dict[str, Any], said: str, conn: psycopg.Connection) -> None:
    with pytest.raises(InvalidArgument, match=said):
        pgqueue.enqueue(conn, "t", **options)
    assert jobs(conn) == []


@pytest.mark.parametrize("args", [[1], "x", {"x": "\0"}], ids=["list", "text", "NUL"])
def test_wrong_args_are_an_invalid_argument(args: Any, conn: psycopg.Connection) -> None:
    with pytest.raises(InvalidArgument):
        pgqueue.enqueue(conn, "t", args)


def test_an_unknown_option_is_a_type_error_that_names_the_nearest_one(conn: psycopg.Connection) -> None:
    for attempt in (
        lambda: pgqueue.enqueue(conn, "t", dealy="1 s"),
        lambda: pgqueue.enqueue_many(conn, "t", [{}], dealy="1 s"),
        lambda: send.using(dealy="1 s").enqueue(conn, "a"),  # type: ignore[call-arg]
    ):
        with pytest.raises(TypeError, match=r"no option 'dealy': did you mean delay\?"):
            attempt()
    assert jobs(conn) == []


def test_where_the_queue_is_not_installed_the_error_names_the_cure(empty_database: Database) -> None:
    conn = empty_database.connect()
    with pytest.raises(SchemaError, match="run: pgqueue migrate"):
        pgqueue.enqueue(conn, "t")


async def test_errors_are_the_same_on_an_async_connection(
    async_conn: psycopg.AsyncConnection, empty_database: Database
) -> None:
    refused: list[tuple[type[Exception], Callable[[], Awaitable[object]]]] = [
        (InvalidArgument, lambda: pgqueue.enqueue(async_conn, "t", priority=101)),
        (InvalidArgument, lambda: send.enqueue(async_conn)),
        (InvalidArgument, lambda: pgqueue.enqueue(async_conn, "t", depends_on=[1])),
        (TypeError, lambda: pgqueue.enqueue(async_conn, "t", dealy="x")),
    ]
    for error, attempt in refused:
        with pytest.raises(error):
            await attempt()
        await async_conn.rollback()
    nowhere = await empty_database.connect_async()
    with pytest.raises(SchemaError):
        await pgqueue.enqueue(nowhere, "t")
    await nowhere.close()


def test_other_errors_of_the_queue_have_their_own_classes(database: Database) -> None:
    own = database.connect(autocommit=False)
    own.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    with pytest.raises(WrongIsolation, match="READ COMMITTED"):
        perform(own, consume.exchange(consume.Claim("w", None, None, 30, "weighted"), 1, ask=True))
    own.rollback()

    conn = database.connect()
    pgqueue.enqueue(conn, "t")
    held = reserve_one(conn)
    # Nobody lets it through, however long it waits.
    conn.execute("alter function pgqueue.fail set lock_timeout = '10ms'")
    holder = database.session()
    holder.run("begin")
    holder.run("select 1 from pgqueue.jobs for update")
    with pytest.raises(LockTimeout, match="nothing was changed"):
        perform(conn, consume.fail(consume.Failure(held.id, held.reservation, {})))


def test_an_error_that_is_not_the_queues_comes_as_it_is(database: Database) -> None:
    conn = database.connect(autocommit=False)
    with pytest.raises(psycopg.errors.DivisionByZero):
        conn.execute("select 1 / 0")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        pgqueue.enqueue(conn, "t")


def test_calls_of_a_task_are_spread_over_a_time(conn: psycopg.Connection) -> None:
    first, second = send.enqueue_many(conn, [{"to": "a"}, {"to": "b"}], spread=timedelta(hours=1))
    third, fourth = pgqueue.enqueue_many(conn, send, [{"to": "a"}, {"to": "b"}], spread="1 hour", retry_cap="1 min")
    for one, other in ((first, second), (third, fourth)):
        assert job(conn, other).due_at - job(conn, one).due_at == timedelta(minutes=30)
    assert job(conn, fourth).retry == {"cap": 60}


@pytest.mark.parametrize("name", ["priority", "run_at", "max_attempts", "key", "delay"])
def test_true_is_no_value_of_an_option(name: str, conn: psycopg.Connection) -> None:
    for call in (
        lambda: pgqueue.enqueue(conn, "t", {}, **{name: True}),  # type: ignore[typeddict-item]
        lambda: pgqueue.enqueue_batch(conn, [{"task": "t", name: True}]),
        lambda: pgqueue.enqueue_copy(conn, [{"task": "t", name: True}]),
    ):
        with pytest.raises(InvalidArgument, match=rf"{name}.* is True; give a number or a text"):
            call()


def test_a_day_is_no_instant_by_name_and_in_a_batch(conn: psycopg.Connection) -> None:
    day = date(2026, 12, 24)
    with pytest.raises(InvalidArgument, match=r"run_at is the day 2026-12-24; give an instant"):
        pgqueue.enqueue(conn, "t", {}, run_at=day)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"run_at of job 0 of the batch is the day 2026-12-24"):
        pgqueue.enqueue_batch(conn, [{"task": "t", "run_at": day}])
    with pytest.raises(InvalidArgument, match=r"run_at of job 1 of the load is the day 2026-12-24"):
        pgqueue.enqueue_copy(conn, [{"task": "t", "run_at": day}])
    assert jobs(conn) == []


@pytest.mark.parametrize(("name", "given"), [("max_attempts", 2.5), ("priority", 2.7), ("cost", Decimal("1.5"))])
def test_a_part_of_a_number_is_no_value_of_an_option_that_is_whole(
    name: str, given: Any, conn: psycopg.Connection
) -> None:
    for call in (
        lambda: pgqueue.enqueue(conn, "t", {}, **{name: given}),  # type: ignore[typeddict-item]
        lambda: pgqueue.enqueue_many(conn, "t", [{}], **{name: given}),  # type: ignore[typeddict-item]
        lambda: pgqueue.enqueue_copy(conn, [{"task": "t", name: given}]),
    ):
        with pytest.raises(InvalidArgument, match=rf"{name}.* is {given}; give a whole number"):
            call()
    [result] = pgqueue.enqueue_batch(conn, [{"task": "t", name: float(given)}])
    assert result.outcome == "error"
    assert jobs(conn) == []


def test_what_has_no_name_is_no_task(conn: psycopg.Connection) -> None:
    def resize() -> None: ...

    for given, hint in ((None, "give a name, or a task"), (resize, "decorate it with @app.task, or give a name")):
        task: Any = given
        for call in (pgqueue.enqueue, pgqueue.enqueue_outcome):
            with pytest.raises(TypeError, match=f"which has no name: {hint}"):
                call(conn, task)
        with pytest.raises(TypeError, match=f"which has no name: {hint}"):
            pgqueue.enqueue_many(conn, task, [{}])
    for load in (pgqueue.enqueue_batch, pgqueue.enqueue_copy):
        with pytest.raises(TypeError, match=r"which has no name: decorate it with @app\.task"):
            load(conn, [{"task": resize}])
    assert jobs(conn) == []


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda connection: send.enqueue(connection, "a@b.c"), "enqueue of task mail.send"),
        (lambda connection: send.using(key="k").enqueue_outcome(connection, "a"), "enqueue_outcome of task mail.send"),
        (lambda connection: send.enqueue_many(connection, [{"to": "a"}]), "enqueue_many of task mail.send"),
        (lambda connection: pgqueue.enqueue(connection, "pay", {"n": 1}), "enqueue of task pay"),
        (lambda connection: pgqueue.enqueue_many(connection, send, [{"to": "a"}]), "enqueue_many of task mail.send"),
        (lambda connection: pgqueue.enqueue_outcome(connection, "pay", {}), "enqueue_outcome of task pay"),
        (lambda connection: pgqueue.enqueue_batch(connection, [{"task": "pay"}]), "enqueue_batch"),
        (lambda connection: pgqueue.enqueue_copy(connection, [{"task": "pay"}]), "enqueue_copy"),
    ],
)
async def test_an_await_that_was_forgotten_is_told_with_the_call_and_the_task(
    call: Callable[[Any], object], named: str, database: Database, conn: psycopg.Connection
) -> None:
    async with await psycopg.AsyncConnection.connect(database.dsn, autocommit=True) as connection:
        with pytest.warns(RuntimeWarning, match=rf"^coroutine '{named}' was never awaited"):
            call(connection)
    assert jobs(conn) == []


@pytest.mark.parametrize(("given", "option"), [("delay", "delay"), ("queue", "queue"), ("countdown", "delay")])
def test_an_option_of_a_job_among_the_arguments_is_told_where_it_belongs(
    given: str, option: str, conn: psycopg.Connection
) -> None:
    says = rf"; give options of the job to using\(\): mail.send.using\({option}=...\).enqueue\(connection, ...\)"
    with pytest.raises(InvalidArgument, match=says):
        send.enqueue(conn, "a", **{given: 60})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=says):
        send.enqueue_many(conn, [{"to": "a", given: 60}])
    assert jobs(conn) == []
