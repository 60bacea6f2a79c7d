"""Refresh an output again and again, as `watch` does."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Refresh every two seconds, until Ctrl-C.")]

_EVERY = 2.0


def watch(show: Callable[[], None], again: bool) -> None:
    """Call `show` once, or until Ctrl-C."""
    if not again:
        show()
        return
    try:
        while True:
            if sys.stdout.isatty():
                # The cursor home, and all below it cleared: what is shown next takes its place.
                sys.stdout.write("\x1b[H\x1b[J")
            show()
            sys.stdout.flush()
            time.sleep(_EVERY)
    except KeyboardInterrupt:
        raise typer.Exit from None
