"""The example clients in other languages pass the conformance script, each where its toolchain is."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.databases import Database
from tests.proxy import Proxy

SUFFIXES = (".sh", ".ts", ".rb", ".php", ".java", ".go", ".rs")

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
        assert len(one.check_all()) == 11
        one.close()


# What the handler of `fail` does in each client, and what else a handler may do that is no success.
FAILURES = {
    "bash": ('echo "no such order" >&2 && return 1', ["return 1", "printf '\\377\\n' >&2 && return 1"]),
    "typescript": ('throw new Error("no such order")', ["throw new Error()", "throw null", 'throw new Error("a\\0b")']),
    "ruby": ('raise("no such order")', ['raise("")', "raise(NotImplementedError)", 'raise("\\xff\\0")']),
    "php": (
        "throw new RuntimeException('no such order')",
        ["throw new RuntimeException()", "exit(0)", "posix_kill(getmypid(), SIGKILL)", 'throw new Error("\\xff\\0")'],
    ),
    "java": ('throw new IllegalStateException("no such order")', ["throw new Error()", 'throw new Error("\\0")']),
    "go": ('return fmt.Errorf("no such order")', ['return fmt.Errorf("")', 'panic("")', 'panic("\\xff\\x00")']),
    "rust": ('return Err("no such order".into())', ['return Err("".into())', 'panic!("")', 'return Err("\\0".into())']),
}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", conformance.BUILD)
def test_a_handler_that_ends_otherwise_than_well_fails_its_job_alone(
    name: str, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = tmp_path / "clients"
    shutil.copytree(CLIENTS / name, copied / name, ignore=shutil.ignore_patterns("node_modules", "target"))
    monkeypatch.setattr(conformance, "HERE", copied)
    source = next(path for path in (copied / name).rglob("*") if path.suffix in SUFFIXES)
    original, others = FAILURES[name]
    text = source.read_text()
    assert text.count(original) == 1
    with Proxy(database.dsn) if name == "java" else nullcontext(database) as place:
        for number, other in enumerate(others):
            source.write_text(text.replace(original, other))
            (tmp_path / str(number)).mkdir()
            try:
                client = conformance.BUILD[name](tmp_path / str(number), place.dsn)
            except conformance.NotHere as reason:
                pytest.skip(f"not run: {reason}")
            one = conformance.Conformance(name, client, place.dsn, tmp_path)
            with one.worker() as worker:
                failing = one.enqueue("fail", options="max_attempts => 1")
                after = one.enqueue("note")
                one.until(lambda one=one, ids=[after]: one.states(ids) == {"succeeded": 1} or worker.poll() is not None)
                assert worker.poll() is None, f"{other} has ended the worker:\n{one.log.read_text()[-2000:]}"
            assert one.states([failing]) == {"dead": 1}, other
            one.close()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_client_in_typescript_extends_a_lease_while_its_handler_waits_for_a_statement(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = tmp_path / "clients" / "typescript"
    shutil.copytree(CLIENTS / "typescript", copied, ignore=shutil.ignore_patterns("node_modules"))
    monkeypatch.setattr(conformance, "HERE", copied.parent)
    text = (copied / "client.ts").read_text()
    pauses = "await pause(rows[0].seconds, signal)"
    assert text.count(pauses) == 1
    (copied / "client.ts").write_text(text.replace(pauses, 'await db.query("select pg_sleep($1)", [rows[0].seconds])'))
    try:
        client = conformance.BUILD["typescript"](tmp_path, database.dsn)
    except conformance.NotHere as reason:
        pytest.skip(f"not run: {reason}")
    one = conformance.Conformance("typescript", client, database.dsn, tmp_path)
    one.check_a_job_longer_than_its_lease_runs_once()
    one.close()


@pytest.mark.long
def test_the_client_in_bash_ends_when_the_connection_that_listens_is_lost(database: Database, tmp_path: Path) -> None:
    try:
        client = conformance.BUILD["bash"](tmp_path, database.dsn)
    except conformance.NotHere as reason:
        pytest.skip(f"not run: {reason}")
    one = conformance.Conformance("bash", client, database.dsn, tmp_path)
    with one.worker() as worker:
        listens = "select count(pg_terminate_backend(pid)) from pg_stat_activity where query = 'select;'"
        one.until(lambda: one.one(listens) > 0)
        # Not without end, and without a pause, in the loop of an idle worker.
        one.until(lambda: worker.poll() is not None)
    assert worker.returncode == 1
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
        if path.suffix in SUFFIXES and "node_modules" not in path.parts
    ]
    text = source.read_text()
    assert len(text.splitlines()) <= 165
    assert "docs/reference/protocol.md" in text
    called = set(re.findall(r"pgqueue\.(\w+)\(", text))
    assert called == {"enqueue", "hello", "exchange", "idle", "extend", "release", "bye", "beat"}
