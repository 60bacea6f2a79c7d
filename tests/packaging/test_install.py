"""What an installation without extras can do: it has what pyproject.toml requires, and nothing else to import."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import psycopg
import pytest

from tests.calls import value
from tests.databases import Database
from tests.docs.pages import ROOT
from tests.workers import environment_without_dsn

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# A producer, and a worker in a program of its own.
PROGRAM = """
import asyncio, os
import psycopg
from pgqueue import App, Worker, WorkerConfig, wait

app = App()

@app.task
def greet(name: str) -> str:
    return f"Hello {name}"

dsn = os.environ["PGQUEUE_DSN"]
with psycopg.connect(dsn, autocommit=True) as connection:
    job_id = greet.enqueue(connection, "Ada")
    asyncio.run(Worker(app, dsn, WorkerConfig(until_empty=True)).run())
    print(wait(connection, job_id).state)
"""


def required(requirements: list[str], extras: frozenset[str] = frozenset()) -> Iterator[str]:
    """Each distribution that these requirements bring, on this Python, without markers of extras."""
    for each in requirements:
        plain, _, marker = each.partition(";")
        found = re.match(r"([\w.-]+)\s*(?:\[([\w, -]*)\])?", plain)
        assert found is not None, each
        wanted = re.findall(r"extra\s*==\s*['\"]([\w-]+)", marker)
        # Other markers are of versions and platforms; what is not installed here is not needed here.
        if wanted and not extras & {*wanted}:
            continue
        try:
            more = distribution(found[1]).requires or []
        except ModuleNotFoundError:
            continue
        yield found[1]
        yield from required(more, frozenset(re.findall(r"[\w-]+", found[2] or "")))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory to import from, with the packages that pyproject.toml requires, and pgqueue."""
    site = tmp_path_factory.mktemp("bare")
    names = {*required(PROJECT["dependencies"])}
    tops = {file.parts[0] for name in names for file in distribution(name).files or () if file.parts[0] != ".."}
    for top in tops - {"__pycache__"}:
        (site / top).symlink_to(distribution("psycopg").locate_file(top))
    for top in ("pgqueue", "sql", "migrations"):
        (site / top).symlink_to(ROOT / top)
    return site


def run(site: Path, *arguments: str, dsn: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**environment_without_dsn(), "PYTHONPATH": os.fspath(site), "PGQUEUE_DSN": dsn}
    # -S: without the packages of this environment.
    return subprocess.run(
        [sys.executable, "-S", *arguments], cwd=site, env=environment, capture_output=True, text=True, timeout=280
    )


def test_without_extras_a_program_enqueues_works_and_waits(
    bare: Path, database: Database, conn: psycopg.Connection
) -> None:
    done = run(bare, "-c", PROGRAM, dsn=database.dsn)
    assert (done.returncode, done.stdout) == (0, "succeeded\n"), done.stderr
    assert value(conn, "select array_agg(state::text) from pgqueue.all_jobs") == ["succeeded"]


def test_without_extras_the_command_line_and_migrations_say_which_extra_they_need(bare: Path) -> None:
    done = run(bare, "-m", "pgqueue", "migrate")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "pgqueue: the command line is an extra; run: pip install 'pgqueue-sql[cli]'\n"
    done = run(bare, "-c", "from pgqueue import migrate")
    assert done.stderr.endswith("migrations need the extra cli; run: pip install 'pgqueue-sql[cli]'\n")


def test_without_extras_nothing_of_the_command_line_is_installed(bare: Path) -> None:
    found = {each.name for each in bare.iterdir()}
    assert found >= {"psycopg", "psycopg_pool", "orjson"}
    assert found & {"typer", "rich", "pydantic", "alembic", "sqlalchemy", "mako"} == set()


def test_every_extra_that_is_about_a_command_brings_the_command_line() -> None:
    extras = PROJECT["optional-dependencies"]

    def brings(extra: str) -> set[str]:
        named = re.findall(r"pgqueue-sql\[([\w,]+)\]", " ".join(extras[extra]))
        return {extra}.union(*(brings(each) for names in named for each in names.split(",")))

    about_commands = {"embedded", "web", "tui", "mcp", "reload", "testing", "django", "all"}
    assert {extra for extra in extras if extra != "cli" and "cli" in brings(extra)} == about_commands | {"test", "dev"}


def test_the_page_on_installing_names_every_extra() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    # For who works on pgqueue itself.
    assert PROJECT["optional-dependencies"].keys() - {*re.findall(r"^\| `(\w+)`", page, re.M)} == {
        "test",
        "docs",
        "dev",
    }
