"""search(), search_oldest() and search_due(): every page of each order, read by an index, with no sort of all jobs."""

from __future__ import annotations

from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.calls import call, enqueue, enqueue_many, reserve, table, value
from tests.sql.plans import blocks
from tests.sql.test_plans import Explained, Node

NEXT = {"search": ("before",), "search_oldest": ("after",), "search_due": ("after_at", "after")}
ORDER = {"search": "id desc", "search_oldest": "id", "search_due": "due_at, id"}

FILTERS: list[tuple[dict[str, Any], str]] = [
    ({}, "true"),
    ({"queues": ["a"]}, "queue = 'a'"),
    ({"queues": ["a", "b*"]}, "queue in ('a', 'b')"),
    ({"queues": ["a"], "states": ["waiting"]}, "queue = 'a' and state = 'waiting'"),
    ({"states": ["dead", "cancelled"]}, "state in ('dead', 'cancelled')"),
    ({"states": ["executing", "dead"]}, "state in ('executing', 'dead')"),
    ({"tasks": ["odd"]}, "task = 'odd'"),
    ({"priority_from": 5}, "priority >= 5"),
    ({"id_from": 20, "id_to": 90}, "id between 20 and 90"),
    ({"ids": [3, 17, 55, 90, 10**12]}, "id in (3, 17, 55, 90)"),
    ({"groups": [0]}, "group_id = (select min(id) from pgqueue.all_jobs where task = '@group')"),
    ({"queues": ["none"]}, "false"),
    ({"finished_from": "2000-01-01"}, "finished_at is not null"),
]


@pytest.fixture
def mixed(conn: psycopg.Connection) -> psycopg.Connection:
    """Jobs of three queues and two priorities in every state, due at times that do not follow their ids."""
    group = call(conn, "open_group", "g")
    for queue in ("a", "b", "c"):
        enqueue_many(conn, 18, queue=queue)
        enqueue_many(conn, 4, queue=queue, priority=7, group_id=group)
        enqueue_many(conn, 3, "odd", queue=queue, key="k")
        for row in reserve(conn, 12, queues=[queue]):
            if row.id % 4 == 0:
                call(conn, "complete", row.id, row.reservation)
            elif row.id % 4 < 3:
                retry, cancel = row.id % 4 == 1, row.id % 5 == 0
                call(conn, "fail", row.id, row.reservation, Jsonb({}), retry=retry, cancel=cancel)
        # Some of one bulk call share their time.
        for minutes in (9, 3, 6):
            enqueue_many(conn, 3, queue=queue, delay=f"{minutes} min")
    for _ in range(4):
        enqueue(conn, "odd", queue="a", delay="4 min", group_id=group)
    return conn


@pytest.mark.parametrize("order", NEXT)
@pytest.mark.parametrize("max_jobs", [1, 7, 1000])
@pytest.mark.parametrize("max_rows", [3, 50_000])
def test_every_page_of_each_order_follows_the_one_before(
    mixed: psycopg.Connection, order: str, max_jobs: int, max_rows: int
) -> None:
    group = mixed.execute("select min(id) from pgqueue.all_jobs where task = '@group'").fetchone()
    assert group is not None
    ready = " and state in ('waiting', 'failed')" if order == "search_due" else ""
    for filter, where in FILTERS:
        given = {**filter, "groups": [group[0]]} if "groups" in filter else filter
        statement = f"select id from pgqueue.all_jobs where {where}{ready} order by {ORDER[order]}"
        expected = [row[0] for row in mixed.execute(statement.encode())]
        seen: list[int] = []
        cursor: dict[str, Any] = {}
        for _ in range(1000):
            [page] = table(mixed, order, Jsonb(given), **cursor, max_jobs=max_jobs, max_rows=max_rows)
            assert len(page.job_ids) <= max_jobs
            seen += page.job_ids
            cursor = {name: getattr(page, f"next_{name}") for name in NEXT[order]}
            if None in cursor.values():
                break
        assert seen == expected, filter


def test_a_search_in_order_stops_at_its_bound_and_says_so(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 300, "common")
    [wanted] = enqueue_many(conn, 1, "rare")
    for order in ("search_oldest", "search_due"):
        [page] = table(conn, order, Jsonb({"tasks": ["rare"]}), max_rows=100)
        assert (page.job_ids, page.is_cut) == ([], True)
        [page] = table(conn, order, Jsonb({"tasks": ["rare"]}))
        assert (page.job_ids, page.next_after, page.is_cut) == ([wanted], None, False)


@pytest.mark.parametrize("order", ["search_oldest", "search_due"])
def test_bounds_out_of_range_are_refused(conn: psycopg.Connection, order: str) -> None:
    for given in ({"max_jobs": 0}, {"max_rows": None}, {"max_jobs": 10_001}):
        with pytest.raises(psycopg.Error, match=f"{next(iter(given))} must be between"):
            table(conn, order, **given)
    with pytest.raises(psycopg.Error, match="groups must be at most 20"):
        table(conn, order, Jsonb({"groups": list(range(21))}))


