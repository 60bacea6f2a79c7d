"""Arguments checked and converted by their annotations, with pydantic, for tasks that ask for it.

The adapter is built once, when the task is declared. It checks arguments that are enqueued through the task and writes
them as JSON; it reads the arguments of every job, however it was enqueued.
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
    """Checks the arguments of one task, or one payload of an accumulating task.

    `dump` converts Python values to JSON, `load` JSON to Python values. Raises ConfigError when the annotations cannot
    be checked.
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

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of a job's arguments, or of one payload."""
        schema: dict[str, Any] = self._adapter.json_schema(by_alias=False, mode="validation")
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}

    def dump(self, value: object) -> dict[str, Any]:
        """Check Python values and convert them to JSON. Raises InvalidArgument."""
        try:
            checked = self._adapter.validate_python(value, by_alias=True, by_name=True)
        except self._invalid as error:
            raise InvalidArgument(
                f"these arguments do not fit task {self._task}: {_reasons(error)}",
                hint="give arguments of the annotated types",
            ) from None
        try:
            # By name: `load` reads names as well as aliases.
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
        """Convert the arguments of a job to Python values. Raises InvalidPayload."""
        try:
            return self._adapter.validate_json(orjson.dumps(args), by_alias=True, by_name=True)
        except self._invalid as error:
            # `from None`: pydantic's error quotes the values.
            raise InvalidPayload(
                f"the payload does not fit task {self._task}: {_reasons(error)}",
                hint="enqueue it with arguments of the annotated types",
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
        # No default here: the function's own default applies, unchecked.
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
    # Without the values: arguments may be secret, and errors are stored.
    found = error.errors(include_url=False, include_input=False, include_context=False)
    reasons = [f"{'.'.join(str(part) for part in each['loc']) or 'payload'}: {each['msg']}" for each in found[:10]]
    more = len(found) - len(reasons)
    return "; ".join(reasons) + (f"; and {more} more" if more else "")
