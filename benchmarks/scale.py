"""How many jobs a second do cores, databases and batches give? A model over the measured cost of a job.

    python -m benchmarks.scale calibrate     measure the cost of a job here, into benchmarks/scale.json
    python -m benchmarks.scale               print the table, and draw docs/explanation/scale.svg; needs matplotlib

It measures processor time, not elapsed time, so time spent waiting for a processor does not count. For the whole life
of a job (enqueue, reserve, complete) in batches of b, the session's server process spends `fixed / b + each` seconds of
a core. The other limits are the machine's: how many commits and how many bytes of WAL it writes in a second.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

from .harness import Connection, serving

FIGURES = Path(__file__).with_suffix(".json")
PLOT = Path(__file__).parents[1] / "docs" / "explanation" / "scale.svg"

BATCHES = (1, 10, 100, 500)
CORES = (1, 2, 4, 8, 16, 32, 64)

# Assumptions about the server, not measured; replace them with the figures of yours. Commits a second of one disk with
# group commit, and bytes of WAL a second.
COMMITS = 20_000.0
WAL = 200e6
# Each doubling of the cores gives 1.8 times the work, since sessions share locks and buffers: a guess from published
# pgbench figures.
DOUBLING = 1.8


@dataclass(frozen=True, slots=True)
class Cost:
    """What a job costs: seconds of a core for each batch (`fixed`) and for each job in it, and bytes of WAL."""

    fixed: float
    each: float
    wal: float

    def seconds(self, batch: int) -> float:
        """Seconds of a core for a job in batches of this size."""
        return self.fixed / batch + self.each


@dataclass(frozen=True, slots=True)
class Limit:
    """The most jobs a second, and the resource that runs out first."""

    jobs: float
    by: str


def limit(cost: Cost, cores: int, databases: int, batch: int) -> Limit:
    """Return the lowest limit of a number of databases, each on a server of its own with this many cores."""
    found = [
        Limit(DOUBLING ** (cores.bit_length() - 1) / cost.seconds(batch), "cores"),
        # Three commits for a batch: enqueue, claim, complete.
        Limit(COMMITS / 3 * batch, "commits"),
        Limit(WAL / cost.wal, "WAL"),
    ]
    first = min(found, key=lambda each: each.jobs)
    return Limit(first.jobs * databases, first.by)


def calibrate(jobs: int) -> Cost:
    """Measure the cost of a job on a private server. The WAL is that of the largest batches."""
    with serving(None) as server, server.database("scale") as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        pid = conn.info.backend_pid
        points = []
        wal = 0.0
        for batch in BATCHES:
            number = max(batch, jobs if batch > 1 else jobs // 5)
            _round(conn, batch, batch)
            before, log = _cpu(pid), _wal(conn)
            _round(conn, number, batch)
            points.append((1 / batch, (_cpu(pid) - before) / number))
            wal = (_wal(conn) - log) / number
    fixed, each = _line(points)
    return Cost(fixed, each, wal)


def _round(conn: Connection, number: int, batch: int) -> None:
    for _ in range(0, number, batch):
        conn.execute("select count(*) from pgqueue.enqueue_many('t', array_fill('{}'::jsonb, array[%s]))", [batch])
        conn.execute(
            "select pgqueue.complete_many(array_agg(r.id), array_agg(r.reservation)) from pgqueue.reserve('w', %s) r",
            [batch],
        )


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _wal(conn: Connection) -> float:
    row = conn.execute("select (pg_current_wal_insert_lsn() - '0/0')::float8").fetchone()
    assert row is not None
    return float(str(row[0]))


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit y = slope * x + start by least squares of the relative error: large y count no more than small ones."""
    weights = [1 / y**2 for _, y in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    over = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True))
    under = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    slope = over / under
    return slope, max(mean_y - slope * mean_x, 1e-9)


def read() -> Cost:
    """Return the cost that was measured last."""
    return Cost(**json.loads(FIGURES.read_text()))


def table(cost: Cost) -> str:
    """Return the limits as a Markdown table."""
    lines = ["| cores | " + " | ".join(f"batches of {batch}" for batch in BATCHES) + " |"]
    lines.append("|---|" + "---|" * len(BATCHES))
    for cores in CORES:
        cells = [limit(cost, cores, 1, batch) for batch in BATCHES]
        lines.append(f"| {cores} | " + " | ".join(f"{each.jobs:,.0f} ({each.by})" for each in cells) + " |")
    return "\n".join(lines)


def draw(cost: Cost, place: Path) -> None:
    """Draw jobs a second against cores, for one and for three databases."""
    import matplotlib  # noqa: PLC0415

    matplotlib.use("svg")
    # With a fixed salt (and no date, below) the same figures give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "pgqueue"
    from matplotlib import pyplot  # noqa: PLC0415

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for number, batch in enumerate(BATCHES):
        for databases, style in ((1, "-"), (3, "--")):
            values = [limit(cost, cores, databases, batch).jobs for cores in CORES]
            label = f"batches of {batch}" if databases == 1 else None
            axes.plot(CORES, values, style, color=f"C{number}", label=label)
    axes.set(xscale="log", yscale="log", xlabel="cores of each server", ylabel="jobs a second, whole life")
    axes.set_xticks(CORES, [str(cores) for cores in CORES])
    axes.set_title("Model: one database (solid), three databases (dashed)")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(place, metadata={"Date": None})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    parser.add_argument("what", nargs="?", choices=("calibrate", "draw"), default="draw")
    parser.add_argument("--jobs", type=int, default=20_000, help="jobs of each calibration run")
    given = parser.parse_args(arguments)
    if given.what == "calibrate":
        cost = calibrate(given.jobs)
        found = {name: getattr(cost, name) for name in ("fixed", "each", "wal")}
        FIGURES.write_text(json.dumps({name: float(f"{value:.4g}") for name, value in found.items()}, indent=2) + "\n")
    cost = read()
    sys.stdout.write(f"{cost}\n\n{table(cost)}\n")
    if given.what == "draw":
        draw(cost, PLOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
