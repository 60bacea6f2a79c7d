"""docs/operate/backup.md on logical replication, followed: a switch to a new database, and a feed of the data alone."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgqueue import embedded
from pgqueue.schema.migrate import migrate
from tests.calls import call, column, enqueue, enqueue_many, ids, maintain, pairs, reserve, value
from tests.docs.pages import blocks
from tests.facts import wait_until

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not embedded.available(), reason="the embedded server is not installed"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the DSN of a server with logical decoding."""
    directory = tmp_path_factory.mktemp("logical")
    try:
        yield embedded.start(directory, durable=False, options={"wal_level": "logical"})
    finally:
        embedded.stop(directory)


@pytest.fixture
def old(server: str) -> Iterator[psycopg.Connection]:
    yield from _database(server, "old")


@pytest.fixture
def new(server: str) -> Iterator[psycopg.Connection]:
    yield from _database(server, "new")


def _database(server: str, name: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        # A commit is decoded once it is flushed, which a server that is not durable leaves for later.
        flushed = make_conninfo(server, dbname=name, options="-c synchronous_commit=on")
        with psycopg.connect(flushed, autocommit=True) as conn:
            yield conn
        admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def setting_of_sequences(conn: psycopg.Connection) -> list[str]:
    """The commands that the page's query prints."""
    [query] = [block.text for block in blocks("docs/operate/backup.md") if "pg_sequences" in block.text]
    return [row[0] for row in conn.execute(query.encode())]


def test_after_a_switch_every_job_is_there_once_and_new_ids_are_new(
    old: psycopg.Connection, new: psycopg.Connection
) -> None:
    migrate(old.info.dsn)
    old.execute("create publication everything for all tables")
    before = enqueue_many(old, 20)
    keyed = enqueue_many(old, 3, "keyed", key="k")
    column(old, "complete_many", *pairs(reserve(old, 5)))
    program = embedded.binaries()
    definitions = subprocess.run(
        [program / "pg_dump", "--schema-only", "--no-publications", "-d", old.info.dsn], check=True, capture_output=True
    ).stdout.decode()
    # What psql reads and no server does.
    new.execute(re.sub(r"^\\.*$", "", definitions, flags=re.MULTILINE).encode())
    new.execute("reset all")
    # Of one server, a subscription cannot make its slot.
    old.execute("select pg_create_logical_replication_slot('switch', 'pgoutput')")
    new.execute(
        sql.SQL(
            "create subscription switch connection {} publication everything"
            " with (create_slot = false, slot_name = 'switch')"
        ).format(sql.Literal(old.info.dsn))
    )
    wait_until(lambda: value(new, "select bool_and(srsubstate = 'r') from pg_subscription_rel"), timeout=120)

    # The old one goes on meanwhile.
    after = enqueue_many(old, 20)
    column(old, "complete_many", *pairs(reserve(old, 5)))
    maintain(old)
    held = ids(reserve(old, 2, lease="1 s"))
    # Clients are stopped; the subscription catches up.
    at = value(old, "select pg_current_wal_lsn()")
    wait_until(
        lambda: value(old, "select confirmed_flush_lsn >= %s from pg_replication_slots where slot_name = 'switch'", at),
        timeout=60,
    )
    for command in setting_of_sequences(old):
        new.execute(command.encode())
    new.execute("drop subscription switch")

    live = "select array_agg(id order by id) from pgqueue.jobs"
    assert value(new, live) == value(old, live)
    assert value(new, "select count(*) from pgqueue.history") == 10
    added = enqueue(new)
    assert added > max(*before, *keyed, *after)
    claimed: list[int] = []

    def all_claimed() -> bool:
        maintain(new)
        while rows := reserve(new, 50):
            claimed.extend(ids(rows))
            column(new, "complete_many", *pairs(rows))
        return bool(value(new, "select count(*) = 0 from pgqueue.jobs"))

    # Those that were held come back when their leases lapse.
    wait_until(all_claimed, timeout=60)
    assert sorted(claimed) == sorted({*value(old, live), added})
    assert set(held) <= set(claimed)
    assert [job_id for job_id in claimed if job_id in keyed] == keyed


def test_what_follows_the_data_of_an_application_sees_no_change_of_the_queue(old: psycopg.Connection) -> None:
    migrate(old.info.dsn)
    if old.info.server_version < 150000:
        pytest.skip("a publication of a schema came with PostgreSQL 15")
    old.execute("create table public.receipts (order_id bigint primary key)")
    [create] = [
        block.text for block in blocks("docs/operate/backup.md") if block.text.startswith("create publication app")
    ]
    old.execute(create.encode())
    old.execute("select pg_create_logical_replication_slot('cdc', 'pgoutput')")
    enqueue(old, "send_receipt", {"order_id": 17})
    with old.transaction():
        [held] = reserve(old)
        old.execute("insert into receipts values (17)")
        assert call(old, "complete", held.id, held.reservation)
    maintain(old)
    rows = old.execute(
        "select data from pg_logical_slot_get_binary_changes('cdc', null, null, 'proto_version', '1',"
        " 'publication_names', 'app')"
    ).fetchall()
    # pgoutput names each relation before its first change.
    relations = [bytes(row[0]) for row in rows if bytes(row[0]).startswith(b"R")]
    assert len(relations) == 1
    assert b"receipts" in relations[0]
    assert sum(bytes(row[0]).startswith(b"I") for row in rows) == 1
    old.execute("select pg_drop_replication_slot('cdc')")
