"""queue_facets(): what fills a queue, at a cost that does not depend on the backlog."""

from __future__ import annotations

import psycopg

from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, reserve, reserve_one, table


def facets(conn: psycopg.Connection, queue: str | None, **options: int) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for row in table(conn, "queue_facets", queue, **options):
        found.setdefault(row.facet, {})[row.value] = row.jobs
    return found


def test_due_jobs_are_counted_by_what_they_have_in_common(conn: psycopg.Connection, clock: Clock) -> None:
    clock.advance("-2 min")
    enqueue_many(conn, 3, "import", queue="q", limit_key="tenant:lumen", tags=["vip", "eu"])
    clock.back_to_real()
    enqueue(conn, "send", queue="q", priority=5, key="order:17")
    enqueue(conn, "send", queue="q", delay="1 h")
    enqueue(conn, "send", queue="other")
    found = facets(conn, "q")
    assert found["due"] == {"": 4}
    assert found["task"] == {"import": 3, "send": 1}
    assert found["tenant"] == {"tenant:lumen": 3}
    assert found["tag"] == {"eu": 3, "vip": 3}
    assert found["key"] == {"order:17": 1}
    assert list(found["enqueued_by"].values()) == [4]
    # 9: from 60 to 300 s.
    assert found["wait"]["9"] == 3
    assert sum(found["wait"].values()) == 4
    assert facets(conn, None)["due"] == {"": 5}


def test_of_many_values_the_most_frequent_are_shown_and_of_many_jobs_the_first(conn: psycopg.Connection) -> None:
    for number in range(8):
        enqueue_many(conn, 8 - number, f"t{number}", queue="q")
    assert facets(conn, "q", max_values=2)["task"] == {"t0": 8, "t1": 7}
    # Jobs of a higher priority are served first.
    enqueue_many(conn, 3, "first", queue="q", priority=9)
    assert facets(conn, "q", max_jobs=3)["task"] == {"first": 3}
    assert facets(conn, "q", max_jobs=3)["due"] == {"": 3}


def test_blocked_jobs_are_counted_by_the_key_and_the_limit_that_they_wait_for(conn: psycopg.Connection) -> None:
    call(conn, "set_limit", "limit_key", "tenant:*", max_executing=1)
    enqueue_many(conn, 4, queue="q", key="order:17")
    enqueue_many(conn, 3, queue="q", limit_key="tenant:lumen")
    reserve(conn, 10, queues=["q"])
    found = facets(conn, "q")
    assert found["blocked_key"] == {"order:17": 3}
    assert found["blocked_limit"] == {"limit_key:tenant:lumen": 2}
    assert "due" not in found


def test_a_queue_without_jobs_has_no_facets(conn: psycopg.Connection) -> None:
    enqueue(conn, queue="q")
    reserve_one(conn)
    assert facets(conn, "q") == {}
