"""The worker: reserve jobs, run them, report how they ended, until told to stop."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import platform
import random
import signal
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import psycopg

from pgqueue import __version__, bundled, concurrency, memory, queries, stacks, telemetry
from pgqueue.board import Board
from pgqueue.config import WorkerConfig, describe_dsn, worker_dsn
from pgqueue.errors import InvalidArgument, LockedTooLong, PgQueueError, SchemaError
from pgqueue.hooks import Dead, Event
from pgqueue.job import Job, Surroundings
from pgqueue.leases import Leases
from pgqueue.link import LONGEST_PAUSE, Link, Outage, one_line
from pgqueue.listener import Listener
from pgqueue.middleware import Around
from pgqueue.runner import End, Held, Runner, Verdict, gathered
from pgqueue.tasks import App
from pgqueue.watchdog import Watchdog

log = logging.getLogger("pgqueue.worker")

# The exit code of a process that is to be replaced: EX_TEMPFAIL.
REPLACE_ME = 75

# A job that was reserved so many seconds ago and not started is given back while another worker sleeps.
_HELD_BACK = 2.0

# Seconds that a handler has to end after it was told at a shutdown that its time is over.
_LAST_WORDS = 1.0

# Ends of jobs that one statement reports at most.
_BATCH = 1000

# After an error that may be of the claim as well as of the ends that went with it: so many seconds each goes alone.
_APART = 5.0

# No new jobs while this many ends wait to be stored: the database is behind.
_BACKLOG = 5000

# Seconds that the hooks for the worker's end have.
_STOP_HOOKS = 5.0

# Looks after the row that says "asleep": pauses between them that grow from first to longest, and for how long, in
# seconds. A job enqueued before the row stood, in a transaction that commits after a look, is found by the next one;
# most transactions are short, so the looks are close at first.
_LOOKS = ((0.002, 0.008, 0.25), (0.016, 0.04, 0.75))

# A worker that has started more than this many jobs in the last 100 ms does not sleep at the first empty reserve:
# it looks again for a moment, so that a stream of jobs does not cost its producers a NOTIFY each.
_BUSY = 10
_BUSY_LOOK = 0.003
_BUSY_LOOKS = 0.02


class Worker:
    """One worker process: an asyncio loop that reserves, runs, extends and reports.

    `run` returns when the worker was told to `stop` and its jobs have ended, or after `shutdown_timeout`. It raises
    ConfigError, SchemaError or another PgQueueError if it cannot start; once it runs, nothing that happens to the
    database ends it.

        await Worker(app, dsn, WorkerConfig(queues=("mail",))).run()
    """

    def __init__(self, app: App, dsn: str, config: WorkerConfig | None = None) -> None:
        self.config = config or WorkerConfig()
        self.started = asyncio.Event()
        self._began = time.monotonic()
        self._quiet = False
        self._retiring = False
        self._signalled = False
        # Of the last reserve: when its answer came, and whether it came full.
        self._reserved_at: float | None = None
        self._jobs_wait = False
        self._app = app
        self._place = describe_dsn(dsn)
        lease = self.config.lease
        dsn = worker_dsn(dsn, f"pgqueue {self.config.name}", lease)
        self._outage = Outage(dsn, pooled=self.config.pooled)
        prepare = not self.config.pooled
        # Three connections, so that a claim, a completion that waits for a lock, and the extension of leases never
        # stand in each other's way; a fourth listens. Under load both of the first two say what has ended and claim,
        # in turn, so that the server always has one of them to work for.
        # A frozen connection is noticed and replaced before the leases lapse; a completion may wait 5 s for a lock.
        self._claiming = Link(
            dsn, self._outage, prepare=prepare, on_connect=self._introduce, within=max(lease / 2, 2.0)
        )
        self._finishing = Link(
            dsn, self._outage, prepare=prepare, on_connect=self._give_back_unheld, within=max(lease / 2, 8.0)
        )
        # An outage of a lease's length must not be stretched by our own pauses until the leases are lost.
        pause = min(lease / 6, LONGEST_PAUSE)
        self._keeping = Link(dsn, self._outage, prepare=prepare, longest_pause=pause, within=max(lease / 3, 1.0))
        self._leases = Leases(self._keeping, self._outage, lease, self._lost, self._cancelled)
        self._around = Surroundings(dsn, prepare, on_progress=self._on_progress, on_extend=self._on_extend)
        self._runner = Runner(app, self.config.concurrency, self._ended, self._announce, self._around)
        self._watchdog = Watchdog(self._runner.name_running)
        self._told: dict[Job, None] = {}
        self._overdue: set[Held] = set()
        self._extend_asked = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asking = queries.Claim(
            self.config.name, self.config.queues, self.config.weights, lease, self.config.strategy
        )
        # Claims under way, and how many jobs each asks for.
        self._claims: dict[Link, int] = {}
        # The reply of a claim was lost, and its jobs are to be given back as soon as no claim is under way.
        self._is_owed = False
        self._apart_until = 0.0
        # What ended: to be completed or failed; and given back, snoozed, or held by somebody when it was told before.
        self._ends: deque[Held] = deque()
        self._returns: deque[Held] = deque()
        self._end_came = asyncio.Event()
        self._room_came = asyncio.Event()
        self._wake = asyncio.Event()
        self._listener = self._make_listener(dsn)
        self._stopping = asyncio.Event()
        self._napping_until = 0.0
        self._due_at = math.inf
        # When idle is to be called again.
        self._call_at = 0.0
        self._woke = False
        self._channel = ""
        self._warned: dict[str, float] = {}
        self._is_hooked = False
        self._hook_calls: set[asyncio.Task[None]] = set()
        self.completed = 0
        self.failed = 0
        self.exit_code = 0

    def stop(self) -> None:
        """Reserve nothing more and let what runs end."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._wake.set()
            self._room_came.set()

    def be_quiet(self) -> None:
        """Reserve nothing more, give back what is not started, and go on running."""
        if not self._quiet:
            self._quiet = True
            log.info("quiet: reserving no more jobs; %d run on", self._runner.running)
            self._give_back_unstarted()
            self._wake.set()
            self._room_came.set()

    def resume(self) -> None:
        """Reserve again, after `be_quiet`."""
        if self._quiet and not self._retiring:
            self._quiet = False
            log.info("not quiet any more: reserving jobs again")
            self._room_came.set()

    def retire(self) -> None:
        """Reserve nothing more, and end when all that runs has ended, however long that takes."""
        if not self._retiring:
            self.be_quiet()
            self._retiring = True
            self._around.stopping.raise_it("the worker is replaced")
            self._room_came.set()

    def handle_signals(self) -> None:
        """Do what the operator says by signal.

        TERM, INT and HUP: stop; a second TERM or INT: end at once, leaving what runs to its leases. USR1: be quiet;
        USR2: resume. TTIN: log the stacks of all threads and tasks. HUP stays ignored where it is (nohup).
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        loop.add_signal_handler(signal.SIGUSR1, self.be_quiet)
        loop.add_signal_handler(signal.SIGUSR2, self.resume)
        stacks.dump_on(signal.SIGTTIN, loop, self._name_task, self._name_thread)

    def use_board(self, board: Board) -> None:
        """Note there what handlers run, for who looks after this process."""
        self._runner.board = board

    def status(self) -> dict[str, Any]:
        """Return what an operator may want to know, as it is now: numbers and text only, times in seconds."""
        outage = self._outage.lasts
        reason = self._why_not_ready()
        return {
            "worker": self.config.name,
            "pid": os.getpid(),
            "ready": not reason,
            "reason": reason[:300],
            "started": self.started.is_set(),
            "quiet": self._quiet,
            "stopping": self._stopping.is_set(),
            "concurrency": self._runner.concurrency,
            "running": self._runner.running,
            "free": max(self._runner.concurrency - self._runner.running, 0),
            "buffered": self._runner.unstarted,
            "held": len(self._leases.held),
            "succeeded": self.completed,
            "failed": self.failed,
            "last_reserve": None if self._reserved_at is None else round(time.monotonic() - self._reserved_at, 3),
            "outage": None if outage is None else round(outage, 3),
            "last_error": self._outage.error[:300] or None,
            "memory": memory.resident(),
            "uptime": round(time.monotonic() - self._began, 3),
        }

    async def run(self) -> bool:
        """Work until stopped. True when every job that was started has ended; False when some were cut off.

        `exit_code` is then what a process should exit with: 0, 1, or 75 when a supervisor is to replace it.
        """
        try:
            return await self._run()
        except Exception as error:
            await self._app.call("error", error, "worker")
            raise
        finally:
            if self._is_hooked:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_STOP_HOOKS):
                        await asyncio.gather(*self._hook_calls)
                        await self._app.call("stop")

    async def _run(self) -> bool:
        loops: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()
        self._watchdog.start()
        try:
            if not await self._started():
                return True
            loops += [
                self._keep_running("claiming", self._claim_forever),
                self._keep_running("finishing", self._finish_forever),
                self._keep_running("leases", self._leases.extend_forever),
                self._keep_running("lease clock", self._leases.watch_forever),
                self._keep_running("beats", self._beat_forever),
                self._keep_running("housekeeping", self._keep_house_forever),
                self._keep_running("progress", self._tell_progress_forever),
                self._keep_running("sharing", self._share_forever),
                self._keep_running("timeouts", self._watch_timeouts_forever),
            ]
            if self.config.listen:
                loops.append(self._keep_running("listening", self._listen))
            if self.config.min_concurrency is not None:
                loops.append(self._keep_running("concurrency", self._adapt_forever))
            await self._stopping.wait()
            clean = await self._shut_down(loops[0])
            self.exit_code = self.exit_code or (0 if clean else 1)
            return clean
        finally:
            self._watchdog.stop()
            for loop in loops:
                loop.cancel()
            if loops:
                # One may hang in a statement on a connection that is dead without saying so.
                await asyncio.wait(loops, timeout=5.0)
            self._runner.close()
            for link in (self._claiming, self._finishing, self._keeping):
                await link.close()

    async def _started(self) -> bool:
        """Start, unless told to stop while the server is still being waited for."""
        starting = asyncio.create_task(self._start())
        stopping = asyncio.create_task(self._stopping.wait())
        started = False
        try:
            await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await starting
                started = True
            return started
        finally:
            for each in (starting, stopping):
                each.cancel()
            await asyncio.gather(starting, stopping, return_exceptions=True)
            if not started:
                await self._leave()

    async def _start(self) -> None:
        config = self.config
        await self._check_schema()
        for task in self._app.tasks.values():
            await self._finishing.perform(queries.declare_task(task.name, task.options.as_mapping()), patient=False)
        for each in self._app.schedules.values():
            await self._finishing.perform(
                queries.schedule(each.name, each.expression, each.task, each.args, each.options), patient=False
            )
        await self._call_start_hooks()
        # The first claim tells now, and not later, what the database refuses of these settings.
        await self._claim(1, patient=False)
        if config.listen and config.listen_dsn is not None:
            await self._listener.check(self._channel)
        log.info(
            "worker %s on %s: %d tasks, concurrency %s, queues %s",
            config.name,
            self._place,
            len(self._app.tasks),
            config.concurrency if config.min_concurrency is None else f"{config.min_concurrency}:{config.concurrency}",
            "all" if config.queues is None else ", ".join(self._weighted_queues()),
        )
        self.started.set()

    def _why_not_ready(self) -> str:
        if not self.started.is_set():
            return self._outage.error or "it has not started yet"
        if self._stopping.is_set():
            return "it stops"
        if self._quiet:
            return "it is quiet"
        if self._outage.lasts is not None:
            return f"the database cannot be used: {self._outage.error}"
        if self._room() == 0:
            # It has no use for a reserve.
            return ""
        silent = time.monotonic() - (self._reserved_at or 0.0)
        if silent > max(3 * self.config.poll_interval, 60.0):
            return f"no reserve was answered for {silent:.0f} s"
        return ""

    async def _call_start_hooks(self) -> None:
        self._is_hooked = True
        await self._app.call("start")
        # Only now: a hook may have set a tracer provider.
        middleware = self._app.around_execution()
        if telemetry.is_on():
            middleware.insert(0, telemetry.around_execution)
        if middleware:
            self._runner.around = Around(middleware)
        if self._app.has("event"):
            self._runner.tell = self._tell

    def _tell(self, kind: str, held: Held, error: dict[str, object] | None = None) -> None:
        row = held.row
        self._app.tell(Event(kind, self.config.name, 1, row[0], row[1], row[4], row[7], error, held.seconds))

    def _tell_lost(self, held: Held, why: str) -> None:
        # Once of each: the leases may have noticed it first.
        if self._runner.tell is not None and held.kind != "Lost":
            self._tell("lost", held, {"message": why})

    def _weighted_queues(self) -> list[str]:
        queues, weights = self.config.queues or (), self.config.weights
        if weights is None:
            return list(queues)
        return [f"{queue} (weight {weight})" for queue, weight in zip(queues, weights, strict=True)]

    async def _check_schema(self) -> None:
        installed = await self._finishing.perform(queries.version(), patient=False)
        known = bundled.revisions()
        if installed is None or installed[1] < known[-1]:
            raise SchemaError(
                f"the schema in {self._place} is older than this worker (it is at {installed and installed[1]},"
                f" the worker needs {known[-1]})",
                hint="run: pgqueue migrate",
            )
        if installed[1] == known[-1] and installed[2] != bundled.sql_digest():
            if _release_of(installed[0]) <= _release_of(__version__):
                raise SchemaError(
                    f"the functions in {self._place} are older than this worker ({installed[0]})",
                    hint="run: pgqueue migrate",
                )
            log.warning("the schema in %s is newer (%s) than this worker (%s)", self._place, installed[0], __version__)

    async def _introduce(self, link: Link) -> None:
        # After every (re)connect: the reply of a reserve may have been lost, and its jobs stand booked on us.
        self._channel = await link.perform_now(self._hello())
        await self._give_back_unheld(link)

    async def _give_back_unheld(self, link: Link) -> None:
        # What another claim is just bringing is booked on us as well, and not held yet.
        self._is_owed = any(other is not link for other in self._claims)
        if self._is_owed or not self._channel:
            return
        given_back = await link.perform_now(queries.release_unheld(self.config.name, list(self._leases.held)))
        if given_back:
            log.warning("gave back %d jobs whose reservation never arrived: %s", len(given_back), given_back[:20])

    def _hello(self) -> queries.Call[str]:
        info = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": __version__,
            "python": platform.python_version(),
            "concurrency": self.config.concurrency,
        }
        return queries.hello(self.config.name, self.config.queues, info)

    async def _beat_forever(self) -> None:
        while True:
            # At least once a minute, however long the lease: who is silent for five is forgotten.
            await asyncio.sleep(min(self.config.lease / 3, 60.0))
            if self._is_asleep():
                continue
            if not await self._keeping.perform(queries.beat(self.config.name)):
                # Forgotten after minutes of silence, on a laptop that slept for one.
                await self._keeping.perform(self._hello())

    async def _keep_house_forever(self) -> None:
        while True:
            if self._is_asleep():
                await asyncio.sleep(0.5)
                continue
            *_, pause = await self._keeping.perform(queries.maintain(max_age=0.8))
            await asyncio.sleep(pause)

    def _is_asleep(self) -> bool:
        """Whether it says no more than idle, which says that it lives, and keeps house."""
        return time.monotonic() < self._call_at + 0.5

    async def _tell_progress_forever(self) -> None:
        while True:
            # The newest of each job, about once a second.
            await asyncio.sleep(1.0)
            told, self._told = self._told, {}
            rows = [(job.id, job.reservation, *job.latest_progress) for job in told if job.latest_progress is not None]
            if rows:
                await self._keeping.perform(queries.progress(rows))

    async def _share_forever(self) -> None:
        while True:
            await asyncio.sleep(_HELD_BACK / 2)
            waiting: set[str] = {held.row[4] for held in self._runner.held_back(_HELD_BACK)}
            if not waiting:
                continue
            if await self._keeping.perform(queries.is_wanted(self.config.name, sorted(waiting))):
                for held in self._runner.give_back_unstarted(_HELD_BACK):
                    held.ended = End.RELEASED
                    self._ended(held)

    async def _watch_timeouts_forever(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            overdue = self._runner.overdue()
            self._overdue.intersection_update(overdue)
            for held in overdue:
                if held in self._overdue:
                    continue
                self._overdue.add(held)
                if self.config.supervised:
                    log.error("%s did not stop at its timeout: this process ends and is to be replaced", held)
                    reason = f"it ran longer than its timeout of {held.timeout:g} s and did not stop"
                    self._runner.abandon(held, End.FAILED, f"{reason}: its process was replaced", "Timeout")
                    self.exit_code = REPLACE_ME
                    self.stop()
                else:
                    log.warning("%s did not stop at its timeout and goes on; it keeps a slot until it ends", held)

    def _on_progress(self, job: Job) -> None:
        # Also from threads.
        self._told[job] = None

    def _on_extend(self) -> None:
        # A handler may ask in each step of a loop.
        now = time.monotonic()
        if self._loop is not None and now - self._extend_asked >= 1.0:
            self._extend_asked = now
            self._loop.call_soon_threadsafe(self._leases.extend_now.set)

    async def _announce(self, held: Held) -> bool:
        """Say that a job runs which was lost before: should it kill this process at once, that counts."""
        lost = await self._keeping.perform(queries.started([each.pair for each in (held, *held.mates)]))
        return not lost

    async def _shut_down(self, claiming: asyncio.Task[None]) -> bool:
        config = self.config
        # It ends by itself after the statement under way; one that hangs is cut off.
        await asyncio.wait([claiming], timeout=2.0)
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await self._until_finished(lambda: bool(self._claims))
        unstarted = self._give_back_unstarted()
        self._around.stopping.raise_it("the worker shuts down")
        if self._runner.running:
            log.info(
                "stopping: %d jobs run on, for at most %g s; %d unstarted ones are given back",
                self._runner.running,
                config.shutdown_timeout,
                unstarted,
            )
        cut_off = await self._end_handlers()
        try:
            # A hanging database cannot hang the shutdown: what is not stored comes back with its lease.
            async with asyncio.timeout(5.0):
                await self._until_finished(lambda: bool(self._ends or self._returns or self._leases.held))
        except TimeoutError:
            left = len(self._leases.held)
            log.error("the ends of %d jobs could not be stored; they come back when their leases lapse", left)
            return False
        await self._leave()
        log.info("worker %s ends: %d jobs succeeded, %d failed", config.name, self.completed, self.failed)
        return not cut_off

    async def _end_handlers(self) -> int:
        """Let handlers end, each within its time; returns how many were cut off.

        Those whose time is over are told, and cancelled where that is possible. Who goes on for a second more is not
        waited for: the process ends, and the job has failed, or is given back, as its task says.
        """
        began = time.monotonic()
        told: dict[Held, float] = {}
        cut_off = 0
        while self._runner.busy:
            now = time.monotonic()
            for held in list(self._runner.busy):
                options = self._app.tasks[held.row[1]].options
                end = End.RELEASED if options.on_shutdown == "release" else End.FAILED
                own = options.shutdown_timeout
                limit = min(self.config.shutdown_timeout, math.inf if own is None else own)
                reason = f"it did not end within its shutdown timeout of {limit:g} s"
                if held in told:
                    if now >= told[held] + _LAST_WORDS:
                        self._runner.abandon(held, held.interrupt or end, held.reason, held.kind)
                elif now >= began + limit:
                    cut_off += 1
                    told[held] = now
                    log.warning("%s did not end within its shutdown timeout of %g s and is cut off", held, limit)
                    self._runner.stop(held, end, reason)
            self._room_came.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self._room_came.wait()
        return cut_off

    async def _leave(self) -> None:
        if not self._channel:
            # Never introduced.
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                # Of a claim that was cut off.
                await self._finishing.perform(queries.release_unheld(self.config.name, []))
                await self._finishing.perform(queries.bye(self.config.name))

    async def _adapt_forever(self) -> None:
        low, high = self.config.min_concurrency or 1, self.config.concurrency
        wanted = concurrency.Concurrency(low, high)
        self._runner.concurrency = low
        seen, spent = time.monotonic(), time.process_time()
        while True:
            in_use = 0
            lag = 0.0
            for _ in range(5):
                before = time.monotonic()
                await asyncio.sleep(concurrency.INTERVAL / 5)
                lag = max(lag, time.monotonic() - before - concurrency.INTERVAL / 5)
                in_use = max(in_use, self._runner.running)
            now, used = time.monotonic(), time.process_time()
            look = concurrency.Look(self._jobs_wait, in_use, lag, (used - spent) / (now - seen))
            seen, spent = now, used
            number = wanted.follow(look, now)
            if number != self._runner.concurrency:
                self._runner.concurrency = number
                self._room_came.set()

    def _name_task(self, task: asyncio.Task[Any]) -> str:
        held = self._runner.in_tasks.get(task)
        return "" if held is None else str(held)

    def _name_thread(self, ident: int) -> str:
        held = self._runner.in_threads.get(ident)
        return "" if held is None else str(held)

    async def _until_finished(self, unfinished: Callable[[], bool]) -> None:
        while unfinished():
            self._room_came.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await self._room_came.wait()

    def _on_hangup(self) -> None:
        if not self._stopping.is_set():
            log.info("SIGHUP: reserving no more jobs")
            self.stop()

    def _on_signal(self, number: int) -> None:
        if self._signalled:
            log.warning("second signal: ending at once; jobs that run come back when their leases lapse")
            logging.shutdown()
            os._exit(128 + number)
        self._signalled = True
        log.info("%s: reserving no more jobs", signal.Signals(number).name)
        self.stop()

    def _keep_running(self, name: str, loop: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        async def keep_running() -> None:
            while True:
                try:
                    await loop()
                    return
                except Exception as error:
                    log.exception("the %s loop of worker %s crashed; it starts again", name, self.config.name)
                    await self._app.call("error", error, f"{name} loop")
                    await asyncio.sleep(random.uniform(0.5, 1.5))

        return asyncio.create_task(keep_running(), name=f"pgqueue-{name}")

    # Claiming

    async def _claim_forever(self) -> None:
        while not self._stopping.is_set():
            room = self._room()
            if self._quiet:
                # Nobody is to wake this worker, who would not come.
                await self._rise()
                if self._retiring and not self._leases.held:
                    self.stop()
            if room == 0:
                await self._wait_for_room()
                continue
            # Asked before the claim: what a job enqueued just before its end, a claim already under way did not see.
            nothing_held = not self._leases.held and not self._claims
            claimed = await self._claim(room)
            if claimed == 0:
                if self.config.until_empty:
                    if nothing_held:
                        self.stop()
                    await self._wait_for_end()
                else:
                    await self._nap()
            elif claimed == room or self._runner.is_busy(_BUSY):
                await self._rise()

    async def _claim(self, room: int, *, patient: bool = True) -> int:
        self._wake.clear()
        if self._is_owed and not self._claims:
            await self._claiming.perform(queries.release_unheld(self.config.name, list(self._leases.held)))
            self._is_owed = False
        apart = time.monotonic() < self._apart_until
        return await self._exchange(self._claiming, room, [] if apart else self._take_ends(), patient=patient)

    async def _exchange(self, link: Link, room: int, batch: list[Held], *, patient: bool = True) -> int:
        """Store how jobs ended and claim others, in one statement and one commit; returns the calls that came."""
        completed = [held for held in batch if held.ended is End.SUCCEEDED]
        failed = [held for held in batch if held.ended is End.FAILED]
        # What the server refuses of one part must not keep the other waiting.
        both = bool(batch) and room > 0
        if room:
            self._claims[link] = room
        try:
            results = [held.result for held in completed]
            call = queries.exchange(
                self._asking,
                room,
                [held.pair for held in completed],
                results if any(result is not None for result in results) else None,
                [_failure(held) for held in failed],
            )
            rows = await link.perform(call, patient=patient and not both)
        except InvalidArgument as refusal:
            if not batch:
                raise
            self._claims.pop(link, None)
            await self._end_apart(link, batch, refusal)
            return 0
        except (psycopg.Error, PgQueueError) as error:
            self._end_again(batch)
            if not both:
                raise
            self._apart_until = time.monotonic() + _APART
            log.warning("what ended and what is claimed go apart for %g s (%s)", _APART, one_line(error))
            return 0
        except BaseException:
            # A job whose end were forgotten here would be extended for ever.
            self._end_again(batch)
            raise
        finally:
            self._claims.pop(link, None)
        if failed or (rows and rows[0][queries.OUTCOME] != "reserved"):
            told = {(row[0], row[9]): row for row in rows if row[queries.OUTCOME] != "reserved"}
            rows = rows[len(told) :]
            self._told_ends(completed, failed, told)
        elif completed:
            self._told_ends(completed, failed, {})
        return self._took(rows, room, link.sent_at + self.config.lease) if room else 0

    def _took(self, rows: list[queries.Row], room: int, deadline: float) -> int:
        now = time.monotonic()
        self._reserved_at = now
        heads = [Held(row, deadline, now) for row in rows if row[13] is None]
        for held in heads:
            self._leases.add(held)
        if len(heads) < len(rows):
            for head in gathered(rows, deadline):
                heads.append(head)
                for held in (head, *head.mates):
                    self._leases.add(held)
        self._runner.take(heads)
        self._jobs_wait = len(heads) >= room
        if rows:
            log.debug("reserved %d jobs in %d calls", len(rows), len(heads))
            if self._runner.tell is not None:
                self._app.tell(Event("reserved", self.config.name, len(rows)))
        if self._quiet or self._stopping.is_set():
            # It became so while the claim was under way.
            self._give_back_unstarted()
        return len(heads)

    def _room(self) -> int:
        if self._quiet or len(self._ends) >= _BACKLOG:
            return 0
        return self._runner.room(sum(self._claims.values()))

    def _room_beside(self) -> int:
        """How many jobs are to be claimed with what ended: some under load, while there is no end of jobs."""
        if (
            self._stopping.is_set()
            or not self._jobs_wait
            or self._is_owed
            or time.monotonic() < self._apart_until
            or not self._runner.is_busy(_BUSY)
        ):
            return 0
        return self._room()

    async def _wait_for_room(self) -> None:
        self._room_came.clear()
        if self._room() == 0 and not self._stopping.is_set():
            await self._room_came.wait()

    async def _wait_for_end(self) -> None:
        self._room_came.clear()
        if self._leases.held:
            await self._room_came.wait()

    async def _rise(self) -> None:
        if self._napping_until:
            self._napping_until = self._call_at = 0.0
            await self._claiming.perform(queries.awake(self.config.name))

    async def _nap(self) -> None:
        """Return when it is time to reserve again.

        Asleep from here on: every enqueue that sees the row wakes us. The row is written first, and only then come
        the looks, for what was enqueued before it stood and is committed after. While the row stands, no looks are
        needed: it is renewed before it ends, by the one call a second or less that a sleeping worker makes. That one
        keeps house as well, and tells what is due.
        """
        config = self.config
        if not config.listen:
            # Nobody can wake us, so nobody is asked to.
            await self._woken(config.poll_interval * random.uniform(0.9, 1.0))
            return
        if not self._napping_until:
            self._due_at = math.inf
            if self._runner.is_busy(_BUSY) and await self._look(_BUSY_LOOK, _BUSY_LOOK, _BUSY_LOOKS):
                return
            await self._lie_down()
            for first, longest, total in _LOOKS:
                if await self._look(first, longest, total):
                    return
        while not self._woke:
            now = time.monotonic()
            if now >= self._due_at:
                # Due already, or due by now. Should somebody else take it, the next call of idle says what is next.
                self._due_at = math.inf
                return
            if now >= self._call_at:
                await self._lie_down()
                continue
            self._woke = await self._woken(min(self._call_at, self._due_at) - now)
            if self._stopping.is_set() or self._room() == 0:
                return
        # Woken for nothing, as somebody else takes the job, it may come due later than this nap knows.
        self._woke = False
        self._call_at = 0.0

    async def _lie_down(self) -> None:
        config = self.config
        self._woke = False
        _, due_in, again_in, registered = await self._claiming.perform(
            queries.idle(config.name, config.queues, config.poll_interval)
        )
        now = time.monotonic()
        # As the database has it: poll_interval and a second. It is to stand without a gap.
        self._napping_until = self._claiming.sent_at + config.poll_interval + 1.0
        # Not in step with other workers.
        self._call_at = min(now + again_in, self._napping_until - 1.0 - random.uniform(0.0, 0.1) * config.poll_interval)
        self._due_at = math.inf if due_in is None else now + max(due_in, 0.0)
        if not registered:
            # Forgotten after minutes of silence, on a laptop that slept for one.
            await self._claiming.perform(self._hello())

    async def _look(self, first: float, longest: float, total: float) -> bool:
        """Reserve at growing pauses for `total` seconds. True when the caller should go on reserving."""
        end = time.monotonic() + total
        pause = first
        while time.monotonic() < end and not self._stopping.is_set():
            self._woke |= await self._woken(min(pause, max(self._due_at - time.monotonic(), 0.0005)))
            room = self._room()
            if room == 0:
                return True
            claimed = await self._claim(room)
            if claimed:
                if claimed == room or self._runner.is_busy(_BUSY):
                    await self._rise()
                return True
            if self._due_at <= time.monotonic():
                # It came and somebody else took it: ask again what comes next, after the looks.
                self._due_at = math.inf
                self._call_at = 0.0
            pause = min(pause * 2, longest)
        return self._stopping.is_set()

    async def _woken(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._wake.wait()
            return True
        except TimeoutError:
            return False

    def _make_listener(self, dsn: str) -> Listener:
        config = self.config
        outage = self._outage
        if config.listen_dsn is not None:
            dsn = worker_dsn(config.listen_dsn, f"pgqueue {config.name}", config.lease)
            # Another place, which may be away while the first one works.
            outage = Outage(dsn)
        return Listener(
            dsn,
            outage,
            queues=config.queues,
            on_wake=self._wake.set,
            on_cancel=self._leases.extend_now.set,
            announce=lambda channel, payload: self._keeping.perform(queries.announce(channel, payload)),
            pulse=min(config.lease / 3, 60.0),
        )

    async def _listen(self) -> None:
        await self._listener.listen_forever(self._channel)

    # Finishing

    def _give_back_unstarted(self) -> int:
        unstarted = self._runner.give_back_unstarted()
        for held in unstarted:
            held.ended = End.RELEASED
            self._ended(held)
        return len(unstarted)

    def _ended(self, held: Held) -> None:
        if held.ended is End.SETTLED:
            self._leases.remove(held)
            self.completed += 1
            if self._runner.tell is not None:
                self._tell("succeeded", held)
        elif held.is_locked or held.ended in (End.RELEASED, End.SNOOZED):
            self._returns.append(held)
        else:
            self._ends.append(held)
        self._end_came.set()
        self._room_came.set()

    def _end_again(self, batch: list[Held]) -> None:
        # Lost while it was told, it is forgotten.
        for held in batch:
            if held.pair in self._leases.held:
                self._ended(held)

    def _take_ends(self) -> list[Held]:
        return [self._ends.popleft() for _ in range(min(len(self._ends), _BATCH))]

    def _lost(self, held: Held, why: str) -> None:
        log.warning("%s is lost: %s", held, why)
        if self._runner.tell is not None:
            self._tell("lost", held, {"message": why})
        # Somebody else may run it now. Whatever its handler still does, the fence decides what is stored.
        self._runner.stop(held, End.RELEASED, why, "Lost")

    def _cancelled(self, held: Held) -> None:
        if held.interrupt is None:
            log.info("%s: cancel was asked for", held)
        # Given back, it ends as cancelled.
        self._runner.stop(held, End.RELEASED, "cancel was asked for", "Cancel")

    async def _finish_forever(self) -> None:
        while True:
            await self._end_came.wait()
            self._end_came.clear()
            while self._ends or self._returns:
                if self._returns:
                    await self._return()
                room = self._room_beside()
                for _ in range(3):
                    if room or not self._jobs_wait or not self._runner.unstarted:
                        break
                    # Under load handlers end soon: in a batch with what ends now, and a claim.
                    await asyncio.sleep(0)
                    room = self._room_beside()
                if batch := self._take_ends():
                    await self._exchange(self._finishing, room, batch)
                self._room_came.set()

    async def _return(self) -> None:
        batch = list(self._returns)
        self._returns.clear()
        try:
            for held in batch:
                held.is_locked = False
            locked = [held for held in batch if held.ended in (End.SUCCEEDED, End.FAILED)]
            if locked:
                # By themselves, for the others should not wait with them.
                await self._exchange(self._finishing, 0, locked)
            delays: dict[float, list[Held]] = {}
            for held in batch:
                if held.ended is End.SNOOZED:
                    await self._snooze(held)
                elif held.ended is End.RELEASED:
                    delays.setdefault(held.delay, []).append(held)
            for delay, several in delays.items():
                await self._give_back(several, delay)
        except BaseException:
            self._end_again([held for held in batch if held.ended in (End.RELEASED, End.SNOOZED)])
            raise

    async def _end_apart(self, link: Link, batch: list[Held], refusal: PgQueueError) -> None:
        """Store ends one by one of which one cannot be stored as it is; or that one in another way."""
        if len(batch) > 1:
            while batch:
                try:
                    await self._exchange(link, 0, [batch[0]])
                except BaseException:
                    self._end_again(batch[1:])
                    raise
                batch = batch[1:]
            return
        [held] = batch
        if held.ended is End.SUCCEEDED:
            held.ended = End.FAILED
            held.error = {"class": "Result", "message": one_line(refusal)}
        elif held.verdict.retry_in is not None or held.verdict.policy is not None:
            # What the rule or the signal said cannot be done: the retry policy decides.
            held.verdict = Verdict()
            held.error = {**(held.error or {}), "policy_error": one_line(refusal)}
            log.error("%s: %s; its retry policy decides", held, one_line(refusal))
        else:
            # The error itself could not be stored; the failure must be.
            name = str((held.error or {}).get("class", ""))
            plain: dict[str, object] = {
                "class": name.encode("ascii", "replace").decode(),
                "message": one_line(refusal).encode("ascii", "replace").decode(),
            }
            if held.error == plain:
                self._end_again(batch)
                raise refusal
            held.error = plain
        await self._exchange(link, 0, batch)

    def _told_ends(self, completed: list[Held], failed: list[Held], told: dict[tuple[int, int], queries.Row]) -> None:
        forget = self._leases.remove
        if not told and self._runner.tell is None:
            for held in completed:
                forget(held)
            self.completed += len(completed)
            return
        for held in completed:
            outcome = told[held.pair][queries.OUTCOME] if held.pair in told else "succeeded"
            if outcome == "locked":
                self._try_later(held)
                continue
            forget(held)
            if outcome == "lost":
                log.info("%s: its reservation was over when its handler ended; nothing more was stored", held)
                self._tell_lost(held, "its reservation was over when its handler ended")
                continue
            self.completed += 1
            if self._runner.tell is not None:
                self._tell("succeeded", held)
        for held in failed:
            row = told[held.pair]
            if row[queries.OUTCOME] == "locked":
                self._try_later(held)
            else:
                forget(held)
                self._told_failure(held, row[queries.OUTCOME], row[queries.NOTE])

    def _told_failure(self, held: Held, state: str, policy_error: str | None) -> None:
        self.failed += 1
        if state == "lost":
            log.warning("%s failed, but its lease was lost: nothing was stored", held)
            self._tell_lost(held, "its reservation was over when its handler failed")
            return
        error = held.error or {}
        if policy_error is not None:
            log.error("%s: %s; its retry policy decides", held, policy_error)
        if self._runner.tell is not None:
            self._tell(state, held, held.error)
        if state == "dead" and self._app.has("dead"):
            self._call_later(self._app.call("dead", _dead(self._runner.job_of(held), held)))
        level = logging.INFO if held.signalled else logging.ERROR if state == "dead" else logging.WARNING
        log.log(
            level, "%s is %s on worker %s: %s: %s", held, state, self.config.name, error.get("class"), _short(error)
        )

    async def _snooze(self, held: Held) -> None:
        try:
            snoozed = await self._finishing.perform(queries.snooze(*held.pair, held.snooze))
        except LockedTooLong:
            self._try_later(held)
            return
        except PgQueueError as refusal:
            held.ended = End.FAILED
            held.error = {"class": "Snooze", "message": one_line(refusal)}
            held.signalled = False
            self._ended(held)
            return
        self._leases.remove(held)
        if snoozed:
            if self._runner.tell is not None:
                self._tell("snoozed", held)
            log.info("%s is snoozed for %s on worker %s", held, held.snooze, self.config.name)
        else:
            log.warning("%s was snoozed, but its lease was lost: nothing was stored", held)
            self._tell_lost(held, "its reservation was over when it was snoozed")

    async def _give_back(self, batch: list[Held], delay: float) -> None:
        lost = await self._finishing.perform(queries.release([held.pair for held in batch], delay))
        gone = set(lost)
        for held in batch:
            self._leases.remove(held)
            if held.pair[0] in gone:
                self._tell_lost(held, "its reservation was over when it was given back")
            elif self._runner.tell is not None and held.kind == "Cancel":
                self._tell("cancelled", held, {"class": held.kind, "message": held.reason})
            elif self._runner.tell is not None:
                self._tell("released", held)
            if held.row[1] not in self._app.tasks:
                self._warn_unknown(held)

    def _call_later(self, hooks: Coroutine[Any, Any, None]) -> None:
        # Beside the ends of other jobs, which do not wait for it.
        call = asyncio.create_task(hooks, name="pgqueue-hooks")
        self._hook_calls.add(call)
        call.add_done_callback(self._hook_calls.discard)

    def _warn_unknown(self, held: Held) -> None:
        now = time.monotonic()
        if now - self._warned.get(held.row[1], -60.0) >= 60.0:
            self._warned[held.row[1]] = now
            log.warning("%s: this worker has no such task; given back for %g s", held, held.delay)

    def _try_later(self, held: Held) -> None:
        log.warning("%s is locked by another transaction; its end is stored when that is over", held)
        held.is_locked = True
        asyncio.get_running_loop().call_later(1.0, self._ended, held)


def _failure(held: Held) -> queries.Failure:
    verdict = held.verdict
    return queries.Failure(
        *held.pair, held.error or {}, verdict.retry_in, verdict.retry, verdict.policy, verdict.cancel
    )


def _dead(job: Job, held: Held) -> Dead:
    payloads = [held.args]
    if held.payloads is not None or held.head is not None:
        # Of a call: the first payload of the key dies, the others go on; discarded, all of them die.
        every = ((held.head or held).payloads or {}).get(held.row[5], payloads)
        payloads = every[:1] if held.verdict.retry else list(every)
    return Dead(job, dict(held.error or {}), payloads)


def _release_of(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _short(error: dict[str, object]) -> str:
    return " ".join(str(error.get("message", "")).split())[:300]
