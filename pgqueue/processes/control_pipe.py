"""What ties a worker process to its supervisor: its name, its board, orders from it and reports to it.

The supervisor's death ends the process at once, also while a handler blocks the event loop: another process may bear
its name next.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from pgqueue.board import Board

# Set in the environment of a worker process that has a supervisor, and taken out of it at once.
VARIABLE = "_PGQUEUE_LEASH"

# What a supervisor may order, a line each: take nothing new, end when all that runs has ended.
RETIRE = b"retire\n"

# Seconds between reports.
INTERVAL = 0.5

# A pipe takes so much in one piece or not at all.
_MOST = 4096

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Leash:
    """The worker's end: its name, and file descriptors that it inherited."""

    name: str
    orders: int
    reports: int
    board: int

    @classmethod
    def take(cls, environ: MutableMapping[str, str] = os.environ) -> Leash | None:
        """Return the leash that this process was started on; None without a supervisor."""
        text = environ.pop(VARIABLE, None)
        if text is None:
            return None
        leash = cls(**orjson.loads(text))
        for fd in (leash.orders, leash.reports, leash.board):
            # Not for what handlers start.
            os.set_inheritable(fd, False)
        os.set_blocking(leash.reports, False)
        return leash

    def as_environment(self) -> dict[str, str]:
        """What to add to the environment of a process that is to be on this leash."""
        return {VARIABLE: orjson.dumps(asdict(self)).decode()}

    def open_board(self) -> Board:
        """Map the board into this process."""
        return Board(self.board)

    def obey(self, on_retire: Callable[[], object]) -> None:
        """From now on, carry out orders, and die with the supervisor. `on_retire` is called on the running loop."""
        loop = asyncio.get_running_loop()
        _die_with_parent()

        def listen() -> None:
            with os.fdopen(self.orders, "rb") as orders:
                for order in orders:
                    if order == RETIRE:
                        with suppress(RuntimeError):
                            loop.call_soon_threadsafe(on_retire)
            os._exit(1)

        threading.Thread(target=listen, name="pgqueue-leash", daemon=True).start()

    async def report_forever(self, status: Callable[[], Mapping[str, Any]]) -> None:
        """Tell the supervisor every half second how this process is."""
        while True:
            self.report(status())
            await asyncio.sleep(INTERVAL)

    def report(self, status: Mapping[str, Any]) -> None:
        """Tell the supervisor now. One that does not listen is not waited for."""
        line = orjson.dumps(status, default=str) + b"\n"
        if len(line) <= _MOST:
            with suppress(OSError):
                os.write(self.reports, line)


def _die_with_parent() -> None:
    # The end of the pipe tells the same, to a process whose threads still run.
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
