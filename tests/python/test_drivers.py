"""Enqueueing through what users have in hand, each in the caller's own transaction.

psycopg, psycopg2, SQLAlchemy, asyncpg, Django.

A way is a function that opens one, and says how its user commits and rolls back.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import partial
from inspect import isawaitable
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.json import Jsonb

import pgqueue
from pgqueue import App
from pgqueue._transaction import JobTransaction
from pgqueue.db import drivers
from pgqueue.errors import DuplicateJob, InvalidArgument, NotCommitted, SchemaError, WaitTimeout
from pgqueue.testing import Clock
from tests.calls import call, enqueue, job, reserve_one, value
from tests.databases import Database

app = App()


@app.task(name="mail.send")
def send(to: str, copies: int = 1) -> None: ...


class Change(Exception):
    """Of mind."""


class Way:
    """An object that enqueue takes, and the ends of its transaction, all of which may be awaitable.

    `begin` is None where the next statement begins by itself.
    """

    def __init__(
        self,
        given: Any,
        commit: Callable[[], Any],
        rollback: Callable[[], Any],
        begin: Callable[[], Any] | None = None,
    ) -> None:
        self.given = given
        self._commit = commit
        self._rollback = rollback
        self._begin = begin

    async def commit(self) -> None:
        await done(self._commit())

    async def rollback(self) -> None:
        await done(self._rollback())

    async def begin(self) -> None:
        if self._begin is not None:
            await done(self._begin())


async def done(result: Any) -> Any:
    return await result if isawaitable(result) else result


Open = Callable[[Database], AsyncIterator[Way]]
WAYS: dict[str, Open] = {}


def way(function: Callable[..., Any]) -> Callable[..., Any]:
    opened = asynccontextmanager(function)
    WAYS[function.__name__] = opened
    return opened


@way
async def psycopg_sync(database: Database) -> AsyncIterator[Way]:
    connection = database.connect(autocommit=False)
    yield Way(connection, connection.commit, connection.rollback)


@way
async def psycopg_async(database: Database) -> AsyncIterator[Way]:
    connection = await database.connect_async(autocommit=False)
    yield Way(connection, connection.commit, connection.rollback)
    await connection.close()


@way
async def psycopg2_connection(database: Database) -> AsyncIterator[Way]:
    psycopg2 = pytest.importorskip("psycopg2")
    connection = psycopg2.connect(database.dsn)
    yield Way(connection, connection.commit, connection.rollback)
    connection.close()


@way
async def psycopg2_connection_whose_rows_are_dicts(database: Database) -> AsyncIterator[Way]:
    psycopg2 = pytest.importorskip("psycopg2")
    extras = pytest.importorskip("psycopg2.extras")
    connection = psycopg2.connect(database.dsn, cursor_factory=extras.RealDictCursor)
    yield Way(connection, connection.commit, connection.rollback)
    connection.close()


@contextmanager
def engine(database: Database, driver: str) -> Iterator[Any]:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    module = pytest.importorskip(driver)
    made = sqlalchemy.create_engine(f"postgresql+{driver}://", creator=lambda: module.connect(database.dsn))
    yield made
    made.dispose()


@way
async def sqlalchemy_connection(database: Database) -> AsyncIterator[Way]:
    with engine(database, "psycopg") as made, made.connect() as connection:
        yield Way(connection, connection.commit, connection.rollback)


@way
async def sqlalchemy_connection_on_psycopg2(database: Database) -> AsyncIterator[Way]:
    with engine(database, "psycopg2") as made, made.connect() as connection:
        yield Way(connection, connection.commit, connection.rollback)


@way
async def sqlalchemy_session(database: Database) -> AsyncIterator[Way]:
    orm = pytest.importorskip("sqlalchemy.orm")
    with engine(database, "psycopg") as made, orm.Session(made) as session:
        yield Way(session, session.commit, session.rollback)


@way
async def sqlalchemy_scoped_session(database: Database) -> AsyncIterator[Way]:
    orm = pytest.importorskip("sqlalchemy.orm")
    with engine(database, "psycopg") as made:
        session = orm.scoped_session(orm.sessionmaker(made))
        yield Way(session, session.commit, session.rollback)
        session.remove()


@asynccontextmanager
async def async_engine(database: Database, driver: str) -> AsyncIterator[Any]:
    asyncio_of = pytest.importorskip("sqlalchemy.ext.asyncio")
    module = pytest.importorskip(driver)

    async def connect() -> Any:
        opened = module.AsyncConnection.connect if driver == "psycopg" else module.connect
        return await opened(database.dsn)

    made = asyncio_of.create_async_engine(f"postgresql+{driver}://", async_creator=connect)
    yield made
    await made.dispose()


@way
async def sqlalchemy_async_connection(database: Database) -> AsyncIterator[Way]:
    async with async_engine(database, "psycopg") as made, made.connect() as connection:
        yield Way(connection, connection.commit, connection.rollback)


@way
async def sqlalchemy_async_connection_on_asyncpg(database: Database) -> AsyncIterator[Way]:
    async with async_engine(database, "asyncpg") as made, made.connect() as connection:
        yield Way(connection, connection.commit, connection.rollback)


@way
async def sqlalchemy_async_session(database: Database) -> AsyncIterator[Way]:
    asyncio_of = pytest.importorskip("sqlalchemy.ext.asyncio")
    async with async_engine(database, "asyncpg") as made, asyncio_of.AsyncSession(made) as session:
        yield Way(session, session.commit, session.rollback)


@way
async def sqlalchemy_async_scoped_session(database: Database) -> AsyncIterator[Way]:
    asyncio_of = pytest.importorskip("sqlalchemy.ext.asyncio")
    async with async_engine(database, "psycopg") as made:
        factory = asyncio_of.async_sessionmaker(made)
        session = asyncio_of.async_scoped_session(factory, scopefunc=lambda: 1)
        yield Way(session, session.commit, session.rollback)
        await session.remove()


@way
async def asyncpg_connection(database: Database) -> AsyncIterator[Way]:
    asyncpg = pytest.importorskip("asyncpg")
    connection = await asyncpg.connect(database.dsn)
    await connection.execute("begin")
    yield Way(connection, *(partial(connection.execute, word) for word in ("commit", "rollback", "begin")))
    await connection.close()


@way
async def asyncpg_out_of_a_pool(database: Database) -> AsyncIterator[Way]:
    asyncpg = pytest.importorskip("asyncpg")

    async def own_codecs(connection: Any) -> None:
        # As many do; enqueue must not depend on it.
        await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)

    async with (
        asyncpg.create_pool(database.dsn, min_size=1, max_size=1, init=own_codecs) as pool,
        pool.acquire() as connection,
    ):
        await connection.execute("begin")
        yield Way(connection, *(partial(connection.execute, word) for word in ("commit", "rollback", "begin")))


# Pools and engines lend a connection, and each call commits by itself.
LENDERS: dict[str, Callable[[Database], Any]] = {}


def lender(function: Callable[..., Any]) -> Callable[..., Any]:
    opened = asynccontextmanager(function)
    LENDERS[function.__name__] = opened
    return opened


@lender
async def psycopg_pool_sync(database: Database) -> AsyncIterator[Any]:
    module = pytest.importorskip("psycopg_pool")
    with module.ConnectionPool(database.dsn, min_size=1, max_size=1) as pool:
        yield pool


@lender
async def psycopg_pool_null(database: Database) -> AsyncIterator[Any]:
    module = pytest.importorskip("psycopg_pool")
    with module.NullConnectionPool(database.dsn) as pool:
        yield pool


@lender
async def psycopg_pool_async(database: Database) -> AsyncIterator[Any]:
    module = pytest.importorskip("psycopg_pool")
    async with module.AsyncConnectionPool(database.dsn, min_size=1, max_size=1, open=False) as pool:
        yield pool


@lender
async def sqlalchemy_engine(database: Database) -> AsyncIterator[Any]:
    with engine(database, "psycopg") as made:
        yield made


@lender
async def sqlalchemy_async_engine(database: Database) -> AsyncIterator[Any]:
    async with async_engine(database, "asyncpg") as made:
        yield made


@lender
async def asyncpg_pool(database: Database) -> AsyncIterator[Any]:
    asyncpg = pytest.importorskip("asyncpg")
    async with asyncpg.create_pool(database.dsn, min_size=1, max_size=1) as pool:
        yield pool


@pytest.fixture(params=sorted(LENDERS))
async def lends(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[Any]:
    async with LENDERS[request.param](database) as opened:
        yield opened


@contextmanager
def django_on(database: Database) -> Iterator[Any]:
    django = pytest.importorskip("django")
    from django import db  # noqa: PLC0415
    from django.conf import settings  # noqa: PLC0415
    from django.db import transaction  # noqa: F401, PLC0415
    from django.utils.functional import empty  # noqa: PLC0415

    parts = conninfo_to_dict(database.dsn)
    named = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    found = {key: str(parts[part]) for key, part in named.items() if parts.get(part) is not None}
    mine = {"ENGINE": "django.db.backends.postgresql", **found}
    if not settings.configured:
        settings.configure(DATABASES={"default": mine, "other": {"ENGINE": "django.db.backends.sqlite3"}}, USE_TZ=True)
        django.setup()
    db.connections.settings["default"].update(mine)
    yield db
    db.connections["default"].close()
    del db.connections["default"]
    # Else the worker of each later test would close connections of Django around its handlers.
    settings._wrapped = empty


@pytest.fixture(params=sorted(WAYS))
async def hand(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[Way]:
    async with WAYS[request.param](database) as opened:
        yield opened


def jobs(conn: psycopg.Connection) -> list[tuple[str, dict[str, Any]]]:
    return [(row[0], row[1]) for row in conn.execute("select task, args from pgqueue.jobs order by id")]


class Colour(StrEnum):
    RED = "red"


# In the caller's transaction


@pytest.mark.covers("G1", "G2")
async def test_jobs_are_committed_with_the_callers_transaction(hand: Way, conn: psycopg.Connection) -> None:
    first = await done(pgqueue.enqueue(hand.given, "t", {"n": 1, "percent": "100 %s"}))
    second, third = await done(pgqueue.enqueue_many(hand.given, send, [{"to": "a"}, {"to": "b"}], queue="mail"))
    fourth = await done(pgqueue.enqueue_outcome(hand.given, "t", {"n": 4}, dedupe="d"))
    fifth, refused = await done(
        pgqueue.enqueue_batch(hand.given, [{"task": "t", "args": {"n": 5}, "delay": timedelta(hours=1)}, {"task": ""}])
    )
    sixth = await done(send.using(priority=3).enqueue(hand.given, "c"))
    assert jobs(conn) == []
    await hand.commit()
    assert jobs(conn) == [
        ("t", {"n": 1, "percent": "100 %s"}),
        ("mail.send", {"to": "a"}),
        ("mail.send", {"to": "b"}),
        ("t", {"n": 4}),
        ("t", {"n": 5}),
        ("mail.send", {"to": "c"}),
    ]
    assert first < second < third < fourth.job_id < fifth.job_id < sixth
    assert (fourth.outcome, fifth.outcome, refused.outcome, refused.job_id) == ("inserted", "inserted", "error", None)
    assert refused.error["sqlstate"] == "22023"
    assert job(conn, second).queue == "mail"


async def test_jobs_are_rolled_back_with_the_callers_transaction(hand: Way, conn: psycopg.Connection) -> None:
    await done(pgqueue.enqueue(hand.given, "t"))
    await done(pgqueue.enqueue_many(hand.given, "t", [{}, {}]))
    assert await done(pgqueue.enqueue_many(hand.given, "t", [])) == []
    await done(pgqueue.enqueue_batch(hand.given, [{"task": "t"}]))
    await hand.rollback()
    assert jobs(conn) == []


async def test_a_pool_or_engine_commits_each_enqueue_by_itself(lends: Any, conn: psycopg.Connection) -> None:
    await done(pgqueue.enqueue(lends, "t", {"n": 1}, priority=3))
    assert jobs(conn) == [("t", {"n": 1})]
    await done(send.enqueue(lends, "a"))
    await done(pgqueue.enqueue_many(lends, "t", [{"n": 2}, {"n": 3}]))
    assert [args for _, args in jobs(conn)] == [{"n": 1}, {"to": "a"}, {"n": 2}, {"n": 3}]


async def test_a_pool_or_engine_gets_its_connection_back_after_a_refusal(lends: Any, conn: psycopg.Connection) -> None:
    # Each lends one connection at the most: a leak would block the next call for ever.
    for _ in range(3):
        with pytest.raises(InvalidArgument):
            await done(pgqueue.enqueue(lends, "t", priority=101))
    await done(pgqueue.enqueue(lends, "t"))
    assert jobs(conn) == [("t", {})]


async def test_a_decimal_in_a_payload_arrives_as_its_text(hand: Way, conn: psycopg.Connection) -> None:
    await done(pgqueue.enqueue(hand.given, "t", {"price": Decimal("10.10"), "of": {"many": [Decimal("1E+2")]}}))
    await hand.commit()
    assert jobs(conn) == [("t", {"price": "10.10", "of": {"many": ["1E+2"]}})]


# Options


async def test_options_of_every_type_arrive(hand: Way, conn: psycopg.Connection) -> None:
    at = datetime(2040, 1, 1, 12, tzinfo=UTC)
    job_id = await done(
        pgqueue.enqueue(
            hand.given,
            "t",
            {"when": at},
            queue="q",
            priority=-7,
            run_at=at,
            expires_in="1 day",
            max_attempts=3,
            headers={"trace": ["ü", None]},
            tags=("a", 'b"c,{}'),
            retention=timedelta(days=30),
            retry_delay=300,
            timeout=20.5,
            key=str(UUID(int=1)),
            score=Decimal("1.5"),
        )
    )
    many = await done(pgqueue.enqueue_many(hand.given, "t", [{}], delay="2 hours", tags=[], key=Colour.RED, score=2))
    await hand.commit()
    found = job(conn, job_id)
    assert (found.queue, found.priority, found.max_attempts) == ("q", -7, 3)
    assert (found.run_at, found.expires_at) == (at, at + timedelta(days=1))
    assert (found.headers, found.tags) == ({"trace": ["ü", None]}, ["a", 'b"c,{}'])
    assert value(conn, "select retention from pgqueue.jobs where id = %s", job_id) == timedelta(days=30)
    assert found.key == "00000000-0000-0000-0000-000000000001"
    other = job(conn, many[0])
    assert (other.key, other.run_at - other.created_at) == ("red", timedelta(hours=2))


# Errors


async def test_what_the_queue_refuses_is_the_same_error_everywhere(hand: Way) -> None:
    for options, error, names in REFUSED:
        with pytest.raises(error) as caught:
            await done(pgqueue.enqueue(hand.given, "t", **options))
        assert names in str(caught.value)
        await hand.rollback()
        await hand.begin()
    await done(pgqueue.enqueue(hand.given, "t", dedupe="d"))
    with pytest.raises(DuplicateJob) as duplicate:
        await done(pgqueue.enqueue(hand.given, "t", dedupe="d", on_conflict="raise"))
    assert duplicate.value.hint


async def test_what_the_state_of_the_queue_does_not_allow_is_the_queues_error(
    hand: Way, conn: psycopg.Connection
) -> None:
    with pytest.raises(pgqueue.PgQueueError, match="is closed") as refused:
        await done(pgqueue.enqueue(hand.given, "t", group_id=closed_group(conn)))
    assert type(refused.value) is pgqueue.PgQueueError
    assert (refused.value.hint or "").startswith("Enqueue all members before close_group()")


def closed_group(conn: psycopg.Connection) -> int:
    group_id: int = call(conn, "open_group")
    enqueue(conn, "member", group_id=group_id)
    call(conn, "close_group", group_id)
    return group_id


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"queue": ""}, InvalidArgument, "queue"),
    ({"priority": 1000}, InvalidArgument, "priority"),
    ({"delay": "soon"}, InvalidArgument, "soon"),
    ({"delay": True}, InvalidArgument, "delay is True"),
    ({"depends_on": [1]}, InvalidArgument, "depends_on"),
    ({"max_attempts": 2**70}, InvalidArgument, ""),
    ({"queue": "a\0b"}, InvalidArgument, ""),
]


async def test_a_database_without_the_queue_says_how_to_install_it(hand: Way, conn: psycopg.Connection) -> None:
    conn.execute("alter schema pgqueue rename to elsewhere")
    try:
        with pytest.raises(SchemaError, match="pgqueue migrate"):
            await done(pgqueue.enqueue(hand.given, "t"))
    finally:
        await hand.rollback()
        conn.execute("alter schema elsewhere rename to pgqueue")


async def test_an_error_that_is_not_the_queues_stays_the_drivers(hand: Way, conn: psycopg.Connection) -> None:
    conn.execute(
        "create function public.refuse() returns trigger language plpgsql as"
        " $$ begin raise exception 'not today' using errcode = 'P0001'; end $$"
    )
    conn.execute("create trigger refuse before insert on pgqueue.jobs for each row execute function public.refuse()")
    with pytest.raises(Exception, match="not today") as caught:
        await done(pgqueue.enqueue(hand.given, "t"))
    assert not isinstance(caught.value, pgqueue.PgQueueError)
    assert type(caught.value).__module__.partition(".")[0] == type(hand.given).__module__.partition(".")[0]


# Django, in a thread without an event loop


@pytest.mark.covers("G1")
def test_django_commits_and_rolls_back_with_atomic(database: Database, conn: psycopg.Connection) -> None:
    with django_on(database) as db:
        with db.transaction.atomic():
            first = pgqueue.enqueue(db.connection, "t", {"percent": "100 %s"})
            pgqueue.enqueue_many(db.connections["default"], "t", [{"n": 2}, {"n": 3}])
            _, refused = pgqueue.enqueue_batch(db.connection, [{"task": "t", "args": {"n": 4}}, {"task": ""}])
            assert jobs(conn) == []
        assert [args for _, args in jobs(conn)] == [{"percent": "100 %s"}, {"n": 2}, {"n": 3}, {"n": 4}]
        assert refused.error is not None
        assert refused.error["sqlstate"] == "22023"
        with suppress(Change), db.transaction.atomic():
            send.enqueue(db.connection, "never")
            raise Change
        with db.transaction.atomic():
            with suppress(Change), db.transaction.atomic():
                send.enqueue(db.connection, "never")
                raise Change
            send.using(delay=timedelta(hours=1), tags=["x"], headers={"a": 1}).enqueue(db.connection, "second")
        assert [args for _, args in jobs(conn)][4:] == [{"to": "second"}]
        # Without atomic, as the user's other statements: at once.
        pgqueue.enqueue(db.connection, "t", dedupe="d")
        assert len(jobs(conn)) == 6
        assert job(conn, first).task == "t"


def test_django_gets_the_errors_of_the_queue_and_may_go_on(database: Database, conn: psycopg.Connection) -> None:
    with django_on(database) as db:
        with db.transaction.atomic():
            with pytest.raises(InvalidArgument), db.transaction.atomic():
                pgqueue.enqueue(db.connection, "t", queue="")
            with pytest.raises(InvalidArgument), db.transaction.atomic():
                pgqueue.enqueue(db.connection, "t", queue="a\0b")
            pgqueue.enqueue(db.connection, "t", dedupe="d")
            with pytest.raises(DuplicateJob), db.transaction.atomic():
                pgqueue.enqueue(db.connection, "t", dedupe="d", on_conflict="raise")
            with pytest.raises(pgqueue.PgQueueError, match="is closed"), db.transaction.atomic():
                pgqueue.enqueue(db.connection, "t", group_id=closed_group(conn))
        assert [task for task, _ in jobs(conn)] == ["t", "@group", "member"]
        with pytest.raises(InvalidArgument, match="connection to sqlite"):
            pgqueue.enqueue(db.connections["other"], "t")


# Every other call that takes a connection


async def test_wait_and_the_rest_take_what_enqueue_takes(hand: Way, conn: psycopg.Connection) -> None:
    job_id = await done(pgqueue.enqueue(hand.given, "t", {"n": 1}))
    await hand.commit()
    held = reserve_one(conn)
    call(conn, "complete", held.id, held.reservation, result=Jsonb({"sum": "3"}))
    outcome = await done(pgqueue.wait(hand.given, job_id, timeout=60))
    assert (outcome.state, outcome.result, outcome.errors, outcome.attempts) == ("succeeded", {"sum": "3"}, [], 1)
    assert outcome.finished_at.tzinfo is not None
    assert not drivers.in_transaction(hand.given)
    await hand.begin()
    assert await done(pgqueue.emit_event(hand.given, "paid", {"cents": 5})) is True
    assert len(await done(pgqueue.chain(hand.given, send.job("a"), send.job("b")))) == 2
    await hand.commit()
    assert [args["to"] for _, args in jobs(conn)] == ["a", "b"]


async def test_waiting_for_a_job_of_the_connections_own_open_transaction_says_to_commit_first(
    hand: Way, conn: psycopg.Connection
) -> None:
    job_id = await done(pgqueue.enqueue(hand.given, "t"))
    with pytest.raises(NotCommitted, match=f"job {job_id} cannot end: the open transaction .*; commit first"):
        await done(pgqueue.wait(hand.given, job_id))
    # The transaction goes on.
    await done(pgqueue.enqueue(hand.given, "u"))
    await hand.commit()
    with pytest.raises(WaitTimeout, match="it is waiting"):
        await done(pgqueue.wait(hand.given, job_id, timeout=0))
    assert [task for task, _ in jobs(conn)] == ["t", "u"]


async def test_a_wait_in_a_transaction_leaves_it_open(hand: Way, conn: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    await done(pgqueue.enqueue(hand.given, "mine"))
    with pytest.raises(WaitTimeout):
        await done(pgqueue.wait(hand.given, job_id, timeout=0))
    await hand.rollback()
    assert [task for task, _ in jobs(conn)] == ["t"]


async def test_a_pool_or_engine_waits_and_loads_as_well(lends: Any, conn: psycopg.Connection) -> None:
    job_id = await done(pgqueue.enqueue(lends, "t"))
    # It lends one connection at the most: a leak would block the next call for ever.
    for _ in range(2):
        with pytest.raises(WaitTimeout):
            await done(pgqueue.wait(lends, job_id, timeout=0))
    assert await done(pgqueue.enqueue_copy(lends, [{"task": "u"}, {"task": "u"}])) == {"inserted": 2}
    assert [task for task, _ in jobs(conn)] == ["t", "u", "u"]


async def test_a_load_takes_any_connection_and_goes_with_its_transaction(hand: Way, conn: psycopg.Connection) -> None:
    at = datetime(2040, 1, 1, 12, tzinfo=UTC)
    given = [
        {
            "task": "t",
            "args": {"n": 1, "text": "a\t\n\\"},
            "run_at": at,
            "tags": ("x", 'b"c,{}'),
            "headers": {"h": [1]},
        },
        send.using(delay=timedelta(minutes=5), key="k", dedupe="d").job("b", copies=2),
        send.using(dedupe="d").job("c"),
        {"task": "t", "priority": 3, "score": Decimal("1.5"), "expires_in": "1 day"},
        *({"task": "many", "args": {"n": n}} for n in range(1500)),
    ]
    assert await done(pgqueue.enqueue_copy(hand.given, iter(given))) == {"inserted": 1503, "skipped": 1}
    assert jobs(conn) == []
    await hand.rollback()
    assert jobs(conn) == []
    await hand.begin()
    assert await done(pgqueue.enqueue_copy(hand.given, given[:4])) == {"inserted": 3, "skipped": 1}
    await hand.commit()
    found = [job(conn, job_id) for (job_id,) in conn.execute("select id from pgqueue.jobs order by id")]
    assert [each.task for each in found] == ["t", send.name, "t"]
    assert (found[0].args, found[0].run_at, found[0].tags) == ({"n": 1, "text": "a\t\n\\"}, at, ["x", 'b"c,{}'])
    assert (found[0].headers, found[1].key, found[1].args) == ({"h": [1]}, "k", {"to": "b", "copies": 2})
    assert found[1].run_at - found[1].created_at == timedelta(minutes=5)
    assert (found[2].priority, found[2].expires_at - found[2].run_at) == (3, timedelta(days=1))


async def test_a_load_that_was_given_up_leaves_nothing_to_the_next_one(hand: Way, conn: psycopg.Connection) -> None:
    wrong = [
        *({"task": "refused", "args": {"n": n}} for n in range(1000)),
        {"task": "refused", "args": {"x": object()}},
    ]
    with pytest.raises(InvalidArgument):
        await done(pgqueue.enqueue_copy(hand.given, wrong))
    # Of psycopg, COPY leaves a transaction in which nothing goes on.
    with pytest.raises((pgqueue.PgQueueError, psycopg.errors.InFailedSqlTransaction)):
        await done(pgqueue.enqueue_copy(hand.given, [{"task": "t"}]))
    await hand.rollback()
    await hand.begin()
    assert await done(pgqueue.enqueue_copy(hand.given, [{"task": "t"}])) == {"inserted": 1}
    await hand.commit()
    assert [task for task, _ in jobs(conn)] == ["t"]


async def test_a_score_and_an_hour_arrive_as_they_were_given(hand: Way, conn: psycopg.Connection) -> None:
    score = 1764280000.123457
    options: Any = {"score": score, "delay": timedelta(hours=1), "expires_in": 7200}
    await done(pgqueue.enqueue(hand.given, "t", **options))
    await done(pgqueue.enqueue_many(hand.given, "t", [{}], **options))
    await done(
        pgqueue.enqueue_batch(
            hand.given, [{"task": "t", **options}, {"task": "t", **options, "score": Decimal(repr(score))}]
        )
    )
    await done(pgqueue.enqueue_copy(hand.given, [{"task": "t", **options}]))
    await hand.commit()
    found = conn.execute("select score, run_at - created_at, expires_at - run_at from pgqueue.jobs").fetchall()
    assert found == [(Decimal(repr(score)), timedelta(hours=1), timedelta(hours=2))] * 5


async def test_a_wrong_job_of_a_load_is_refused_by_its_place_on_any_connection(hand: Way) -> None:
    with pytest.raises(InvalidArgument, match=r"2 of the load|line 2"):
        await done(pgqueue.enqueue_copy(hand.given, [{"task": "t"}, {"task": "t", "priority": 1000}]))
    await hand.rollback()
    await hand.begin()
    with pytest.raises(InvalidArgument, match=r"jobs 1 to 2 of the load|line 2"):
        await done(pgqueue.enqueue_copy(hand.given, [{"task": "t"}, {"task": "t", "delay": "soon"}]))


async def test_a_load_on_a_connection_that_commits_by_itself_has_a_transaction_of_its_own(
    database: Database, conn: psycopg.Connection
) -> None:
    asyncpg = pytest.importorskip("asyncpg")
    psycopg2 = pytest.importorskip("psycopg2")
    on = await asyncpg.connect(database.dsn)
    assert await pgqueue.enqueue_copy(on, [{"task": "a"}]) == {"inserted": 1}
    await on.close()
    own = psycopg2.connect(database.dsn)
    own.autocommit = True
    assert pgqueue.enqueue_copy(own, [{"task": "b"}]) == {"inserted": 1}
    own.close()
    assert [task for task, _ in jobs(conn)] == ["a", "b"]


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_load_on_an_automatic_connection_of_sqlalchemy_has_a_transaction_of_its_own(
    driver: str, database: Database, conn: psycopg.Connection
) -> None:
    orm = pytest.importorskip("sqlalchemy.orm")
    with engine(database, driver) as made:
        automatic = made.execution_options(isolation_level="AUTOCOMMIT")
        with automatic.connect() as connection:
            assert pgqueue.enqueue_copy(connection, [{"task": "a"}]) == {"inserted": 1}
            with pytest.raises(InvalidArgument, match="row 2 of the load"):
                pgqueue.enqueue_copy(connection, [{"task": "b"}, {"task": ""}])
            connection.exec_driver_sql("begin")
            assert pgqueue.enqueue_copy(connection, [{"task": "c"}]) == {"inserted": 1}
            connection.exec_driver_sql("rollback")
            assert pgqueue.enqueue_copy(connection, [{"task": "d"}]) == {"inserted": 1}
        with orm.Session(automatic) as session:
            assert pgqueue.enqueue_copy(session, [{"task": "e"}]) == {"inserted": 1}
    assert [task for task, _ in jobs(conn)] == ["a", "d", "e"]


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_a_load_on_an_automatic_async_connection_of_sqlalchemy_has_a_transaction_of_its_own(
    driver: str, database: Database, conn: psycopg.Connection
) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy.ext.asyncio")
    async with async_engine(database, driver) as made:
        automatic = made.execution_options(isolation_level="AUTOCOMMIT")
        async with automatic.connect() as connection:
            assert await pgqueue.enqueue_copy(connection, [{"task": "a"}]) == {"inserted": 1}
            with pytest.raises(InvalidArgument, match="row 2 of the load"):
                await pgqueue.enqueue_copy(connection, [{"task": "b"}, {"task": ""}])
        async with sqlalchemy.AsyncSession(automatic) as session:
            assert await pgqueue.enqueue_copy(session, [{"task": "c"}]) == {"inserted": 1}
    assert [task for task, _ in jobs(conn)] == ["a", "c"]


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_an_error_of_sqlalchemy_does_not_show_the_arguments_of_the_job(driver: str, database: Database) -> None:
    with engine(database, driver) as made, made.connect() as connection, pytest.raises(InvalidArgument) as refused:
        pgqueue.enqueue(connection, "t", {"password": "rosebud"}, queue="a\0b")
    assert "rosebud" not in str(refused.value)
    assert "[SQL" not in str(refused.value)


def test_an_error_of_pg8000_is_the_queues_as_well(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusal(Exception):
        """As pg8000 raises it: the fields of the server's message."""

    def refuse(*_: Any) -> None:
        fields = {"S": "ERROR", "C": "23505", "M": "a job has this dedupe key", "H": "give another"}
        raise sqlalchemy.exc.IntegrityError("select", {"password": "rosebud"}, Refusal(fields))

    sqlalchemy = pytest.importorskip("sqlalchemy")
    with engine(database, "psycopg") as made, made.connect() as connection:
        monkeypatch.setattr(type(connection), "exec_driver_sql", refuse)
        with pytest.raises(DuplicateJob, match="a job has this dedupe key; give another") as refused:
            pgqueue.enqueue(connection, "t", on_conflict="raise")
    assert "rosebud" not in str(refused.value)


