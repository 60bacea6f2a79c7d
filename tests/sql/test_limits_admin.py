"""Limits as an operator sets, drops and reads them, and how what executes under them is counted."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.calls import call, enqueue, enqueue_many, reserve, value
from tests.sql.plans import blocks


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
    conn.execute("insert into pgqueue.lanes (queue, priority, until) values (%s, 0, 'infinity')", [given["queue"]])


def count(conn: psycopg.Connection, kind: str, target: str, up_to: int = 100) -> int:
    found: int = value(
        conn, "select executing from pgqueue._executing_under(%s, %s, %s, '-infinity')", kind, target, up_to
    )
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
        "l": 4,
        "l2": 1,
        "": 0,
        "z": 0,
    }


@pytest.mark.parametrize(("kind", "target"), [("queue", "q"), ("task", "t"), ("key", "k"), ("limit_key", "l")])
def test_the_count_stops_at_its_bound(conn: psycopg.Connection, kind: str, target: str) -> None:
    for queue in ("q", "r"):
        put(conn, 5, queue=queue, key="k", keys=True, limit_key="l")
    whole = 5 if kind == "queue" else 10
    assert [count(conn, kind, target, up_to) for up_to in (0, 1, 3, whole, 100)] == [0, 1, 3, whole, whole]


@pytest.mark.parametrize(("kind", "target"), [("queue", "q"), ("task", "t"), ("key", "k"), ("limit_key", "l")])
def test_the_payloads_of_one_call_count_once(conn: psycopg.Connection, kind: str, target: str) -> None:
    put(conn, 1, key="k", limit_key="l")
    conn.execute("update pgqueue.jobs set leader = id")
    conn.execute(
        "insert into pgqueue.jobs (run_at, ready_at, created_at, priority, args, lease, queue, task,"
        " state, key, limit_key, leader)"
        " select j.run_at, j.ready_at, j.created_at, 0, '{}', j.lease, j.queue, j.task,"
        " j.state, j.key, j.limit_key, j.leader from pgqueue.jobs j, generate_series(1, 50)"
    )
    put(conn, 1, key="k2", limit_key="l")
    assert count(conn, kind, target) == 2


def limits(conn: psycopg.Connection) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = call(conn, "stats")["limits"]
    return found


def test_a_limit_is_set_changed_and_dropped_once(conn: psycopg.Connection) -> None:
    assert call(conn, "set_limit", "task", "t", max_executing=3) is True
    assert call(conn, "set_limit", "task", "t", max_executing=3) is False
    assert call(conn, "set_limit", "task", "t", rate=5, per="1 min") is True
    [found] = limits(conn)
    assert found == {
        "kind": "task",
        "target": "t",
        "max_executing": 3,
        "rate": 5,
        "per": "00:01:00",
        "max_cost": None,
        "burst": None,
        "executing": 0,
        "used": 0,
        "used_by": None,
        "started": 0,
        "started_by": None,
        "waiting": 0,
        "counted_to": None,
    }
    assert call(conn, "drop_limit", "task", "t") is True
    assert call(conn, "drop_limit", "task", "t") is False
    assert limits(conn) == []


def parts(conn: psycopg.Connection) -> list[tuple[Any, ...]]:
    return [(each["max_executing"], each["rate"], each["per"]) for each in limits(conn)]


def test_an_omitted_argument_of_a_limit_keeps_its_value(conn: psycopg.Connection) -> None:
    assert call(conn, "set_limit", "task", "t", rate=5, per="1 min") is True
    for given in ({"rate": 5}, {"per": "1 min"}, {"rate": 5, "per": "1 min"}):
        assert call(conn, "set_limit", "task", "t", **given) is False
    assert call(conn, "set_limit", "task", "t", max_executing=0) is True
    assert parts(conn) == [(0, 5, "00:01:00")]
    assert call(conn, "set_limit", "task", "t", rate=6) is True
    assert call(conn, "set_limit", "task", "t", per="2 min") is True
    assert call(conn, "set_limit", "task", "t", max_executing=7) is True
    assert parts(conn) == [(7, 6, "00:02:00")]
    assert call(conn, "set_limit", "task", "t", max_executing=7, rate=6, per="2 min") is False


def test_one_part_of_a_limit_is_dropped_and_the_last_part_drops_it(conn: psycopg.Connection) -> None:
    call(conn, "set_limit", "task", "t", max_executing=3, rate=5, per="1 min")
    assert call(conn, "drop_limit", "task", "t", "max_executing") is True
    assert call(conn, "drop_limit", "task", "t", "max_executing") is False
    assert parts(conn) == [(None, 5, "00:01:00")]
    call(conn, "set_limit", "task", "t", max_executing=3)
    assert call(conn, "drop_limit", "task", "t", "rate") is True
    assert parts(conn) == [(3, None, None)]
    assert call(conn, "drop_limit", "task", "t", "rate") is False
    assert call(conn, "drop_limit", "task", "t", part="max_executing") is True
    assert parts(conn) == []


def test_stats_say_how_many_execute_and_wait_under_each_limit(conn: psycopg.Connection) -> None:
    put(conn, 2, limit_key="acme")
    put(conn, 3, limit_key="acid")
    put(conn, 1, limit_key="other", queue="r")
    put(conn, 4, limit_key="acme", state="blocked", blocked_on="limit_key:acme")
    put(conn, 5, limit_key="acid", state="blocked", blocked_on="limit_key:acid")
    for kind, target in (("limit_key", "ac*"), ("limit_key", "acme"), ("queue", "q"), ("task", "t")):
        call(conn, "set_limit", kind, target, max_executing=9)
    assert {(each["kind"], each["target"]): (each["executing"], each["waiting"]) for each in limits(conn)} == {
        ("limit_key", "ac*"): (5, 9),
        ("limit_key", "acme"): (2, 4),
        ("queue", "q"): (5, 0),
        ("task", "t"): (6, 0),
    }


def test_stats_say_how_much_of_a_limit_is_taken(conn: psycopg.Connection) -> None:
    call(conn, "set_limit", "task", "t", max_executing=9, rate=7, per="1 min")
    call(conn, "set_limit", "queue", "default", rate=20, per="1 h")
    call(conn, "set_limit", "key", "k", max_executing=1)
    for _ in range(3):
        enqueue(conn, "t")
    reserve(conn, 3)
    # Starts that no longer count.
    conn.execute("insert into pgqueue.limit_starts values ('task:t', now() - interval '2 min', 5)")
    assert {each["kind"]: (each["used"], each["started"]) for each in limits(conn)} == {
        "task": (3, 3), "queue": (3, 3), "key": (0, None),
    }  # fmt: skip


def test_of_a_limit_for_each_value_the_fullest_value_counts(conn: psycopg.Connection) -> None:
    call(conn, "set_limit", "limit_key", "tenant:*", max_executing=5, rate=6, per="1 min")
    # A value with a limit of its own does not count under that of its prefix.
    call(conn, "set_limit", "limit_key", "tenant:big", max_executing=50, rate=60, per="1 min")
    for limit_key, jobs in (("tenant:a", 2), ("tenant:b", 4), ("tenant:big", 7), ("other", 3)):
        for _ in range(jobs):
            enqueue(conn, "t", limit_key=limit_key)
    reserve(conn, 100)
    used = {each["target"]: (each["executing"], each["used"], each["used_by"]) for each in limits(conn)}
    assert used == {"tenant:*": (13, 4, "tenant:b"), "tenant:big": (7, 7, None)}
    started = {each["target"]: (each["started"], each["started_by"]) for each in limits(conn)}
    assert started == {"tenant:*": (4, "tenant:b"), "tenant:big": (7, None)}


def test_stats_count_jobs_found_blocked_without_a_reason(conn: psycopg.Connection) -> None:
    conn.execute("insert into pgqueue.maintenance_runs (at, unblocked) values (now(), 3)")
    assert call(conn, "stats")["maintenance"]["unblocked"] == 3


def waits(conn: psycopg.Connection) -> list[str]:
    return [row[0] for row in conn.execute("select distinct name from pgqueue.limit_waits order by 1")]


@pytest.mark.parametrize("how", ["changed", "dropped"])
def test_when_a_limit_is_changed_or_dropped_maintenance_checks_the_jobs_that_it_blocks(
    conn: psycopg.Connection, how: str
) -> None:
    call(conn, "set_limit", "limit_key", "ac*", max_executing=1)
    call(conn, "set_limit", "task", "t", max_executing=1)
    conn.execute("delete from pgqueue.limit_waits")
    for name in ("limit_key:ac", "limit_key:acid", "limit_key:acme", "limit_key:zinc", "limit_key:ab", "task:t"):
        put(conn, 3, state="blocked", blocked_on=name)
    for kind, target in (("limit_key", "ac*"), ("task", "t")):
        if how == "changed":
            assert call(conn, "set_limit", kind, target, max_executing=2) is True
        else:
            assert call(conn, "drop_limit", kind, target) is True
    assert waits(conn) == ["limit_key:ac", "limit_key:acid", "limit_key:acme", "task:t"]
    assert value(conn, "select bool_and(next_at <= pgqueue._clock()) from pgqueue.limit_waits") is True


BAD: list[tuple[str, list[Any], dict[str, Any], str]] = [
    ("set_limit", ["tasks", "t", 1], {}, "kind"),
    ("set_limit", [None, "t", 1], {}, "kind"),
    ("set_limit", ["task", "", 1], {}, "target"),
    ("set_limit", ["task", None, 1], {}, "target"),
    ("set_limit", ["task", "x" * 129, 1], {}, "target"),
    ("set_limit", ["key", "x" * 513, 1], {}, "target"),
    ("set_limit", ["task", "t"], {}, "max_executing"),
    ("set_limit", ["task", "t", -1], {}, "max_executing"),
    ("set_limit", ["task", "t", 1000001], {}, "max_executing"),
    ("set_limit", ["task", "t"], {"rate": 1}, "per"),
    ("set_limit", ["task", "t", 1], {"per": "1 s"}, "rate"),
    ("set_limit", ["task", "t"], {"rate": 0, "per": "1 s"}, "rate"),
    ("set_limit", ["task", "t"], {"rate": 1000000001, "per": "1 s"}, "rate"),
    ("set_limit", ["task", "t"], {"rate": 1, "per": "0"}, "per"),
    ("set_limit", ["task", "t"], {"rate": 1, "per": "32 days"}, "per"),
    ("drop_limit", ["tasks", "t"], {}, "kind"),
    ("drop_limit", ["task", ""], {}, "target"),
    ("drop_limit", ["task", "t", "per"], {}, "part"),
    ("set_limit", ["task", "t"], {"per": "1 s"}, "rate"),
]


def test_a_mistake_is_refused_with_a_hint(conn: psycopg.Connection) -> None:
    for function, args, named, hinted in BAD:
        with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
            call(conn, function, *args, **named)
        assert hinted in (refused.value.diag.message_hint or ""), (function, args, named)


def test_due_jobs_of_a_queue_at_its_limit_wait_for_it(conn: psycopg.Connection) -> None:
    call(conn, "set_limit", "queue", "mail", max_executing=2)
    call(conn, "set_limit", "queue", "slow", rate=1, per="1 h")
    for queue in ("mail", "slow"):
        enqueue_many(conn, 5, queue=queue)
        enqueue_many(conn, 2, queue=queue, priority=7)
        enqueue(conn, queue=queue, delay="1 h")
    waiting = {each["target"]: each["waiting"] for each in limits(conn)}
    assert waiting == {"mail": 0, "slow": 0}
    reserve(conn, 10)
    for recent in (False, True):
        found = call(conn, "stats", recent=recent)["limits"]
        assert {each["target"]: each["waiting"] for each in found} == {"mail": 5, "slow": 6}


def test_due_jobs_of_a_queue_that_has_too_few_units_for_the_first_wait_for_it(conn: psycopg.Connection) -> None:
    call(conn, "set_limit", "queue", "mail", max_cost=10)
    call(conn, "set_limit", "queue", "slow", rate=10, per="1 h", burst=10)
    for queue, first, others in (("mail", 10, 1), ("slow", 4, 8)):
        enqueue(conn, queue=queue, cost=first)
        enqueue_many(conn, 5, queue=queue, cost=others)
    assert {each["target"]: each["waiting"] for each in limits(conn)} == {"mail": 0, "slow": 0}
    assert len(reserve(conn, 10)) == 2
    assert {each["target"]: each["waiting"] for each in limits(conn)} == {"mail": 5, "slow": 5}


def test_stats_read_the_executing_jobs_once_for_all_limits_of_tasks(conn: psycopg.Connection) -> None:
    for task in ("t0", "t1", "t2"):
        enqueue_many(conn, 100, task=task)
    reserve(conn, 300)

    def cost(limits: int) -> int:
        for number in range(limits):
            call(conn, "set_limit", "task", f"t{number}", max_executing=1000)
        return blocks(conn, "pgqueue._limits_now(10000, 1000)")

    few = cost(5)
    assert cost(100) - few < 95 * 30
    executing = {each["target"]: each["executing"] for each in call(conn, "stats", recent=True)["limits"]}
    assert [executing[f"t{number}"] for number in range(4)] == [100, 100, 100, 0]
