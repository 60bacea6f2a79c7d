"""`pgqueue web` over a database that shows nothing: it says so at its start."""

from __future__ import annotations

import pytest
import uvicorn

from tests.cli.conftest import Run
from tests.databases import Database


@pytest.fixture(autouse=True)
def not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn, "run", lambda *_, **__: None)


def test_a_database_without_the_queue_is_named_at_the_start(run: Run, empty_database: Database) -> None:
    done = run("web", "--dsn", empty_database.dsn)
    assert done.code == 0
    [warning, _] = done.err.splitlines()
    assert warning.startswith("pgqueue: the queue is not installed in pgqueue_test_")
    assert warning.endswith("; run: pgqueue migrate")


def test_a_database_that_cannot_be_reached_is_named_at_the_start(run: Run, database: Database) -> None:
    done = run("web", "--dsn", database.dsn, "--dsn", "host=127.0.0.1 port=1 dbname=away password=secret")
    assert done.code == 0
    [warning, _] = done.err.splitlines()
    assert warning.startswith("pgqueue: away on 127.0.0.1 cannot be used now: connection")
    assert "secret" not in warning


def test_a_database_that_can_be_used_is_not_mentioned(run: Run) -> None:
    [line] = run("web").err.splitlines()
    assert line.startswith("The pages are at http://127.0.0.1:8081/")
