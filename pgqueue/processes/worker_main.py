"""One worker process: a Worker with its signals, its health endpoint, and the control pipe to its supervisor."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from pgqueue.app import App
from pgqueue.config import WorkerConfig
from pgqueue.processes.control_pipe import ControlPipe
from pgqueue.processes.health import HealthServer
from pgqueue.processes.service_manager import ServiceManager
from pgqueue.worker import Worker, operator_signals
from pgqueue.worker.fleet import Fleet
from pgqueue.worker.presence import identity
from pgqueue.worker.process.ending import end_after, end_now
from pgqueue.worker.process.loops import Loop, keep_running

log = logging.getLogger("pgqueue.worker")

# Seconds that asyncio tasks of handlers have to end once the worker has, and the interpreter after that.
_TASKS_END_WITHIN = 1.0
_PATIENCE = 5.0

# The exit code when the worker raises.
_CANNOT_START = 2

# New objects between collections, if the application has left CPython's number. A job makes about ten objects, most of
# which live until its end is stored: with 700 they would be visited again and again.
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
    if code:
        # Threads that still run a handler would keep the process from ending; their jobs have ended.
        end_now(code)
    return code


def is_guest() -> bool:
    """Return whether the worker runs in a program that continues after it."""
    return _is_guest.get()


@contextmanager
def guest() -> Iterator[None]:
    """Run a worker in a program that continues after it: its process is not ended, its signal handlers come back."""
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
_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTTIN,
    signal.SIGPIPE,
)


def _spare_collections() -> None:
    """Leave out of garbage collections what the application has loaded, and collect less often.

    A collection that walks all modules of an application takes some 10 ms or more, in which no job starts.
    """
    gc.collect()
    gc.freeze()
    threshold, *others = gc.get_threshold()
    if threshold in _THRESHOLDS:
        gc.set_threshold(_THRESHOLD, *others)


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
    serving = HealthServer(worker.status, worker.counts.entries)
    background: list[asyncio.Task[None]] = []
    over = False

    def kept(name: str, loop: Loop) -> asyncio.Task[None]:
        return keep_running(name, loop, config.name, lambda: over)

    code = _CANNOT_START
    try:
        background.append(kept("signals", operator_signals.keep_forever))
        if pipe is not None:
            # The name as the supervisor makes it: its own, a colon and a number.
            identity.set_supervisor(pipe.name.rpartition(":")[0], os.getppid())
            worker.record_running_jobs(pipe.open_running_jobs())
            pipe.carry_out(worker.retire)
            background.append(kept("reports", partial(_report, worker, pipe)))
        if health is not None:
            await serving.start(*health)
        if manager is not None:
            background.append(kept("service manager", partial(manager.notify_forever, worker.status)))
        await worker.run()
        if pipe is not None:
            pipe.report(worker.status())
            pipe.report_ends(worker.counts)
        code = worker.exit_code
        return code
    finally:
        over = True
        operator_signals.ignore()
        serving.close()
        for each in background:
            each.cancel()
        # A thread of asyncio.to_thread() that hangs would hang the loop's end.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        if not _is_guest.get():
            why = "a thread or a process that a handler has started keeps this process: ending without it"
            end_after(_PATIENCE, code, why)
            await _end_tasks(code)


async def _end_tasks(code: int) -> None:
    """End the asyncio tasks that handlers have left, for asyncio.run() would wait for them without a limit."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        _, left = await asyncio.wait(left, timeout=_TASKS_END_WITHIN)
    if left:
        names = ", ".join(sorted({_name(task) for task in left})[:5])
        end_now(code, f"{len(left)} asyncio tasks catch their cancellation: ending without them ({names})")


def _name(task: asyncio.Task[Any]) -> str:
    return getattr(task.get_coro(), "__qualname__", "") or task.get_name()


async def _report(worker: Worker | Fleet, pipe: ControlPipe) -> None:
    reports = asyncio.create_task(pipe.report_forever(worker.status, worker.counts))
    try:
        await worker.started.wait()
        # At once: the supervisor waits for it.
        pipe.report(worker.status())
        await reports
    finally:
        reports.cancel()