FILL = """
insert into pgqueue.jobs (queue, task, args, priority, run_at, ready_at, created_at, state)
select 'q' || n % 4, 't', '{}', n % 2, at, at, at, 'waiting'
from (
    select n, now() - '1 h'::interval + (n * 7919 % 40000) * '1 ms'::interval as at from generate_series(1, 40000) n
) x;
insert into pgqueue.lanes (queue, priority, until)
select 'q' || q, p, now() + '1 hour'::interval from generate_series(0, 3) q, generate_series(0, 1) p;
insert into pgqueue.history (
    id, reservation, run_at, created_at, finished_at, kept_until, state, attempts, losses, priority, granularity, queue,
    task, args
)
select
    nextval('pgqueue.jobs_id_seq'), 1, now(), now(), now(), now() + interval '1 day', 'succeeded', 1, 0, 0, 'd',
    'q' || n % 4, 't', '{}'
from generate_series(1, 5000) n;
delete from pgqueue.heads;
"""


def _list(order: str, filter: Any, cursor: dict[str, Any], found: list[Any], conn: psycopg.Connection) -> None:
    found += table(conn, order, Jsonb(filter), **cursor, max_jobs=20)


def _reads(nodes: list[Node]) -> list[Node]:
    return [node for node in nodes if node.relation and node.relation.startswith(("jobs", "history"))]


@pytest.mark.parametrize("is_analyzed", [False, True])
@pytest.mark.parametrize("order", NEXT)
@pytest.mark.parametrize("filter", [{}, {"queues": ["q*"]}, {"queues": ["q1"]}, {"states": ["waiting"]}])
def test_each_order_is_read_by_an_index_and_no_sort_has_all_jobs(
    conn: psycopg.Connection, order: str, filter: dict[str, Any], is_analyzed: bool
) -> None:
    # Plans that were cached beside empty tables.
    for _ in range(7):
        table(conn, order, Jsonb(filter))
    conn.execute(FILL)
    if is_analyzed:
        conn.execute("analyze pgqueue.jobs")
        conn.execute("analyze pgqueue.history")
    explained = Explained(conn)
    # Of the many jobs of one queue at most 5,000 are looked at before it is read by id.
    most = 5_100 if filter == {"queues": ["q1"]} and order != "search_due" else 300
    cursor: dict[str, Any] = {}
    for page in range(3):
        found: list[Any] = []
        nodes = explained.nodes(partial(_list, order, filter, cursor, found))
        read = _reads(nodes)
        assert read
        assert {node.kind for node in read} <= {"Index Scan", "Index Only Scan"}, page
        assert max(node.rows + node.removed for node in read) <= most, page
        # Sixteen sub-lanes of twenty jobs, or the two ends of both tables.
        sorts = [node.rows for node in nodes if "Sort" in node.kind]
        assert max(sorts, default=0) <= 16 * 20, page
        cursor = {name: getattr(found[0], f"next_{name}") for name in NEXT[order]}
        assert None not in cursor.values()


@pytest.mark.parametrize("order", NEXT)
def test_the_cost_of_a_page_does_not_grow_with_the_backlog(conn: psycopg.Connection, order: str) -> None:
    enqueue_many(conn, 60, queue="q0")
    few = blocks(conn, f"pgqueue.{order}('{{}}')")
    conn.execute(FILL)
    conn.execute("analyze pgqueue.jobs")
    conn.execute("analyze pgqueue.history")
    # Of 1,200 that the jobs have: twenty of each sub-lane, or the two ends of both tables.
    assert blocks(conn, f"pgqueue.{order}('{{}}')") < few + (600 if order == "search_due" else 100)


def test_due_jobs_are_looked_up_among_ten_thousand_ids_that_are_read_once(conn: psycopg.Connection) -> None:
    conn.execute(FILL)
    conn.execute("analyze pgqueue.jobs")
    number = value(
        conn,
        "insert into pgqueue.retries (at, actor, task, fingerprint, job_ids)"
        " select now(), 'mara', 't', '', array_agg(1000000000 + i) from generate_series(1, 10000) i returning n",
    )
    nodes = Explained(conn).nodes(lambda conn: table(conn, "search_due", Jsonb({"retries": [number]})))
    # Once for the filter, and once for a hash of them, however many jobs are due.
    assert [node.rows for node in nodes if node.kind == "Function Scan" and node.rows >= 10_000] == [10_000, 10_000]


def test_nothing_is_beyond_the_ends_of_the_ids(mixed: psycopg.Connection) -> None:
    [oldest] = table(mixed, "search_oldest", Jsonb({}), after=2**63 - 1)
    [newest] = table(mixed, "search", Jsonb({}), before=-(2**63))
    assert (oldest.job_ids, newest.job_ids) == ([], [])
