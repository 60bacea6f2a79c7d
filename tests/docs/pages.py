"""Reads the Markdown pages of the repository and runs their code blocks, top to bottom, as a reader would.

One page has one database, one directory and one Python namespace, so a later block may use what an earlier one made.
A Python block whose first line is a comment with a file name (`# tasks.py`) is written to that file.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from typer.testing import CliRunner

from pgqueue import cli
from tests.facts import wait_until

ROOT = Path(__file__).parents[2]

# Commands that are not run here, and why.
NOT_RUN = {
    "make ": "builds the environment that these tests run in; .ci/run calls it",
    "mkdir first-job": "the tests have a directory for each page",
    "cd first-job": "the tests have a directory for each page",
    "python3 -m venv": "an environment for the next line",
    "pip install": "installs from a registry; .ci/run installs both distributions",
    "pgqueue dev": "runs until Ctrl-C; tests/cli/test_dev.py starts it",
    "pgqueue demo": "takes a server of its own and ten seconds; tests/cli/test_commands.py runs it",
    "pgqueue server": "the tests have a database of their own; tests/cli starts this one",
    "export PGQUEUE_DSN=": "the tests have a database of their own",
    "pgqueue psql": "wants a terminal, and psql; tests/cli runs it",
}

# Languages of blocks that are not run, and why. Output, drawings, and commands that would take the
# schema away; rules of a monitor, which tests/docs/test_runbooks.py reads; settings of an agent, which
# tests/cli/test_mcp.py reads; producers in another language.
SHOWN = {"text", "yaml", "json", "ts"}


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. `place` is the page and the line of its fence, as an editor opens it."""

    place: str
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The file to write it to, when its first line names one."""
        named = re.match(r"# ([\w/]+\.py)\n", self.text)
        return named[1] if named else None


@dataclass(frozen=True, slots=True)
class SetUp:
    """What a page takes for granted. `files` maps a path to a text; `clean_up` removes what outlives the database."""

    sql: str = ""
    clean_up: str = ""
    files: dict[str, str] = field(default_factory=dict)


def pages() -> list[str]:
    """Return every page that people read, as a path from the root."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("sql/*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def read(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(page: str) -> list[Block]:
    text = read(page)
    return [
        Block(f"{page}:{text.count(chr(10), 0, found.start()) + 1}", found[1], found[2])
        for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


def prose(page: str) -> str:
    """Return the page without its blocks."""
    return re.sub(r"^```.*?^```$", "", read(page), flags=re.MULTILINE | re.DOTALL)


def commands(block: Block) -> list[str]:
    """Return the commands of a shell block, one a line; continued lines are joined and comments left out."""
    lines = re.sub(r"\\\n\s*", "", block.text).splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def reason_not_to_run(command: str) -> str | None:
    return next((reason for prefix, reason in NOT_RUN.items() if command.startswith(prefix)), None)


class Runner:
    """Runs the blocks of one page in `directory`, on the database of `conn`."""

    def __init__(self, dsn: str, conn: psycopg.Connection, directory: Path) -> None:
        self._dsn = dsn
        self._conn = conn
        self._directory = directory
        self._names: dict[str, Any] = {"__name__": "page"}

    def set_up(self, needed: SetUp) -> None:
        if needed.sql:
            self._conn.execute(needed.sql.encode())
        for name, text in needed.files.items():
            self._write(name, text)

    def run(self, block: Block) -> None:
        """Run one block. An error of it names its place."""
        try:
            match block.language:
                case "sql":
                    self._conn.execute(block.text.encode())
                case "python" if block.file:
                    self._write(block.file, block.text)
                case "python":
                    exec(compile(block.text, block.place, "exec"), self._names)
                case "sh":
                    for script in self._scripts(block):
                        self._shell(script)
        except Exception as error:
            error.add_note(f"in the block at {block.place}")
            raise

    def _scripts(self, block: Block) -> Iterator[str]:
        for command in commands(block):
            if reason_not_to_run(command) is None:
                yield command

    def _shell(self, command: str) -> None:
        if re.fullmatch(r"pgqueue (?!worker)[^|&><$`]*", command):
            # In this process: a new one takes seconds to import what it needs, and tests/cli starts enough of them.
            done = CliRunner().invoke(cli.cli, shlex.split(command, comments=True)[1:])
            assert done.exit_code == 0, f"{command}: exit code {done.exit_code}\n{done.output}\n{done.exception!r}"
            return
        environment = {
            **os.environ,
            "PGQUEUE_DSN": self._dsn,
            "PGQUEUE_TEST_DSN": self._dsn,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        words = shlex.split(command)
        while words and re.match(r"[A-Z_]+=", words[0]):
            name, _, value = words.pop(0).partition("=")
            environment[name] = value
        if words[:2] == ["pgqueue", "worker"] and "--until-empty" not in words:
            self._worker(words, environment)
            return
        process = subprocess.run(
            ["bash", "-eu", "-c", command],
            cwd=self._directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert process.returncode == 0, f"{command}: exit code {process.returncode}\n{process.stdout}{process.stderr}"

    def _worker(self, command: list[str], environment: dict[str, str]) -> None:
        """Start a worker that serves until it is stopped, and stop it when it serves."""
        [[began]] = self._conn.execute("select clock_timestamp()").fetchall()

        def serves() -> bool:
            found = self._conn.execute("select from pgqueue.workers where started_at > %s", [began]).fetchone()
            return found is not None

        with subprocess.Popen(command, cwd=self._directory, env=environment) as process:
            try:
                wait_until(serves, timeout=60)
            finally:
                process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0

    def _write(self, name: str, text: str) -> None:
        path = self._directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
