"""The workers of several databases in one process: one each, which share its slots."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pgqueue.app import App
from pgqueue.config import WorkerConfig, name_databases
from pgqueue.errors import ConfigError, PgQueueError
from pgqueue.logs import one_line
from pgqueue.worker import operator_signals
from pgqueue.worker.presence.orders import REPLACE_ME
from pgqueue.worker.process import memory
from pgqueue.worker.process.loops import keep_running
from pgqueue.worker.run import concurrency
from pgqueue.worker.run.running_jobs import RunningJobs
from pgqueue.worker.run.slots import Slots
from pgqueue.worker.tell.counts import Entry
from pgqueue.worker.tell.events import Lifetime
from pgqueue.worker.worker import Worker

log = logging.getLogger("pgqueue.worker")

# Seconds before a database whose worker could not start is tried again; they double, up to the second number.
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 60.0

_SUMMED = ("running", "free", "buffered", "held", "succeeded", "failed")
_EACH = ("ready", "running", "buffered", "held", "succeeded", "failed", "last_reserve", "outage", "claims")


@dataclass(slots=True, eq=False)
class _Place:
    """One database. `refusal`: why its worker could not start; `settled`: it has started, was refused once, or will not
    start."""

    name: str
    dsn: str
    config: WorkerConfig
    worker: Worker
    settled: asyncio.Event
    refusal: PgQueueError | None = None


class FleetCounts:
    """The counts of all workers; each entry names its database."""

    def __init__(self, workers: dict[str, list[Worker]]) -> None:
        self._workers = workers
        self._readers: list[str] = []

    def entries(self) -> list[Entry]:
        """Return all that was counted since the start."""
        return [
            {"database": name, **entry}
            for name, workers in self._workers.items()
            for worker in workers
            for entry in worker.counts.entries()
        ]

    def follow(self, reader: str) -> None:
        """Count for one more reader from now on."""
        self._readers.append(reader)
        for workers in self._workers.values():
            for worker in workers:
                worker.counts.follow(reader)

    def take(self, reader: str) -> list[Entry]:
        """Return what was counted since the last call for this reader."""
        return [
            {"database": name, **entry}
            for name, workers in self._workers.items()
            for worker in workers
            for entry in worker.counts.take(reader)
        ]

    def put_back(self, reader: str, entries: Sequence[Entry]) -> None:
        """Add entries that could not be reported to the next ones."""
        for entry in entries:
            self._workers[entry["database"]][-1].counts.put_back(reader, [entry])

    def added(self, worker: Worker) -> None:
        """Let the worker that replaced another one count for the same readers."""
        for reader in self._readers:
            worker.counts.follow(reader)


class Fleet:
    """Serves several databases: `dsns`, each with a worker of the same name and settings.

    `config.concurrency` is how many handlers all of them run at the same time; see `Slots`. If a database cannot be
    reached or refuses its worker, it is tried again, and the others are not affected. If all refuse, `run` raises the
    error of the first one.
    `listen_dsns` has one for each of `dsns`, or is empty.
    """

    def __init__(self, app: App, dsns: Sequence[str], config: WorkerConfig, listen_dsns: Sequence[str] = ()) -> None:
        names = name_databases(dsns)
        if listen_dsns and len(listen_dsns) != len(dsns):
            raise ConfigError(
                f"{len(listen_dsns)} addresses to listen at for {len(dsns)} databases",
                hint="give one --listen-dsn for each --dsn, in the same order",
            )
        self.config = config
        self.started = asyncio.Event()
        self.exit_code = 0
        self._app = app
        self._slots = Slots(config.concurrency, len(dsns))
        self._lifetime = Lifetime(app)
        self._stopping = asyncio.Event()
        # No database is tried again.
        self._ending = asyncio.Event()
        self._quiet = False
        self._retiring = False
        self._table: RunningJobs | None = None
        self._began = time.monotonic()
        # The number of slots of one database is fixed; the total moves.
        each = replace(config, min_concurrency=None)
        configs = [replace(each, listen_dsn=listen) for listen in listen_dsns] or [each] * len(dsns)
        self._workers: dict[str, list[Worker]] = {}
        self._places = [self._place(*each) for each in zip(names, dsns, configs, strict=True)]
        self.counts = FleetCounts(self._workers)

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self._stopping.is_set()

    def name_task(self, task: asyncio.Task[Any]) -> str:
        """Name the job whose handler is this asyncio task; "" for any other."""
        return "".join(worker.name_task(task) for worker in self._present())

    def name_thread(self, ident: int) -> str:
        """Name the job that runs in this thread; "" for any other."""
        return "".join(worker.name_thread(ident) for worker in self._present())

    def stop(self) -> None:
        """Claim no more jobs, and let running ones end."""
        self._stopping.set()
        self._ending.set()
        for worker in self._present():
            worker.stop()

    def be_quiet(self) -> None:
        """Claim no more jobs, give back unstarted ones, and keep running."""
        self._quiet = True
        for worker in self._present():
            worker.be_quiet()

    def resume(self) -> None:
        """Claim again, after `be_quiet`."""
        self._quiet = self._retiring
        for worker in self._present():
            worker.resume()

    def retire(self) -> None:
        """Claim no more jobs, and end when all running ones have ended, however long that takes."""
        self._quiet = self._retiring = True
        self._ending.set()
        for worker in self._present():
            if worker.started.is_set():
                worker.retire()
            else:
                worker.stop()

    def handle_signals(self) -> None:
        """Handle the signals of an operator, on the running loop: see `operator_signals`."""
        operator_signals.handle(self, self.config.shutdown_timeout)

    def record_running_jobs(self, table: RunningJobs) -> None:
        """Record in this table what handlers run, for the supervisor of this process."""
        self._table = table
        for worker in self._present():
            worker.record_running_jobs(table)

    def status(self) -> dict[str, Any]:
        """Return the present state: sums over all databases, and under `databases` the values of each."""
        each = {place.name: place.worker.status() for place in self._places}
        troubles = [
            f"{place.name}: {one_line(place.refusal) if place.refusal else each[place.name]['reason']}"
            for place in self._places
            if not each[place.name]["ready"]
        ]
        ready = any(found["ready"] for found in each.values())
        return {
            "worker": self.config.name,
            "pid": os.getpid(),
            "ready": ready,
            "reason": "; ".join(troubles)[:300],
            "started": self.started.is_set(),
            "quiet": self._quiet,
            "stopping": self._stopping.is_set(),
            "concurrency": self._slots.concurrency,
            **{name: sum(found[name] for found in each.values()) for name in _SUMMED},
            "free": max(self._slots.concurrency - self._slots.running, 0),
            "memory": memory.resident(),
            "memory_limit": memory.limit(self.config.max_memory),
            "uptime": round(time.monotonic() - self._began, 3),
            "databases": [
                {"worker": self.config.name, "database": name, **{field: found[field] for field in _EACH}}
                for name, found in each.items()
            ],
        }

    async def run(self) -> bool:
        """Work until stopped; as `Worker.run`."""
        tasks = [asyncio.create_task(self._serve(place), name=f"pgqueue-{place.name}") for place in self._places]
        adapting: asyncio.Task[None] | None = None
        if (low := self.config.min_concurrency) is not None:
            wanted = partial(concurrency.adapt_forever, self._slots, low, self.config.concurrency)
            adapting = keep_running("concurrency", wanted, self.config.name, self._stopping.is_set)
        try:
            await self._until_settled()
            await asyncio.gather(*tasks)
        finally:
            self.stop()
            if adapting is not None:
                adapting.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return self.exit_code == 0

    async def _until_settled(self) -> None:
        """Raise what the first database refuses when all refuse."""
        for place in self._places:
            await place.settled.wait()
        refusals = [place.refusal for place in self._places if place.refusal is not None]
        if len(refusals) == len(self._places):
            raise refusals[0]

    async def _serve(self, place: _Place) -> None:
        """Keep a worker for this database until all stop, or it has ended by itself."""
        pause = _FIRST_PAUSE
        while not self._ending.is_set():
            starting = asyncio.create_task(self._note_start(place))
            try:
                await place.worker.run()
            except PgQueueError as error:
                place.refusal = error
                log.error("%s is not served: %s; trying again in %g s", place.name, one_line(error), pause)
            except Exception:
                log.exception("the worker of %s has failed; starting it again in %g s", place.name, pause)
            else:
                place.settled.set()
                self._ended(place.worker.exit_code)
                return
            finally:
                starting.cancel()
            place.settled.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._ending.wait()
            pause = min(2 * pause, _LONGEST_PAUSE)
            self._renew(place)
        # Also where it was stopped before this began.
        place.settled.set()

    async def _note_start(self, place: _Place) -> None:
        await place.worker.started.wait()
        place.refusal = None
        place.settled.set()
        self.started.set()

    def _ended(self, code: int) -> None:
        self._slots.expect_fewer()
        if code == REPLACE_ME:
            # A handler keeps this process from serving the others as well.
            self.exit_code = REPLACE_ME
            self.stop()
        elif self.exit_code != REPLACE_ME:
            self.exit_code = self.exit_code or code

    def _place(self, name: str, dsn: str, config: WorkerConfig) -> _Place:
        return _Place(name, dsn, config, self._new_worker(name, dsn, config), asyncio.Event())

    def _new_worker(self, name: str, dsn: str, config: WorkerConfig) -> Worker:
        worker = Worker(self._app, dsn, config, slots=self._slots, lifetime=self._lifetime)
        # The counts of a worker that is gone are kept.
        self._workers.setdefault(name, []).append(worker)
        return worker

    def _renew(self, place: _Place) -> None:
        if not place.worker.counts.entries():
            self._workers[place.name].remove(place.worker)
        place.worker = worker = self._new_worker(place.name, place.dsn, place.config)
        self.counts.added(worker)
        if self._table is not None:
            worker.record_running_jobs(self._table)
        if self._quiet:
            worker.be_quiet()

    def _present(self) -> list[Worker]:
        return [place.worker for place in self._places]
