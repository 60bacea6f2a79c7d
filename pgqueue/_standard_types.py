"""Values of annotations as JSON and back, with the standard library alone: where pydantic is not installed.

The forms are those of pydantic, so that a producer without it and a worker with it understand each other.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import operator
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import cached_property
from pathlib import PurePath
from typing import Any
from uuid import UUID

from pgqueue._annotations import bare, hints_of
from pgqueue.db.json import first_foreign


class Misfit(ValueError):
    """A value does not fit: where, and why. The value itself, which may be secret, is left out."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path


class Form:
    """How values of one annotation are written. This class is for any value, which is written as it is.

    `check` takes a Python value, or its JSON form, and returns the Python value; `write` makes JSON of that, and `read`
    the value again. The schema is JSON Schema.
    """

    _schema: Mapping[str, Any] = {}

    def schema(self) -> Mapping[str, Any]:
        """Return the schema of the JSON form."""
        return self._schema

    def check(self, value: Any) -> Any:
        """Return a value, converted if need be. Raises Misfit."""
        return self.take(value, operator.attrgetter("check"))

    def write(self, value: Any) -> Any:
        """Return a checked value as JSON has it."""
        return value

    def read(self, value: Any) -> Any:
        """Return what was written. Raises Misfit."""
        return self.take(value, operator.attrgetter("read"))

    def take(self, value: Any, of: Callable[[Form], Callable[[Any], Any]]) -> Any:
        """Check a value or read it: `of` is what to call for its parts."""
        found = first_foreign(value, "")
        if found is not None:
            raise Misfit(f"nothing says that it is of type {type(found[1]).__name__}: annotate it more precisely")
        return value


class Record(Form):
    """An object with fields, each by its annotation. `make` makes the value from the fields, `parts` returns them."""

    def __init__(
        self,
        hints: Callable[[], Mapping[str, Any]],
        required: AbstractSet[str],
        make: Callable[[dict[str, Any]], Any] = dict,
        parts: Callable[[Any], Any] = dict,
        kind: type = dict,
    ) -> None:
        self._hints = hints
        self._required = required
        self._make = make
        self._parts = parts
        self._kind = kind

    @cached_property
    def _forms(self) -> dict[str, Form]:
        # Not at once: a dataclass may have fields of its own type.
        return {name: form_of(hint) for name, hint in self._hints().items()}

    def schema(self) -> Mapping[str, Any]:
        """Return the schema of an object."""
        return {
            "type": "object",
            "properties": {name: form.schema() for name, form in self._forms.items()},
            "required": [name for name in self._forms if name in self._required],
        }

    def take(self, value: Any, of: Callable[[Form], Callable[[Any], Any]]) -> Any:
        """See Form."""
        if self._kind is not dict and isinstance(value, self._kind):
            if type(value) is not self._kind:
                # As it is: its own class would be lost.
                return value
            value = self._parts(value)
        if not isinstance(value, Mapping):
            raise Misfit("Input should be an object")
        for name in self._required:
            if name not in value:
                raise Misfit(f"{name}: Field required", name)
        known = {
            name: _inside(name, of(self._forms[name]), each) for name, each in value.items() if name in self._forms
        }
        return self._make({**value, **known} if self._kind is dict else known)

    def write(self, value: Any) -> Any:
        """See Form."""
        parts = self._parts(value)
        return {name: self._forms[name].write(each) if name in self._forms else each for name, each in parts.items()}


class _Text(Form):
    """A type that has one text."""

    def __init__(
        self, kind: type, read: Callable[[str], Any], write: Callable[[Any], str], schema: Mapping[str, Any]
    ) -> None:
        self._schema = {"type": "string", **schema}
        self._kind = kind
        self._read = read
        self._write = write

    def take(self, value: Any, of: Callable[[Form], Callable[[Any], Any]]) -> Any:
        """See Form."""
        if isinstance(value, self._kind) and not (self._kind is date and isinstance(value, datetime)):
            return value
        if isinstance(value, str):
            try:
                return self._read(value)
            except (ValueError, InvalidOperation):
                pass
        raise Misfit(f"Input should be a valid {self._kind.__name__}")

    def write(self, value: Any) -> Any:
        """See Form."""
        return self._write(value)


class _Number(Form):
    def __init__(self, kind: type, name: str) -> None:
        self._schema = {"type": name}
        self._kind = kind

    def take(self, value: Any, of: Callable[[Form], Callable[[Any], Any]]) -> Any:
        """See Form."""
        is_number = self._kind is float and isinstance(value, int) and not isinstance(value, bool)
        if is_number:
            return float(value)
        if not isinstance(value, self._kind) or (self._kind is int and isinstance(value, bool)):
            raise Misfit(f"Input should be a valid {self._schema['type']}")
        return value


