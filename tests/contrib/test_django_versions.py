"""Our project on versions of Django that are not installed here, and Django's own tests of its tasks on our backend.

Each version comes from PyPI: without a network these tests are skipped.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.databases import Database

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SITE = HERE / "site"
UPSTREAM = HERE / "upstream"

# With the oldest Python that it runs on, which for 6.0 is older than it promises.
VERSIONS = {"4.2": (3, 11), "5.2": (3, 11), "6.0": (3, 11), "6.1": (3, 12)}
TASKS_OF_ITS_OWN = ["6.0", "6.1"]

# Django's tests name its own two backends, and need no database.
INSTEAD = {
    "from django.tasks.backends.dummy import DummyBackend": "from backends import Enqueues as DummyBackend",
    "from django.tasks.backends.immediate import ImmediateBackend": "from backends import Runs as ImmediateBackend",
    "django.tasks.backends.dummy.DummyBackend": "backends.Enqueues",
    "django.tasks.backends.immediate.ImmediateBackend": "backends.Runs",
    "import SimpleTestCase": "import TestCase as SimpleTestCase",
}

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, "--ignore-requires-python"]
    done = subprocess.run([*command, "--no-deps"], capture_output=True, text=True, timeout=280, check=False)
    if done.returncode:
        pytest.skip(f"not to be had from PyPI: {(done.stderr.strip().splitlines() or ['?'])[-1]}")


def django(version: str, place: Path) -> Path:
    """Install a version into a directory of its own, which goes before what is installed."""
    if sys.version_info < VERSIONS[version]:
        pytest.skip(f"Django {version} does not run on Python {sys.version_info[0]}.{sys.version_info[1]}")
    backport = [] if version in TASKS_OF_ITS_OWN else ["django-tasks", "django-stubs-ext", "typing-extensions"]
    pip("install", "--quiet", "--target", str(place), f"django~={version}.0", *backport)
    return place


def run_tests(project: Path, database: Database, path: list[Path], *labels: str) -> tuple[int, int, str]:
    """Run `manage.py test`; return how many tests there are and were skipped, and what it printed."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("PG", "DATABASE_URL", "DJANGO"))}
    done = subprocess.run(
        [sys.executable, "manage.py", "test", "--noinput", *labels],
        cwd=project,
        env={**clean, "SITE_DSN": database.dsn, "PYTHONPATH": os.pathsep.join(map(str, [*path, project, ROOT]))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Not "Ran": whether that counts the skipped ones too depends on the version of Python.
    found = re.search(r"Found (\d+) test", done.stdout + done.stderr)
    assert found is not None
    skipped = re.search(r"skipped=(\d+)", done.stderr)
    return int(found[1]), int(skipped[1]) if skipped else 0, done.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_the_tests_of_the_project_pass_on(version: str, empty_database: Database, tmp_path: Path) -> None:
    found, skipped, _ = run_tests(SITE, empty_database, [django(version, tmp_path)])
    assert found >= 30
    assert skipped == 0


@pytest.mark.parametrize("version", TASKS_OF_ITS_OWN)
def test_djangos_own_tests_of_its_tasks_pass_on(version: str, empty_database: Database, tmp_path: Path) -> None:
    """See upstream/runner.py for those that are left out, each with the reason."""
    installed = django(version, tmp_path / "django")
    pip("download", "--quiet", "--dest", str(tmp_path), "--no-binary", ":all:", f"django~={version}.0")
    [source] = tmp_path.glob("*.tar.gz")
    tests = tmp_path / "own" / "tasks"
    tests.mkdir(parents=True)
    with tarfile.open(source) as archive:
        for member in archive.getmembers():
            where, _, name = member.name.rpartition("/")
            found = archive.extractfile(member) if where.endswith("/tests/tasks") else None
            if found is not None:
                text = found.read().decode()
                for theirs, ours in INSTEAD.items():
                    text = text.replace(theirs, ours)
                (tests / name).write_text(text)
    found, skipped, _ = run_tests(UPSTREAM, empty_database, [installed, tests.parent, SITE], "tasks")
    assert found >= 76
    assert skipped <= 11
