"""`pgqueue web` at its start: over a database that shows nothing, and on a port that is taken."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import uvicorn

from pgqueue.cli import ports
from pgqueue.web import app
from tests.cli.conftest import Run
from tests.databases import Database


@pytest.fixture(autouse=True)
def not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn, "run", lambda *_, **__: None)


@pytest.fixture
def any_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the usual port is free on this machine is not asked."""
    monkeypatch.setattr(ports, "check_free", lambda *_: None)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.usefixtures("any_port")
def test_a_database_without_the_queue_is_named_at_the_start(run: Run, empty_database: Database) -> None:
    done = run("web", "--dsn", empty_database.dsn)
    assert done.code == 0
    [warning, _] = done.err.splitlines()
    assert warning.startswith("pgqueue: the queue is not installed in pgqueue_test_")
    assert warning.endswith("; run: pgqueue migrate")


@pytest.mark.usefixtures("any_port")
def test_a_database_that_cannot_be_reached_is_named_at_the_start(run: Run, database: Database) -> None:
    done = run("web", "--dsn", database.dsn, "--dsn", "host=127.0.0.1 port=1 dbname=away password=secret")
    assert done.code == 0
    [warning, _] = done.err.splitlines()
    assert warning.startswith("pgqueue: away on 127.0.0.1 cannot be used now: connection")
    assert "secret" not in warning


@pytest.mark.usefixtures("any_port")
def test_a_database_that_can_be_used_is_not_mentioned(run: Run) -> None:
    [line] = run("web").err.splitlines()
    assert line.startswith("The pages are at http://127.0.0.1:8081/")
    # An address that the pages themselves know.
    for host in ("0.0.0.0", "::"):
        [line] = run("web", "--host", host, "--no-auth").err.splitlines()
        assert line.startswith("The pages are at http://localhost:8081/")


@pytest.mark.parametrize("command", [("web",), ("dev", "-r", "tasks")])
def test_a_port_that_is_taken_is_refused_with_the_option_before_anything_starts(
    command: tuple[str, ...], taken: int, run: Run
) -> None:
    done = run(*command, "--port", taken)
    assert (done.code, done.out) == (2, "")
    said = f"port {taken} of 127.0.0.1 is taken by another program; give another one with --port"
    assert done.err.splitlines() == [f"pgqueue: {said}"]


@pytest.mark.usefixtures("any_port")
def test_a_field_that_redact_names_is_hidden_beside_those_of_secrets(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[app.Options] = []
    monkeypatch.setattr(app, "pages_of", lambda _, options: served.append(options))
    for given in ((), ("--redact", "*iban*", "--redact", "tax_id")):
        assert run("web", *given).code == 0
    assert {"*password*", "*secret*"} <= set(served[0].redact)
    assert [*served[0].redact, "*iban*", "tax_id"] == [*served[1].redact]


def test_a_host_without_an_address_is_refused(run: Run) -> None:
    done = run("web", "--host", "nowhere.invalid", "--no-auth")
    assert done.code == 2
    assert "there is no address nowhere.invalid to listen on" in done.err
