"""`pgqueue worker --processes N`: start worker processes, watch them, replace them, and end with them.

A worker process is the same command once more, at the other end of a control pipe: a fresh interpreter, so that it
inherits no thread, no connection and no event loop. The supervisor runs none of the user's code, and uses the database
only to give back the jobs of a crashed process.

There are N slots, with one process each. A process has the name of the supervisor with a number, the smallest free
one. A replacement that starts before its predecessor has ended has another number: two processes of one name would
give back each other's jobs.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pgqueue.config import WorkerConfig
from pgqueue.logs import how_many
from pgqueue.processes.crash import FIRST_PAUSE, SOON, CrashLoop, give_back
from pgqueue.processes.health import HealthServer
from pgqueue.processes.service_manager import ServiceManager
from pgqueue.processes.worker_process import CANNOT_START, SILENT, WorkerProcess
from pgqueue.worker.process.loops import Loop, keep_running
from pgqueue.worker.tell.counts import Totals

log = logging.getLogger("pgqueue.supervisor")

# Attempts to start a first process that is killed before it is ready; one that reports wrong settings is not retried.
_STARTS = 3

# Seconds between checks of memory, jobs and silence.
_CHECK = 0.5

# Seconds after which a replacement that is not ready is killed: while it hangs no other process can be replaced.
READY_WITHIN = 120.0

# Seconds beyond its shutdown timeout, after which a worker that is stopping is killed. Its process ends itself before
# that, if it can, and an orchestrator waits 15 s (docs/operate/).
_GRACE = 13.0

# A check that comes this many seconds late shows that the supervisor itself was suspended, not its workers.
_STALL = 5.0

# Rows of a running-jobs table for each job that may run: batches of accumulating tasks have several.
_ROWS_A_JOB = 16


@dataclass(slots=True, eq=False)
class _Slot:
    worker: WorkerProcess | None = None
    crash_loop: CrashLoop = field(default_factory=CrashLoop)
    renewing: bool = False


class Supervisor:
    """Keeps `processes` workers running, each the process of `command`.

    A worker over `max_memory` bytes, or with `max_jobs` jobs run, is replaced: its replacement starts first, and then
    it ends with the last of its running jobs. Those have `replace_timeout` seconds; then it is stopped as by TERM.
    `config` is that of the workers.
    """

    def __init__(
        self,
        command: list[str],
        dsns: Sequence[str],
        config: WorkerConfig,
        processes: int,
        *,
        max_memory: int | None = None,
        max_jobs: int | None = None,
        replace_timeout: float = 3600.0,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._command = command
        self._dsns = tuple(dsns)
        self._config = config
        self._max_memory = max_memory
        self._max_jobs = max_jobs
        self._replace_timeout = replace_timeout
        self._environment = dict(environment)
        self._slots = [_Slot() for _ in range(processes)]
        self._workers: dict[int, WorkerProcess] = {}
        self._ended = Totals()
        self._starting: set[int] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._watches: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._at_once: int | None = None
        self._quiet = False
        self._rolling = False
        self._renewal = asyncio.Lock()
        self._began = time.monotonic()
        self._all_well = True
        self._replaced = 0

    async def run(self, health: tuple[str, int] | None = None, manager: ServiceManager | None = None) -> int:
        """Work until stopped, or, with `until_empty`, until all workers have ended; returns the exit code.

        `health` is where to serve it; `manager` gets a report when a worker is ready, at a rolling restart, and at the
        end.

        0: all ended well. 1: jobs were cut off, or a worker had to be killed, or none could be started. 2: the first
        worker reported wrong settings. 128 + signal: ended at once, by a second signal.
        """
        serving = HealthServer(self.status, self._ended.entries)
        if health is not None:
            await serving.start(*health)
        self._handle_signals()
        loops: dict[str, Loop] = {"checking": self._check_forever}
        if manager is not None:
            loops["service manager"] = partial(manager.notify_forever, self.status)
        background = [keep_running(name, loop, self._config.name, lambda: True) for name, loop in loops.items()]
        try:
            code = await self._start_first()
            if code is None:
                slots = [asyncio.create_task(self._keep(slot)) for slot in self._slots]
                stopping = asyncio.create_task(self._stopping.wait())
                everything: asyncio.Future[Any] = asyncio.gather(*slots)
                until: list[asyncio.Future[Any]] = [everything, stopping]
                await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)
                await self._outlast_replaced()
                stopping.cancel()
                # While stopping, all of these come to an end by themselves.
                await self._end_all()
                await asyncio.gather(everything, stopping, *self._background, return_exceptions=True)
            await self._end_all()
        finally:
            for task in background:
                task.cancel()
            serving.close()
            for worker in self._workers.values():
                worker.send(signal.SIGKILL)
        if self._at_once is not None:
            return 128 + self._at_once
        return code or (0 if self._all_well else 1)

    def status(self) -> dict[str, Any]:
        """Return the status of all workers, for operators."""
        workers = [worker.as_status() for worker in self._workers.values()]
        ready = sum(bool(each["ready"]) for each in workers)
        summed = ("running", "free", "buffered", "succeeded", "failed", "memory")
        sums = {name: sum(each.get(name) or 0 for each in workers) for name in summed}
        reasons = sorted({str(each["reason"]) for each in workers if each["reason"]})
        reason = "" if ready else "; ".join(reasons) or "no worker runs"
        if self._stopping.is_set():
            reason = "it stops"
        return {
            "supervisor": self._config.name,
            "pid": os.getpid(),
            "ready": ready > 0 and not self._stopping.is_set(),
            "reason": reason,
            "stopping": self._stopping.is_set(),
            "reloading": self._rolling,
            "processes": len(self._slots),
            "ready_processes": ready,
            "replaced": self._replaced,
            "uptime": round(time.monotonic() - self._began, 3),
            **sums,
            "workers": workers,
        }

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            # Inherited: the kernel would not keep the exit codes of workers.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, number)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN):
            loop.add_signal_handler(number, self._pass_on, number)

    def _on_stop(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._stopping.is_set():
            log.warning("second signal: ending %s at once", how_many(len(self._workers), "worker"))
            self._at_once = number
        else:
            log.info("%s: stopping %s", name, how_many(len(self._workers), "worker"))
        self._stopping.set()
        for worker in self._workers.values():
            worker.asked_to_end = True
            worker.send(number)

    def _on_hangup(self) -> None:
        if self._rolling:
            log.info("SIGHUP: a rolling restart is under way already")
        elif not self._stopping.is_set():
            self._rolling = True
            self._spawn(self._roll())

    def _pass_on(self, number: int) -> None:
        if number != signal.SIGTTIN:
            self._quiet = number == signal.SIGUSR1
        for worker in self._workers.values():
            # A process that is not ready has no signal handler yet, and would be killed by it.
            if worker.ready.is_set():
                worker.send(number)

    async def _start_first(self) -> int | None:
        """Start one worker alone, so that wrong settings are reported once and not N times."""
        slot = self._slots[0]
        for left in reversed(range(_STARTS)):
            worker = await self._start(slot)
            if worker is not None:
                await self._until_ready(worker)
                if worker.ready.is_set() or worker.has_run or self._stopping.is_set():
                    # A job may kill it before it reports that it is ready.
                    return None
                if worker.code == 0:
                    # It was stopped, or out of jobs, before it could report that it was ready.
                    return None
                if worker.code == CANNOT_START:
                    return CANNOT_START
            if left:
                await self._pause(FIRST_PAUSE)
            if self._stopping.is_set():
                return None
        log.error("no worker could be started")
        return 1

    async def _keep(self, slot: _Slot) -> None:
        """Keep a worker in this slot."""
        while not self._stopping.is_set():
            worker = slot.worker
            if worker is None:
                worker = await self._start(slot)
            if worker is not None:
                await worker.left.wait()
                if slot.worker is not worker:
                    # It has its replacement.
                    continue
                slot.worker = None
                if worker.code == 0 and self._config.until_empty:
                    return
            self._replaced += 1
            await self._pause(slot.crash_loop.pause_after(worker))

    async def _pause(self, seconds: float) -> None:
        """Wait, or until a stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _start(self, slot: _Slot | None) -> WorkerProcess | None:
        """Start a worker, in this slot; None when that was not possible."""
        taken = self._workers.keys() | self._starting
        number = next(n for n in range(1, len(taken) + 2) if n not in taken)
        # Taken at once: several may start at a time.
        self._starting.add(number)
        name = f"{self._config.name}:{number}"
        most_jobs = _ROWS_A_JOB * self._config.concurrency
        try:
            worker = await WorkerProcess.start(self._command, name, number, self._environment, most_jobs)
        except (OSError, RuntimeError) as error:
            # asyncio has a thread wait for each child before Python 3.12: there may be none.
            log.error("worker %s cannot be started: %s", name, error)
            return None
        finally:
            self._starting.discard(number)
        # Nothing is awaited in between: the number is never free.
        # For all processes together: the counts of ended ones are kept.
        worker.ended = self._ended
        self._workers[number] = worker
        if slot is not None:
            slot.worker = worker
        asyncio.get_running_loop().add_reader(worker.reports, self._hear, worker)
        watch = asyncio.create_task(self._watch(worker), name=f"pgqueue-watch-{name}")
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        log.info("%s starts", worker)
        if self._stopping.is_set():
            # The signal came while it was made.
            worker.asked_to_end = True
            worker.send(signal.SIGTERM)
        return worker

    async def _until_ready(self, worker: WorkerProcess, within: float | None = None) -> bool:
        # Also until a stop: a process that hangs at its start must not keep us from ending.
        waiting = [asyncio.create_task(event.wait()) for event in (worker.ready, worker.gone, self._stopping)]
        try:
            await asyncio.wait(waiting, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        return worker.ready.is_set() and not worker.gone.is_set()

    def _hear(self, worker: WorkerProcess) -> None:
        if not worker.read_reports():
            asyncio.get_running_loop().remove_reader(worker.reports)
        elif not worker.ready.is_set() and worker.status.get("started"):
            worker.ready.set()
            log.info("%s is ready", worker)
            if self._quiet:
                worker.send(signal.SIGUSR1)

    async def _watch(self, worker: WorkerProcess) -> None:
        """Wait for a worker's end, report it, and give back its jobs if it crashed."""
        code = await worker.process.wait()
        # Its last reports are in the pipe.
        self._hear(worker)
        asyncio.get_running_loop().remove_reader(worker.reports)
        planned = worker.is_planned_end(code, self._config.until_empty)
        worker.code = code
        if planned and worker.ended_well(code):
            log.info("%s has ended", worker)
        elif planned:
            self._all_well = False
            log.warning("%s %s", worker, worker.how_it_ended())
        elif code != CANNOT_START or any(each.ready.is_set() for each in self._workers.values()):
            # Else it is the first one, and has reported its error itself.
            log.error("%s %s", worker, worker.how_it_ended())
        try:
            held = worker.jobs()
            worker.has_run = bool(held)
        finally:
            worker.close()
        # Its slot is free; its number only when its jobs are given back.
        worker.gone.set()
        worker.left.set()
        try:
            if not planned and (worker.ready.is_set() or held):
                await give_back(self._dsns, worker, held)
        finally:
            self._workers.pop(worker.number)

    async def _outlast_replaced(self) -> None:
        """Wait, or until a stop, for those that were replaced: their running jobs have `replace_timeout` seconds."""
        while not self._stopping.is_set() and not all(worker.gone.is_set() for worker in self._workers.values()):
            await self._pause(0.1)

    async def _end_all(self) -> None:
        """Wait until all have ended; kill those that do not."""
        patience = self._config.shutdown_timeout + _GRACE
        deadline = time.monotonic() + patience
        while self._watches:
            await asyncio.wait(self._watches, timeout=0.1)
            alive = [worker for worker in self._workers.values() if not worker.gone.is_set()]
            now = time.monotonic()
            if self._at_once is not None:
                deadline = min(deadline, now + 2.0)
            if not alive and now < deadline:
                # Jobs of a crashed one may still be given back: a hanging database must not hang this.
                deadline = min(deadline, now + 3.0)
            elif now >= deadline:
                for worker in alive:
                    log.error("%s did not end and is killed", worker)
                    self._all_well = False
                    worker.asked_to_end = True
                    worker.send(signal.SIGKILL)
                for watch in () if alive else tuple(self._watches):
                    watch.cancel()
                deadline = now + 3.0

    async def _check_forever(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(_CHECK)
            if time.monotonic() - before < _STALL:
                self._end_stuck()
            for slot in () if self._stopping.is_set() else self._slots:
                why = slot.worker.over_limit(self._max_memory, self._max_jobs) if slot.worker is not None else ""
                if why and not slot.renewing:
                    self._spawn(self._renew(slot, why))

    def _end_stuck(self) -> None:
        """Kill workers that are silent, and end replaced ones that do not end.

        A silent one is stuck. After two lease lengths, or SILENT seconds if that is more, all its leases are lost, and
        it must not keep its slot forever.
        """
        now = time.monotonic()
        longest = max(2 * self._config.lease, SILENT)
        for worker in self._workers.values():
            if worker.gone.is_set():
                continue
            silent = now - worker.heard_at
            if worker.heard_at and silent > longest and (worker.ready.is_set() or worker.jobs()):
                log.error("%s has not reported for %.0f s and is killed", worker, silent)
                # Not planned: the jobs that it ran are given back, and count as crashed.
                worker.asked_to_end = False
                worker.heard_at = now
                self._all_well = self._all_well and not self._stopping.is_set()
                worker.send(signal.SIGKILL)
            elif now > worker.kill_at:
                log.error("%s did not end and is killed", worker)
                worker.kill_at = now + _GRACE
                worker.send(signal.SIGKILL)
            elif now > worker.stop_at:
                log.warning("%s still runs %g s after it was replaced: stopping it", worker, self._replace_timeout)
                worker.stop_at = math.inf
                worker.kill_at = now + self._config.shutdown_timeout + _GRACE
                worker.send(signal.SIGTERM)

    async def _renew(self, slot: _Slot, why: str) -> WorkerProcess | None:
        """Put another worker in this slot, and have the old one end after its running jobs; returns the old one."""
        slot.renewing = True
        try:
            async with self._renewal:
                old = slot.worker
                if old is None or old.gone.is_set() or self._stopping.is_set():
                    return None
                log.info("%s is replaced: %s", old, why)
                new = await self._start(None)
                if new is None or not await self._until_ready(new, READY_WITHIN):
                    if self._stopping.is_set():
                        return None
                    if new is not None and not new.gone.is_set():
                        log.error("%s was not ready within %g s and is killed", new, READY_WITHIN)
                        new.send(signal.SIGKILL)
                    log.error("%s keeps running: its replacement did not start", old)
                    # Not again at once.
                    await self._pause(SOON)
                    return None
                if slot.worker is not old:
                    # It has crashed meanwhile, and been replaced.
                    old = new
                else:
                    slot.worker = new
                    # From now on the new one is watched: it may crash while this one still runs its jobs.
                    old.left.set()
                self._replaced += 1
                old.stop_at = time.monotonic() + self._replace_timeout
                old.retire()
                return old
        finally:
            slot.renewing = False

    async def _roll(self) -> None:
        """Replace all workers, one after the other."""
        log.info("SIGHUP: rolling restart of %s", how_many(len(self._slots), "worker"))
        try:
            for slot in self._slots:
                before = slot.worker
                old = await self._renew(slot, "rolling restart")
                if old is None:
                    if before is not None and not before.gone.is_set():
                        log.error("the rolling restart ends here: the other workers continue")
                        return
                    continue
                # So that there are not twice as many processes; but a long job does not stop the others.
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._config.shutdown_timeout):
                        await old.gone.wait()
            log.info("the rolling restart is done")
        finally:
            self._rolling = False

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        async def run() -> None:
            try:
                await work
            except Exception:
                log.exception("a background task of the supervisor failed")

        task = asyncio.create_task(run())
        self._background.add(task)
        task.add_done_callback(self._background.discard)
