"""One row of the database as a page: a name and a value for each column that has one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from pgqueue.cli import output
from pgqueue.db.json import Document


def show(document: Document, names: Iterable[str]) -> None:
    """Print these columns, except the ones that are null."""
    values = {name: text_of(document, name) for name in names if document[name] is not None}
    width = max(map(len, values), default=0)
    for name, text in values.items():
        first, *rest = text.split("\n")
        output.line(f"{name:{width}}  {first}")
        for each in rest:
            output.line(" " * (width + 2) + each)


def text_of(document: Document, name: str) -> str:
    """Return a column as text: JSON indented, a time in the reader's zone with its age."""
    value = document[name]
    if isinstance(value, str) and re.search(r"(_at|_until)$", name):
        return output.with_age(value)
    if not isinstance(value, dict | list):
        return str(value)
    try:
        return json.dumps(value, indent=2, ensure_ascii=False)
    except RecursionError:
        # Writing goes less deep than reading.
        return document.texts[name]
