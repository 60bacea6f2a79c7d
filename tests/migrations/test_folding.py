"""The revisions of before the first release are one. Older databases than the last of them are refused."""

from __future__ import annotations

import psycopg
import pytest

from pgqueue.errors import MigrationError
from pgqueue.schema import bundled
from pgqueue.schema.migrate import migrate, script, status
from pgqueue.schema.status import FIRST, LAST_BEFORE, LAST_COMMIT, Status
from tests.calls import value
from tests.databases import Database
from tests.migrations.releases import install


@pytest.fixture
def before(empty_database: Database) -> psycopg.Connection:
    """A database at the last revision of before the first release, with the functions of then."""
    conn = empty_database.connect(prepare_threshold=None)
    install(conn)
    conn.execute("reset all")
    return conn


@pytest.mark.parametrize("revision", ["0001", "0020"])
@pytest.mark.parametrize("is_below_head", [False, True], ids=["at head", "below head"])
def test_a_database_at_an_older_revision_is_refused_with_the_commit_that_upgrades_it(
    empty_database: Database, before: psycopg.Connection, revision: str, is_below_head: bool
) -> None:
    # What stands in place of the older tables: none of these was in them.
    before.execute("drop table pgqueue.traces")
    before.execute("update pgqueue.alembic_version set version_num = %s", [revision])
    before.execute("update pgqueue.releases set revision = %s", [revision])
    if is_below_head:
        before.execute("drop function pgqueue.version()")
    assert status(empty_database.dsn).is_too_old
    for target in ("head", FIRST, "base"):
        with pytest.raises(MigrationError, match=f"at revision {revision} of before the first release") as refused:
            migrate(empty_database.dsn, to=target)
        assert f"commit {LAST_COMMIT}" in (refused.value.hint or "")
    assert value(before, "select version_num from pgqueue.alembic_version") == revision
    with pytest.raises(psycopg.errors.RaiseException, match="is not at revision 0021"):
        before.execute(script(start=LAST_BEFORE).encode())
    before.execute("rollback")


def test_a_program_that_starts_on_an_older_database_names_the_commit_as_well() -> None:
    found = Status.of(("0.1.0", "0012", "digest", None))
    problem, hint = found.refusal("app") or ("", "")
    assert problem == "the schema in app is at revision 0012 of before the first release"
    assert f"commit {LAST_COMMIT}" in hint


def test_no_revision_of_today_has_the_number_of_the_last_one_before() -> None:
    assert LAST_BEFORE not in bundled.revisions()
    assert bundled.revisions()[0] == FIRST