def test_a_session_without_a_transaction_keeps_what_it_has_loaded_while_it_waits(
    database: Database, conn: psycopg.Connection
) -> None:
    sqlalchemy, orm = pytest.importorskip("sqlalchemy"), pytest.importorskip("sqlalchemy.orm")
    conn.execute("create table public.orders (id bigint primary key)")

    class Order(orm.declarative_base()):  # type: ignore[misc]
        __tablename__ = "orders"
        id = sqlalchemy.Column(sqlalchemy.BigInteger, primary_key=True)

    job_id = enqueue(conn)
    with engine(database, "psycopg") as made, orm.Session(made, expire_on_commit=False) as session:
        order = Order(id=1)
        session.add(order)
        session.commit()
        with pytest.raises(WaitTimeout):
            pgqueue.wait(session, job_id, timeout=0)
        assert not sqlalchemy.inspect(order).expired
        assert not session.in_transaction()


def test_django_waits_and_loads_and_goes_with_atomic(database: Database, conn: psycopg.Connection) -> None:
    with django_on(database) as db:
        with db.transaction.atomic():
            job_id = pgqueue.enqueue(db.connection, "t")
            with pytest.raises(NotCommitted), db.transaction.atomic():
                pgqueue.wait(db.connection, job_id)
            assert pgqueue.enqueue_copy(db.connection, [{"task": "u"}]) == {"inserted": 1}
            assert jobs(conn) == []
        with pytest.raises(WaitTimeout):
            pgqueue.wait(db.connection, job_id, timeout=0)
        assert pgqueue.enqueue_copy(db.connection, [{"task": "v"}]) == {"inserted": 1}
        assert [task for task, _ in jobs(conn)] == ["t", "u", "v"]
        held = reserve_one(conn)
        call(conn, "complete", held.id, held.reservation, result=Jsonb("text"))
        assert pgqueue.wait(db.connection, held.id, timeout=60).result == "text"
        clock = Clock(db.connection)
        with clock.freeze("2030-01-01 00:00+00") as frozen:
            assert clock.now() == frozen


