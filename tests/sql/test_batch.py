"""enqueue_batch: jobs with options of their own, an answer for each, and no job spoiled by another."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.calls import call, column, enqueue, ids, job, maintain, reserve, table, value
from tests.databases import Database


def batch(conn: psycopg.Connection, *jobs: Any) -> list[Any]:
    rows = table(conn, "enqueue_batch", [None if each is None else Jsonb(each) for each in jobs])
    assert [row.ord for row in rows] == list(range(1, len(jobs) + 1))
    for row in rows:
        assert (row.outcome == "error") == (row.job_id is None) == (row.error is not None)
    return rows


def outcomes(rows: list[Any]) -> list[str]:
    return [row.outcome for row in rows]


def test_plain_jobs_are_inserted_in_the_order_given_by_one_statement(conn: psycopg.Connection) -> None:
    rows = batch(conn, *({"task": f"t{n % 3}", "args": {"n": n}, "queue": f"q{n % 2}"} for n in range(100)))
    assert outcomes(rows) == ["inserted"] * 100
    assert [row.job_id for row in rows] == sorted({row.job_id for row in rows})
    found = job(conn, rows[50].job_id)
    assert (found.task, found.args, found.queue) == ("t2", {"n": 50}, "q0")
    assert value(conn, "select count(distinct (xmin::text, cmin::text)) from pgqueue.jobs") == 1
    assert len(reserve(conn, 100)) == 100


def test_each_job_has_every_option_of_its_own(conn: psycopg.Connection) -> None:
    rows = batch(
        conn,
        {"task": "a"},
        {
            "task": "b", "args": {"x": [1, None]}, "queue": "q", "priority": -7, "delay": "1 h", "expires_in": "1 day",
            "max_attempts": 3, "key": "k", "score": 1.5, "headers": {"h": 1}, "tags": ["x", "y"], "retention": "1 h",
            "limit_key": "l", "dedupe": "d", "dedupe_for": "1 h", "on_conflict": "skip",
        },
        {
            "task": "c", "run_at": "2040-01-01 12:00+03",
            "retry_policy": "fixed", "retry_delay": "5 s", "retry_cap": "1 min", "retry_queue": "r",
        },
        {"task": "d", "args": None, "queue": None, "delay": None, "dedupe": None},
    )  # fmt: skip
    assert outcomes(rows) == ["inserted"] * 4
    a, b, c, d = (job(conn, row.job_id) for row in rows)
    assert (a.queue, a.args, a.priority, a.run_at) == ("default", {}, 0, a.created_at)
    assert (b.args, b.queue, b.priority, b.key, float(b.score)) == ({"x": [1, None]}, "q", -7, "k", 1.5)
    assert (b.run_at - b.created_at, b.expires_at - b.run_at) == (timedelta(hours=1), timedelta(days=1))
    assert (b.max_attempts, b.headers, b.tags, b.limit_key, b.dedupe) == (3, {"h": 1}, ["x", "y"], "l", "d")
    assert c.run_at.isoformat()[:16] == "2040-01-01T09:00"
    assert c.retry == {"policy": "fixed", "delay": 5, "cap": 60, "queue": "r"}
    assert (d.args, d.queue) == ({}, "default")


def test_task_and_queue_fill_in_what_a_job_leaves_out(conn: psycopg.Connection) -> None:
    call(conn, "declare_task", "mail", queue="mails", expires_in="1 h")
    conn.execute("insert into pgqueue.queues (name, priority) values ('mails', 9)")
    rows = batch(conn, {"task": "mail"}, {"task": "mail", "tags": ["x"]}, {"task": "mail", "priority": 1})
    for row, priority in zip(rows, (9, 9, 1), strict=True):
        found = job(conn, row.job_id)
        assert (found.queue, found.priority, found.expires_at - found.run_at) == ("mails", priority, timedelta(hours=1))


BAD: list[tuple[Any, str, str]] = [
    (None, "22023", "object"),
    (5, "22023", "object"),
    ([], "22023", "object"),
    ({}, "22023", "task"),
    ({"task": ""}, "22023", "task"),
    ({"task": 5}, "22023", "task"),
    ({"task": "x" * 129}, "22023", "task"),
    ({"task": "t", "argz": {}}, "22023", "option"),
    ({"task": "t", "id": 5}, "22023", "option"),
    ({"task": "t", "state": "executing"}, "22023", "option"),
    ({"task": "t", "args": []}, "22023", "args"),
    ({"task": "t", "args": {"x": "a" * 1048576}}, "22023", "args"),
    ({"task": "t", "queue": ""}, "22023", "queue"),
    ({"task": "t", "queue": 5}, "22023", "queue"),
    ({"task": "t", "queue": "x" * 129}, "22023", "queue"),
    ({"task": "t", "priority": 101}, "22023", "priority"),
    ({"task": "t", "priority": "5"}, "22023", "priority"),
    ({"task": "t", "priority": 1.5}, "22P02", "whole numbers"),
    ({"task": "t", "priority": 10**12}, "22003", "whole numbers"),
    ({"task": "t", "delay": 5}, "22023", "delay"),
    ({"task": "t", "delay": "soon"}, "22007", "intervals"),
    ({"task": "t", "run_at": "yesterday noon, I think"}, "22007", "times"),
    ({"task": "t", "run_at": "infinity"}, "22023", "run_at"),
    ({"task": "t", "key": ""}, "22023", "key"),
    ({"task": "t", "key": "x" * 513}, "22023", "key"),
    ({"task": "t", "limit_key": ""}, "22023", "limit_key"),
    ({"task": "t", "dedupe": ""}, "22023", "dedupe"),
    ({"task": "t", "dedupe_for": "1 h"}, "22023", "dedupe"),
    ({"task": "t", "dedupe": "d", "on_conflict": "ignore"}, "22023", "on_conflict"),
    ({"task": "t", "tags": "x"}, "22023", "tags"),
    ({"task": "t", "timeout": "0 s"}, "22023", "timeout"),
    ({"task": "t", "depends_on": [1]}, "22023", "depends_on"),
    ({"task": "t", "run_if": "failed"}, "22023", "depends_on"),
    ({"task": "sums"}, "22023", "key"),
]


def test_a_bad_job_is_an_outcome_and_spoils_none_of_the_others(conn: psycopg.Connection) -> None:
    conn.execute("insert into pgqueue.tasks (name, accumulate) values ('sums', true)")
    jobs = []
    for bad, _, _ in BAD:
        jobs += [bad, {"task": "good"}, {"task": "good", "dedupe": f"d{len(jobs)}"}, {"task": "sums", "key": "k"}]
    rows = batch(conn, *jobs)
    for (bad, sqlstate, hint), row in zip(BAD, rows[::4], strict=True):
        assert (row.outcome, row.error and row.error["sqlstate"]) == ("error", sqlstate), (bad, row)
        assert hint in row.error["hint"], (bad, row.error)
        assert row.error["message"]
    assert set(outcomes(rows[1::4] + rows[2::4] + rows[3::4])) == {"inserted"}
    assert value(conn, "select count(*) from pgqueue.jobs") == 3 * len(BAD)


def test_dedupe_keys_within_a_batch_and_before_it_have_their_outcomes(conn: psycopg.Connection) -> None:
    stands = enqueue(conn, dedupe="z", delay="1 h")
    rows = batch(
        conn,
        {"task": "t", "dedupe": "z", "args": {"a": 1}, "on_conflict": "merge"},
        {"task": "t", "dedupe": "m"},
        {"task": "t"},
        {"task": "t", "dedupe": "a", "delay": "1 h"},
        {"task": "t", "dedupe": "m", "on_conflict": "raise"},
        {"task": "t", "dedupe": "a", "args": {"b": 1}, "on_conflict": "replace"},
        {"task": "t", "dedupe": "z", "on_conflict": "debounce", "delay": "2 h"},
        {"task": "other", "dedupe": "z"},
        {"task": "t", "dedupe": "m"},
    )
    assert outcomes(rows) == [
        "merged", "inserted", "inserted", "inserted", "error", "replaced", "debounced", "inserted", "skipped"
    ]  # fmt: skip
    assert (rows[0].job_id, rows[6].job_id) == (stands, stands)
    assert (rows[4].error["sqlstate"], str(rows[1].job_id) in rows[4].error["detail"]) == ("23505", True)
    assert (rows[5].job_id, rows[8].job_id) == (rows[3].job_id, rows[1].job_id)
    assert job(conn, stands).args == {"a": 1}
    assert job(conn, rows[3].job_id).args == {"b": 1}


def test_a_refusal_among_deduped_jobs_spoils_none_of_them(conn: psycopg.Connection) -> None:
    stands = enqueue(conn, "t", {"a": "x" * 600_000}, dedupe="m")
    rows = batch(
        conn,
        {"task": "t", "dedupe": "a"},
        {"task": "t", "dedupe": "m", "on_conflict": "merge", "args": {"b": "x" * 600_000}},
        {"task": "t", "dedupe": "z"},
        {"task": "t", "dedupe": "a"},
    )
    assert outcomes(rows) == ["inserted", "error", "inserted", "skipped"]
    assert rows[1].error["message"].startswith("args must be at most")
    assert set(job(conn, stands).args) == {"a"}
    assert rows[0].job_id == rows[3].job_id


def test_jobs_of_a_key_run_in_the_order_given_whatever_their_dedupe_keys(conn: psycopg.Connection) -> None:
    rows = batch(conn, *({"task": "t", "key": "k", "dedupe": dedupe} for dedupe in "cab"))
    assert [row.job_id for row in rows] == sorted(row.job_id for row in rows)


def test_a_batch_of_none_does_nothing(conn: psycopg.Connection) -> None:
    assert batch(conn) == []


def test_a_job_whose_dedupe_key_a_refused_one_had_is_refused_too(conn: psycopg.Connection) -> None:
    rows = batch(
        conn,
        {"task": "t", "ref": "r1", "dedupe": "r"},
        {"task": "t", "ref": "r2", "dedupe": "r", "on_conflict": "raise"},
        {"task": "t", "ref": "child", "dedupe": "k", "depends_on": ["r2"]},
        {"task": "t", "ref": "same", "dedupe": "k"},
        {"task": "t", "depends_on": ["same"]},
    )
    assert outcomes(rows) == ["inserted", "error", "error", "error", "error"]
    assert rows[3].error["message"] == "depends_on names a job of the batch that was refused"
    assert value(conn, "select count(*) from pgqueue.jobs") == 1
    assert value(conn, "select count(*) from pgqueue.dedupe_keys") == 1
    assert outcomes(batch(conn, {"task": "t", "dedupe": "k"})) == ["inserted"]


def test_where_all_or_none_are_wanted_a_refused_job_undoes_the_others(conn: psycopg.Connection) -> None:
    good, bad = Jsonb({"task": "t"}), Jsonb({"task": "t", "priority": 1000})
    rows = table(conn, "enqueue_all", [good, bad, good])
    assert [(row.ord, row.job_id, row.outcome) for row in rows] == [
        (1, None, "undone"),
        (2, None, "error"),
        (3, None, "undone"),
    ]
    assert [row.error is None for row in rows] == [True, False, True]
    assert value(conn, "select count(*) from pgqueue.jobs") == 0
    rows = table(conn, "enqueue_all", [good, good])
    assert outcomes(rows) == ["inserted"] * 2
    assert [row.job_id for row in rows] == ids(reserve(conn, 2))


def test_a_batch_is_rolled_back_with_the_callers_transaction(database: Database, conn: psycopg.Connection) -> None:
    own = database.connect(autocommit=False)
    batch(own, {"task": "t"}, {"task": "t", "dedupe": "d"})
    own.rollback()
    assert value(conn, "select count(*) from pgqueue.jobs") == 0
    assert batch(conn, {"task": "t", "dedupe": "d"})[0].outcome == "inserted"


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_batch_works_above_read_committed(database: Database, level: str) -> None:
    own = database.connect(autocommit=False)
    own.execute(f"set transaction isolation level {level}".encode())
    rows = batch(own, {"task": "t"}, {"task": "t", "dedupe": "d"}, {"task": "t", "dedupe": "d"}, {"task": 5})
    own.commit()
    assert outcomes(rows) == ["inserted", "inserted", "skipped", "error"]


def test_a_batch_wakes_each_queue_once(database: Database, conn: psycopg.Connection) -> None:
    listener = database.connect()
    for worker in ("a", "b"):
        call(conn, "hello", worker, [worker])
        [idle] = table(conn, "idle", worker, [worker])
        listener.execute(f'listen "{idle.channel}"'.encode())
    batch(conn, *({"task": "t", "queue": "ab"[n % 2], "priority": n % 5} for n in range(20)))
    listener.execute("select 1")
    assert len(list(listener.notifies(timeout=0))) == 2


def test_a_batch_registers_the_lanes_that_it_needs(conn: psycopg.Connection) -> None:
    batch(conn, {"task": "t", "priority": 3}, {"task": "t", "queue": "q"}, {"task": "t", "priority": 3})
    lanes = conn.execute("select queue, priority from pgqueue.lanes order by 1, 2").fetchall()
    assert lanes == [("default", 3), ("q", 0)]
    assert maintain(conn).ran
    assert len(ids(reserve(conn, 5))) == 3


def test_a_large_batch_of_plain_jobs_writes_few_subtransactions(conn: psycopg.Connection) -> None:
    jobs = [Jsonb({"task": "t"} if n % 2 else {"task": "t", "delay": "1 h", "dedupe": str(n)}) for n in range(300)]
    column(conn, "enqueue_batch", jobs)
    # The transaction's own and that of the block round the deduped ones.
    assert value(conn, "select count(distinct xmin::text) from pgqueue.jobs") == 2
