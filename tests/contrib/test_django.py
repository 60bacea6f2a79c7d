"""The backend for Django's tasks, in a Django project of its own: `manage.py test` there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.databases import Database

SITE = Path(__file__).parent / "site"


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(find_spec("django") is None, reason="Django is not installed")
def test_the_tests_of_the_project_pass(empty_database: Database) -> None:
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith(("PG", "DATABASE_URL", "DJANGO"))},
        "SITE_DSN": empty_database.dsn,
        "PYTHONPATH": os.pathsep.join((str(SITE), str(SITE.parents[2]))),
    }
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "manage.py", "test", "--noinput"],
        cwd=SITE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran = re.search(r"Ran (\d+) tests", done.stderr)
    assert ran is not None
    assert int(ran[1]) >= 28
    # Nothing was connected to the test's database any more when Django dropped it.
    assert "being accessed by other users" not in done.stderr
