"""Declarations of types in TypeScript and Go, from the JSON Schemas of tasks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]

# Returns the name that a definition of a schema has in the file.
Name = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class TaskTypes:
    """A task, and the schemas of its arguments and of its result."""

    name: str
    arguments: Schema
    result: Schema


@dataclass(frozen=True, slots=True)
class _Declared:
    """A type of the file: its name, its schema, and the names of the definitions that this refers to."""

    name: str
    schema: Schema
    name_of: Name


def typescript(tasks: Iterable[TaskTypes]) -> str:
    """Return a module with a type for the arguments of each task, and `Tasks`, which has all of them by name."""
    lines = ["// Written by pgqueue tasks types: arguments and results of tasks, as JSON has them.", ""]
    rows = []
    types = _Types()
    for task in tasks:
        arguments, result = types.add(task)
        rows.append(f"  {json.dumps(task.name)}: {{ args: {arguments}; result: {result} }};")
    for each in types.declared:
        lines += [f"export type {each.name} = {_typescript(each.schema, each.name_of)};", ""]
    return "\n".join([*lines, "export interface Tasks {", *rows, "}", ""])


def go(tasks: Iterable[TaskTypes], package: str) -> str:
    """Return a file with a type for the arguments and the result of each task, and constants for their names."""
    types = _Types()
    constants: dict[str, str] = {}
    for task in tasks:
        types.add(task)
        own = next(each for each in _alternatives(f"Task{_camel(task.name)}", "") if each not in constants)
        constants[own] = task.name
    names = [f"\t{own} = {json.dumps(name)}" for own, name in constants.items()]
    body = [f"type {each.name} {_go(each.schema, each.name_of)}\n" for each in types.declared]
    imports = ['import "time"', ""] if any("time.Time" in each for each in body) else []
    head = "// Written by pgqueue tasks types: arguments and results of tasks, as JSON has them."
    return "\n".join([head, f"package {package}", "", *imports, "const (", *names, ")", "", *body])


class _Types:
    """The types of a file. Definitions of several tasks that are the same share a name."""

    def __init__(self) -> None:
        self.declared: list[_Declared] = []
        self._schemas: dict[str, str] = {}

    def add(self, task: TaskTypes) -> tuple[str, str]:
        """Declare the types of a task; return the names of those of its arguments and of its result."""
        found = []
        for suffix, schema in (("Args", task.arguments), ("Result", task.result)):
            definitions: Mapping[str, Schema] = schema.get("$defs", {})
            names = {name: self._name(_camel(name), task.name, each) for name, each in definitions.items()}
            own = {name: value for name, value in schema.items() if name not in ("$defs", "$schema")}
            # A definition may have the name of the task's own type.
            known = self._name(f"{_camel(task.name)}{suffix}", task.name, own)
            for name, each in [*((names[name], each) for name, each in definitions.items()), (known, own)]:
                if name not in {declared.name for declared in self.declared}:
                    self.declared.append(_Declared(name, each, lambda name, names=names: names[name]))  # type: ignore[misc]
            found.append(known)
        return found[0], found[1]

    def _name(self, wanted: str, task: str, schema: Schema) -> str:
        text = json.dumps(schema, sort_keys=True)
        for name in _alternatives(wanted, _camel(task)):
            if self._schemas.setdefault(name, text) == text:
                return name
        raise AssertionError


def _alternatives(wanted: str, task: str) -> Iterator[str]:
    yield wanted
    yield f"{task}{wanted}"
    number = 2
    while True:
        yield f"{task}{wanted}{number}"
        number += 1


def _typescript(schema: Schema, name_of: Name) -> str:
    if "$ref" in schema:
        return name_of(_referred(schema))
    if "const" in schema or "enum" in schema:
        return " | ".join(json.dumps(each) for each in schema.get("enum", [schema.get("const")]))
    several = _alternatives_in(schema)
    if several:
        kinds = dict.fromkeys(_typescript(each, name_of) for each in several)
        return "unknown" if "unknown" in kinds else " | ".join(kinds)
    match schema.get("type"):
        case "object":
            return _typescript_object(schema, name_of)
        case "array" if "prefixItems" in schema:
            return f"[{', '.join(_typescript(each, name_of) for each in schema['prefixItems'])}]"
        case "array":
            return f"Array<{_typescript(schema.get('items', {}), name_of)}>"
        case "integer" | "number":
            return "number"
        case "string" if "format" in schema:
            return f"string /* {schema['format']} */"
        case "string" | "boolean" | "null" as kind:
            return str(kind)
    return "unknown"


def _typescript_object(schema: Schema, name_of: Name) -> str:
    properties = schema.get("properties", {})
    more = schema.get("additionalProperties", False)
    rest = "unknown" if more is True else _typescript(more, name_of) if more else None
    if not properties:
        return "{}" if rest is None else f"Record<string, {rest}>"
    required = schema.get("required", ())
    lines = []
    for name, each in properties.items():
        shown = name if re.fullmatch(r"[A-Za-z_]\w*", name) else json.dumps(name)
        lines.append(f"  {shown}{'' if name in required else '?'}: {_typescript(each, name_of)};")
    if rest is not None:
        lines.append("  [name: string]: unknown;")
    return "\n".join(["{", *lines, "}"])


def _go(schema: Schema, name_of: Name) -> str:
    if "$ref" in schema:
        return name_of(_referred(schema))
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return "string" if all(isinstance(each, str) for each in values) else "any"
    several = _alternatives_in(schema)
    if several:
        present = [each for each in several if each.get("type") != "null"]
        kinds = {_go(each, name_of) for each in present}
        # A Decimal: a number, or its text, which keeps its digits.
        kinds = {"string"} if kinds == {"float64", "string"} else kinds
        if len(kinds) != 1:
            return "any"
        kind = kinds.pop()
        return _go_optional(kind) if len(present) < len(several) else kind
    match schema.get("type"):
        case "object":
            return _go_object(schema, name_of)
        case "array":
            return "[]any" if "prefixItems" in schema else f"[]{_go(schema.get('items', {}), name_of)}"
        case "string":
            return "time.Time" if schema.get("format") == "date-time" else "string"
        case "integer":
            return "int64"
        case "number":
            return "float64"
        case "boolean":
            return "bool"
    return "any"


def _go_object(schema: Schema, name_of: Name) -> str:
    properties = schema.get("properties", {})
    if not properties:
        more = schema.get("additionalProperties", False)
        return f"map[string]{_go(more, name_of)}" if isinstance(more, Mapping) else "map[string]any"
    required = schema.get("required", ())
    lines, taken = [], set()
    for name, each in properties.items():
        kind = _go(each, name_of)
        tag = name if name in required else f"{name},omitempty"
        if name not in required:
            kind = _go_optional(kind)
        own = next(found for found in _alternatives(_camel(name), "") if found not in taken)
        taken.add(own)
        formats = ", ".join(dict.fromkeys(_formats(each)))
        comment = f" // {formats}" if formats else ""
        lines.append(f"\t{own} {kind} `json:{json.dumps(tag)}`{comment}")
    return "\n".join(["struct {", *lines, "}"])


def _formats(schema: Schema) -> Iterator[str]:
    """Yield the formats of texts in a schema that Go has no type for."""
    if schema.get("format") not in (None, "date-time"):
        yield schema["format"]
    inner = [*(schema[word] for word in ("items", "additionalProperties") if word in schema), *_alternatives_in(schema)]
    for each in [*inner, *schema.get("prefixItems", ())]:
        if isinstance(each, Mapping):
            yield from _formats(each)


def _go_optional(kind: str) -> str:
    return kind if kind.startswith(("*", "[]", "map[", "any")) else f"*{kind}"


def _alternatives_in(schema: Schema) -> list[Schema]:
    if isinstance(schema.get("type"), list):
        return [{**schema, "type": each} for each in schema["type"]]
    for word in ("anyOf", "oneOf", "allOf"):
        if word in schema:
            return list(schema[word])
    return []


def _referred(schema: Schema) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _camel(name: str) -> str:
    """Return a name that both languages take, such as SendEmail for shop.send_email, by the last part of its name."""
    words = re.findall(r"[A-Za-z0-9]+", name)
    joined = "".join(f"{word[0].upper()}{word[1:]}" for word in words)
    return joined if joined and not joined[0].isdigit() else f"T{joined}"
