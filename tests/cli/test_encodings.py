"""Databases that are not in UTF-8: what goes in comes out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from pgqueue import App
from pgqueue.config import WorkerConfig
from pgqueue.worker import Worker
from tests.cli.conftest import Run
from tests.databases import Database, uri


@pytest.fixture(params=["SQL_ASCII", "LATIN1"])
def dsn(request: pytest.FixtureRequest, empty_database: Database) -> Iterator[str]:
    conn = empty_database.connect()
    name = f"{empty_database.name}_{request.param.lower()}"
    provider = "locale_provider libc" if conn.info.server_version >= 150000 else ""
    conn.execute(
        f"create database {name} template template0 encoding '{request.param}' {provider}"
        " lc_collate 'C' lc_ctype 'C'".encode()
    )
    yield uri(empty_database.dsn, dbname=name)
    conn.execute(f"drop database {name} with (force)".encode())


def test_a_database_in_another_encoding_serves(dsn: str, run: Run) -> None:
    assert "(current)" in run("migrate", "--dsn", dsn).out
    assert run("enqueue", "grüße", '{"an": "Zoë"}', "--tag", "Ä", "--dsn", dsn).out == "1\n"
    app = App()

    @app.task(name="grüße", store_result=True)
    def greet(an: str) -> str:
        return f"Grüße an {an}"

    asyncio.run(Worker(app, dsn, WorkerConfig(until_empty=True)).run())
    job = run("jobs", "show", "1", "--json", "--dsn", dsn).json()
    assert (job["task"], job["args"], job["tags"]) == ("grüße", {"an": "Zoë"}, ["Ä"])
    assert (job["state"], job["result"]) == ("succeeded", "Grüße an Zoë")
