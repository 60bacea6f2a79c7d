"""The stored error of a failed attempt, and the code's decision after it."""

from __future__ import annotations

import os
import traceback
from datetime import timedelta

from pgqueue.signals import as_interval
from pgqueue.worker.held import Verdict

# Frames of the worker itself do not help the reader of a traceback.
_OURS = os.path.dirname(__file__)


def describe(error: BaseException) -> dict[str, object]:
    """Write an exception for the job's errors: class, message and traceback, as text that PostgreSQL can hold."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except Exception:
        message = "(its message cannot be shown)"
    where = error.__traceback__
    while where is not None and where.tb_frame.f_code.co_filename.startswith(_OURS):
        where = where.tb_next
    trace = "".join(traceback.format_exception(kind, error, where, limit=-50))
    return {"class": name, "message": clean(message), "traceback": clean(trace)}


def clean(text: str) -> str:
    """Return text that PostgreSQL can hold."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


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
