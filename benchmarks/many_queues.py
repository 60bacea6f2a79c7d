"""What do thousands of queues cost, as one a tenant? A claim, an idle poll and a run of maintenance, beside ten queues.

Both databases hold the same number of due jobs, spread over 10 or 5,000 queues, and are measured in turn, with real
commits. So does a third, whose 5,000 queues were served and are empty, save ten.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

import psycopg

from .harness import Bound, Connection, Report, Server, median, sized

_JOBS = sized(5_000)
_FEW, _MANY, _EMPTY = "10 queues", f"{_JOBS:,} queues", f"{_JOBS:,} queues, empty save 10"
_ROUNDS = 40
_WARM_UP = 5

_CALLS = {
    "reserve(10)": "select count(*) from pgqueue.reserve('benchmark', 10)",
    "reserve(1)": "select count(*) from pgqueue.reserve('benchmark', 1)",
    "idle": "select count(*) from pgqueue.idle('benchmark', null, '1 s')",
    "maintain": "select pgqueue.maintain()",
}
# What 5,000 queues may cost more than ten, in ms.
_BOUNDS = {"reserve(10)": 2.0, "reserve(1)": 2.0, "idle": 2.0, "maintain": 20.0}


def run(server: Server) -> Report:
    with ExitStack() as stack:
        connections = {}
        for number, name in enumerate((_FEW, _MANY, _EMPTY)):
            dsn = stack.enter_context(server.database(f"many_queues_{number}"))
            connections[name] = stack.enter_context(psycopg.connect(dsn, autocommit=True, prepare_threshold=0))
            # Maintenance counts the lanes once a second.
            _fill(connections[name], 10 if name == _FEW else 100)
            _fill(connections[name], 10 if name == _FEW else _JOBS)
        _empty(connections[_EMPTY])
        times: dict[str, dict[str, list[float]]] = {call: {name: [] for name in connections} for call in _CALLS}
        for number in range(-_WARM_UP, _ROUNDS):
            for call, query in _CALLS.items():
                for name, connection in connections.items():
                    start = time.perf_counter()
                    connection.execute(query)
                    if number >= 0:
                        times[call][name].append((time.perf_counter() - start) * 1000)
    return _report(times)


def _fill(connection: Connection, queues: int) -> None:
    connection.execute(
        "select count(*) from pgqueue.enqueue_batch((select array_agg(jsonb_build_object("
        "'task', 'noop', 'queue', 'tenant-' || i %% %s)) from generate_series(1, %s) i))",
        (queues, _JOBS),
    )
    connection.execute("select pgqueue.maintain()")
    connection.execute("vacuum (analyze) pgqueue.jobs, pgqueue.lanes, pgqueue.heads")


def _empty(connection: Connection) -> None:
    while True:
        row = connection.execute(
            "select count(*) from (select pgqueue.complete_many(array_agg(r.id), array_agg(r.reservation))"
            " from pgqueue.reserve('benchmark', 500) r having count(*) > 0) done"
        ).fetchone()
        if row is None or not row[0]:
            break
    # Longer than empty lanes stay, so that they leave.
    for _ in range(45):
        time.sleep(1)
        connection.execute("select pgqueue.maintain()")
    connection.execute("vacuum (analyze) pgqueue.jobs, pgqueue.lanes, pgqueue.heads")
    _fill(connection, 10)


def _report(times: dict[str, dict[str, list[float]]]) -> Report:
    # Maintenance does some of its work in some of its runs.
    typical = {
        call: {name: sum(each) / len(each) if call == "maintain" else median(each) for name, each in found.items()}
        for call, found in times.items()
    }
    return Report(
        f"many_queues: ms a call with real commits, {_JOBS:,} due jobs in 10 or in {_JOBS:,} queues",
        ("", _FEW, _MANY, _EMPTY),
        [(call, *(f"{value:.2f}" for value in found.values())) for call, found in typical.items()],
        {call: dict(found) for call, found in typical.items()},
        [
            Bound(f"{call}: ms that {name} cost more than 10", found[name] - found[_FEW], _BOUNDS[call], is_ratio=False)
            for call, found in typical.items()
            for name in (_MANY, _EMPTY)
        ],
    )
