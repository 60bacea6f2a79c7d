"""What commands print: lines and JSON to stdout, messages to stderr. Tables are in `tables`."""

from __future__ import annotations

import json
import sys
from typing import NoReturn, TextIO

import typer

from pgqueue.db.json import Document
from pgqueue.logs import printable


def line(text: object, style: str | None = None) -> None:
    """Print one line; in a colour where stdout is a terminal."""
    _write(sys.stdout, text, style)


def message(text: object, style: str | None = None) -> None:
    """Print one line to stderr."""
    _write(sys.stderr, text, style)


def flush() -> None:
    """Write what is buffered, for a reader that waits for it."""
    sys.stdout.flush()


def print_json(value: object) -> None:
    """Print a value, or documents as PostgreSQL wrote them, as indented JSON."""
    # Not orjson: PostgreSQL holds numbers beyond 64 bits.
    sys.stdout.write(_indented(value) + "\n")


def not_found(text: str) -> NoReturn:
    """Print why the answer is no, and exit with 1."""
    message(text)
    raise typer.Exit(1)


def no_job(job_id: int) -> NoReturn:
    """Report that there is no such job, and exit with 1."""
    not_found(f"There is no job {job_id}")


def when(instant: str | None) -> str:
    """Write an instant of the database's as date and time."""
    return "" if instant is None else instant[:19].replace("T", " ")


def _write(stream: TextIO, text: object, style: str | None) -> None:
    # Names and messages come from users: what a terminal would obey is written as an escape.
    shown = printable(str(text))
    if style is not None and stream.isatty():
        shown = typer.style(shown, dim=True) if style == "dim" else typer.style(shown, fg=style)
    stream.write(shown + "\n")


def _indented(value: object) -> str:
    match value:
        case Document():
            # As PostgreSQL wrote it: it need not be anything that can be read here.
            fields = ",\n".join(f"  {json.dumps(name)}: {text}" for name, text in value.texts.items())
            return f"{{\n{fields}\n}}"
        case [Document(), *_]:
            return "[\n" + ",\n".join(_indented(each) for each in value) + "\n]"
    return json.dumps(value, indent=2, ensure_ascii=False)
