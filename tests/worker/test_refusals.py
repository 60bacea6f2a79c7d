"""What keeps a worker from starting: one line that names the cure, exit code 2, no traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from pgqueue.schema import bundled
from pgqueue.schema.migrate import migrate
from tests.databases import Database, uri
from tests.worker.conftest import Start
from tests.workers import write_module

APP = """
    from pgqueue import App
    app = App()

    @app.task
    def t(): ...
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path) -> None:
    write_module(tmp_path, APP)
    write_module(tmp_path, APP, "others")
    write_module(tmp_path, "app = 1", "empty")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "no module with tasks was given; name it: pgqueue worker -r package.module"),
        (["-r", "nowhere"], "there is no module 'nowhere'; give -r as"),
        (["-r", "jobs.py"], "there is no module 'jobs.py'; give -r as"),
        (["-r", "empty"], "there is no pgqueue.App in 'empty'; make one"),
        (["-r", "jobs:application"], "there is no pgqueue.App in 'jobs:application'; make one"),
        (["-r", "jobs", "-r", "others"], "two functions are declared as task 't': jobs.t and others.t; give one"),
        (["-r", "jobs", "-q", "a,0"], "weights must be between 1 and 1000000"),
        (["-r", "jobs", "-q", "a,many"], "-q a,many: 'many' is no weight; give a queue as name or name,weight"),
        (["-r", "jobs", "-q", "a,1", "-q", "a"], "-q a: queue a is given twice; give each queue once"),
        (["-r", "jobs", "-q", "a,²"], "-q a,²: '²' is no weight"),
        (["-r", "jobs", "--max-memory", "9" * 400], "is not an amount of memory for a worker; give it as 500M or 2G"),
        (["-r", "jobs", "-q", ",1"], "queue must be 1 to 128 bytes long"),
        (["-r", "jobs", "--strategy", "fair"], "strategy is unknown: It is 'fair'; Give strategy as"),
        (["-r", "jobs", "--strategy", "strict"], "strategy strict needs queues"),
        (["-r", "jobs", "--lease", "0"], "lease is 0.0; give a value between 1 and 86400"),
        (["-r", "jobs", "-c", "0"], "concurrency is 0; give a value between 1 and 10000"),
        (["-r", "jobs", "--poll-interval", "nan"], "poll-interval is nan; give a value between"),
        (["-r", "jobs", "--log-level", "loud"], "there is no log level 'loud'; give debug,"),
        (["-r", "jobs", "--name", "x" * 300], "worker must be 1 to 256 bytes long"),
    ],
)
def test_wrong_settings_are_one_line_and_exit_code_2(options: list[str], said: str, start_worker: Start) -> None:
    worker = start_worker(*options)
    assert worker.wait() == 2
    [line] = worker.log().splitlines()
    assert line.startswith("pgqueue: ")
    assert said in line


@pytest.mark.parametrize(
    ("dsn", "said"),
    [
        (lambda database: "mysql://me:secret@localhost/x", "PGQUEUE_DSN is not a PostgreSQL DSN"),
        (lambda database: "postgresql://localhost/x?ssl=yes", "PGQUEUE_DSN is not a PostgreSQL DSN"),
        (lambda database: uri(database.dsn, dbname="nowhere"), 'database "nowhere" does not exist; correct the DSN'),
        (lambda database: uri(database.dsn, user="nobody_we_know"), '"nobody_we_know"'),
    ],
    ids=["scheme", "parameter", "database", "role"],
)
def test_a_wrong_dsn_is_one_line_and_exit_code_2(
    dsn: Callable[[Database], str], said: str, database: Database, start_worker: Start
) -> None:
    worker = start_worker("-r", "jobs", dsn=dsn(database))
    assert worker.wait() == 2
    [line] = worker.log().splitlines()
    assert line.startswith("pgqueue: ")
    assert said in line
    assert "secret" not in line


def not_installed(conn: psycopg.Connection, dsn: str) -> None:
    migrate(dsn, to="base")


def without_functions(conn: psycopg.Connection, dsn: str) -> None:
    conn.execute("drop function pgqueue.version()")


def at_an_older_revision(conn: psycopg.Connection, dsn: str) -> None:
    conn.execute("update pgqueue.releases set revision = '0000'")


def with_older_functions(conn: psycopg.Connection, dsn: str) -> None:
    conn.execute("update pgqueue.releases set digest = 'another', version = '0.0.9'")


def with_functions_edited_in_a_checkout(conn: psycopg.Connection, dsn: str) -> None:
    conn.execute("update pgqueue.releases set digest = 'another'")


def never_released(conn: psycopg.Connection, dsn: str) -> None:
    conn.execute("delete from pgqueue.releases")


@pytest.mark.parametrize(
    "older",
    [
        not_installed,
        without_functions,
        at_an_older_revision,
        with_older_functions,
        with_functions_edited_in_a_checkout,
        never_released,
    ],
    ids=lambda each: each.__name__,
)
def test_an_older_schema_is_one_line_that_names_the_command(
    older: Callable[[psycopg.Connection, str], None], database: Database, conn: psycopg.Connection, start_worker: Start
) -> None:
    older(conn, database.dsn)
    worker = start_worker("-r", "jobs")
    assert worker.wait() == 2
    [line] = worker.log().splitlines()
    assert line.startswith("pgqueue: ")
    assert line.endswith("run: pgqueue migrate")


def test_a_newer_schema_is_warned_of_and_served(conn: psycopg.Connection, start_worker: Start) -> None:
    conn.execute("update pgqueue.releases set digest = 'another', version = '99.0'")
    worker = start_worker("-r", "jobs").started()
    assert "is newer (99.0) than this worker" in worker.log()


def test_the_packages_own_digest_is_what_a_fresh_database_holds(conn: psycopg.Connection) -> None:
    assert conn.execute("select digest, revision from pgqueue.version()").fetchall() == [
        (bundled.sql_digest(), bundled.revisions()[-1])
    ]
