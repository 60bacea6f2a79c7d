"""Writes the reference from what it describes: `make reference`.

The pages are kept in the repository, so that they are read there and built without a database; a test writes them again
and compares. What has no description raises KeyError or ValueError here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from docs.tools import catalog, program

REFERENCE = Path(__file__).parents[1] / "reference"
NOTE = "<!-- Written by `make reference`. Change what it describes, not this page. -->"


def pages(conn: psycopg.Connection[Any]) -> Iterator[tuple[str, str]]:
    """Return (file name, text) of each generated page. `conn` leads to a database with the schema at head."""
    found = {
        **catalog.functions(conn),
        "tables": catalog.tables(conn),
        "command-line": program.command_line(),
        "settings": program.settings(conn),
        "errors": program.errors(),
        "metrics": program.metric_names(),
        "signals": program.signals_and_exit_codes(),
        "python": program.python_api(),
    }
    for name, text in found.items():
        title, _, rest = text.partition("\n")
        yield f"{name}.md", f"{title}\n\n{NOTE}\n{rest.rstrip()}\n"


def main() -> None:
    """Write the pages from the database of PGQUEUE_DSN."""
    with psycopg.connect(os.environ["PGQUEUE_DSN"]) as conn:
        for name, text in pages(conn):
            (REFERENCE / name).write_text(text)
            sys.stdout.write(f"docs/reference/{name}\n")


if __name__ == "__main__":
    main()
