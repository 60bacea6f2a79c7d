"""The first process of a container: it passes signals on to the worker, and reaps processes that handlers leave.

Processes whose parent has ended become children of process 1. A worker knows its own children alone, so without this
all others would stay as zombies, until no process can be started any more.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress


def go_on_in_child() -> None:
    """If this is process 1, fork, and return in the child; this process ends when the child does, with its code."""
    if os.getpid() != 1:
        return
    # It may be inherited that their ends are ignored: the worker's would not be noticed.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    child = os.fork()
    if child == 0:
        # Its own group: Ctrl-C in a terminal comes once, from here.
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    while True:
        number = signal.sigwait(signal.valid_signals())
        if number != signal.SIGCHLD:
            with suppress(ProcessLookupError):
                os.kill(child, number)
        elif (status := _reap(child)) is not None:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _reap(worker: int) -> int | None:
    """Reap all children that have ended; returns the worker's status if it is among them."""
    found = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == worker:
                found = ended[1]
    return found
