"""Handle the signals of an operator.

Python handles them between two steps of the main thread, without the event loop. So they are handled while a handler
blocks the loop, and there is no file descriptor into which a forked child could write the signals that it receives.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from pgqueue import _forks, logs
from pgqueue.worker.process import stack_dump
from pgqueue.worker.process.ending import end_after, end_now

log = logging.getLogger("pgqueue.worker")

# Seconds after its shutdown timeout until a worker that a signal has stopped ends in any case, before its supervisor
# kills it.
_GRACE = 10.0

_guards: list[threading.Timer] = []
_handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {}


class Controls(Protocol):
    """The requests of an operator to a worker; and what it runs, for a dump of all stacks."""

    @property
    def is_stopping(self) -> bool: ...
    def stop(self) -> None: ...
    def be_quiet(self) -> None: ...
    def resume(self) -> None: ...
    def name_task(self, task: asyncio.Task[Any]) -> str: ...
    def name_thread(self, ident: int) -> str: ...


def handle(worker: Controls, shutdown_timeout: float) -> None:
    """Handle signals in this process, whose main thread runs the event loop.

    TERM, INT and HUP: stop; a second TERM or INT: end at once, leaving what runs to its leases. USR1: be quiet; USR2:
    resume. TTIN: log the stacks of all threads and tasks. HUP stays ignored where it is (nohup).
    """
    loop = asyncio.get_running_loop()
    received: list[int] = []

    def on_loop(call: Callable[..., object], *args: object) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(call, *args)

    def stop(number: int) -> None:
        if not worker.is_stopping:
            log.info("%s: reserving no more jobs", signal.Signals(number).name)
            worker.stop()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGHUP and received:
            why = "second signal: ending at once; jobs that run come back when their leases lapse"
            # In a thread: this one may be in the middle of a write to the log.
            threading.Thread(target=end_now, args=(128 + number, why), daemon=True).start()
            return
        if number != signal.SIGHUP:
            received.append(number)
        if not worker.is_stopping:
            why = f"the worker has not ended {_GRACE:g} s after its shutdown timeout: ending without what holds it"
            _guards.append(end_after(shutdown_timeout + _GRACE, 1, why))
        on_loop(stop, number)

    def on_control(number: int, _frame: FrameType | None) -> None:
        on_loop(worker.be_quiet if number == signal.SIGUSR1 else worker.resume)

    # A module may have set handlers when it was imported; a worker must receive signals, and survive a client that
    # hangs up.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            _set(number, on_signal)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        _set(number, on_control)
    _forks.keep_signal(signal.SIGTTIN)
    stack_dump.dump_on(signal.SIGTTIN, loop, worker.name_task, worker.name_thread)


def ignore() -> None:
    """Ignore the signals that stop a worker: a signal after its end must not make the end look like a crash."""
    for guard in _guards:
        guard.cancel()
    _guards.clear()
    _handlers.clear()
    _forks.forget_signals()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)


async def keep_forever() -> None:
    """Restore the handlers if code of the application has set others, because no signal would end the worker."""
    while True:
        await asyncio.sleep(1.0)
        for number, handler in _handlers.items():
            if signal.getsignal(number) is not handler:
                logs.switch_on()
                log.warning(
                    "the application has set its own handler for %s; the worker has restored its handler", number.name
                )
                signal.signal(number, handler)


def _set(number: signal.Signals, handler: Callable[[int, FrameType | None], None]) -> None:
    _forks.keep_signal(number)
    _handlers[number] = handler
    signal.signal(number, handler)
