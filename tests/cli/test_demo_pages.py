"""`pgqueue demo --pages`: a busy day at the shop, and that nothing of it is left behind."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_server

import psycopg
import pytest

from examples.shop import app as shop
from examples.shop import busy
from pgqueue.cli import demo as demo_command
from pgqueue.cli import demo_pages
from pgqueue.schema import bundled
from tests.calls import call, enqueue, value
from tests.cli.conftest import Run
from tests.databases import Database
from tests.facts import wait_until
from tests.workers import environment_without_dsn

TASKS = list(busy.app.tasks)


@contextmanager
def demo(database: Database, directory: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable,
        "-m",
        "pgqueue",
        "demo",
        "--yes",
        "--directory",
        directory / "receipts",
        *map(str, arguments),
    ]
    environment = {**environment_without_dsn(), "PGQUEUE_DSN": database.dsn}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def pids(conn: psycopg.Connection, names: str) -> list[int]:
    query = "select (info ->> 'pid')::integer from pgqueue.workers where name like %s"
    return [row[0] for row in conn.execute(query, [names])]


def assert_ended(found: list[int]) -> None:
    for pid in found:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_second_of_the_day_has_jobs_for_each_queue_and_reports_come_at_once(conn: psycopg.Connection) -> None:
    count = "select count(*) from pgqueue.jobs where queue = %s"
    busy.enqueue_second(conn, 0)
    assert value(conn, count, "reports") == busy.REPORTS
    assert value(conn, count, "products") == 1
    busy.enqueue_second(conn, 1)
    assert value(conn, count, "reports") == busy.REPORTS
    assert value(conn, count, "mail") >= 12
    assert value(conn, count, "webhooks") >= 2


def test_the_demo_deletes_the_jobs_of_an_earlier_one_and_no_other(conn: psycopg.Connection) -> None:
    examples = bundled.directory("examples")
    tasks = list(shop.app.tasks)
    conn.execute("drop schema if exists pgqueue_demo cascade")
    theirs = [enqueue(conn, "shop.tasks.send_email"), enqueue(conn, "shop.confirm_order")]
    demo_command._prepare(conn, examples, tasks)
    theirs.append(enqueue(conn, "shop.tasks.send_email"))
    ended = enqueue(conn, "shop.pack_parcel")
    call(conn, "cancel", ended)
    enqueue(conn, "shop.pack_parcel")
    assert value(conn, "select count(*) from pgqueue.history where id = %s", ended) == 1
    demo_command._prepare(conn, examples, tasks)
    assert value(conn, "select array_agg(id order by id) from pgqueue.all_jobs") == theirs


def test_an_end_of_the_shop_leaves_jobs_from_before_it(conn: psycopg.Connection) -> None:
    before = enqueue(conn, "mail.send", queue="mail")
    first_id = demo_pages.mark(conn)
    busy.enqueue_second(conn, 0)
    other = enqueue(conn, "mail.send_all", queue="mail")
    demo_pages.delete_jobs(conn, first_id, TASKS, ("waiting", "failed"))
    assert value(conn, "select array_agg(id order by id) from pgqueue.all_jobs") == [before, other]


def test_the_demo_removes_its_own_receipts_only(tmp_path: Path) -> None:
    for name in ("order-17.txt", "order-forms.txt", "order-17.pdf", "order-17-copy.txt", "order-"):
        (tmp_path / name).touch()
    assert demo_command._receipts(tmp_path) == [tmp_path / "order-17.txt"]


def test_the_demo_asks_before_it_uses_a_database_that_is_configured(
    run: Run, conn: psycopg.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn.execute("drop schema if exists pgqueue_demo cascade")
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    refused = run("demo", "--orders", 1, "--directory", tmp_path / "receipts")
    assert refused.code != 0
    assert "makes the schema pgqueue_demo anew" in refused.err
    assert value(conn, "select to_regnamespace('pgqueue_demo')") is None
    assert not (tmp_path / "receipts").exists()


@pytest.mark.long
@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGTERM])
def test_the_shop_stays_open_on_its_pages_until_it_is_ended(
    ends: signal.Signals, database: Database, conn: psycopg.Connection, tmp_path: Path
) -> None:
    with create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with demo(database, tmp_path, "--orders", 7, "--pages", "--port", port) as process:
        assert process.stderr is not None
        assert any(f"http://127.0.0.1:{port}/ until Ctrl-C" in line for line in process.stderr)

        def page() -> str:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/dead", timeout=10) as answer:
                    return str(answer.read().decode())
            except OSError:
                return ""

        wait_until(lambda: value(conn, "select count(*) from pgqueue.history where task = 'mail.send'") > 20, 90)
        wait_until(lambda: value(conn, "select count(*) from pgqueue.history where state = 'dead'") > 1, 90)
        wait_until(page, 90)
        assert value(conn, "select count(*) from pgqueue.all_jobs where task = 'reports.make'") >= busy.REPORTS
        found = pids(conn, "shop-%")
        process.send_signal(ends)
        assert process.wait(240) == 0
    assert len(found) == 2
    assert_ended(found)
    assert value(conn, "select count(*) from pgqueue.jobs where task = any(%s)", TASKS) == 0


@pytest.mark.long
def test_the_demo_ends_its_workers_when_it_is_terminated(
    database: Database, conn: psycopg.Connection, tmp_path: Path
) -> None:
    with demo(database, tmp_path) as process:
        found = wait_until(lambda: len(pids(conn, "worker %")) == 2 and pids(conn, "worker %"), 90)
        process.terminate()
        process.wait(240)
    assert found
    assert_ended(found)
