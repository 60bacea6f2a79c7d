"""What does a rule cost those whom it touches, and those whom it does not?

Claims and ends by one session, jobs one by one or in batches of 50: beside rules of other tasks and queues, with keys,
under limits, in a database that has used workflows. Each beside its plain twin: the two take turns, and a figure is the
median of the ratios of the pairs. CPU of that session alone, by the scheduler's own clock; where that is not at hand
(another machine, another system), the time that the calls take.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import LiteralString, TypeVar

import psycopg

from .harness import Bound, Connection, Report, Server, median, sized

_PAIRS = 11
_SINGLES = sized(1_000, least=200)
_BATCHED = sized(3_000, least=1_000)
# With nine tenths of the jobs stopped, a few claims read thousands.
_STARTED_OF_MANY = sized(1_000, least=300) // 2
_HANDED = sized(1_000, least=200) // 5
_ARGS = '{"user": 123456, "template": "welcome", "locale": "en_GB", "url": "https://example.com/' + "y" * 100 + '"}'

_LIMITS: list[LiteralString] = [
    "select pgqueue.set_limit('task', 'other' || n, max_executing => 5) from generate_series(1, 20) n"
]
_LANES: list[LiteralString] = [
    "select pgqueue.enqueue('x', queue => 'heavy' || n, delay => '1 day') from generate_series(1, 5) n",
    "select pgqueue.enqueue('x', queue => 'resting', delay => '1 day')",
]
_RULES: list[LiteralString] = [
    *_LANES,
    *_LIMITS,
    "select pgqueue.configure_queue('heavy' || n, weight => n + 1) from generate_series(1, 5) n",
    "select pgqueue.pause_queue('resting')",
]
_WORKFLOWS: list[LiteralString] = [
    "select pgqueue.enqueue('x', depends_on => array[pgqueue.enqueue('x', delay => '1 day')])",
    "select pgqueue.close_group(pgqueue.open_group('g'))",
]
_CHANNEL = "pgqueue_bench_" + "0123456789abcdef" * 2
_T = TypeVar("_T")


@dataclass(frozen=True)
class _Case:
    """`options`: of each job, by its number i. `jobs`: how many start; `waiting`: how many are enqueued."""

    batch: int
    jobs: int
    options: LiteralString = ""
    setup: Sequence[LiteralString] = field(default_factory=tuple)
    waiting: int = 0


@dataclass(frozen=True)
class _Cost:
    """Microseconds of CPU a job."""

    claim: float
    end: float

    @property
    def both(self) -> float:
        return self.claim + self.end


def _under_tenants(at_most: LiteralString, stopped: LiteralString, jobs: int, waiting: int) -> _Case:
    """Jobs of 2,000 tenants, some of them of one that is at its limit."""
    key: LiteralString = ", limit_key => case when " + stopped + " then 't:hot' else 't:' || (i % 2000) end"
    setup: list[LiteralString] = [
        "select pgqueue.set_limit('limit_key', 't:*', max_executing => " + at_most + ")",
        "select pgqueue.enqueue('x', limit_key => 't:hot') from generate_series(1, 2)",
        "select count(*) from pgqueue.reserve('holder', 2, lease => '1 day')",
    ]
    return _Case(50, jobs, key, setup, waiting)


_ONE, _FIFTY = _Case(1, _SINGLES), _Case(50, _BATCHED)
_PLAIN_LIMIT = _Case(50, _BATCHED, setup=["select pgqueue.set_limit('task', 'noop', max_executing => 1000)"])
_BUCKET: LiteralString = "select pgqueue.set_limit('task', 'noop', rate => 1000000, per => '1 min', burst => 100000000)"
# The measure, its twin, the part that is compared, and the bound.
_CASES: list[tuple[str, _Case, _Case, str, float | None]] = [
    (
        "20 limits, 5 weights, a paused queue beside it; one by one",
        _Case(1, _SINGLES, setup=_RULES),
        _Case(1, _SINGLES, setup=_LANES),
        "both",
        1.08,
    ),
    ("the same; batches of 50", _Case(50, _BATCHED, setup=_RULES), _Case(50, _BATCHED, setup=_LANES), "both", 1.08),
    ("keys, one by one", _Case(1, _SINGLES, ", key => 'k' || i"), _ONE, "both", 1.6),
    ("keys, batches of 50", _Case(50, _BATCHED, ", key => 'k' || i"), _FIFTY, "both", 1.6),
    (
        "a limit of each of 2,000 tenants stops none; batches of 50",
        _under_tenants("60", "false", _BATCHED, _BATCHED),
        _FIFTY,
        "both",
        2.0,
    ),
    (
        "it stops a tenth of the jobs",
        _under_tenants("2", "i % 10 = 0", _BATCHED * 2 // 3, _BATCHED * 3 // 4),
        _FIFTY,
        "both",
        2.8,
    ),
    (
        "it stops nine tenths",
        _under_tenants("2", "i % 10 > 0", _STARTED_OF_MANY, _STARTED_OF_MANY * 11),
        _FIFTY,
        "both",
        8.0,
    ),
    (
        "a limit of its task has capacity; batches of 50",
        _PLAIN_LIMIT,
        _FIFTY,
        "both",
        None,
    ),
    (
        "a rate beside that limit; batches of 50",
        _Case(50, _BATCHED, setup=["select pgqueue.set_limit('task', 'noop', rate => 1000000, per => '1 day')"]),
        _PLAIN_LIMIT,
        "both",
        None,
    ),
    ("a bucket beside that limit", _Case(50, _BATCHED, setup=[_BUCKET]), _PLAIN_LIMIT, "both", None),
    ("a bucket, and jobs that have costs", _Case(50, _BATCHED, ", cost => 2", [_BUCKET]), _PLAIN_LIMIT, "both", None),
    (
        "that limit with max_cost, and jobs that have costs",
        _Case(50, _BATCHED, ", cost => 2", ["select pgqueue.set_limit('task', 'noop', max_cost => 10000)"]),
        _PLAIN_LIMIT,
        "both",
        None,
    ),
    (
        "an end in a database that has used workflows; one by one",
        _Case(1, _SINGLES, setup=_WORKFLOWS),
        _ONE,
        "end",
        1.25,
    ),
    (
        "the end of a member of a group; one by one",
        _Case(1, _SINGLES, ", group_id => (select min(id) from pgqueue.jobs)", ["select pgqueue.open_group('g')"]),
        _ONE,
        "end",
        None,
    ),
]


def run(server: Server) -> Report:
    rows: list[tuple[str, str, str, str, str]] = []
    figures: dict[str, object] = {}
    bounds: list[Bound] = []
    with server.database("rules") as dsn, _connect(dsn) as works, _connect(dsn) as prepares:
        for case in (_ONE, _FIFTY):
            _measure(works, prepares, case)
        for name, case, twin, part, bound in _CASES:
            pairs = _pairs(
                lambda case=case: _measure(works, prepares, case), lambda twin=twin: _measure(works, prepares, twin)
            )
            ratio = median([getattr(ours, part) / getattr(plain, part) for ours, plain in pairs])
            cost = [median([getattr(each, part) for each in side]) for side in zip(*pairs, strict=True)]
            spread = sorted(getattr(ours, part) / getattr(plain, part) for ours, plain in pairs)
            rows.append(
                (name, f"{cost[0]:.0f}", f"{cost[1]:.0f}", f"{ratio:.2f}", f"{spread[0]:.2f} to {spread[-1]:.2f}")
            )
            figures[name] = {"us": cost[0], "us_plain": cost[1], "ratio": ratio}
            if bound is not None:
                bounds.append(Bound(name, ratio, bound))
        _reset(prepares)
        handed = _pairs(lambda: _hand_off(works, dsn, _RULES), lambda: _hand_off(works, dsn, _LANES))
        ratio = median([ours / plain for ours, plain in handed])
        ours, plain = (median(list(side)) for side in zip(*handed, strict=True))
        name = "hand-off beside those rules: enqueue to notification, p50"
        spread = sorted(ours / plain for ours, plain in handed)
        rows.append((name, f"{ours:.0f}", f"{plain:.0f}", f"{ratio:.2f}", f"{spread[0]:.2f} to {spread[-1]:.2f}"))
        figures[name] = {"us": ours, "us_plain": plain, "ratio": ratio}
        bounds.append(Bound(name, ratio, 1.08))
    return Report(
        f"rules: us of CPU a job for its claim and end, each beside its plain twin, median of {_PAIRS} pairs",
        ("", "us", "us, plain", "ratio", "ratios of the pairs"),
        rows,
        figures,
        bounds,
    )


def _pairs(measured: Callable[[], _T], twin: Callable[[], _T]) -> list[tuple[_T, _T]]:
    """Both in turns; the order changes from pair to pair."""
    pairs = []
    for n in range(_PAIRS):
        if n % 2:
            plain, ours = twin(), measured()
        else:
            ours, plain = measured(), twin()
        pairs.append((ours, plain))
    return pairs


def _measure(works: Connection, prepares: Connection, case: _Case) -> _Cost:
    _reset(prepares)
    for statement in case.setup:
        prepares.execute(statement)
    options = case.options.replace("%", "%%")
    prepares.execute(
        f"select pgqueue.enqueue('noop', %s{options}) from generate_series(1, %s) i".encode(),
        (_ARGS, case.waiting or case.jobs),
    )
    prepares.execute("select pgqueue.maintain()")
    prepares.execute("vacuum (analyze) pgqueue.jobs")
    clock = _clock(works)
    claim = end = 0.0
    calls = done = 0
    while done < case.jobs:
        began = clock()
        rows = works.execute(
            "select id, reservation from pgqueue.reserve('benchmark', %s)", (min(case.batch, case.jobs - done),)
        ).fetchall()
        ended = clock()
        claim += ended - began
        calls += 1
        if calls % (400 if case.batch == 1 else 20) == 0:
            # A claim looks after itself where no session runs maintenance.
            prepares.execute("select pgqueue.maintain()")
        if calls > 20 * case.jobs:
            raise RuntimeError("the jobs do not start")
        if not rows:
            continue
        began = clock()
        if case.batch == 1:
            works.execute("select pgqueue.complete(%s, %s)", rows[0])
        else:
            works.execute(
                "select count(*) from pgqueue.complete_many(%s::bigint[], %s::bigint[])",
                ([row[0] for row in rows], [row[1] for row in rows]),
            )
        end += clock() - began
        done += len(rows)
    return _Cost(claim / done / 1000, end / done / 1000)


def _clock(works: Connection) -> Callable[[], int]:
    """The nanoseconds of CPU of a session's own process, or those of the clock on the wall."""
    schedule = Path(f"/proc/{works.info.backend_pid}/schedstat")
    try:
        is_server = b"postgres" in Path(f"/proc/{works.info.backend_pid}/cmdline").read_bytes()
        schedule.read_text()
    except OSError:
        is_server = False
    return (lambda: int(schedule.read_text().split()[0])) if is_server else time.perf_counter_ns


