"""The worker: reserve jobs, run them, report how they ended, until told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import random
import signal
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from pgqueue import __version__, bundled, concurrency, memory, queries, stacks
from pgqueue.board import Board
from pgqueue.config import WorkerConfig, describe_dsn, worker_dsn
from pgqueue.errors import LockedTooLong, PgQueueError, SchemaError
from pgqueue.leases import Leases
from pgqueue.link import LONGEST_PAUSE, Link, Outage, one_line
from pgqueue.listener import listen_forever
from pgqueue.runner import End, Held, Runner, Verdict, gathered
from pgqueue.tasks import App

log = logging.getLogger("pgqueue.worker")

# Ends of jobs that one statement reports at most.
_BATCH = 1000

# No new jobs while this many ends wait to be stored: the database is behind.
_BACKLOG = 5000

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
        dsn = worker_dsn(dsn, f"pgqueue {self.config.name}")
        self._dsn = dsn
        self._outage = Outage(dsn)
        prepare = self.config.prepare
        # Three connections, so that a claim, a completion that waits for a lock, and the extension of leases never
        # stand in each other's way; a fourth listens.
        self._claiming = Link(dsn, self._outage, prepare=prepare, on_connect=self._introduce)
        self._finishing = Link(dsn, self._outage, prepare=prepare)
        # An outage of a lease's length must not be stretched by our own pauses until the leases are lost.
        pause = min(self.config.lease / 6, LONGEST_PAUSE)
        self._keeping = Link(dsn, self._outage, prepare=prepare, longest_pause=pause)
        self._leases = Leases(self._keeping, self._outage, self.config.lease, self._lost, self._cancelled)
        self._runner = Runner(app, self.config.concurrency, self._ended)
        self._ends: deque[Held] = deque()
        self._end_came = asyncio.Event()
        self._room_came = asyncio.Event()
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._napping_until = 0.0
        self._due_at = float("inf")
        self._woke = False
        self._channel = ""
        self._warned: dict[str, float] = {}
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
        """Work until stopped. True when every job that was started has ended; False when some were cut off."""
        loops: list[asyncio.Task[None]] = []
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
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
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
        # The first claim tells now, and not later, what the database refuses of these settings.
        await self._claim(1, patient=False)
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
            if not await self._keeping.perform(queries.beat(self.config.name)):
                # Forgotten after minutes of silence, on a laptop that slept for one.
                await self._keeping.perform(self._hello())

    async def _keep_house_forever(self) -> None:
        while True:
            *_, pause = await self._keeping.perform(queries.maintain(max_age=0.8))
            await asyncio.sleep(pause)

    async def _shut_down(self, claiming: asyncio.Task[None]) -> bool:
        config = self.config
        # It ends by itself after the statement under way; one that hangs is cut off.
        await asyncio.wait([claiming], timeout=2.0)
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)
        unstarted = self._runner.give_back_unstarted()
        for held in unstarted:
            held.ended = End.RELEASED
            self._ended(held)
        if self._runner.running:
            log.info(
                "stopping: %d jobs run on, for at most %g s; %d unstarted ones are given back",
                self._runner.running,
                config.shutdown_timeout,
                len(unstarted),
            )
        with suppress(TimeoutError):
            async with asyncio.timeout(config.shutdown_timeout):
                await self._until_finished(lambda: bool(self._runner.running))
        cut_off = self._runner.running
        if cut_off:
            for held in list(self._leases.held.values()):
                if held.ended is None:
                    log.warning("%s did not end within the shutdown timeout and is cut off", held)
                    self._runner.stop(held, End.FAILED, "it did not end within the worker's shutdown timeout")
                    if held.runner is None:
                        # A thread: it cannot be stopped, but the process ends now, and the job has failed.
                        held.error = {"class": "Interrupted", "message": held.reason}
                        held.ended = End.FAILED
                        self._ended(held)
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._until_finished(lambda: any(h.ended is None for h in self._leases.held.values()))
        try:
            # A hanging database cannot hang the shutdown: what is not stored comes back with its lease.
            async with asyncio.timeout(5.0):
                await self._until_finished(lambda: bool(self._ends or self._leases.held))
        except TimeoutError:
            left = len(self._leases.held)
            log.error("the ends of %d jobs could not be stored; they come back when their leases lapse", left)
            return False
        await self._leave()
        log.info("worker %s ends: %d jobs succeeded, %d failed", config.name, self.completed, self.failed)
        return not cut_off

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
                except Exception:
                    log.exception("the %s loop of worker %s crashed; it starts again", name, self.config.name)
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
            nothing_held = not self._leases.held
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
        config = self.config
        self._wake.clear()
        rows = await self._claiming.perform(
            queries.reserve(config.name, room, config.queues, config.weights, config.lease, config.strategy),
            patient=patient,
        )
        deadline = self._claiming.sent_at + self.config.lease
        calls = 0
        for row in rows:
            if row[13] is None:
                calls += 1
                held = Held(row, deadline)
                self._leases.add(held)
                self._runner.take(held)
        if calls < len(rows):
            for head in gathered(rows, deadline):
                calls += 1
                for held in (head, *head.mates):
                    self._leases.add(held)
                self._runner.take(head)
        self._reserved_at = time.monotonic()
        self._jobs_wait = calls >= room
        if rows:
            log.debug("reserved %d jobs in %d calls", len(rows), calls)
        if self._quiet:
            # It became so while the reserve was under way.
            self._give_back_unstarted()
        return calls

    def _room(self) -> int:
        if self._quiet or len(self._ends) >= _BACKLOG:
            return 0
        return self._runner.room()

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
            self._napping_until = 0.0
            await self._claiming.perform(queries.awake(self.config.name))

    async def _nap(self) -> None:
        """Return when it is time to reserve again.

        Asleep from here on: every enqueue that sees the row wakes us. The row is written first, and only then come
        the looks, for what was enqueued before it stood and is committed after. While the row stands, no looks are
        needed: it is renewed before it ends.
        """
        config = self.config
        if not config.listen:
            # Nobody can wake us, so nobody is asked to.
            await self._woken(config.poll_interval * random.uniform(0.9, 1.0))
            return
        if not self._napping_until:
            self._due_at = float("inf")
            if self._runner.is_busy(_BUSY) and await self._look(_BUSY_LOOK, _BUSY_LOOK, _BUSY_LOOKS):
                return
            await self._lie_down()
            for first, longest, total in _LOOKS:
                if await self._look(first, longest, total):
                    return
        # Not in step with other workers, and so early that the row stands without a gap.
        renew_at = self._napping_until - 1.0 - random.uniform(0.0, 0.1) * config.poll_interval
        if self._woke or time.monotonic() >= min(renew_at, self._due_at):
            # Woken for nothing: somebody else took the job, or it comes due later than this nap knows.
            await self._lie_down()
            renew_at = self._napping_until - 1.0 - random.uniform(0.0, 0.1) * config.poll_interval
        self._woke = await self._woken(min(renew_at, self._due_at) - time.monotonic())

    async def _lie_down(self) -> None:
        config = self.config
        self._woke = False
        _, due_in, _ = await self._claiming.perform(queries.idle(config.name, config.queues, config.poll_interval))
        # As the database has it: poll_interval and a second.
        self._napping_until = self._claiming.sent_at + config.poll_interval + 1.0
        self._due_at = float("inf") if due_in is None else time.monotonic() + max(due_in, 0.0)

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
                self._due_at = float("inf")
                self._woke = True
            pause = min(pause * 2, longest)
        return self._stopping.is_set()

    async def _woken(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._wake.wait()
            return True
        except TimeoutError:
            return False

    async def _listen(self) -> None:
        await listen_forever(
            self._dsn,
            self._outage,
            self._channel,
            self.config.queues,
            self._wake.set,
            self._leases.extend_now.set,
        )

    # Finishing

    def _give_back_unstarted(self) -> int:
        unstarted = self._runner.give_back_unstarted()
        for held in unstarted:
            held.ended = End.RELEASED
            self._ended(held)
        return len(unstarted)

    def _ended(self, held: Held) -> None:
        self._ends.append(held)
        self._end_came.set()
        self._room_came.set()

    def _lost(self, held: Held, why: str) -> None:
        log.warning("%s is lost: %s", held, why)
        # Somebody else may run it now. Whatever its handler still does, the fence decides what is stored.
        self._runner.stop(held, End.RELEASED, why)

    def _cancelled(self, held: Held) -> None:
        if held.interrupt is None:
            log.info("%s: cancel was asked for", held)
        # Given back, it ends as cancelled.
        self._runner.stop(held, End.RELEASED, "cancel was asked for")

    async def _finish_forever(self) -> None:
        while True:
            await self._end_came.wait()
            self._end_came.clear()
            while self._ends:
                batch = [self._ends.popleft() for _ in range(min(len(self._ends), _BATCH))]
                try:
                    await self._finish(batch)
                except Exception:
                    # What was not stored is tried again: a job whose end were forgotten here would be extended
                    # for ever.
                    self._ends.extend(held for held in batch if held.pair in self._leases.held)
                    self._end_came.set()
                    raise
                self._room_came.set()

    async def _finish(self, batch: list[Held]) -> None:
        succeeded = [held for held in batch if held.ended is End.SUCCEEDED]
        if succeeded:
            await self._complete(succeeded)
        released: dict[float, list[Held]] = {}
        for held in batch:
            if held.ended is End.FAILED:
                await self._fail(held)
            elif held.ended is End.SNOOZED:
                await self._snooze(held)
            elif held.ended is End.RELEASED:
                released.setdefault(held.delay, []).append(held)
        for delay, several in released.items():
            await self._give_back(several, delay)

    async def _complete(self, batch: list[Held]) -> None:
        try:
            lost = await self._finishing.perform(queries.complete_many([held.pair for held in batch]))
        except LockedTooLong:
            # Somebody holds one of these rows. The others need not wait for it.
            if len(batch) > 1:
                for held in batch:
                    await self._complete([held])
            else:
                self._try_later(batch[0])
            return
        for held in batch:
            self._leases.remove(held)
        self.completed += len(batch) - len(lost)
        if lost:
            gone = set(lost)
            for held in batch:
                if held.pair[0] in gone:
                    log.info("%s: its reservation was over when its handler ended; nothing more was stored", held)

    async def _fail(self, held: Held) -> None:
        error = held.error or {}
        try:
            state = await self._finishing.perform(queries.fail(*held.pair, error, **asdict(held.verdict)))
        except LockedTooLong:
            self._try_later(held)
            return
        except PgQueueError as refusal:
            if held.verdict.retry_in is not None or held.verdict.policy is not None:
                # What the rule or the signal said cannot be done: the retry policy decides.
                held.verdict = Verdict()
                held.error = {**error, "policy_error": one_line(refusal)}
                log.error("%s: %s; its retry policy decides", held, one_line(refusal))
                await self._fail(held)
                return
            # The error itself could not be stored; the failure must be.
            plain = {
                "class": str(error.get("class", "")).encode("ascii", "replace").decode(),
                "message": one_line(refusal),
            }
            state = await self._finishing.perform(queries.fail(*held.pair, plain, **asdict(held.verdict)))
        self._leases.remove(held)
        self.failed += 1
        if state is None:
            log.warning("%s failed, but its lease was lost: nothing was stored", held)
        else:
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
            await self._fail(held)
            return
        self._leases.remove(held)
        if snoozed:
            log.info("%s is snoozed for %s on worker %s", held, held.snooze, self.config.name)
        else:
            log.warning("%s was snoozed, but its lease was lost: nothing was stored", held)

    async def _give_back(self, batch: list[Held], delay: float) -> None:
        await self._finishing.perform(queries.release([held.pair for held in batch], delay))
        for held in batch:
            self._leases.remove(held)
            if held.row[1] not in self._app.tasks:
                self._warn_unknown(held)

    def _warn_unknown(self, held: Held) -> None:
        now = time.monotonic()
        if now - self._warned.get(held.row[1], -60.0) >= 60.0:
            self._warned[held.row[1]] = now
            log.warning("%s: this worker has no such task; given back for %g s", held, held.delay)

    def _try_later(self, held: Held) -> None:
        log.warning("%s is locked by another transaction; its end is stored when that is over", held)
        asyncio.get_running_loop().call_later(1.0, self._ended, held)


def _release_of(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _short(error: dict[str, object]) -> str:
    return " ".join(str(error.get("message", "")).split())[:300]
