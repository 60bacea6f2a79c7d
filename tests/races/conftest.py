"""A race is forced by a lock that the test holds until it sees who waits for it: no timeout may come first."""

from __future__ import annotations

import pytest

from tests.databases import Database, wait_for_locks


@pytest.fixture
def functions_wait_for_a_minute(database: Database) -> None:
    """A database with the partitions of the migrations has the functions of production, which wait for 5 s."""
    wait_for_locks(database.connect())
