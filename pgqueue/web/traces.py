"""A traceback of Python in frames: those of the application, and those of libraries, which fold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.*)')
_PACKAGE = re.compile(r"[/\\](?:site|dist)-packages[/\\](?P<name>[^/\\]+)")
_PYTHON = re.compile(r"[/\\]lib[/\\]python\d|^<|[/\\]pgqueue[/\\](?:worker|db|app|middleware)")

# Frames that are read.
_MOST = 200


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame: file, line, function, the line of code; `package`, "" for the application's own."""

    file: str
    line: str
    function: str
    code: str
    package: str


@dataclass(frozen=True, slots=True)
class Part:
    """Frames that follow each other, of the application (`packages` is "") or of libraries; or what was `raised`."""

    frames: Sequence[Frame]
    packages: str = ""
    raised: str = ""


def parse(text: object) -> list[Part]:
    """Return the parts of a traceback, in its order; [] for one that is not of this form, which is shown as it is."""
    if not isinstance(text, str) or re.search(r"^ *[|+] ", text, re.MULTILINE):
        return []
    items: list[Frame | str] = []
    for line in text.splitlines():
        match = _FRAME.match(line)
        if match:
            items.append(Frame(match["file"], match["line"], match["function"], "", _package_of(match["file"])))
        elif line.startswith("    ") and items and isinstance(items[-1], Frame):
            # Marks below the code say little without a fixed width.
            if set(line.strip()) - set("^~"):
                last = items[-1]
                code = f"{last.code}\n{line.strip()}" if last.code else line.strip()
                items[-1] = Frame(last.file, last.line, last.function, code, last.package)
        elif line.strip() and not line.startswith("Traceback (most recent call last)"):
            if items and isinstance(items[-1], str):
                items[-1] += f"\n{line}"
            else:
                items.append(line)
    frames = [each for each in items if isinstance(each, Frame)]
    if not frames or len(frames) > _MOST:
        return []
    return _grouped(items)


def _grouped(items: Sequence[Frame | str]) -> list[Part]:
    parts: list[Part] = []
    for kind, group in groupby(items, lambda each: "raised" if isinstance(each, str) else str(bool(each.package))):
        if kind == "raised":
            parts += [Part((), raised=each) for each in group if isinstance(each, str)]
            continue
        frames = [each for each in group if isinstance(each, Frame)]
        parts.append(Part(frames, ", ".join(sorted({each.package for each in frames} - {""}))))
    return parts


def _package_of(file: str) -> str:
    match = _PACKAGE.search(file)
    if match:
        return match["name"].removesuffix(".py")
    if _PYTHON.search(file):
        return "pgqueue" if "pgqueue" in file else "Python"
    return ""
