"""The garbage collector of a worker process."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest

from tests.calls import enqueue
from tests.worker.conftest import Start
from tests.workers import write_module

_MODULE = """
import gc, json, pathlib
from pgqueue import App

{first}
app = App()

@app.task
async def look() -> None:
    found = [gc.get_freeze_count(), gc.get_threshold()[0], gc.isenabled()]
    pathlib.Path("found").write_text(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("first", "threshold", "enabled"),
    [("", 10_000, True), ("gc.set_threshold(123)", 123, True), ("gc.disable()", 10_000, False)],
    ids=["by default", "the application's own", "switched off"],
)
def test_what_the_application_has_loaded_is_left_out_of_collections(
    first: str, threshold: int, enabled: bool, conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    write_module(tmp_path, _MODULE.format(first=first))
    enqueue(conn, "look")
    assert start_worker("-r", "jobs", "--until-empty").wait(30) == 0
    frozen, *others = json.loads((tmp_path / "found").read_text())
    assert frozen > 10_000
    assert others == [threshold, enabled]
