"""Arguments checked and converted by their annotations, with pydantic, for tasks that ask for it.

Both ways are built once, when the task is declared: what is enqueued through the task is checked and written as JSON by
the types, and what a job holds, whoever enqueued it, is read by them.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from pgqueue.errors import ConfigError, InvalidArgument, InvalidPayload
from pgqueue.middleware import definition


class TypedArguments:
    """The arguments of one task, or, of an accumulating one, a payload. Raises ConfigError when they have no types.

    `dump` makes JSON of Python values, `load` Python values of JSON.
    """

    def __init__(
        self, task: str, function: Callable[..., Any], signature: inspect.Signature, payloads_parameter: str | None
    ) -> None:
        try:
            import pydantic  # noqa: PLC0415
            import typing_extensions  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError(
                f"task {task} has validate=True, and pydantic is not installed",
                hint="run: pip install 'pgqueue-sql[pydantic]'",
            ) from error
        self._task = task
        self._invalid: type[Exception] = pydantic.ValidationError
        self._unwritable: type[Exception] = pydantic.errors.PydanticSchemaGenerationError
        try:
            hints = typing.get_type_hints(definition(function), include_extras=True)
            if payloads_parameter is None:
                kind = _arguments(task, signature, hints, typing_extensions, pydantic)
            else:
                kind = _payload(task, hints.get(payloads_parameter, Any))
            self._adapter: Any = pydantic.TypeAdapter(kind)
        except (NameError, TypeError, pydantic.errors.PydanticUserError) as error:
            raise ConfigError(
                f"the annotations of task {task} cannot be checked: {error}",
                hint="annotate its parameters with types that pydantic knows, importable where the task is declared",
            ) from error

    def dump(self, value: object) -> dict[str, Any]:
        """Check and convert Python values and write them as JSON has them. Raises InvalidArgument."""
        try:
            checked = self._adapter.validate_python(value, by_alias=True, by_name=True)
        except self._invalid as error:
            raise InvalidArgument(
                f"these arguments do not fit task {self._task}: {_reasons(error)}",
                hint="give what its annotations say",
            ) from None
        try:
            # By name, as `load` reads them whatever their aliases are.
            dumped = self._adapter.dump_python(checked, mode="json", by_alias=False, round_trip=True, warnings="none")
        except Exception as error:
            raise InvalidArgument(f"the arguments of task {self._task} cannot be written as JSON: {error}") from error
        if not isinstance(dumped, dict):
            raise InvalidArgument(
                f"a payload of task {self._task} is written as {type(dumped).__name__}, and must be an object",
                hint="give payloads a type with fields: a model, a dataclass, a TypedDict, a dict",
            )
        return dumped

    def load(self, args: Mapping[str, Any]) -> Any:
        """Read what a job holds. Raises InvalidPayload."""
        try:
            return self._adapter.validate_json(orjson.dumps(args), by_alias=True, by_name=True)
        except self._invalid as error:
            # Without the error itself, which quotes the values.
            raise InvalidPayload(
                f"the payload does not fit task {self._task}: {_reasons(error)}",
                hint="enqueue it as the task's annotations say",
            ) from None


def _arguments(
    task: str, signature: inspect.Signature, hints: Mapping[str, Any], typing_extensions: Any, pydantic: Any
) -> Any:
    fields: dict[str, Any] = {}
    extra = "forbid"
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            extra = "allow"
            continue
        hint = hints.get(name, Any)
        # Without a default here: that of the function counts, as it is.
        fields[name] = hint if parameter.default is inspect.Parameter.empty else typing_extensions.NotRequired[hint]
    kind = typing_extensions.TypedDict(task, fields)
    kind.__pydantic_config__ = pydantic.ConfigDict(extra=extra, arbitrary_types_allowed=False)
    return kind


def _payload(task: str, hint: Any) -> Any:
    if hint is Any:
        return dict[str, Any]
    inner = typing.get_args(hint)
    if len(inner) != 2 or len(typing.get_args(inner[1])) != 1:
        raise ConfigError(
            f"task {task} accumulates and has validate=True, and its payloads are annotated {hint}",
            hint="annotate them as dict[str, list[Payload]]",
        )
    return typing.get_args(inner[1])[0]


def _reasons(error: Any) -> str:
    # Without the values: arguments may be secret, and errors are kept.
    found = error.errors(include_url=False, include_input=False, include_context=False)
    reasons = [f"{'.'.join(str(part) for part in each['loc']) or 'payload'}: {each['msg']}" for each in found[:10]]
    more = len(found) - len(reasons)
    return "; ".join(reasons) + (f"; and {more} more" if more else "")
