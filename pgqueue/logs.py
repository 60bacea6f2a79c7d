"""Log lines: for people on a console, or one JSON object each.

Both name the job that a line is about, wherever it is logged: from the line itself (`extra`, or an argument
with `log_fields`), else from the handler in which it was logged.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Protocol

import orjson

from pgqueue.errors import ConfigError

FORMATS = ("console", "json")

_FIELDS = ("job_id", "queue", "task", "attempt")

# The attributes of every record; others came by `extra`.
_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}

# What changes how the rest is shown: controls, except tab and newline, other ends of lines, and marks of direction.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class HasFields(Protocol):
    """The fields that name the job of a line."""

    def log_fields(self) -> dict[str, object]: ...


#: The job whose handler runs in this context.
subject: ContextVar[HasFields | None] = ContextVar("pgqueue_subject", default=None)


def set_up(level: str, style: str, worker: str | None = None) -> None:
    """Send all log lines of this process to stderr, in one of FORMATS. Each line of JSON names `worker`.

    On a terminal the console format has colours and short times. Raises ConfigError for an unknown level or format.
    """
    # It logs each of its plugins when it is imported, which is when the embedded server's schema is migrated.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ConfigError(f"there is no log level {level!r}", hint="give debug, info, warning or error")
    if style not in FORMATS:
        raise ConfigError(f"there is no log format {style!r}", hint=f"give {' or '.join(FORMATS)}")
    handler = logging.StreamHandler()
    if style == "json":
        handler.setFormatter(JsonLines(worker))
    elif sys.stderr is not None and sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        handler.setFormatter(_Coloured("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    else:
        handler.setFormatter(_Plain("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=number, handlers=[handler])


def job_fields() -> dict[str, object]:
    """Return job_id, queue, task and attempt of the job whose handler calls this; {} outside of handlers."""
    job = subject.get()
    return {} if job is None else job.log_fields()


def take_over() -> None:
    """From now on keep the log of this process on: it is that of a worker, which must name its dead jobs."""
    global _is_workers
    _is_workers = True
    switch_on()


def switch_on() -> None:
    """Switch the loggers of pgqueue on again. `logging.config` disables all loggers that exist when it is called.

    After `take_over`, `logging.disable()` is undone as well.
    """
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == "pgqueue":
            logger.disabled = False
    level = logging.root.manager.disable
    if level and _is_workers:
        logging.disable(logging.NOTSET)
        log = logging.getLogger("pgqueue.worker")
        log.warning("the application has called logging.disable(%s): the log is on again", logging.getLevelName(level))


_is_workers = False


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


class JobFilter(logging.Filter):
    """Adds `job` to each record, such as "send_email[17]", for a format of your own; "-" where it is about no job.

    Records of jobs get job_id, queue, task and attempt as well. Put it on a handler: filters of loggers do not see the
    lines of the loggers below them.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields; let every record pass."""
        fields = _job_of(record)
        record.job = _name_of(fields) or "-"
        for name, value in fields.items():
            setattr(record, name, value)
        return True


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message, fields = message_of(record), _job_of(record)
        name = _name_of(fields)
        # The lines of the worker itself name their job.
        if name and name not in message and f"job {fields['job_id']} " not in message:
            message = f"{name} {message}"
        record = logging.makeLogRecord(vars(record))
        record.msg, record.args = message, None
        return printable(super().format(record))

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        shown = super().formatTime(record, datefmt)
        # A line that is kept names the zone of its time.
        return shown if datefmt else f"{shown} {time.strftime('%Z', time.localtime(record.created))}"


# The start of a line on a terminal: time dim, level in its colour.
_COLOURS = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}


class _Coloured(_Plain):
    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        time, _, rest = text.partition(" ")
        level, _, message = rest.partition(" ")
        return f"\x1b[2m{time}\x1b[0m \x1b[{_COLOURS.get(level, '0')}m{level}\x1b[0m {message}"


def message_of(record: logging.LogRecord) -> str:
    """Return a record's message as text that any terminal and any file can take."""
    try:
        message = record.getMessage()
    except Exception as error:
        # Arguments that do not fit, or that cannot be shown.
        message = f"{_as_text(record.msg)} (its arguments cannot be shown: {type(error).__name__})"
    return printable(message)


def printable(text: str) -> str:
    """Return text with controls, marks of direction, and characters that no file can take, written as escapes."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return CONTROLS.sub(
        lambda found: (
            found[0].encode("ascii", "backslashreplace").decode() if found[0] > "\x7f" else f"\\x{ord(found[0]):02x}"
        ),
        text,
    )


def how_many(number: float, noun: str, write: Callable[[float], str] = str) -> str:
    """Write a number with its noun: "1 job", "2 jobs"; in digits as `write` writes them."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{write(number)} {noun}{ending}"


def one_line(error: BaseException) -> str:
    """Return an error as one line for a log."""
    text = " ".join(str(error).split())
    return text or type(error).__name__


def _job_of(record: logging.LogRecord) -> dict[str, object]:
    given = {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
    if given:
        return given
    for each in record.args if isinstance(record.args, tuple) else ():
        fields: Callable[[], dict[str, object]] | None = getattr(each, "log_fields", None)
        if fields is not None:
            return fields()
    return job_fields()


def _name_of(fields: Mapping[str, object]) -> str:
    return f"{fields.get('task')}[{fields['job_id']}]" if "job_id" in fields else ""


def _as_text(value: Any) -> str:
    try:
        return printable(value if isinstance(value, str) else repr(value))
    except Exception:
        return f"<{type(value).__name__} that cannot be shown>"
