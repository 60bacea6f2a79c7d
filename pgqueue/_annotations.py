"""Find out from annotations which values JSON keeps as they are, and which must be converted."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID

# JSON has none of these, nor of their subclasses; a datetime is a date, a NamedTuple a tuple.
_CONVERTED = (date, time, timedelta, UUID, Decimal, bytes, PurePath, enum.Enum, AbstractSet, tuple)

# Wrappers of the fields of a TypedDict, in typing or in typing_extensions.
_WRAPPERS = ("NotRequired", "Required", "ReadOnly")


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function by name; one with a name that cannot be resolved here is left out."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:
        found = {}
        try:
            written: Mapping[str, Any] = function.__annotations__
        except Exception:
            return {}
        for name, hint in written.items():
            try:
                # As get_type_hints does, which gives all or nothing.
                found[name] = eval(hint, getattr(function, "__globals__", {})) if isinstance(hint, str) else hint
            except Exception:
                continue
        return found


def is_converted(hint: Any, seen: tuple[Any, ...] = ()) -> bool:
    """Return whether a value of this annotation, or a part of it, comes back from JSON as another type."""
    hint = bare(hint)
    if hint in seen:
        return False
    seen = (*seen, hint)
    origin = typing.get_origin(hint)
    parts: tuple[Any, ...] = typing.get_args(hint)
    if origin is typing.Literal:
        return any(isinstance(each, enum.Enum) for each in parts)
    if origin in (typing.Union, types.UnionType):
        return any(is_converted(each, seen) for each in parts)
    kind = hint if origin is None else origin
    if not isinstance(kind, type):
        return False
    if issubclass(kind, _CONVERTED) or is_dataclass(kind) or hasattr(kind, "__get_pydantic_core_schema__"):
        return True
    if typing.is_typeddict(kind):
        return any(is_converted(each, seen) for each in hints_of(kind).values())
    if issubclass(kind, Mapping) and len(parts) == 2 and bare(parts[0]) not in (str, Any):
        # The keys of JSON are texts.
        return True
    return any(is_converted(each, seen) for each in parts)


def bare(hint: Any) -> Any:
    """Return an annotation without what does not change its values: Annotated, NotRequired, a NewType, an alias."""
    while True:
        if hint is None:
            return type(None)
        if hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif hasattr(hint, "__value__"):
            hint = hint.__value__
        elif getattr(typing.get_origin(hint), "__name__", None) in _WRAPPERS or hasattr(hint, "__metadata__"):
            hint = typing.get_args(hint)[0]
        else:
            return hint
