"""What to do, as SQL says it, in commands of the command line where there are such."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

# A call as why_late() and doctor() write one, with its semicolon at the end of the text.
_CALL = re.compile(r"select (?:\* from )?pgqueue\.(\w+)\(((?:'(?:[^']|'')*'|[^'()])*)\)(?:;$)?")
_ARGUMENT = re.compile(r"\s*(?:(\w+) => )?(?:array\[)?\s*(E?'(?:[^']|'')*'|[^\s,\[\]]+)\]?,?")


def with_commands(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of why_late() or doctor() with commands in its remedy.

    "select pgqueue.resume('queue', 'mail', 'operator');" becomes "pgqueue queues resume mail".
    """
    return {**row, "remedy": _CALL.sub(_written, str(row["remedy"]))}


def _written(call: re.Match[str]) -> str:
    found = [(name, _unquoted(value)) for name, value in _ARGUMENT.findall(call[2])]
    words = _words(
        call[1], [value for name, value in found if not name], {name: value for name, value in found if name}
    )
    return shlex.join(["pgqueue", *words]) if words else call[0]


def _words(function: str, args: list[str], named: Mapping[str, str]) -> list[str]:
    match function, args, named:
        case "resume", ["queue", queue, "operator"], _:
            return ["queues", "resume", queue]
        case "resume", [kind, target, source], _:
            return ["limits", "resume", kind, target, *(["--source", source] if source != "operator" else [])]
        case "resume_worker", [worker], _:
            return ["workers", "resume", worker]
        case "set_limit", [kind, target], {"max_executing": most}:
            return ["limits", "set", kind, target, "--max-executing", most]
        case "configure_queue", [queue], {"weight": weight}:
            return ["queues", "set", queue, "--weight", weight]
        case "cancel", [job_id], _:
            return ["jobs", "cancel", job_id]
        case "cancel_many", [], {"task": task}:
            return ["jobs", "cancel", "--task", task]
        case "events", _, _:
            return ["events", "list"]
        case "delete_events", [name], _:
            return ["events", "delete", name]
        case (("grant_access" | "revoke_access"), [kind, role], _):
            return ["grant", kind, role, *(["--revoke"] if function == "revoke_access" else [])]
        case _:
            return []


def _unquoted(value: str) -> str:
    text = value.removeprefix("E")
    if not text.startswith("'"):
        return value
    text = text[1:-1].replace("''", "'")
    return text if value.startswith("'") else text.replace("\\\\", "\\")
