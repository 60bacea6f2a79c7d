"""`pgqueue demo --pages`: a busy day at the shop, and that nothing of it is left behind."""

from __future__ import annotations

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

from examples.shop import busy
from tests.calls import value
from tests.databases import Database
from tests.facts import wait_until
from tests.workers import environment_without_dsn

TASKS = list(busy.app.tasks)


@contextmanager
def demo(database: Database, directory: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "pgqueue", "demo", "--directory", directory / "receipts", *map(str, arguments)]
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
        assert process.wait(90) == 0
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
        process.wait(90)
    assert found
    assert_ended(found)
