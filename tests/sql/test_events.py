"""Events: what they read."""

from __future__ import annotations

import psycopg

from tests.calls import call, value, within
from tests.facts import flush_statistics


def test_an_event_reads_the_waits_of_no_other_whatever_the_statistics_are(conn: psycopg.Connection) -> None:
    def wait_for(first: int, last: int) -> None:
        conn.execute(
            "insert into pgqueue.event_waits (name, job_id, step, since)"
            " select 'w' || g, g, 's', pgqueue._clock() from generate_series(%s::integer, %s::integer) g",
            [first, last],
        )

    def rows_read() -> int:
        flush_statistics(conn)
        read: int = value(
            conn,
            "select t.seq_tup_read + (select sum(i.idx_tup_read) from pg_stat_user_indexes i where i.relid = t.relid)"
            " from pg_stat_user_tables t where t.relname = 'event_waits'",
        )
        return read

    # The plans are made while few wait.
    wait_for(1, 3)
    conn.execute("analyze pgqueue.event_waits, pgqueue.events")
    for n in range(8):
        call(conn, "emit_event", f"e{n}", keep_for="0 s")
    wait_for(4, 5_000)
    before = rows_read()
    call(conn, "emit_event", "last", keep_for="0 s")
    within(conn, "_run_maintenance", "pgqueue._tidy('tidy_events', pgqueue._clock() + '1 day', 1000)")
    assert rows_read() - before < 20
    assert value(conn, "select count(*) from pgqueue.events") == 0
