"""`pgqueue`, and `python -m pgqueue`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line, or say what it needs."""
    if find_spec("typer") is None:
        sys.stderr.write("pgqueue: the command line is an extra; run: pip install 'pgqueue-sql[cli]'\n")
        sys.exit(2)
    # What it says above must not need it.
    from pgqueue.cli import main as command_line  # noqa: PLC0415

    command_line()


if __name__ == "__main__":
    main()
