"""What an application registered on its connection, or for all, changes nothing that our calls send or read."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg.adapt import Loader
from psycopg.rows import tuple_row
from psycopg.types.datetime import TimedeltaDumper
from psycopg.types.json import set_json_loads
from psycopg.types.string import ByteaLoader, StrDumper, TextLoader

import pgqueue
from pgqueue.db.call import Cursor
from pgqueue.db.results import BatchResult, Enqueued
from pgqueue.errors import InvalidArgument
from tests.calls import job
from tests.databases import Database


class Odd(Loader):
    """Reads any value as a list."""

    def load(self, data: Any) -> Any:
        return [bytes(data)]


class OddText(StrDumper):
    def dump(self, obj: str) -> bytes:
        return b"odd"


class OddInterval(TimedeltaDumper):
    def dump(self, obj: timedelta) -> bytes:
        return b"1 year"


def register(adapters: Any) -> None:
    for kind in ("int8", "text", "jsonb", "bool", "timestamptz"):
        adapters.register_loader(kind, Odd)
    adapters.register_dumper(str, OddText)
    adapters.register_dumper(timedelta, OddInterval)


def change(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], what: str) -> None:
    match what:
        case "adapters":
            register(conn.adapters)
        case "json":
            set_json_loads(lambda _: "odd", conn)
        case "SQL_ASCII" | "LATIN1":
            assert (
                conn.pgconn.exec_(f"set client_encoding = {what}".encode()).status == psycopg.pq.ExecStatus.COMMAND_OK
            )
        case _:
            async_ = "Async" if isinstance(conn, psycopg.AsyncConnection) else ""
            conn.cursor_factory = getattr(psycopg, async_ + what)


KINDS = ["RawCursor", "ClientCursor", "adapters", "json", "SQL_ASCII", "LATIN1"]
BATCH: list[dict[str, Any]] = [{"task": "t", "dedupe": "d"}, {"task": ""}]


@pytest.mark.parametrize("what", KINDS)
def test_a_producer_gets_the_same_from_any_connection(
    database: Database, conn: psycopg.Connection[Any], what: str
) -> None:
    with psycopg.connect(database.dsn, autocommit=True) as odd:
        change(odd, what)
        job_id = pgqueue.enqueue(odd, "t", {"name": "ä"}, dedupe="d", delay=timedelta(days=1), tags=["x"])
        row = job(conn, job_id)
        assert (type(job_id), row.args, row.tags, row.run_at - row.created_at) == (
            int, {"name": "ä"}, ["x"], timedelta(days=1),
        )  # fmt: skip
        assert pgqueue.enqueue_outcome(odd, "t", dedupe="d") == Enqueued(job_id, "skipped")
        skipped, refused = pgqueue.enqueue_batch(odd, BATCH)
        assert skipped == BatchResult(job_id, "skipped", None)
        assert refused.error is not None
        assert refused.error["sqlstate"] == "22023"
        assert pgqueue.enqueue_copy(odd, [{"task": "t", "args": {"name": "ä"}, "tags": ["x"]}]) == {"inserted": 1}
        assert pgqueue.emit_event(odd, "e") is True


@pytest.mark.parametrize("what", KINDS)
async def test_so_does_one_on_an_async_connection(database: Database, what: str) -> None:
    async with await psycopg.AsyncConnection.connect(database.dsn, autocommit=True) as odd:
        change(odd, what)
        job_id = await pgqueue.enqueue(odd, "t", {"name": "ä"}, dedupe="d")
        assert await pgqueue.enqueue_outcome(odd, "t", dedupe="d") == Enqueued(job_id, "skipped")
        assert await pgqueue.enqueue_copy(odd, [{"task": "t"}]) == {"inserted": 1}


def test_what_is_registered_for_all_connections_before_our_import_does_not_matter(database: Database) -> None:
    script = """
