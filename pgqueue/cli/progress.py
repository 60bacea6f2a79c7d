"""One line on stderr that shows the progress of a command; nothing if stderr is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class ProgressLine:
    """The line. `show` rewrites it."""

    def __init__(self, action: str) -> None:
        self._action = action
        self._is_shown = sys.stderr.isatty()

    def show(self, done: int, total: int | None) -> None:
        """Show how many are done; `total` is None while it is not known."""
        if self._is_shown:
            count = f"{done:,}" if total is None else f"{done:,} of {total:,}"
            sys.stderr.write(f"\r\x1b[K{self._action}: {count}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Remove the line."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


@contextmanager
def progress(action: str) -> Iterator[ProgressLine]:
    """Yield a progress line, removed at the end."""
    line = ProgressLine(action)
    try:
        yield line
    finally:
        line.clear()
