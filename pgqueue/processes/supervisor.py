"""`pgqueue worker --processes N`: start worker processes, watch them, replace them, and end with them.

A worker process is the same command once more, on a leash (leash.py): a fresh interpreter, so that it inherits no
thread, no connection and no event loop. The supervisor runs none of the user's code, and uses the database only to
give back the jobs of a process that died.

Each has a place, of which there are N, and the name of the supervisor with a number: the smallest that no process
bears. So a replacement that starts while its predecessor still ends bears another one. Two processes of one name
would give back each other's jobs.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import signal
import sys
import time
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from pgqueue import board, memory, queries
from pgqueue.config import WorkerConfig, worker_dsn
from pgqueue.health import Health
from pgqueue.leash import RETIRE, Leash
from pgqueue.link import Link, Outage

log = logging.getLogger("pgqueue.supervisor")

# Who dies within so many seconds dies young. The first is replaced at once, the next ones after pauses that double.
_YOUNG = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0

# Tries to start a first process that is killed before it is ready; one that says what is wrong is not tried again.
_TRIES = 3

# Seconds between looks at memory and jobs.
_LOOK = 0.5

# Seconds beyond its shutdown timeout, after which a worker that was told to stop is killed.
_GRACE = 15.0

# A worker that did not report for so many seconds is stuck. After two lease lengths, or as many seconds if that is
# more, it is killed: by then all that it ran is lost, and what blocks it must not keep its place for ever.
_SILENT = 10.0

# A look that comes so many seconds late tells that this process itself stood still, and nothing of the others.
_STALL = 5.0

# The exit code of a worker that wants to be replaced, and of one that cannot start.
_REPLACE_ME = 75
_CANNOT_START = 2

# Bits on a board for each slot: calls of accumulating tasks have several.
_BOARD_SLOTS = 16


@dataclass(slots=True, eq=False)
class _Child:
    """One worker process. `code` is its exit code, or below zero the signal that it died of."""

    number: int
    name: str
    process: asyncio.subprocess.Process
    orders: int
    reports: int
    board: int
    began: float = field(default_factory=time.monotonic)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    code: int | None = None
    status: dict[str, Any] = field(default_factory=dict)
    heard_at: float = 0.0
    asked_to_end: bool = False
    # When the one that was replaced is told to stop, and when it is killed.
    stop_at: float = math.inf
    kill_at: float = math.inf
    has_run: bool = False
    unread: bytes = b""

    def __str__(self) -> str:
        return f"worker {self.name} (pid {self.process.pid})"

    def send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def how_it_ended(self) -> str:
        if self.code is not None and self.code < 0:
            try:
                return f"died of {signal.Signals(-self.code).name}"
            except ValueError:
                return f"died of signal {-self.code}"
        return f"ended with exit code {self.code}"


@dataclass(slots=True, eq=False)
class _Place:
    child: _Child | None = None
    young_deaths: int = 0
    renewing: bool = False


class Supervisor:
    """Keeps `processes` workers at work, each the process of `command`.

    One that is over `max_memory` bytes, or has run `max_jobs` jobs, is replaced: its replacement starts first, and
    then it ends with the last of its running jobs. Those have `replace_timeout` seconds; then it is told to stop, and
    they get what a shutdown leaves them. `config` is that of the workers.
    """

    def __init__(
        self,
        command: list[str],
        dsn: str,
        config: WorkerConfig,
        processes: int,
        *,
        max_memory: int | None = None,
        max_jobs: int | None = None,
        replace_timeout: float = 3600.0,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._command = command
        self._dsn = dsn
        self._config = config
        self._max_memory = max_memory
        self._max_jobs = max_jobs
        self._replace_timeout = replace_timeout
        self._environment = dict(environment)
        self._places = [_Place() for _ in range(processes)]
        self._children: dict[int, _Child] = {}
        self._starting: set[int] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._reports: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._at_once: int | None = None
        self._quiet = False
        self._rolling = False
        self._renewal = asyncio.Lock()
        self._began = time.monotonic()
        self._all_well = True
        self._replaced = 0

    async def run(self, health: tuple[str, int] | None = None) -> int:
        """Work until stopped, or, with `until_empty`, until all workers have ended; returns the exit code.

        0: all ended well. 1: jobs were cut off, or a worker had to be killed, or none could be started. 2: the first
        worker said that its settings are wrong. 128 + signal: ended at once, by a second signal.
        """
        serving = Health(self.status)
        if health is not None:
            await serving.start(*health)
        self._handle_signals()
        looking = asyncio.create_task(self._look_forever())
        try:
            code = await self._start_first()
            if code is None:
                places = [asyncio.create_task(self._keep(place)) for place in self._places]
                stopping = asyncio.create_task(self._stopping.wait())
                everything: asyncio.Future[Any] = asyncio.gather(*places)
                until: list[asyncio.Future[Any]] = [everything, stopping]
                await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
                # Told to stop, all of these come to an end by themselves.
                await self._end_all()
                await asyncio.gather(everything, stopping, *self._background, return_exceptions=True)
            await self._end_all()
        finally:
            looking.cancel()
            serving.close()
            for child in self._children.values():
                child.send(signal.SIGKILL)
        if self._at_once is not None:
            return 128 + self._at_once
        return code or (0 if self._all_well else 1)

    def status(self) -> dict[str, Any]:
        """Return what an operator may want to know of all workers."""
        workers = [self._status_of(child) for child in self._children.values()]
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
            "processes": len(self._places),
            "ready_processes": ready,
            "replaced": self._replaced,
            "uptime": round(time.monotonic() - self._began, 3),
            **sums,
            "workers": workers,
        }

    # Signals

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, number)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN):
            loop.add_signal_handler(number, self._pass_on, number)

    def _on_stop(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._stopping.is_set():
            log.warning("second signal: ending %d workers at once", len(self._children))
            self._at_once = number
        else:
            log.info("%s: %d workers are told to stop", name, len(self._children))
        self._stopping.set()
        for child in self._children.values():
            child.asked_to_end = True
            child.send(number)

    def _on_hangup(self) -> None:
        if self._rolling:
            log.info("SIGHUP: a rolling restart is under way already")
        elif not self._stopping.is_set():
            self._rolling = True
            self._spawn(self._roll())

    def _pass_on(self, number: int) -> None:
        if number != signal.SIGTTIN:
            self._quiet = number == signal.SIGUSR1
        for child in self._children.values():
            # One that is not ready has no handler yet, and would die of it.
            if child.ready.is_set():
                child.send(number)

    # Starting and ending

    async def _start_first(self) -> int | None:
        """Start one worker alone: what is wrong with the settings is said once, and not N times."""
        place = self._places[0]
        for left in reversed(range(_TRIES)):
            child = await self._start(place)
            if child is not None:
                await self._until_ready(child)
                if child.ready.is_set() or child.has_run or self._stopping.is_set():
                    # A job may kill it before it says that it is ready.
                    return None
                if child.code == 0:
                    # Stopped, or out of jobs, before it could say that it was ready.
                    return None
                if child.code == _CANNOT_START:
                    return _CANNOT_START
            if left:
                await self._pause(_FIRST_PAUSE)
            if self._stopping.is_set():
                return None
        log.error("no worker could be started")
        return 1

    async def _keep(self, place: _Place) -> None:
        """Keep a worker at this place."""
        while not self._stopping.is_set():
            child = place.child
            if child is None:
                child = await self._start(place)
            if child is not None:
                await child.gone.wait()
                if place.child is not child:
                    # It has its replacement.
                    continue
                place.child = None
                if child.code == 0 and self._config.until_empty:
                    return
            await self._mourn(place, child)

    async def _mourn(self, place: _Place, child: _Child | None) -> None:
        """Pause before a replacement, if too many died young."""
        self._replaced += 1
        lived = 0.0 if child is None else time.monotonic() - child.began
        if child is not None and (lived >= _YOUNG or child.code in (0, _REPLACE_ME)):
            place.young_deaths = 0
            return
        place.young_deaths += 1
        if place.young_deaths > 1:
            pause = min(_FIRST_PAUSE * 2 ** (place.young_deaths - 2), _LONGEST_PAUSE)
            log.warning("%d workers in a row died young: the next one starts in %g s", place.young_deaths, pause)
            await self._pause(pause * random.uniform(0.9, 1.1))

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _start(self, place: _Place | None) -> _Child | None:
        """Start a worker, at this place; None when that was not possible."""
        taken = self._children.keys() | self._starting
        number = next(n for n in range(1, len(taken) + 2) if n not in taken)
        # At once: several may start at a time.
        self._starting.add(number)
        name = f"{self._config.name}:{number}"
        inherited: list[int] = []
        ours: list[int] = []
        try:
            orders, orders_end = os.pipe()
            reports_end, reports = os.pipe()
            inherited += [orders, reports]
            ours += [orders_end, reports_end]
            ours.append(board.create(_BOARD_SLOTS * self._config.concurrency))
            leash = Leash(name, orders, reports, ours[-1])
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                env={**self._environment, **leash.as_environment()},
                pass_fds=(*inherited, ours[-1]),
                # Out of the terminal's reach: a key pressed there sends its signal to us alone.
                process_group=0,
            )
        except OSError as error:
            for fd in ours:
                os.close(fd)
            log.error("worker %s cannot be started: %s", name, error)
            return None
        finally:
            self._starting.discard(number)
            for fd in inherited:
                os.close(fd)
        # Nothing is awaited in between: the number is never free.
        child = _Child(number, name, process, orders_end, reports_end, ours[-1])
        self._children[number] = child
        if place is not None:
            place.child = child
        os.set_blocking(child.reports, False)
        asyncio.get_running_loop().add_reader(child.reports, self._hear, child)
        self._watch(child)
        log.info("%s starts", child)
        if self._stopping.is_set():
            # The signal came while it was made.
            child.asked_to_end = True
            child.send(signal.SIGTERM)
        return child

    async def _until_ready(self, child: _Child) -> bool:
        # Also until told to stop: one that hangs at its start must not keep us from ending.
        waiting = [asyncio.create_task(event.wait()) for event in (child.ready, child.gone, self._stopping)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        return child.ready.is_set() and not child.gone.is_set()

    def _hear(self, child: _Child) -> None:
        try:
            data = os.read(child.reports, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(child.reports)
            return
        *lines, child.unread = (child.unread + data).split(b"\n")
        if not lines:
            return
        child.status = orjson.loads(lines[-1])
        child.heard_at = time.monotonic()
        if not child.ready.is_set() and child.status.get("started"):
            child.ready.set()
            log.info("%s is ready", child)
            if self._quiet:
                child.send(signal.SIGUSR1)

    def _watch(self, child: _Child) -> None:
        async def watch() -> None:
            code = await child.process.wait()
            self._hear_the_rest(child)
            planned = child.asked_to_end or code == _REPLACE_ME or (code == 0 and self._config.until_empty)
            child.code = code
            if planned:
                # A process that was not ready has no handler for TERM yet, and nothing to lose.
                if code not in (0, _REPLACE_ME) and not (code == -signal.SIGTERM and not child.ready.is_set()):
                    self._all_well = False
                    log.warning("%s %s", child, child.how_it_ended())
                else:
                    log.info("%s has ended", child)
            elif code != _CANNOT_START or any(each.ready.is_set() for each in self._children.values()):
                # Else it is the first, and has said itself what is wrong.
                log.error("%s %s", child, child.how_it_ended())
            try:
                held = board.read(child.board)
                child.has_run = bool(held)
            finally:
                for fd in (child.orders, child.reports, child.board):
                    os.close(fd)
            if planned or not (child.ready.is_set() or held):
                self._children.pop(child.number)
                child.gone.set()
                return
            # Its number is borne until its jobs are given back; the place is free.
            child.gone.set()
            try:
                await self._give_back(child, held)
            finally:
                self._children.pop(child.number)

        task = asyncio.create_task(watch(), name=f"pgqueue-watch-{child.name}")
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    def _hear_the_rest(self, child: _Child) -> None:
        loop = asyncio.get_running_loop()
        self._hear(child)
        loop.remove_reader(child.reports)

    async def _give_back(self, child: _Child, held: list[tuple[int, int]]) -> None:
        """Have the database give back, at once, the jobs of a process that died. `held` are those that it ran."""
        dsn = worker_dsn(self._dsn, f"pgqueue {child.name}")
        link = Link(dsn, Outage(dsn), prepare=False)
        try:
            given_back = await link.perform(queries.crashed(child.name, held))
        except Exception as error:
            log.error("the jobs of %s come back when their leases lapse: %s", child, error)
            return
        finally:
            await link.close()
        if given_back:
            log.warning(
                "%d jobs of %s are given back; it ran %s", len(given_back), child, [job_id for job_id, _ in held[:20]]
            )

    async def _end_all(self) -> None:
        """Wait until all have ended; kill those that do not."""
        patience = self._config.shutdown_timeout + _GRACE
        deadline = time.monotonic() + patience
        while self._reports:
            await asyncio.wait(self._reports, timeout=0.1)
            alive = [child for child in self._children.values() if not child.gone.is_set()]
            now = time.monotonic()
            if self._at_once is not None:
                deadline = min(deadline, now + 2.0)
            if not alive and now < deadline:
                # Jobs of one that died before are being given back: a hanging database cannot hang this.
                deadline = min(deadline, now + 3.0)
            elif now >= deadline:
                for child in alive:
                    log.error("%s did not end and is killed", child)
                    self._all_well = False
                    child.asked_to_end = True
                    child.send(signal.SIGKILL)
                for report in () if alive else tuple(self._reports):
                    report.cancel()
                deadline = now + 3.0

    # Replacing

    async def _look_forever(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(_LOOK)
            if time.monotonic() - before < _STALL:
                self._end_stuck()
            for place in () if self._stopping.is_set() else self._places:
                why = self._over_limit(place.child)
                if why and not place.renewing:
                    self._spawn(self._renew(place, why))

    def _end_stuck(self) -> None:
        """Kill those that are silent, and end those that were replaced and do not end."""
        now = time.monotonic()
        longest = max(2 * self._config.lease, _SILENT)
        for child in self._children.values():
            if child.gone.is_set():
                continue
            if child.heard_at and now - child.heard_at > longest and (child.ready.is_set() or board.read(child.board)):
                log.error("%s has not reported for %.0f s and is killed", child, now - child.heard_at)
                # Not asked to: what it ran is given back, and counts as crashed.
                child.asked_to_end = False
                child.heard_at = now
                self._all_well = self._all_well and not self._stopping.is_set()
                child.send(signal.SIGKILL)
            elif now > child.kill_at:
                log.error("%s did not end and is killed", child)
                child.kill_at = now + _GRACE
                child.send(signal.SIGKILL)
            elif now > child.stop_at:
                log.warning("%s goes on %g s after it was replaced: it is told to stop", child, self._replace_timeout)
                child.stop_at = math.inf
                child.kill_at = now + self._config.shutdown_timeout + _GRACE
                child.send(signal.SIGTERM)

    def _over_limit(self, child: _Child | None) -> str:
        if child is None or not child.ready.is_set() or child.gone.is_set():
            return ""
        if self._max_jobs is not None:
            done = child.status.get("succeeded", 0) + child.status.get("failed", 0)
            if done >= self._max_jobs:
                return f"it has run {done} jobs"
        if self._max_memory is not None:
            size = memory.resident(child.process.pid)
            if size > self._max_memory:
                return f"it holds {size / 2**20:.0f} MiB"
        return ""

    async def _renew(self, place: _Place, why: str) -> _Child | None:
        """Put another worker in this place, and have the old one end after its running jobs; returns the old one."""
        place.renewing = True
        try:
            async with self._renewal:
                old = place.child
                if old is None or old.gone.is_set() or self._stopping.is_set():
                    return None
                log.info("%s is replaced: %s", old, why)
                new = await self._start(None)
                if new is None or not await self._until_ready(new):
                    if self._stopping.is_set():
                        return None
                    log.error("%s goes on: its replacement did not start", old)
                    # Not again at once.
                    await self._pause(_YOUNG)
                    return None
                if place.child is not old:
                    # It died meanwhile, and has been replaced.
                    old = new
                else:
                    place.child = new
                self._replaced += 1
                old.asked_to_end = True
                old.stop_at = time.monotonic() + self._replace_timeout
                with suppress(OSError):
                    os.write(old.orders, RETIRE)
                return old
        finally:
            place.renewing = False

    async def _roll(self) -> None:
        """Replace all workers, one after the other."""
        log.info("SIGHUP: rolling restart of %d workers", len(self._places))
        try:
            for place in self._places:
                before = place.child
                old = await self._renew(place, "rolling restart")
                if old is None:
                    if before is not None and not before.gone.is_set():
                        log.error("the rolling restart ends here: the other workers go on")
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
                log.exception("the supervisor could not do what it wanted")

        task = asyncio.create_task(run())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _status_of(self, child: _Child) -> dict[str, Any]:
        status = {"worker": child.name, "pid": child.process.pid, "ready": False, "reason": "", **child.status}
        if child.gone.is_set():
            return {**status, "ready": False, "reason": child.how_it_ended()}
        if not child.ready.is_set():
            return {**status, "ready": False, "reason": status["reason"] or "it has not started yet"}
        silent = time.monotonic() - child.heard_at
        if silent > _SILENT:
            return {**status, "ready": False, "reason": f"it has not reported for {silent:.0f} s"}
        return status


def same_command() -> list[str]:
    """Return the command line of this process, to be run once more."""
    return [sys.executable, *sys.orig_argv[1:]]
