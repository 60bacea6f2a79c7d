"""What does enqueue cost beside the plain INSERT that it ends in? 32 pgbench clients, single enqueues, real commits."""

from __future__ import annotations

import psycopg

from benchmarks.harness import Report, Server, median, pgbench

_CLIENTS = 32
_SECONDS = 4
_ROUNDS = 5

_INSERT = """
insert into pgqueue.jobs (
    queue, task, args, headers, tags, priority, run_at, ready_at, created_at, expires_at, max_attempts, retention
)
values (
    'default', 'noop', '{"n": 1}', null, null, 0, clock_timestamp(), clock_timestamp(), clock_timestamp(),
    null, null, null
)
returning id;
"""
_ENQUEUE = """select pgqueue.enqueue('noop', '{"n": 1}');"""

_BASELINE = "plain INSERT"
_AWAKE = "enqueue, no worker asleep"
_ASLEEP = "enqueue, a worker asleep all the while"
_WAYS = {_BASELINE: _INSERT, _AWAKE: _ENQUEUE, _ASLEEP: _ENQUEUE}


def run(server: Server) -> Report:
    rates: dict[str, list[float]] = {way: [] for way in _WAYS}
    for _ in range(_ROUNDS):
        for way, script in _WAYS.items():
            with server.database("enqueue") as dsn:
                rates[way].append(_rate(dsn, script, asleep=way == _ASLEEP))
    baseline = median(rates[_BASELINE])
    return Report(
        f"enqueue_cost: single enqueues a second from {_CLIENTS} clients, median of {_ROUNDS}",
        ("", "per second", "all runs", "of the INSERT"),
        [
            (way, f"{median(each):,.0f}", " ".join(f"{rate:,.0f}" for rate in each), f"{median(each) / baseline:.2f}")
            for way, each in rates.items()
        ],
        {way: {"per_s": median(each), "of_insert": median(each) / baseline} for way, each in rates.items()},
    )


def _rate(dsn: str, script: str, *, asleep: bool) -> float:
    with psycopg.connect(dsn, autocommit=True) as connection:
        # The lane is known from here on, as it is to all but a queue's first job.
        connection.execute("select pgqueue.enqueue('noop')")
        if asleep:
            connection.execute("select pgqueue.idle('sleeper', null, '1 hour')")
    return pgbench(dsn, script, f"--client={_CLIENTS}", "--jobs=2", f"--time={_SECONDS}", "--protocol=prepared")
