"""`python -m benchmarks [name ...] [--dsn DSN] [--json]`; exit code 1 when a bound is missed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from rich.console import Console

from benchmarks import (
    drain,
    enqueue_cost,
    held_snapshot,
    idle_fleet,
    keys,
    memory,
    reserve_flat,
    sampling,
    schedules,
    start_latency,
    wal,
)
from benchmarks.harness import Report, Server, serving

_BENCHMARKS: dict[str, Callable[[Server], Report]] = {
    "reserve_flat": reserve_flat.run,
    "held_snapshot": held_snapshot.run,
    "start_latency": start_latency.run,
    "drain": drain.run,
    "idle_fleet": idle_fleet.run,
    "memory": memory.run,
    "enqueue_cost": enqueue_cost.run,
    "wal": wal.run,
    "sampling": sampling.run,
    "schedules": schedules.run,
    "keys": keys.run,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(_BENCHMARKS)}; default: all")
    parser.add_argument("--dsn", help="a server whose role has CREATEDB; default: a private server for each benchmark")
    parser.add_argument("--json", action="store_true", help="print the JSON lines only")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in _BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(_BENCHMARKS)}")

    console = Console(quiet=options.json, width=None if sys.stdout.isatty() else 120)
    all_hold = True
    for name in options.names or _BENCHMARKS:
        with serving(options.dsn) as server:
            report = _BENCHMARKS[name](server)
        report.show(console)
        sys.stdout.write(report.as_json(name, server.version) + "\n")
        sys.stdout.flush()
        all_hold = all_hold and report.holds
    return 0 if all_hold else 1


if __name__ == "__main__":
    sys.exit(main())
