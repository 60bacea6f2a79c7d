"""`pgqueue bench`: that it measures and reports; the figures do not matter here."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from benchmarks import harness
from benchmarks.harness import WIDE, Bound, Report
from tests.cli.conftest import Run
from tests.databases import Database

pytestmark = pytest.mark.long


def test_a_benchmark_prints_a_table_and_a_line_of_json(run_process: Run, empty_database: Database) -> None:
    ran = run_process("bench", "schedules", "--dsn", empty_database.dsn, "--scale", "0.1")
    *table, line = ran.out.strip().splitlines()
    assert table[0].startswith("schedules: "), ran.err
    found = json.loads(line)
    assert found["benchmark"] == "schedules"
    [bound] = found["bounds"]
    assert bound["holds"] == (bound["measured"] <= bound["limit"])
    assert ran.code == (0 if found["holds"] else 1)


def test_a_small_run_fails_on_ratios_far_out_of_their_bounds_and_on_nothing_else() -> None:
    missed = [
        Bound("a little above", 1.5, 1.0),
        Bound("a little below", 0.5, 1.0, at_least=True),
        Bound("milliseconds of this machine", 100.0, 1.0, is_ratio=False),
    ]
    assert [bound.holds for bound in missed] == [False] * 3
    assert [bound.holds_widely for bound in missed] == [True] * 3
    far = [Bound("far above", 1.0 + WIDE, 1.0), Bound("far below", 0.9 / WIDE, 1.0, at_least=True)]
    assert [bound.holds_widely for bound in far] == [False] * 2


def test_an_aim_is_shown_and_fails_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("b", ("", "x"), [("a", "1")], {}, [Bound("a to b", 0.65, 0.62, at_least=True, aim=0.7)])
    assert report.holds
    report.show(Console(width=200))
    assert "a to b: 0.65, the bound of 0.62 holds; the aim is 0.7" in capsys.readouterr().out
    [bound] = json.loads(report.as_json("b", "18"))["bounds"]
    assert (bound["limit"], bound["aim"]) == (0.62, 0.7)


@pytest.mark.parametrize(("scale", "rounds"), [("1", 11), ("2", 11), ("0.05", 3)])
def test_a_full_run_takes_a_median_of_eleven(scale: str, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(harness.SCALE, scale)
    assert harness.rounds() == rounds


def test_an_unknown_benchmark_is_refused_with_the_known_ones(run_process: Run) -> None:
    ran = run_process("bench", "nope")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("pgqueue: there is no benchmark 'nope'")
    assert "drain" in ran.err
