"""Ours and others', on one machine, one server and in turns: `make rivals`, or `python -m benchmarks.rivals NAMES`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson
from rich.console import Console

from ..harness import Bound, Report, Server, median, serving
from .measure import EVERY_LIFE, EVERY_START, Drain, Paced, drain, paced
from .program import NotRunError, install
from .queues import NAMES, QUEUES, Queue

# From which `make figures` writes a section of docs/explanation/comparison.md.
SAVED = Path(__file__).parents[1] / "rivals.json"
_ROUNDS = 11
_JOBS = 20_000
_PACED_JOBS = 300

# What ours is to reach of the fastest of the others in the same run: the bound, whether it is the least, and the aim.
_FASTEST = "graphile-worker-tuned"
_TO_FASTEST = (
    ("pgqueue", "jobs_per_s", 1.0, True, 1.15),
    ("pgqueue-no-history", "jobs_per_s", 1.15, True, 1.3),
    ("pgqueue", "two_jobs_per_s", 0.9, True, 1.0),
    ("pgqueue", "drain_cpu_us", 1.06, False, 0.87),
)

Figures = dict[str, object]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(NAMES)}; default: all")
    parser.add_argument("--jobs", type=int, default=_JOBS, help=f"of a drain; fast queues get more; default: {_JOBS}")
    parser.add_argument(
        "--paced", type=int, default=_PACED_JOBS, help="jobs that come one by one; default: %(default)s"
    )
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="default: %(default)s")
    parser.add_argument("--dsn", help="a server on this machine whose role has CREATEDB; default: a private server")
    parser.add_argument("--save", action="store_true", help=f"write the report to {SAVED.name}, for the pages of docs/")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.names if name not in NAMES]:
        parser.error(f"there is no queue {unknown[0]!r}; there are {', '.join(NAMES)}")
    queues = [queue for queue in QUEUES if not given.names or queue.name in given.names]
    with serving(given.dsn) as server:
        report = compare(server, queues, rounds=given.rounds, jobs=given.jobs, one_by_one=given.paced)
    report.show(Console(width=None if sys.stdout.isatty() else 160))
    line = report.as_json("rivals", server.version)
    sys.stdout.write(line + "\n")
    if given.save:
        save(line, SAVED)
    return 0


def save(line: str, place: Path) -> None:
    """Write a report's line of JSON to a file, with the day."""
    saved = {**orjson.loads(line), "day": time.strftime("%Y-%m-%d", time.gmtime())}
    place.write_bytes(orjson.dumps(saved, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def compare(server: Server, queues: Sequence[Queue], *, rounds: int, jobs: int, one_by_one: int) -> Report:
    """Measure the queues in turns, each time in a new database; report one that cannot be run with the reason."""
    drains: dict[str, list[Drain]] = {queue.name: [] for queue in queues}
    twos: dict[str, list[Drain]] = {queue.name: [] for queue in queues}
    lives: dict[str, list[Paced]] = {queue.name: [] for queue in queues}
    failed: dict[str, str] = {}
    for n in range(rounds):
        # None is always the first, or always after the same one.
        first = n % len(queues)
        for queue in [*queues[first:], *queues[:first]]:
            if queue.name in failed:
                continue
            sys.stderr.write(f"round {n + 1} of {rounds}: {queue.name}\n")
            try:
                install(queue)
                with server.database("rival", empty=True) as dsn:
                    drains[queue.name].append(drain(queue, dsn, _size(queue, jobs)))
                if queue.twice:
                    with server.database("rival", empty=True) as dsn:
                        twos[queue.name].append(drain(queue, dsn, _size(queue, jobs), processes=2))
                if queue.paced:
                    with server.database("rival", empty=True) as dsn:
                        lives[queue.name].append(paced(queue, dsn, one_by_one))
            except NotRunError as error:
                if queue.is_ours:
                    raise
                sys.stderr.write(f"{queue.name} is not run: {error}\n")
                failed[queue.name] = error.why
    figures = {
        queue.name: _about(queue, jobs)
        | (
            {"not_run": failed[queue.name]}
            if queue.name in failed
            else _figures(drains[queue.name], twos[queue.name], lives[queue.name])
        )
        for queue in queues
    }
    return Report(
        f"rivals: no-op jobs, one worker process, each figure the median of {rounds} rounds in turns",
        (
            "",
            "drain, jobs/s",
            "all rounds",
            "us of server CPU",
            "two processes, jobs/s",
            f"start, a job each {EVERY_START} ms: p50 ms",
            "p99 ms",
            f"life at {1000 // EVERY_LIFE} jobs/s: ms of server CPU",
            "transactions",
        ),
        [_row(name, each) for name, each in figures.items()],
        figures,
        _bounds(figures),
    )


def _bounds(figures: Mapping[str, Figures]) -> list[Bound]:
    """Compare ours with the fastest of the others, where both were measured."""
    return [
        Bound(f"{ours}, {measure}, to {_FASTEST}", measured / best, limit, at_least=at_least, aim=aim)
        for ours, measure, limit, at_least, aim in _TO_FASTEST
        if isinstance(measured := figures.get(ours, {}).get(measure), float)
        and isinstance(best := figures.get(_FASTEST, {}).get(measure), float)
    ]


def _size(queue: Queue, jobs: int) -> int:
    return max(round(jobs * queue.times), 20)


def _about(queue: Queue, jobs: int) -> Figures:
    return {"version": queue.version, "settings": queue.settings, "drained": _size(queue, jobs)}


def _figures(drains: Sequence[Drain], twos: Sequence[Drain], lives: Sequence[Paced]) -> Figures:
    found: Figures = {
        "jobs_per_s": median([each.jobs_per_s for each in drains]),
        "jobs_per_s_all": [each.jobs_per_s for each in drains],
        "drain_cpu_us": median([each.cpu_us for each in drains]),
    }
    if twos:
        found["two_jobs_per_s"] = median([each.jobs_per_s for each in twos])
    if lives:
        found |= {
            "start_p50_ms": median([each.start_p50_ms for each in lives]),
            "start_p99_ms": median([each.start_p99_ms for each in lives]),
            "life_cpu_ms": median([each.cpu_ms for each in lives]),
            "life_transactions": median([each.transactions for each in lives]),
        }
    return found


def _row(name: str, figures: Mapping[str, object]) -> tuple[str, ...]:
    if "not_run" in figures:
        return (name, "not run", str(figures["not_run"]), *("-",) * 6)
    every = figures["jobs_per_s_all"]
    assert isinstance(every, list)

    def shown(key: str, form: str) -> str:
        return format(figures[key], form) if key in figures else "-"

    return (
        name,
        shown("jobs_per_s", ",.0f"),
        " ".join(f"{rate:,.0f}" for rate in every),
        shown("drain_cpu_us", ".1f"),
        shown("two_jobs_per_s", ",.0f"),
        shown("start_p50_ms", ".2f"),
        shown("start_p99_ms", ".2f"),
        shown("life_cpu_ms", ".2f"),
        shown("life_transactions", ".2f"),
    )


if __name__ == "__main__":
    sys.exit(main())
