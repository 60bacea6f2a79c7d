"""Fields of args, headers and results whose values are not shown: to operators on the pages, and to agents."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from typing import Any

# Patterns of the names of fields, at any depth.
REDACT = (
    "*password*",
    "*passwd*",
    "*secret*",
    "*token*",
    "*api_key*",
    "*apikey*",
    "authorization",
    "*credential*",
    "*private_key*",
)

# What is shown in place of a value.
HIDDEN = "•••"


def hides(value: Any, redact: Sequence[str]) -> bool:
    """Tell whether a JSON document has a field, at any depth, whose value is not shown."""
    match value:
        case dict():
            return any(is_hidden(name, redact) or hides(each, redact) for name, each in value.items())
        case list():
            return any(hides(each, redact) for each in value)
    return False


def is_hidden(name: str, redact: Sequence[str]) -> bool:
    """Tell whether the value of a field of this name is not shown."""
    return any(fnmatch(name.lower(), pattern.lower()) for pattern in redact)
