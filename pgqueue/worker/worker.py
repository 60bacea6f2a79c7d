"""The worker: claims jobs, runs them, reports how they ended, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

from pgqueue import logs
from pgqueue.app import App
from pgqueue.config import WorkerConfig, check_dsn, describe_dsn, worker_dsn
from pgqueue.db import consume
from pgqueue.db.pools import Pools
from pgqueue.job import Surroundings
from pgqueue.logs import how_many
from pgqueue.worker import operator_signals
from pgqueue.worker.hold.held import Holding
from pgqueue.worker.hold.jobs import Jobs
from pgqueue.worker.hold.outbox import Outbox
from pgqueue.worker.link.connection import Link
from pgqueue.worker.link.links import make_links, make_listener
from pgqueue.worker.link.outage import Outage
from pgqueue.worker.link.step_link import StepLink
from pgqueue.worker.presence.identity import Identity
from pgqueue.worker.presence.maintenance import Maintenance
from pgqueue.worker.presence.orders import Orders
from pgqueue.worker.presence.registration import Registration
from pgqueue.worker.process.blocked_loop import Watchdog
from pgqueue.worker.process.loops import Loop, keep_running
from pgqueue.worker.process.requests import Requests
from pgqueue.worker.run import concurrency
from pgqueue.worker.run.handlers import Handlers
from pgqueue.worker.run.log_lines import LogLines
from pgqueue.worker.run.progress import Progress
from pgqueue.worker.run.runner import Runner
from pgqueue.worker.run.running_jobs import RunningJobs
from pgqueue.worker.run.slots import Slots
from pgqueue.worker.shutdown import Shutdown
from pgqueue.worker.startup import describe_queues, prepare, take_name
from pgqueue.worker.status import WorkerStatus
from pgqueue.worker.tell.events import Events, Lifetime
from pgqueue.worker.tell.job_log import JobLog
from pgqueue.worker.tell.tell import Counts, Tell
from pgqueue.worker.trade.claimer import Claimer
from pgqueue.worker.trade.deciding import Deciding
from pgqueue.worker.trade.exchange import Exchange
from pgqueue.worker.trade.hearing import Hearing
from pgqueue.worker.trade.intake import Intake
from pgqueue.worker.trade.leases import Leases
from pgqueue.worker.trade.overdue_jobs import OverdueJobs
from pgqueue.worker.trade.reporter import Reporter
from pgqueue.worker.trade.sleeper import Sleeper
from pgqueue.worker.trade.trade import Trade

log = logging.getLogger("pgqueue.worker")

# Seconds that the start has to end when the worker is stopped meanwhile.
_START_HOOKS = 5.0


class Worker:
    """One worker process: an asyncio loop that claims, runs, extends and reports.

    `run` returns when the worker was stopped and its jobs have ended, or after `shutdown_timeout`. It raises
    ConfigError, SchemaError or another PgQueueError if it cannot start. Once it runs, no problem with the database ends
    it.

        await Worker(app, dsn, WorkerConfig(queues=("mail",))).run()

    `slots` and `lifetime` are shared with the workers of other databases in this process: see `Fleet`.
    """

    def __init__(
        self,
        app: App,
        dsn: str,
        config: WorkerConfig | None = None,
        *,
        slots: Slots | None = None,
        lifetime: Lifetime | None = None,
    ) -> None:
        self.config = config = config or WorkerConfig()
        self.started = asyncio.Event()
        self._app = app
        dsn = check_dsn("dsn", dsn)
        self._place = describe_dsn(dsn)
        self._slots = slots or Slots(config.concurrency, 1)
        self._requests = Requests()
        # A slot may be free: ask again.
        self.freed = self._requests.freed
        self._holding = Holding()
        self._outbox = Outbox(self._requests)
        self.counts = Counts(config.lease)
        dsn = worker_dsn(dsn, f"pgqueue {config.name}", config.lease)
        self._connect(dsn)
        self._make_runner(lifetime)
        self._make_trade()
        self._shutdown = self._make_shutdown()
        self._hearing = Hearing(
            self._registration, self._requests, self._holding, self._intake, self._sleeper, self._orders
        )
        self._listener = make_listener(
            dsn, config, self._outage, self._links.keeping, self._intake.handoffs, self._hearing
        )
        self._status = self._make_status()
        self._watchdog = Watchdog(self._runner.busy)

    def _connect(self, dsn: str) -> None:
        config = self.config
        self._outage = Outage(dsn, pooled=config.pooled)
        claim = consume.Claim(config.name, config.queues, config.weights, config.lease, config.strategy)
        self._identity = Identity(config, self._outage, self._app.tasks)
        self._exchange = Exchange(claim, self._identity, self._requests)
        self._links = make_links(dsn, config, self._outage, self._exchange.reconnected, self._introduce)
        self._steps = StepLink(Link(dsn, self._outage, within=max(config.lease / 2, 8.0)))
        self._pools = Pools(dsn, config.concurrency, self._outage)
        self._registration = Registration(config, self._identity, self._links.keeping, self.counts)
        self._maintenance = Maintenance(self._links.keeping, self._registration)

    def _make_runner(self, lifetime: Lifetime | None) -> None:
        app, config, keeping = self._app, self.config, self._links.keeping
        self._progress = Progress(keeping)
        self._log_lines = LogLines(keeping, config.keep_log)
        self._surroundings = self._make_surroundings()
        jobs = Jobs(app, self._surroundings)
        self._events = Events(app, config.name, jobs, lifetime)
        self._tell = Tell(self.counts, self._events, JobLog(keeping))
        self._runner = Runner(app, config.concurrency, self._slots, self._outbox, keeping, self._tell, jobs)
        self._leases = Leases(self._holding, keeping, self._outage, config.lease, self._runner, self._tell)

        self._orders = Orders(
            config, self._identity, keeping, self._requests, self._runner, self._surroundings.stopping, self._log_lines
        )
        self._overdue_jobs = OverdueJobs(config, self._runner, keeping, self._orders)

    def _make_trade(self) -> None:
        config, links, exchange, runner = self.config, self._links, self._exchange, self._runner
        holding, outbox, slots, tell, state = self._holding, self._outbox, self._slots, self._tell, self._requests
        self._intake = intake = Intake(holding, runner, outbox, exchange, tell, slots, state)
        self._trade = trade = Trade(exchange, outbox, holding, intake, runner, slots, tell, links.keeping, state)
        self._sleeper = Sleeper(config, links.first, runner, state, trade, intake, self._registration)
        self._claimer = Claimer(config, links, exchange, trade, intake, self._sleeper, runner, holding, state)
        self._reporter = Reporter(config.name, self._app, links, trade, outbox, holding, tell, state, self._orders)
        self._deciding = Deciding(links, exchange, outbox, trade)

    @property
    def completed(self) -> int:
        """How many jobs succeeded."""
        return self._tell.completed

    @property
    def failed(self) -> int:
        """How many attempts failed."""
        return self._tell.failures

    @property
    def handlers(self) -> Handlers:
        """What runs the handlers."""
        return self._runner.handlers

    @property
    def used(self) -> int:
        """Slots in which jobs run, or will as soon as claims are answered."""
        runner = self._runner
        claimed = runner.running + runner.unstarted + self._exchange.coming
        return max(runner.active, min(claimed, runner.concurrency))

    @property
    def wants(self) -> bool:
        """Whether it has more due jobs than slots, or waits for a slot to find out."""
        if self._requests.quiet or self._requests.stopping.is_set() or self._outage.lasts is not None:
            return False
        return self._intake.jobs_wait or self._claimer.waits_for_capacity

    @property
    def concurrency(self) -> int:
        """How many handlers may run at a time."""
        return self._runner.concurrency

    @concurrency.setter
    def concurrency(self, number: int) -> None:
        self._runner.concurrency = number

    @property
    def exit_code(self) -> int:
        """The exit code for the process: 0, 1, or 75 if a supervisor is to replace it."""
        return self._orders.exit_code

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self._requests.stopping.is_set()

    def stop(self) -> None:
        """Claim no more jobs and let running ones end."""
        self._orders.stop()

    def be_quiet(self) -> None:
        """Claim no more jobs, give back unstarted ones, and keep running."""
        self._orders.be_quiet()

    def resume(self) -> None:
        """Claim again, after `be_quiet`."""
        self._orders.resume()

    def retire(self) -> None:
        """Claim no more jobs, and end when all running ones have ended, however long that takes."""
        self._orders.retire()

    def handle_signals(self) -> None:
        """Handle the signals of an operator, on the running loop: see `operator_signals`."""
        operator_signals.handle(self, self.config.shutdown_timeout)

    def name_task(self, task: asyncio.Task[Any]) -> str:
        """Name the job whose handler is this asyncio task; "" for any other."""
        return str(self.handlers.in_tasks.get(task, ""))

    def name_thread(self, ident: int) -> str:
        """Name the job that runs in this thread; "" for any other."""
        return str(self.handlers.in_threads.get(ident, ""))

    def record_running_jobs(self, table: RunningJobs) -> None:
        """Record running handlers in this table, for the supervisor of this process."""
        self._runner.handlers.running_jobs = table

    def status(self) -> dict[str, Any]:
        """Return the worker's present state, for operators: numbers and text only, times in seconds."""
        return self._status.as_dict()

    async def run(self) -> bool:
        """Work until stopped. True when every job that was started has ended; False when some were cut off."""
        try:
            return await self._run()
        except Exception as error:
            self._events.error(error, "worker")
            raise
        finally:
            await self._events.stop()

    async def _run(self) -> bool:
        loops: list[asyncio.Task[None]] = []
        logs.switch_on()
        self._watchdog.start()
        self._steps.start()
        self.handlers.start()
        self._holding.start()
        try:
            if not await self._has_started():
                return True
            loops = self._start_loops()
            await self._requests.stopping.wait()
            clean = await self._shutdown.run(loops[0], self._surroundings.stopping)
            self._orders.exit_code = self._orders.exit_code or (0 if clean else 1)
            return clean
        finally:
            self._watchdog.stop()
            self._requests.stop()
            self._slots.leave(self)
            for loop in loops:
                loop.cancel()
            if loops:
                # One may hang in a statement on a silently dead connection.
                await asyncio.wait(loops, timeout=5.0)
            self._runner.close()
            await self._log_lines.close()
            await self._links.close()
            await self._steps.close()
            await self._pools.close()
            self._identity.leave()

    def _start_loops(self) -> list[asyncio.Task[None]]:
        config = self.config
        loops: dict[str, Loop] = {
            "claiming": self._claimer.claim_forever,
            "finishing": self._reporter.report_forever,
            "large results": self._reporter.report_large_forever,
            "retry functions": self._deciding.decide_forever,
            "leases": self._leases.extend_forever,
            "lease clock": self._leases.watch_forever,
            "heartbeat": self._registration.beat_forever,
            "maintenance": self._maintenance.maintain_forever,
            "commands": self._orders.obey_forever,
            "progress": self._progress.store_forever,
            "log lines": self._log_lines.store_forever,
            "sharing": self._overdue_jobs.share_forever,
            "timeouts": self._overdue_jobs.watch_timeouts_forever,
        }
        if config.listen:
            loops["listening"] = self._listener.listen_forever
        if (low := config.min_concurrency) is not None:
            loops["concurrency"] = partial(concurrency.adapt_forever, self._slots, low, config.concurrency)
        is_over = self._requests.stopping.is_set
        return [keep_running(name, loop, config.name, is_over, self._events.error) for name, loop in loops.items()]

    async def _has_started(self) -> bool:
        """Start, unless the worker is stopped while it still waits for the server."""
        starting = asyncio.create_task(self._start())
        stopping = asyncio.create_task(self._requests.stopping.wait())
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
            # A hook for the start may continue.
            await asyncio.wait({asyncio.gather(starting, stopping, return_exceptions=True)}, timeout=_START_HOOKS)
            if not started and self._identity.has_name:
                await self._shutdown.leave()

    async def _start(self) -> None:
        config = self.config
        await prepare(self._app, self._links.second, self._events, self._runner.handlers, self._place)
        await take_name(self._identity, config.name, self._links.second)
        self._slots.join(self)
        if config.listen and config.listen_dsn is not None:
            # On the channel that a worker has once it is registered; and before a claim, whose job would be cut off.
            await self._links.first.perform(self._registration.hello(), patient=False)
            await self._listener.check()
        # The first claim raises now, and not later, if the database refuses these settings.
        await self._claimer.claim(1, patient=False)
        log.info(
            "worker %s on %s: %s, concurrency %s, queues %s",
            config.name,
            self._place,
            how_many(len(self._app.tasks), "task"),
            config.concurrency if config.min_concurrency is None else f"{config.min_concurrency}:{config.concurrency}",
            describe_queues(config),
        )
        self.started.set()

    def _make_surroundings(self) -> Surroundings:
        return Surroundings(
            self._pools, statements=self._steps, progress=self._progress, leases=self._holding, lines=self._log_lines
        )

    def _make_shutdown(self) -> Shutdown:
        return Shutdown(
            self._app,
            self.config,
            self._links.second,
            self._exchange,
            self._runner,
            self._holding,
            self._outbox,
            self._tell,
            self._requests,
            self._registration,
            self._identity,
        )

    def _make_status(self) -> WorkerStatus:
        return WorkerStatus(
            self.config,
            self.started,
            self._requests,
            self._outage,
            self._trade,
            self._intake,
            self._sleeper,
            self._runner,
            self._holding,
            self._tell,
        )

    async def _introduce(self, link: Link) -> None:
        await self._registration.register(link)
        self._orders.asked_now.set()
        await self._exchange.reconnected(link)
