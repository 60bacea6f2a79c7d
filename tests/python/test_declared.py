"""What the code declares for a task holds from its first enqueue on, before any worker has written it down."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import pgqueue
from pgqueue import App
from pgqueue.errors import InvalidArgument
from tests.databases import Database

app = App()


@app.task(name="mail.send", queue="mail", priority=7, expires_in=timedelta(hours=1, milliseconds=1))
def send(to: str) -> None: ...


@app.task(name="mail.collect", queue="mail", accumulate=True)
def collect(payloads: dict[str, list[dict[str, Any]]]) -> None: ...


Enqueue = Callable[[psycopg.Connection], object]

WAYS: dict[str, Enqueue] = {
    "task.enqueue": lambda conn: send.enqueue(conn, "a@b.c"),
    "task.enqueue_many": lambda conn: send.enqueue_many(conn, [{"to": "a@b.c"}]),
    "using(...).enqueue_outcome": lambda conn: send.using(dedupe="a").enqueue_outcome(conn, "a@b.c"),
    "using(...).enqueue with more options": lambda conn: send.using(tags=["x"]).enqueue(conn, "a@b.c"),
    "enqueue": lambda conn: pgqueue.enqueue(conn, send, {"to": "a@b.c"}),
    "enqueue_batch": lambda conn: pgqueue.enqueue_batch(conn, [{"task": send, "args": {"to": "a@b.c"}}]),
    "enqueue_batch of one with a dedupe key": lambda conn: pgqueue.enqueue_batch(
        conn, [send.using(dedupe="b").job("a")]
    ),
    "enqueue_copy": lambda conn: pgqueue.enqueue_copy(conn, [{"task": send, "args": {"to": "a@b.c"}}]),
    "enqueue_copy of one with tags": lambda conn: pgqueue.enqueue_copy(conn, [{"task": send, "tags": ["x"]}]),
}


def only(conn: psycopg.Connection) -> tuple[Any, ...]:
    """The queue of the only job, its priority, and how long it may wait."""
    [row] = conn.execute("select queue, priority, expires_at - run_at from pgqueue.jobs").fetchall()
    return tuple(row)


HOUR = timedelta(hours=1, milliseconds=1)


@pytest.mark.parametrize("way", WAYS)
def test_a_job_gets_what_its_task_declares_before_any_worker_has_started(way: str, conn: psycopg.Connection) -> None:
    WAYS[way](conn)
    assert only(conn) == ("mail", 7, HOUR)


@pytest.mark.parametrize("way", WAYS)
def test_an_operator_overrides_what_a_producer_declares(way: str, conn: psycopg.Connection) -> None:
    conn.execute("select pgqueue.configure_task('mail.send', queue => 'slow', priority => -5, expires_in => '1 day')")
    WAYS[way](conn)
    assert only(conn) == ("slow", -5, timedelta(days=1))


@pytest.mark.parametrize("way", WAYS)
def test_what_a_worker_has_declared_holds_over_what_a_producer_declares(way: str, conn: psycopg.Connection) -> None:
    conn.execute("select pgqueue.declare_task('mail.send', queue => 'post', priority => 1)")
    WAYS[way](conn)
    assert only(conn) == ("post", 1, HOUR)


def test_the_options_of_a_job_override_what_its_task_declares(conn: psycopg.Connection) -> None:
    send.using(queue="now", priority=0, expires_in="5 min").enqueue(conn, "a@b.c")
    assert only(conn) == ("now", 0, timedelta(minutes=5))
    conn.execute("delete from pgqueue.jobs")
    pgqueue.enqueue_batch(conn, [send.using(queue="now", priority=0, expires_in="5 min").job("a@b.c")])
    assert only(conn) == ("now", 0, timedelta(minutes=5))


def test_a_declared_priority_goes_before_that_of_the_queue(conn: psycopg.Connection) -> None:
    conn.execute("select pgqueue.configure_queue('mail', priority => 50)")
    send.enqueue(conn, "a@b.c")
    collect.using(key="k").enqueue(conn, to="a@b.c")
    rows = conn.execute("select task, queue, priority from pgqueue.jobs order by id").fetchall()
    assert rows == [("mail.send", "mail", 7), ("mail.collect", "mail", 50)]


def test_an_accumulating_task_is_refused_without_a_key_before_any_worker_has_started(conn: psycopg.Connection) -> None:
    for refused in (
        lambda: collect.enqueue(conn, to="a"),
        lambda: collect.enqueue_many(conn, [{"to": "a"}]),
        lambda: collect.using(dedupe="d").enqueue(conn, to="a"),
        lambda: pgqueue.enqueue_copy(conn, [{"task": collect}]),
    ):
        with pytest.raises(InvalidArgument, match="key"):
            refused()
    [result] = pgqueue.enqueue_batch(conn, [{"task": collect}])
    assert result.error is not None
    assert "key" in result.error["message"]
    [result] = pgqueue.enqueue_batch(conn, [collect.using(key="k").job(to="a")])
    assert result.outcome == "inserted"


def test_enqueue_middleware_sees_only_what_the_caller_said(conn: psycopg.Connection) -> None:
    own = App()
    seen: list[dict[str, Any]] = []

    @own.task(name="t", queue="mail", priority=3)
    def task() -> None: ...

    @own.enqueue_middleware
    def watch(jobs: Any, call_next: Any) -> Any:
        seen.append(dict(jobs.options))
        jobs.options["queue"] = "other"
        return call_next(jobs)

    task.using(tags=["x"]).enqueue(conn)
    assert seen == [{"tags": ["x"]}]
    assert only(conn)[:2] == ("other", 3)


async def test_it_holds_on_async_connections(database: Database, conn: psycopg.Connection) -> None:
    own = await database.connect_async()
    await send.enqueue(own, "a@b.c")
    assert only(conn) == ("mail", 7, HOUR)


@pytest.mark.parametrize(
    "declared",
    ['{"queue": 5}', '{"queue": ""}', '{"priority": 101}', '{"expires_in": "0"}', '{"colour": "red"}', '["mail"]', "5"],
)
def test_what_no_code_can_declare_is_refused(declared: str, conn: psycopg.Connection) -> None:
    for statement in (
        "select pgqueue.enqueue('t', declared => %s)",
        "select pgqueue.enqueue('t', declared => %s, tags => '{x}')",
        "select pgqueue.enqueue_many('t', '{{}}'::jsonb[], declared => %s)",
    ):
        with pytest.raises(
            psycopg.errors.InvalidParameterValue, match="declared must be options that a task can declare"
        ):
            conn.execute(statement.replace("{{}}", '{"{}"}'), [declared])
    row = conn.execute(
        "select outcome, error ->> 'message' from pgqueue.enqueue_batch("
        "array[jsonb_build_object('task', 't', 'declared', %s::jsonb)])",
        [declared],
    ).fetchone()
    assert row is not None
    assert row[0] == "error"
    assert row[1].startswith("declared ")
    with pytest.raises(InvalidArgument, match="declared"):
        pgqueue.enqueue_copy(conn, [{"task": "t", "declared": json.loads(declared)}])
    assert conn.execute("select count(*) from pgqueue.jobs").fetchone() == (0,)
