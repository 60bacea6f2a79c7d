"""The stage of the checker's own tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.stage import Stage
from tests.databases import Database


@pytest.fixture
def stage(database: Database, tmp_path: Path) -> Stage:
    return Stage(database, tmp_path)
