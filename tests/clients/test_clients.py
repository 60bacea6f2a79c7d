"""The example clients in other languages pass the conformance script, each where its toolchain is."""

from __future__ import annotations

import importlib.util
import re
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.databases import Database
from tests.proxy import Proxy

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "clients"

specification = importlib.util.spec_from_file_location("conformance", CLIENTS / "conformance.py")
assert specification is not None
assert specification.loader is not None
conformance = importlib.util.module_from_spec(specification)
sys.modules["conformance"] = conformance
specification.loader.exec_module(conformance)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", conformance.BUILD)
def test_a_client_does_what_every_client_must(name: str, database: Database, tmp_path: Path) -> None:
    # JDBC has no unix sockets.
    with Proxy(database.dsn) if name == "java" else nullcontext(database) as place:
        try:
            client = conformance.BUILD[name](tmp_path, place.dsn)
        except conformance.NotHere as reason:
            pytest.skip(f"not run: {reason}")
        one = conformance.Conformance(name, client, place.dsn, tmp_path)
        assert len(one.check_all()) == 8
        one.close()


# A driver is found, and the compiler refuses: by its first words, as conformance.py calls it.
COMPILERS = {
    "bash": ("bash", "-n"),
    "typescript": ("npm", "run"),
    "ruby": ("ruby", "-c"),
    "php": ("php", "-l"),
    "java": ("javac", "-cp"),
    "go": ("go", "build"),
    "rust": ("cargo", "build"),
}


@pytest.fixture
def toolchain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH on which there is nothing but what a test writes there."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    jar = tmp_path / "postgresql.jar"
    jar.touch()
    monkeypatch.setenv("PGQUEUE_JDBC_JAR", str(jar))
    return programs


@pytest.mark.parametrize("name", conformance.BUILD)
def test_a_client_without_its_toolchain_is_not_run(name: str, toolchain: Path, tmp_path: Path) -> None:
    with pytest.raises(conformance.NotHere):
        conformance.BUILD[name](tmp_path, "host=127.0.0.1 dbname=d")


@pytest.mark.parametrize("name", conformance.BUILD)
def test_a_client_that_does_not_compile_has_failed(
    name: str, toolchain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler, first = COMPILERS[name]
    for program in ("bash", "psql", "stdbuf", "node", "npm", "ruby", "php", "java", "javac", "go", "cargo"):
        file = toolchain / program
        refuses = f'[ "$1" = "{first}" ] && {{ echo "line 3: no"; exit 1; }}\n' if program == compiler else ""
        file.write_text(f"#!/bin/sh\n{refuses}exit 0\n")
        file.chmod(0o755)
    with pytest.raises(conformance.DoesNotCompile, match="line 3: no"):
        conformance.BUILD[name](tmp_path, "host=127.0.0.1 dbname=d")
    monkeypatch.setattr(sys, "argv", ["conformance.py", "--dsn", "host=127.0.0.1 dbname=d", name])
    assert conformance.main() == 1
    assert f"{name}: FAILED" in capsys.readouterr().out


@pytest.mark.parametrize("name", conformance.BUILD)
def test_a_client_fits_on_a_page_and_names_the_protocol(name: str) -> None:
    [source] = [
        path
        for path in sorted((CLIENTS / name).rglob("*"))
        if path.suffix in (".sh", ".ts", ".rb", ".php", ".java", ".go", ".rs") and "node_modules" not in path.parts
    ]
    text = source.read_text()
    assert len(text.splitlines()) <= 150
    assert "docs/reference/protocol.md" in text
    called = set(re.findall(r"pgqueue\.(\w+)\(", text))
    assert called == {"enqueue", "hello", "exchange", "idle", "extend", "release", "bye"}