class _Choice(Form):
    """Members of an enumeration, or of a Literal, by the values that JSON has."""

    def __init__(self, members: Sequence[Any]) -> None:
        self._members = {_json_value(each): each for each in members}
        self._schema = {"enum": list(self._members)}

    def take(self, value: Any, of: Callable[[Form], Callable[[Any], Any]]) -> Any:
        """See Form."""
        try:
            return self._members[_json_value(value)]
        except (KeyError, TypeError):
            raise Misfit(f"Input should be one of {len(self._members)} values") from None

    def write(self, value: Any) -> Any:
        """See Form."""
        return _json_value(value)


class _Several(Form):
    """An array with elements of one kind."""

    def __init__(self, make: Callable[[list[Any]], Any], element: Any) -> None:
        self._make = make
        self._form = form_of(element)

    def schema(self) -> Mapping[str, Any]:
        """Return the schema of an array."""
        unique = {"uniqueItems": True} if self._make in (set, frozenset) else {}
        return {"type": "array", "items": self._form.schema(), **unique}

    def take(self, value: Any, of: Callable[[Form], Callable[[Any], Any]]) -> Any:
        """See Form."""
        if not isinstance(value, list | tuple | AbstractSet):
            raise Misfit("Input should be an array")
        return self._make([_inside(str(n), of(self._form), each) for n, each in enumerate(value)])

    def write(self, value: Any) -> Any:
        """See Form."""
        return [self._form.write(each) for each in value]


class _Tuple(Form):
    """An array with a place for each of its elements."""

    def __init__(self, elements: Sequence[Any], make: Callable[[list[Any]], Any]) -> None:
        self._forms = [form_of(each) for each in elements]
        self._make = make

    def schema(self) -> Mapping[str, Any]:
        """Return the schema of an array."""
        length = len(self._forms)
        return {
            "type": "array",
            "prefixItems": [each.schema() for each in self._forms],
            "minItems": length,
            "maxItems": length,
        }

    def take(self, value: Any, of: Callable[[Form], Callable[[Any], Any]]) -> Any:
        """See Form."""
        if not isinstance(value, list | tuple) or len(value) != len(self._forms):
            raise Misfit(f"Input should be an array of {len(self._forms)}")
        pairs = enumerate(zip(self._forms, value, strict=True))
        return self._make([_inside(str(n), of(form), each) for n, (form, each) in pairs])

    def write(self, value: Any) -> Any:
        """See Form."""
        return [form.write(each) for form, each in zip(self._forms, value, strict=True)]


class _Mapping(Form):
    """An object whose names are keys of one kind, and its values of another."""

    def __init__(self, key: Any, value: Any) -> None:
        self._key = form_of(key)
        self._value = form_of(value)
        self._number = bare(key) if bare(key) in (int, float) else None

    def schema(self) -> Mapping[str, Any]:
        """Return the schema of an object."""
        return {"type": "object", "additionalProperties": self._value.schema()}

    def take(self, value: Any, of: Callable[[Form], Callable[[Any], Any]]) -> Any:
        """See Form."""
        if not isinstance(value, Mapping):
            raise Misfit("Input should be an object")
        return {self._taken_key(name, of): _inside(str(name), of(self._value), each) for name, each in value.items()}

    def write(self, value: Any) -> Any:
        """See Form."""
        return {str(self._key.write(name)): self._value.write(each) for name, each in value.items()}

    def _taken_key(self, name: Any, of: Callable[[Form], Callable[[Any], Any]]) -> Any:
        if self._number is not None and isinstance(name, str):
            try:
                return self._number(name)
            except ValueError:
                raise Misfit(f"{name}: Input should be a number", name) from None
        return _inside(str(name), of(self._key), name)


class _Union(Form):
    def __init__(self, arms: Sequence[Any]) -> None:
        self._arms = [(_plain_type(each), form_of(each)) for each in arms]

    def schema(self) -> Mapping[str, Any]:
        """Return the schema of any of them."""
        return {"anyOf": [form.schema() for _, form in self._arms]}

    def check(self, value: Any) -> Any:
        """See Form."""
        form = self._exact(value)
        return self.take(value, operator.attrgetter("check")) if form is None else form.check(value)

    def take(self, value: Any, of: Callable[[Form], Callable[[Any], Any]]) -> Any:
        """See Form. A text may fit several of them: the first one counts."""
        for _, each in self._arms:
            try:
                return of(each)(value)
            except Misfit:
                continue
        raise Misfit("Input fits none of the types")

    def write(self, value: Any) -> Any:
        """See Form."""
        form = self._exact(value)
        return value if form is None else form.write(value)

    def _exact(self, value: Any) -> Form | None:
        return next((form for kind, form in self._arms if kind is not None and type(value) is kind), None)


def form_of(hint: Any) -> Form:
    """Return the form of an annotation; of one that nothing is known about, the form of any value."""
    hint = bare(hint)
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _Union(parts)
    if origin is typing.Literal:
        return _Choice(parts)
    kind = hint if origin is None else origin
    if not isinstance(kind, type):
        return Form()
    for each, make in _BY_TYPE:
        if issubclass(kind, each):
            return make(kind)
    if dataclasses.is_dataclass(kind):
        return _of_dataclass(kind)
    if typing.is_typeddict(kind):
        return Record(lambda: hints_of(kind), kind.__required_keys__)
    return _of_collection(kind, parts)


