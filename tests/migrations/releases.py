"""Releases of the queue as SQL, to be migrated from: tables, functions and grants as they were, in one file each.

At a release, before its first revision that follows: python -m tests.migrations.releases
"""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

import psycopg

_DIRECTORY = Path(__file__).parent

# The revision of the last release.
LAST = "0021"


def install(conn: psycopg.Connection, revision: str = LAST) -> None:
    """Install the release that ended at this revision."""
    conn.execute(gzip.decompress(_file(revision).read_bytes()))


def compact(script: str) -> str:
    """The script of a release without what the next one writes anew: the comments on functions and in the text."""
    script = re.sub(r"^comment on function .*?;$\n", "", script, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^\s*--.*\n|^\s*\n", "", script, flags=re.MULTILINE)


def write(script: str, revision: str) -> Path:
    file = _file(revision)
    # No time and no name in it: the same script makes the same file.
    file.write_bytes(gzip.compress(compact(script).encode(), mtime=0))
    return file


def _file(revision: str) -> Path:
    return _DIRECTORY / f"release_{revision}.sql.gz"


if __name__ == "__main__":
    from pgqueue.schema import bundled, migrate

    sys.stdout.write(f"{write(migrate.script(), bundled.revisions()[-1])}\n")
