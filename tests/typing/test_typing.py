"""What users of the package see from type checkers: correct use passes, wrong use is an error."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import pgqueue
from tests.docs import pages

USAGE = Path(__file__).with_name("usage.py")

# Litestar's types of ASGI are not Starlette's.
OTHER_TYPES = {"docs/operate/web.md"}

# The examples, and the pages on which a program has a name.
PROGRAMS = [
    "examples",
    *(page for page in pages.pages() if page not in OTHER_TYPES and any(block.file for block in pages.blocks(page))),
]

# What a reader's own strictness decides, and packages without types.
LEFT_OUT = ("import-not-found", "import-untyped", "index", "var-annotated")


@pytest.mark.long
@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
def test_typed_use_is_right_and_wrong_use_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", tmp_path / "cache", USAGE],
        cwd=USAGE.parents[2],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.skipif(find_spec("basedpyright") is None, reason="basedpyright is not installed")
def test_pyright_reports_an_error_exactly_where_mypy_does() -> None:
    reported = _pyright(USAGE)
    claimed = {n for n, line in enumerate(USAGE.read_text().splitlines()) if "# type: ignore[" in line}
    assert {each["range"]["start"]["line"] for each in reported} == claimed, reported


@pytest.mark.long
@pytest.mark.skipif(
    None in map(find_spec, ("basedpyright", "asyncpg")), reason="basedpyright or asyncpg is not installed"
)
def test_pyright_accepts_what_a_pool_of_asyncpg_lends() -> None:
    assert _pyright(USAGE.with_name("usage_of_asyncpg.py")) == []


def _pyright(file: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--level", "error", "--outputjson", file],
        cwd=USAGE.parents[2],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)["generalDiagnostics"]
    return found


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(pgqueue.__file__).parent / "py.typed").exists()


@pytest.mark.long
@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
@pytest.mark.parametrize("place", PROGRAMS)
def test_programs_that_we_show_are_right_to_a_type_checker(place: str, tmp_path: Path) -> None:
    folder = pages.ROOT
    if place.endswith(".md"):
        folder = tmp_path / "examples"
        for block in pages.blocks(place):
            if block.file:
                (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
                (folder / block.file).write_text(block.text)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file", "", "--check-untyped-defs", "--explicit-package-bases"),
            *(f"--disable-error-code={code}" for code in LEFT_OUT),
            "--cache-dir",
            *(tmp_path.parent / "cache", pages.ROOT / "examples" if folder == pages.ROOT else "."),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
