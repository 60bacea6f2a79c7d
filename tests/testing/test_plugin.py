"""The pytest plugin, in runs of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from pgqueue.testing.databases import Databases, uri
from tests.databases import Cloner

pytestmark = pytest.mark.long

TASKS = """
from pgqueue import App

app = App()

@app.task(queue="mail")
def send(to):
    sent.append(to)

sent = []
"""

TESTS = """
import pytest
from tasks import send, sent
from pgqueue.testing import RunningWorker

@pytest.mark.parametrize("n", range(4))
def test_rolled_back(pgqueue_queue, pgqueue_connection, n):
    sent.clear()
    send.enqueue(pgqueue_connection, f"{n}@b.c")
    pgqueue_queue.assert_enqueued(send, args={"to": f"{n}@b.c"}, queue="mail", count=1)
    assert pgqueue_queue.drain().succeeded == 1
    assert sent == [f"{n}@b.c"]
    pgqueue_queue.refute_enqueued()
    assert pgqueue_queue.perform(send, "x").state == "succeeded"

def test_clock(pgqueue_queue, pgqueue_connection, pgqueue_clock):
    send.using(delay="1 day").enqueue(pgqueue_connection, "a@b.c")
    assert pgqueue_queue.drain().succeeded == 0
    with pgqueue_clock.travel("1 day"):
        assert pgqueue_queue.drain().succeeded == 1

def test_nothing_is_left(pgqueue_connection):
    assert pgqueue_connection.execute("select count(*) from pgqueue.all_jobs").fetchone() == (0,)

@pytest.mark.parametrize("n", range(2))
def test_commits(pgqueue_fresh_database, pgqueue_app, n):
    import asyncio
    async def run():
        conn = pgqueue_fresh_database.connect()
        async with RunningWorker(pgqueue_app, pgqueue_fresh_database.dsn) as worker:
            await worker.until(send.enqueue(conn, "a@b.c"), timeout=240)
        assert conn.execute("select count(*) from pgqueue.history").fetchone() == (1,)
    asyncio.run(run())

def test_own_tables_are_in_the_template(pgqueue_connection):
    assert pgqueue_connection.execute("select count(*) from orders").fetchone() == (0,)
"""

CONFTEST = """
import psycopg, pytest

@pytest.fixture(scope="session")
def pgqueue_prepare():
    def prepare(dsn):
        with psycopg.connect(dsn) as conn:
            conn.execute("create table orders (id int)")
    return prepare
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in (("tasks.py", TASKS), ("test_it.py", TESTS), ("conftest.py", CONFTEST)):
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\npgqueue_app = tasks:app\n")
    return tmp_path


def run(project: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST_", "PGQUEUE_"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    return subprocess.run(
        command, cwd=project, env=clean | environment, capture_output=True, text=True, timeout=280, check=False
    )


@pytest.mark.parametrize("processes", ["0", pytest.param("2", marks=pytest.mark.long)])
def test_its_fixtures_bring_a_database_and_leave_none(project: Path, cloner: Cloner, processes: str) -> None:
    # Other tests create databases on the server meanwhile: those of this role are the run's.
    role = f"pgqueue_plugin_{processes}"
    owned = "select array_agg(datname) from pg_database where pg_get_userbyid(datdba) = %s"
    with psycopg.connect(cloner.server_dsn, autocommit=True) as conn:
        conn.execute(f"create role {role} login createdb password 'plugin'".encode())
        try:
            dsn = uri(cloner.server_dsn, user=role, password="plugin")
            done = run(project, "-n", processes, PGQUEUE_TEST_DSN=dsn)
            assert "9 passed" in done.stdout, done.stdout + done.stderr
            assert "error" not in done.stdout, done.stdout + done.stderr
            assert conn.execute(owned, [role]).fetchone() == (None,)
        finally:
            conn.execute(f"drop role {role}".encode())
    assert not list(Path(tempfile.gettempdir()).glob("pgqueue-pytest-*/lock"))


@pytest.mark.long
def test_without_a_server_of_yours_it_starts_one_for_the_run_and_ends_it(project: Path) -> None:
    # A directory of its own: other runs on this machine have theirs in the usual one.
    with tempfile.TemporaryDirectory() as place:
        done = run(project, "-n", "2", "-k", "rolled_back", TMPDIR=place)
        assert "4 passed" in done.stdout, done.stdout + done.stderr
        assert list(Path(place).glob("pgqueue*")) == []
        assert [process for process in commands() if place in process] == []


def commands() -> Iterator[str]:
    """The command lines of all processes, on Linux."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield file.read_bytes().decode(errors="replace")


def test_nothing_is_imported_unless_a_fixture_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n\ndef test_it():\n    assert 'pgqueue_pytest' in sys.modules\n"
        "    assert not {'pgqueue', 'psycopg'} & set(sys.modules)\n"
    )
    done = run(tmp_path, "-p", "no:asyncio")
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_without_an_app_it_says_where_to_name_it(project: Path, cloner: Cloner) -> None:
    (project / "pytest.ini").write_text("[pytest]\n")
    done = run(project, "-k", "clock", PGQUEUE_TEST_DSN=cloner.server_dsn)
    assert "pgqueue_app = package.module:app" in done.stdout


def test_a_role_drops_a_database_in_which_a_session_is_that_it_may_not_end(cloner: Cloner) -> None:
    with psycopg.connect(cloner.server_dsn, autocommit=True) as conn:
        conn.execute("create role pgqueue_drops login createdb password 'plugin'")
        databases = Databases(uri(cloner.server_dsn, user="pgqueue_drops", password="plugin"), "drops")
        try:
            database = databases.empty()
            # Of a superuser, as autovacuum is, and gone soon, as that.
            busy = psycopg.connect(uri(cloner.server_dsn, dbname=database.name))
            leaves = threading.Timer(0.5, busy.close)
            leaves.start()
            databases.drop(database)
            leaves.join()
            assert conn.execute("select from pg_database where datname = %s", [database.name]).fetchone() is None
        finally:
            databases.close()
            conn.execute("drop role pgqueue_drops")