import sys, psycopg
from psycopg.types.json import set_json_loads
from psycopg.types.string import TextLoader
for kind in ("int8", "text", "jsonb", "bool"):
    psycopg.adapters.register_loader(kind, TextLoader)
set_json_loads(lambda _: "odd")
import pgqueue
with psycopg.connect(sys.argv[1], autocommit=True) as conn:
    refused = pgqueue.enqueue_batch(conn, [{"task": ""}])[0]
    print(pgqueue.enqueue(conn, "t", dedupe="d").real > 0, refused.error["sqlstate"])
"""
    ran = subprocess.run([sys.executable, "-c", script, database.dsn], capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("True 22023\n", "")


def test_ids_are_numbers_whatever_codec_another_driver_has(database: Database) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine(database.dsn.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        adapters = connection.connection.driver_connection.adapters
        for kind in ("int8", "text"):
            adapters.register_loader(kind, ByteaLoader if kind == "text" else TextLoader)
        job_id = pgqueue.enqueue(connection, "t", dedupe="d")
        assert isinstance(job_id, int)
        assert pgqueue.enqueue_outcome(connection, "t", dedupe="d") == Enqueued(job_id, "skipped")
        connection.exec_driver_sql("set client_encoding = 'LATIN1'")
        with pytest.raises(InvalidArgument) as refused:
            pgqueue.enqueue(connection, "t", {"price": "1 €"})
    assert "client_encoding" in str(refused.value.hint)
    engine.dispose()


async def test_times_and_numbers_arrive_whatever_codecs_asyncpg_has(
    database: Database, conn: psycopg.Connection[Any]
) -> None:
    asyncpg = pytest.importorskip("asyncpg")
    connection = await asyncpg.connect(database.dsn)
    for kind in ("interval", "numeric", "timestamptz", "date", "uuid", "jsonb"):
        await connection.set_type_codec(kind, schema="pg_catalog", encoder=lambda _: "odd", decoder=lambda _: "odd")
    at = datetime(2040, 1, 1, 12, 0, 0, 1, tzinfo=UTC)
    first = await pgqueue.enqueue(connection, "t", {"n": 1}, delay=timedelta(days=1), key="k", score=Decimal("1.25"))
    second = await pgqueue.enqueue(connection, "t", run_at=at, timeout=1.5)
    await connection.close()
    row, other = job(conn, first), job(conn, second)
    assert (row.args, row.run_at - row.created_at, row.score) == ({"n": 1}, timedelta(days=1), Decimal("1.25"))
    assert (other.run_at, other.timeout) == (at, timedelta(seconds=1.5))


@pytest.mark.parametrize(("text", "hint"), [("1 €", "client_encoding"), ("\ud800", "surrogates")])
def test_a_text_that_cannot_be_sent_is_refused_with_the_way_out(database: Database, text: str, hint: str) -> None:
    with psycopg.connect(database.dsn, autocommit=True) as conn:
        if "€" in text:
            conn.execute("set client_encoding = 'LATIN1'")
        for send in (
            lambda: pgqueue.enqueue(conn, "t", {}, key=text),
            lambda: pgqueue.enqueue_copy(conn, [{"task": "t", "key": text}]),
        ):
            with pytest.raises(InvalidArgument) as refused:
                send()
            assert hint in str(refused.value.hint)


def test_our_cursors_read_every_type_as_those_of_psycopg_do(conn: psycopg.Connection[Any]) -> None:
    query = b"select array[1, 2]::bigint[], array['a'], now(), '[1]'::jsonb, interval '1 day', 1.5::numeric, true"
    for binary in (False, True):
        found = Cursor(conn, row_factory=tuple_row).execute(query, binary=binary).fetchone()
        expected = conn.cursor(row_factory=tuple_row).execute(query, binary=binary).fetchone()
        assert found is not None
        assert expected is not None
        assert [type(each) for each in found] == [type(each) for each in expected]
        assert found[:2] == ([1, 2], ["a"])
