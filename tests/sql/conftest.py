"""The main paths run twice: also in a database as other people have it, see `Cloner.elsewhere`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.databases import Cloner, Database

MAIN_PATHS = {
    *("test_batch", "test_cron", "test_dedupe", "test_groups", "test_handoff", "test_keys", "test_limits"),
    *("test_operating", "test_outcomes", "test_retry_policies", "test_schedules", "test_search", "test_steps"),
    *("test_story", "test_workers"),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in MAIN_PATHS and "database" in metafunc.fixturenames:
        metafunc.parametrize("database", ["", "elsewhere"], indirect=True)


@pytest.fixture
def database(cloner: Cloner, request: pytest.FixtureRequest) -> Iterator[Database]:
    if getattr(request, "param", "") == "elsewhere":
        database = cloner.elsewhere()
    else:
        database = cloner.migrated(partitions=request.node.get_closest_marker("partitions") is not None)
    yield database
    cloner.drop(database)
