"""`pgqueue dev`: the database, a worker that restarts when a file changes, and the pages, in one terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Annotated, NoReturn

import typer

from pgqueue.cli import output, ports
from pgqueue.cli.database import database
from pgqueue.cli.options import Dsn, LogLevel, commands
from pgqueue.config import describe_dsn
from pgqueue.errors import ConfigError
from pgqueue.schema.status import status

app = commands()

_COLOURS = {"worker": typer.colors.CYAN, "pages": typer.colors.MAGENTA}

# Seconds that running jobs have when the worker restarts or all ends, and those of the process beyond.
_PATIENCE = 5
_GRACE = 5


@app.command()
def dev(
    require: Annotated[
        list[str] | None,
        typer.Option("--require", "-r", help="Module with the tasks: package.module or package.module:app."),
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the pages.", min=1, max=65535)] = 8081,
    pages: Annotated[bool, typer.Option(help="Serve the pages.")] = True,
    log_level: LogLevel = "info",
    dsn: Dsn = None,
) -> None:
    """Run all that development needs in one terminal: database, worker, pages.

    Without a DSN the database is the embedded server of this directory. The worker restarts when a Python file below
    this directory changes. Ctrl-C stops everything.
    """
    if not require:
        raise ConfigError("no module with tasks was given", hint="name it: pgqueue dev -r package.module")
    if find_spec("watchfiles") is None:
        raise ConfigError("pgqueue dev needs the extra reload", hint="pip install 'pgqueue-sql[reload]'")
    serves = pages and find_spec("uvicorn") is not None
    if serves:
        ports.check_free("127.0.0.1", port)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    # Ctrl-C ends all.
    with database(dsn, keep=0) as found:
        if not status(found).current:
            # A database that is not of this directory alone is not migrated without being asked for.
            raise ConfigError(f"the schema in {describe_dsn(found)} is not current", hint="run: pgqueue migrate")
        worker = ["worker", "--log-level", log_level, "--shutdown-timeout", str(_PATIENCE)]
        for module in require:
            worker += ["-r", module]
        shown = [_Child("worker", worker, found)]
        if serves:
            shown.append(_Child("pages", ["web", "--port", str(port)], found))
        elif pages:
            output.message("No pages without the extra web: pip install 'pgqueue-sql[web]'", "yellow")
        output.message(f"Database: {describe_dsn(found)}. Ctrl-C stops everything.", "dim")
        try:
            for child in shown:
                child.start()
            _restart_on_changes(shown[0])
        except KeyboardInterrupt:
            raise typer.Exit from None
        finally:
            # A second Ctrl-C must not leave one behind.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            for child in shown:
                child.end()


def _restart_on_changes(worker: _Child) -> None:
    from watchfiles import PythonFilter, watch  # noqa: PLC0415

    for changes in watch(Path(), watch_filter=PythonFilter(), raise_interrupt=True):
        names = sorted({os.path.relpath(path) for _, path in changes})
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        output.message(f"{names[0]}{more} changed: the worker restarts", "dim")
        worker.end()
        worker.start()


class _Child:
    """A `pgqueue` command whose lines are shown behind its name."""

    def __init__(self, name: str, arguments: Sequence[str], dsn: str) -> None:
        self._name = name
        self._arguments = arguments
        self._environment = {**os.environ, "PGQUEUE_DSN": dsn, "PYTHONUNBUFFERED": "1"}
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
            self._process.wait(_PATIENCE + _GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._lines.join(_GRACE)

    def _show(self, process: subprocess.Popen[str]) -> None:
        name = f"{self._name:6} |"
        if sys.stderr.isatty():
            name = typer.style(name, fg=_COLOURS[self._name])
        for line in process.stdout or ():
            sys.stderr.write(f"{name} {line}")
            sys.stderr.flush()
        code = process.wait()
        if code and not self._is_ending:
            output.message(f"{self._name} ended with exit code {code}", "red")


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
