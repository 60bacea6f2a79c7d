"""What commands print: lines and JSON to stdout, messages to stderr. Tables are in `tables`."""

from __future__ import annotations

import json
import os
import re
import sys
from datetime import UTC, datetime
from typing import NoReturn, TextIO

import typer

from pgqueue.db.json import Document
from pgqueue.logs import CONTROLS, printable

# The colours of severities.
COLOURS = {"critical": "red", "warning": "yellow", "info": "dim"}


def line(text: object, style: str | None = None) -> None:
    """Print one line, in a colour if stdout is a terminal."""
    _write(sys.stdout, text, style)


def lines(text: str) -> None:
    """Print a text of several lines."""
    for each in text.splitlines():
        line(each)


def message(text: object, style: str | None = None) -> None:
    """Print one line to stderr."""
    _write(sys.stderr, text, style)


def flush() -> None:
    """Write what is buffered, for a reader that waits for it."""
    sys.stdout.flush()


def print_json(value: object) -> None:
    """Print a value, or documents as PostgreSQL wrote them, as indented JSON."""
    # Not orjson: PostgreSQL holds numbers beyond 64 bits.
    sys.stdout.write(_printable_json(_indented(value)) + "\n")


def print_json_line(value: object) -> None:
    """Print a value as JSON on one line, for a reader of a stream."""
    sys.stdout.write(_printable_json(json.dumps(value, ensure_ascii=False)) + "\n")


def open_closed_streams() -> None:
    """Open stdin, stdout and stderr where they are closed, as some supervisors start daemons: no socket must get
    their numbers."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            opened = open(os.devnull, mode)  # noqa: SIM115
            setattr(sys, name, opened)
            if opened.fileno() == number:
                # Also for the programs that a handler starts, which would have none either.
                os.set_inheritable(number, True)


def not_found(text: str) -> NoReturn:
    """Print why there is nothing to do, and exit with 1."""
    message(text)
    raise typer.Exit(1)


def no_job(job_id: int) -> NoReturn:
    """Report that there is no such job, and exit with 1."""
    not_found(f"There is no job {job_id}")


def when(instant: str | None) -> str:
    """Write an instant of the database as date and time with the zone, in the zone of the reader."""
    found = _read(instant)
    if found is None:
        return instant or ""
    try:
        return f"{found.astimezone():%Y-%m-%d %H:%M:%S %Z}"
    except (ValueError, OverflowError):
        return instant or ""


def with_age(instant: str) -> str:
    """Write an instant in the reader's zone, and how long ago it was."""
    age = "" if _read(instant) is None else f" ({ago(instant)})"
    return f"{when(instant)}{age}"


def ago(instant: str | None) -> str:
    """Write how long ago an instant was, or how long until it comes: "3 min ago", "in 2 h"."""
    found = _read(instant)
    if found is None:
        return instant or ""
    seconds = (datetime.now(UTC) - found).total_seconds()
    return f"{lasting(seconds)} ago" if seconds >= 0 else f"in {lasting(-seconds)}"


def lasting(seconds: float) -> str:
    """Write a length of time in its largest unit: "12 s", "3 min", "5 h", "2 days"."""
    for unit, size, least in (("days", 86_400, 2), ("h", 3_600, 2), ("min", 60, 2)):
        if seconds >= least * size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def _read(instant: str | None) -> datetime | None:
    # PostgreSQL has instants that Python has not: infinity, before our era, after the year 9999.
    try:
        found = datetime.fromisoformat(instant or "")
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _write(stream: TextIO, text: object, style: str | None) -> None:
    # Names and messages come from users: control characters are written as escapes.
    shown = printable(str(text))
    if style is not None and stream.isatty():
        shown = typer.style(
            shown, fg=None if style in ("dim", "bold") else style, dim=style == "dim", bold=style == "bold"
        )
    stream.write(shown + "\n")


def _printable_json(text: str) -> str:
    """Escape, as JSON does, characters that a terminal would not show or that stdout cannot encode."""
    try:
        text.encode(sys.stdout.encoding)
        characters = CONTROLS
    except UnicodeEncodeError:
        characters = _NOT_ASCII
    return characters.sub(lambda found: json.dumps(found[0])[1:-1], text)


_NOT_ASCII = re.compile(r"[^\x00-\x7e]")


def _indented(value: object) -> str:
    match value:
        case Document():
            # As PostgreSQL wrote it: it need not be anything that can be read here.
            fields = ",\n".join(f"  {json.dumps(name)}: {text}" for name, text in value.texts.items())
            return f"{{\n{fields}\n}}"
        case [Document(), *_]:
            return "[\n" + ",\n".join(_indented(each) for each in value) + "\n]"
    return json.dumps(value, indent=2, ensure_ascii=False)
