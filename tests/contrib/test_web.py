"""The example web applications: an order and its job are committed together, and the worker beside them runs it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.calls import value
from tests.databases import Database
from tests.facts import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples" / "web"

Load = Callable[[str], Any]


@pytest.fixture
def load(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Imports an example on the test's database."""
    database.connect().execute("create table orders (email text not null check (email <> ''))")
    monkeypatch.setenv("PGQUEUE_DSN", database.dsn)
    yield lambda name: importlib.import_module(f"examples.web.{name}")
    for name in [name for name in sys.modules if name.startswith("examples.web")]:
        del sys.modules[name]


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [each for each in packages if find_spec(each) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")


@contextmanager
def asgi(module: Any) -> Iterator[Any]:
    if module.__name__.endswith("litestar_app"):
        from litestar.testing import TestClient as LitestarClient

        with LitestarClient(module.api) as client:
            yield client
        return
    from starlette.testclient import TestClient

    with TestClient(module.api, raise_server_exceptions=False) as client:
        yield client


WITH_ASGI = pytest.mark.parametrize(
    ("name", "runs"),
    [
        pytest.param("fastapi_sqlalchemy", True, marks=needs("fastapi", "httpx")),
        pytest.param("fastapi_asyncpg", False, marks=needs("fastapi", "httpx")),
        pytest.param("starlette_psycopg", True, marks=needs("starlette", "httpx")),
        pytest.param("litestar_app", True, marks=needs("litestar", "httpx")),
    ],
)


@WITH_ASGI
def test_an_order_and_its_job_are_committed_together(
    name: str, runs: bool, load: Load, conn: psycopg.Connection
) -> None:
    with asgi(load(name)) as client:
        answer = client.post("/orders", params={"email": "a@b.c"})
        assert answer.status_code in (200, 201)
        job_id = answer.json()["job"]
        assert client.post("/orders", params={"email": ""}).status_code == 500
        assert value(conn, "select count(*) from orders") == 1
        assert value(conn, "select count(*) from pgqueue.all_jobs") == 1
        if runs:
            wait_until(
                lambda: value(conn, "select state::text from pgqueue.all_jobs where id = %s", job_id) == "succeeded"
            )
    assert value(conn, "select count(*) from pgqueue.workers") == 0


@WITH_ASGI
def test_an_order_whose_commit_fails_is_answered_with_an_error_and_leaves_no_job(
    name: str, runs: bool, load: Load, conn: psycopg.Connection
) -> None:
    # Checked at the commit, when the handler has returned.
    conn.execute("alter table orders add unique (email) deferrable initially deferred")
    with asgi(load(name)) as client:
        statuses = [client.post("/orders", params={"email": "a@b.c"}).status_code for _ in range(2)]
    assert statuses in ([200, 500], [201, 500])
    assert value(conn, "select count(*) from orders") == 1
    assert value(conn, "select count(*) from pgqueue.all_jobs") == 1


@needs("fastapi", "httpx")
def test_an_idempotency_key_makes_one_job_of_two_requests(load: Load, conn: psycopg.Connection) -> None:
    with asgi(load("fastapi_sqlalchemy")) as client:
        first, second = (
            client.post("/orders", params={"email": "a@b.c"}, headers={"Idempotency-Key": "k"}).json() for _ in range(2)
        )
        assert first == second
        assert client.get("/ready").json()["ready"] is True
    assert value(conn, "select count(*) from pgqueue.all_jobs") == 1


@needs("flask")
def test_flask_does_the_same_without_a_worker(load: Load, conn: psycopg.Connection) -> None:
    client = load("flask_sqlalchemy").api.test_client()
    assert client.post("/orders?email=a@b.c", headers={"Idempotency-Key": "k"}).status_code == 200
    assert client.post("/orders?email=a@b.c", headers={"Idempotency-Key": "k"}).status_code == 200
    assert client.post("/orders?email=").status_code == 500
    assert value(conn, "select count(*) from orders") == 2
    assert value(conn, "select count(*) from pgqueue.jobs") == 1


def test_an_example_fits_on_a_screen() -> None:
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 40
