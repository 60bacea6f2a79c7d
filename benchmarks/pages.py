"""How long does the server take for what each page asks, beside millions of live jobs and as many in history?

Half of the jobs wait, in ten queues and forty tasks, a tenth of them in 201 groups, one of them large; the others have
ended, one in twenty dead, in all queues. Each statement is the
one that its page sends, timed by the client, over one connection; the median of five. A sample, which maintain() takes
every ten seconds, is timed too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg

from pgqueue.db import groups, observe, operate
from pgqueue.db.call import Call, perform
from pgqueue.search import parse

from .harness import Bound, Connection, Report, Server, median, sized

_JOBS = sized(10_000_000, least=40_000)
_MOST_MS = 200.0

_FILL = """
insert into pgqueue.jobs (run_at, ready_at, created_at, state, priority, queue, task, args, tags, group_id)
select
    now() - interval '1 hour', now() - interval '1 hour' + g * interval '1 us', now() - interval '1 hour', 'waiting', 0,
    'queue' || g %% 10, 'task' || g %% 40, jsonb_build_object('user', jsonb_build_object('id', g)),
    case when g %% 1000 = 0 then '{vip}'::text[] end,
    case when g <= %(jobs)s / 20 then 1 when g <= %(jobs)s / 10 then 2 + g %% 200 end
from generate_series(1, %(jobs)s) g;
insert into pgqueue.lanes (queue, priority, seen_at) select 'queue' || g, 0, now() from generate_series(0, 9) g;
insert into pgqueue.history (
    id, reservation, run_at, created_at, reserved_at, finished_at, kept_until, state, attempts, losses, priority,
    granularity, queue, task, args, errors
)
select
    nextval('pgqueue.jobs_id_seq'), 1, now(), now(), now(), now(), now() + interval '1 day',
    case when g / 10 %% 20 = 0 then 'dead' else 'succeeded' end::pgqueue.job_state, 1, 0, 0, 'd', 'queue' || g %% 10,
    'task' || g %% 40, '{}',
    case
        when g / 10 %% 20 = 0
        then jsonb_build_array(jsonb_build_object('class', 'Error' || g %% 7, 'message', 'no answer'))
    end
from generate_series(1, %(jobs)s) g;
"""


def run(server: Server) -> Report:
    with server.database("pages") as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute((_FILL % {"jobs": _JOBS // 2}).encode())
        connection.execute("vacuum analyze pgqueue.jobs")
        connection.execute("select pgqueue.maintain()")
        times = {name: _time(connection, ask) for name, ask in _asked(connection).items()}
        count = "select * from pgqueue._count_queues(now(), 10000)"
        sample = _time(connection, lambda: connection.execute(count).fetchall())
    slowest = max(times.values())
    rows = [(name, f"{spent:.1f}") for name, spent in times.items()]
    return Report(
        f"pages: {_JOBS // 2:,} live jobs and {_JOBS // 2:,} in history, ms",
        ("statement", "ms"),
        [*rows, ("a sample, every 10 s", f"{sample:.1f}")],
        {"slowest_ms": slowest, "sample_ms": sample, "jobs": _JOBS},
        [Bound("Slowest page, ms", slowest, _MOST_MS, is_ratio=False)],
    )


def _asked(connection: Connection) -> dict[str, Callable[[], object]]:
    def ask(call: Call[Any]) -> Callable[[], object]:
        return lambda: perform(connection, call)

    def jobs(line: str) -> Callable[[], object]:
        def find() -> object:
            return perform(
                connection, observe.jobs(perform(connection, observe.search("newest", parse(line), None, 50)).ids)
            )

        return find

    return {
        "overview: stats(recent => true)": ask(observe.stats(recent=True)),
        "overview: why_late()": ask(observe.why_late()),
        "overview: what executes": ask(observe.executing()),
        "overview: rates of queues": ask(observe.lately(60)),
        "overview: usual times of runs, every 10 min": ask(observe.runs_of_a_day()),
        "overview: dead within a day, every minute": ask(observe.dead_today()),
        "overview: trends": ask(observe.trends()),
        "dead_groups()": ask(observe.dead_groups(None)),
        "doctor()": ask(observe.doctor()),
        "metrics()": ask(observe.metrics()),
        "jobs, newest": jobs(""),
        "jobs, queue:queue3 state:waiting": jobs("queue:queue3 state:waiting"),
        "jobs, state:dead": jobs("state:dead"),
        "jobs, tag:vip": jobs("tag:vip"),
        "jobs, args.user.id:17": jobs("args.user.id:17"),
        "jobs, group:1": jobs("group:1"),
        "jobs, group:1 and a task that there is not": jobs("group:1 task:nothing"),
        "jobs, line: that there is not": jobs("line:nothing"),
        "groups": ask(groups.list_groups(50)),
        "members of a group": ask(groups.relatives_of_group(1, 200)),
        "jobs, a task that there is not": jobs("task:nothing"),
        "one job": ask(observe.job(5000)),
        "explain()": ask(operate.explain(5000)),
        "workers": ask(observe.workers()),
        "memory of workers": ask(observe.worker_memory()),
    }


def _time(connection: Connection, ask: Callable[[], object]) -> float:
    spent = []
    for _ in range(5):
        began = time.perf_counter()
        ask()
        spent.append(1000 * (time.perf_counter() - began))
    return median(spent)
