"""The link between a supervisor and a worker process: name, running-jobs table, commands and reports.

When the supervisor has died, the process ends at once, also while a handler blocks the event loop: another process may
get its name next.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import orjson

from pgqueue.worker.run.running_jobs import RunningJobs
from pgqueue.worker.tell.counts import Entry

# Set in the environment of a worker process that has a supervisor, and removed from it at once.
VARIABLE = "_PGQUEUE_CONTROL_PIPE"

# A command of the supervisor, one a line: reserve nothing more, end when all running jobs have ended.
RETIRE = b"retire\n"

# Entries of counts in a line: each has two names of up to 128 bytes, which JSON may write six times as long.
_PER_LINE = 2

# The supervisor, as a reader of counts.
_READER = "supervisor"

# Seconds between reports.
INTERVAL = 0.5

# A pipe takes up to this many bytes in one piece or not at all.
_MOST = 4096

_PR_SET_PDEATHSIG = 1


class Reported(Protocol):
    """Counts that several readers follow."""

    def follow(self, reader: str) -> None: ...
    def take(self, reader: str) -> list[Entry]: ...
    def put_back(self, reader: str, entries: Sequence[Entry]) -> None: ...


@dataclass(frozen=True, slots=True)
class ControlPipe:
    """The end of the worker: its name, and the file descriptors that it inherited."""

    name: str
    commands: int
    reports: int
    running_jobs: int

    @classmethod
    def take(cls, environ: MutableMapping[str, str] = os.environ) -> ControlPipe | None:
        """Return the control pipe that this process was started with; None without a supervisor."""
        text = environ.pop(VARIABLE, None)
        if text is None:
            return None
        pipe = cls(**orjson.loads(text))
        for fd in (pipe.commands, pipe.reports, pipe.running_jobs):
            # Removed so that processes which handlers start do not inherit it.
            os.set_inheritable(fd, False)
        os.set_blocking(pipe.reports, False)
        return pipe

    def as_environment(self) -> dict[str, str]:
        """Return the variables to add to the environment of the process at the other end."""
        return {VARIABLE: orjson.dumps(asdict(self)).decode()}

    def open_running_jobs(self) -> RunningJobs:
        """Map the running-jobs table into this process."""
        return RunningJobs(self.running_jobs)

    def carry_out(self, on_retire: Callable[[], object]) -> None:
        """From now on, execute commands, and end if the supervisor dies. Calls `on_retire` on the running loop."""
        loop = asyncio.get_running_loop()
        _die_with_parent()

        def listen() -> None:
            with os.fdopen(self.commands, "rb") as commands:
                for command in commands:
                    if command == RETIRE:
                        with suppress(RuntimeError):
                            loop.call_soon_threadsafe(on_retire)
            os._exit(1)

        threading.Thread(target=listen, name="pgqueue-control-pipe", daemon=True).start()

    async def report_forever(self, status: Callable[[], Mapping[str, Any]], counts: Reported) -> None:
        """Report the status of this process every half second, and the jobs that have ended."""
        counts.follow(_READER)
        while True:
            self.report(status())
            self.report_ends(counts)
            await asyncio.sleep(INTERVAL)

    def report(self, status: Mapping[str, Any]) -> bool:
        """Report a status now. Does not wait for a supervisor that does not read: False then."""
        line = orjson.dumps(status, default=str) + b"\n"
        if len(line) > _MOST and "databases" in status:
            # With very many databases, the sums alone.
            line = orjson.dumps({**status, "databases": []}, default=str) + b"\n"
        if len(line) > _MOST:
            return False
        try:
            os.write(self.reports, line)
        except OSError:
            return False
        return True

    def report_ends(self, counts: Reported) -> None:
        """Report the jobs that ended since the last call, a few tasks a line; the rest goes with the next report."""
        ended = counts.take(_READER)
        while ended:
            # An entry that names its database is longer.
            most = 1 if "database" in ended[0] else _PER_LINE
            some, ended = ended[:most], ended[most:]
            if not self.report({"ended": some}):
                counts.put_back(_READER, [*some, *ended])
                return


def _die_with_parent() -> None:
    # The end of the pipe reports the same, to a process whose threads still run.
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
