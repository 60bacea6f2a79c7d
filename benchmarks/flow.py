"""How soon does a job of a steady flow start, how many go through, and what does each cost the server?

Producers enqueue one job a commit, at a rate in all or as fast as they can; worker processes with default settings run
them. Start is counted from the return of the enqueue to the first line of the handler. Beside it, in turns in the same
run, the bare loop: an INSERT with NOTIFY, a claim, a DELETE with a row of history, each a durable commit, by one
connection that listens and works, for each worker. With `--rivals` the other queues of `make rivals` take their turns
too; one that cannot be installed has the reason in its row. The bounds are those of four producers and one worker, and
of the ratios of the rounds.

The last rows delay every commit by 10 ms (`commit_delay`), as a network disk or a synchronous standby does: what
producers reach beside an idle worker, to what they reach where nothing is notified (`pgqueue.notify = off`).
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import psycopg
from psycopg.conninfo import make_conninfo

from .bare import INSERT, TABLES
from .cpu import server_seconds
from .harness import Bound, Connection, Report, Server, median, paired, percentile, rounds, sized
from .probe import EVENT, READY, command
from .rivals.measure import Flow
from .rivals.measure import flow as measure_rival
from .rivals.program import NotRunError, install
from .rivals.queues import QUEUES, Queue

# By jobs a second; 0: as fast as they can.
_RATES = (200, 1000, 0)
_ROUNDS = rounds()
# Of the rows without a bound.
_FEW_ROUNDS = 3
_SECONDS = sized(6_000, least=2_000) / 1000
_OURS, _BARE = "pgqueue", "the bare loop"
# In times of the bare loop, by jobs a second: the bound, and the aim.
_START_TO_BARE = {200: (0.6, 0.3), 1000: (1.9, 1.2)}
_CPU_TO_BARE = {200: (2.2, 1.6), 1000: (1.8, 1.3)}

_SLOW_COMMITS = "-c commit_delay=10000 -c commit_siblings=0"
_SLOW_PRODUCERS = 16
_QUIET = "-c pgqueue.notify=off"
_SLOW_TO_QUIET = 0.8
_BESIDE_IDLE, _WITHOUT = "beside an idle worker", "notify = off"

_ENQUEUE = "select pgqueue.enqueue('ping', jsonb_build_object('n', %s::bigint))"


class _Setting(NamedTuple):
    """Of a flow; `rate`: jobs a second of all producers, 0 being as fast as they can."""

    rate: int
    producers: int = 4
    workers: int = 1

    def __str__(self) -> str:
        parts = [f"{self.rate} jobs/s" if self.rate else "flat out"]
        if self.producers != 4:
            parts.append(f"{self.producers} producer{'s' * (self.producers > 1)}")
        if self.workers != 1:
            parts.append(f"{self.workers} workers")
        return ", ".join(parts)


_BOUNDED = [_Setting(rate) for rate in _RATES]
_OTHERS = [_Setting(rate, *how) for rate in _RATES for how in ((1, 1), (4, 2), (1, 2))]
# Those that keep up with a job each 20 ms, as they come and as they advise.
_RIVALS = [queue for queue in QUEUES if queue.paced and not queue.is_ours]

_Flows = dict[tuple[_Setting, str], list[Flow]]


def run(server: Server, *, rivals: bool = False) -> Report:
    flows: _Flows = {}
    slow: dict[str, list[float]] = {_BESIDE_IDLE: [], _WITHOUT: []}
    not_run: dict[str, str] = {}
    for n in range(_ROUNDS):
        for setting in [*_BOUNDED, *(_OTHERS if n < _FEW_ROUNDS else ())]:
            for way in (_OURS, _BARE):
                with server.database("flow") as dsn:
                    flows.setdefault((setting, way), []).append(_measure(dsn, way, setting))
            for queue in _RIVALS if rivals and n < _FEW_ROUNDS else ():
                _measure_rival(server, queue, setting, flows, not_run)
        for how, options in ((_BESIDE_IDLE, _SLOW_COMMITS), (_WITHOUT, f"{_SLOW_COMMITS} {_QUIET}")):
            with server.database("slow") as dsn:
                slow[how].append(_measure_slow(dsn, options))
    rows, figures = [], {}
    for (setting, way), each in flows.items():
        name, middle = f"{way}, {setting}", _median(each)
        rows.append((name, f"{middle.p50:.2f}", f"{middle.p99:.2f}", f"{middle.rate:,.0f}", f"{middle.cpu_us:,.0f}"))
        figures[name] = {
            "start_p50_ms": middle.p50,
            "start_p99_ms": middle.p99,
            "jobs_per_s": middle.rate,
            "cpu_us_per_job": middle.cpu_us,
        }
    rows += [(queue, f"not run: {why}", "", "", "") for queue, why in not_run.items()]
    for how, rates in slow.items():
        name = f"{_SLOW_PRODUCERS} producers, commits of 10 ms, {how}"
        rows.append((name, "", "", f"{median(rates):,.0f}", ""))
        figures[name] = {"jobs_per_s": median(rates)}
    return Report(
        f"flow: 4 producers and one worker where no other number is given, {_SECONDS:g} s each, median of {_ROUNDS}"
        f" ({min(_FEW_ROUNDS, _ROUNDS)} in the rows without a bound)",
        ("", "start p50, ms", "start p99, ms", "jobs/s", "server CPU, us a job"),
        rows,
        figures,
        _bounds(flows, slow),
    )


def _bounds(flows: _Flows, slow: dict[str, list[float]]) -> list[Bound]:
    """Compare ours with the bare loop of the same round."""
    bounds = []
    for setting in _BOUNDED:
        ours, bare = flows[setting, _OURS], flows[setting, _BARE]
        if setting.rate:
            start = paired([each.p50 for each in ours], [each.p50 for each in bare])
            most, aim = _START_TO_BARE[setting.rate]
            bounds.append(Bound(f"start p50 to the bare loop's, {setting}", start, most, aim=aim))
            cpu = paired([each.cpu_us for each in ours], [each.cpu_us for each in bare])
            most, aim = _CPU_TO_BARE[setting.rate]
            bounds.append(Bound(f"server CPU to the bare loop's, {setting}", cpu, most, aim=aim))
    ratio = paired(slow[_BESIDE_IDLE], slow[_WITHOUT])
    return [*bounds, Bound("commits of 10 ms, to notify = off", ratio, _SLOW_TO_QUIET, at_least=True, aim=0.9)]


def _measure_rival(server: Server, queue: Queue, setting: _Setting, flows: _Flows, not_run: dict[str, str]) -> None:
    if queue.name in not_run:
        return
    try:
        install(queue)
        with server.database("rival", empty=True) as dsn:
            found = measure_rival(queue, dsn, setting.rate, setting.producers, setting.workers, _SECONDS)
    except NotRunError as error:
        sys.stderr.write(f"{queue.name} is not run: {error}\n")
        not_run[queue.name] = error.why
    else:
        flows.setdefault((setting, queue.name), []).append(found)


def _measure(dsn: str, way: str, setting: _Setting) -> Flow:
    kind, statement = ("ping", _ENQUEUE) if way == _OURS else ("bare", INSERT)
    with psycopg.connect(dsn, autocommit=True) as connection:
        if way == _BARE:
            connection.execute(TABLES.encode())
        with ExitStack() as running:
            starts: dict[int, int] = {}
            for n in range(setting.workers):
                ready = running.enter_context(_recording(kind, dsn, starts))
                if way == _OURS:
                    _wait_until_idle(connection, n + 1)
                elif not ready.wait(30):
                    raise RuntimeError("the bare loop is not ready within 30 s")
            # Not measured: sessions plan their statements.
            _produce(dsn, statement, 100, 2, 1.0)
            time.sleep(1.5)
            before = server_seconds(connection)
            sent = _produce(dsn, statement, setting.rate, setting.producers, _SECONDS)
            _wait_for(starts, sent)
            # Sessions that have ended are counted when the server has waited for them.
            cpu = server_seconds(connection) - before
    waits = [(starts[number] - returned) / 1e6 for number, returned in sent.items()]
    # Not from when the producers were made, which takes them a second.
    took = (max(starts[number] for number in sent) - min(sent.values())) / 1e9
    return Flow(percentile(waits, 50), percentile(waits, 99), len(sent) / took, 1e6 * cpu / len(sent))


def _measure_slow(dsn: str, options: str) -> float:
    """Return the jobs a second that producers commit, each commit being delayed."""
    slow = make_conninfo(dsn, options=options)
    with psycopg.connect(dsn, autocommit=True) as connection:
        starts: dict[int, int] = {}
        with _recording("ping", dsn, starts):
            _wait_until_idle(connection, 1)
            time.sleep(1.5)
            sent = _produce(slow, _ENQUEUE, 0, _SLOW_PRODUCERS, _SECONDS)
            _wait_for(starts, sent)
    return len(sent) / _SECONDS


@contextmanager
def _recording(kind: str, dsn: str, starts: dict[int, int]) -> Iterator[threading.Event]:
    """Run a probe that works, and note when each number started, in nanoseconds, as it comes; READY sets the event."""
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
            yield ready
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


def _wait_until_idle(connection: Connection, workers: int) -> None:
    deadline = time.monotonic() + 30
    question = "select count(distinct worker) from pgqueue.idle_workers where handoff_channel is not null"
    while connection.execute(question).fetchone() != (workers,):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{workers} workers did not become idle within 30 s")
        time.sleep(0.1)


def _wait_for(starts: dict[int, int], sent: dict[int, int]) -> None:
    deadline = time.monotonic() + 60
    while not sent.keys() <= starts.keys():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(sent.keys() - starts.keys())} jobs did not start within a minute")
        time.sleep(0.02)


def _median(flows: Sequence[Flow]) -> Flow:
    return Flow(*(median([getattr(flow, name) for flow in flows]) for name in ("p50", "p99", "rate", "cpu_us")))
