"""The processes that are measured: `python -m benchmarks.probe ping|bare|listen|drain|work DSN`.

ping is a worker whose handler writes an event, bare the bare loop, listen a bare LISTEN that do; drain is a worker that
runs no-ops until the queue is empty, work one that goes on. An event is 16 bytes on stdout: its number, and when it
came by CLOCK_MONOTONIC, which is one clock for all processes of a machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg

from pgqueue import App
from pgqueue.config import WorkerConfig
from pgqueue.worker import Worker
from pgqueue.worker.run.running_jobs import RunningJobs, create
from pgqueue.worker.tell.tell import Counts

from .bare import CLAIM, END

EVENT = struct.Struct("<qq")

# The event of a probe that is ready. A worker sends it by running the job of that number.
READY = -1

CHANNEL = "pgqueue_bench"


class Probe:
    """The measuring side of a probe process that writes events."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._process = process
        self._file = process.stdout.fileno()

    def event(self, number: int, patience: float = 30.0) -> int:
        """Wait for event `number` and return when it came, in nanoseconds."""
        ready, _, _ = select.select([self._file], [], [], patience)
        data = os.read(self._file, EVENT.size) if ready else b""
        if len(data) != EVENT.size:
            raise RuntimeError(f"no event {number} within {patience:g} s; exit code {self._process.poll()}")
        found, at = EVENT.unpack(data)
        if found != number:
            raise RuntimeError(f"event {found} came instead of {number}")
        return int(at)


@contextmanager
def probing(*arguments: str) -> Iterator[Probe]:
    """Run a probe process that writes events until the end of the `with` block."""
    with subprocess.Popen(command(*arguments), stdout=subprocess.PIPE) as process:
        try:
            probe = Probe(process)
            probe.event(READY)
            yield probe
        finally:
            process.terminate()


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", f"{__package__}.probe", *arguments]


def _write(number: int) -> None:
    os.write(1, EVENT.pack(number, time.monotonic_ns()))


async def _ping(dsn: str, poll_interval: float | None) -> None:
    app = App()

    @app.task(name="ping")
    async def ping(n: int) -> None:
        _write(n)

    _add_noop(app)
    config = WorkerConfig() if poll_interval is None else WorkerConfig(listen=False, poll_interval=poll_interval)
    worker = Worker(app, dsn, config)
    worker.handle_signals()
    await worker.run()


def _add_noop(app: App) -> None:
    @app.task(name="noop")
    async def noop() -> None:
        pass


async def _drain(dsn: str, sync: bool, until_empty: bool = True, slots: int | None = None) -> None:
    app = App()
    if slots is not None:

        @app.task(name="noop")
        async def pause() -> None:
            await asyncio.sleep(0.001)

    elif sync:

        @app.task(name="noop")
        def noop() -> None:
            pass

    else:
        _add_noop(app)

    config = WorkerConfig(until_empty=until_empty)
    worker = Worker(app, dsn, config if slots is None else replace(config, concurrency=slots))
    worker.handle_signals()
    if not until_empty:
        worker.record_running_jobs(RunningJobs(create(1000)))
    await worker.run()


def _count_nothing() -> None:
    for name in ("succeeded", "ended"):
        setattr(Counts, name, lambda *_: None)


def _listen(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"listen {CHANNEL}".encode())
        _write(READY)
        for notification in connection.notifies():
            _write(int(notification.payload))


def _bare(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("listen bare")
        _write(READY)
        while True:
            while claimed := connection.execute(CLAIM.encode()).fetchone():
                job_id, number = claimed
                _write(number)
                connection.execute(END.encode(), (job_id,))
            for _ in connection.notifies(stop_after=1):
                pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("ping", "bare", "drain", "work", "listen"))
    parser.add_argument("dsn")
    parser.add_argument("--poll", type=float, help="do not listen, poll at this interval")
    parser.add_argument("--sync", action="store_true", help="run the no-ops in threads")
    parser.add_argument("--slots", type=int, help="run jobs of a millisecond, N at a time")
    parser.add_argument("--uncounted", action="store_true", help="count and report nothing of what ends")
    options = parser.parse_args()
    if options.uncounted:
        _count_nothing()
    match options.kind:
        case "ping":
            asyncio.run(_ping(options.dsn, options.poll))
        case "drain":
            asyncio.run(_drain(options.dsn, options.sync, slots=options.slots))
        case "work":
            asyncio.run(_drain(options.dsn, options.sync, until_empty=False))
        case "bare":
            _bare(options.dsn)
        case "listen":
            _listen(options.dsn)


if __name__ == "__main__":
    main()
