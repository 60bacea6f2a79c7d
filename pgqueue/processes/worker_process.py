"""One worker process as its supervisor sees it: its start, its reports, and the jobs that it left when it ended."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from pgqueue.logs import how_many
from pgqueue.processes.control_pipe import RETIRE, ControlPipe
from pgqueue.worker.process import memory
from pgqueue.worker.run import running_jobs
from pgqueue.worker.tell.counts import Totals

# The exit code of a worker that wants to be replaced, of one that cannot start, and of one that an operator has killed.
REPLACE_ME = 75
CANNOT_START = 2
KILLED = 128 + signal.SIGKILL

# A worker that has not reported for this many seconds is silent: not ready, whatever its last report.
SILENT = 10.0


@dataclass(slots=True, eq=False)
class WorkerProcess:
    """One worker process.

    `ready` and `gone` are set once; `code` is then its exit code, or below zero the signal that killed it. `left`: it
    is gone, or another one has its slot. `number` is part of its name. `asked_to_end`: its end is planned.
    """

    number: int
    name: str
    process: asyncio.subprocess.Process
    commands: int
    reports: int
    running_jobs: int
    began: float = field(default_factory=time.monotonic)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    code: int | None = None
    status: dict[str, Any] = field(default_factory=dict)
    heard_at: float = 0.0
    asked_to_end: bool = False
    # When a replaced one is stopped, and when it is killed.
    stop_at: float = math.inf
    kill_at: float = math.inf
    has_run: bool = False
    unread: bytes = b""
    # The counts of ended jobs, from its process.
    ended: Totals = field(default_factory=Totals)

    @classmethod
    async def start(
        cls, command: list[str], name: str, number: int, environment: Mapping[str, str], most_jobs: int
    ) -> WorkerProcess:
        """Start `command` at the other end of a control pipe. Raises OSError, or RuntimeError without a thread to wait.

        Then it leaves nothing open: a process that was made all the same ends with its pipe.
        """
        inherited: list[int] = []
        ours: list[int] = []
        try:
            commands, commands_end = os.pipe()
            inherited.append(commands)
            ours.append(commands_end)
            reports_end, reports = os.pipe()
            inherited.append(reports)
            ours.append(reports_end)
            ours.append(running_jobs.create(most_jobs))
            pipe = ControlPipe(name, commands, reports, ours[-1])
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                env={**environment, **pipe.as_environment()},
                pass_fds=(*inherited, ours[-1]),
                # In its own session: a key pressed in the terminal signals the supervisor alone.
                process_group=0,
            )
        except BaseException:
            for fd in ours:
                os.close(fd)
            raise
        finally:
            for fd in inherited:
                os.close(fd)
        os.set_blocking(reports_end, False)
        return cls(number, name, process, commands_end, reports_end, ours[-1])

    def __str__(self) -> str:
        return f"worker {self.name} (pid {self.process.pid})"

    def send(self, number: int) -> None:
        """Send a signal, if the process is still there."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def retire(self) -> None:
        """Have it end after its running jobs."""
        self.asked_to_end = True
        # The number of a closed pipe may be that of another worker's by now.
        if not self.gone.is_set():
            with suppress(OSError):
                os.write(self.commands, RETIRE)

    def read_reports(self) -> bool:
        """Read its reports; False when its end of the pipe is closed."""
        try:
            data = os.read(self.reports, 65536)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        *lines, self.unread = (self.unread + data).split(b"\n")
        for line in lines:
            report = orjson.loads(line)
            if "ended" in report:
                self.ended.add(report["ended"])
            else:
                self.status = report
            self.heard_at = time.monotonic()
        return True

    def jobs(self) -> list[tuple[int, int]]:
        """Return (job id, reservation) of the jobs that its handlers run."""
        return running_jobs.read(self.running_jobs)

    def close(self) -> None:
        """Close the control pipe and the running-jobs table."""
        for fd in (self.commands, self.reports, self.running_jobs):
            os.close(fd)

    def is_planned_end(self, code: int, until_empty: bool) -> bool:
        """Return whether it was to end with this exit code."""
        # The jobs of a killed one are given back, also if it was to end by itself.
        return code != KILLED and (self.asked_to_end or code == REPLACE_ME or (code == 0 and until_empty))

    def ended_well(self, code: int) -> bool:
        """Return whether a planned end left nothing undone."""
        # A process that was not ready has no handler for TERM yet, and nothing to lose.
        return code in (0, REPLACE_ME) or (code == -signal.SIGTERM and not self.ready.is_set())

    def how_it_ended(self) -> str:
        """Describe its end for a log."""
        if self.code is not None and self.code < 0:
            try:
                return f"was killed by {signal.Signals(-self.code).name}"
            except ValueError:
                return f"was killed by signal {-self.code}"
        return f"ended with exit code {self.code}"

    def over_limit(self, max_memory: int | None, max_jobs: int | None) -> str:
        """Return why it must be replaced; empty while it is within its limits."""
        if not self.ready.is_set() or self.gone.is_set():
            return ""
        if max_jobs is not None:
            done = self.status.get("succeeded", 0) + self.status.get("failed", 0)
            if done >= max_jobs:
                return f"it has run {how_many(done, 'job')}"
        if max_memory is not None:
            size = memory.resident(self.process.pid)
            if size > max_memory:
                return f"it holds {size / 2**20:.0f} MiB"
        return ""

    def as_status(self) -> dict[str, Any]:
        """Return its last report, with `ready` as the supervisor knows it."""
        status = {"worker": self.name, "pid": self.process.pid, "ready": False, "reason": "", **self.status}
        if self.gone.is_set():
            return {**status, "ready": False, "reason": self.how_it_ended()}
        if not self.ready.is_set():
            return {**status, "ready": False, "reason": status["reason"] or "it has not started yet"}
        silent = time.monotonic() - self.heard_at
        if silent > SILENT:
            return {**status, "ready": False, "reason": f"it has not reported for {silent:.0f} s"}
        return status


def same_command() -> list[str]:
    """Return the command line of this process, to be run once more."""
    return [sys.executable, *sys.orig_argv[1:]]
