"""`pgqueue bench`, which is `python -m benchmarks`: each figure beside a limit or a baseline of the same run."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import orjson
from rich.console import Console

from .harness import SCALE, WIDE, Report, serving

# In the order of what a reader asks first. Each is a module with a function `run`.
NAMES = (
    "drain",
    "enqueue_cost",
    "start_latency",
    "trickle",
    "flow",
    "startup",
    "transaction",
    "held_snapshot",
    "reserve_flat",
    "many_queues",
    "wal",
    "idle_fleet",
    "memory",
    "sampling",
    "schedules",
    "keys",
    "rules",
    "fair",
    "long_jobs",
    "workflows",
    "pages",
    "samples",
    "logs",
)
# Those that take seconds.
SMALL = ("drain", "enqueue_cost", "held_snapshot", "reserve_flat", "wal", "sampling")
_SMALL_SCALE = 0.05
# The last report of each, from which `make figures` writes docs/explanation/figures.md.
SAVED = Path(__file__).with_name("figures.json")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(NAMES)}; default: all")
    parser.add_argument("--dsn", help="a server whose role has CREATEDB; default: a private server for each benchmark")
    parser.add_argument("--scale", type=float, help="times as many jobs, or as long; default: 1")
    parser.add_argument(
        "--small",
        action="store_true",
        help=f"{', '.join(SMALL)} at a scale of {_SMALL_SCALE:g}; fails on ratios {WIDE:g} times beyond their bounds",
    )
    parser.add_argument("--rivals", action="store_true", help="flow: the other queues of `make rivals` beside ours")
    parser.add_argument("--json", action="store_true", help="print the JSON lines only")
    parser.add_argument("--save", action="store_true", help=f"write them to {SAVED.name} too, for the pages of docs/")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
    return run(
        options.names,
        dsn=options.dsn,
        scale=options.scale,
        small=options.small,
        as_json=options.json,
        save=options.save,
        rivals=options.rivals,
    )


def run(
    names: Sequence[str],
    *,
    dsn: str | None = None,
    scale: float | None = None,
    small: bool = False,
    as_json: bool = False,
    save: bool = False,
    rivals: bool = False,
) -> int:
    """Run the benchmarks of these names, or all; return 1 when a bound is missed, else 0.

    `save`: keep each report in SAVED, in place of the last one of its name. `rivals`: beside ours, in `flow`.
    """
    if scale is not None or small:
        # Read when a benchmark is imported, here and in the processes that it starts.
        os.environ[SCALE] = str(scale if scale is not None else _SMALL_SCALE)
    console = Console(quiet=as_json, width=None if sys.stdout.isatty() else 120)
    all_hold = True
    for name in names or (SMALL if small else NAMES):
        benchmark = importlib.import_module(f"{__package__}.{name}")
        with serving(dsn) as server:
            report: Report = benchmark.run(server, **({"rivals": True} if rivals and name == "flow" else {}))
        report.show(console, widely=small)
        line = report.as_json(name, server.version)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        if save:
            _save(name, line)
        all_hold = all_hold and (report.holds_widely if small else report.holds)
    return 0 if all_hold else 1


def _save(name: str, line: str) -> None:
    saved = orjson.loads(SAVED.read_bytes()) if SAVED.exists() else {}
    saved[name] = {**orjson.loads(line), "day": time.strftime("%Y-%m-%d", time.gmtime())}
    ordered = {each: saved[each] for each in NAMES if each in saved}
    SAVED.write_bytes(orjson.dumps(ordered, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


if __name__ == "__main__":
    sys.exit(main())
