"""Report the events of a worker to the hooks of its App."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from pgqueue.app import App
from pgqueue.hooks import Dead, Event
from pgqueue.job import Job
from pgqueue.worker.hold.held import Held
from pgqueue.worker.hold.jobs import Jobs
from pgqueue.worker.process.ending import within

log = logging.getLogger("pgqueue.worker")

# Seconds that the hooks for the worker's end have.
_STOP_HOOKS = 5.0


class Lifetime:
    """Calls the hooks for the start and the end of a process once, however many workers are in it."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._workers = 0
        self._has_begun = False
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """A worker starts: before the first one, call the hooks for the start."""
        self._workers += 1
        async with self._turn:
            if not self._has_begun:
                self._has_begun = True
                await self._app.call("start")

    async def stop(self) -> None:
        """A worker has ended: after the last one, call the hooks for the end."""
        self._workers -= 1
        # In turn: the hooks for another start must not run beside these.
        async with self._turn:
            if self._workers == 0:
                self._has_begun = False
                await self._app.call("stop")


class Events:
    """Calls the hooks of `app` for the worker `name`. Nothing is reported before `start`."""

    def __init__(self, app: App, name: str, jobs: Jobs, lifetime: Lifetime | None = None) -> None:
        self.is_on = False
        self._lifetime = lifetime or Lifetime(app)
        self._app = app
        self._name = name
        self._jobs = jobs
        self._is_started = False
        self._calls: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Call the hooks for the worker's start."""
        self._is_started = True
        await self._lifetime.start()
        self.is_on = self._app.has("event")

    async def stop(self) -> None:
        """Call the hooks for the worker's end, when those for its start were called."""
        if not await within(_STOP_HOOKS, self._stop_hooks()):
            log.warning("hooks of the worker have not ended within %g s: ending without them", _STOP_HOOKS)

    def error(self, error: Exception, where: str) -> None:
        """Report an error outside handlers. The hooks run beside what met it, which does not wait for them."""
        if self._app.has("error"):
            self._call_later(self._app.call("error", error, where))

    def report(self, kind: str, held: Held, error: dict[str, object] | None = None) -> None:
        """Report an event of a job."""
        if self.is_on:
            row, seconds = held.row, held.attempt.seconds
            self._app.tell(Event(kind, self._name, 1, row.id, row.task, row.queue, row.attempt, error, seconds))

    def reserved(self, jobs: int) -> None:
        """Report that jobs were reserved, by their number."""
        self._app.tell(Event("reserved", self._name, jobs))

    def dead(self, held: Held) -> None:
        """Report that a job is dead. The hooks run beside the ends of other jobs, which do not wait for them."""
        if self._app.has("dead"):
            self._call_later(self._app.call("dead", dead_of(self._jobs.of(held), held)))

    async def _stop_hooks(self) -> None:
        # One that is cancelled, by itself or by code outside, keeps no other from being called.
        await asyncio.gather(*self._calls, return_exceptions=True)
        if self._is_started:
            await self._lifetime.stop()

    def _call_later(self, hooks: Coroutine[Any, Any, None]) -> None:
        call = asyncio.create_task(hooks, name="pgqueue-hooks")
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)


def dead_of(job: Job, held: Held) -> Dead:
    """Return the argument of the hooks for dead jobs."""
    payloads = [(held.attempt.decoded or held).args]
    if held.payloads is not None or held.leader is not None:
        # In a batch the first payload of the key is dead and the others continue; if discarded, all are dead.
        leader = held.leader or held
        every = ((leader.attempt.decoded or leader).payloads or {}).get(held.row.key or "", payloads)
        payloads = every[:1] if held.attempt.ending.decision.retry else list(every)
    return Dead(job, dict(held.attempt.ending.error or {}), payloads)
