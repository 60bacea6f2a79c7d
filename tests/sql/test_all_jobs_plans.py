"""Looking for a finished job by its key or its task alone reads an index, however much history there is."""

from __future__ import annotations

import psycopg

from pgqueue.db import observe
from pgqueue.db.call import perform


def fill(conn: psycopg.Connection, rows: int, *, analyze: bool = True) -> None:
    """Write finished jobs of ten tasks, one in ten with a key, and one in 10,000 of the task `rare`."""
    conn.execute(
        "insert into pgqueue.history (id, reservation, run_at, created_at, finished_at, kept_until, state, attempts,"
        " losses, priority, granularity, queue, task, key, args)"
        " select n, n, now(), now(), now(), now() + interval '1 day', 'succeeded', 1, 0, 0, 'd', 'q',"
        " case when n %% 10000 = 7 then 'rare' else 't' || n %% 10 end,"
        " case when n %% 10 = 0 then 'k' || n end, '{}' from generate_series(1, %s::int) n",
        [rows],
    )
    if analyze:
        conn.execute("vacuum analyze pgqueue.history")


def test_a_list_of_jobs_is_read_by_id_also_without_statistics(conn: psycopg.Connection) -> None:
    fill(conn, 20_000, analyze=False)
    listed = observe.jobs([19_000, 3])
    assert [row["id"] for row in perform(conn, listed)] == [19_000, 3]
    plan = "\n".join(row[0] for row in conn.execute(b"explain (analyze, costs off) " + listed.text, listed.params))
    read = [line for line in plan.splitlines() if "Seq Scan on history" in line and "never executed" not in line]
    assert read == [], plan


def test_finished_jobs_of_a_key_are_found_by_an_index(conn: psycopg.Connection) -> None:
    fill(conn, 20_000)
    query = "select id from pgqueue.all_jobs where key = 'k500' order by id desc limit 20"
    assert conn.execute(query).fetchall() == [(500,)]
    plan = "\n".join(row[0] for row in conn.execute(f"explain {query}".encode()))
    assert "_key_id_idx" in plan, plan
    # The other partition is empty.
    assert "Seq Scan on history_all_days" not in plan, plan


def test_jobs_of_a_rare_task_are_found_without_reading_all_of_history(conn: psycopg.Connection) -> None:
    fill(conn, 100_000)
    query = "select id from pgqueue.all_jobs where task = %s order by id desc limit 20"
    assert len(conn.execute(query, ["rare"]).fetchall()) == 10
    for task in ("rare", "of_which_there_is_none"):
        assert blocks(conn, f"select count(*) from pgqueue.all_jobs where task = '{task}'") < 0.25 * size(conn)
    # Those of a frequent task are the newest ones, by id.
    assert blocks(conn, query.replace("%s", "'t1'")) < 0.05 * size(conn)


def blocks(conn: psycopg.Connection, query: str) -> int:
    """How many blocks the execution of a query reads."""
    found = conn.execute(f"explain (analyze, buffers, format json) {query}".encode()).fetchone()
    assert found is not None
    plan = found[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def size(conn: psycopg.Connection) -> int:
    """How many blocks the rows of history take."""
    found = conn.execute(
        "select sum(pg_relation_size(relid)) / 8192 from pg_partition_tree('pgqueue.history') where isleaf"
    ).fetchone()
    assert found is not None
    return int(found[0])
