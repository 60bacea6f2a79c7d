"""What why_late() and doctor() say, for people: numbers with thousands apart, and commands of the command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

# A call as why_late() and doctor() write one, with its semicolon at the end of the text.
_CALL = re.compile(r"select (?:\* from )?pgqueue\.(\w+)\(((?:'(?:[^']|'')*'|[^'()])*)\)(?:;$)?")
_ARGUMENT = re.compile(r"\s*(?:(\w+) => )?(?:array\[)?\s*(E?'(?:[^']|'')*'|[^\s,\[\]]+)\]?,?")

# The options of the commands that stand for these calls: any other word that begins with a dash is a name.
_OPTIONS = frozenset({"--source", "--max-executing", "--weight", "--task", "--revoke"})

# A number of things, and no id: what is counted stands behind it.
_COUNT = re.compile(
    r"(?<![\w.,:/'\"-])(?<!job )\d{4,}(?=(?:\.\d+)? (?:jobs|dead|live|of|transactions|sessions|attempts|units|slots"
    r"|workers|partitions|functions|connections|a second|come in)\b)"
)

# A command stands at the beginning, or behind a colon or a semicolon, and ends at a semicolon that no quotes hold. What
# follows one of ours behind a comma describes it.
_QUOTED = r"'(?:[^'])*'|\"[^\"]*\""
_COMMAND = re.compile(
    rf"(?:^|(?<=[:;] ))(?:pgqueue (?:{_QUOTED}|,(?! )|[^;,'\"])+"
    rf"|(?:select|alter|vacuum|revoke|grant|create role|rollback prepared)\b(?:{_QUOTED}|[^;'\"])+;?)"
)


def for_people(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of why_late() or doctor() with thousands apart in its evidence and with commands in its remedy.

    "select pgqueue.resume('queue', 'mail', 'operator');" becomes "pgqueue queues resume mail".
    """
    return {
        **row,
        "evidence": with_thousands(str(row["evidence"] or "")),
        "remedy": _CALL.sub(_written, str(row["remedy"])),
    }


def with_thousands(text: str) -> str:
    """Return a text of the database's with thousands apart in its numbers of things: "about 39,704 jobs"."""
    return _COUNT.sub(lambda found: f"{int(found[0]):,}", text)


def steps(remedy: str) -> list[tuple[str, bool]]:
    """Split a remedy into words and commands, each with whether it is a command.

    "wait, or: pgqueue jobs cancel 7" is ("wait, or:", False), ("pgqueue jobs cancel 7", True).
    """
    found: list[tuple[str, bool]] = []
    end = 0
    for command in _COMMAND.finditer(remedy):
        found += [(remedy[end : command.start()], False), (command[0], True)]
        end = command.end()
    found.append((remedy[end:], False))
    parts = ((text.strip() if is_command else text.strip(" ;,"), is_command) for text, is_command in found)
    return [(text, is_command) for text, is_command in parts if text]


def _written(call: re.Match[str]) -> str:
    found = [(name, _unquoted(value)) for name, value in _ARGUMENT.findall(call[2])]
    words = _words(
        call[1], [value for name, value in found if not name], {name: value for name, value in found if name}
    )
    return shlex.join(["pgqueue", *_told_apart(words)]) if words else call[0]


def _told_apart(words: list[str]) -> list[str]:
    """Put options first and -- before the names, where a name begins with a dash."""
    if not any(word.startswith("-") and word not in _OPTIONS for word in words):
        return words
    first = next((n for n, word in enumerate(words) if word in _OPTIONS), len(words))
    return [*words[:2], *words[first:], "--", *words[2:first]]


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