async def test_a_handlers_own_transaction_takes_what_enqueue_takes(hand: Way, conn: psycopg.Connection) -> None:
    enqueue(conn, "t")
    held = reserve_one(conn)
    await hand.rollback()
    transaction = JobTransaction([(held.id, held.reservation)], None, hand.given, lambda stage: None)
    if drivers.is_async(hand.given):
        async with transaction as mine:
            await done(pgqueue.enqueue(mine, "next"))
    else:
        with transaction as mine:
            pgqueue.enqueue(mine, "next")
    assert [task for task, _ in jobs(conn)] == ["next"]


async def test_a_pool_or_engine_lends_a_handler_its_transaction(lends: Any, conn: psycopg.Connection) -> None:
    for attempt in (1, 2):
        enqueue(conn, "t")
        held = reserve_one(conn)
        transaction = JobTransaction([(held.id, held.reservation)], None, lends, lambda stage: None)
        if drivers.is_async(lends):
            async with transaction as mine:
                await done(pgqueue.enqueue(mine, "next"))
        else:
            with transaction as mine:
                pgqueue.enqueue(mine, "next")
        assert [task for task, _ in jobs(conn)] == ["next"] * attempt
        conn.execute("update pgqueue.jobs set run_at = 'infinity', ready_at = 'infinity'")


