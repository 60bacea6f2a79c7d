"""`make rivals`: that it runs each queue's jobs, and says so when it cannot; the figures do not matter here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from benchmarks.cpu import server_seconds
from benchmarks.harness import Report, Server
from benchmarks.rivals import program
from benchmarks.rivals.__main__ import NAMES, compare
from benchmarks.rivals.measure import flow
from benchmarks.rivals.queues import QUEUES
from tests.databases import Database

MEASURES = ("jobs_per_s", "drain_cpu_us", "start_p50_ms", "start_p99_ms", "life_cpu_ms", "life_transactions")


@contextmanager
def serving(database: Database) -> Iterator[Server]:
    with psycopg.connect(database.dsn) as connection:
        try:
            server_seconds(connection)
        except RuntimeError as error:
            # Its CPU is read from the processes of the server, which run elsewhere: in a container, or at a DSN.
            pytest.skip(str(error))
    server = Server(database.dsn, prefix=database.name)
    try:
        yield server
    finally:
        server.close()


def run(database: Database, *names: str) -> Report:
    with serving(database) as server:
        queues = [queue for queue in QUEUES if queue.name in names]
        return compare(server, queues, rounds=1, jobs=40, one_by_one=20)


def figures(report: Report, name: str) -> Mapping[str, float]:
    found = report.figures[name]
    assert isinstance(found, dict)
    assert "not_run" not in found, found["not_run"]
    return found


@pytest.mark.long
def test_it_measures_our_own_queue(empty_database: Database) -> None:
    found = figures(run(empty_database, "pgqueue"), "pgqueue")
    assert [name for name in MEASURES if name not in found] == []
    assert found["drained"] == 400
    assert found["two_jobs_per_s"] > 0
    assert found["jobs_per_s"] > 0
    # The enqueue, and a claim that may end the job before; some of them are not reported yet.
    assert 1 < found["life_transactions"] < 20
    assert 0 < found["start_p99_ms"] < 5000


@pytest.mark.long
def test_it_measures_a_flow_of_several_producers_and_workers(empty_database: Database) -> None:
    for rate in (50, 0):
        with serving(empty_database) as server, server.database("rival", empty=True) as dsn:
            found = flow(QUEUES[0], dsn, rate, producers=2, workers=2, seconds=0.2)
        assert found.p50 <= found.p99 < 5000
        assert found.rate > 0
        assert found.cpu_us > 0


@pytest.mark.long
def test_it_measures_ours_without_history(empty_database: Database) -> None:
    found = figures(run(empty_database, "pgqueue-no-history"), "pgqueue-no-history")
    assert found["jobs_per_s"] > 0
    assert "life_cpu_ms" not in found


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["graphile-worker-tuned", "procrastinate"])
def test_it_installs_and_measures_another_queue(name: str, empty_database: Database) -> None:
    try:
        program.install(QUEUES[NAMES.index(name)])
    except program.NotRunError as error:
        if re.search("network|[Cc]onnection|not installed", str(error)):
            # Without a network, or without npm; any other failure is one of the pins.
            pytest.skip(f"{name} cannot be installed: {error}")
        raise
    found = figures(run(empty_database, name), name)
    assert [each for each in MEASURES if each not in found] == []
    assert found["jobs_per_s"] > 0
    assert found["life_transactions"] > 1


def test_a_queue_that_cannot_be_installed_is_reported_with_the_reason(
    empty_database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "BUILD", tmp_path)
    monkeypatch.setattr(program.shutil, "which", lambda _: None)
    report = run(empty_database, "pg-boss")
    assert report.rows == [("pg-boss", "not run", "npm is not installed", *("-",) * 6)]
    assert "pg-boss is not run: npm is not installed" in capsys.readouterr().err


def test_each_version_is_pinned_and_each_queue_has_a_small_program() -> None:
    folder = Path(program.__file__).parent
    for queue in QUEUES:
        assert (queue.version == "this one") == queue.is_ours
        assert len((folder / queue.program).read_text().splitlines()) <= 60
