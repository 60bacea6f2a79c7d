"""Fixtures: one server for the run, one migrated database for each test that asks for it.

`database`        a fresh clone; `.dsn`, `.connect()`, `await .connect_async()`, `.session()`
`empty_database`  the same without our schema
`conn`            a connection to `database`, in autocommit mode
`clock`           the queue's clock in `database`: `.set()`, `.advance()`, `.now()`, `.back_to_real()`

With `-n` the server is started by the controlling process and shared by all.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from typing import Any, Protocol

import psycopg
import pytest

from pgqueue.errors import EmbeddedError
from pgqueue.testing import Clock
from pgqueue.testing.server import Server, start_server
from tests.databases import Cloner, Database

_SERVER = pytest.StashKey[Server]()
_CLONER = pytest.StashKey[Cloner]()
_RUN_ID = pytest.StashKey[str]()

# The unix time from which on tests that take long are skipped. Where it is set, they come last.
_LONG_UNTIL = float(os.environ.get("PGQUEUE_LONG_UNTIL", "inf"))


# Under nohup every child would ignore HUP, and in the background of a script INT: tests send both.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class XdistNode(Protocol):
    """What we use of an xdist worker, seen from the controller; xdist itself may be missing."""

    config: pytest.Config
    workerinput: dict[str, Any]


@pytest.fixture(scope="session")
def cloner(request: pytest.FixtureRequest) -> Cloner:
    """Makes databases; tests of migrations take from it what they need."""
    return _cloner(request.config)


@pytest.fixture(scope="session")
def pgqueue_server(cloner: Cloner) -> str:
    """The server of this run, for the fixtures of our own plugin."""
    return cloner.server_dsn


@pytest.fixture
def database(cloner: Cloner, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database of the test's own, at head."""
    database = cloner.migrated(partitions=request.node.get_closest_marker("partitions") is not None)
    yield database
    cloner.drop(database)


@pytest.fixture
def empty_database(cloner: Cloner) -> Iterator[Database]:
    """A database of the test's own, in which no migration has run."""
    database = cloner.empty()
    yield database
    cloner.drop(database)


@pytest.fixture
def conn(database: Database) -> psycopg.Connection:
    return database.connect()


@pytest.fixture
def clock(database: Database) -> Clock:
    # A connection of its own: the test may hold a transaction open on `conn`.
    return Clock(database.connect())


def pytest_configure(config: pytest.Config) -> None:
    workerinput = getattr(config, "workerinput", None)
    if workerinput is not None:
        config.stash[_RUN_ID] = workerinput["pgqueue_run_id"]
        return
    if config.option.collectonly:
        return
    try:
        config.stash[_SERVER] = start_server()
    except EmbeddedError as error:
        pytest.exit(f"no PostgreSQL to test on: {error}", returncode=3)
    config.stash[_RUN_ID] = uuid.uuid4().hex[:8]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: XdistNode) -> None:
    node.workerinput["pgqueue_dsn"] = node.config.stash[_SERVER].dsn
    node.workerinput["pgqueue_run_id"] = node.config.stash[_RUN_ID]


def pytest_unconfigure(config: pytest.Config) -> None:
    server = config.stash.get(_SERVER, None)
    if server is not None:
        cloner = _cloner(config)
        cloner.drop_templates()
    if _CLONER in config.stash:
        config.stash[_CLONER].close()
    if server is not None:
        server.stop()


def pytest_report_header(config: pytest.Config) -> str | None:
    server = config.stash.get(_SERVER, None)
    return None if server is None else f"PostgreSQL {server.version()}: {server.description}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items[:] = _spread(items)
    if "PGQUEUE_LONG_UNTIL" in os.environ:
        items.sort(key=_is_long)
    # Properties travel with the reports from xdist's workers; markers do not.
    for item in items:
        for marker in item.iter_markers("covers"):
            item.user_properties.extend(("covers", line) for line in marker.args)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if _is_long(item) and time.time() > _LONG_UNTIL:
        pytest.skip("takes long, and PGQUEUE_LONG_UNTIL has passed")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    covered = {
        str(line)
        for report in terminalreporter.getreports("passed")
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, line in report.user_properties
        if name == "covers"
    }
    if covered:
        lines = sorted(covered, key=lambda line: (line[:1], len(line), line))
        terminalreporter.write_line(f"behaviours covered: {len(lines)} ({' '.join(lines)})")


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is not None


def _spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests with the files of each folder spread over the run: some folders wait, others compute."""
    files: dict[object, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    ordered = list(files.values())
    return [item for start in range(7) for file in ordered[start::7] for item in file]


def _cloner(config: pytest.Config) -> Cloner:
    if _CLONER not in config.stash:
        workerinput = getattr(config, "workerinput", None)
        dsn = config.stash[_SERVER].dsn if workerinput is None else workerinput["pgqueue_dsn"]
        config.stash[_CLONER] = Cloner(dsn, config.stash[_RUN_ID])
    return config.stash[_CLONER]