def test_a_handlers_transaction_on_djangos_connection(database: Database, conn: psycopg.Connection) -> None:
    enqueue(conn, "t")
    held = reserve_one(conn)
    pairs = [(held.id, held.reservation)]
    with django_on(database) as db:
        with suppress(Change), JobTransaction(pairs, None, db.connection, lambda stage: None):
            pgqueue.enqueue(db.connection, "never")
            raise Change
        with (
            db.transaction.atomic(),
            pytest.raises(InvalidArgument, match="open on this connection"),
            JobTransaction(pairs, None, db.connection, lambda stage: None),
        ):
            raise AssertionError
        with JobTransaction(pairs, None, db.connection, lambda stage: None):
            pgqueue.enqueue(db.connection, "next")
    assert [task for task, _ in jobs(conn)] == ["next"]


# SQLAlchemy's bridge between the two kinds


async def test_in_run_sync_a_session_enqueues_at_once(database: Database, conn: psycopg.Connection) -> None:
    asyncio_of = pytest.importorskip("sqlalchemy.ext.asyncio")
    async with async_engine(database, "asyncpg") as made, asyncio_of.AsyncSession(made) as session:
        job_id = await session.run_sync(lambda sync: send.using(delay="1 h").enqueue(sync, "a"))
        assert jobs(conn) == []
        await session.commit()
        assert job(conn, job_id).args == {"to": "a"}
        async with session.begin():
            with suppress(Change):
                async with session.begin_nested():
                    await send.enqueue(session, "never")
                    raise Change
            await send.enqueue(session, "b")
    assert [args for _, args in jobs(conn)] == [{"to": "a"}, {"to": "b"}]


# What is no connection


def test_an_object_that_is_no_connection_is_refused_with_the_accepted_kinds(database: Database) -> None:
    orm = pytest.importorskip("sqlalchemy.orm")
    with (
        engine(database, "psycopg") as made,
        pytest.raises(TypeError, match=r"not sqlalchemy.*sessionmaker.*select pgqueue.enqueue"),
    ):
        pgqueue.enqueue(orm.sessionmaker(made), "t")  # type: ignore[call-overload]


def test_another_database_of_sqlalchemy_is_refused() -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    with (
        sqlalchemy.create_engine("sqlite://").connect() as connection,
        pytest.raises(InvalidArgument, match="connection to sqlite"),
    ):
        pgqueue.enqueue(connection, "t")


def test_no_driver_is_imported_without_use() -> None:
    code = (
        "import sys, pgqueue, pgqueue.worker; print([name for name in"
        " ('sqlalchemy', 'asyncpg', 'django', 'psycopg2', 'pydantic', 'opentelemetry') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "[]"
