"""One worker process: a Worker with its signals, its health endpoint, and the control pipe to its supervisor."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar

from pgqueue.app import App
from pgqueue.config import WorkerConfig
from pgqueue.processes.control_pipe import ControlPipe
from pgqueue.processes.health import Health
from pgqueue.processes.service_manager import ServiceManager
from pgqueue.worker import Worker, identity
from pgqueue.worker.fleet import Fleet

log = logging.getLogger("pgqueue.worker")

# Seconds that the interpreter may take to end once the worker has.
_PATIENCE = 5.0

# New objects between collections, where the application has left the number as CPython sets it. A job makes some ten,
# most of which live until its end is stored: at 700 they are looked at again and again.
_THRESHOLDS = (700, 2000)
_THRESHOLD = 10_000


def run_worker(
    app: App,
    dsns: Sequence[str],
    config: WorkerConfig,
    *,
    listen_dsns: Sequence[str] = (),
    health: tuple[str, int] | None = None,
    pipe: ControlPipe | None = None,
    manager: ServiceManager | None = None,
) -> int:
    """Work until a signal stops it; returns the exit code. `health` is where to serve it: host and port.

    `listen_dsns` has one for each of several `dsns`; that of a single one is in `config`. `manager` is told when the
    worker is ready and when it stops.
    """
    if not _is_guest.get():
        _spare_collections()
    code = asyncio.run(_run(app, dsns, config, listen_dsns, health, pipe, manager))
    if _is_guest.get():
        return code
    _end_soon(code)
    if code:
        # Threads that still run a handler would keep the process from ending; their jobs have ended.
        end_now(code)
    return code


@contextmanager
def guest() -> Iterator[None]:
    """Run a worker in a program that goes on after it: its process is not ended, its signal handlers come back."""
    kept = {number: signal.getsignal(number) for number in _SIGNALS}
    token = _is_guest.set(True)
    try:
        yield
    finally:
        _is_guest.reset(token)
        for number, handler in kept.items():
            # None: one that Python did not install.
            if handler is not None:
                signal.signal(number, handler)


_is_guest: ContextVar[bool] = ContextVar("pgqueue_worker_is_guest", default=False)
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN)


def _spare_collections() -> None:
    """Leave out of garbage collections what the application has loaded, and collect less often.

    A collection that walks all modules of an application takes some 10 ms or more, in which no job starts.
    """
    gc.collect()
    gc.freeze()
    threshold, *others = gc.get_threshold()
    if threshold in _THRESHOLDS:
        gc.set_threshold(_THRESHOLD, *others)


def end_now(code: int) -> None:
    """End this process, even if threads still run in it."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


async def _run(
    app: App,
    dsns: Sequence[str],
    config: WorkerConfig,
    listen_dsns: Sequence[str],
    health: tuple[str, int] | None,
    pipe: ControlPipe | None,
    manager: ServiceManager | None,
) -> int:
    worker = Worker(app, dsns[0], config) if len(dsns) == 1 else Fleet(app, dsns, config, listen_dsns)
    worker.handle_signals()
    serving = Health(worker.status, worker.counts.entries)
    background: list[asyncio.Task[None]] = []
    try:
        if pipe is not None:
            # The name as the supervisor makes it: its own, a colon and a number.
            identity.set_supervisor(pipe.name.rpartition(":")[0], os.getppid())
            worker.record_running_jobs(pipe.open_running_jobs())
            pipe.carry_out(worker.retire)
            background.append(asyncio.create_task(_report(worker, pipe), name="pgqueue-reports"))
        if health is not None:
            await serving.start(*health)
        if manager is not None:
            background.append(asyncio.create_task(manager.notify_forever(worker.status), name="pgqueue-manager"))
        await worker.run()
        if pipe is not None:
            pipe.report(worker.status())
            pipe.report_ends(worker.counts)
        return worker.exit_code
    finally:
        _ignore_signals()
        serving.close()
        for each in background:
            each.cancel()
        # A thread of asyncio.to_thread() that hangs would hang the loop's end.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))


def _ignore_signals() -> None:
    # The loop's end gives TERM its default back: one that comes then would kill a process that has ended well.
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if loop.remove_signal_handler(number):
            signal.signal(number, signal.SIG_IGN)


async def _report(worker: Worker | Fleet, pipe: ControlPipe) -> None:
    reports = asyncio.create_task(pipe.report_forever(worker.status, worker.counts))
    try:
        await worker.started.wait()
        # At once: the supervisor waits for it.
        pipe.report(worker.status())
        await reports
    finally:
        reports.cancel()


def _end_soon(code: int) -> None:
    """End this process in some seconds, even if a thread or a child process of a handler still runs."""

    def end() -> None:
        log.warning("a thread or a process that a handler has started keeps this process: ending without it")
        end_now(code)

    guard = threading.Timer(_PATIENCE, end)
    guard.daemon = True
    guard.start()
