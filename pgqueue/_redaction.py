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

# How deep a document may nest, of which a copy is shown.
_DEEPEST = 50


def hides(value: Any, redact: Sequence[str]) -> bool:
    """Tell whether a JSON document has a field, at any depth, whose value is not shown."""
    match value:
        case dict():
            return any(is_hidden(name, redact) or hides(each, redact) for name, each in value.items())
        case list():
            return any(hides(each, redact) for each in value)
    return False


def redacted(value: Any, redact: Sequence[str], deep: int = _DEEPEST) -> Any:
    """Return a JSON document with such values hidden, and without what is nested too deep."""
    if deep == 0:
        return "nested too deep to show"
    match value:
        case dict():
            return {
                name: HIDDEN if is_hidden(name, redact) else redacted(each, redact, deep - 1)
                for name, each in value.items()
            }
        case list():
            return [redacted(each, redact, deep - 1) for each in value]
    return value


def is_hidden(name: str, redact: Sequence[str]) -> bool:
    """Tell whether the value of a field of this name is not shown."""
    return any(fnmatch(name.lower(), pattern.lower()) for pattern in redact)
