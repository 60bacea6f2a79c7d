"""The package stays readable: short functions, imports that go down only."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from graphlib import TopologicalSorter
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


def test_modules_and_packages_import_in_no_circle() -> None:
    modules = {_name(file): ast.parse(file.read_text()) for file in PACKAGE.rglob("*.py")}
    # By package: which of its modules and packages import which others.
    siblings: defaultdict[tuple[str, ...], defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module, tree in modules.items():
        for imported in _imported(tree) & modules.keys():
            here, there = module.split("."), imported.split(".")
            shared = next(
                (depth for depth, (one, other) in enumerate(zip(here, there, strict=False)) if one != other), None
            )
            # A package and what is in it are no siblings.
            if shared is not None:
                siblings[tuple(here[:shared])][here[shared]].add(there[shared])
    assert len(siblings) > 10
    for graph in siblings.values():
        # Raises CycleError, which names the circle.
        TopologicalSorter(graph).prepare()


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


def _name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(tree: ast.Module) -> set[str]:
    """Return the modules that a module imports, also in functions, but for those that only type checkers see."""
    for_checkers = {
        id(each)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for each in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in for_checkers:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
    return found
