"""Log lines: for people on a console, or one JSON object each.

Both name the job that a line is about, wherever it is logged: from what the line was given (`extra`, or an argument
with `log_fields`), else from the handler in which it was logged.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Protocol

import orjson
from rich.console import Console
from rich.logging import RichHandler

from pgqueue.errors import ConfigError

FORMATS = ("console", "json")

_FIELDS = ("job_id", "queue", "task", "attempt")

# What every record has; the rest came by `extra`.
_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}

# All but tab and newline. A terminal obeys them.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class HasFields(Protocol):
    """What names the job of a line."""

    def log_fields(self) -> dict[str, object]: ...


#: The job whose handler runs in this context.
subject: ContextVar[HasFields | None] = ContextVar("pgqueue_subject", default=None)


def set_up(level: str, style: str, worker: str | None = None) -> None:
    """Send all log lines of this process to stderr, in one of FORMATS. `worker` is named in each line of JSON.

    Raises ConfigError for a level or a format that there is not.
    """
    # It tells of each of its plugins when it is imported, which is when the embedded server is brought up to date.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ConfigError(f"there is no log level {level!r}", hint="give debug, info, warning or error")
    if style not in FORMATS:
        raise ConfigError(f"there is no log format {style!r}", hint=f"give {' or '.join(FORMATS)}")
    handler: logging.Handler
    if style == "json":
        handler = logging.StreamHandler()
        handler.setFormatter(JsonLines(worker))
    elif sys.stderr.isatty():
        handler = RichHandler(
            console=Console(stderr=True, markup=False, emoji=False),
            show_path=False,
            markup=False,
            log_time_format="[%X]",
        )
        handler.setFormatter(_Plain("%(message)s"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(_Plain("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=number, handlers=[handler])


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message; worker, job_id, queue, task, attempt; error; extras."""

    def __init__(self, worker: str | None = None) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message_of(record),
        }
        if self._worker is not None:
            line["worker"] = self._worker
        line |= _job_of(record)
        for name, value in vars(record).items():
            if name not in _STANDARD:
                line.setdefault(name, value)
        if record.exc_info:
            line["error"] = printable(self.formatException(record.exc_info))
        elif record.exc_text:
            line["error"] = printable(record.exc_text)
        if record.stack_info:
            line["stack"] = printable(record.stack_info)
        options = orjson.OPT_NON_STR_KEYS
        try:
            return orjson.dumps(line, default=_as_text, option=options).decode()
        except Exception:
            # Beyond 64 bits, surrogates, nested too deeply: as text.
            return orjson.dumps({name: _as_text(value) for name, value in line.items()}).decode()


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        record = logging.makeLogRecord(vars(record))
        record.msg, record.args = message_of(record), None
        return printable(super().format(record))


def message_of(record: logging.LogRecord) -> str:
    """Return a record's message as text that any terminal and any file can take, whatever was logged."""
    try:
        message = record.getMessage()
    except Exception as error:
        # Arguments that do not fit, or that cannot be shown.
        message = f"{_as_text(record.msg)} (its arguments cannot be shown: {type(error).__name__})"
    return printable(message)


def printable(text: str) -> str:
    """Return text with what a terminal would obey, and what no file can take, written as escapes."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _job_of(record: logging.LogRecord) -> dict[str, object]:
    given = {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
    if given:
        return given
    for each in record.args if isinstance(record.args, tuple) else ():
        fields: Callable[[], dict[str, object]] | None = getattr(each, "log_fields", None)
        if fields is not None:
            return fields()
    job = subject.get()
    return {} if job is None else job.log_fields()


def _as_text(value: Any) -> str:
    try:
        return printable(value if isinstance(value, str) else repr(value))
    except Exception:
        return f"<{type(value).__name__} that cannot be shown>"
