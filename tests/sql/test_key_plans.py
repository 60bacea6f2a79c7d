"""The plans of claims and ends of jobs with keys, payloads and limits: an index each, read for what it gives.

As in test_plans: for plans cached on empty tables, and for those made on full ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.calls import Row, call, column, enqueue, maintain, pairs, reserve, table, value
from tests.databases import Cloner
from tests.facts import wait_until
from tests.sql.test_plans import Explained, Node, check, maintain_without_sample

FILL = """
insert into pgqueue.jobs (queue, task, args, priority, run_at, ready_at, created_at, state, key, limit_key, blocked_on,
    reservation, lease, lease_expires_at, reserved_by)
select x.queue, x.task, jsonb_build_object('n', x.n), 0, x.at, x.at, clock_timestamp() - '1 h'::interval,
    x.state::pgqueue.job_state, x.key, x.limit_key, x.blocked_on, 0, '1 day',
    case x.state when 'executing' then clock_timestamp() + '1 day' end, 'other'
from (
    select n, clock_timestamp() - '1 h'::interval + n * '1 us'::interval as at, 'keyed' as queue, 't' as task,
        case when n = 1 then 'executing' when n <= 5000 then 'blocked' else 'waiting' end as state,
        'hot' as key, null as limit_key, null as blocked_on
    from generate_series(1, 7000) n
    union all
    select n, clock_timestamp() - '30 min'::interval + n * '1 us'::interval, 'keyed', 't', 'waiting', 'k' || n, null,
        null
    from generate_series(1, 5000) n
    union all
    select n, clock_timestamp() - '1 h'::interval + n * '1 us'::interval, 'gathered', 'acc',
        case when n <= 3000 then 'blocked' else 'waiting' end, 'a', null, null
    from generate_series(1, 4000) n
    union all
    select n, clock_timestamp() - '1 h'::interval + n * '1 us'::interval, 'limited', 'u',
        case when n <= 5 then 'executing' when n <= 4000 then 'blocked' else 'waiting' end, null, 'l',
        case when n between 6 and 4000 then 'limit_key:l' end
    from generate_series(1, 4500) n
    union all
    select n, clock_timestamp() - '30 min'::interval + n * '1 us'::interval, 'limited', 'u', 'waiting', null, null, null
    from generate_series(1, 3000) n
) x;
insert into pgqueue.maintenance_runs (at) select now() from generate_series(1, 3000) n;
-- Those jobs are older than whatever heads there are.
delete from pgqueue.heads;
update pgqueue.limits set max_executing = 5;
insert into pgqueue.limit_waits (name, next_at) values ('limit_key:l', clock_timestamp());
insert into pgqueue.lanes (queue, priority, until)
select q, 0, now() + '1 hour'::interval from unnest('{keyed,gathered,limited}'::text[]) q;
"""


def use_everything(conn: psycopg.Connection) -> None:
    """Call each function a few times, so that its plans are cached."""
    for _ in range(7):
        for key in ("x", "x", "y", "z"):
            enqueue(conn, key=key, queue="keyed")
        for n in range(3):
            enqueue(conn, "acc", {"n": n % 2}, key="a", queue="gathered")
        for _ in range(5):
            enqueue(conn, "u", limit_key="l", queue="limited")
        for queue in ("keyed", "gathered", "limited"):
            for _ in range(2):
                held = reserve(conn, 10, queues=[queue])
                end_in_every_way(conn, held)
        maintain(conn)
        conn.execute("delete from pgqueue.jobs")


def end_in_every_way(conn: psycopg.Connection, held: list[Row]) -> None:
    rows = [row for row in held if row.leader in (None, row.id)]
    if rows:
        call(conn, "fail", rows[0].id, rows[0].reservation, retry_in="1 hour")
        column(conn, "release", *pairs(rows[1:2]))
        column(conn, "complete_many", *pairs(rows[2:]))


@pytest.fixture(scope="module", params=["cached on empty tables", "made on full tables, analysed"])
def explained(request: pytest.FixtureRequest, cloner: Cloner) -> Iterator[Explained]:
    database = cloner.migrated(partitions=True)
    conn = database.connect()
    cached = request.param == "cached on empty tables"
    conn.execute("alter table pgqueue.jobs set (autovacuum_enabled = off)")
    call(conn, "declare_task", "acc", accumulate=True)
    conn.execute("insert into pgqueue.limits (kind, target, max_executing) values ('limit_key', 'l', 2)")
    if cached:
        use_everything(conn)
        conn.execute("vacuum pgqueue.jobs")
    conn.execute(FILL.encode())
    if not cached:
        conn.execute("analyze")
    yield Explained(conn)
    cloner.drop(database)


def indexes(nodes: list[Node]) -> set[str]:
    return {node.index for node in nodes if node.relation == "jobs" and node.index}


@pytest.mark.covers("D5", "L1")
def test_a_claim_of_keyed_jobs_probes_three_indexes(explained: Explained) -> None:
    nodes = explained.nodes(lambda conn: reserve(conn, 10, queues=["keyed"]))
    check(nodes)
    assert {"jobs_ready", "jobs_key_running", "jobs_key_held", "jobs_key_waiting"} <= indexes(nodes)
    for node in nodes:
        if node.index in ("jobs_key_running", "jobs_key_held", "jobs_key_waiting"):
            assert "queue =" in node.condition, node
            assert "key =" in node.condition, node


@pytest.mark.covers("D5", "L3")
def test_a_call_of_an_accumulating_task_reads_the_payloads_that_it_takes(explained: Explained) -> None:
    conn = explained.conn
    nodes = explained.nodes(lambda conn: reserve(conn, 1, queues=["gathered"]))
    check(nodes)
    assert all(node.condition for node in nodes if node.index == "jobs_key_suspended")
    assert "jobs_key_suspended" in indexes(nodes)
    conn.execute("set auto_explain.log_min_duration = -1")
    [row] = conn.execute("select id, reservation from pgqueue.jobs where leader = id limit 1").fetchall()
    conn.execute("set auto_explain.log_min_duration = 0")
    nodes = explained.nodes(lambda conn: call(conn, "complete", row[0], row[1]))
    check(nodes)
    assert indexes(nodes) <= {"jobs_pkey", "jobs_key_held"}
    assert max(node.rows for node in nodes if node.relation == "jobs") <= 1000


@pytest.mark.covers("D5")
def test_a_claim_at_a_limit_counts_no_further_than_the_limit(explained: Explained) -> None:
    nodes = explained.nodes(lambda conn: reserve(conn, 10, queues=["limited"]))
    check(nodes)
    counted = [node for node in nodes if node.index == "jobs_limit_key"]
    assert all("limit_key =" in node.condition for node in counted)
    assert counted
    assert max(node.rows for node in counted) <= 5


@pytest.mark.covers("D5", "L1")
def test_the_ends_of_keyed_and_limited_jobs_read_one_blocked_job_each(explained: Explained) -> None:
    conn = explained.conn
    conn.execute("set auto_explain.log_min_duration = -1")
    hot = conn.execute("select id, reservation from pgqueue.jobs where state = 'executing' and key = 'hot'").fetchall()
    limited = conn.execute(
        "select id, reservation from pgqueue.jobs where state = 'executing' and limit_key = 'l' limit 3"
    ).fetchall()
    held: list[Row] = []
    # On a slow machine one call may use its time up on blocking jobs.
    wait_until(lambda: bool(held.extend(reserve(conn, 6, queues=["keyed"])) or len(held) >= 3))
    conn.execute("set auto_explain.log_min_duration = 0")
    for job_id, reservation in [*hot, limited[0]]:
        nodes = explained.nodes(lambda conn, j=job_id, r=reservation: call(conn, "complete", j, r))
        check(nodes)
        for index in ("jobs_key_held", "jobs_blocked"):
            # Whether there is one, and which.
            assert sum(node.rows for node in nodes if node.index == index) <= 2
    for job_id, reservation in limited[1:]:
        check(explained.nodes(lambda conn, j=job_id, r=reservation: call(conn, "fail", j, r)))
    check(explained.nodes(lambda conn: column(conn, "release", *pairs(held[:2]))))
    executing = value(conn, "select count(*) from pgqueue.jobs where state = 'executing'")
    for function in ("release_unheld", "held_by"):
        nodes = explained.nodes(lambda conn, f=function: table(conn, f, "nobody"))
        # Every lease, of any worker, and no other job.
        reads = [node for node in nodes if node.relation == "jobs"]
        assert "Seq Scan" not in {node.kind for node in reads}
        assert sum(node.rows + node.removed for node in reads) <= executing
    check(explained.nodes(lambda conn: call(conn, "fail", held[2].id, held[2].reservation)))
    check(explained.nodes(lambda conn: column(conn, "complete_many", *pairs(held[3:]))))


@pytest.mark.long
def test_maintenance_of_keys_and_limits_scans_nothing_that_grows(explained: Explained) -> None:
    check(explained.nodes(maintain_without_sample))
    check(explained.nodes(maintain_without_sample))
