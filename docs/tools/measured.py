"""Writes docs/explanation/figures.md from the reports in benchmarks/figures.json: `make figures`."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import orjson

from benchmarks.__main__ import NAMES

_ROOT = Path(__file__).parents[2]
PAGE = _ROOT / "docs/explanation/figures.md"

_HEAD = """\
# Figures

`make bench` measures each figure beside a baseline or a limit of the same run; `make measure` also writes this page.
The machine is virtual, has two cores, and runs server and clients together: fsync and synchronous_commit are on,
history is kept. It is shared, and its speed changes by a factor of two from day to day: compare ratios, not times.

A bound that is missed is shown as missed.
"""


def page() -> str:
    """Return the text of the page: the bounds of all benchmarks, then each report."""
    reports = orjson.loads((_ROOT / "benchmarks/figures.json").read_bytes())
    parts = [_HEAD]
    if missing := [name for name in NAMES if name not in reports]:
        parts.append(f"Not measured since the page was last begun anew: {', '.join(missing)}.\n")
    parts += ["## Bounds\n", _bounds(reports)]
    for name, report in reports.items():
        parts += [
            f"## {name}\n",
            f"{_about(name)}\n",
            f"`make bench BENCH={name}`, {report['day']}, PostgreSQL {report['server']}: {report['title']}.\n",
            _table(report["columns"], report["rows"]),
        ]
    return "\n".join(parts)


def _bounds(reports: dict[str, dict[str, Any]]) -> str:
    rows = [
        (
            f"[{name}](#{name})",
            bound["what"],
            f"{bound['measured']:.4g}",
            f"{bound['limit']:g}",
            "holds" if bound["holds"] else "**missed**",
        )
        for name, report in reports.items()
        for bound in report["bounds"]
    ]
    return _table(("benchmark", "what", "measured", "bound", ""), rows)


def _about(name: str) -> str:
    return ast.get_docstring(ast.parse((_ROOT / f"benchmarks/{name}.py").read_text())) or ""


def _table(columns: Any, rows: Any) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return (
        "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines) + "\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page())
