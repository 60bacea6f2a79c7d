"""The package stays readable: short functions, imports that go down only."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pgqueue

PACKAGE = Path(pgqueue.__file__).parent
PROJECT = PACKAGE.parent / "pyproject.toml"


def test_no_function_is_longer_than_60_lines() -> None:
    long = {
        f"{file.name}: {node.name}"
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno >= 60
    }
    assert long == set()


def test_every_package_has_floors_that_name_all_its_modules() -> None:
    contracts = tomllib.loads(PROJECT.read_text())["tool"]["importlinter"]["contracts"]
    layered = [each for each in contracts if each["type"] == "layers"]
    assert all(each["exhaustive"] for each in layered)
    # A package with a single module beside its __init__ has no floors; Django dictates where its commands stand.
    packages = {
        ".".join(file.parent.relative_to(PACKAGE.parent).parts)
        for file in PACKAGE.rglob("__init__.py")
        if len(list(file.parent.glob("*.py"))) > 2 and "management" not in file.parts
    }
    assert packages - {each["containers"][0] for each in layered} == set()
