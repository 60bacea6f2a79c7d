"""The files that come with the package: SQL, migrations, the demo, the benchmarks.

In a checkout they are at the top of the repository; in a wheel, inside the package.
"""

from __future__ import annotations

import hashlib
import subprocess
from contextlib import suppress
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def directory(name: str) -> Path:
    """Return the bundled directory `name`: "sql", "migrations" or "examples"."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def package(name: str) -> str:
    """Return the import name of the bundled package `name`: "benchmarks"."""
    return f"{_PACKAGE.name}.{name}" if (_PACKAGE / name).is_dir() else name


def sql_files() -> list[Path]:
    """List the files of sql/ in the order in which they are loaded: functions, views, grants."""
    sql = directory("sql")
    return [*sorted(sql.glob("functions/*/*.sql")), *sorted(sql.glob("views/*.sql")), sql / "grants.sql"]


def sql_digest() -> str:
    """Return the SHA-256, in hex, over the names and texts of sql/."""
    digest = hashlib.sha256()
    for file in sql_files():
        digest.update(file.relative_to(directory("sql")).as_posix().encode())
        digest.update(b"\0")
        digest.update(file.read_bytes())
        digest.update(b"\0")
    return digest.hexdigest()


def commit() -> str | None:
    """Return the commit that this package is of: as its build wrote it down, or of the checkout. None: not known."""
    written = _PACKAGE / "commit.txt"
    if written.is_file():
        return written.read_text().strip()
    # Not of a repository around an installation.
    if not (_PACKAGE.parent / ".git").exists():
        return None
    with suppress(OSError, subprocess.SubprocessError):
        ask = ["git", "rev-parse", "HEAD"]
        return subprocess.run(ask, cwd=_PACKAGE, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    return None


def revisions() -> list[str]:
    """List the revisions that this package knows, oldest first. A revision is the number its file begins with."""
    return [file.name.split("_")[0] for file in revision_files()]


def revision_files() -> list[Path]:
    """List the files of the revisions that this package knows, oldest first."""
    return sorted(directory("migrations").glob("versions/[0-9]*.py"))


if __name__ == "__main__":
    print(sql_digest())  # noqa: T201
