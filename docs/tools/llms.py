"""Writes docs/llms.txt, the index of the pages for programs that read: `make figures`."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1]

_HEAD = """\
# pgqueue

> A job queue inside a PostgreSQL database. Enqueue with one SQL call in your own transaction:
> select pgqueue.enqueue('task', '{"a": 1}'). Workers run jobs at least once, in any language. Python: pip install
> 'pgqueue-sql[cli]'; `from pgqueue import App, enqueue`; `pgqueue worker -r module`.

- Pass your own connection to enqueue(): the job is committed with your writes.
- Handlers may run twice: make them idempotent, or complete the job in the transaction of its writes.
- Give arguments of SQL functions by name: delay => '5 min'. Times and durations are intervals, not numbers.
- Tables other than those on the page of tables that are public may change: call the functions.
- What speaks for it, and what against: [Why pgqueue](why.html). Extras and supported versions: [Install](install.html).
"""


def index() -> str:
    """Return the text: each part of docs/index.md with its pages and what they answer."""
    lines = [_HEAD]
    for title, part in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", (DOCS / "index.md").read_text(), re.M | re.S):
        lines.append(f"## {title}\n")
        lines += [f"- [{name}]({path}.html): {what}" for name, path, what in _rows(part)]
        lines.append("")
    return "\n".join(lines)


def _rows(part: str) -> list[tuple[str, str, str]]:
    return re.findall(r"^\| \[(.*?)\]\(([\w/-]+)\.md\) \| (.*?) \|$", part, re.M)


if __name__ == "__main__":
    (DOCS / "llms.txt").write_text(index())
