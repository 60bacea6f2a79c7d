"""Keep a process that a handler forks from inheriting the signal handlers and the sockets of the worker.

`multiprocessing` forks on Linux. A child that took the worker's signals could not be terminated. One that outlives its
worker would keep the sessions of the worker open, so that the server took it for alive, and its port.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet

#: How many times this process is the child of a fork.
depth = 0

_signals: set[signal.Signals] = set()
_masks = threading.local()
_sockets: WeakSet[HasFileno] = WeakSet()


class HasFileno(Protocol):
    """A socket, or a connection."""

    def fileno(self) -> int: ...


def keep_signal(number: signal.Signals) -> None:
    """Restore the default action of this signal in a child."""
    _signals.add(number)


def forget_signals() -> None:
    """Let children keep the handlers of this process from now on."""
    _signals.clear()


def keep_socket(owner: HasFileno) -> None:
    """Close this socket in a child."""
    _sockets.add(owner)


def end_child(error: BaseException | None) -> None:
    """End the child of a fork in which a handler has returned, or raises: it must not continue as a second worker."""
    code = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


def _in_child() -> None:
    global depth
    depth += 1
    with suppress(ValueError):
        # Else a signal to the child would be written into the parent's event loop.
        signal.set_wakeup_fd(-1)
        for number in _signals:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _unblock()
    with suppress(OSError):
        nothing = os.open(os.devnull, os.O_RDWR)
        for owner in list(_sockets):
            with suppress(Exception):
                # The number stays in use: libpq, and this object, still know it.
                os.dup2(nothing, owner.fileno(), inheritable=False)
        os.close(nothing)


def _block() -> None:
    # A child that is terminated before it has its own handlers would lose the signal.
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _signals)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_in_child)
