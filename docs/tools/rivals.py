"""Writes the figures into docs/explanation/comparison.md, and three of them into docs/why.md: `make figures`.

Ours are in benchmarks/figures.json, by `make measure`; those of other queues in benchmarks/rivals.json, by `make rivals
RIVALS=--save` on a quiet machine, once there are any.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from benchmarks.rivals.__main__ import SAVED
from benchmarks.rivals.measure import EVERY_LIFE, EVERY_START
from benchmarks.rivals.queues import QUEUES

_ROOT = Path(__file__).parents[2]
PAGE = _ROOT / "docs/explanation/comparison.md"
WHY = _ROOT / "docs/why.md"
FIGURES = _ROOT / "benchmarks/figures.json"
OURS = "pgqueue"

# Of each: what it is, its benchmark, its bound there, and how it is written.
_OURS: tuple[tuple[str, str, str, Callable[[float], str]], ...] = (
    (
        "drain of 200,000 no-op jobs against two pgbench clients that reserve and complete in batches of 500",
        "drain",
        "Part of the limit, one worker, async handlers",
        lambda ratio: f"{ratio:.2f} of their speed",
    ),
    (
        "a single enqueue, 32 clients, against a plain INSERT",
        "enqueue_cost",
        "time of: enqueue, a worker busy; in times of: INSERT, a worker busy",
        lambda ratio: f"{1 / ratio:.2f} of its speed",
    ),
    (
        "enqueue to the start of the handler, idle worker, p50, against an INSERT with NOTIFY until it is heard",
        "start_latency",
        "p50, ",
        lambda ratio: f"{ratio:.1f} times",
    ),
    (
        "server CPU of a job's whole life when jobs come one by one, 20 a second, against a bare loop",
        "trickle",
        "CPU to the bare loop, 20 jobs/s",
        lambda ratio: f"{ratio:.1f} times",
    ),
    (
        "drain beside an old snapshot, a million jobs in batches of 500: the slowest tenth against the fastest",
        "held_snapshot",
        "Slowest tenth to fastest: many calls, batches of 500, snapshot",
        lambda ratio: f"{ratio:.2f}",
    ),
)
_OURS_TITLE = "## Figures: ours"
_OURS_HEAD = "| what | figure | command |\n|---|---|---|\n"

_TITLE = "## Figures: ours and others', on one machine"
# What a figure is, how it is written, and whether more is better.
_MEASURES = {
    "jobs_per_s": ("drain, jobs/s", ",.0f", True),
    "drain_cpu_us": ("server CPU of a drained job, µs", ".0f", False),
    "two_jobs_per_s": ("drain by two processes, jobs/s", ",.0f", True),
    "start_p50_ms": ("start of a handler, p50, ms", ".1f", False),
    "start_p99_ms": ("start of a handler, p99, ms", ".1f", False),
    "life_cpu_ms": (f"server CPU of a job's life at {1000 // EVERY_LIFE} jobs/s, ms", ".1f", False),
    "life_transactions": ("transactions of a job's life", ".1f", False),
}
# What docs/why.md shows of them.
_WHY_HEAD = "| what | pgqueue | the best of the others |\n|---|---|---|\n"
_WHY = {
    "start_p50_ms": ("start of a handler after the commit of its enqueue, p50", "{:.1f} ms"),
    "life_cpu_ms": (f"server CPU of a job's whole life, {1000 // EVERY_LIFE} jobs a second", "{:.1f} ms"),
    "jobs_per_s": ("jobs that one worker process ends", "{:,.0f} a second"),
}
_TEXT = f"""\
`make rivals` measured this on {{day}}: PostgreSQL {{server}}, on the same machine as workers and producers, durable
commits, no-op jobs, one worker process each. {{title}}. The programs are in
`benchmarks/rivals/`; report a setting that does another queue an injustice.

- Drain: from the start of the first handler until no job is undone, after the tables were vacuumed; all rounds in
  parentheses. The server's CPU is of the same time. By two processes: the same jobs, from the first start in either.
  Two of ours reached 0.71 of graphile-worker's two when that was measured last, before this table had a column for it.
- No history: graphile-worker deletes a job that has ended; ours keeps a row. `pgqueue-no-history` is ours with
  `retention_succeeded` zero, which does the same work as graphile-worker: hold these two against each other.
- Start: a job each {EVERY_START} ms to an idle worker, from the return of the enqueue, which is after its commit,
  to the first line of the handler.
- Life: enqueue, work and end of a job, with the heartbeats, polls and maintenance of that time. A few transactions
  are of the measurement.
