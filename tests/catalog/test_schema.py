"""The schema as text, kept in git: a change of SQL is visible in review.

After an intended change: PGQUEUE_WRITE_SCHEMA=1 pytest tests/catalog/test_schema.py
"""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
import pytest

from tests.catalog.dump import dump

SCHEMA = Path(__file__).with_name("schema.txt")


@pytest.mark.partitions
def test_the_schema_is_the_one_in_schema_txt(conn: psycopg.Connection) -> None:
    text = dump(conn)
    if os.environ.get("PGQUEUE_WRITE_SCHEMA"):
        SCHEMA.write_text(text)
    assert text == SCHEMA.read_text(), "an intended change? PGQUEUE_WRITE_SCHEMA=1 pytest " + str(Path(__file__))
