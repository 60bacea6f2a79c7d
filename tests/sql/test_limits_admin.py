"""Limits as an operator sets, drops and reads them, and how what executes under them is counted."""

from __future__ import annotations

import psycopg
import pytest

from tests.calls import value


def put(conn: psycopg.Connection, count: int = 1, **columns: object) -> None:
    """Rows of jobs as they stand while they execute (or in the state given)."""
    given = {"queue": "q", "task": "t", "state": "executing", **columns}
    conn.execute(
        "insert into pgqueue.jobs (run_at, ready_at, created_at, priority, args, lease_expires_at, lease, queue, task,"
        " state, key, limit_key, blocked_on)"
        " select now(), now(), now(), 0, '{}', now() + '1 h', '1 h', %(queue)s, %(task)s, %(state)s,"
        " %(key)s || case when %(keys)s then n::text else '' end, %(limit_key)s, %(blocked_on)s"
        " from generate_series(1, %(count)s) n",
        {"key": None, "keys": False, "limit_key": None, "blocked_on": None, "count": count, **given},
    )
    conn.execute("insert into pgqueue.lanes (queue, priority, seen_at) values (%s, 0, now())", [given["queue"]])


def count(conn: psycopg.Connection, kind: str, target: str, up_to: int = 100) -> int:
    found: int = value(conn, "select pgqueue._count_executing(%s, %s, %s)", kind, target, up_to)
    return found


def test_what_executes_is_counted_by_queue_task_key_and_limit_key(conn: psycopg.Connection) -> None:
    put(conn, 3, queue="a", task="t")
    put(conn, 2, queue="a", task="u")
    put(conn, 4, queue="b", task="t", limit_key="l")
    put(conn, 9, queue="b", task="t", limit_key="l", state="waiting")
    put(conn, 3, queue="a", task="k", key="order:", keys=True)
    put(conn, 2, queue="b", task="k", key="order:", keys=True)
    put(conn, 1, queue="b", task="k", key="orders")
    put(conn, 1, queue="b", task="k", key="orde")
    put(conn, 1, queue="b", task="k", key="ordés", limit_key="l2")
    assert {target: count(conn, "queue", target) for target in ("a", "b", "c", "")} == {"a": 8, "b": 9, "c": 0, "": 0}
    assert {target: count(conn, "task", target) for target in ("t", "u", "k", "x")} == {"t": 7, "u": 2, "k": 8, "x": 0}
    prefixes = {"order:": 5, "order": 6, "orde": 7, "ord": 8, "ordé": 1, "order:1": 2, "x": 0, "order:9": 0}
    assert {target: count(conn, "key", target) for target in prefixes} == prefixes
    assert {target: count(conn, "limit_key", target) for target in ("l", "l2", "", "z")} == {
        "l": 4, "l2": 1, "": 0, "z": 0,
    }


@pytest.mark.parametrize(("kind", "target"), [("queue", "q"), ("task", "t"), ("key", "k"), ("limit_key", "l")])
def test_the_count_stops_where_it_is_told_to(conn: psycopg.Connection, kind: str, target: str) -> None:
    for queue in ("q", "r"):
        put(conn, 5, queue=queue, key="k", keys=True, limit_key="l")
    whole = 5 if kind == "queue" else 10
    assert [count(conn, kind, target, up_to) for up_to in (0, 1, 3, whole, 100)] == [0, 1, 3, whole, whole]


@pytest.mark.parametrize(("kind", "target"), [("queue", "q"), ("task", "t"), ("key", "k"), ("limit_key", "l")])
def test_the_payloads_of_one_call_count_once(conn: psycopg.Connection, kind: str, target: str) -> None:
    put(conn, 1, key="k", limit_key="l")
    conn.execute("update pgqueue.jobs set leader = id")
    conn.execute(
        "insert into pgqueue.jobs (run_at, ready_at, created_at, priority, args, lease_expires_at, lease, queue, task,"
        " state, key, limit_key, leader)"
        " select j.run_at, j.ready_at, j.created_at, 0, '{}', j.lease_expires_at, j.lease, j.queue, j.task,"
        " j.state, j.key, j.limit_key, j.leader from pgqueue.jobs j, generate_series(1, 50)"
    )
    put(conn, 1, key="k2", limit_key="l")
    assert count(conn, kind, target) == 2