"""


def page(text: str, saved: Path = SAVED) -> str:
    """Return the page with its figures anew; the section of others stays as it stands while nothing was saved."""
    start = text.index(_OURS_HEAD, text.index(f"{_OURS_TITLE}\n")) + len(_OURS_HEAD)
    end = text.index("\n\n", start) + 1
    text = f"{text[:start]}{_ours(orjson.loads(FIGURES.read_bytes()))}{text[end:]}"
    if not saved.exists():
        return text
    start = text.index(f"{_TITLE}\n")
    end = text.index("\n## ", start) + 1
    return f"{text[:start]}{section(orjson.loads(saved.read_bytes()))}\n{text[end:]}"


def why(text: str, saved: Path = SAVED) -> str:
    """Return the page for those who decide, with its three figures anew."""
    measured = {
        name: each for name, each in orjson.loads(saved.read_bytes())["figures"].items() if "not_run" not in each
    }
    others = {name: each for name, each in measured.items() if name != OURS and not name.startswith(f"{OURS}-")}
    rows = []
    for key, (what, form) in _WHY.items():
        best = _best(key, others)
        ours, theirs = form.format(measured[OURS][key]), form.format(others[best][key])
        rows.append(f"| {what} | {ours} | {theirs} ({best}) |\n")
    start = text.index(_WHY_HEAD) + len(_WHY_HEAD)
    return f"{text[:start]}{''.join(rows)}{text[text.index(chr(10) * 2, start - 1) + 1 :]}"


def _ours(reports: Mapping[str, Any]) -> str:
    rows = []
    for what, name, bound, write in _OURS:
        found = [each["measured"] for each in reports.get(name, {}).get("bounds", []) if each["what"].startswith(bound)]
        figure = write(found[0]) if found else "not measured since"
        rows.append(f"| {what} | {figure} | `make bench BENCH={name}` |\n")
    return "".join(rows)


def section(report: Mapping[str, Any]) -> str:
    """Return the section: what each figure is, the table, where ours is behind, and the settings."""
    figures = report["figures"]
    measured = {name: each for name, each in figures.items() if "not_run" not in each}
    lines = [["", *(what for what, _, _ in _MEASURES.values())], ["---"] * (1 + len(_MEASURES))]
    for name, each in figures.items():
        if name in measured:
            lines.append([name, *(_cell(name, key, measured) for key in _MEASURES)])
        else:
            lines.append([name, f"not run: {each['not_run']}", *["-"] * (len(_MEASURES) - 1)])
    # Ours alone: another queue may have been left out on purpose.
    for queue in QUEUES:
        if queue.is_ours and queue.name not in figures:
            lines.append([queue.name, "not measured in this run", *["-"] * (len(_MEASURES) - 1)])
    title = re.sub(r"^rivals: no-op jobs, one worker process, each", "Each", report["title"])
    settings = [
        f"- {name}, {each['version']}, a drain of {each['drained']:,} jobs: {each['settings']}."
        for name, each in figures.items()
    ]
    return "\n".join(
        [
            f"{_TITLE}\n",
            _TEXT.format(day=report["day"], server=report["server"], title=title),
            *(f"| {' | '.join(line)} |" for line in lines),
            "\nBold is where ours is behind:\n",
            *(_behind(measured) or ["- nowhere in this run."]),
            "\nThe queues and their settings:\n",
            *settings,
            "",
        ]
    )


def _cell(name: str, key: str, measured: Mapping[str, Mapping[str, Any]]) -> str:
    if key not in measured[name]:
        return "-"
    text = format(measured[name][key], _MEASURES[key][1])
    if key == "jobs_per_s":
        text += f" ({', '.join(format(rate, ',.0f') for rate in measured[name]['jobs_per_s_all'])})"
    return f"**{text}**" if name == OURS and _best(key, measured) != OURS else text


def _best(key: str, measured: Mapping[str, Mapping[str, Any]]) -> str:
    sign = -1 if _MEASURES[key][2] else 1
    # Ours with other settings is not of the others.
    names = (name for name in measured if key in measured[name] and not name.startswith(f"{OURS}-"))
    return min(names, key=lambda name: sign * measured[name][key])


def _behind(measured: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = []
    for key, (what, _, _) in _MEASURES.items():
        best = _best(key, measured) if any(key in each for each in measured.values()) else OURS
        if OURS in measured and best != OURS:
            ratio = measured[OURS][key] / measured[best][key] if measured[best][key] else float("inf")
            lines.append(f"- {what}: {ratio:.2f} times that of {best}.")
    return lines


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    WHY.write_text(why(WHY.read_text()))