def _of_collection(kind: type, parts: tuple[Any, ...]) -> Form:
    if issubclass(kind, tuple):
        if hasattr(kind, "_fields"):
            hints = hints_of(kind)
            return _Tuple([hints.get(name, Any) for name in kind._fields], lambda values: kind(*values))
        if len(parts) == 2 and parts[1] is ...:
            return _Several(tuple, parts[0])
        return _Tuple(parts, tuple) if parts else _Several(tuple, Any)
    element = parts[0] if len(parts) == 1 else Any
    if issubclass(kind, AbstractSet):
        return _Several(frozenset if kind is frozenset else set, element)
    if issubclass(kind, Mapping):
        return _Mapping(*parts) if len(parts) == 2 else Form()
    if issubclass(kind, Sequence) and not issubclass(kind, str):
        return _Several(list, element)
    return Form()


def _of_dataclass(kind: Any) -> Form:
    fields = [each for each in dataclasses.fields(kind) if each.init]
    no_default = dataclasses.MISSING
    required = {each.name for each in fields if each.default is no_default and each.default_factory is no_default}
    return Record(
        lambda: {each.name: hints_of(kind).get(each.name, Any) for each in fields},
        required,
        lambda values: kind(**values),
        lambda value: {each.name: getattr(value, each.name) for each in fields},
        kind,
    )


def _inside(name: str, call: Callable[[Any], Any], value: Any) -> Any:
    try:
        return call(value)
    except Misfit as misfit:
        path = f"{name}.{misfit.path}" if misfit.path else name
        why = misfit.reason.partition(": ")[2] if misfit.path else misfit.reason
        raise Misfit(f"{path}: {why}", path) from None


def _plain_type(hint: Any) -> type | None:
    kind = typing.get_origin(bare(hint)) or bare(hint)
    return kind if isinstance(kind, type) else None


def _json_value(member: Any) -> Any:
    return member.value if isinstance(member, enum.Enum) else member


def _duration(value: timedelta) -> str:
    """Write a length of time as ISO 8601 has it, to the microsecond."""
    size = abs(value)
    seconds, fraction = size.seconds, f".{size.microseconds:06}".rstrip("0") if size.microseconds else ""
    sign, days = "-" if value < timedelta(0) else "", f"{size.days}D" if size.days else ""
    time_of_day = f"T{seconds}{fraction}S" if seconds or fraction or not days else ""
    return f"{sign}P{days}{time_of_day}"


_DURATION = re.compile(
    r"([+-]?)P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,6})\d*)?S)?)?", re.ASCII
)


def _read_duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    if found is None or text.endswith(("P", "T")):
        raise ValueError("no duration")
    sign, weeks, days, hours, minutes, seconds, fraction = found.groups()
    size = timedelta(
        weeks=int(weeks or 0), days=int(days or 0), hours=int(hours or 0), minutes=int(minutes or 0),
        seconds=int(seconds or 0), microseconds=int((fraction or "").ljust(6, "0")),
    )  # fmt: skip
    return -size if sign == "-" else size


def _read_bytes(text: str) -> bytes:
    # In either alphabet, with padding or without.
    return base64.b64decode(text.translate({45: "+", 95: "/"}) + "=" * (-len(text) % 4), validate=True)


def _zulu(value: Any) -> str:
    text: str = value.isoformat()
    return f"{text[:-6]}Z" if text.endswith("+00:00") else text


_BY_TYPE: Sequence[tuple[type, Callable[[Any], Form]]] = (
    (enum.Enum, lambda kind: _Choice(list(kind))),
    (bool, lambda kind: _Number(bool, "boolean")),
    (int, lambda kind: _Number(int, "integer")),
    (float, lambda kind: _Number(float, "number")),
    (str, lambda kind: _Text(str, str, str, {})),
    (type(None), lambda kind: _Number(type(None), "null")),
    (datetime, lambda kind: _Text(datetime, datetime.fromisoformat, _zulu, {"format": "date-time"})),
    (date, lambda kind: _Text(date, date.fromisoformat, date.isoformat, {"format": "date"})),
    (time, lambda kind: _Text(time, time.fromisoformat, _zulu, {"format": "time"})),
    (timedelta, lambda kind: _Text(timedelta, _read_duration, _duration, {"format": "duration"})),
    (UUID, lambda kind: _Text(UUID, UUID, str, {"format": "uuid"})),
    (Decimal, lambda kind: _Text(Decimal, Decimal, str, {"format": "decimal"})),
    (
        bytes,
        lambda kind: _Text(
            bytes, _read_bytes, lambda value: base64.urlsafe_b64encode(value).decode(), {"format": "base64url"}
        ),
    ),
    (PurePath, lambda kind: _Text(kind, kind, str, {"format": "path"})),
)
