"""The cost of choosing queues: reserve(100) over 8 queues, weighted against plain, and reserve(10) over 200 queues."""

from __future__ import annotations

import time
from typing import LiteralString

import psycopg

from .harness import Bound, Connection, Report, Server, median, percentile

_QUEUES = 8
_EACH = 20_000
_BATCH = 100
_ROUNDS = 80
_MANY = 200
_PRIORITIES = 3
_BOUND = 1.5
_BOUND_MANY_MS = 5.0

_PLAIN: LiteralString = "select count(*) from pgqueue.reserve('w', %(n)s, %(queues)s)"
_WEIGHTED: LiteralString = "select count(*) from pgqueue.reserve('w', %(n)s, %(queues)s, %(weights)s)"


def run(server: Server) -> Report:
    few: dict[str, list[float]] = {"plain": [], "weighted": []}
    many: dict[str, list[float]] = {"plain": [], "weighted": []}
    with server.database("few") as dsn, psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as connection:
        for n in range(_QUEUES):
            connection.execute(
                "select count(*) from pgqueue.enqueue_many('t', array_fill('{}'::jsonb, array[%s]), queue => %s)",
                (_EACH, f"q{n}"),
            )
        _measure(connection, few, _QUEUES, _BATCH)
    with server.database("many") as dsn, psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as connection:
        connection.execute(
            "select count(pgqueue.enqueue('t', queue => 'q' || q, priority => p))"
            " from generate_series(0, %s) q, generate_series(1, %s) p, generate_series(1, 30) k",
            (_MANY - 1, _PRIORITIES),
        )
        _measure(connection, many, _MANY, 10)
    ratio = median(few["weighted"]) / median(few["plain"])
    rows = [
        (f"{what}, {_QUEUES} queues, batches of {_BATCH}", f"{median(ms):.2f}", f"{percentile(ms, 95):.2f}")
        for what, ms in few.items()
    ] + [
        (
            f"{what}, {_MANY} queues with {_PRIORITIES} priorities, batches of 10",
            f"{median(ms):.2f}",
            f"{percentile(ms, 95):.2f}",
        )
        for what, ms in many.items()
    ]
    return Report(
        f"sampling: ms a reserve, {_ROUNDS} rounds in turn",
        ("", "median", "p95"),
        rows,
        {
            "ratio": ratio,
            "few": {k: median(v) for k, v in few.items()},
            "many": {k: median(v) for k, v in many.items()},
        },
        [
            Bound(f"weighted reserve({_BATCH}) over {_QUEUES} queues against plain", ratio, _BOUND),
            Bound(
                f"weighted reserve(10) over {_MANY} queues, ms",
                median(many["weighted"]),
                _BOUND_MANY_MS,
                is_ratio=False,
            ),
        ],
    )


def _measure(connection: Connection, times: dict[str, list[float]], queues: int, batch: int) -> None:
    options = {
        "n": batch,
        "queues": [f"q{n}" for n in range(queues)],
        "weights": [1 + n % 8 for n in range(queues)],
    }
    for _ in range(_ROUNDS):
        for what, statement in (("plain", _PLAIN), ("weighted", _WEIGHTED)):
            start = time.perf_counter()
            connection.execute(statement, options)
            times[what].append((time.perf_counter() - start) * 1000)
