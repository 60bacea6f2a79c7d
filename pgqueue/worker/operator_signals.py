"""Handle the signals of an operator."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from typing import Protocol

from pgqueue.worker import stack_dump
from pgqueue.worker.handlers import Handlers

log = logging.getLogger("pgqueue.worker")


class Controls(Protocol):
    """The requests of an operator to a worker."""

    def stop(self) -> None: ...
    def be_quiet(self) -> None: ...
    def resume(self) -> None: ...


def handle(worker: Controls, handlers: Callable[[], Sequence[Handlers]], is_stopping: Callable[[], bool]) -> None:
    """Handle signals on the running loop. `handlers` returns what runs handlers in this process.

    TERM, INT and HUP: stop; a second TERM or INT: end at once, leaving what runs to its leases. USR1: be quiet; USR2:
    resume. TTIN: log the stacks of all threads and tasks. HUP stays ignored where it is (nohup).
    """
    received: list[int] = []

    def on_signal(number: int) -> None:
        if received:
            log.warning("second signal: ending at once; jobs that run come back when their leases lapse")
            logging.shutdown()
            os._exit(128 + number)
        received.append(number)
        log.info("%s: reserving no more jobs", signal.Signals(number).name)
        worker.stop()

    def on_hangup() -> None:
        if not is_stopping():
            log.info("SIGHUP: reserving no more jobs")
            worker.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, on_hangup)
    loop.add_signal_handler(signal.SIGUSR1, worker.be_quiet)
    loop.add_signal_handler(signal.SIGUSR2, worker.resume)
    stack_dump.dump_on(
        signal.SIGTTIN,
        loop,
        lambda task: "".join(str(each.in_tasks.get(task, "")) for each in handlers()),
        lambda ident: "".join(str(each.in_threads.get(ident, "")) for each in handlers()),
    )
