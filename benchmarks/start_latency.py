"""How long does an idle worker take to start what was just enqueued?

From sending the enqueue (or, for a transaction that stays open after it, the commit) to the first line of an async
handler, in a worker process with default settings. Late is what starts long after the commit has returned. The worker
is met in two states: asleep, after pauses that spread evenly over the orders of magnitude; and run dry, a moment after
the last of a burst of jobs. There the worker may go idle between an enqueue's check and its commit, so that no NOTIFY
is sent: such a job is found by a poll. Beside it, in the same minutes, what PostgreSQL itself takes to bring a
notification from one process to another.

The bounds are for a job each 20 ms, from the sending of the enqueue: its start needs two durable commits, that of the
enqueue and that of the claim. The baseline is one durable statement that inserts a row and notifies, at the same pace,
from its sending to the notification at a listener.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import psycopg

from .harness import Bound, Connection, Report, Server, fill, median, percentile, sized
from .probe import CHANNEL, READY, probing

_SAMPLES = 100
_POLL_SAMPLES = 20
_STEADY_SAMPLES = sized(10_000, least=200)
_EVERY = 0.020

# Seconds: shortest and longest.
_PAUSES = (0.005, 1.2)
_PAUSES_RUN_DRY = (0.001, 0.1)

# More than a worker takes at once: it sees that there is much to do, and ends its idle registration.
_BURST = 60

# Seconds that a transaction stays open after its enqueue; None: a single statement.
_HELD = {
    "single statement": None,
    "transaction open 5 ms": 0.005,
    "transaction open 150 ms": 0.150,
}
_NOTIFY = "bare NOTIFY"
_INSERT_NOTIFY = "INSERT and NOTIFY"
_POLLING = "without LISTEN, poll interval 1 s"
_POLL_INTERVAL = 1.0

_LATE_MS = 60.0

_STEADY = "a job each 20 ms"
_STEADY_BASE = "INSERT and NOTIFY each 20 ms"
# Each in times of the median of the baseline.
_MOST = {50.0: 2.2, 99.0: 5.0, 99.9: 10.0}
_LATE_BOUND_PERCENT = 1.0


@dataclass(frozen=True, slots=True)
class _Latencies:
    """Milliseconds from sending the statement that commits, and from its return."""

    sent: list[float] = field(default_factory=list)
    committed: list[float] = field(default_factory=list)

    def add(self, sent: int, committed: int, came: int) -> None:
        self.sent.append((came - sent) / 1e6)
        self.committed.append((came - committed) / 1e6)

    @property
    def late(self) -> float:
        """Percent."""
        return 100 * sum(value > _LATE_MS for value in self.committed) / len(self.committed)


def run(server: Server) -> Report:
    latencies = _measure_steady(server) | _measure_listening(server) | {_POLLING: _measure_polling(server)}
    baseline = median(latencies[_STEADY_BASE].sent)
    bounds = [
        Bound(f"p{percent:g}, {_STEADY}, to the median of {_STEADY_BASE}", ratio, most)
        for percent, most in _MOST.items()
        for ratio in [percentile(latencies[_STEADY].sent, percent) / baseline]
    ]
    for how in _HELD:
        for state, each in (("asleep", latencies[how]), ("run dry", latencies[_after_burst(how)])):
            bounds.append(Bound(f"Percent late, {how}, {state}", each.late, _LATE_BOUND_PERCENT, is_ratio=False))
    slowest = max(latencies[_POLLING].sent)
    bounds.append(Bound(f"Longest ms to start, {_POLLING}", slowest, 1000 + _POLL_INTERVAL * 1000, is_ratio=False))
    return Report(
        f"start_latency: ms from enqueue or commit to the handler; {_STEADY_SAMPLES:,} and {_SAMPLES} samples each",
        ("", "median", "p95", "p99", "p99.9", f"{_LATE_MS:g} ms after commit", "median to INSERT and NOTIFY"),
        [_row(how, each.sent, each.late, latencies[_STEADY_BASE].sent) for how, each in latencies.items()],
        {
            how: {
                "median_ms": median(each.sent),
                "p95_ms": percentile(each.sent, 95),
                "p99_ms": percentile(each.sent, 99),
                "p99_9_ms": percentile(each.sent, 99.9),
                "max_ms": max(each.sent),
                "max_after_commit_ms": max(each.committed),
                "late_percent": each.late,
                "samples": len(each.sent),
            }
            for how, each in latencies.items()
        },
        bounds,
    )


def _after_burst(how: str) -> str:
    return f"{how}, worker run dry"


def _measure_steady(server: Server) -> dict[str, _Latencies]:
    """Measure in turn, 100 of one and 100 of the other, so that both meet the same machine."""
    latencies = {_STEADY_BASE: _Latencies(), _STEADY: _Latencies()}
    with ExitStack() as stack:
        dsn = stack.enter_context(server.database("start"))
        connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        connection.execute("create table ping (n bigint)")
        _enqueue(connection, READY)
        worker = stack.enter_context(probing("ping", dsn))
        listener = stack.enter_context(probing("listen", dsn))
        for start in range(0, _STEADY_SAMPLES, 100):
            for how, probe in ((_STEADY_BASE, listener), (_STEADY, worker)):
                sent = []
                began = time.monotonic()
                for n in range(100):
                    time.sleep(max(0.0, began + n * _EVERY - time.monotonic()))
                    number = start + n
                    sent.append(
                        (
                            number,
                            _send(connection, number, None) if how == _STEADY else _notify(connection, number, how),
                        )
                    )
                for number, times in sent:
                    latencies[how].add(*times, probe.event(number))
    return latencies


def _measure_listening(server: Server) -> dict[str, _Latencies]:
    ways = [_NOTIFY, _INSERT_NOTIFY, *_HELD, *map(_after_burst, _HELD)]
    latencies = {how: _Latencies() for how in ways}
    plan = ways * _SAMPLES
    random.shuffle(plan)
    with ExitStack() as stack:
        dsn = stack.enter_context(server.database("start"))
        connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        connection.execute("create table ping (n bigint)")
        _enqueue(connection, READY)
        worker = stack.enter_context(probing("ping", dsn))
        listener = stack.enter_context(probing("listen", dsn))
        held = _HELD | {_after_burst(how): seconds for how, seconds in _HELD.items()}
        for number, how in enumerate(plan):
            if how in held:
                if how in _HELD:
                    _pause(_PAUSES)
                else:
                    fill(connection, _BURST)
                    _pause(_PAUSES_RUN_DRY)
                latencies[how].add(*_send(connection, number, held[how]), worker.event(number))
            else:
                _pause(_PAUSES)
                latencies[how].add(*_notify(connection, number, how), listener.event(number))
    return latencies


def _measure_polling(server: Server) -> _Latencies:
    latencies = _Latencies()
    with server.database("poll") as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        _enqueue(connection, READY)
        with probing("ping", "--poll", str(_POLL_INTERVAL), dsn) as worker:
            for number in range(_POLL_SAMPLES):
                _pause(_PAUSES)
                latencies.add(*_send(connection, number, None), worker.event(number))
    return latencies


def _pause(between: tuple[float, float]) -> None:
    shortest, longest = between
    time.sleep(shortest * (longest / shortest) ** random.random())


def _send(connection: Connection, number: int, held: float | None) -> tuple[int, int]:
    """Enqueue, and return when the statement that commits was sent, and when it returned, in nanoseconds."""
    if held is None:
        sent = time.monotonic_ns()
        _enqueue(connection, number)
        return sent, time.monotonic_ns()
    connection.execute("begin")
    _enqueue(connection, number)
    time.sleep(held)
    sent = time.monotonic_ns()
    connection.execute("commit")
    return sent, time.monotonic_ns()


def _enqueue(connection: Connection, number: int) -> None:
    connection.execute("select pgqueue.enqueue('ping', jsonb_build_object('n', %s::bigint))", (number,))


def _notify(connection: Connection, number: int, how: str) -> tuple[int, int]:
    sent = time.monotonic_ns()
    if how == _NOTIFY:
        connection.execute("select pg_notify(%s, %s)", (CHANNEL, str(number)))
    else:
        connection.execute(
            "with kept as (insert into ping values (%s)) select pg_notify(%s, %s)", (number, CHANNEL, str(number))
        )
    return sent, time.monotonic_ns()


def _row(how: str, values: Sequence[float], late: float, baseline: Sequence[float]) -> tuple[str, ...]:
    return (
        how,
        f"{median(values):.2f}",
        f"{percentile(values, 95):.2f}",
        f"{percentile(values, 99):.2f}",
        f"{percentile(values, 99.9):.2f}",
        f"{late:.1f} %",
        f"{median(values) / median(baseline):.1f}",
    )
