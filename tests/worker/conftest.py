"""Fixtures: worker processes, all of which are gone when the test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.databases import Database
from tests.workers import WorkerProcess

Start = Callable[..., WorkerProcess]


@pytest.fixture
def start_worker(database: Database, tmp_path: Path) -> Iterator[Start]:
    """Starts `pgqueue worker` with these options, in `tmp_path`."""
    processes: list[WorkerProcess] = []

    def start(*options: str, dsn: str = database.dsn, **environment: str) -> WorkerProcess:
        processes.append(WorkerProcess(tmp_path, dsn, *options, environment=environment))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
