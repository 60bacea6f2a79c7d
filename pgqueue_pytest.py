"""The pytest plugin of pgqueue: fixtures that bring a database with the queue in it. See docs/how-to/testing.md.

pytest imports every installed plugin in every run. So this module is outside of the package, and imports pgqueue when
the first of its fixtures is used.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import psycopg

    from pgqueue import App
    from pgqueue.testing import Clock
    from pgqueue.testing.databases import Database, Databases
    from pgqueue.testing.queue import Queue

_DIRECTORY = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("pgqueue_app", "the App that pgqueue_queue drains: package.module, or package.module:attribute")


def pytest_configure(config: pytest.Config) -> None:
    workerinput = getattr(config, "workerinput", None)
    if workerinput is not None:
        config.stash[_DIRECTORY] = Path(workerinput["pgqueue_directory"])
    else:
        # Only the name: the first fixture that needs the database creates it.
        config.stash[_DIRECTORY] = Path(tempfile.gettempdir()) / f"pgqueue-pytest-{uuid.uuid4().hex[:12]}"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["pgqueue_directory"] = str(node.config.stash[_DIRECTORY])


def pytest_unconfigure(config: pytest.Config) -> None:
    directory = config.stash.get(_DIRECTORY, None)
    if directory is None or hasattr(config, "workerinput") or not directory.exists():
        return
    from pgqueue.testing.server import leave_server  # noqa: PLC0415

    leave_server(directory)


@pytest.fixture(scope="session")
def pgqueue_server(pytestconfig: pytest.Config) -> str:
    """DSN of the server of this run: PGQUEUE_TEST_DSN, else a container, else the embedded one.

    Override it to name another; its role needs CREATEDB.
    """
    from pgqueue.testing.server import join_server  # noqa: PLC0415

    return join_server(pytestconfig.stash[_DIRECTORY])


@pytest.fixture(scope="session")
def pgqueue_prepare() -> Callable[[str], object] | None:
    """Override it to put tables of yours into the template: return a function that is called with its DSN."""
    return None


@pytest.fixture(scope="session")
def pgqueue_databases(
    pgqueue_server: str, pgqueue_prepare: Callable[[str], object] | None, pytestconfig: pytest.Config
) -> Iterator[Databases]:
    """Makes databases: clones of one template, which is made once in a run."""
    from pgqueue.testing.databases import Databases  # noqa: PLC0415

    # With xdist its workers share the template; the last that ends drops it.
    databases = Databases(pgqueue_server, pytestconfig.stash[_DIRECTORY].name[-12:], pgqueue_prepare)
    with databases.in_use():
        yield databases


@pytest.fixture(scope="session")
def pgqueue_database(pgqueue_databases: Databases) -> Iterator[Database]:
    """One database for the session, with the queue's schema: `.dsn`, `.connect()`, `await .connect_async()`.

    With xdist each of its workers has one of its own. For tests that roll back.
    """
    database = pgqueue_databases.migrated()
    yield database
    pgqueue_databases.drop(database)


@pytest.fixture
def pgqueue_fresh_database(pgqueue_databases: Databases) -> Iterator[Database]:
    """A database of the test's own, for tests that commit."""
    database = pgqueue_databases.migrated()
    yield database
    pgqueue_databases.drop(database)


@pytest.fixture
def pgqueue_connection(pgqueue_database: Database) -> Iterator[psycopg.Connection]:
    """A connection of psycopg in a transaction that is rolled back at the end of the test."""
    import psycopg  # noqa: PLC0415

    connection = psycopg.connect(pgqueue_database.dsn)
    yield connection
    connection.rollback()
    connection.close()


@pytest.fixture
def pgqueue_clock(pgqueue_connection: psycopg.Connection) -> Clock:
    """The queue's clock as `pgqueue_connection` sees it. The moves of a test are rolled back."""
    from pgqueue.testing import Clock  # noqa: PLC0415

    return Clock(pgqueue_connection)


@pytest.fixture(scope="session")
def pgqueue_app(pytestconfig: pytest.Config) -> App:
    """The App that `pgqueue_queue` drains: from the ini option `pgqueue_app`, or override this."""
    from pgqueue.cli.modules import load  # noqa: PLC0415

    named = pytestconfig.getini("pgqueue_app")
    if not named:
        pytest.fail("name your App: pgqueue_app = package.module:app in pytest's ini, or override the fixture")
    return load([named])


@pytest.fixture
def pgqueue_queue(pgqueue_connection: psycopg.Connection, pgqueue_app: App) -> Queue:
    """The helpers of `pgqueue.testing`, such as `drain`, on `pgqueue_connection` and `pgqueue_app`."""
    from pgqueue.testing.queue import Queue  # noqa: PLC0415

    return Queue(pgqueue_connection, pgqueue_app)