def _reset(conn: Connection) -> None:
    """An empty queue without rules, and no version of what was there."""
    tables = (
        "jobs",
        "limits",
        "pauses",
        "limit_waits",
        "limit_starts",
        "limit_levels",
        "queues",
        "key_notes",
        "lanes",
        "heads",
        "dependencies",
    )
    conn.execute(f"truncate pgqueue.history, {', '.join('pgqueue.' + name for name in tables)}, pgqueue.notes".encode())
    conn.execute("alter sequence pgqueue.notes_n_seq restart")
    conn.execute("alter sequence pgqueue.costs restart")
    conn.execute("select pgqueue.maintain()")


def _hand_off(works: Connection, dsn: str, setup: Sequence[LiteralString]) -> float:
    """The median of the microseconds from an enqueue to its job, in the hands of an idle worker."""
    with _connect(dsn) as worker, _connect(dsn) as prepares:
        _reset(prepares)
        for statement in setup:
            prepares.execute(statement)
        worker.execute(f"listen {_CHANNEL}".encode())
        times = []
        for _ in range(_HANDED):
            worker.execute(
                "select from pgqueue.idle('idle', array['default'], '1 min', handoff_channel => %s,"
                " listener => pg_backend_pid(), lease => '30 s')",
                (_CHANNEL,),
            )
            began = time.perf_counter_ns()
            works.execute("select pgqueue.enqueue('noop', %s)", (_ARGS,))
            [heard] = worker.notifies(timeout=10, stop_after=1)
            times.append((time.perf_counter_ns() - began) / 1000)
            if not heard.payload.startswith("["):
                raise RuntimeError("the job was announced, and not handed off")
            worker.execute("select pgqueue.awake('idle')")
            prepares.execute("delete from pgqueue.jobs where queue = 'default'")
        return median(times)


def _connect(dsn: str) -> Connection:
    conn = psycopg.connect(dsn, autocommit=True, prepare_threshold=0)
    # CPU is measured: no commit needs to wait for the disk.
    conn.execute("set synchronous_commit = off")
    return conn
