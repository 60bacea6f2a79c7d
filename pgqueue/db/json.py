"""Values as JSON and back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

import orjson

from pgqueue import _options
from pgqueue.errors import ConfigError, InvalidArgument


def read_json(raw: bytes | None) -> Any:
    """Read jsonb of a raw row: a byte that says 1, and the text. See `from_json`."""
    return None if raw is None else from_json(raw[1:])


def read_time(raw: int) -> datetime:
    """Read a timestamptz of a raw row: microseconds since 2000."""
    return _EPOCH + timedelta(microseconds=raw)


_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def micros(value: str) -> str:
    """Write SQL for a timestamptz or an interval in microseconds, for `read_instant` and `read_length`.

    Most drivers read both as text, in the styles of the session, and not in all of them.
    """
    return f"(extract(epoch from {value}) * 1000000)::bigint"


def read_instant(raw: Any) -> datetime | None:
    """Read a timestamptz that was selected as `micros`."""
    return None if raw is None else _UNIX_EPOCH + timedelta(microseconds=int(raw))


def read_length(raw: Any) -> timedelta | None:
    """Read an interval that was selected as `micros`."""
    return None if raw is None else timedelta(microseconds=int(raw))


_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_json(value: object, what: str) -> str:
    """Write `value` as JSON text. Raises InvalidArgument, naming `what`, for what JSON cannot hold."""
    return _dumped(value, what).decode()


def args_to_json(args: object, what: str) -> str:
    """Write arguments as JSON text. Raises InvalidArgument for what JSON, without annotations, cannot give back.

    Datetimes, dates, UUIDs and Decimals have one text, and become that.
    """
    found = first_foreign(args, "", _CANONICAL)
    if found is not None and not isinstance(found[1], orjson.Fragment):
        path, value = found
        raise InvalidArgument(
            f"{what} cannot be written as JSON: {path or 'it'} is of type {type(value).__qualname__}, which nothing"
            " restores where only the name of the task is given",
            hint=f"enqueue it through the task, with the parameter annotated, or {way_out(value)}",
        )
    return to_json(args, what)


# Types that JSON gives back as they were.
_PLAIN = frozenset({str, int, float, bool, type(None)})

# Types with one text.
_CANONICAL = (date, UUID, Decimal)

# Nesting at which orjson gives up as well.
_DEEPEST = 255


def first_foreign(value: object, path: str, allowed: tuple[type, ...] = ()) -> tuple[str, object] | None:
    """Return path and value of a part that JSON would not give back as it was, or None; `allowed` types pass."""
    if _is_kept(value, allowed):
        return None
    left = [(path, value, 0)]
    while left:
        path, each, depth = left.pop()
        if isinstance(each, dict):
            if _PLAIN.issuperset(map(type, each.values())):
                continue
            inner: Any = each.items()
        elif isinstance(each, list):
            if _PLAIN.issuperset(map(type, each)):
                continue
            inner = enumerate(each)
        elif isinstance(each, (str, int, float, type(None), *allowed)):
            continue
        else:
            return path, each
        if depth < _DEEPEST:
            left.extend((f"{path}.{name}" if path else str(name), part, depth + 1) for name, part in inner)
    return None


def _is_kept(value: object, allowed: tuple[type, ...]) -> bool:
    # Each enqueue asks this. Most values of most arguments are asked for together, by their types.
    if isinstance(value, dict):
        parts: Any = value.values()
    elif isinstance(value, list):
        parts = value
    else:
        return isinstance(value, (str, int, float, type(None), *allowed))
    if _PLAIN.issuperset(map(type, parts)):
        return True
    try:
        return all(_is_kept(part, allowed) for part in parts if type(part) not in _PLAIN)
    except RecursionError:
        # So deep, or in a circle, that it cannot be written.
        return True


def way_out(value: object) -> str:
    """Return what to give instead of a value that JSON does not have."""
    for kinds, instead in _INSTEAD:
        if isinstance(value, kinds):
            return f"give {instead}"
    if is_dataclass(value):
        return "give dataclasses.asdict() of it"
    if hasattr(value, "model_dump"):
        return 'give its model_dump(mode="json")'
    return (
        "use str, int (64 bit), float, bool, None, list, dict with str keys; by name also datetime, date, UUID, Decimal"
    )


_INSTEAD: tuple[tuple[type | tuple[type, ...], str], ...] = (
    ((date, time), "its isoformat()"),
    (timedelta, "its total_seconds()"),
    ((set, frozenset, tuple), "a list"),
    ((bytes, bytearray), "text, such as its base64"),
    (Enum, "its value"),
    ((UUID, Decimal, PurePath), "str() of it"),
)


def _dumped(value: object, what: str) -> bytes:
    try:
        # Times in UTC end with Z, as pydantic writes them.
        text = orjson.dumps(value, _decimal_as_text, orjson.OPT_UTC_Z)
    except TypeError as error:
        raise InvalidArgument(
            f"{what} cannot be written as JSON: {error}",
            hint="use str, int (64 bit), float, bool, None, list, dict with str keys, datetime, UUID, Decimal, Enum,"
            " dataclass",
        ) from error
    # Written as null: a text without any needs no second look.
    if b"null" in text:
        check_finite(value, what)
    return text


def check_finite(value: object, what: str) -> None:
    """Raise InvalidArgument, naming `what`, for a number in `value` that is not finite."""
    if (lost := _not_finite(value)) is not None:
        raise InvalidArgument(
            f"{what} cannot be written as JSON: it holds the number {lost}",
            hint="JSON has finite numbers only: give None, or a text such as 'NaN'",
        )


def _not_finite(value: object) -> float | None:
    """Return a number in `value` that is not finite."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, Enum):
            each = each.value
        if isinstance(each, float):
            if not math.isfinite(each):
                return each
        elif isinstance(each, dict):
            left.extend(each.values())
        elif isinstance(each, list | tuple | set | frozenset):
            left.extend(each)
        elif is_dataclass(each):
            left.extend(getattr(each, field.name, None) for field in fields(each))
        elif hasattr(each, "model_dump"):
            left.extend(vars(each).values())
    return None


