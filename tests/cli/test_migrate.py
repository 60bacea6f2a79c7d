"""`pgqueue migrate`."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import psycopg
import pytest

from pgqueue.schema import bundled
from tests.cli.conftest import Run
from tests.databases import Database
from tests.migrations.made_up import add_revision
from tests.migrations.releases import install

HEAD = bundled.revisions()[-1]


@pytest.fixture
def dsn(empty_database: Database) -> str:
    return empty_database.dsn


def schema_exists(dsn: str) -> bool:
    with psycopg.connect(dsn) as conn:
        return conn.execute("select 1 from pg_namespace where nspname = 'pgqueue'").fetchone() is not None


def test_migrate_installs_and_check_reports_whether_it_is_needed(run: Run, dsn: str) -> None:
    before = run("migrate", "--check", "--dsn", dsn)
    assert before.code == 1
    assert f"no schema (not current: this pgqueue needs revision {HEAD}" in before.out
    assert not schema_exists(dsn)

    done = run("migrate", "--dsn", dsn)
    assert (done.code, done.err) == (0, "")
    assert f"revision {HEAD} (current)" in done.out
    after = run("migrate", "--check", "--json", "--dsn", dsn)
    assert after.code == 0
    assert after.json() == {
        "revision": HEAD,
        "head": HEAD,
        "current": True,
        "digest": bundled.sql_digest(),
        "newer": False,
        "oldest_client": "0001",
    }


def test_the_script_installs_what_migrate_installs(run: Run, dsn: str) -> None:
    script = run("migrate", "--sql")
    assert (script.code, script.err) == (0, "")
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(script.out.encode())
        assert conn.execute("select pgqueue.enqueue('t')").fetchone() == (1,)
    assert run("migrate", "--check", "--dsn", dsn).code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sql", "--to", "0001"], "--sql and --to were both given"),
        (["--sql", "--check"], "--sql and --check were both given"),
        (["--sql", "--json"], "--sql and --json were both given"),
        (["--from", "0001"], "--from was given without --sql"),
        (["--check", "--to", "0001"], "--check and --to were both given"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(arguments: list[str], said: str, run: Run, dsn: str) -> None:
    refused = run("migrate", *arguments, "--dsn", dsn)
    assert (refused.code, refused.out) == (2, "")
    assert said in refused.err
    assert not schema_exists(dsn)


def test_going_to_base_removes_everything_but_not_without_a_yes(
    run: Run, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("migrate", "--dsn", dsn)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    refused = run("migrate", "--to", "base", "--dsn", dsn)
    assert refused.code != 0
    assert "Continue? [y/N]" in refused.err
    assert schema_exists(dsn)
    assert run("migrate", "--to", "base", "--yes", "--dsn", dsn).code == 0
    assert not schema_exists(dsn)


@pytest.fixture
def later(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two more revisions than there are, made after the database of the test; the last of them."""
    for name in ("sql", "migrations"):
        shutil.copytree(bundled.directory(name), tmp_path / name)
    add_revision(tmp_path / "migrations", HEAD, "9001", name="colours")
    add_revision(tmp_path / "migrations", "9001", "9002", name="sounds")
    monkeypatch.setattr(bundled, "directory", lambda name: tmp_path / name)
    return "9002"


def test_going_below_head_on_a_live_queue_names_what_stops_working_and_asks(
    run: Run, dsn: str, monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    run("migrate", "--dsn", dsn)
    job_id = int(run("enqueue", "t", "--dsn", dsn).out)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    refused = run("migrate", "--to", "9001", "--dsn", dsn)
    assert (refused.code, refused.out.strip()) == (130, "")
    assert f"is at revision {later}" in refused.err
    assert "every enqueue fails, and every worker stops working" in refused.err
    assert "removed: 9002_sounds" in refused.err
    assert "9001_colours" not in refused.err
    assert "Continue? [y/N]" in refused.err
    assert run("jobs", "show", job_id, "--dsn", dsn).code == 0
    done = run("migrate", "--to", "9001", "--yes", "--dsn", dsn)
    assert (done.code, done.err) == (0, "")
    assert f"revision 9001 (not current: this pgqueue needs revision {later}" in done.out
    # Back again: the job is there.
    assert run("migrate", "--dsn", dsn).code == 0
    assert run("jobs", "show", job_id, "--json", "--dsn", dsn).json()["state"] == "waiting"


@pytest.mark.usefixtures("later")
def test_where_no_queue_is_there_is_nothing_to_ask(run: Run, dsn: str) -> None:
    done = run("migrate", "--to", "9001", "--dsn", dsn)
    assert (done.code, done.err) == (0, "")
    assert run("migrate", "--to", "head", "--dsn", dsn).code == 0


def test_check_describes_how_a_database_of_before_the_first_release_is_upgraded(run: Run, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        install(conn)
        conn.execute("reset all; drop table pgqueue.traces; update pgqueue.alembic_version set version_num = '0020'")
    check = run("migrate", "--check", "--dsn", dsn)
    assert check.code == 1
    assert "is at revision 0020 of before the first release: with the program of commit" in check.out


def test_the_help_describes_what_going_below_head_does(run: Run) -> None:
    described = " ".join(run("migrate", "--help").out.split())
    assert "A number below head drops all functions" in described
    assert "nothing can enqueue or run jobs" in described
    assert "do not ask before going below head" in described


@pytest.mark.parametrize("arguments", [["--to", "0815"], ["--sql", "--from", "0815"]])
def test_a_revision_that_there_is_not_is_one_line(arguments: list[str], run: Run, dsn: str) -> None:
    done = run("migrate", *arguments, "--dsn", dsn)
    assert (done.code, done.out) == (2, "")
    assert "there is no revision '0815'; known: base, 0001" in done.err
    assert HEAD in done.err


@pytest.mark.parametrize("command", [["status"], ["enqueue", "t"], ["jobs", "list"], ["jobs", "show", "1"]])
def test_commands_on_a_database_without_the_queue_name_the_cure(command: list[str], run: Run, dsn: str) -> None:
    done = run(*command, "--dsn", dsn)
    assert (done.code, done.out) == (2, "")
    [line] = done.err.splitlines()
    assert line.endswith("run: pgqueue migrate")
