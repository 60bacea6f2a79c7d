"""Commands of ours that another one runs in its terminal, and ends with itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread

import typer

from pgqueue.cli import output

# Seconds that running jobs have when a worker ends, and those of its process beyond.
PATIENCE = 5
_GRACE = 5

_COLOURS = {"pages": typer.colors.MAGENTA}


class Child:
    """A `pgqueue` command whose lines are shown behind its name; with `is_silent`, only that it has failed."""

    def __init__(
        self, name: str, arguments: Sequence[str], dsn: str, *, is_silent: bool = False, **environment: str
    ) -> None:
        self._name = name
        self._is_silent = is_silent
        self._arguments = arguments
        self._environment = {**os.environ, "PGQUEUE_DSN": dsn, "PYTHONUNBUFFERED": "1", **environment}
        self._process: subprocess.Popen[str] | None = None
        self._lines: Thread | None = None
        self._is_ending = False

    def start(self) -> None:
        """Start it, in its own session: Ctrl-C reaches it through us, in order."""
        self._is_ending = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pgqueue", *self._arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
            start_new_session=True,
        )
        self._lines = Thread(target=self._show, args=(self._process,), daemon=True)
        self._lines.start()

    def end(self) -> None:
        """End it as a signal does, and at last by force."""
        if self._process is None or self._lines is None:
            return
        self._is_ending = True
        self._process.terminate()
        try:
            self._process.wait(PATIENCE + _GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._lines.join(_GRACE)

    def _show(self, process: subprocess.Popen[str]) -> None:
        name = f"{self._name:6} |"
        if sys.stderr.isatty():
            name = typer.style(name, fg=_COLOURS.get(self._name, typer.colors.CYAN))
        for line in process.stdout or ():
            if not self._is_silent:
                sys.stderr.write(f"{name} {line}")
                sys.stderr.flush()
        code = process.wait()
        if code and not self._is_ending:
            output.message(f"{self._name} ended with exit code {code}", "red")


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP interrupt as Ctrl-C does, so that what was started is ended, too."""
    before = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP)
        # Under nohup SIGHUP stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def running(*children: Child) -> Iterator[None]:
    """Start children, and end them; from then on no signal ends this process, which ends itself."""
    try:
        for child in children:
            child.start()
        yield
    finally:
        # A second Ctrl-C must not leave one behind.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        for child in children:
            child.end()
