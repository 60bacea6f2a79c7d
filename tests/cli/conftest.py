"""Fixtures: the command line, in this process or as a real one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pgqueue import cli
from tests.databases import Database
from tests.workers import environment_without_dsn


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Outcome]


@pytest.fixture
def run(database: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `pgqueue` with these arguments in this process, on the test's database."""
    monkeypatch.setenv("PGQUEUE_DSN", database.dsn)
    # Wide enough that no cell is cut.
    monkeypatch.setenv("COLUMNS", "250")

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["pgqueue", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        captured = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return Outcome(end.value.code, captured.out, captured.err)

    return run


@pytest.fixture
def run_process(tmp_path: Path) -> Run:
    """Runs `python -m pgqueue` with these arguments in `tmp_path`, where no database is configured."""

    def run(*arguments: object, cwd: Path = tmp_path, **environment: str) -> Outcome:
        done = subprocess.run(
            [sys.executable, "-m", "pgqueue", *map(str, arguments)],
            cwd=cwd,
            env=environment_without_dsn() | environment,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run