def _decimal_as_text(value: object) -> str:
    # A JSON number would be read back as a float.
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Replaces JSON that PostgreSQL can hold and this process cannot: a number of 5,000 digits, nesting beyond 1000.

    It is a value and not an exception, because the args of one job must not make the whole reply of `reserve`
    unreadable: every worker would claim that job again and again, and lose all jobs that it claimed with it.
    """

    reason: str


def from_json(text: bytes | str) -> Any:
    """Read JSON, or return `Unreadable`. Integers are exact, whatever their length."""
    try:
        # orjson reads an integer beyond 64 bits as a float.
        return json.loads(text) if _may_have_long(text) else orjson.loads(text)
    except (ValueError, RecursionError) as error:
        return Unreadable(str(error))


def _may_have_long(text: bytes | str) -> bool:
    # A number of 19 digits, or the like in a text, which is then only read more slowly. To search by a regular
    # expression would take eight times as long as orjson.
    if len(text) < len(_LONG):
        return False
    return _LONG in (text.encode() if isinstance(text, str) else text).translate(_AS_ZEROS)


_LONG = b"0" * 19
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")


def readable(value: Any, what: str) -> Any:
    """Return a value for a handler. Raises InvalidArgument for one that cannot be read here."""
    if isinstance(value, Unreadable):
        raise InvalidArgument(
            f"{what} cannot be read here: {value.reason}",
            hint="store it with numbers of less than 4,000 digits, nested less than 1000 deep",
        )
    return value


class Document(Mapping[str, Any]):
    """One row as JSON; each column is read when it is asked for; a value that Python cannot read is left as text.

    PostgreSQL holds numbers with more digits, and nests deeper, than any parser here can read. Such a job of one client
    must not keep other jobs from being shown.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts

    def __getitem__(self, name: str) -> Any:
        text = self.texts[name]
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    def __len__(self) -> int:
        return len(self.texts)


# The most characters of JSON in a result, because history is not a file store.
_MAX_RESULT = 16_000_000


def to_result(value: object) -> bytes:
    """Write a result as JSON text that PostgreSQL can hold. Raises InvalidArgument for what it cannot."""
    text = _dumped(value, "result")
    if len(text) > _MAX_RESULT and (characters := len(text.decode())) > _MAX_RESULT:
        raise InvalidArgument(
            f"result has {characters} characters of JSON", hint=f"return at most {_MAX_RESULT}, or a reference to it"
        )
    # Without escaped backslashes, each one left begins an escape.
    if b"\\u0000" in text and b"\\u0000" in text.replace(b"\\\\", b""):
        raise InvalidArgument("result holds a NUL character", hint="PostgreSQL cannot store it as JSON: remove it")
    return text


def error_text(error: Mapping[str, object]) -> bytes:
    """Write the error of a failed attempt as JSON that PostgreSQL can hold."""
    # PostgreSQL's jsonb has no \u0000; in the message of an error it carries nothing.
    return _dumped(error, "error").replace(b"\\u0000", b"\\ufffd")


def loaded(value: Any) -> Any:
    """Return a jsonb value as read, for any driver."""
    # Some drivers, and Django, return jsonb as text.
    return from_json(value) if isinstance(value, str) else value


def as_interval(name: str, value: Any) -> Any:
    """Return seconds as a timedelta, and any other value as it is. Raises InvalidArgument."""
    try:
        return _options.as_interval(name, value)
    except ConfigError as error:
        raise InvalidArgument(error.message, hint=error.hint) from None


def check_value(what: str, value: object, kind: str | None = None) -> None:
    """Refuse what PostgreSQL would read as another value: True as 1, a day as some midnight, 2.5 as 2."""
    if isinstance(value, bool):
        raise InvalidArgument(f"{what} is {value}", hint="give a number or a text")
    if isinstance(value, float | Decimal) and kind in ("integer", "bigint"):
        raise InvalidArgument(f"{what} is {value}", hint="give a whole number")
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidArgument(
                f"{what} has no time zone: {value}", hint="give an aware datetime, such as datetime.now(UTC)"
            )
    elif isinstance(value, date):
        raise InvalidArgument(f"{what} is the day {value}", hint="give an instant: a datetime with its time zone")


def interval_text(value: object) -> str:
    """Write a delay, which may be seconds, as text that PostgreSQL reads."""
    value = as_interval("the delay", value)
    return _options.timedelta_text(value) if isinstance(value, timedelta) else str(value)
