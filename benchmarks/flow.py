"""How soon does a job of a steady flow start, how many go through, and what does each cost the server?

Producers enqueue one job a commit, at a rate in all or as fast as they can; one worker process with default settings
runs them. Start is counted from the return of the enqueue to the first line of the handler. Beside it, in turns in the
same run, the bare loop: an INSERT with NOTIFY, a claim, a DELETE with a row of history, each a durable commit, by one
connection that listens and works.

The last rows delay every commit by 10 ms (`commit_delay`), as a network disk or a synchronous standby does: what
producers reach beside an idle worker, to what they reach where nothing is notified (`pgqueue.notify = off`).
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg.conninfo import make_conninfo

from .bare import INSERT, TABLES
from .cpu import server_seconds
from .harness import Bound, Connection, Report, Server, median, percentile, sized
from .probe import EVENT, READY, command

# By jobs a second; 0: as fast as they can.
_RATES = (200, 1000, 0)
_PRODUCERS = 4
_ROUNDS = 3
_SECONDS = sized(6_000, least=2_000) / 1000
_OURS, _BARE = "pgqueue", "the bare loop"
# In times of the bare loop, by jobs a second.
_START_TO_BARE = {200: 0.6, 1000: 1.9}
_CPU_TO_BARE = {200: 2.2, 1000: 1.8}

_SLOW_COMMITS = "-c commit_delay=10000 -c commit_siblings=0"
_SLOW_PRODUCERS = 16
_QUIET = "-c pgqueue.notify=off"
_SLOW_TO_QUIET = 0.8

_ENQUEUE = "select pgqueue.enqueue('ping', jsonb_build_object('n', %s::bigint))"


@dataclass(frozen=True, slots=True)
class _Flow:
    """Of one run: milliseconds from the return of the enqueue to the start, jobs a second, and microseconds of CPU."""

    p50: float
    p99: float
    rate: float
    cpu_us: float


def run(server: Server) -> Report:
    flows: dict[tuple[int, str], list[_Flow]] = {(rate, way): [] for rate in _RATES for way in (_OURS, _BARE)}
    slow: dict[str, list[float]] = {"beside an idle worker": [], "notify = off": []}
    for _ in range(_ROUNDS):
        for rate in _RATES:
            for way in (_OURS, _BARE):
                with server.database("flow") as dsn:
                    flows[rate, way].append(_measure(dsn, way, rate))
        for how, options in (("beside an idle worker", _SLOW_COMMITS), ("notify = off", f"{_SLOW_COMMITS} {_QUIET}")):
            with server.database("slow") as dsn:
                slow[how].append(_measure_slow(dsn, options))
    rows, figures, bounds = [], {}, []
    for rate in _RATES:
        ours, bare = (_median(flows[rate, way]) for way in (_OURS, _BARE))
        for way, each in ((_OURS, ours), (_BARE, bare)):
            name = f"{way}, {f'{rate} jobs/s' if rate else 'flat out'}"
            rows.append((name, f"{each.p50:.2f}", f"{each.p99:.2f}", f"{each.rate:,.0f}", f"{each.cpu_us:,.0f}"))
            figures[name] = {
                "start_p50_ms": each.p50,
                "start_p99_ms": each.p99,
                "jobs_per_s": each.rate,
                "cpu_us_per_job": each.cpu_us,
            }
        if rate:
            most = _START_TO_BARE[rate]
            bounds.append(Bound(f"start p50 to the bare loop's, {rate} jobs/s", ours.p50 / bare.p50, most))
            most = _CPU_TO_BARE[rate]
            bounds.append(Bound(f"server CPU to the bare loop's, {rate} jobs/s", ours.cpu_us / bare.cpu_us, most))
    reached = {how: median(rates) for how, rates in slow.items()}
    for how, each_rate in reached.items():
        name = f"{_SLOW_PRODUCERS} producers, commits of 10 ms, {how}"
        rows.append((name, "", "", f"{each_rate:,.0f}", ""))
        figures[name] = {"jobs_per_s": each_rate}
    ratio = reached["beside an idle worker"] / reached["notify = off"]
    bounds.append(Bound("commits of 10 ms, to notify = off", ratio, _SLOW_TO_QUIET, at_least=True))
    return Report(
        f"flow: {_PRODUCERS} producers, {_SECONDS:g} s each, median of {_ROUNDS}",
        ("", "start p50, ms", "start p99, ms", "jobs/s", "server CPU, us a job"),
        rows,
        figures,
        bounds,
    )


def _measure(dsn: str, way: str, rate: int) -> _Flow:
    kind, statement = ("ping", _ENQUEUE) if way == _OURS else ("bare", INSERT)
    with psycopg.connect(dsn, autocommit=True) as connection:
        if way == _BARE:
            connection.execute(TABLES.encode())
        else:
            connection.execute(_ENQUEUE.encode(), (READY,))
        with _recording(kind, dsn) as starts:
            # Not measured: sessions plan their statements.
            _produce(dsn, statement, 100, 2, 1.0)
            _sleep_until_idle(connection, way)
            before = server_seconds(connection)
            sent = _produce(dsn, statement, rate, _PRODUCERS, _SECONDS)
            _wait_for(starts, sent)
            # Sessions that have ended are counted when the server has waited for them.
            cpu = server_seconds(connection) - before
    waits = [(starts[number] - returned) / 1e6 for number, returned in sent.items()]
    # Not from when the producers were made, which takes them a second.
    took = (max(starts[number] for number in sent) - min(sent.values())) / 1e9
    return _Flow(percentile(waits, 50), percentile(waits, 99), len(sent) / took, 1e6 * cpu / len(sent))


def _measure_slow(dsn: str, options: str) -> float:
    """Return the jobs a second that producers commit, each commit being delayed."""
    slow = make_conninfo(dsn, options=options)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_ENQUEUE.encode(), (READY,))
        with _recording("ping", dsn) as starts:
            _sleep_until_idle(connection, _OURS)
            sent = _produce(slow, _ENQUEUE, 0, _SLOW_PRODUCERS, _SECONDS)
            _wait_for(starts, sent)
    return len(sent) / _SECONDS


@contextmanager
def _recording(kind: str, dsn: str) -> Iterator[dict[int, int]]:
    """Run a probe that works; yields when each number started, in nanoseconds, as it comes."""
    starts: dict[int, int] = {}
    ready = threading.Event()

    def read(process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        while len(data := process.stdout.read(EVENT.size)) == EVENT.size:
            number, at = EVENT.unpack(data)
            if number == READY:
                ready.set()
            starts[number] = at

    with subprocess.Popen(command(kind, dsn), stdout=subprocess.PIPE) as process:
        reader = threading.Thread(target=read, args=(process,))
        reader.start()
        try:
            if not ready.wait(30):
                raise RuntimeError(f"the {kind} probe is not ready; exit code {process.poll()}")
            yield starts
        finally:
            process.terminate()
            reader.join()


def _produce(dsn: str, statement: str, rate: int, producers: int, seconds: float) -> dict[int, int]:
    """Enqueue from processes of their own; returns when each call returned, in nanoseconds."""
    arguments = [dsn, statement, str(rate / producers), str(seconds)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.producer", *arguments, str(n / producers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for n in range(producers)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.read(EVENT.size)
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    sent: dict[int, int] = {}
    for process in processes:
        data, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"a producer ended with exit code {process.returncode}")
        sent.update(EVENT.iter_unpack(data))
    return sent


def _sleep_until_idle(connection: Connection, way: str) -> None:
    deadline = time.monotonic() + 30
    question = "select exists (select from pgqueue.idle_workers where handoff_channel is not null)"
    while way == _OURS and connection.execute(question).fetchone() != (True,):
        if time.monotonic() > deadline:
            raise RuntimeError("the worker did not become idle within 30 s")
        time.sleep(0.1)
    time.sleep(1.5)


def _wait_for(starts: dict[int, int], sent: dict[int, int]) -> None:
    deadline = time.monotonic() + 60
    while not sent.keys() <= starts.keys():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(sent.keys() - starts.keys())} jobs did not start within a minute")
        time.sleep(0.02)


def _median(flows: Sequence[_Flow]) -> _Flow:
    return _Flow(*(median([getattr(flow, name) for flow in flows]) for name in ("p50", "p99", "rate", "cpu_us")))
