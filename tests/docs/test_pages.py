"""README is run: every block of code in it, in order, against a real database."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.databases import Database
from tests.facts import wait_until

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)

# What installs or builds; .ci/run does that.
NOT_HERE = ("make ", "pip install")


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language]


def environment(database: Database) -> dict[str, str]:
    return {
        **os.environ,
        "PGQUEUE_DSN": database.dsn,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory as a reader of README has it: the first Python block in tasks.py."""
    tasks = blocks("python")[0]
    (tmp_path / "tasks.py").write_text(tasks)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "tasks.py").write_text(tasks)
    return tmp_path


def test_every_block_has_a_language_that_is_run() -> None:
    assert {kind for kind, _ in BLOCKS} == {"sh", "sql", "python"}
    assert README.count("```") == 2 * len(BLOCKS)


@pytest.mark.parametrize("block", blocks("sql"))
def test_sql_block_runs(block: str, conn: psycopg.Connection) -> None:
    conn.execute(block.encode())


def test_python_block_enqueues_in_the_callers_transaction(database: Database, conn: psycopg.Connection) -> None:
    conn.execute("create table orders (id bigint)")
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), {"dsn": database.dsn, "__name__": "readme"})
    assert conn.execute("select count(*) from orders").fetchone() == (1,)
    loaded = conn.execute("select count(*), count(distinct key) from pgqueue.jobs where task = 'resize'").fetchone()
    assert loaded == (1000, 10)
    found = conn.execute(
        "select task, queue, ready_at > now() from pgqueue.jobs where task <> 'resize' order by id"
    ).fetchall()
    assert found == [
        ("send_email", "default", False),
        ("confirm", "default", False),
        ("confirm", "later", True),
        ("send_email", "default", False),
        ("recount", "default", False),
        ("pack", "default", False),
    ]


def test_first_job_of_the_reader_runs(database: Database, project: Path) -> None:
    script = next(block for block in blocks("sh") if "pgqueue migrate" in block)
    done = subprocess.run(
        ["bash", "-eu", "-c", script],
        cwd=project,
        env=environment(database),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Hello Ada" in done.stdout
    assert "succeeded" in done.stdout or "succee" in done.stdout


@pytest.mark.parametrize("block", [block for block in blocks("sh") if block.startswith("pgqueue worker")])
def test_worker_of_the_readme_starts_and_stops(
    block: str, database: Database, conn: psycopg.Connection, project: Path
) -> None:
    with subprocess.Popen(shlex.split(block), cwd=project, env=environment(database)) as process:
        try:
            wait_until(lambda: conn.execute("select name from pgqueue.workers").fetchone())
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize("block", [block for block in blocks("sh") if block.startswith("pgqueue limits")])
def test_the_operators_commands_run(block: str, database: Database, conn: psycopg.Connection, tmp_path: Path) -> None:
    conn.execute("select pgqueue.enqueue_many('t', array_fill('{}'::jsonb, '{20}'))")
    done = subprocess.run(
        ["bash", "-eu", "-c", block],
        cwd=tmp_path,
        env=environment(database),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "no worker that said hello" in done.stdout


def test_every_other_shell_block_is_named_as_not_run_here() -> None:
    run = [block for block in blocks("sh") if block.startswith("pgqueue ")]
    rest = [block for block in blocks("sh") if block not in run]
    assert all(line.startswith(NOT_HERE) for block in rest for line in block.splitlines())
