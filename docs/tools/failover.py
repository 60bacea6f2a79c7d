"""Writes the table of docs/operate/failover.md from tests/ha/figures.json: `make figures`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

_ROOT = Path(__file__).parents[2]
PAGE = _ROOT / "docs/operate/failover.md"
FIGURES = _ROOT / "tests/ha/figures.json"

_HEAD = (
    "| scene | acknowledged | to the new primary | to the first job done | acknowledged and lost"
    " | ran twice within a lease |\n"
    "|---|---|---|---|---|---|\n"
)


def page(text: str) -> str:
    """Return the page with its table anew."""
    start = text.index(_HEAD) + len(_HEAD)
    end = text.index("\n\n", start) + 1
    return f"{text[:start]}{_rows(orjson.loads(FIGURES.read_bytes()))}{text[end:]}"


def _rows(scenes: dict[str, dict[str, Any]]) -> str:
    return "".join(
        f"| {scene} | {each['acknowledged']} | {each['seconds to the new primary']} s"
        f" | {each['seconds to the first job done']} s | {each['acknowledged and lost']}"
        f" | {each['ran twice within a lease']} |\n"
        for scene, each in scenes.items()
    )


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
