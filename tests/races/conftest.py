"""A race is forced by a lock that the test holds until it sees who waits for it: no timeout may come first."""

from __future__ import annotations

import pytest

from tests.databases import Database, wait_for_locks


@pytest.fixture(autouse=True)
def functions_wait_for_a_minute(request: pytest.FixtureRequest) -> None:
    """A database with the partitions of the migrations has the functions of production, which wait for 5 s."""
    if request.node.get_closest_marker("partitions") is not None:
        database: Database = request.getfixturevalue("database")
        wait_for_locks(database.connect())
