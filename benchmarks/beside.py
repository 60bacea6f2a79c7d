"""Many jobs beside which something is measured: live ones, and as many in history.

Rows go straight into the tables, with ids that are given: nothing is enqueued, claimed or ended. Each table is filled
and vacuumed in a session of its own, so two cores take half of the time. Ten million of each need some 20 GB of disk.

The live jobs wait in 30 queues and 200 tasks, a tenth of them in 201 groups, one of them large; the jobs of some queues
are due. Of those in history one in twenty is dead, in all queues.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import psycopg

QUEUES = 30

_LIVE = """
insert into pgqueue.jobs (
    id, run_at, ready_at, created_at, state, priority, queue, task, args, tags, group_id, enqueued_by
)
overriding system value
select
    g, now() - interval '1 hour',
    now() + case when g %% %(queues)s < %(late)s then -1 else 1 end * interval '1 hour' + g * interval '1 us',
    now() - interval '1 hour', 'waiting', 0, 'queue' || g %% %(queues)s, 'task' || g %% 200,
    jsonb_build_object('user', jsonb_build_object('id', g)), case when g %% 1000 = 0 then '{vip}'::text[] end,
    case when g <= %(jobs)s / 20 then 1 when g <= %(jobs)s / 10 then 2 + g %% 200 end, 'benchmark'
from (select generate_series(1, %(jobs)s) as g) numbers
"""

_ENDED = """
insert into pgqueue.history (
    id, reservation, run_at, created_at, reserved_at, finished_at, kept_until, state, attempts, losses, priority,
    granularity, queue, task, args, errors
)
select
    %(jobs)s + g, 1, now(), now(), now(), now(), now() + interval '1 day',
    case when g / %(queues)s %% 20 = 0 then 'dead' else 'succeeded' end::pgqueue.job_state, 1, 0, 0, 'd',
    'queue' || g %% %(queues)s, 'task' || g %% 200, '{}',
    case
        when g / %(queues)s %% 20 = 0
        then jsonb_build_array(jsonb_build_object('class', 'Error' || g %% 7, 'message', 'no answer'))
    end
from (select generate_series(1, %(jobs)s) as g) numbers
"""

_REST = """
insert into pgqueue.lanes (queue, priority, until)
select 'queue' || g, 0, now() + interval '1 hour' from generate_series(0, %(queues)s - 1) g;
select setval('pgqueue.jobs_id_seq', 2 * %(jobs)s);
"""


def fill_beside(dsn: str, jobs: int, late: int) -> float:
    """Put live jobs into a new schema, those of `late` queues due, and as many ended ones; return the seconds."""
    began = time.perf_counter()
    numbers = {"jobs": jobs, "late": late, "queues": QUEUES}

    def fill(table: str, text: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute((text % numbers).encode())
            connection.execute(f"vacuum (analyze) pgqueue.{table}".encode())

    with ThreadPoolExecutor(2) as sessions:
        for filled in [sessions.submit(fill, "jobs", _LIVE), sessions.submit(fill, "history", _ENDED)]:
            filled.result()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute((_REST % numbers).encode())
        _vacuum(connection)
    return time.perf_counter() - began


def _vacuum(connection: psycopg.Connection) -> None:
    """Vacuum until all rows are marked as visible to all, as autovacuum leaves them in time.

    The snapshot of the other session, or of an ANALYZE, may have kept a vacuum from that.
    """
    unmarked = (
        "select array_agg(oid::regclass::text) from pg_class where relnamespace = 'pgqueue'::regnamespace"
        " and relkind = 'r' and (relname = 'jobs' or relname like 'history%') and relallvisible < relpages"
    )
    for _ in range(10):
        [tables] = connection.execute(unmarked).fetchone() or [None]
        if tables is None:
            return
        connection.execute(f"vacuum {', '.join(tables)}".encode())
        time.sleep(1)
