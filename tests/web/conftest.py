"""Fixtures: the pages, asked in this process or served to a browser."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psycopg
import pytest
import uvicorn
from psycopg.types.json import Jsonb

from pgqueue.web import EVERYTHING, User, dashboard
from tests.calls import call, enqueue, enqueue_many, maintain, reserve
from tests.cli.conftest import run
from tests.databases import Database

__all__ = ["run"]

Serve = Callable[..., str]


@pytest.fixture
def filled(conn: psycopg.Connection) -> psycopg.Connection:
    """A queue with a bit of everything."""
    call(conn, "declare_task", "send_email", queue="mail")
    call(conn, "declare_task", "report")
    call(conn, "hello", "w1", ["mail"], Jsonb({"host": "web-1", "pid": 17, "version": "0.1", "concurrency": 20}))
    enqueue_many(conn, 40, "send_email", queue="mail", tags=["vip"])
    enqueue_many(conn, 4, "report", queue="reports", key="order:17")
    enqueue(conn, "report", {"password": "geheim", "n": 2**60 + 1}, queue="reports", delay="1 h")
    for row in reserve(conn, 12, "w1", queues=["mail"]):
        error = {"class": "TimeoutError", "message": "no answer\nat all", "traceback": "Traceback: here"}
        call(conn, "fail", row.id, row.reservation, Jsonb(error), retry=row.id % 4 == 0)
    for row in reserve(conn, 5, "w1", queues=["mail"]):
        call(conn, "complete", row.id, row.reservation, Jsonb({"ok": True}))
    reserve(conn, 3, "w1")
    call(conn, "set_limit", "queue", "mail", max_executing=50)
    call(conn, "schedule", "nightly", "0 3 * * *", "report")
    call(conn, "beat", "w1", Jsonb({"jobs": [{"queue": "mail", "task": "send_email", "succeeded": 5, "dead": 9}]}))
    group = call(conn, "open_group", "import")
    members = enqueue_many(conn, 3, "load", queue="imports", group_id=group, delay="1 h")
    enqueue(conn, "report", queue="imports", group_id=group, depends_on=members[:2])
    enqueue(conn, "tell", queue="imports", depends_on=[group], run_if="finished")
    maintain(conn)
    return conn


@pytest.fixture
def serve(database: Database) -> Iterator[Serve]:
    """Serves the pages of the test's database; returns their address."""
    servers: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(
        dsn: str = database.dsn, can: Any = EVERYTHING, wrap: Callable[[Any], Any] = lambda app: app, **options: Any
    ) -> str:
        app = wrap(dashboard(dsn, **{"authorize": lambda request: User("alice", can), **options}))
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
        thread.start()
        servers.append((server, thread))
        while not server.started:
            time.sleep(0.02)
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for server, thread in servers:
        server.should_exit = True
        thread.join(60)


@pytest.fixture
def ask(serve: Serve) -> Iterator[Callable[..., httpx.Response]]:
    """Asks the pages as their own forms would."""
    clients: dict[str, httpx.Client] = {}

    def send(
        method: str, path: str, headers: dict[str, str] | None = None, at: str | None = None, **form: Any
    ) -> httpx.Response:
        address = at or clients.setdefault("", httpx.Client(base_url=serve(), verify=False, timeout=30)).base_url
        # Without TLS: reading the certificates of the world takes longer than most pages.
        with httpx.Client(base_url=address, timeout=30, verify=False) as client:
            return client.request(
                method,
                path,
                data=form or None,
                headers={"sec-fetch-site": "same-origin"} if headers is None else headers,
            )

    yield send
    for client in clients.values():
        client.close()
