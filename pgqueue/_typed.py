"""Arguments and results converted by their annotations: to JSON when they are enqueued, and back for the handler.

What is converted is decided once for each task: parameters whose values JSON does not keep, or all of them, which are
then also checked, with `validate=True`. With pydantic where it is installed, else by `pgqueue._standard_types`; the
form in JSON is the same. An adapter is built when the first job needs it. A value that would come back as another one
is refused when it is enqueued.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import orjson

from pgqueue._annotations import hints_of, is_converted
from pgqueue._standard_types import Misfit, Record, form_of
from pgqueue.db.json import check_finite, first_foreign, way_out
from pgqueue.errors import ConfigError, InvalidArgument, InvalidPayload
from pgqueue.middleware import definition


class Adapter(Protocol):
    """Values of one annotation as JSON and back. Each raises Misfit for what does not fit."""

    def check(self, value: Any, /) -> Any: ...
    def write(self, value: Any, /) -> Any: ...
    def read(self, value: Any, /) -> Any: ...
    def schema(self) -> Mapping[str, Any]: ...


def typed_arguments(
    task: str,
    function: Callable[..., Any],
    signature: inspect.Signature,
    payloads_parameter: str | None,
    validate: bool,
) -> TypedArguments | None:
    """Return what converts the arguments of a task, or one payload of an accumulating one; None where JSON keeps them.

    With `validate` the annotations are all used, and ConfigError is raised for those that cannot be.
    """
    written = definition(function)
    if validate:
        return _validated(task, written, signature, payloads_parameter)
    hints = hints_of(written)
    if payloads_parameter is not None:
        payload = _payload_of(hints.get(payloads_parameter, Any))
        return TypedArguments(task, payload) if payload is not None and is_converted(payload) else None
    fields = {
        name: _with_default(hints[name], parameter)
        for name, parameter in signature.parameters.items()
        if name in hints and parameter.kind is not inspect.Parameter.VAR_KEYWORD and is_converted(hints[name])
    }
    return TypedArguments(task, fields=fields) if fields else None


def typed_result(task: str, function: Callable[..., Any]) -> TypedResult | None:
    """Return what converts the results of a task; None where JSON keeps them, or nothing says their type."""
    hint = hints_of(definition(function)).get("return", Any)
    return TypedResult(task, hint) if is_converted(hint) else None


def schema_of(
    task: str, function: Callable[..., Any], signature: inspect.Signature, payloads_parameter: str | None
) -> dict[str, Any]:
    """Return the JSON schema of the arguments of a task, or of one payload of an accumulating one, by all annotations.

    Raises ConfigError for an annotation without a schema.
    """
    hints = hints_of(definition(function))
    if payloads_parameter is not None:
        return _schema(task, lambda: _adapter(task, _payload_of(hints.get(payloads_parameter, Any)), must=False))
    named = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    fields = {each.name: _with_default(hints.get(each.name, Any), each) for each in named}
    required = [each.name for each in named if each.default is inspect.Parameter.empty]
    more = len(named) < len(signature.parameters)
    found = _schema(task, lambda: _record(task, fields, required, "ignore", must=False))
    return {**found, "additionalProperties": more}


def result_schema_of(task: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Return the JSON schema of the results of a task by its annotation; of any value without one."""
    hint = hints_of(definition(function)).get("return", Any)
    return _schema(task, lambda: _adapter(task, hint, must=False))


def _schema(task: str, adapter: Callable[[], Adapter]) -> dict[str, Any]:
    try:
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **adapter().schema()}
    except Exception as error:
        raise ConfigError(
            f"an annotation of task {task} has no JSON schema: {error}", hint="annotate it by a type that JSON can hold"
        ) from error


def check_kept(task: str, args: Mapping[str, Any]) -> None:
    """Raise InvalidArgument for an argument whose type is lost in JSON, and that nothing restores."""
    found = first_foreign(args, "")
    if found is None:
        return
    path, value = found
    name, kind = path.partition(".")[0], type(value).__qualname__
    raise InvalidArgument(
        f"argument {path} of task {task} is of type {kind}, and no annotation of the function restores one from JSON",
        hint=f"annotate the parameter ({name}: {kind}), or {way_out(value)}",
    )


