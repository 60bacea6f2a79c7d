"""Looking for a finished job by its key reads an index, however much history there is."""

from __future__ import annotations

import psycopg


def test_finished_jobs_of_a_key_are_found_by_an_index(conn: psycopg.Connection) -> None:
    conn.execute(
        "insert into pgqueue.history (id, reservation, run_at, created_at, finished_at, kept_until, state, attempts,"
        " losses, priority, granularity, queue, task, key, args)"
        " select n, n, now(), now(), now(), now() + interval '1 day', 'succeeded', 1, 0, 0, 'd', 'q', 't',"
        " case when n % 10 = 0 then 'k' || n end, '{}' from generate_series(1, 20000) n"
    )
    conn.execute("analyze pgqueue.history")
    query = "select id from pgqueue.all_jobs where key = 'k500' order by id desc limit 20"
    assert conn.execute(query).fetchall() == [(500,)]
    plan = "\n".join(row[0] for row in conn.execute(f"explain {query}".encode()))
    assert "_key_id_idx" in plan, plan
    # The other partition is empty.
    assert "Seq Scan on history_all_days" not in plan, plan
