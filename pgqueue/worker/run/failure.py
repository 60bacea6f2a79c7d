"""The stored error of a failed attempt, and the code's decision after it."""

from __future__ import annotations

import os
import traceback
from datetime import timedelta
from types import TracebackType

from pgqueue.signals import as_interval
from pgqueue.worker.hold.held import Verdict

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
    return {"class": name, "message": clean(_message(error)), "traceback": _trace(kind, error, where)}


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
    found = traceback.TracebackException(kind, error, where, limit=-50, compact=True)
    # Messages are cut before they are written: that splits them into lines, and a long one would push out the frames.
    waiting: list[traceback.TracebackException | None] = [found]
    while waiting:
        each = waiting.pop()
        if each is not None:
            each._str = _beginning(each._str)  # type: ignore[attr-defined]
            each.__notes__ = each.__notes__ and [_beginning(note) for note in each.__notes__]
            waiting += [each.__cause__, each.__context__, *(getattr(each, "exceptions", None) or ())]
    return clean_trace("".join(found.format()))


def _beginning(text: object) -> str:
    whole = str(text)
    return whole if len(whole) <= _MESSAGE else f"{whole[:_MESSAGE]}..."


def verdict(answer: object) -> Verdict:
    """Convert the return value of a task's retry rule. Raises TypeError for an invalid one."""
    match answer:
        case None | True:
            return Verdict()
        case False:
            return Verdict(retry=False)
        case str():
            return Verdict(policy=answer)
        case int() | float() | timedelta():
            return Verdict(retry_in=as_interval(answer))
    raise TypeError(f"it returned {answer!r}; expected seconds, a timedelta, the name of a policy, False or None")