class TypedArguments:
    """Converts the arguments of one task by their `fields`, or one payload as a whole by `kind`.

    `dump` converts Python values to JSON, `load` JSON to Python values. Arguments without a field are handed over as
    they are, unless `checks_all`: then the `required` ones must be there, and others only where `extra` allows it.
    """

    def __init__(
        self,
        task: str,
        kind: Any = None,
        fields: Mapping[str, Any] | None = None,
        *,
        required: Collection[str] = (),
        checks_all: bool = False,
        extra: str = "ignore",
    ) -> None:
        self._task = task
        self._kind = kind
        self._fields = fields
        self._required = required
        self._checks_all = checks_all
        self._extra = extra

    @functools.cached_property
    def adapter(self) -> Adapter:
        """The adapter for whole arguments. Raises ConfigError."""
        if self._fields is None:
            return _adapter(self._task, self._kind, must=self._checks_all)
        return _record(self._task, self._fields, self._required, self._extra, must=self._checks_all)

    @functools.cached_property
    def _partial(self) -> Adapter:
        adapter = self.adapter
        return (
            adapter
            if self._fields is None
            else _record(self._task, self._fields, (), "allow" if self._checks_all else "ignore", must=False)
        )

    def dump(self, value: Any) -> dict[str, Any]:
        """Convert Python values to JSON. Raises InvalidArgument."""
        return self._dumped(value, self.adapter)

    def dump_some(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Convert some of the arguments, whether or not others are required."""
        return self._dumped(args, self._partial)

    def load(self, args: Mapping[str, Any]) -> Any:
        """Convert the arguments of a job to Python values. Raises InvalidPayload."""
        known = self._known(args)
        try:
            read = self.adapter.read(known)
        except Misfit as misfit:
            raise InvalidPayload(
                f"the payload does not fit task {self._task}: {misfit}",
                hint="enqueue it with arguments of the annotated types",
            ) from None
        return read if known is args else {**args, **read}

    def _known(self, args: Any) -> Any:
        if self._fields is None or self._checks_all or not isinstance(args, Mapping):
            return args
        return {name: args[name] for name in self._fields if name in args}

    def _dumped(self, value: Any, adapter: Adapter) -> dict[str, Any]:
        known = self._known(value)
        if known is not value:
            check_kept(self._task, {name: each for name, each in value.items() if name not in known})
        dumped = _written(adapter, known, f"these arguments do not fit task {self._task}", self._task)
        if not isinstance(dumped, dict):
            raise InvalidArgument(
                f"a payload of task {self._task} is written as {type(dumped).__name__}, and must be an object",
                hint="give payloads a type with fields: a model, a dataclass, a TypedDict, a dict",
            )
        return dumped if known is value else {**value, **dumped}


class TypedResult:
    """Converts the results of one task."""

    def __init__(self, task: str, hint: Any) -> None:
        self._task = task
        self._hint = hint

    @functools.cached_property
    def adapter(self) -> Adapter:
        """The adapter for a result. Raises ConfigError."""
        return _adapter(self._task, self._hint, must=False)

    def dump(self, value: object) -> Any:
        """Convert what the handler returned to JSON. Raises InvalidArgument."""
        return _written(self.adapter, value, f"the result does not fit task {self._task}", self._task)

    def load(self, value: Any) -> Any:
        """Convert a stored result to a Python value. Raises InvalidPayload."""
        try:
            return self.adapter.read(value)
        except Misfit as misfit:
            raise InvalidPayload(
                f"the result does not fit task {self._task}: {misfit}",
                hint="it is of another version of the task: read it without the task",
            ) from None


def _written(adapter: Adapter, value: Any, misfits: str, task: str) -> Any:
    try:
        checked = adapter.check(value)
        dumped = adapter.write(checked)
    except Misfit as misfit:
        raise InvalidArgument(f"{misfits}: {misfit}", hint="give values of the annotated types") from None
    except Exception as error:
        raise InvalidArgument(f"a value of task {task} cannot be written as JSON: {error}") from error
    try:
        is_same = _same(adapter.read(dumped), checked)
    except Misfit:
        is_same = False
    if not is_same:
        check_finite(checked, f"a value of task {task}")
        lost = _names_lost(adapter, dumped, checked)
        raise InvalidArgument(
            f"{misfits}: {lost} would come back from JSON as another value",
            hint="annotate it by its class, and by no Union of types with the same form in JSON (date | str)",
        )
    return dumped


def _same(one: Any, other: Any) -> bool:
    """Compare values by their parts where they are not equal as wholes."""
    if type(one) is not type(other):
        return bool(one == other)
    if isinstance(one, datetime) and one.tzinfo is not None and other.tzinfo is not None:
        # Not by ==: a time of the hour that comes twice is never equal to one of another zone.
        return bool(one.astimezone(UTC) == other.astimezone(UTC))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if one == other:
        return True
    if is_dataclass(one):
        return all(_same(getattr(one, each.name), getattr(other, each.name)) for each in dataclass_fields(other))
    return hasattr(one, "__dict__") and bool(vars(one)) and _same(vars(one), vars(other))


def _names_lost(adapter: Adapter, dumped: Any, checked: Any) -> str:
    try:
        read = adapter.read(dumped)
    except Misfit as misfit:
        return misfit.path or "a value"
    if isinstance(read, dict) and isinstance(checked, dict):
        return next((str(name) for name in checked if not _same(read.get(name), checked[name])), "a value")
    return "a value"


def _with_default(hint: Any, parameter: inspect.Parameter) -> Any:
    # A parameter may be written `at: datetime = None`.
    return typing.Optional[hint] if parameter.default is None else hint  # noqa: UP045


def _validated(
    task: str, written: Callable[..., Any], signature: inspect.Signature, payloads_parameter: str | None
) -> TypedArguments:
    if _pydantic() is None:
        raise ConfigError(
            f"task {task} has validate=True, and pydantic 2 is not installed",
            hint="run: pip install 'pgqueue-sql[pydantic]'",
        )
    try:
        hints = typing.get_type_hints(written, include_extras=True)
    except (NameError, TypeError) as error:
        raise _unusable(task, error) from error
    if payloads_parameter is not None:
        payload = _payload_of(hints.get(payloads_parameter, Any))
        if payload is None:
            raise ConfigError(
                f"task {task} accumulates and has validate=True, and its payloads are annotated"
                f" {hints[payloads_parameter]}",
                hint="annotate them as dict[str, list[Payload]]",
            )
        typed = TypedArguments(task, payload, checks_all=True)
    else:
        named = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        typed = TypedArguments(
            task,
            fields={each.name: _with_default(hints.get(each.name, Any), each) for each in named},
            # No default here: the function's own default applies, unchecked.
            required=[each.name for each in named if each.default is inspect.Parameter.empty],
            checks_all=True,
            extra="allow" if len(named) < len(signature.parameters) else "forbid",
        )
    # Built at once, so that the declaration is refused, and not the first job.
    _ = typed.adapter
    return typed


def _payload_of(hint: Any) -> Any:
    """Return the annotation of one payload; None for an annotation that has none."""
    if hint is Any:
        return dict[str, Any]
    inner = typing.get_args(hint)
    return typing.get_args(inner[1])[0] if len(inner) == 2 and len(typing.get_args(inner[1])) == 1 else None


def _adapter(task: str, hint: Any, *, must: bool) -> Adapter:
    """Return an adapter. ConfigError for an annotation that pydantic does not know, if it `must` be checked by it."""
    pydantic = _pydantic()
    if pydantic is None:
        return form_of(hint)
    try:
        return _Pydantic(pydantic, hint)
    except (NameError, TypeError, pydantic.errors.PydanticUserError) as error:
        if must:
            raise _unusable(task, error) from error
        return form_of(hint)


def _record(task: str, fields: Mapping[str, Any], required: Collection[str], extra: str, *, must: bool) -> Adapter:
    """Return an adapter for arguments. Annotations that pydantic does not know are refused if all `must` be checked."""
    pydantic = _pydantic()
    if pydantic is None:
        return Record(lambda: fields, frozenset(required))
    unknown = {} if must else {name: hint for name, hint in fields.items() if not _is_usable(hint)}
    if unknown:
        known = {name: hint for name, hint in fields.items() if name not in unknown}
        theirs = _record(task, known, [name for name in required if name in known], "ignore", must=True)
        return _Both(theirs, Record(lambda: unknown, frozenset(required) & unknown.keys()))
    # pydantic has it, and takes no other before Python 3.12.
    import typing_extensions  # noqa: PLC0415

    optional = {name: hint if name in required else typing.NotRequired[hint] for name, hint in fields.items()}
    make: Any = typing_extensions.TypedDict
    kind = make(task, optional)
    kind.__pydantic_config__ = pydantic.ConfigDict(extra=extra, arbitrary_types_allowed=False, **_BYTES)
    return _adapter(task, kind, must=True)


class _Both:
    """Two adapters, each for some of the arguments; each leaves the others as they are."""

    def __init__(self, one: Adapter, other: Adapter) -> None:
        self._one = one
        self._other = other

    def schema(self) -> Mapping[str, Any]:
        one, other = self._one.schema(), self._other.schema()
        required = [*one.get("required", ()), *other["required"]]
        return {**one, "properties": {**one.get("properties", {}), **other["properties"]}, "required": required}

    def check(self, value: Any) -> Any:
        return self._merged(value, self._one.check, self._other.check)

    def write(self, value: Any) -> Any:
        return self._merged(value, self._one.write, self._other.write)

    def read(self, value: Any) -> Any:
        return self._merged(value, self._one.read, self._other.read)

    def _merged(self, value: Any, one: Callable[[Any], Any], other: Callable[[Any], Any]) -> Any:
        ours = {name: each for name, each in value.items() if name not in self._other.schema()["properties"]}
        others = {name: each for name, each in value.items() if name not in ours}
        return {**one(ours), **other(others)}


def _is_usable(hint: Any) -> bool:
    try:
        _adapter("", hint, must=True)
    except ConfigError:
        return False
    return True


def _pydantic() -> Any:
    try:
        import pydantic  # noqa: PLC0415
    except ImportError:
        return None
    # pydantic 1 is another library under the same name.
    return pydantic if hasattr(pydantic, "TypeAdapter") else None


# Bytes are no text, unless a model's own config says so.
_BYTES: Mapping[str, Any] = {"ser_json_bytes": "base64", "val_json_bytes": "base64"}


class _Pydantic:
    """An adapter by pydantic."""

    def __init__(self, pydantic: Any, kind: Any) -> None:
        self._invalid: type[Exception] = pydantic.ValidationError
        # Not orjson: a job from SQL may hold an integer beyond 64 bits.
        from pydantic_core import to_json  # noqa: PLC0415

        self._to_json = to_json
        # In a tuple, for which a config may be given: a TypedDict does not apply its own to what it writes.
        self._adapter: Any = pydantic.TypeAdapter(tuple[kind], config=pydantic.ConfigDict(**_BYTES))

    def schema(self) -> Mapping[str, Any]:
        schema = self._adapter.json_schema(by_alias=False, mode="validation")
        [of_value] = schema["prefixItems"]
        found: dict[str, Any] = {**of_value, **({"$defs": schema["$defs"]} if "$defs" in schema else {})}
        if found.keys() == {"$ref", "$defs"}:
            # Its own definition, which no other refers to.
            name = found["$ref"].rpartition("/")[2]
            rest = {each: definition for each, definition in found["$defs"].items() if each != name}
            if found["$ref"] not in orjson.dumps(rest).decode():
                return {**found["$defs"][name], **({"$defs": rest} if rest else {})}
        return found

    def check(self, value: Any) -> Any:
        try:
            return self._adapter.validate_python((value,), by_alias=True, by_name=True)[0]
        except self._invalid as error:
            raise _misfit(error) from None

    def write(self, value: Any) -> Any:
        # By name: `read` reads names as well as aliases.
        return self._adapter.dump_python((value,), mode="json", by_alias=False, round_trip=True, warnings="none")[0]

    def read(self, value: Any) -> Any:
        try:
            return self._adapter.validate_json(self._to_json([value]), by_alias=True, by_name=True)[0]
        except self._invalid as error:
            # `from None`: pydantic's error quotes the values.
            raise _misfit(error) from None


def _misfit(error: Any) -> Misfit:
    # Without the values: arguments may be secret, and errors are stored.
    found = error.errors(include_url=False, include_input=False, include_context=False)
    places = [".".join(str(part) for part in each["loc"][1:]) for each in found]
    reasons = [f"{place or 'payload'}: {each['msg']}" for place, each in zip(places[:10], found, strict=False)]
    more = len(found) - len(reasons)
    return Misfit("; ".join(reasons) + (f"; and {more} more" if more else ""), path=places[0])


def _unusable(task: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"the annotations of task {task} cannot be checked: {error}",
        hint="annotate its parameters with types that pydantic knows, importable where the task is declared",
    )
