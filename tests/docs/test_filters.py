"""Each filter that a page shows is one: the parser takes it, and so does search()."""

from __future__ import annotations

import re

import psycopg
import pytest

from pgqueue import _filters
from pgqueue.db import observe
from pgqueue.db.call import perform
from pgqueue.errors import InvalidArgument
from tests.docs.pages import pages, read

_NAMES = "|".join(word.replace("args.NAME", r"args(?:\.\w+)+") for word in _filters.WORDS)
_FILTER = re.compile(rf"(?:{_NAMES}):[^\s]")

# Pages name these because they are refused: each job would match, or no word of theirs exists.
REFUSED = {'error:""', 'line:""', "queue:*"}


def filters(text: str) -> list[str]:
    """Return what stands as a filter in a page or program: in backticks, behind --where, alone on a line."""
    spans = [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]
    given = [words for _, words in re.findall(r"--where[ =](['\"])(.*?)\1", text)]
    helped = re.findall(r"(?i:filter)\b[^'\n]*: '([^']+)'", text)
    lines = [line.strip() for line in text.splitlines()]
    # A line of words and nothing else is a filter; in prose a name and a colon are followed by a space.
    alone = [line for line in lines if re.fullmatch(rf"(?:(?:{_NAMES}):(?:[^\s\"`]|\"[^\"]*\")+\s?)+", line)]
    return [*(span for span in spans if _FILTER.match(span)), *given, *helped, *alone]


def everywhere() -> dict[str, str]:
    """The texts that show filters: the docs, the help of commands and pages, and the parser itself."""
    programs = [
        "pgqueue/_filters.py",
        "pgqueue/top/app.py",
        *(f"pgqueue/cli/{name}.py" for name in ("options", "jobs", "top", "examples")),
    ]
    return {name: read(name) for name in [*pages(), "CHANGELOG.md", *programs]}


def shown() -> list[tuple[str, str]]:
    return sorted({(name, each) for name, text in everywhere().items() for each in filters(text)})


def test_filters_are_found_where_they_stand() -> None:
    text = "`state:dead queue:x`, `tenant: no`, `pgqueue jobs list --where 'id:1..5'`\n\n    queue:mail error:\"a b\"\n"
    assert filters(text) == ["state:dead queue:x", "id:1..5", 'queue:mail error:"a b"']
    found = shown()
    assert len(found) > 20
    assert {name for name, _ in found} >= {
        "docs/operate/web.md",
        "docs/operate/operating.md",
        "CHANGELOG.md",
        "pgqueue/_filters.py",
    }
    # All words of the language are shown by its page.
    language = " ".join(each for name, each in found if name == "docs/operate/web.md")
    assert [word for word in _filters.WORDS if f"{word.removesuffix('NAME').removesuffix('.')}" not in language] == []


def test_each_filter_that_is_shown_is_taken(conn: psycopg.Connection) -> None:
    for name, line in shown():
        if line in REFUSED:
            with pytest.raises(InvalidArgument):
                _filters.parse(line)
            continue
        try:
            assert perform(conn, observe.search("newest", _filters.parse(line), None, 10)).ids == []
        except (InvalidArgument, psycopg.Error) as error:
            pytest.fail(f"{name}: {line}: {error}")
