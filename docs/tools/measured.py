"""Writes docs/explanation/figures.md and the figures of scale.md from benchmarks/figures.json: `make figures`."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import orjson

from benchmarks.__main__ import NAMES

_ROOT = Path(__file__).parents[2]
PAGE = _ROOT / "docs/explanation/figures.md"
SCALE = _ROOT / "docs/explanation/scale.md"

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


def scale(text: str) -> str:
    """Return the page on the first limit with the measured figures in its sentences anew."""
    reports = orjson.loads((_ROOT / "benchmarks/figures.json").read_bytes())
    wal, drain = reports["wal"]["figures"], reports["drain"]["figures"]
    of_slots = next(each["jobs_per_s"] for name, each in drain.items() if "slots" in name)
    of_nothing = next(each["jobs_per_s"] for name, each in drain.items() if name.startswith("the limit"))
    less, more = wal["no history"]["bytes_per_job"], wal["history kept"]["bytes_per_job"]
    for before, figure, after in (
        (r"\(", f"{less:,.0f}", " bytes instead of "),
        (" bytes instead of ", f"{more:,.0f}", ", by "),
        ("one process ran ", f"{of_slots:,.0f}", r" jobs a\s"),
        ("its whole core for ", f"{1e6 / of_slots:.0f}", " µs a job"),
        ("that run nothing with ", f"{of_nothing:,.0f}", " a second"),
    ):
        text, found = re.subn(f"({before})[\\d,]+({after})", rf"\g<1>{figure}\g<2>", text)
        if found != 1:
            raise ValueError(f"{SCALE.name} has {found} figures between {before!r} and {after!r}, and should have one")
    return text


def _bounds(reports: dict[str, dict[str, Any]]) -> str:
    rows = [
        (
            f"[{name}](#{name})",
            bound["what"],
            f"{bound['measured']:.4g}",
            f"{bound['limit']:g}",
            f"{bound['aim']:g}" if "aim" in bound else "",
            "holds" if bound["holds"] else "**missed**",
        )
        for name, report in reports.items()
        for bound in report["bounds"]
    ]
    return _table(("benchmark", "what", "measured", "bound", "aim", ""), rows)


def _about(name: str) -> str:
    return ast.get_docstring(ast.parse((_ROOT / f"benchmarks/{name}.py").read_text())) or ""


def _table(columns: Any, rows: Any) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return (
        "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines) + "\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page())
    SCALE.write_text(scale(SCALE.read_text()))
