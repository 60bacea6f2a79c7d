"""Each `pgqueue ...` that a message, a remedy, a page or a comment suggests is a command, with options that it has."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import top

ROOT = Path(__file__).parents[2]

_SUGGESTED = re.compile(r"(?<!from )(?<![\w.\"'/-])pgqueue (?=([a-z]+)\b)([^\n;|&`<>()]*)")


@cache
def _top() -> dict[str, Any]:
    tree = top()
    return {name: tree[name] for name in tree}


def _texts(path: Path) -> Iterator[str]:
    text = path.read_text()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.JoinedStr):
                yield "".join(each.value if isinstance(each, ast.Constant) else "X" for each in node.values)  # type: ignore[misc]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
    elif path.suffix == ".sql":
        for found in re.finditer(r"'((?:[^']|'')*)'", re.sub(r"(?m)^\s*--.*", "", text)):
            yield found[1].replace("''", "'")
    else:
        # An option may stand on the next line.
        yield re.sub(r"\\\n\s*", "", text)


def _suggested() -> list[tuple[str, str]]:
    paths = [
        *(ROOT / "pgqueue").rglob("*.py"),
        *(ROOT / "pgqueue" / "web" / "templates").glob("*.html"),
        *(ROOT / "sql").rglob("*.sql"),
        *(path for path in (ROOT / "docs").rglob("*.md")),
        ROOT / "README.md",
    ]
    known = _top()
    found = {
        (str(path.relative_to(ROOT)), match[2].strip())
        for path in paths
        for text in _texts(path)
        for match in _SUGGESTED.finditer(text)
        # In prose, as in "pgqueue needs PostgreSQL".
        if match[1] in known or re.search(r"(?:run|use|see):? $", text[: match.start()])
    }
    return sorted(found)


def _flaw(line: str) -> str | None:
    """Return what is wrong with the words after `pgqueue`, if anything is."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.quotes, lexer.commenters = True, "'\"", "#"
    try:
        words = list(lexer)
    except ValueError:
        words = line.split()
    command: Any = _top().get(words[0].rstrip(".,:"))
    if command is None:
        return f"there is no command {words[0]}"
    rest = words[1:]
    if hasattr(command, "commands") and rest and not rest[0].startswith(("-", "X")) and rest[0].islower():
        name = rest.pop(0).rstrip(".,:")
        if name not in command.commands:
            return f"{words[0]} has no command {name}"
        command = command.commands[name]
    if words[0] == "psql":
        # Those of psql itself.
        return None
    names = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"-h", "--help"}
    for word in rest:
        option = re.match(r"(--?[a-z][a-z-]*)(?:[=.,:].*)?$", word)
        if option and option[1] not in names:
            return f"{words[0]} has no option {option[1]}"
    return None


def test_each_suggested_command_exists() -> None:
    suggested = _suggested()
    places = {place.partition("/")[0] for place, _ in suggested}
    assert places == {"README.md", "docs", "pgqueue", "sql"}
    assert [(place, line, flaw) for place, line in suggested if (flaw := _flaw(line))] == []


@pytest.mark.parametrize(
    ("line", "flaw"),
    [
        ("worker -r MODULE --queue mail", None),
        ("worker --queues mail", "worker has no option --queues"),
        ("jobs explain 17", None),
        ("jobs why 17", "jobs has no command why"),
        ("upgrade", "there is no command upgrade"),
    ],
)
def test_a_suggestion_that_does_not_exist_is_found(line: str, flaw: str | None) -> None:
    assert _flaw(line) == flaw
