"""The stored error of a failed attempt, and the code's decision after it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any

from pgqueue.signals import as_interval
from pgqueue.worker.hold.held import Decision

# Frames of the worker itself do not help the reader of a traceback.
_OURS = os.path.dirname(os.path.dirname(__file__))

# Characters of a message and of a traceback that are kept, as the server keeps them (pgqueue._with_error). An exception
# may hold megabytes: what an SQL error or a failed request quotes.
_MESSAGE = 4000
_TRACEBACK = 20_000


def describe(error: BaseException) -> dict[str, object]:
    """Write an exception for the job's errors: class, message and traceback, as text that PostgreSQL can hold."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    where = error.__traceback__
    while where is not None and where.tb_frame.f_code.co_filename.startswith(_OURS):
        where = where.tb_next
    return {"class": clean(name), "message": clean(_message(error)), "traceback": _trace(kind, error, where)}


def clean(text: str) -> str:
    """Return the beginning of a text, as PostgreSQL can hold it."""
    return text[:_MESSAGE].encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def clean_trace(text: str) -> str:
    """Return the end of a traceback, as PostgreSQL can hold it."""
    return text[-_TRACEBACK:].encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its message cannot be shown)"


def _trace(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> str:
    try:
        return clean_trace("".join(_cut(traceback.TracebackException(kind, error, where, limit=-50, compact=True))))
    except Exception as broken:
        # An exception may hold any object. Whatever that does, the attempt fails by the exception.
        return f"(its traceback cannot be shown: {type(broken).__name__})"


def _cut(found: traceback.TracebackException) -> Iterator[str]:
    # Messages are cut before they are written: that splits them into lines, and a long one would push out the frames.
    waiting: list[traceback.TracebackException | None] = [found]
    while waiting:
        each = waiting.pop()
        if each is not None:
            each._str = _beginning(each._str)  # type: ignore[attr-defined]
            notes: Any = each.__notes__
            if isinstance(notes, list):
                each.__notes__ = [_beginning(note) if isinstance(note, str) else note for note in notes]
            waiting += [each.__cause__, each.__context__, *(getattr(each, "exceptions", None) or ())]
    return found.format()


def _beginning(text: object) -> str:
    whole = str(text)
    return whole if len(whole) <= _MESSAGE else f"{whole[:_MESSAGE]}..."


def decision(answer: object) -> Decision:
    """Convert the return value of a task's retry rule. Raises TypeError for an invalid one."""
    match answer:
        case None | True:
            return Decision()
        case False:
            return Decision(retry=False)
        case str():
            return Decision(policy=answer)
        case int() | float() | timedelta():
            return Decision(retry_in=as_interval(answer))
    raise TypeError(f"it returned {answer!r}; expected seconds, a timedelta, the name of a policy, False or None")
