"""Waiting for a job to end, from Python."""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from pgqueue import wait
from pgqueue.errors import JobNotFound, NotCommitted, WaitTimeout, WrongIsolation
from tests.calls import call, enqueue, reserve_one
from tests.databases import Database


def end_soon(database: Database, job_id: int, how: str = "complete", **options: Any) -> threading.Thread:
    """End the job a moment after the caller has begun to wait for it."""

    def end() -> None:
        with psycopg.connect(database.dsn, autocommit=True) as conn:
            held = reserve_one(conn)
            assert held.id == job_id
            time.sleep(0.1)
            call(conn, how, job_id, held.reservation, **options)

    thread = threading.Thread(target=end)
    thread.start()
    return thread


@pytest.mark.parametrize("autocommit", [True, False])
def test_wait_returns_how_a_job_ended_and_leaves_no_transaction_open(
    database: Database, conn: psycopg.Connection, autocommit: bool
) -> None:
    job_id = enqueue(conn)
    mine = database.connect(autocommit=autocommit, row_factory=dict_row)
    thread = end_soon(database, job_id, result=Jsonb({"n": 1}))
    outcome = wait(mine, job_id, timeout=60)
    thread.join()
    assert (outcome.job_id, outcome.state, outcome.result, outcome.errors) == (job_id, "succeeded", {"n": 1}, [])
    assert (outcome.succeeded, outcome.attempts) == (True, 1)
    assert mine.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


async def test_wait_on_an_async_connection_returns_an_awaitable(database: Database, conn: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    mine = await database.connect_async(autocommit=False)
    thread = end_soon(database, job_id, "fail", retry=False, error=Jsonb({"class": "E", "message": "no"}))
    outcome = await wait(mine, job_id, timeout=60)
    thread.join()
    assert (outcome.state, outcome.succeeded, outcome.result) == ("dead", False, None)
    assert [error["class"] for error in outcome.errors] == ["E"]
    assert mine.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_wait_says_what_state_a_job_is_in_when_time_is_over(conn: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    began = time.monotonic()
    with pytest.raises(WaitTimeout, match=f"job {job_id} has not ended within 0.1 s; it is waiting") as error:
        wait(conn, job_id, timeout=0.1)
    assert isinstance(error.value, TimeoutError)
    assert time.monotonic() - began >= 0.1
    with pytest.raises(WaitTimeout):
        wait(conn, job_id, timeout=0)


def test_wait_for_a_job_that_is_not_there_or_leaves_no_row_says_so(
    database: Database, conn: psycopg.Connection
) -> None:
    with pytest.raises(JobNotFound, match="there is no job 99"):
        wait(conn, 99, timeout=5)
    job_id = enqueue(conn, retention="0")
    thread = end_soon(database, job_id)
    with pytest.raises(JobNotFound, match="is gone"):
        wait(conn, job_id, timeout=60)
    thread.join()


def test_wait_in_a_transaction_that_would_never_see_the_end_is_refused(
    database: Database, conn: psycopg.Connection
) -> None:
    job_id = enqueue(conn)
    with database.connect(autocommit=False) as mine:
        mine.execute("set transaction isolation level repeatable read")
        with pytest.raises(WrongIsolation, match="never see"):
            wait(mine, job_id, timeout=1)
        mine.rollback()
        mine.execute("select 1")
        thread = end_soon(database, job_id)
        assert wait(mine, job_id, timeout=60).succeeded
        thread.join()
    with pytest.raises(TypeError, match="Connection"):
        wait(object(), job_id)  # type: ignore[call-overload]


def test_an_enqueue_in_a_savepoint_of_the_open_transaction_counts_as_not_committed(
    database: Database, conn: psycopg.Connection
) -> None:
    committed = enqueue(conn)
    with database.connect(autocommit=False) as mine:
        mine.execute("create temporary table written ()")
        with mine.transaction():
            job_id = enqueue(mine)
        with mine.transaction():
            mine.execute("insert into written default values")
        with pytest.raises(NotCommitted):
            wait(mine, job_id)
        # Of another session, before this transaction and in its course.
        for other in (committed, enqueue(conn)):
            with pytest.raises(WaitTimeout, match="it is waiting"):
                wait(mine, other, timeout=0)
        mine.rollback()
        mine.execute("select pgqueue.cancel(%s)", [committed])
        assert wait(mine, committed).state == "cancelled"
        mine.execute("select pgqueue.retry(%s)", [committed])
        with pytest.raises(NotCommitted):
            wait(mine, committed)
