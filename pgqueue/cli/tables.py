"""Tables as plain text: aligned, and cut to the width of the terminal; as wide as they need be in a file or pipe."""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field

import typer

from pgqueue.logs import printable

_GAP = "  "

# A column that may be cut keeps this many characters.
_LEAST = 6


@dataclass(slots=True)
class Table:
    """Rows of cells under a heading each.

    The columns in `right` are numbers and go to the right; the ones in `cut` lose their ends, marked by …, when the
    table is wider than the terminal.
    """

    headings: tuple[str, ...]
    title: str | None = None
    right: frozenset[str] = frozenset()
    cut: frozenset[str] = frozenset()
    rows: list[list[str]] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        """Add a row; None is an empty cell."""
        self.rows.append(["" if cell is None else on_one_line(cell) for cell in cells])

    def show(self) -> None:
        """Print the table to stdout."""
        if self.title is not None:
            sys.stdout.write(_bold(self.title) + "\n")
        heading, *rows = self.lines(_width())
        sys.stdout.write("\n".join([_bold(heading), *rows]) + "\n")

    def lines(self, width: int | None = None) -> list[str]:
        """Return the line of headings and one line for each row, at most `width` characters long if that can be."""
        table = [list(self.headings), *self.rows]
        widths = [max(map(_length, column)) for column in zip(*table, strict=True)]
        if width is not None:
            self._fit(widths, width)
        return [self._line(row, widths) for row in table]

    def _fit(self, widths: list[int], width: int) -> None:
        able = {
            index: max(_LEAST, _length(heading)) for index, heading in enumerate(self.headings) if heading in self.cut
        }
        over = sum(widths) + len(_GAP) * (len(widths) - 1) - width
        while over > 0 and (left := [index for index, least in able.items() if widths[index] > least]):
            widths[max(left, key=widths.__getitem__)] -= 1
            over -= 1

    def _line(self, row: Iterable[str], widths: list[int]) -> str:
        cells = []
        for heading, cell, width in zip(self.headings, row, widths, strict=True):
            shown = _shortened(cell, width)
            space = " " * (width - _length(shown))
            cells.append(space + shown if heading in self.right else shown + space)
        return _GAP.join(cells).rstrip()


def on_one_line(value: object) -> str:
    """Return a value as text on one line, without control characters."""
    return printable(" ".join(str(value).split()))


def _width() -> int | None:
    return shutil.get_terminal_size((0, 0)).columns or None


def _bold(text: str) -> str:
    return typer.style(text, bold=True) if sys.stdout.isatty() else text


def _length(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(each) else 1 + (unicodedata.east_asian_width(each) in "WF") for each in text)


def _shortened(text: str, width: int) -> str:
    if _length(text) <= width:
        return text
    text = text[: 4 * width]
    while _length(text) > width - 1:
        text = text[:-1]
    return text + "…"
