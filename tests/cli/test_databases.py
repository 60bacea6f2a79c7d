"""`status`, `metrics`, `top` and `web` over several databases."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import psycopg
import pytest
import uvicorn
from textual.widgets import DataTable, Static

from pgqueue.config import name_databases
from pgqueue.top.app import Top
from pgqueue.web import EVERYTHING, User
from pgqueue.web.app import Options
from pgqueue.web.several import dashboards
from tests.calls import enqueue_many, maintain, state
from tests.cli.conftest import Run
from tests.databases import Cloner, Database, uri


@pytest.fixture
def dsns(database: Database, cloner: Cloner, conn: psycopg.Connection) -> Iterator[list[str]]:
    """Two databases with a queue each, and one that cannot be reached."""
    second = cloner.migrated()
    for each, queue, count in ((conn, "mail", 3), (second.connect(), "orders", 5)):
        enqueue_many(each, count, "t", queue=queue)
        maintain(each)
    yield [database.dsn, second.dsn, uri(database.dsn, host="127.0.0.1", port="1", dbname="gone")]
    cloner.drop(second)


def options(dsns: list[str]) -> list[str]:
    return [word for dsn in dsns for word in ("--dsn", dsn)]


def test_status_shows_all_and_ends_with_1_when_one_cannot_be_read(run: Run, dsns: list[str]) -> None:
    first, second, gone = name_databases(dsns)
    done = run("status", *options(dsns))
    rows = [line.split() for line in done.out.splitlines()]
    assert [row[:2] for row in rows if row[:1] in ([first], [second]) and len(row) > 5] == [
        [first, "mail"], [first, "total"], [second, "orders"], [second, "total"],
    ]  # fmt: skip
    assert f"{gone}: cannot be read:" in done.out
    assert done.code == 1
    assert run("status", *options(dsns[:2])).code == 0
    found = run("status", "--json", *options(dsns)).json()["databases"]
    assert [(each["database"], each.get("total", {}).get("waiting")) for each in found] == [
        (first, 3), (second, 5), (gone, None),
    ]  # fmt: skip


def test_one_database_is_shown_as_ever(run: Run, dsns: list[str]) -> None:
    plain = run("status", "--json").json()
    assert "databases" not in plain
    assert run("status", "--json", "--dsn", dsns[0]).json().keys() == plain.keys()
    assert "database" not in run("metrics").out.replace("of the database", "")


def test_metrics_have_the_label_database(run: Run, dsns: list[str]) -> None:
    first, second, gone = name_databases(dsns)
    text = run("metrics", *options(dsns)).out
    for name, queue, count in ((first, "mail", 3), (second, "orders", 5)):
        assert f'pgqueue_queue_jobs{{database="{name}",queue="{queue}",state="waiting"}} {count}.0' in text
        assert f'pgqueue_database_up{{database="{name}"}} 1.0' in text
    assert f'pgqueue_database_up{{database="{gone}"}} 0.0' in text


def test_top_prints_all_with_a_column(run: Run, dsns: list[str]) -> None:
    first, second, gone = name_databases(dsns)
    done = run("top", "--once", "--where", "state:waiting", *options(dsns))
    assert f"{gone}: cannot be read" in done.out
    for name, queue, count in ((first, "mail", 3), (second, "orders", 5)):
        lines = [line.split() for line in done.out.splitlines() if line.startswith(name)]
        assert [name, queue] in [line[:2] for line in lines]
        assert len([line for line in lines if line[-1] == "waiting" or "waiting" in line]) == count
    assert [each.get("database") for each in run("top", "--json", *options(dsns)).json()["databases"]] == [
        first, second, gone,
    ]  # fmt: skip


def test_a_dsn_that_is_given_twice_is_refused(run: Run, database: Database) -> None:
    done = run("status", "--dsn", database.dsn, "--dsn", database.dsn)
    assert (done.code, done.out) == (2, "")
    assert "twice" in done.err


async def test_top_acts_on_the_database_of_the_row(dsns: list[str]) -> None:
    second = dsns[1]
    app = Top(dict(zip(name_databases(dsns), dsns, strict=True)), 0.2, "state:waiting")
    async with app.run_test(size=(220, 50)) as pilot:
        app.query_one("#tabs").active = "jobs"  # type: ignore[attr-defined]
        table = app.query_one("#jobs-table", DataTable)
        async with asyncio.timeout(80):
            while table.row_count < 8:
                await pilot.pause(0.05)
        assert [str(table.get_row_at(n)[0]) for n in range(8)] == [
            *[name_databases(dsns)[0]] * 3, *[name_databases(dsns)[1]] * 5,
        ]  # fmt: skip
        table.focus()
        await pilot.pause()
        table.move_cursor(row=7)
        job_id = int(str(table.get_row_at(7)[1]))
        await pilot.press("c")
        await pilot.pause()
        # It asks first.
        await pilot.press("y")
        await pilot.pause()
        async with asyncio.timeout(80):
            while "changed" not in str(app.query_one("#said", Static).render()):
                await pilot.pause(0.05)
    with psycopg.connect(second) as conn:
        assert state(conn, job_id) == "cancelled"
    with psycopg.connect(dsns[0]) as conn:
        assert conn.execute("select count(*) from pgqueue.history").fetchone() == (0,)


@pytest.fixture
def address(dsns: list[str]) -> Iterator[str]:
    app = dashboards(
        dict(zip(name_databases(dsns), dsns, strict=True)),
        Options(authorize=lambda request: User("alice", EVERYTHING)),
    )
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


@pytest.mark.long
def test_the_pages_lead_from_all_databases_to_each(address: str, dsns: list[str]) -> None:
    first, second, gone = name_databases(dsns)
    with httpx.Client(base_url=address, timeout=30, headers={"sec-fetch-site": "same-origin"}) as client:
        index = client.get("/").text
        assert f"/db/{first}/" in index
        assert f"/db/{second}/" in index
        assert "cannot be read" in index
        page = client.get(f"/db/{second}/queues")
        assert page.status_code == 200
        assert "orders" in page.text
        assert "mail" not in page.text
        # Back to all of them, and style from where the page is.
        assert 'href="/"' in page.text
        style = page.text.split('rel="stylesheet" href="')[-1].split('"')[0]
        assert client.get(style).status_code == 200
        assert client.get(index.split('rel="stylesheet" href="')[-1].split('"')[0]).status_code == 200
        assert client.get(f"/db/{gone}/").status_code == 503
        text = client.get("/metrics").text
        assert f'pgqueue_queue_jobs{{database="{second}",queue="orders",state="waiting"}} 5.0' in text
        assert f'pgqueue_database_up{{database="{gone}"}} 0.0' in text
        # An action stays in its database.
        form = {"name": "orders", "do": "pause"}
        assert client.post(f"/db/{second}/queue", data=form).status_code in (200, 303)
        assert client.get(f"/db/{second}/queue?name=orders").text.count("paused") > 0


def test_the_pages_of_several_databases_ask_who_is_there(dsns: list[str]) -> None:
    from starlette.testclient import TestClient  # noqa: PLC0415

    app = dashboards(dict(zip(name_databases(dsns), dsns, strict=True)), Options(authorize=lambda request: None))
    with TestClient(app, base_url="http://localhost") as client:
        for path in ("/", "/metrics", f"/db/{name_databases(dsns)[0]}/"):
            assert client.get(path).status_code == 401
