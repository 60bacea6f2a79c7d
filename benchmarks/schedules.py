"""How long does maintain take when 10,000 schedules are due in the same second, and when none is?"""

from __future__ import annotations

import time

import psycopg

from .harness import Bound, Connection, Report, Server, median, sized

_SCHEDULES = sized(10_000, least=1_000)
_ROUNDS = 5
_LIMIT_S = 1.0

# No two alike, a third of them in a zone with daylight saving, some by an interval.
_FILL = """
select count(pgqueue.schedule(
    'schedule ' || n,
    case when n %% 5 > 0 then format('*/%%s %%s * * mon-sun', 1 + n %% 30, '0-23/' || 1 + n %% 3) end,
    'noop',
    every => case when n %% 5 = 0 then (60 + n) * interval '1 s' end,
    timezone => (array['UTC', 'Europe/Berlin', 'UTC'])[1 + n %% 3]
))
from generate_series(1, %s) n
"""

# As if each had been due a moment ago.
_MAKE_DUE = """
insert into pgqueue.schedule_runs (schedule, decided_at, outcome, next_at, rule)
select s.name, pgqueue._clock(), 'planned', pgqueue._clock() - interval '1 ms', pgqueue._schedule_rule(s)
from pgqueue.schedules s
"""


def run(server: Server) -> Report:
    due: list[float] = []
    quiet: list[float] = []
    with server.database("schedules") as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select from pgqueue.maintain()")
        without = [_maintain(connection) for _ in range(_ROUNDS)]
        connection.execute(_FILL, (_SCHEDULES,))
        for _ in range(_ROUNDS):
            before = _jobs(connection)
            connection.execute(_MAKE_DUE)
            due.append(_maintain(connection))
            if _jobs(connection) < before + _SCHEDULES:
                raise RuntimeError("not every schedule that was due had its job")
            quiet.append(_maintain(connection))
    rows = {
        f"{_SCHEDULES:,} schedules, all due": due,
        f"{_SCHEDULES:,} schedules, none due": quiet,
        "no schedules": without,
    }
    return Report(
        f"schedules: seconds in maintain, median of {_ROUNDS}",
        ("", "median", "all runs"),
        [(what, f"{median(each):.3f}", " ".join(f"{s:.3f}" for s in each)) for what, each in rows.items()],
        {what: median(each) for what, each in rows.items()},
        [
            Bound(
                f"maintain with {_SCHEDULES:,} schedules due, median of {_ROUNDS}, seconds",
                median(due),
                _LIMIT_S,
                is_ratio=False,
            )
        ],
    )


def _maintain(connection: Connection) -> float:
    begun = time.perf_counter()
    connection.execute("select from pgqueue.maintain()")
    return time.perf_counter() - begun


def _jobs(connection: Connection) -> int:
    row = connection.execute("select count(*) from pgqueue.jobs").fetchone()
    return int(str(row[0])) if row else 0
