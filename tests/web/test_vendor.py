"""What is not ours: each file is the one that npm has, with its licence."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

import pytest

import pgqueue.web

VENDOR = Path(pgqueue.web.__file__).with_name("static") / "vendor"
LISTED = tomllib.loads((VENDOR / "vendor.toml").read_text())


@pytest.mark.parametrize("name", LISTED)
def test_a_file_is_the_one_that_was_fetched(name: str) -> None:
    entry = LISTED[name]
    assert hashlib.sha256((VENDOR / entry["file"]).read_bytes()).hexdigest() == entry["sha256"]
    assert entry["version"] in entry["file"]
    assert (VENDOR / entry["license_file"]).read_text().strip()


def test_every_file_is_listed_and_stands_in_the_notice() -> None:
    known = {entry[part] for entry in LISTED.values() for part in ("file", "license_file")} | {"vendor.toml"}
    assert {file.name for file in VENDOR.iterdir()} == known
    notice = (Path(__file__).parents[2] / "NOTICE").read_text()
    assert [entry["package"] for entry in LISTED.values() if entry["package"] not in notice] == []
