"""`pgqueue bench`: what it measures is no matter here, only that it does, and tells."""

from __future__ import annotations

import json

from tests.cli.conftest import Run
from tests.databases import Database


def test_a_benchmark_prints_a_table_and_a_line_of_json(run_process: Run, empty_database: Database) -> None:
    ran = run_process("bench", "schedules", "--dsn", empty_database.dsn, "--scale", "0.1")
    *table, line = ran.out.strip().splitlines()
    assert table[0].startswith("schedules: "), ran.err
    found = json.loads(line)
    assert found["benchmark"] == "schedules"
    [bound] = found["bounds"]
    assert bound["holds"] == (bound["measured"] <= bound["limit"])
    assert ran.code == (0 if found["holds"] else 1)

    as_json = run_process("bench", "schedules", "--dsn", empty_database.dsn, "--small", "--json")
    assert [json.loads(each)["benchmark"] for each in as_json.out.splitlines()] == ["schedules"]
    # It says nothing about another machine, so a small run does not fail on it.
    assert as_json.code == 0


def test_one_that_is_not_there_is_refused_with_those_that_are(run_process: Run) -> None:
    ran = run_process("bench", "nope")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("pgqueue: there is no benchmark 'nope'")
    assert "drain" in ran.err
