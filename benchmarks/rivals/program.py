"""Starts the programs of this folder, one for each queue, and installs what they need into build/rivals/.

A program is called `DSN produce [again]` or `DSN work N [tuned]`, the DSN being a URL.

- `produce` installs the queue's schema, if not `again`, and prints a mark. For each line `JOBS EVERY FIRST` on stdin it
  then enqueues jobs, numbered from FIRST: one every EVERY milliseconds, each with a mark of its number once its commit
  has returned; for 0 all of them by the queue's own bulk call, with one mark at the end.
- `work N` runs them, and prints a mark as the first and the N-th handler start; for 0 at each, with the job's number.

A mark is `@ NUMBER NANOSECONDS`, by CLOCK_MONOTONIC, which is one clock for all processes of a machine. All other
output is thrown away. Logs of single jobs are off.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from urllib.parse import urlencode

from psycopg.conninfo import conninfo_to_dict

from .queues import NPM, PYPI, Queue

_HERE = Path(__file__).parent
BUILD = Path(__file__).parents[2] / "build" / "rivals"

Mark = tuple[int, int]


class NotRunError(Exception):
    """The queue could not be installed, or its program failed; `why` fits a table, `log` is what it wrote."""

    def __init__(self, why: str, log: str = "") -> None:
        super().__init__(f"{why}: {log}" if log else why)
        self.why = why


class Program:
    """A running program of a queue; it ends with the `with` block."""

    def __init__(self, queue: Queue, dsn: str, *arguments: str) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [*_interpreter(queue), _url(dsn), *arguments, *(["tuned"] if queue.tuned else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            # graphile-worker's switch for what it logs of each job.
            env={**os.environ, "NO_LOG_SUCCESS": "1"},
        )
        self._marks: SimpleQueue[Mark | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                stream.close()

    def order(self, jobs: int, every: float, first: int = 0) -> None:
        """Let a producer enqueue jobs, one every `every` milliseconds, numbered from `first`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{jobs} {every:g} {first}\n")
        self._process.stdin.flush()

    def mark(self, patience: float = 60.0) -> Mark:
        """Wait for the next mark."""
        try:
            found = self._marks.get(timeout=patience)
        except Empty:
            raise NotRunError(f"nothing happened within {patience:g} s", self._tail()) from None
        if found is None:
            raise NotRunError(f"its program ended with {self._process.wait()}", self._tail())
        return found

    def marks(self) -> list[Mark]:
        """Return the marks that have come, without waiting."""
        found = [self._marks.get() for _ in range(self._marks.qsize())]
        return [mark for mark in found if mark is not None]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@ "):
                _, number, at = line.split()
                self._marks.put((int(number), int(at)))
        self._marks.put(None)

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace").strip()[-2000:]


def install(queue: Queue) -> None:
    """Install the pinned versions that the program of a queue needs, unless they are there."""
    if queue.is_npm:
        _once("npm", NPM, _install_npm)
    elif not queue.is_ours:
        _once("python", PYPI, _install_python)


def _once(name: str, pinned: tuple[str, ...], fill: Callable[[Path, tuple[str, ...]], None]) -> None:
    folder = BUILD / name
    done = folder / "installed"
    if done.exists() and done.read_text() == " ".join(pinned):
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    fill(folder, pinned)
    done.write_text(" ".join(pinned))


def _install_npm(folder: Path, pinned: tuple[str, ...]) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise NotRunError("npm is not installed")
    # A file of its own, or npm looks for one further up.
    (folder / "package.json").write_text('{"private": true}')
    _run([npm, "install", "--no-audit", "--no-fund", *pinned], folder)


def _install_python(folder: Path, pinned: tuple[str, ...]) -> None:
    _run([sys.executable, "-m", "venv", str(folder)], folder)
    _run([str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *pinned], folder)


def _run(command: list[str], folder: Path) -> None:
    try:
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    except subprocess.TimeoutExpired:
        raise NotRunError(f"{Path(command[0]).name} did not end within 10 minutes") from None
    if ran.returncode:
        raise NotRunError(f"{Path(command[0]).name} failed", ran.stderr.strip()[-2000:])


def _interpreter(queue: Queue) -> list[str]:
    source = _HERE / queue.program
    if queue.is_npm:
        # Node looks for libraries beside the program.
        copy = BUILD / "npm" / queue.program
        shutil.copyfile(source, copy)
        return [str(BUILD / "npm/node_modules/.bin/node"), str(copy)]
    # -P: this folder is no place to import from.
    return [sys.executable if queue.is_ours else str(BUILD / "python/bin/python"), "-P", str(source)]


def _url(dsn: str) -> str:
    # All drivers understand a URL; a host in its query may be a folder with a socket.
    parts = {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
    database = parts.pop("dbname", "postgres")
    return f"postgresql:///{database}?{urlencode(parts)}"
