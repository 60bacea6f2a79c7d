"""Comments and pages keep to plain words: subjects that name a thing, and the terms of the field."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import psycopg

ROOT = Path(__file__).parents[2]

# "N", "defer", a subject with a name, "skip", "report", "grant a grace period", and a subject first in its sentence.
AVOIDED = re.compile(
    r"(?i:\b(so many|put(s|ting)? off|pass(ed|es|ing)? over|sa(ys|id) of|prolong\w*)\b)"
    r"|(?i:\b(some|no|any|every)body\b|\bwhoever\b)"
    r"|\bOf [a-z]"
)


def found_in(text: str) -> list[str]:
    """The words to avoid; what stands between backquotes is code."""
    prose = re.sub(r"`[^`]*`", "", text)
    return [each[0] for each in AVOIDED.finditer(prose)]


def pages() -> Iterator[tuple[Path, str]]:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "sql" / "README.md"]:
        # The reference is written from the comments, and names columns and arguments besides.
        if "reference" not in page.parts:
            yield page, re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def comments_of_sql() -> Iterator[tuple[Path, str]]:
    for file in (ROOT / "sql").rglob("*.sql"):
        for comment in re.findall(r"--.*", file.read_text()):
            yield file, comment


def comments_of_python() -> Iterator[tuple[Path, str]]:
    for file in (ROOT / "pgqueue").rglob("*.py"):
        source = file.read_text()
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield file, token.string
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield file, ast.get_docstring(node) or ""


def test_comments_in_the_catalog_use_plain_words(conn: psycopg.Connection) -> None:
    rows = conn.execute("""
        select pg_describe_object(d.classoid, d.objoid, d.objsubid), d.description
        from pg_description d
        join lateral pg_identify_object(d.classoid, d.objoid, d.objsubid) o on o.schema = 'pgqueue'
    """).fetchall()
    assert len(rows) > 500
    assert {what: words for what, comment in rows if (words := found_in(comment))} == {}


def test_comments_in_files_use_plain_words() -> None:
    found = [
        (str(file.relative_to(ROOT)), words)
        for file, comment in [*comments_of_sql(), *comments_of_python()]
        if (words := found_in(comment))
    ]
    assert found == []


def test_pages_use_plain_words() -> None:
    found = [(str(page.relative_to(ROOT)), words) for page, text in pages() if (words := found_in(text))]
    assert found == []


def test_the_words_are_found() -> None:
    assert found_in("Of these, so many are put off. Nobody is told. `nobody` owns it.") == [
        *("Of t", "so many", "put off", "Nobody"),
    ]
    assert found_in("most of them are skipped") == []
