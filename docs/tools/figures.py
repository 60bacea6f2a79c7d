"""Draws the figures of docs/ from text: `make figures`. No dependency; the same text gives the same bytes.

A figure is a list of boxes on a grid and of arrows between them. It is drawn for a light theme; the style
sheet of the pages turns its colours for a dark one.
"""

from __future__ import annotations

import html
import sys
from dataclasses import dataclass
from pathlib import Path

FIGURES = Path(__file__).parents[1] / "figures"

_STYLE = (
    "text{font-family:system-ui,sans-serif;font-size:14px;fill:#222;text-anchor:middle}"
    ".s{font-size:12px;fill:#555}.b{fill:#eef2ff;stroke:#4453a6;stroke-width:1.5}.f{fill:#e8f6ec;stroke:#2f7d4a}"
    ".x{fill:#f1f1f1;stroke:#999;stroke-dasharray:4 3}.w{fill:#fff3df;stroke:#b07415}"
    ".a{stroke:#444;stroke-width:1.4;fill:none;marker-end:url(#m)}"
)
_MARKER = (
    '<marker id="m" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse">'
    '<path d="M0,0.5L8,4L0,7.5z" fill="#444"/></marker>'
)


@dataclass(frozen=True, slots=True)
class Box:
    """A box around (x, y). `kind`: b a state, f a final one, x what is not visited, w a waiting job."""

    x: int
    y: int
    text: str
    kind: str = "b"
    width: int = 116
    note: str = ""
    height: int = 38


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow along these points; the text stands at (tx, ty)."""

    points: tuple[tuple[int, int], ...]
    text: str = ""
    tx: int = 0
    ty: int = 0


def draw(title: str, width: int, height: int, parts: list[Box | Arrow]) -> str:
    """Return a figure as SVG. `title` is what a screen reader says."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
        f"<title>{html.escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        f"<defs>{_MARKER}</defs>",
    ]
    for part in parts:
        lines += _box(part) if isinstance(part, Box) else _arrow(part)
    return "\n".join([*lines, "</svg>", ""])


def _box(box: Box) -> list[str]:
    corner = f'x="{box.x - box.width // 2}" y="{box.y - box.height // 2}"'
    lines = [f'<rect class="b {box.kind}" {corner} width="{box.width}" height="{box.height}" rx="7"/>']
    rows = [(box.text, ""), *([(box.note, ' class="s"')] if box.note else [])]
    for n, (text, kind) in enumerate(rows):
        y = box.y + 5 + (n * 17 - 8 if len(rows) > 1 else 0)
        lines.append(f'<text{kind} x="{box.x}" y="{y}">{html.escape(text)}</text>')
    return lines


def _arrow(arrow: Arrow) -> list[str]:
    path = " L".join(f"{x},{y}" for x, y in arrow.points)
    lines = [f'<path class="a" d="M{path}"/>']
    if arrow.text:
        lines.append(f'<text class="s" x="{arrow.tx}" y="{arrow.ty}">{html.escape(arrow.text)}</text>')
    return lines


def states() -> str:
    """The states of a job."""
    return draw(
        "waiting becomes executing by reserve; executing becomes succeeded by complete, failed or dead by fail; failed"
        " becomes executing again when its delay is over; blocked becomes waiting when what is ahead ends",
        720,
        330,
        [
            Box(90, 70, "enqueue", "x"),
            Box(250, 70, "waiting", note="due at run_at", width=130, height=46),
            Box(460, 70, "executing", note="under a lease", width=130, height=46),
            Box(640, 70, "succeeded", "f"),
            Box(250, 250, "blocked", "w", note="key, limit or parent", width=150, height=46),
            Box(460, 170, "failed", note="due after its delay", width=150, height=46),
            Box(640, 170, "dead", "f"),
            Box(640, 270, "cancelled", "f"),
            Arrow(((148, 70), (183, 70))),
            Arrow(((315, 62), (393, 62)), "reserve", 354, 54),
            Arrow(((395, 82), (317, 82)), "release, lapse", 355, 99),
            Arrow(((525, 70), (580, 70)), "complete", 553, 60),
            Arrow(((450, 93), (450, 145)), "fail", 434, 122),
            Arrow(((472, 147), (472, 95)), "reserve", 500, 122),
            Arrow(((535, 170), (580, 170)), "no attempts left", 588, 142),
            Arrow(((240, 93), (240, 225)), "behind another", 188, 165),
            Arrow(((262, 227), (262, 95)), "what is ahead ends", 328, 208),
            Arrow(((325, 262), (580, 270)), "cancel, of any live job", 452, 256),
            Arrow(((698, 270), (712, 270), (712, 22), (250, 22), (250, 45))),
            Arrow(((698, 170), (712, 170), (712, 22), (250, 22), (250, 45)), "retry, by hand", 445, 16),
        ],
    )


def claim() -> str:
    """How a claim chooses."""
    return draw(
        "a claim chooses queues, visits their lanes from the head to now, skips locked rows, checks keys and limits,"
        " and turns what it takes into executing",
        760,
        300,
        [
            Box(100, 60, "reserve(10)", note="one statement", width=150, height=46),
            Box(300, 60, "choose queues", note="paused? limit? weight", width=170, height=46),
            Box(510, 60, "visit lanes", note="high priority first", width=160, height=46),
            Box(670, 160, "read from the head", note="up to now, not further", width=170, height=46),
            Box(450, 160, "skip locked rows", note="nothing waits", width=160, height=46),
            Box(240, 160, "key or limit?", note="three probes a key", width=150, height=46),
            Box(100, 250, "blocked", "w", note="leaves the index", width=140, height=46),
            Box(400, 250, "executing", "f", note="new reservation, lease, attempt + 1", width=250, height=46),
            Arrow(((175, 60), (213, 60))),
            Arrow(((385, 60), (428, 60))),
            Arrow(((590, 60), (670, 60), (670, 135))),
            Arrow(((585, 160), (532, 160))),
            Arrow(((370, 160), (317, 160))),
            Arrow(((185, 183), (130, 225)), "behind another", 105, 200),
            Arrow(((280, 183), (350, 225)), "free", 335, 200),
        ],
    )


def heads() -> str:
    """What a claim reads of a lane."""
    dead = [Box(60 + 44 * n, 90, "", "x", width=36, height=46) for n in range(6)]
    ready = [Box(340 + 44 * n, 90, "", width=36, height=46) for n in range(5)]
    later = [Box(576 + 44 * n, 90, "", "w", width=36, height=46) for n in range(4)]
    return draw(
        "one lane of the index, ordered by time: dead entries before the head, ready jobs between head and now, jobs"
        " for later after now; a claim reads only the ready ones",
        760,
        190,
        [
            *dead,
            *ready,
            *later,
            Box(170, 150, "ended jobs that vacuum cannot remove", "x", width=270, height=30),
            Box(428, 150, "ready: what a claim reads", width=210, height=30),
            Box(642, 150, "for later", "w", width=170, height=30),
            Arrow(((308, 40), (308, 124)), "head", 308, 30),
            Arrow(((548, 40), (548, 124)), "now", 548, 30),
            Arrow(((350, 55), (520, 55)), "a claim walks this way", 432, 46),
        ],
    )


def drawn() -> dict[str, str]:
    """Return each figure by its file name."""
    return {f"{each.__name__}.svg": each() for each in (states, claim, heads)}


def main() -> None:
    """Write the figures."""
    FIGURES.mkdir(exist_ok=True)
    for name, text in drawn().items():
        (FIGURES / name).write_text(text)
        sys.stdout.write(f"docs/figures/{name}\n")


if __name__ == "__main__":
    main()
