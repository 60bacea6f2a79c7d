"""Commands of operators to a worker: by a signal, in code, or through the database."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import suppress
from typing import Any

from pgqueue.config import WorkerConfig
from pgqueue.db import presence
from pgqueue.job import Flag
from pgqueue.worker.hold.held import Held
from pgqueue.worker.link.connection import Link
from pgqueue.worker.presence.identity import Identity
from pgqueue.worker.process import stack_dump
from pgqueue.worker.process.ending import end_now
from pgqueue.worker.process.requests import Requests
from pgqueue.worker.run.log_lines import LogLines
from pgqueue.worker.run.runner import Runner

log = logging.getLogger("pgqueue.worker")

# The exit code of a process that is to be replaced: EX_TEMPFAIL.
REPLACE_ME = 75

# The exit code of a process that an operator has killed, as a shell has it for SIGKILL: its supervisor counts a crash.
_KILLED = 128 + signal.SIGKILL

# Seconds after a notification until the server is asked once more, because a claim that was under way may bring jobs
# that have been paused meanwhile.
_ASK_AGAIN = 1.0

# Seconds between two questions at least: each handler that is throttled, and each pause, asks for one.
_APART = 0.1


class Orders:
    """Carries out orders. `exit_code` is what the process should exit with, as far as an order decides that.

    `obey_forever` carries out those that come through the database as well: the command of this worker is read when
    `asked_now` is set, however often, and at each heartbeat. It acts on changes only, so that a later signal keeps its
    effect.
    """

    def __init__(
        self,
        config: WorkerConfig,
        identity: Identity,
        link: Link,
        requests: Requests,
        runner: Runner,
        stopping: Flag,
        log_lines: LogLines,
    ) -> None:
        self.exit_code = 0
        self.asked_now = asyncio.Event()
        self._config = config
        self._identity = identity
        self._link = link
        self._requests = requests
        self._runner = runner
        # What handlers see.
        self._stopping = stopping
        self._log_lines = log_lines
        self._obeys = "run"

    def stop(self) -> None:
        """Claim no more jobs and let running ones end."""
        if not self._requests.stopping.is_set():
            self._requests.stop()

    def be_quiet(self) -> None:
        """Claim no more jobs, give back unstarted ones, and keep running."""
        if not self._requests.quiet:
            self._requests.quiet = True
            log.info("quiet: reserving no more jobs; %d still run", self._runner.running)
            self._runner.give_back_unstarted()
            self._requests.rouse()

    def resume(self) -> None:
        """Claim again, after `be_quiet`."""
        if self._requests.quiet and not self._requests.retiring:
            self._requests.quiet = False
            log.info("no longer quiet: reserving jobs again")
            self._requests.freed.set()

    def retire(self) -> None:
        """Claim no more jobs, and end when all running ones have ended, however long that takes."""
        if not self._requests.retiring:
            self.be_quiet()
            self._requests.retiring = True
            self._stopping.raise_it("the worker is replaced")
            self._requests.freed.set()

    def end_to_be_replaced(self) -> None:
        """Stop, and have the supervisor start another process."""
        self.exit_code = REPLACE_ME
        self.stop()

    async def obey_forever(self) -> None:
        """Carry out each command, and report that first: a worker that stops deletes its row."""
        while True:
            # A command that comes while the last one is read is read too.
            pause = _ASK_AGAIN if self.asked_now.is_set() else self._identity.heartbeat
            self.asked_now.clear()
            wanted = await self._ask()
            if wanted.startswith("stack:"):
                await self._tell_stack(int(wanted.removeprefix("stack:")))
                continue
            if wanted != self._obeys:
                await self._obey(wanted)
            await self._give_back_paused()
            await asyncio.sleep(_APART)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.asked_now.wait()

    async def _give_back_paused(self) -> None:
        """Give back unstarted jobs that would not start now."""
        unstarted = [each.row.id for held in self._runner.waiting.of_age(0.0) for each in (held, *held.members)]
        if not unstarted:
            return
        paused = await self._link.perform(presence.paused_of(unstarted))
        if paused and (given_back := self._runner.give_back_unstarted(only=frozenset(paused))):
            log.info("%d unstarted jobs are given back: they are paused, or a limit was set", given_back)

    async def _tell_stack(self, job_id: int) -> None:
        """Store where the handler of a job stands, as lines of its log."""
        handlers = self._runner.handlers
        running: list[tuple[asyncio.Task[Any] | int, Held]] = [*handlers.in_tasks.items(), *handlers.in_threads.items()]
        # A batch runs in the place of its leader.
        all_held = ((place, each) for place, held in running for each in (held, *held.members))
        found = next(((place, held) for place, held in all_held if held.row.id == job_id), None)
        if found is None:
            self._log_lines.tell(job_id, 0, "STACK", ["its handler does not run: it is to start, or has just ended"])
        else:
            place, held = found
            self._log_lines.tell(job_id, held.row.attempt, "STACK", stack_dump.of_one(place))
        await self._log_lines.store()

    async def _obey(self, wanted: str) -> None:
        if wanted == "taken":
            self._obeys = wanted
            self._lose_name()
        elif wanted in ("run", "quiet", "stop", "kill"):
            before, self._obeys = self._obeys, wanted
            try:
                await self._ask()
            except BaseException:
                # Not carried out: it is read again.
                self._obeys = before
                raise
            log.info("an operator's command came through the database: %s", wanted)
            if wanted == "run":
                self.resume()
            elif wanted == "quiet":
                self.be_quiet()
            elif wanted == "kill":
                end_now(_KILLED, f"ending at once, with {self._runner.running} jobs that run")
            elif self._config.supervised:
                # The supervisor counts any other end as a crash.
                self.end_to_be_replaced()
            else:
                self.stop()

    async def _ask(self) -> str:
        asking = presence.worker_command(self._config.name, self._obeys, self._identity.instance)
        wanted = await self._link.perform(asking)
        if wanted == "taken" and await self._identity.takes_back(self._link.perform):
            wanted = await self._link.perform(asking)
        return wanted

    def _lose_name(self) -> None:
        log.error(
            "another process has taken the name %s, because this one was silent; this one stops", self._config.name
        )
        self._identity.has_name = False
        self.exit_code = 1
        self.stop()
